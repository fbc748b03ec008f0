"""When two arms made from the same wheels have other software, and what is said of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envcompare.environments.oci import ENGINE
from envcompare.environments.software import (
    FILES,
    TREE,
    UNPROVEN,
    Inside,
    inside,
    mismatch,
    tell_files_apart,
)
from envcompare.environments.software import with_proof as proven_by
from envcompare.environments.vm import Vm
from envcompare.errors import StackError, UnusableError
from envcompare.stack import Prepared, Progress, Request
from envcompare.stack.storage import local_cache
from envcompare.text import Command
from envcompare.transport import LOCAL

VENV, IMAGE, SIF = "/cache/key/venv-1/bin/python", "sha256:1", "/cache/key/zstd.sif"


def _prepared(reference: str, *, tree: str = "a" * 64, lock: str = "l") -> Prepared:
    facts = {"lock.sha256": lock, "site_packages.sha256": tree}
    return Prepared(
        interpreter="/opt/python" if reference else VENV,
        reference=reference,
        facts=tuple((name, value) for name, value in facts.items() if value),
    )


@pytest.mark.parametrize(
    "other",
    [
        _prepared(""),
        _prepared("", tree="b" * 64, lock="another"),
        _prepared("", tree="b" * 64, lock=""),
        _prepared("", tree=""),
    ],
    ids=["equal", "of another lock", "of the user", "not proven"],
)
def test_what_is_equal_or_was_never_meant_to_be_is_no_mismatch(other: Prepared) -> None:
    """An image of the user is compared, and not expected to be the same."""
    assert mismatch("docker", _prepared(IMAGE), {"vm": other}, host="h1") is None
    assert mismatch("vm", other, {"docker": _prepared(IMAGE)}, host="h1") is None


def refused(arm: str, mine: Prepared, others: dict[str, Prepared]) -> StackError:
    """Return the error of an arm that has other software than others."""
    error = mismatch(arm, mine, others, host="h1")
    assert error is not None
    return error


@pytest.mark.parametrize(
    ("mine", "other", "remedy"),
    [
        (IMAGE, "", "rm -r /cache/key/venv-1"),
        ("", IMAGE, "rm -r /cache/key/venv-1"),
        (IMAGE, SIF, "rm -r /cache/key/zstd.sif"),
        (IMAGE, "sha256:2", "docker image rm sha256:1"),
    ],
)
def test_the_remedy_is_to_make_again_what_can_have_changed(
    mine: str, other: str, remedy: str
) -> None:
    """A venv can be changed in place, an image cannot."""
    error = refused("docker", _prepared(mine), {"other": _prepared(other, tree="b" * 64)})
    assert error.exit_code == 3
    assert error.hint.startswith(f"{remedy}, then run again; --allow-mismatch ")


def test_the_error_names_host_arms_and_hashes() -> None:
    """Whoever reads it knows what was compared."""
    others = {"vm": _prepared(""), "singularity": _prepared(SIF, tree="b" * 64)}
    error = refused("docker", _prepared(IMAGE), others)
    assert error.lines()[:2] == (
        "error: docker and singularity on h1 have different software, made from the same wheels",
        f"  why: site-packages of docker has the hash {'a' * 16}, that of singularity {'b' * 16}",
    )


def test_the_error_names_the_packages_that_differ() -> None:
    """Whoever changed a file knows at once which it was."""
    same = "numpy==2.4.6 00"
    mine = replace(_prepared(IMAGE), parts=("torch==2.13.0 1", same))
    other = replace(_prepared("", tree="b" * 64), parts=("torch==2.13.0 2", same))
    error = refused("docker", mine, {"vm": other})
    assert error.details.endswith("; what differs: torch 2.13.0")


@pytest.mark.parametrize(
    ("image_tree", "sif_tree", "wrong", "remedy"),
    [
        ("a", "b", "singularity", "rm -r /cache/key/zstd.sif"),
        ("b", "a", "docker", "docker image rm sha256:1"),
        (
            "b",
            "c",
            "docker and singularity",
            "docker image rm sha256:1 && rm -r /cache/key/zstd.sif",
        ),
    ],
)
def test_the_label_of_the_image_says_which_arm_changed(
    image_tree: str, sif_tree: str, wrong: str, remedy: str
) -> None:
    """What is as it was built is never the one to remove."""
    meant = "a" * 64
    mine = replace(_prepared(IMAGE, tree=image_tree * 64), meant=meant)
    other = replace(_prepared(SIF, tree=sif_tree * 64), meant=meant)
    error = refused("docker", mine, {"singularity": other})
    assert error.details.endswith(f"; the image was built with {'a' * 16}, so {wrong} changed")
    assert error.hint.startswith(f"{remedy}, then run again")


def test_an_arm_alone_is_held_against_the_label_of_its_image() -> None:
    """There is no other to compare it with, and a sandbox can be changed in place."""
    sandbox = replace(_prepared("/cache/key/sandbox"), meant="b" * 64)
    error = refused("singularity", sandbox, {})
    assert (
        error.brief == "singularity on h1 has different software from what its image was built with"
    )
    assert error.details == (
        f"its site-packages have the hash {'a' * 16}, the label of the image says {'b' * 16}"
    )
    assert error.hint.startswith("rm -r /cache/key/sandbox, then run again; --allow-mismatch ")
    assert mismatch("singularity", replace(sandbox, meant="a" * 64), {}, host="h1") is None


def test_a_venv_that_is_as_the_image_is_stays() -> None:
    """The file that was changed is named, though a venv is changed more easily."""
    sif = replace(_prepared(SIF, tree="b" * 64), meant="a" * 64)
    error = refused("vm", _prepared(""), {"singularity": sif})
    assert error.hint.startswith("rm -r /cache/key/zstd.sif, then run again")


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with one module beside those of Python, so that hashing is quick."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "tiny.py").write_text("SIZE = 1\n")
    return str(folder / "bin" / "python")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "junk",
        '{"sha256": "", "files": 0}',
        f'{{"sha256": "{"A" * 64}", "files": 3}}',
        f'{{"sha256": "{"a" * 64}"}}',
    ],
)
def test_a_proof_that_is_none_is_taken_again(
    content: str, interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty or damaged file is nothing that an arm could be held against."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prepared = Prepared(interpreter=interpreter)
    first = proved(prepared)
    (kept,) = (local_cache() / "proofs").iterdir()
    kept.write_text(content)
    assert proved(prepared) == first
    assert {TREE, FILES} <= dict(first.facts).keys()
    assert kept.read_text() != content


def proved(prepared: Prepared, say: Callable[[str], None] = print) -> Prepared:
    """Return the software of a plain process of this machine with its proof."""
    return proven_by(
        Vm(), Request(transport=LOCAL, progress=Progress(say), builder=ENGINE), prepared
    )


def entered(prepared: Prepared) -> tuple[Inside, Prepared]:
    """Return what runs the interpreter of a plain process, and its software."""
    return inside(Vm(), LOCAL, prepared), prepared


@pytest.fixture
def venvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Give the site-packages of two venvs with the same package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / name], check=True)
        (packages,) = (tmp_path / name).glob("lib/python3*/site-packages")
        (packages / "torch").mkdir()
        (packages / "torch" / "__init__.py").write_text("")
        (packages / "torch-2.13.0.dist-info").mkdir()
        (packages / "torch-2.13.0.dist-info" / "RECORD").write_text("torch/__init__.py,,\n")
        found.append(packages)
    return found[0], found[1]


def told_apart(*venvs: Path) -> dict[str, tuple[str, ...]]:
    """Prove the arms of some venvs; return part and name of the files each has otherwise."""
    proven = {
        f"arm{number}": entered(proved(Prepared(interpreter=python)))
        for number, folder in enumerate(venvs)
        for python in (str(folder.parents[2] / "bin" / "python"),)
    }
    found = tell_files_apart(proven, progress=Progress(print))
    return {
        arm: tuple(entry.rpartition(" ")[0] for entry in one.changed) for arm, one in found.items()
    }


def test_arms_with_the_same_files_are_not_asked_for_them(venvs: tuple[Path, Path]) -> None:
    """Nothing is told apart where nothing differs."""
    assert told_apart(*venvs) == {}


def test_files_that_differ_are_named_with_their_package(venvs: tuple[Path, Path]) -> None:
    """What was changed, what was added, and what belongs to no package; byte code once."""
    first, second = venvs
    (second / "torch" / "__init__.py").write_text("import time")
    (second / "torch" / "__pycache__").mkdir()
    (second / "torch" / "__pycache__" / "__init__.cpython-311.pyc").write_text("stale")
    (first / "torch" / "old.py").write_text("")
    (second / "sitecustomize.py").write_text("")
    both, late = "torch==2.13.0 torch/__init__.py", "sitecustomize.py sitecustomize.py"
    assert told_apart(first, second) == {
        "arm0": (both, "torch==2.13.0 torch/old.py"),
        "arm1": (late, both),
    }


def test_a_package_of_another_version_is_not_looked_into(venvs: tuple[Path, Path]) -> None:
    """The versions tell of it, and all of its files differ."""
    (venvs[1] / "torch-2.13.0.dist-info").rename(venvs[1] / "torch-2.14.0.dist-info")
    (venvs[1] / "torch" / "__init__.py").write_text("import time")
    assert told_apart(*venvs) == {}


def test_what_cannot_be_proven_is_said_and_kept() -> None:
    """The record of the run knows it, not the terminal alone."""
    told: list[str] = []
    proven = proved(Prepared(interpreter="/not/there"), told.append)
    assert proven.facts == ()
    assert "cannot be hashed, so it is not proven: " in told[0]
    assert told[0].endswith(dict(proven.identity)[UNPROVEN])


def test_an_image_without_packages_is_proven_to_have_none(venvs: tuple[Path, Path]) -> None:
    """It is told so, and differs from one that has some."""
    bare, _ = venvs
    for folder in bare.iterdir():
        shutil.rmtree(folder)
    told: list[str] = []
    prepared = [Prepared(interpreter=str(one.parents[2] / "bin" / "python")) for one in venvs]
    proven = proved(prepared[0], told.append)
    assert told == ["no Python packages were found in vm"]
    assert dict(proven.facts)[FILES] == "0"
    assert UNPROVEN not in dict(proven.identity)
    assert dict(proven.facts)[TREE] != dict(proved(prepared[1]).facts)[TREE]


# The interpreter of an image is what the image says it is.
SAYS = """#!{python}
import sys
if "--stamp" in sys.argv:
    print('{{"stamp": "1"}}')
