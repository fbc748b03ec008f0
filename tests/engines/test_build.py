"""`envcompare build` as a user types it, with few wheels: done once, told, proven each time."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab import ROOT, Lab, forget
from runs import BASE

from envcompare import bundled
from envcompare.cli import app
from envcompare.environments.oci import image_store
from envcompare.errors import ConfigError
from envcompare.stack import LOCK_LABEL
from envcompare.stack.building import remove_images
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run, shell
from envcompare.transport.hosts import connect, parse_hosts

pytestmark = [
    pytest.mark.engine("docker"),
    pytest.mark.engine("ssh"),
    pytest.mark.engine("singularity"),
]
ARMS = ("vm", "docker", "singularity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended, and both its streams."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let the bundled workloads need pip and setuptools alone; give the folder for all this."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("workloads", "studies", "containers"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Dockerfile", folder)
    (folder / "workloads" / "requirements" / "cu130.in").write_text("pip\nsetuptools\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(bundled, "root", lambda: folder)
        yield folder


@pytest.fixture(scope="module")
def host(small: Path, lab: Lab) -> Iterator[Transport]:
    """Give the lab host, and leave nothing that was made of these wheels."""
    transport = connect(parse_hosts([lab.alias])[0])
    yield transport
    for note in (small / "cache" / "envcompare" / "resolved").iterdir():
        key = note.read_text()
        for where in (LOCAL, transport):
            remove_images(image_store(where), label=f"{LOCK_LABEL}={key}")
        forget(transport, key)
    transport.close()


def test_a_second_build_does_nothing_and_says_what_is_there(
    host: Transport, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is resolved, built, sent or hashed again, and no file is written."""
    first = _build(capsys)
    assert first.exit_code == 0, first.stderr
    assert "making" in first.stderr
    before = _files(small / "cache")
    second = _build(capsys)
    assert (second.exit_code, second.stderr) == (0, "")
    assert second.stdout == first.stdout
    assert _files(small / "cache") == before
    line = re.compile(r"^lab-h1 (\w+): \S+, site-packages ([0-9a-f]{12})$", re.MULTILINE)
    found = line.findall(second.stdout)
    assert [arm for arm, _ in found] == list(ARMS)
    assert len({tree for _, tree in found}) == 1


def test_the_bill_of_materials_is_written_where_it_is_asked_for(
    host: Transport, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It holds the very wheels of the arms."""
    target = small / "sbom.json"
    done = _build(capsys, "--sbom", str(target))
    assert done.stdout.splitlines()[-1] == f"bill of materials: {target}"
    names = {one["name"] for one in json.loads(target.read_text())["components"]}
    assert names == {"pip", "setuptools"}


def test_a_bill_that_cannot_be_written_is_refused_before_anything_is_made(
    host: Transport, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is told but the wrong flag."""
    words = ("build", "--hosts", "lab-h1", "--sbom", str(small / "none" / "sbom.json"))
    with pytest.raises(ConfigError, match="cannot be written"):
        app(list(words), standalone_mode=False)
    assert capsys.readouterr() == ("", "")


def test_what_was_made_is_told_though_it_has_no_bill(
    host: Transport, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image of the user's holds no locked wheels; that it is usable is told all the same."""
    target = small / "none.json"
    done = _build(capsys, "--envs", f"own=docker:{BASE}", "--sbom", str(target))
    assert done.exit_code == 3
    assert done.stdout.startswith("lab-h1 own: sha256:")
    assert f"error: {target} is not written" in done.stderr
    assert not target.exists()


def test_a_changed_venv_is_an_error_that_names_it(
    host: Transport, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with 3; once the venv is removed, as the error says, all is well again."""
    venv = _venv(_build(capsys))
    python = f"{venv}/bin/python"
    change = Command(argv=(python, "-m", "pip", "uninstall", "--yes", "--quiet", "setuptools"))
    assert run(host, change).succeeded
    changed = _build(capsys)
    assert changed.exit_code == 3
    brief = "docker and vm on lab-h1 have different software, made from the same wheels"
    assert f"error: {brief}" in changed.stderr
    assert f"  try: rm -r {venv}, then run again" in changed.stderr
    allowed = _build(capsys, "--allow-mismatch")
    assert allowed.exit_code == 0
    assert f"docker: {brief}" in allowed.stderr
    shell(host, 'rm -r -- "$1"', venv)
    assert _build(capsys).exit_code == 0


def _build(capsys: pytest.CaptureFixture[str], *more: str) -> Done:
    capsys.readouterr()
    words = ("build", "--hosts", "lab-h1", "--envs", ",".join(ARMS), "--base-image", BASE, *more)
    with pytest.raises(SystemExit) as ended:
        app(list(words), standalone_mode=False)
    said = capsys.readouterr()
    return Done(exit_code=int(str(ended.value.code)), stdout=said.out, stderr=said.err)


def _venv(done: Done) -> str:
    found = re.search(r"^lab-h1 vm: (\S+)/bin/python,", done.stdout, re.MULTILINE)
    assert found, done.stderr
    return found[1]


def _files(folder: Path) -> dict[str, int]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.stat().st_mtime_ns for path in paths}
