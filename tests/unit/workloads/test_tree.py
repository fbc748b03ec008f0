"""The hash of what is installed: what changes it, and what must not."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from lab import ROOT

PROGRAM = ROOT / "workloads" / "harness" / "tree.py"
Change = Callable[[Path], object]


def test_two_environments_with_the_same_files_have_the_same_tree(tmp_path: Path) -> None:
    """Wherever they are, and whenever and in whatever order they were written."""
    first, second = (_environment(tmp_path / name) for name in ("one", "a longer name"))
    for name in ("b.py", "a.py", "c.py"):
        _site(first).joinpath(name).write_text(name)
    for name in ("c.py", "b.py", "a.py"):
        _site(second).joinpath(name).write_text(name)
        os.utime(_site(second) / name, (0, 0))
    assert _tree(first) == _tree(second)
    assert _tree(first)["files"] == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda site: (site / "a.py").write_text("y = 1"),
        lambda site: (site / "a.py").rename(site / "b.py"),
        lambda site: (site / "new.py").write_text(""),
        lambda site: (site / "a.py").unlink(),
        lambda site: (site / "link").symlink_to("a.py"),
        lambda site: (site / "linked").symlink_to("/", target_is_directory=True),
        lambda site: _compile(site, py_compile.PycInvalidationMode.UNCHECKED_HASH),
    ],
    ids=["content", "name", "more", "less", "link", "link to a folder", "byte code"],
)
def test_the_tree_changes_with(change: Change, tmp_path: Path) -> None:
    """Names, content, and whether there is byte code."""
    environment = _environment(tmp_path / "one")
    (_site(environment) / "a.py").write_text("x = 1")
    before = _tree(environment)
    change(_site(environment))
    assert _tree(environment)["sha256"] != before["sha256"]


def test_files_that_differ_in_their_modes_alone_are_the_same(tmp_path: Path) -> None:
    """Another umask writes other modes, and no program runs another way for that."""
    environment = _environment(tmp_path / "one")
    (_site(environment) / "a.py").write_text("x = 1")
    before = _tree(environment)
    (_site(environment) / "a.py").chmod(0o755)
    assert _tree(environment) == before


def test_how_a_module_was_compiled_counts_and_what_holds_its_path_does_not(tmp_path: Path) -> None:
    """Byte code holds where its source lay, and pip's records where its wheel came from."""
    first, second = (_environment(tmp_path / name) for name in ("one", "two"))
    for environment in (first, second):
        (_site(environment) / "a.py").write_text("x = 1")
        _compile(_site(environment), py_compile.PycInvalidationMode.UNCHECKED_HASH)
        for name in ("RECORD", "direct_url.json"):
            (_site(environment) / name).write_text(str(environment))
    assert _tree(first) == _tree(second)
    _compile(_site(second), py_compile.PycInvalidationMode.CHECKED_HASH)
    assert _tree(first) != _tree(second)


def test_the_stamp_changes_when_a_file_is_replaced_by_its_equal(tmp_path: Path) -> None:
    """It is what tells cheaply that the tree must be looked at again."""
    environment = _environment(tmp_path / "one")
    path = _site(environment) / "a.py"
    path.write_text("x = 1")
    before, tree = _run(environment, "--stamp"), _tree(environment)
    assert _run(environment, "--stamp") == before
    path.unlink()
    path.write_text("x = 1")
    assert _run(environment, "--stamp") != before
    assert _tree(environment) == tree


def test_each_distribution_has_a_hash_and_what_belongs_to_none_has_its_own(tmp_path: Path) -> None:
    """Byte code and files that somebody added count to the package whose folder they are in."""
    environment = _environment(tmp_path / "one")
    _install(_site(environment))
    (_site(environment) / "site customize.py").write_text("")
    before = _parts(environment)
    assert list(before) == ["numpy==2.4.6", "site\\x20customize.py"]
    for name in ("numpy/__init__.py", "numpy/__pycache__/__init__.cpython-311.pyc", "numpy/new.py"):
        path = _site(environment) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"changed {name}")
        after = _parts(environment)
        assert after["numpy==2.4.6"] != before["numpy==2.4.6"]
        assert after["site\\x20customize.py"] == before["site\\x20customize.py"]
        before = after


def test_the_files_of_a_part_are_told_with_their_hashes(tmp_path: Path) -> None:
    """Asked for by its name; the others are not read."""
    environment = _environment(tmp_path / "one")
    _install(_site(environment))
    (_site(environment) / "sitecustomize.py").write_text("")
    first = _run(environment, "--files", "numpy==2.4.6")["files"]
    assert isinstance(first, list)
    assert [(part, name) for part, name, _ in first] == [
        ("numpy==2.4.6", "numpy-2.4.6.dist-info/METADATA"),
        ("numpy==2.4.6", "numpy/__init__.py"),
    ]
    (_site(environment) / "numpy" / "__init__.py").write_text("changed")
    second = _run(environment, "--files", "numpy==2.4.6")["files"]
    assert isinstance(second, list)
    assert [a == b for a, b in zip(first, second, strict=True)] == [True, False]


def _install(site: Path) -> None:
    """Write a package and its metadata as pip does."""
    (site / "numpy").mkdir()
    (site / "numpy" / "__init__.py").write_text("")
    (site / "numpy-2.4.6.dist-info").mkdir()
    (site / "numpy-2.4.6.dist-info" / "METADATA").write_text("")
    (site / "numpy-2.4.6.dist-info" / "RECORD").write_text("numpy/__init__.py,sha256=x,0\n")


def _parts(environment: Path) -> dict[str, str]:
    found = _tree(environment)["parts"]
    assert isinstance(found, dict)
    return found


def _environment(folder: Path) -> Path:
    venv.create(folder, symlinks=True, with_pip=False)
    return folder


def _site(environment: Path) -> Path:
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def _compile(site: Path, mode: py_compile.PycInvalidationMode) -> None:
    py_compile.compile(str(site / "a.py"), invalidation_mode=mode)


def _tree(environment: Path) -> dict[str, object]:
    return _run(environment)


def _run(environment: Path, *words: str) -> dict[str, object]:
    argv = (str(environment / "bin" / "python"), "-I", "-B", str(PROGRAM), *words)
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found
