"""File access as in loading code and data: stat, read or write many small files."""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from pathlib import Path
from typing import Any, Callable, ClassVar

from harness.loading import ParameterError
from harness.placement import Placement, drop, resident_share, write_back

MADE_FILES = 1000  # of the data set
WRITTEN_BYTES = 4096  # of a file that the workload writes, the page size of most machines


class Files:
    """Looks at, reads or writes small files: of the software, of a data set, in the scratch folder.

    Those of the software lie where the environment keeps it: on the disk of a VM, in the layers of
    an image, in the SquashFS of a SIF. Those of the data set lie where `--place` puts it, and are
    taken where it is given. All are in the page cache after the first step, unless `cache` is
    `cold`: then each file is dropped from it once it is read. A step takes each file once, in an
    order of the seed, by its path relative to the folder of them all: the path to that folder is
    longer in some environments. What resolving it costs is not measured.
    """

    BOTTLENECK: ClassVar[str] = "opening, reading and writing small files"
    PARAMS: ClassVar[dict[str, Any]] = {
        "pattern": "read",
        "cache": "warm",
        "place": "auto",
        "package": "torch",
        "files": 500,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "pattern": ("stat", "read", "write"),
        "cache": ("warm", "cold"),
        "place": ("auto", "software", "data", "scratch"),
        "files": (1, None),
    }
    WRITES_BESIDE_DATA: ClassVar[dict[str, Any]] = {
        "pattern": ("write",),
        "place": ("auto", "software", "data"),
    }

    def __init__(self, pattern: str, cache: str, place: str, package: str, files: int) -> None:
        if pattern == "write" and place == "software":
            raise ParameterError(
                "pattern 'write' needs place 'data' or 'scratch': installed software is not "
                "modified"
            )
        if cache == "cold" and pattern != "read":
            raise ParameterError(
                f"cache 'cold' is not for pattern {pattern!r}: names and inodes cannot be dropped "
                "without root, nor what is not yet on the disk"
            )
        takes = {"stat": _size, "read": _read_cold if cache == "cold" else _read, "write": _write}
        self._take = takes[pattern]
        self._writes, self._is_cold = pattern == "write", cache == "cold"
        self._place, self._package, self._files = place, package, files
        self._data: str | None = None

    @staticmethod
    def make(folder: str) -> None:
        """Write a data set of small files, as large as sources and thumbnails are."""
        drawn = random.Random(0)  # what it is drawn from is no secret
        for number in range(MADE_FILES):
            part = Path(folder, f"{number // 100:02}")
            part.mkdir(exist_ok=True)
            content = drawn.randbytes(drawn.randint(512, 4096)).hex()
            (part / f"{number:04}.txt").write_text(content)

    def load(self, data: str | None) -> None:
        """Remember where the data set is."""
        self._data = data

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002  no device is used
        """Find the files, or write them, and settle their order."""
        self._scratch = None
        place = self._place if self._place != "auto" else self._usual_place()
        if place == "software":
            folder, names = _files_of(self._package, self._files)
        elif place == "data" and not self._writes:
            folder, names = _files_in(self._data, self._files)
        else:
            # HOME is the scratch folder of an arm, which is removed after it.
            around = Placement.room() if place == "data" else os.environ.get("HOME")
            self._scratch = tempfile.TemporaryDirectory(dir=around)
            folder, names = self._scratch.name, [str(number) for number in range(self._files)]
        self._folder = folder
        self._at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for name in names if self._scratch is not None else ():
            _write(name, self._at)
        for name in names if self._is_cold else ():
            write_back(os.path.join(folder, name))
        self._names = random.Random(seed).sample(names, len(names))

    def _usual_place(self) -> str:
        """Return what is taken unless it is chosen: the data where the run has placed them."""
        own = "scratch" if self._writes else "software"
        return "data" if Placement.name else own

    def step(self) -> float:
        """Take each file once; return a number that depends on their sizes and their order."""
        take, at = self._take, self._at
        sizes = [take(name, at) for name in self._names]
        return sum(place * size for place, size in enumerate(sizes, 1)) / 1e9

    def finish(self) -> dict[str, float]:
        """Remove what was written; return how many bytes the files have, and how many are cached.

        After steps that drop each file the share in the page cache is 0 where dropping works.
        """
        sizes = [_size(name, self._at) for name in self._names]
        found: dict[str, float] = {"files": len(sizes), "bytes": sum(sizes)}
        cold = self._names if self._is_cold else ()
        shares = [resident_share(os.path.join(self._folder, name)) for name in cold]
        known = [share for share in shares if share is not None]
        if known:
            found["cached"] = sum(known) / len(known)
        os.close(self._at)
        if self._scratch is not None:
            self._scratch.cleanup()
        return found


def _files_in(data: str | None, count: int) -> tuple[str, list[str]]:
    """Return the folder of a data set, and the names of its first files in it."""
    folder = Path(data or ".")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if data is None or len(names) < count:
        raise ParameterError(
            f"parameter 'files' is {count}, and the data has {len(names)} files here"
        )
    return str(folder), names[:count]


def _files_of(package: str, count: int) -> tuple[str, list[str]]:
    """Return the folder of an installed package, and the names of its first source files in it."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    places = (found.submodule_search_locations if found else None) or []
    folders = [os.path.abspath(one) for one in places if os.path.isdir(one)]
    if not folders:
        why = "is not installed here" if found is None else "is one module, and no folder of files"
        raise ParameterError(f"parameter 'package' is {package!r}, which {why}")
    folder = os.path.commonpath(folders)
    paths = (path for one in folders for path in Path(one).rglob("*.py"))
    names = sorted(str(path.relative_to(folder)) for path in paths)
    if len(names) < count:
        raise ParameterError(
            f"parameter 'files' is {count}, and the package {package!r} has {len(names)} source "
            "files here"
        )
    return folder, names[:count]


def _size(name: str, at: int) -> int:
    return os.stat(name, dir_fd=at).st_size


def _read(name: str, at: int, *, ending: Callable[[int], None] | None = None) -> int:
    handle = os.open(name, os.O_RDONLY, dir_fd=at)
    try:
        size = 0
        while part := os.read(handle, 1 << 20):
            size += len(part)
        if ending is not None:
            ending(handle)
        return size
    finally:
        os.close(handle)


def _read_cold(name: str, at: int) -> int:
    """Read a file that the step before has dropped from the page cache, and drop it again."""
    return _read(name, at, ending=drop)


def _write(name: str, at: int) -> int:
    """Replace a file as caches and checkpoints do: write a new one, then rename it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    handle = os.open(f"{name}.new", flags, 0o600, dir_fd=at)
    try:
        size = os.write(handle, bytes(WRITTEN_BYTES))
    finally:
        os.close(handle)
    os.rename(f"{name}.new", name, src_dir_fd=at, dst_dir_fd=at)
    return size