else:
    sys.stdout.write(open({said!r}).read())
"""


def says(folder: Path, parts: dict[str, str]) -> Prepared:
    """Return an arm whose interpreter claims to have installed these parts."""
    folder.mkdir()
    tree = {"sha256": "a" * 64, "files": 1, "parts": parts}
    (folder / "said").write_text(json.dumps(tree))
    program = folder / "python"
    program.write_text(SAYS.format(python=sys.executable, said=str(folder / "said")))
    program.chmod(0o755)
    return Prepared(interpreter=str(program))


@pytest.mark.parametrize(
    "name", ["a\0b", "a\nb", "x" * 200_000, ""], ids=["NUL", "line", "long", "empty"]
)
def test_name_that_no_file_has_is_no_proof(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image decides what it says of itself, and other arms are still told apart."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told: list[str] = []
    arms = {
        digest: entered(proved(says(tmp_path / digest, {name: digest * 16}), told.append))
        for digest in ("0", "1")
    }  # fmt: skip
    assert tell_files_apart(arms, progress=Progress(told.append)) == {}
    assert [dict(one.identity).keys() for _, one in arms.values()] == [{UNPROVEN}] * 2
    assert all("cannot be hashed, so it is not proven: " in line for line in told)


def test_nested_answer_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that starts another Python is not proven, and its host goes on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arm = says(tmp_path / "arm", {})
    (tmp_path / "arm" / "said").write_text('{"x":' + "[" * 200_000 + "]" * 200_000 + "}")
    proven = proved(arm)
    assert "JSON cannot be read" in dict(proven.identity)[UNPROVEN]


def test_a_proof_of_many_packages_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is longer than a word of a command can be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arm = says(tmp_path / "arm", {f"package-{number}==1.0": "0" * 16 for number in range(5_000)})
    first = proved(arm)
    (kept,) = (local_cache() / "proofs").iterdir()
    assert kept.stat().st_size > 1 << 17
    (tmp_path / "arm" / "said").write_text("")
    assert proved(arm) == first


def test_a_proof_that_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The arm is proven all the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "mv").write_text("#!/bin/sh\necho 'mv: No space left on device' >&2; exit 1\n")
    (tmp_path / "mv").chmod(0o755)
    told: list[str] = []
    proven = proved(says(tmp_path / "arm", {"x": "0" * 16}), told.append)
    assert TREE in dict(proven.facts)
    (line,) = told
    assert line.startswith("cannot write to ")
    assert line.endswith("so the next run hashes again: mv: No space left on device")


@pytest.mark.parametrize("word", ["a\0b", "x" * (1 << 18)], ids=["NUL", "long"])
def test_a_command_that_the_system_refuses_is_an_error_of_the_host(word: str) -> None:
    """Nothing but the family's errors comes out, so that the other hosts go on."""
    with pytest.raises(UnusableError, match="cannot start 'true") as caught:
        LOCAL.spawn(Command(argv=("true", "x", word)))
    assert caught.value.details
