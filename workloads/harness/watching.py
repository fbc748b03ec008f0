"""Sample which files a running program and its descendants have mapped, from the launcher."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import time
from typing import Any, Iterator

from harness.facts.cgroups import own_group, read_text, throttled_ns
from harness.facts.confinement import scheduling
from harness.facts.libraries import library_facts, mapped_libraries, short_hash

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_SHARE = 0.01  # of one CPU, at most, for reading
# Of the interpreter of an arm; a program may well be none of Python's.
_OTHERS = ("libc.version", "python.libpython_sha256")


class Watch(threading.Thread):
    """Reads the maps of a process and of its descendants until `facts` is called.

    The kernel is asked (proc_pid_maps(5)) and nothing takes part in the program itself. What ends
    between two readings stays unseen, so that a name that is missing proves nothing.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._pid = 0
        self._begins = threading.Event()
        self._ends = threading.Event()
        self._libraries: set[str] = set()
        self._programs: set[str] = set()
        # How the process that computed most is scheduled. Below one tick of CPU time processes
        # cannot be distinguished, so the choice would be random.
        self._busiest: dict[str, Any] = {}
        self._most_ticks = 0
        self._most_threads = 0
        self._cpu_group = own_group("cpu")
        self._throttled_ns: int | None = None

    def begin(self, pid: int) -> None:
        """Read the maps of this process from now on."""
        self._pid = pid
        self._throttled_ns = throttled_ns(self._cpu_group)
        self._begins.set()

    def run(self) -> None:
        """Read again and again, ever more seldom."""
        self._begins.wait()
        pause_s = _FIRST_PAUSE_S
        while not self._ends.wait(pause_s):
            began_s = time.thread_time()
            threads = sum(self._read(pid) for pid in _family(self._pid))
            self._most_threads = max(self._most_threads, threads)
            used_s = time.thread_time() - began_s
            pause_s = max(min(pause_s * 1.5, _LONGEST_PAUSE_S), used_s / _SHARE)

    def facts(self) -> dict[str, Any]:
        """End; return the samples as facts of a fingerprint, empty if there are none."""
        self._ends.set()
        self._begins.set()
        self.join()
        if not self._programs:
            return {}
        found = library_facts(self._libraries)
        return {
            **{key: value for key, value in found.items() if key not in _OTHERS},
            **self._busiest,
            "threads.alive": self._most_threads,
            "cgroup.throttled_ns": self._stopped_ns(),
            "programs": sorted(
                f"{os.path.basename(one)} {short_hash(one)}" for one in self._programs
            ),
        }

    def _stopped_ns(self) -> int | None:
        """Return for how long a quota stopped the control group since the program began."""
        now = throttled_ns(self._cpu_group)
        return None if now is None or self._throttled_ns is None else now - self._throttled_ns

    def _read(self, pid: int) -> int:
        """Record the mapped files of a process; return its number of threads."""
        # gone meanwhile, or another user's
        with contextlib.suppress(OSError):
            libraries = mapped_libraries(str(pid))
            self._programs.add(os.readlink(f"/proc/{pid}/exe"))
            self._libraries.update(libraries)
            ticks = _ticks(pid)
            if ticks > self._most_ticks:
                affinity = {"cpu.affinity": sorted(os.sched_getaffinity(pid))}
                self._busiest = {**scheduling(str(pid)), **affinity}
                self._most_ticks = ticks
            return len(os.listdir(f"/proc/{pid}/task"))
        return 0


def _ticks(pid: int) -> int:
    """Return the CPU time that a process has used, in ticks of the kernel (proc_pid_stat(5))."""
    fields = (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return sum(map(int, fields[11:13]))


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants; only itself if the kernel does not list children."""
    yield pid
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        for child in (read_text(path) or "").split():
            yield from _family(int(child))
