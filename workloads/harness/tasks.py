"""Watch and stop a process and its descendants between two blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Collection, Dict, NamedTuple, Optional

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER: prctl(2)
_DEAD = (b"Z", b"X")  # proc_pid_stat(5)
_STOPPED = (b"T", b"t", *_DEAD)  # by a signal, by a tracer
_STOP_LIMIT_S = 1.0  # a thread that waits for a disk stops only after the disk has answered
_PAUSE_S = 0.0002
_FORK_LIMIT_S = 0.1  # a fork closes the pipes of the protocol before it does anything else
_TRACKER = b"resource_tracker"  # it removes what others have left in /dev/shm, and ends with them
# Helper processes of Python and torch: they only wait, and never fill a queue.
_FORKER = b"multiprocessing.forkserver"
_SERVICES = (_TRACKER, b"compile_worker", _FORKER)


class Used(NamedTuple):
    """The CPU time and runs of a thread so far (kernel: sched-stats.rst)."""

    cpu_ns: int
    runs: int  # times that it was given a CPU
    feeds: bool  # a thread of Python or of a child: it may fill a queue; of a library it may spin


_Threads = Optional[Dict[int, Used]]
_NOTHING = Used(0, 0, feeds=False)


class Tasks:
    """Reads, at both ends of a block, what runs besides the first thread of `process`, which steps.

    It can stop `process` with all its descendants; the process that calls is never stopped itself.
    `ranks` is how many processes step together, as declared by the workload: the other ranks do not
    count as children. `pipe` is the descriptor that forks of `process` close last before they go
    on; one that was stopped earlier would stay stopped, and keep the pipe open, if `process` died.
    """

    def __init__(self, process: int, *, ranks: int = 1, pipe: Optional[int] = None) -> None:
        self._process = process
        self._pipe = pipe
        self._ranks = ranks - 1
        self._python: Collection[int] = ()
        self._begun: _Threads = None
        self._ended: _Threads = None
        self._stops = False
        self.is_stopped = False  # all of it, since the last block ended

    def begin(self) -> dict[str, Optional[int]]:
        """Return what ran since the last block ended, and how many children live.

        Values are None before the second block, and if the kernel has no such counters.
        """
        self._begun, children = self._read()
        found: dict[str, Optional[int]] = {"children": max(0, children - self._ranks)}
        if self._ended is None or self._begun is None:
            return {**found, "outside_cpu_ns": None, "outside_runs": None}
        both = [(self._ended.get(task, _NOTHING), now) for task, now in self._begun.items()]
        runs = sum(max(0, now.runs - then.runs) for then, now in both if now.feeds)
        return {
            **found,
            "outside_cpu_ns": sum(max(0, now.cpu_ns - then.cpu_ns) for then, now in both),
            "outside_runs": None if self._ranks else runs,
        }

    def end(self, python: Collection[int] = ()) -> dict[str, Optional[int]]:
        """Return how many threads of all processes ran in the block, the stepping one included.

        `python` are the threads of Python in the process that steps.
        """
        self._python = python
        self._ended, _ = self._read()
        if self._begun is None or self._ended is None:
            return {"running": None}
        both = [(self._begun.get(task, _NOTHING), now) for task, now in self._ended.items()]
        return {"running": 1 + sum(now.cpu_ns > then.cpu_ns for then, now in both)}

    def stop(self) -> None:
        """Stop all processes, until there is no new child and every thread is stopped.

        `is_stopped` stays False if a thread could not be seen to be stopped.
        """
        if self._process != os.getpid():
            _signal(self._process, signal.SIGSTOP)
        known = running = set(self._all())
        began_s = time.monotonic()
        self._stops = True
        while (passed_s := time.monotonic() - began_s) < _STOP_LIMIT_S:
            waits = passed_s < _FORK_LIMIT_S
            ready = {process for process in running if not (waits and self._is_new_fork(process))}
            refused = {process for process in ready if not _signal(process, signal.SIGSTOP)}
            found = set(self._all())
            running = {process for process in found if not _is_stopped(process)}
            if found == known:  # processes that were stopped before this look have no new child
                # Those that stopped after it have none either, if a second look finds the same.
                self.is_stopped = not running and set(self._all()) == found
                if self.is_stopped or (running and running <= refused):
                    break
                time.sleep(_PAUSE_S)
            known = found

    def resume(self) -> None:
        """Continue all stopped processes. It may be called again."""
        for process in self._all() if self._stops else ():
            _signal(process, signal.SIGCONT)
        self._stops = self.is_stopped = False

    def _all(self) -> list[int]:
        """Return the processes to stop; this process itself is never among them."""
        is_other = self._process != os.getpid()
        return [self._process] * is_other + offspring(self._process)

    def _is_new_fork(self, process: int) -> bool:
        """Return whether a fork has not yet closed the pipe."""
        if self._pipe is None:
            return False
        try:
            other = os.stat(f"/proc/{process}/fd/{self._pipe}")
        except OSError:  # it has closed it
            return False
        return os.path.samestat(os.fstat(self._pipe), other)

    def _read(self) -> tuple[_Threads, int]:
        """Return what each thread but the stepping one has used, and how many children live."""
        used: _Threads = {}
        children = 0
        forkers: set[int] = set()
        for process in (self._process, *offspring(self._process)):
            is_child = process != self._process
            words = _content(f"/proc/{process}/cmdline") if is_child else b""
            # A worker that the fork server has forked keeps its command line, and fills a queue.
            is_forked = _FORKER in words and _parent(process) in forkers
            is_service = not is_forked and any(name in words for name in _SERVICES)
            if _FORKER in words:
                forkers.add(process)
            children += is_child and not is_service and not _has_ended(process)
            for task in _tasks(process):
                fields = _content(f"/proc/{process}/task/{task}/schedstat").split()
                if used is not None and task != self._process and len(fields) == 3:
                    feeds = not is_service if is_child else task in self._python
                    used[task] = Used(int(fields[0]), int(fields[2]), feeds)
                elif task == self._process and not fields:
                    used = None  # the kernel has no such counters
        return used, children


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that they stay visible."""
    _prctl(_SUBREAPER, 1)


