"""The workloads' packages: resolved once with pip, locked by hash, kept as wheels."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from envcompare.command import Command
from envcompare.errors import StackError
from envcompare.stack import Progress
from envcompare.stack.cache import failure, local_cache, make_folder
from envcompare.transport import Transport
from envcompare.transport.operations import file_sha256, run

LOCK = "requirements.lock"
SUMS = "SHA256SUMS"
_SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheelhouse:
    """A folder with wheels, their lock and their sums; the key is the hash of the lock."""

    key: str
    folder: Path
    sums: tuple[tuple[str, str], ...]  # (file name, SHA-256)

    @property
    def size_bytes(self) -> int:
        """Return the size of all wheels."""
        return sum((self.folder / name).stat().st_size for name, _ in self.sums)


def fill(requirements: Path, *, python: str, local: Transport, progress: Progress) -> Wheelhouse:
    """Return the wheelhouse of these requirements for Python `python` ("3.11").

    The first call asks pip, with the user's own pip configuration; a later one only reads. Raises
    StackError when pip is missing or cannot find the packages.
    """
    cache = local_cache()
    note = cache / "resolved" / _request(requirements, python)
    if note.exists() and (found := _read(cache / note.read_text() / "wheelhouse")):
        return found
    progress(f"resolving {requirements.name} for Python {python}")
    make_folder(local, str(cache))
    wheelhouse = _download(requirements, python=python, local=local, cache=cache)
    make_folder(local, str(note.parent))
    part = note.with_name(f"{note.name}.part-{os.getpid()}")
    part.write_text(wheelhouse.key)
    part.replace(note)
    size = wheelhouse.size_bytes / 1e6
    progress(f"{len(wheelhouse.sums)} wheels, {size:.0f} MB, lock {wheelhouse.key[:12]}")
    return wheelhouse


def lock_text(wheels: tuple[tuple[str, str], ...]) -> str:
    """Return a requirements file that pins name, version and hash of each wheel."""
    lines = []
    for file, digest in sorted(wheels):
        name, version = file.split("-")[:2]
        normal = re.sub(r"[-_.]+", "-", name).lower()
        lines.append(f"{normal}=={version} --hash=sha256:{digest}\n")
    return "".join(sorted(lines))


def _request(requirements: Path, python: str) -> str:
    """Name what was asked for: requirements, interpreter, machine, and where pip looks."""
    sources = [f"{name}={os.environ.get(name, '')}" for name in _SOURCES]
    asked = [requirements.read_text(encoding="utf-8"), python, platform.machine(), *sources]
    return hashlib.sha256("\0".join(asked).encode()).hexdigest()[:32]


def _read(folder: Path) -> Wheelhouse | None:
    """Read a wheelhouse; None when a part of it is gone."""
    if not (folder / SUMS).is_file() or not (folder / LOCK).is_file():
        return None
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    sums = tuple((name, digest) for digest, name in (line.split("  ", 1) for line in lines))
    if not all((folder / name).is_file() for name, _ in sums):
        return None
    key = hashlib.sha256((folder / LOCK).read_bytes()).hexdigest()
    return Wheelhouse(key=key, folder=folder, sums=sums)


def _download(requirements: Path, *, python: str, local: Transport, cache: Path) -> Wheelhouse:
    """Fill a folder beside the cache's own and move it in whole, so that none is ever half."""
    part = Path(tempfile.mkdtemp(prefix=".wheelhouse-", dir=cache))
    try:
        _ask_pip(requirements, python=python, local=local, target=part)
        sums = tuple(sorted((path.name, file_sha256(path)) for path in part.glob("*.whl")))
        (part / LOCK).write_text(lock_text(sums), encoding="utf-8")
        (part / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums))
        key = hashlib.sha256((part / LOCK).read_bytes()).hexdigest()
        target = cache / key / "wheelhouse"
        make_folder(local, str(target.parent))
        if _read(target) is None:
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        return Wheelhouse(key=key, folder=target, sums=sums)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _ask_pip(requirements: Path, *, python: str, local: Transport, target: Path) -> None:
    argv = (
        *(_interpreter_with_pip(local, python), "-m", "pip", "download", "--quiet"),
        *("--disable-pip-version-check", "--no-input"),
        *("--only-binary=:all:", "--python-version", python),
        *("--dest", str(target), "--requirement", str(requirements)),
    )
    result = run(local, Command(argv=argv))
    if not result.succeeded:
        raise failure(
            local,
            "resolving the workloads' packages",
            result.stderr,
            hint="check where pip looks (pip config list) and that it has wheels for "
            f"Python {python}, or choose another version with --python",
        )


def _interpreter_with_pip(local: Transport, python: str) -> str:
    """Choose who asks: pip judges environment markers by the Python it runs on, not the target."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    has_pip = find_spec("pip") is not None
    if has_pip and own == python:
        return sys.executable
    others = [sys.executable] if has_pip else []
    for candidate in [f"python{python}", *others, "python3"]:
        probe = Command(argv=(candidate, "-m", "pip", "--version"))
        if run(local, probe).succeeded:
            return candidate
    raise StackError(
        "the workloads' packages cannot be resolved here",
        details=f"neither {sys.executable} nor python{python} has pip",
        hint=f"{sys.executable} -m ensurepip, or install python3-pip",
    )
