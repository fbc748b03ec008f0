"""Sample what a running program and its descendants are, from the launcher.

A container of a line is not among them: its engine names its first process.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import subprocess
import threading
import time
from typing import Any, Dict, Iterator, List, Optional

from harness.facts.cgroups import own_group, read_text, throttled_ns
from harness.facts.confinement import scheduling
from harness.facts.libraries import library_facts, mapped_libraries, short_hash
from harness.facts.otherprocess import process_facts

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_SHARE = 0.01  # of one CPU, at most, for reading
_LINE_SHARE = 0.1  # of a line, of which more is read, in a process that only warms up
# Of the interpreter of an arm; a program may well be none of Python's.
_OTHERS = ("libc.version", "python.libpython_sha256")
_ENGINE_LIMIT_S = 20.0
_NO_ANSWER = (OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError)
_MOST_FILES = 512  # of a container, kept open until they are hashed


class Watch(threading.Thread):
    """Reads the maps of a process and of its descendants until `facts` is called.

    The kernel is asked (proc_pid_maps(5)) and nothing takes part in the program itself. What ends
    between two readings stays unseen, so that a name that is missing proves nothing.
    """

    def __init__(self, container: Optional[Container] = None, *, is_line: bool = False) -> None:
        super().__init__(daemon=True)
        self._pid = 0
        self._container = container
        self._is_line = is_line
        self._open: Dict[str, int] = {}  # files of the container, by their path there
        self._begins = threading.Event()
        self._ends = threading.Event()
        self._libraries: set[str] = set()
        self._programs: set[str] = set()
        # How the process that computed most is scheduled. Below one tick of CPU time processes
        # cannot be distinguished, so the choice would be random.
        self._busiest: dict[str, Any] = {}
        self._described = (0, "")  # the process of `_busiest`, and its program
        self._most_ticks = 0
        self._most_threads = 0
        self._cpu_group = own_group("cpu")
        self._throttled_ns: int | None = None
        self._stopped_ns: int | None = None  # the last that was seen: the group ends with the work

    def begin(self, pid: int) -> None:
        """Read the maps of this process from now on."""
        self._pid = pid
        self._throttled_ns = throttled_ns(self._cpu_group)
        self._begins.set()

    def run(self) -> None:
        """Read again and again, ever more seldom."""
        self._begins.wait()
        pause_s = _FIRST_PAUSE_S
        share = _LINE_SHARE if self._is_line else _SHARE
        while not self._ends.wait(pause_s):
            began_s = time.thread_time()
            threads = sum(self._read(pid) for pid in self._processes())
            self._most_threads = max(self._most_threads, threads)
            self._read_throttling()
            used_s = time.thread_time() - began_s
            longer_s = min(pause_s * 1.5, _LONGEST_PAUSE_S) if self._programs else _FIRST_PAUSE_S
            pause_s = max(longer_s, used_s / share)

    def facts(self) -> dict[str, Any]:
        """End; return the samples as facts of a fingerprint, empty if there are none."""
        self._ends.set()
        self._begins.set()
        self.join()
        self._read_throttling()
        if not self._programs:
            return {}
        readable = {path: f"/proc/self/fd/{fd}" for path, fd in self._open.items()}
        found = library_facts(self._libraries, readable)
        hashes = {path: short_hash(readable.get(path, path)) for path in self._programs}
        return {
            **{key: value for key, value in found.items() if key not in _OTHERS},
            **self._busiest,
            **(self._container.facts if self._container else {}),
            "threads.alive": self._most_threads,
            "cgroup.throttled_ns": self._stopped_ns,
            "programs": sorted(f"{os.path.basename(path)} {text}" for path, text in hashes.items()),
        }

    def _processes(self) -> Iterator[int]:
        """Yield the processes of the program: those of its container, if it runs in one."""
        if self._container is None:
            yield from _family(self._pid)
            return
        is_known = bool(self._container.pid)
        if self._container.ask():
            if not is_known:
                self._cpu_group = own_group("cpu", str(self._container.pid))
                self._throttled_ns = throttled_ns(self._cpu_group)
            yield from _family(self._container.pid)

    def _read_throttling(self) -> None:
        """Read for how long a quota stopped the control group since the program began."""
        now = throttled_ns(self._cpu_group)
        if now is not None and self._throttled_ns is not None:
            self._stopped_ns = now - self._throttled_ns

    def _read(self, pid: int) -> int:
        """Record the mapped files of a process; return its number of threads."""
        # gone meanwhile, or another user's
        with contextlib.suppress(OSError):
            libraries = mapped_libraries(str(pid))
            program = os.readlink(f"/proc/{pid}/exe")
            if self._container is not None and self._container.pid:
                self._keep_open(pid, [program, *libraries])
            self._programs.add(program)
            self._libraries.update(libraries)
            ticks = _ticks(pid)
            if ticks > self._most_ticks or (self._is_line and not self._busiest):
                self._most_ticks = ticks
                self._describe(pid, program)
            return len(os.listdir(f"/proc/{pid}/task"))
        return 0

    def _describe(self, pid: int, program: str) -> None:
        """Record how a process runs, and of a line what confines it."""
        if not self._is_line:
            affinity = {"cpu.affinity": sorted(os.sched_getaffinity(pid))}
            self._busiest = {**scheduling(str(pid)), **affinity}
        elif (pid, program) != self._described:
            self._busiest, self._described = process_facts(pid), (pid, program)

    def _keep_open(self, pid: int, paths: List[str]) -> None:
        """Open files of a container, whose paths mean nothing once it has ended."""
        for path in paths:
            if path not in self._open and len(self._open) < _MOST_FILES:
                with contextlib.suppress(OSError):
                    self._open[path] = os.open(f"/proc/{pid}/root{path}", os.O_RDONLY)


class Container:
    """The container of a line: asks its engine for the first process, and how it is run."""

    def __init__(self, engine: str, id_file: str) -> None:
        self._engine = engine
        self._id_file = id_file
        self.pid = 0
        self.facts: Dict[str, Any] = {}

    def ask(self) -> bool:
        """Return whether the container runs; its engine is asked until it does."""
        identity = read_text(self._id_file)
        if self.pid or not identity:
            return bool(self.pid)
        with contextlib.suppress(
            OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError
        ):
            asked = subprocess.run(
                [self._engine, "inspect", identity],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_ENGINE_LIMIT_S,
                check=True,
            )
            found = json.loads(asked.stdout)[0]
            host, state = found["HostConfig"], found["State"]
            self.facts = {
                "image.id": found["Image"],
                "container.log_driver": host["LogConfig"]["Type"],
                "container.network": host["NetworkMode"],
                "container.runtime": host.get("Runtime") or found.get("OCIRuntime"),
            }
            self.pid = state["Pid"]
        return bool(self.pid)


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
