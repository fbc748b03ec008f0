"""The threads of this process and of all that it has started: what they do between two blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Dict, NamedTuple, Optional

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, prctl(2)
# Processes that Python and torch keep beside a program: they wait, and fill no queue.
_STOPPED = (b"T", b"t", b"Z", b"X")  # proc_pid_stat(5): by a signal, by a tracer, dead
_STOP_LIMIT_S = 1.0  # a thread that waits for a disk stops when it has been served
_PAUSE_S = 0.0002
_SERVICES = (b"resource_tracker", b"compile_worker", b"multiprocessing.forkserver")


class Used(NamedTuple):
    """What a thread has had so far (kernel: sched-stats.rst)."""

    cpu_ns: int
    runs: int  # times that it was given a CPU
    feeds: bool  # a thread of Python or of a child: it may fill a queue; of a library it may spin
    is_own: bool  # of the process that steps


_Threads = Optional[Dict[int, Used]]
_NOTHING = Used(0, 0, feeds=False, is_own=False)


class Tasks:
    """Reads at both ends of a block what runs beside the thread that made it.

    `processes` step together, as the workload has declared: the others are no children of it.
    """

    def __init__(self, *, processes: int = 1) -> None:
        self._own = threading.get_native_id()
        self._ranks = processes - 1
        self._begun: _Threads = None
        self._ended: _Threads = None
        self._stops = False
        self.is_stopped = False  # all that this process has started, since the last block ended
        # What loses its parent becomes a child of this process, and is still seen.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 — some builds of Python have none

            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)

    def begin(self, *, is_halted: bool = False) -> dict[str, Optional[int]]:
        """Return what ran since the last block ended, and how many children live.

        None is what is not known: before the second block, or where the kernel does not tell. One
        that `is_halted` was itself stopped meanwhile: its own threads run for a moment at both ends
        of a block, which the block's time includes.
        """
        self._begun, children = self._read()
        found: dict[str, Optional[int]] = {"children": max(0, children - self._ranks)}
        if self._ended is None or self._begun is None:
            return {**found, "outside_cpu_ns": None, "outside_runs": None}
        both = [(self._ended.get(task, _NOTHING), now) for task, now in self._begun.items()]
        feeding = [
            (then, now) for then, now in both if now.feeds and not (is_halted and now.is_own)
        ]
        runs = sum(max(0, now.runs - then.runs) for then, now in feeding)
        return {
            **found,
            "outside_cpu_ns": sum(max(0, now.cpu_ns - then.cpu_ns) for then, now in both),
            "outside_runs": None if self._ranks else runs,
        }

    def end(self) -> dict[str, Optional[int]]:
        """Return how many threads of all processes ran in the block, the stepping one included."""
        self._ended, _ = self._read()
        if self._begun is None or self._ended is None:
            return {"running": None}
        both = [(self._begun.get(task, _NOTHING), now) for task, now in self._ended.items()]
        return {"running": 1 + sum(now.cpu_ns > then.cpu_ns for then, now in both)}

    def stop(self) -> None:
        """Stop all that this process has started, until no child is new and every thread stands."""
        known: set[int] = set()
        limit_s = time.monotonic() + _STOP_LIMIT_S
        self._stops = True
        while time.monotonic() < limit_s:
            found = set(offspring())
            running = [process for process in found if not _stands(process)]
            if not running and found == known:  # what was stopped before the look has no new child
                self.is_stopped = True
                return
            if not all(_signal(process, signal.SIGSTOP) for process in running):
                return
            if known == found:
                time.sleep(_PAUSE_S)
            known = found

    def resume(self) -> None:
        """Let all that was stopped go on; safe to repeat."""
        if self._stops:
            for process in offspring():
                _signal(process, signal.SIGCONT)
        self._stops = self.is_stopped = False

    def _read(self) -> tuple[_Threads, int]:
        """Return what each thread but the stepping one has used, and how many children live."""
        used: _Threads = {}
        python = {thread.native_id for thread in threading.enumerate()}
        own, children = os.getpid(), 0
        for process in (own, *offspring()):
            is_child = process != own
            words = _content(f"/proc/{process}/cmdline")  # empty once it has ended
            is_service = is_child and any(name in words for name in _SERVICES)
            children += is_child and bool(words) and not is_service
            for task in _tasks(process):
                fields = _content(f"/proc/{process}/task/{task}/schedstat").split()
                if used is not None and task != self._own and len(fields) == 3:
                    feeds = not is_service if is_child else task in python
                    used[task] = Used(int(fields[0]), int(fields[2]), feeds, not is_child)
                elif task == self._own and not fields:
                    used = None  # the kernel does not tell
        return used, children


def offspring() -> list[int]:
    """Return all processes that this one has started, parents before their children."""
    found = [os.getpid()]
    is_listed = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")
    by_parent = {} if is_listed else _parents()
    for process in found:
        for task in _tasks(process):
            found += map(int, _content(f"/proc/{process}/task/{task}/children").split())
        found += by_parent.get(process, ())
    return found[1:]


def _stands(process: int) -> bool:
    """Tell whether no thread of a process runs."""
    stats = (_content(f"/proc/{process}/task/{task}/stat") for task in _tasks(process))
    # the name of a program, in parentheses, may hold anything; its state comes after
    states = (stat.rpartition(b")")[2].split()[:1] for stat in stats)
    return all(not state or state[0] in _STOPPED for state in states)


def _signal(process: int, number: int) -> bool:
    """Send a signal; tell whether that is allowed."""
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


def _parents() -> dict[int, list[int]]:
    """Return the children of every process, for a kernel that does not list them (gVisor)."""
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        # the name of a program, in parentheses, may hold anything; its parent comes second after
        fields = _content(f"/proc/{name}/stat").rpartition(b")")[2].split()
        if name.isdigit() and len(fields) > 1:
            found.setdefault(int(fields[1]), []).append(int(name))
    return found
