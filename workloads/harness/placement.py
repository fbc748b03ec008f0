"""Where the data of a workload lie: at the place that the run asks for, cached or not."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
from typing import Any, ClassVar

from harness.attempts import attempt, text_hash
from harness.facts.variables import scratch_folder
from harness.failures import DataError
from harness.formats.data import copied
from harness.loading import ParameterError

_READ_ONLY = ("image", "sif")


class Placement:
    """The place of the data that `hello` has named; a workload may ask for it."""

    name: ClassVar[str] = ""  # empty where the run asks for none
    _folder: ClassVar[str] = ""

    @classmethod
    def settle(cls, request: dict[str, Any]) -> dict[str, Any]:
        """Return a `hello` whose data lie at the place that it names, copied there if need be.

        Raises DataError where an image lacks what it should hold.
        """
        place, data = request.get("place") or {}, request.get("data")
        cls.name, cls._folder = place.get("name", ""), place.get("folder", "")
        if not cls._folder or data is None:
            return request
        if not place.get("is_held"):
            target = os.path.join(cls._folder, text_hash(data)[:12])
            return {**request, "data": copied(data, target)}
        # a file keeps its name there, which is part of its hash
        is_folder = os.path.isdir(data)
        held = cls._folder if is_folder else os.path.join(cls._folder, os.path.basename(data))
        if not os.path.exists(held):
            raise DataError(f"the image holds no data in {held}")
        return {**request, "data": held}

    @classmethod
    def room(cls) -> str:
        """Return a folder at the place that can be written to; raises ParameterError without one.

        Where the data are not copied it is the scratch folder of the arm, on the host's disk.
        """
        if cls.name in _READ_ONLY:
            raise ParameterError(
                f"nothing can be written at the place {cls.name!r}: choose bind, overlay or tmpfs"
            )
        return cls._folder or scratch_folder()


def drop(handle: int) -> None:
    """Drop the clean pages of an open file from the page cache, which needs no rights.

    It is the cache of the kernel that the file system fills for this file (posix_fadvise(2)): what
    a FUSE process, a disk or a hypervisor keeps stays, as do inodes and names.
    """
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def write_back(path: str) -> None:
    """Write the cached pages of a file to disk: only clean pages can be dropped."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def resident_share(path: str) -> float | None:
    """Return which share of the pages of a file is in the page cache, by mincore(2).

    None if mincore fails. Its answer is wrong for files of other users that this process may not
    write to, and in gVisor, which always reports all pages.
    """
    share: float | None = attempt(lambda: _resident_share(path))
    return share


def _resident_share(path: str) -> float:
    size = os.path.getsize(path)
    pages = -(-size // mmap.PAGESIZE)
    flags = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6", use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    kinds = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    libc.mmap.argtypes = kinds
    handle = os.open(path, os.O_RDONLY)
    try:
        start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    finally:
        os.close(handle)
    if start == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "mmap", path)
    try:
        if libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), flags):
            raise OSError(ctypes.get_errno(), "mincore", path)
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size))
    return sum(flag & 1 for flag in flags) / pages
