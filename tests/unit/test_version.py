"""The commit of envcompare: of the checkout it runs from, else of what it was installed from."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envcompare import bundled

Git = Callable[..., str]


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """Forget the commit that was found before and after each test."""
    bundled.tool_commit.cache_clear()
    yield
    bundled.tool_commit.cache_clear()


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Make envcompare run from a checkout with one commit; call git in it."""
    monkeypatch.setattr(bundled, "_CHECKOUT", tmp_path)

    def call(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        argv = ("git", "-C", str(tmp_path), *who, *words)
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    call("init", "-q")
    (tmp_path / "code.py").write_text("1\n")
    call("add", "code.py")
    call("commit", "-qm", "one")
    return call


def test_a_checkout_has_the_commit_that_is_checked_out(git: Git) -> None:
    """A tag of it changes nothing."""
    git("tag", "v1")
    assert bundled.tool_commit() == git("rev-parse", "HEAD")


def test_a_changed_checkout_is_said_to_be(git: Git, tmp_path: Path) -> None:
    """A file that git does not keep is no change."""
    (tmp_path / "notes").write_text("mine\n")
    assert bundled.tool_commit() == git("rev-parse", "HEAD")
    bundled.tool_commit.cache_clear()
    (tmp_path / "code.py").write_text("2\n")
    assert bundled.tool_commit() == f"{git('rev-parse', 'HEAD')} modified"


def test_variables_of_another_repository_do_not_mislead(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git sets them for what it starts."""
    expected = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert bundled.tool_commit() == expected


def test_an_installed_envcompare_has_the_commit_that_pip_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed from git; from a folder or an index nothing tells it."""
    monkeypatch.setattr(bundled, "_CHECKOUT", tmp_path)
    folder = tmp_path / "envcompare_bench-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: envcompare-bench\nVersion: 9\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert bundled.tool_commit() == ""
    bundled.tool_commit.cache_clear()
    origin = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "c0de"}}
    (folder / "direct_url.json").write_text(json.dumps(origin))
    assert bundled.tool_commit() == "c0de"
