"""What loading code and data does with files: look at, read or write many small ones."""

from __future__ import annotations

import importlib.util
import os
import random
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from harness.parameters import ParameterError

WRITTEN_BYTES = 4096  # of a file that the workload writes, the page size of most machines


class Files:
    """Looks at, reads or writes small files: of the software, or in the scratch folder.

    Those of the software lie where the environment keeps it: on the disk of a VM, in the layers of
    an image, in the SquashFS of a SIF. They are in the page cache after the first step. A step
    takes each file once, in an order of the seed.
    """

    BOTTLENECK: ClassVar[str] = "opening, reading and writing small files"
    PARAMS: ClassVar[dict[str, Any]] = {
        "pattern": "read",
        "place": "software",
        "package": "torch",
        "files": 500,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "pattern": ("stat", "read", "write"),
        "place": ("software", "scratch"),
        "files": (1, None),
    }

    def __init__(self, pattern: str, place: str, package: str, files: int) -> None:
        if pattern == "write" and place == "software":
            raise ParameterError(
                "pattern 'write' needs place 'scratch': installed software is not modified"
            )
        self._take = {"stat": _size, "read": _read, "write": _write}[pattern]
        self._place, self._package, self._files = place, package, files

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002  no device is used
        """Find the files, or write them, and settle their order."""
        self._scratch = None
        if self._place == "software":
            paths = _files_of(self._package, self._files)
        else:
            # HOME is the scratch folder of an arm, which is removed after it.
            self._scratch = tempfile.TemporaryDirectory(dir=os.environ.get("HOME"))
            paths = [f"{self._scratch.name}/{number}" for number in range(self._files)]
            for path in paths:
                _write(path)
        self._paths = random.Random(seed).sample(paths, len(paths))

    def step(self) -> float:
        """Take each file once; return a number that depends on their sizes and their order."""
        take = self._take
        sizes = [take(path) for path in self._paths]
        return sum(place * size for place, size in enumerate(sizes, 1)) / 1e9

    def finish(self) -> dict[str, int]:
        """Remove what was written; return how many bytes the files have."""
        found = sum(map(_size, self._paths))
        if self._scratch is not None:
            self._scratch.cleanup()
        return {"files": len(self._paths), "bytes": found}


def _files_of(package: str, count: int) -> list[str]:
    """Return the first source files of an installed package."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    folders = (found.submodule_search_locations if found else None) or []
    paths = sorted(str(path) for folder in folders for path in Path(folder).rglob("*.py"))
    if len(paths) < count:
        raise ParameterError(
            f"parameter 'files' is {count}, and the package {package!r} has {len(paths)} here"
        )
    return paths[:count]


def _size(path: str) -> int:
    return os.stat(path).st_size


def _read(path: str) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        size = 0
        while part := os.read(handle, 1 << 20):
            size += len(part)
        return size
    finally:
        os.close(handle)


def _write(path: str) -> int:
    """Write a file anew, as a cache or a checkpoint is: made beside, then moved to its place."""
    handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        size = os.write(handle, bytes(WRITTEN_BYTES))
    finally:
        os.close(handle)
    os.rename(f"{path}.new", path)
    return size
