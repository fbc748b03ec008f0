"""The pure parts of the stack: lock, key, recipes that agree, errors that say what to do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT
from recording import Recorder

from envcompare.errors import StackError
from envcompare.stack import ROOM_HINT, NotMadeError, Options, Progress, failure
from envcompare.stack.building import _output_of_step
from envcompare.stack.image import Recipe
from envcompare.stack.sif import promised_bytes
from envcompare.stack.storage import (
    Wheelhouse,
    _gigabytes,
    check_whole,
    local_cache,
    remove_cache,
    steps,
)
from envcompare.stack.wheelhouse import fill, lock_text
from envcompare.text import Command
from envcompare.transport import LOCAL, Transport, run

ENGINE_WORDS = ("FROM", "COPY", "RUN", "ENV", "CMD", "ARG")


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give requirements of one wheel, and an empty cache."""
    return _requirements_of_one_wheel(tmp_path, monkeypatch)


def made_of(
    requirements: Path,
    *,
    python: str = "3.11",
    local: Transport = LOCAL,
    say: Callable[[str], None] = print,
    may_make: bool = True,
) -> Wheelhouse:
    """Return the wheelhouse of requirements."""
    return fill(requirements, python=python, local=local, progress=Progress(say, may_make=may_make))


def test_the_lock_pins_name_version_and_hash_in_alphabetical_order() -> None:
    """The same wheels give the same text, in whatever order a folder lists them."""
    wheels = (
        ("typing_extensions-4.16.0-py3-none-any.whl", "b" * 64),
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "a" * 64),
        ("MarkupSafe-3.0.4-cp311-cp311-manylinux2014_x86_64.whl", "c" * 64),
    )
    expected = (
        f"markupsafe==3.0.4 --hash=sha256:{'c' * 64}\n"
        f"torch==2.13.0+cpu --hash=sha256:{'a' * 64}\n"
        f"typing-extensions==4.16.0 --hash=sha256:{'b' * 64}\n"
    )
    assert expected == lock_text(wheels) == lock_text(wheels[::-1])


