"""Counters of the kernel and the processor, over all threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
from typing import Any, NamedTuple, Sequence

from harness.blockclock import TASKS
from harness.facts.cgroups import read_text

HARDWARE, SOFTWARE, TRACEPOINT, RAW = 0, 1, 2, 4  # perf_type_id
# asm/unistd.h: x86 has its own numbers, all younger architectures share theirs.
_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
# perf_event_open(2) names the fields.
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")  # PERF_ATTR_SIZE_VER0
_TIMES = 0b11  # read_format: time enabled and time running behind the value
_DISABLED, _INHERIT, _NO_KERNEL = 1 << 0, 1 << 1, 1 << 5
_ENABLE, _DISABLE = 0x2400, 0x2401  # PERF_EVENT_IOC_*
_CLOSE_ON_EXEC = 8
_PARANOID = "/proc/sys/kernel/perf_event_paranoid"
_FILES = "/proc/self/fd"
SPARE_FILES = 64  # descriptors that are left to the workload

NO_COUNTER = "this machine has no such counter; a virtual machine without a virtual PMU has none"
NOT_RUN = "the processor had no counter free for it"
SECCOMP = "the container's seccomp profile, or a missing capability, forbids perf_event_open"
NO_ROOM = "each counter needs an open file for each thread, which the limit does not allow"
NO_ROOM_HINT = "raise the limit of open files (ulimit -n)"
PARANOID = "kernel.perf_event_paranoid is {} here"
PARANOID_HINT = "sysctl kernel.perf_event_paranoid={}, as root of the host"
SECCOMP_HINT = "let the container have CAP_PERFMON and a seccomp profile that allows it"


class Event(NamedTuple):
    """Something to count; `in_user_space` where it means something without the kernel's part."""

    name: str
    kind: int
    config: int
    in_user_space: bool = False


TASK_CLOCK = Event("task_clock_ns", SOFTWARE, 1, in_user_space=True)


class Counted(NamedTuple):
    """A count, or the reason why there is none."""

    value: float | None
    scope: str = ""
    reason: str = ""
    hint: str = ""
    has_kernel: bool = True  # false where the kernel's part of the work was not allowed


class RefusedError(Exception):
    """The kernel opened no counter; the number is an errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Counter:
    """One event on a set of threads, and on those they start; counts between start and stop."""

    def __init__(self, event: Event, threads: Sequence[int]) -> None:
        self.has_kernel = True
        try:
            self._files = _open_all(event, threads, _DISABLED | _INHERIT)
        except RefusedError as error:
            if error.number not in {errno.EACCES, errno.EPERM} or not event.in_user_space:
                raise
            self._files = _open_all(event, threads, _DISABLED | _INHERIT | _NO_KERNEL)
            self.has_kernel = event == TASK_CLOCK  # a clock runs on, whatever is excluded

    def start(self) -> None:
        """Begin to count."""
        for file in self._files:
            fcntl.ioctl(file, _ENABLE, 0)

    def stop(self) -> None:
        """Count no more."""
        for file in self._files:
            fcntl.ioctl(file, _DISABLE, 0)

    def read(self) -> Counted:
        """Return the sum over the threads, extrapolated where the counter had to be shared."""
        total, share = 0.0, 1.0
        for file in self._files:
            value, enabled_ns, running_ns = struct.unpack("=QQQ", os.read(file, 24))
            if enabled_ns and not running_ns:
                return Counted(None, reason=NOT_RUN)
            if running_ns:
                share = min(share, running_ns / enabled_ns)
                total += value * enabled_ns / running_ns
        scope = f"extrapolated from {share:.0%} of the time" if share < 1 else ""
        return Counted(total if share < 1 else int(total), scope=scope, has_kernel=self.has_kernel)

    def close(self) -> None:
        """Close the counters."""
        _close_all(self._files)


class Counters:
    """Several events; one that cannot be counted has a reason."""

    def __init__(self, events: Sequence[Event]) -> None:
        threads = [int(name) for name in os.listdir(TASKS)]
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._room = limit - len(os.listdir(_FILES)) - SPARE_FILES
        self._refused: dict[str, Counted] = {}
        self._counters: dict[str, Counter] = {}
        for event in events:
            self._open(event, threads)

    def _open(self, event: Event, threads: Sequence[int]) -> None:
        if len(threads) > self._room:
            self._refused[event.name] = Counted(None, reason=NO_ROOM, hint=NO_ROOM_HINT)
            return
        try:
            self._counters[event.name] = Counter(event, threads)
            self._room -= len(threads)
        except RefusedError as error:
            self._refused[event.name] = refusal(error.number)

    def start(self) -> None:
        """Begin to count; the first event starts last, so it does not count the others' start."""
        for counter in list(self._counters.values())[::-1]:
            counter.start()

    def stop(self) -> None:
        """Count no more, the first event first."""
        for counter in self._counters.values():
            counter.stop()

    def read(self) -> dict[str, Counted]:
        """Return the counts by name."""
        counted = {name: counter.read() for name, counter in self._counters.items()}
        return {**counted, **self._refused}

    def close(self) -> None:
        """Close all counters."""
        for counter in self._counters.values():
            counter.close()


def refusal(number: int) -> Counted:
    """Return the reason and the remedy for an errno of perf_event_open."""
    if number in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL}:
        return Counted(None, reason=NO_COUNTER)
    if number not in {errno.EACCES, errno.EPERM}:
        return Counted(None, reason=f"perf_event_open: {os.strerror(number)}")
    status = read_text("/proc/self/status") or ""
    if number == errno.EPERM and "Seccomp:\t2" in status:
        return Counted(None, reason=SECCOMP, hint=SECCOMP_HINT)
    level = read_text(_PARANOID)
    return Counted(None, reason=PARANOID.format(level), hint=PARANOID_HINT.format(1))


def _open_all(event: Event, threads: Sequence[int], flags: int) -> list[int]:
    files: list[int] = []
    try:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                files.append(_open(event, thread, flags))
    except RefusedError:
        _close_all(files)
        raise
    return files


def _open(event: Event, thread: int, flags: int) -> int:
    number = _CALLS.get(platform.machine())
    if number is None:
        raise RefusedError(errno.ENOSYS)
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(event.kind, size, event.config, 0, 0, _TIMES, flags, 0, 0, 0)
    library: Any = ctypes.CDLL(None, use_errno=True)
    file = int(library.syscall(number, attributes, thread, -1, -1, _CLOSE_ON_EXEC))
    if file >= 0:
        return file
    if ctypes.get_errno() == errno.ESRCH:
        raise ProcessLookupError(thread)
    raise RefusedError(ctypes.get_errno())


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