def wake_with_parent() -> None:
    """Continue this process when its parent dies, even if the parent had stopped it."""
    _prctl(_DEATH_SIGNAL, signal.SIGCONT)


def _prctl(option: int, value: int) -> None:
    # some builds of Python have no ctypes
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def end_offspring(keeping: Collection[int] = ()) -> None:
    """Kill all descendants of this process, stopped or not, except those in `keeping`.

    A resource tracker is continued instead: it removes shared memory, then ends by itself.
    """
    limit_s = time.monotonic() + _STOP_LIMIT_S
    is_left = True
    while is_left and time.monotonic() < limit_s:
        is_left = False
        for process in offspring(os.getpid()):
            if process in keeping:
                continue
            is_tracker = _is_tracker(process)
            is_left |= not is_tracker and not _has_ended(process)
            _signal(process, signal.SIGCONT if is_tracker else signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # of another process
                reaped, _ = os.waitpid(process, os.WNOHANG)  # its other threads may still end
                is_left |= not (is_tracker or reaped)
        time.sleep(is_left * _PAUSE_S)


def has_started_any(process: int) -> bool:
    """Return whether a process has live descendants, other than a resource tracker."""
    return any(not _has_ended(one) and not _is_tracker(one) for one in offspring(process))


def _is_tracker(process: int) -> bool:
    return _TRACKER in _content(f"/proc/{process}/cmdline")


def offspring(process: int) -> list[int]:
    """Return all descendants of a process, parents before their children."""
    found = [process]
    is_listed = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")
    by_parent = {} if is_listed else _parents()
    for parent in found:
        for task in _tasks(parent):
            found += map(int, _content(f"/proc/{parent}/task/{task}/children").split())
        found += by_parent.get(parent, ())
    return found[1:]


def _is_stopped(process: int) -> bool:
    """Return whether every thread of a process is stopped or has ended."""
    states = [_state(f"/proc/{process}/task/{task}/stat") for task in _tasks(process)]
    return (
        all(not state or state in _STOPPED for state in states)
        if any(states)
        else _has_ended(process)
    )


def _has_ended(process: int) -> bool:
    """Return whether a process has ended; /proc may hide a live one of another user."""
    if state := _state(f"/proc/{process}/stat"):
        return state in _DEAD
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _state(path: str) -> bytes:
    """Return the state in the stat file of a process or thread; empty if there is none."""
    # The name of a program, in parentheses, may hold anything; the state follows it.
    return b"".join(_content(path).rpartition(b")")[2].split()[:1])


def _signal(process: int, number: int) -> bool:
    """Send a signal; return False if this is not permitted."""
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass  # it has ended
    except PermissionError:
        return False
    return True


def _tasks(process: int) -> list[int]:
    try:
        return [int(task) for task in os.listdir(f"/proc/{process}/task")]
    except OSError:
        return []


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _parent(process: int) -> int:
    """Return the parent of a process, 0 if it has ended (proc_pid_stat(5))."""
    # The name of a program, in parentheses, may hold anything; the parent comes second after it.
    fields = _content(f"/proc/{process}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _parents() -> dict[int, list[int]]:
    """Return the children of every process, for a kernel that does not list them (gVisor)."""
    found: dict[int, list[int]] = {}
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        found.setdefault(_parent(process), []).append(process)
    return found