def test_a_filled_wheelhouse_is_read_and_not_resolved_again(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call asks nobody: it works where pip finds nothing any more."""
    told: list[str] = []
    first = made_of(requirements, say=told.append)
    monkeypatch.setenv("PATH", "")
    second = made_of(requirements, say=told.append)
    assert first == second
    assert told == [
        "resolving requirements.in for Python 3.11",
        f"1 wheels, 0 MB, lock {first.key[:12]}",
    ]


def test_what_only_looks_finds_a_wheelhouse_and_never_fills_one(requirements: Path) -> None:
    """It says what would have to be made, and leaves no trace of having asked."""
    with pytest.raises(NotMadeError, match="is not made yet") as caught:
        made_of(requirements, may_make=False)
    assert caught.value.details.endswith("resolving requirements.in for Python 3.11")
    assert not local_cache().exists()
    made = made_of(requirements)
    assert made_of(requirements, may_make=False) == made


def test_wheels_of_another_index_are_resolved_anew(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requirements may give other wheels there."""
    made_of(requirements)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://wheels.example.org/simple")
    with pytest.raises(NotMadeError):
        made_of(requirements, may_make=False)


def test_the_key_is_the_hash_of_the_lock(requirements: Path) -> None:
    """Whoever has the lock can compute the key, and the wheels stand under it."""
    wheelhouse = made_of(requirements)
    lock = (wheelhouse.folder / "requirements.lock").read_bytes()
    assert wheelhouse.key == hashlib.sha256(lock).hexdigest()
    assert wheelhouse.folder == local_cache() / wheelhouse.key / "wheelhouse"


def test_a_wheelhouse_that_lost_a_wheel_is_filled_again(requirements: Path) -> None:
    """A cache that somebody tidied by hand is no dead end."""
    wheelhouse = made_of(requirements)
    next(wheelhouse.folder.glob("*.whl")).unlink()
    assert made_of(requirements) == wheelhouse
    assert len(list(wheelhouse.folder.glob("*.whl"))) == 1


SUM = f"{'a' * 64}  {{}}\n".format
SPOILT = (
    ("requirements.lock", b"tiny-part==2.0 --hash=sha256:" + b"0" * 64),
    ("requirements.lock", b""),
    ("SHA256SUMS", b""),
    ("SHA256SUMS", b"junk\n"),
    ("SHA256SUMS", b"\xff\xfe"),
    ("SHA256SUMS", SUM("../../outside-1.0-py3-none-any.whl").encode()),
    ("SHA256SUMS", SUM("/etc/passwd").encode()),
    ("SHA256SUMS", SUM("whl.whl").encode()),
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with requirements of one wheel, and a cache that holds them already."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        made_of(_requirements_of_one_wheel(folder, patch))
    return folder


@pytest.mark.parametrize(("name", "content"), SPOILT)
def test_a_wheelhouse_that_is_not_what_its_key_says_is_filled_again(
    name: str, content: bytes, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that was edited, a name that leads out of the folder, junk: none of it is taken."""
    cache = shutil.copytree(filled / "cache", tmp_path / "cache")
    requirements = _entered(filled, cache, monkeypatch)
    first = made_of(requirements)
    before = (first.folder / name).read_bytes()
    (first.folder / name).write_bytes(content)
    told: list[str] = []
    assert made_of(requirements, say=told.append) == first
    assert told[0] == f"{first.folder} is not what was locked, so it is filled again"
    assert (first.folder / name).read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\xff", b"../../x", b"0" * 64], ids=repr)
def test_a_note_that_leads_nowhere_is_written_again(
    content: bytes, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was resolved is asked for again, and the note is mended."""
    cache = shutil.copytree(filled / "cache", tmp_path / "cache")
    requirements = _entered(filled, cache, monkeypatch)
    first = made_of(requirements)
    (note,) = (local_cache() / "resolved").iterdir()
    note.write_bytes(content)
    assert made_of(requirements) == first
    assert note.read_text() == first.key


def test_a_disk_that_is_full_when_the_wheels_are_kept_is_said_as_such(requirements: Path) -> None:
    """The last that is written is the note, here to a device that is always full."""
    made_of(requirements)
    (note,) = (local_cache() / "resolved").iterdir()
    note.unlink()
    note.with_name(f"{note.name}.part-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(StackError, match="its disk is full") as error:
        made_of(requirements)
    assert error.value.hint == ROOM_HINT


def test_what_pip_downloads_lies_on_the_disk_of_the_cache(requirements: Path) -> None:
    """That is where there is room for it; nothing but wheels, lock and steps stays.

    The download goes over the given transport: whoever watches that one can end it.
    """
    here = Recorder()
    wheelhouse = made_of(requirements, local=here)
    (asked,) = (command for command in here.commands if "download" in command.argv)
    assert Path(dict(asked.env)["TMPDIR"]).is_relative_to(local_cache())
    assert all(path.is_file() for path in wheelhouse.folder.iterdir())


def test_the_cache_is_private(requirements: Path) -> None:
    """Nobody else on the machine can read or change what an arm will run."""
    wheelhouse = made_of(requirements)
    for folder in (local_cache(), wheelhouse.folder.parent, wheelhouse.folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_definition_and_dockerfile_install_by_the_same_steps(tmp_path: Path) -> None:
    """The SIF of a site without Docker runs the very command of the Dockerfile."""
    run = [part.strip() for part in _dockerfile("RUN")[0].split("&&")]
    lines = [line.strip() for line in _definition(tmp_path).install]
    first = lines.index(next(line for line in lines if "/wheelhouse/library.py" in line))
    compiled, installed = lines[first : first + 2]
    assert [compiled.removesuffix(" /"), installed] == [run[0].removesuffix(" /image"), run[1]]
    assert installed == "sh /wheelhouse/install.sh /wheelhouse /opt/envcompare/venv"


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("cp39-cp39", "the base image has Python {}, but the wheels are for 3.9: name a base"),
        ("cp39-abi3", ""),
        ("{}-{}", ""),
    ],
)
def test_definition_refuses_a_base_with_another_python_before_it_installs(
    tmp_path: Path, tag: str, said: str
) -> None:
    """As the build of the image does; a wheel that later ones take as well does not matter."""
    asked = ("python3", "-c", 'import sys; print("%d.%d" % sys.version_info[:2])')
    version = run(LOCAL, Command(argv=asked)).stdout.strip()
    its = f"cp{version.replace('.', '')}"
    wheels = tmp_path / "wheelhouse"
    wheels.mkdir()
    (wheels / f"torch-2.0-{tag.format(its, its)}-linux_x86_64.whl").touch()
    begun = takewhile(lambda line: "library.py" not in line, _definition(tmp_path).install)
    script = "\n".join(begun).replace("/wheelhouse", str(wheels))
    done = run(LOCAL, Command(argv=("sh", "-ec", script)))
    assert done.exit_code == (1 if said else 0)
    assert done.stderr.partition(" with")[0] == said.format(version)


def test_the_steps_lie_beside_the_wheels_as_they_are_now(requirements: Path) -> None:
    """The wheelhouse is all an image is built from, and one of another version is brought up."""
    folder = made_of(requirements).folder
    for name, now in steps().items():
        assert (folder / name).read_text() == now
        (folder / name).write_text("exit 1")
        made_of(requirements)
        assert (folder / name).read_text() == now


def test_a_wheel_that_is_not_what_was_locked_is_refused(requirements: Path) -> None:
    """Said by name before anything is built from it, with the way to have it again."""
    wheelhouse = made_of(requirements)
    check_whole(wheelhouse)
    path = wheelhouse.folder / wheelhouse.sums[0][0]
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(StackError) as caught:
        check_whole(wheelhouse)
    assert caught.value.brief == "the wheel tiny_part-1.0-py3-none-any.whl is damaged"
    assert caught.value.hint.startswith(f"rm -r {wheelhouse.folder}, ")


def test_definition_and_dockerfile_agree_on_base_variables_and_command(tmp_path: Path) -> None:
    """What is not a command is the same as well."""
    recipe = _definition(tmp_path)
    (argument,) = _dockerfile("ARG")
    variables = shlex.split(_dockerfile("ENV")[0])
    command = json.loads(_dockerfile("CMD")[0])
    assert f"BASE_IMAGE={recipe.fromHeader}" == argument
    assert [line.strip() for line in recipe.environ] == variables
    assert shlex.split(recipe.cmd) == ["exec", *command, "$@"]
    assert recipe.files == [". /wheelhouse"] == _dockerfile("COPY")[:1]


def test_the_labels_change_with_all_that_decides_what_is_in_the_image(tmp_path: Path) -> None:
    """An image is used again only when wheels, base and Dockerfile are the same."""
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text("FROM a")
    first = _recipe(dockerfile, key="1" * 64, base="debian").labels
    assert first == _recipe(dockerfile, key="1" * 64, base="debian").labels
    assert first != _recipe(dockerfile, key="2" * 64, base="debian").labels
    assert first != _recipe(dockerfile, key="1" * 64, base="ubuntu").labels
    assert first != replace(_recipe(dockerfile, key="1" * 64, base="debian"), base_id="1").labels
    dockerfile.write_text("FROM b")
    assert first != _recipe(dockerfile, key="1" * 64, base="debian").labels


def test_the_tag_names_the_lock() -> None:
    """`docker images` shows which lock an image holds."""
    recipe = _recipe(ROOT / "Dockerfile", key="0123456789abcdef" * 4, base="debian")
    assert recipe.tag == "envcompare-workload:0123456789ab"


def test_a_header_promises_the_length_of_its_sif() -> None:
    """Start and length of the data stand at the end of the header."""
    header = bytearray(128)
    header[32:41] = b"SIF_MAGIC"
    header[112:120] = (32176).to_bytes(8, "little")
    header[120:128] = (1000).to_bytes(8, "little")
    assert promised_bytes(bytes(header)) == 33176


@pytest.mark.parametrize("header", [b"", b"#!/usr/bin/env run-singularity\n", b"\0" * 128])
def test_a_file_that_is_no_sif_promises_nothing(header: bytes) -> None:
    """Other formats that the engine can run are left to its own judgement."""
    assert promised_bytes(header) is None


def test_a_full_disk_is_said_as_such() -> None:
    """Whatever tool ran into it, the remedy is the same."""
    text = "ERROR: Could not install packages: [Errno 28] No space left on device: '/x'\nbye\n"
    error = failure(LOCAL, "making the venv of vm", text, hint="not this one")
    assert error.lines() == (
        "error: making the venv of vm failed on local: its disk is full",
        f"  why: {text.splitlines()[0]}",
        f"  try: {ROOM_HINT}",
    )


def test_a_share_of_the_disk_that_is_used_up_is_a_full_disk() -> None:
    """As it is for the homes of most clusters."""
    text = "cat: write error: Disk quota exceeded"
    error = failure(LOCAL, "sending x.whl", text, hint="not this one", room_hint="this one")
    assert error.brief == "sending x.whl failed on local: its disk is full"
    assert (error.details, error.hint) == (text, "this one")


def test_what_is_needed_and_what_is_free_are_told_apart() -> None:
    """Else it reads as if there were just enough."""
    assert _gigabytes(10**18, 3 * 10**9) == ("1000000000.0 GB", "3.0 GB")
    assert _gigabytes(120_000_000, 100_000_000) == ("0.12 GB", "0.10 GB")


OURS = (
    *("a" * 32, "b" * 64, "data", "proofs", "resolved", "roofs", "runs"),
    *("noise.json", f"given-{'0' * 32}", f"skeleton-{'0' * 16}.partial", f"workloads-{'0' * 12}"),
    *(".wheelhouse-x1", "data/cnn-made/data", f"proofs/{'c' * 32}", f"resolved/{'d' * 32}"),
    *(f"roofs/{'e' * 16}.json", "runs/20260102-030405-0a1b/lab-h1", "runs/build-0a1b2c3d"),
)


def test_a_cache_that_is_not_there_is_not_said_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time there is nothing to remove."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "envcompare" / "runs").mkdir(parents=True)
    assert [remove_cache(LOCAL), remove_cache(LOCAL)] == [True, False]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_the_cache_is_a_link_to_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Link and folder are the user's; what envcompare put there goes, on whatever disk it is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in OURS:
        (tmp_path / "disk" / name).mkdir(parents=True)
    (tmp_path / "envcompare").symlink_to("disk")
    assert [remove_cache(LOCAL), remove_cache(LOCAL)] == [True, False]
    assert list((tmp_path / "envcompare").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("thesis", ".git", "database", "c" * 40, "my runs", "-x", "é\n", "given-birthday photos"),
        *("workloads-old", "data/thesis", "data/my thesis", "data/hand-made/photos", "runs/10 km"),
    ],
)
def test_nothing_is_removed_where_more_than_the_cache_lies_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What else lies there is the user's, and what of it is may be a matter of judgement."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for one in (*OURS, name):
        (tmp_path / "disk" / one).mkdir(parents=True)
    before = sorted((tmp_path / "disk").rglob("*"))
    (tmp_path / "envcompare").symlink_to("disk")
    with pytest.raises(StackError) as caught:
        remove_cache(LOCAL)
    assert caught.value.brief == f"cannot remove {tmp_path}/envcompare on local"
    where = f"it is a link to {tmp_path}/disk, where {name.strip()} lies too"
    assert caught.value.details == where
    assert sorted((tmp_path / "disk").rglob("*")) == before


def test_a_failure_quotes_the_tools_own_error() -> None:
    """Progress that a tool printed afterwards does not hide it."""
    error = failure(LOCAL, "making the SIF", "FATAL: no\nINFO: bye", hint="look")
    assert (error.details, error.hint) == ("FATAL: no", "look")


BUILDKIT = """
#6 [build 2/3] COPY . /wheelhouse
#6 DONE 0.0s
#7 [build 3/3] RUN sh /wheelhouse/install.sh
#7 1.264 ERROR: No matching distribution found for markupsafe==3.0.4
#7 ERROR: executor failed running [/bin/sh -c sh /wheelhouse/install.sh]: exit code: 1
------
 > [build 3/3] RUN sh /wheelhouse/install.sh:
------
executor failed running [/bin/sh -c sh /wheelhouse/install.sh]: exit code: 1
"""
CLASSIC = """
Step 4/8 : RUN sh /wheelhouse/install.sh
 ---> Running in ce5e2a6919dc
\x1b[91m/bin/sh: 1: python3: not found
\x1b[0m
{'errorDetail': {'code': 127, 'message': "The command '/bin/sh -c' returned …"}}
The command '/bin/sh -c sh /wheelhouse/install.sh' returned a non-zero code: 127
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (BUILDKIT, "ERROR: No matching distribution found for markupsafe==3.0.4"),
        (CLASSIC, "/bin/sh: 1: python3: not found"),
        ("ERROR: Cannot connect", "ERROR: Cannot connect"),
        (f"{BUILDKIT}write /x: no space left on device", "write /x: no space left on device"),
    ],
)
def test_a_failed_build_is_told_by_what_its_step_said(log: str, said: str) -> None:
    """The instruction and its exit code, which builders end with, explain nothing."""
    assert failure(LOCAL, "building", _output_of_step(log), hint="").details == said


def test_without_a_wish_the_base_has_the_python_that_is_asked_for() -> None:
    """`--python` alone never names a base of another version."""
    assert Options(python="3.12").base == "python:3.12-slim-bookworm"
    assert Options(python="3.12", base_image="mine:1").base == "mine:1"


def _recipe(dockerfile: Path, *, key: str, base: str) -> Recipe:
    wheelhouse = Wheelhouse(key=key, folder=dockerfile.parent, sums=())
    return Recipe(wheelhouse=wheelhouse, base=base, dockerfile=dockerfile)


@pytest.mark.parametrize(("python", "names"), [("3.10", "older"), ("3.14", "newer")])
def test_markers_hold_for_the_python_that_wheels_are_for(
    requirements: Path, tmp_path: Path, python: str, names: str
) -> None:
    """Neither is the Python that asks pip, whose own version must not decide what is needed."""
    for name in ("older", "newer"):
        _make_wheel(tmp_path / "links", name)
    lines = ("older; python_version < '3.11'", "newer; python_version >= '3.12'")
    requirements.write_text("\n".join(lines))
    wheelhouse = made_of(requirements, python=python)
    assert [name for name, _ in wheelhouse.sums] == [f"{names}-1.0-py3-none-any.whl"]


def test_a_wheelhouse_knows_the_python_that_it_is_for(tmp_path: Path) -> None:
    """Read off the wheels with compiled parts; those of the stable ABI serve later Pythons too."""
    names = ("a-1-py3-none-any.whl", "b-1-cp39-abi3-linux_x86_64.whl")
    both = tuple((name, "0") for name in names)
    compiled = ("torch-2.13.0-cp310-cp310-manylinux_2_28_x86_64.whl", "0")
    assert Wheelhouse(key="", folder=tmp_path, sums=both).python == ""
    assert Wheelhouse(key="", folder=tmp_path, sums=(*both, compiled)).python == "3.10"


def _requirements_of_one_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a wheel of its own, so that pip needs no index."""
    _make_wheel(folder / "links", "tiny_part")
    (folder / "requirements.in").write_text("tiny-part\n")
    return _entered(folder, folder / "cache", monkeypatch)


def _make_wheel(links: Path, name: str) -> None:
    from zipfile import ZipFile

    links.mkdir(exist_ok=True)
    with ZipFile(links / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        meta = f"{name}-1.0.dist-info"
        wheel.writestr(f"{name}.py", "")
        told = f"Name: {name.replace('_', '-')}\nVersion: 1.0\n"
        wheel.writestr(f"{meta}/METADATA", f"Metadata-Version: 2.1\n{told}")
        wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{meta}/RECORD", "")


def _entered(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let wheels come from a folder and be kept in a cache; return the requirements there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "links"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder / "requirements.in"


def _dockerfile(word: str) -> list[str]:
    """Return the arguments of every instruction of that name, continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith(ENGINE_WORDS)]
    return [rest for name, rest in lines if name == word]


def _definition(folder: Path) -> Any:
    """Read the definition with spython, its build arguments filled in as the engine does."""
    from spython.main.parse.parsers import SingularityParser  # noqa: TID251 - as a reader only

    text = (ROOT / "containers" / "envcompare.def").read_text()
    for name, value in re.findall(r"^\s+([A-Z_]+)=(\S+)$", text, re.MULTILINE):
        text = text.replace(f"{{{{ {name} }}}}", value)
    filled = folder / "envcompare.def"
    filled.write_text(text)
    (recipe,) = SingularityParser(str(filled)).recipe.values()
    return recipe
