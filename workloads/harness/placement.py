"""Where a workload runs: the place of its data, cached or not, and the CPUs of its process.

The process sets its CPU set itself, and so the same way in every arm.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import os
import threading
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Iterator, List, Optional, Set

from harness.attempts import attempt, text_hash
from harness.facts.variables import scratch_folder
from harness.failures import DataError, ProcessError
from harness.formats.data import copied
from harness.loading import ParameterError

_READ_ONLY = ("image", "sif")
OWN_PYTHON = "ENVCOMPARE_PYTHON"
"""The variable with the command that starts Python in a user's own image, wrapper included."""
OWN_CPU = -1
_HINT = "give --pin CPUs that are allowed there in every environment, or leave it out"


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


def pin(cpus: Optional[List[int]]) -> None:
    """Run on these CPUs only; None does nothing.

    In a user's own image the process also keeps to the CPUs on which it was started, since the
    image may restrict them. In other arms that restriction comes from the caller of envcompare and
    is ignored.
    """
    if cpus is None:
        return
    started_on = os.sched_getaffinity(0)
    _set(cpus, started_on)
    image = os.environ.get(OWN_PYTHON)
    common = started_on & set(cpus)
    if image and not common:
        raise ProcessError(
            f"cannot run on CPUs {cpus}: the image's {image} runs on {sorted(started_on)}",
            hint="give --pin CPUs that it may use, or leave --pin out",
        )
    if image:
        _set(sorted(common), started_on)


@contextmanager
def held(cpu: Optional[int]) -> Iterator[bool]:
    """Hold this thread on a CPU, or on the one it is on (`OWN_CPU`); give whether that was done.

    With None, or with a CPU on which it may not run, it is held nowhere. A thread that starts in
    between is let go with this one; a process that does stays on the CPU (sched_setaffinity(2)).
    """
    allowed = os.sched_getaffinity(0)
    chosen = current_cpu() if cpu == OWN_CPU else cpu
    is_held = chosen in allowed and _moved_to(chosen)
    try:
        yield is_held
    finally:
        if is_held:
            os.sched_setaffinity(0, allowed)
            _let_go(allowed, chosen)


def _let_go(allowed: Set[int], cpu: Optional[int]) -> None:
    """Allow all CPUs again to threads that are bound to this one."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # it has ended
            if os.sched_getaffinity(thread) == {cpu}:
                os.sched_setaffinity(thread, allowed)


def _moved_to(cpu: int) -> bool:
    """Hold this thread on a CPU; return whether the kernel lets it."""
    try:
        os.sched_setaffinity(0, (cpu,))
    except OSError:
        return False
    return True


def current_cpu() -> Optional[int]:
    """Return the CPU that this thread is on: field 39 of its line (proc_pid_stat(5)).

    None where the kernel does not tell.
    """
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[36])
    except (OSError, ValueError, IndexError):
        return None


def _set(cpus: List[int], allowed: Set[int]) -> None:
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        raise ProcessError(
            f"cannot run on CPUs {cpus}: {error}; allowed: {sorted(allowed)}", hint=_HINT
        ) from error
    # The kernel drops a CPU it cannot give as long as one is left (sched_setaffinity(2)).
    if os.sched_getaffinity(0) != set(cpus):
        raise ProcessError(
            f"cannot run on all of CPUs {cpus}; allowed: {sorted(allowed)}", hint=_HINT
        )
