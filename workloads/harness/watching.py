"""Sample what a running program and its descendants are, from the launcher.

A container of a line is not among them: its engine names its first process.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import subprocess
import threading
import time
from datetime import datetime
from typing import Any, Dict, Iterator, List, Optional, Tuple

from harness.facts.cgroups import group_of, limit_hits, opened, read_text, throttled_ns
from harness.facts.confinement import scheduling
from harness.facts.libraries import UNREADABLE, library_facts, mapped_libraries, short_hash
from harness.facts.otherprocess import OF_THE_READER, process_facts, python_facts

_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0
_SHARE = 0.01  # of one CPU, at most, for reading
_LINE_SHARE = 0.1  # of a line, of which more is read, in a process that only warms up
_ENGINE_LIMIT_S = 20.0
_ASK_EVERY_S = 0.1
_NETWORKS = {"default": "bridge"}  # two names of one network
_OWN_KERNELS = ("runsc", "kata")
_NO_ANSWER = (OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError)
_MOST_FILES = 512  # of a line, kept open until they are hashed
# What starts a SIF and serves its files uses CPU time and threads for a line, and outlives it.
_NO_WORK = (
    *("squashfuse_ll", "squashfuse", "fuse-overlayfs", "fuse2fs"),
    *("apptainer", "singularity", "starter", "starter-suid"),
)


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
        self._open: Dict[str, int] = {}  # files of a line, by the path that it sees
        self._from_here: set[str] = set()  # those of processes outside of a container
        self._begins = threading.Event()
        self._ends = threading.Event()
        self._libraries: set[str] = set()
        self._programs: set[str] = set()
        # How the process that computed most is scheduled. Below one tick of CPU time processes
        # cannot be distinguished, so the choice would be random.
        self._busiest: dict[str, Any] = {}
        self._described = (0, "")  # the process of `_busiest`, and its program
        self._most_ticks = 0
        self._order: Dict[int, int] = {}  # of processes, as they were first seen
        self._alive: List[Tuple[int, int, str]] = []  # of a line: ticks, process, program
        self._most_threads = 0
        self._cpu_group = group_of("cpu")
        self._throttled_ns: int | None = None
        self._stopped_ns: int | None = None  # the last that was seen: the group ends with the work

    def begin(self, pid: int) -> None:
        """Read the maps of this process from now on."""
        self._pid = pid
        if self._container:
            self._container.began_s = time.time()
        self._throttled_ns = throttled_ns(self._cpu_group)
        self._begins.set()

    def run(self) -> None:
        """Read again and again, ever more seldom."""
        self._begins.wait()
        pause_s = _FIRST_PAUSE_S
        share = _LINE_SHARE if self._is_line else _SHARE
        while not self._ends.wait(pause_s):
            began_s = time.thread_time()
            self._alive = []
            threads = sum(self._read(pid) for pid in self._processes())
            self._most_threads = max(self._most_threads, threads)
            self._read_throttling()
            used_s = time.thread_time() - began_s
            self._describe_line()  # slow only once a process, so it does not lengthen the pause
            longer_s = min(pause_s * 1.5, _LONGEST_PAUSE_S) if self._programs else _FIRST_PAUSE_S
            pause_s = max(longer_s, used_s / share)

    def facts(self) -> dict[str, Any]:
        """End; return the samples as facts of a fingerprint, empty if there are none."""
        self._ends.set()
        self._begins.set()
        self.join()
        self._read_throttling()
        of_engine = self._container.facts if self._container else {}
        if not self._programs:
            return of_engine
        readable = {path: f"/proc/self/fd/{fd}" for path, fd in self._open.items()}
        if self._is_line:  # the same path on the host may be another file
            readable = {path: readable.get(path, "") for path in self._libraries | self._programs}
        found = library_facts(self._libraries, readable)
        hashes = {path: short_hash(readable.get(path, path)) for path in self._programs}
        if self._is_line:  # what could not be read is not another build
            listed = found["loaded_libraries"]
            found["loaded_libraries"] = [one for one in listed if not one.endswith(UNREADABLE)]
            hashes = {path: text for path, text in hashes.items() if text != UNREADABLE}
        return {
            **{key: value for key, value in found.items() if key not in OF_THE_READER},
            **self._busiest,
            **of_engine,
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
                self._cpu_group = group_of("cpu", str(self._container.pid))
                self._throttled_ns = throttled_ns(self._cpu_group)
            yield from _family(self._container.pid)

    def _read_throttling(self) -> None:
        """Read for how long a quota stopped the control group since the program began."""
        now = throttled_ns(self._cpu_group)
        if now is not None and self._throttled_ns is not None:
            # without the group only those above it are left
            self._stopped_ns = max(self._stopped_ns or 0, now - self._throttled_ns)

    def _read(self, pid: int) -> int:
        """Record the mapped files of a process; return its number of threads."""
        # gone meanwhile, or another user's
        with contextlib.suppress(OSError):
            libraries = mapped_libraries(str(pid))
            program = os.readlink(f"/proc/{pid}/exe")
            if self._is_line:
                self._keep_open(pid, [program, *libraries])
            self._programs.add(program)
            self._libraries.update(libraries)
            ticks = _ticks(pid)
            if self._is_line:
                self._order.setdefault(pid, len(self._order))
                self._alive.append((ticks, pid, program))
            elif ticks > self._most_ticks:
                affinity = {"cpu.affinity": sorted(os.sched_getaffinity(pid))}
                self._busiest = {**scheduling(str(pid)), **affinity}
                self._most_ticks = ticks
            is_work = os.path.basename(program) not in _NO_WORK
            return len(os.listdir(f"/proc/{pid}/task")) if is_work else 0
        return 0

    def _describe_line(self) -> None:
        """Record what confines the busiest process of a line that still lives.

        What only prepares the work, such as an entrypoint, has ended when the work runs; what has
        started the work, or serves its files, outlives it.
        """
        workers = [each for each in self._alive if os.path.basename(each[2]) not in _NO_WORK]
        if not workers:
            return
        _, pid, program = max(workers)
        described = self._described[0]
        has_ended = described not in (each[1] for each in workers)
        if described and has_ended and self._order[pid] < self._order[described]:
            return
        with contextlib.suppress(OSError):  # gone meanwhile
            if (pid, program) != self._described:
                facts = process_facts(pid)
                if os.readlink(f"/proc/{pid}/exe") != program:
                    return
                self._busiest, self._described = facts, (pid, program)
                self._busiest.update(python_facts(pid))  # slow, and not so important
                if self._container is None and _is_inside(pid):
                    # with the process goes its file system, also from what is open
                    for descriptor in self._open.values():
                        short_hash(f"/proc/self/fd/{descriptor}")
            # libraries may change these two while it runs
            self._busiest["cpu.affinity"] = sorted(os.sched_getaffinity(pid))
            self._busiest["process.major_faults"] = _major_faults(pid)
            hits = limit_hits(group_of("memory", str(pid)))
            self._busiest["cgroup.memory_limit_hits"] = hits

    def _keep_open(self, pid: int, paths: List[str]) -> None:
        """Open files of a line, whose paths mean nothing outside its mount namespace.

        Those of a container come before those of what starts it, at the same path.
        """
        is_inside = _is_inside(pid)
        for path in paths:
            is_new = path not in self._open or (is_inside and path in self._from_here)
            if is_new and len(self._open) < _MOST_FILES:
                with contextlib.suppress(OSError):
                    self._open[path] = opened(f"/proc/{pid}/root{path}")
                    (self._from_here.discard if is_inside else self._from_here.add)(path)


def _is_inside(pid: int) -> bool:
    """Return whether a process has other mounts than this one."""
    return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")


def _since_ms(began_s: float, text: str) -> Optional[int]:
    """Return how long after a time on the clock an engine's time is; None if it cannot be read."""
    found = re.match(
        r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d{1,6})?\d*\s*(Z|[+-]\d\d:?\d\d)", text
    )
    if found is None:
        return None
    day, second, fraction, zone = found.groups()
    zone = "+0000" if zone == "Z" else zone.replace(":", "")
    moment = datetime.strptime(
        f"{day} {second}{fraction or '.0'} {zone}", "%Y-%m-%d %H:%M:%S.%f %z"
    )
    return max(0, round(1000 * (moment.timestamp() - began_s)))


class Container:
    """The container of a line: asks its engine for the first process, and how it is run."""

    def __init__(self, engine: str, id_file: str) -> None:
        self._engine = engine.split()
        self._id_file = id_file
        self._next_s = 0.0
        self._is_elsewhere = False
        self.began_s = time.time()  # of the line
        self.pid = 0
        self.facts: Dict[str, Any] = {}

    @property
    def _has_kernel(self) -> bool:
        return any(name in str(self.facts.get("container.runtime")) for name in _OWN_KERNELS)

    def ask(self) -> bool:
        """Return whether the container runs; its engine is asked until it does."""
        identity = read_text(self._id_file)
        if self.pid or not identity or self._is_elsewhere or time.monotonic() < self._next_s:
            return bool(self.pid)
        self._next_s = time.monotonic() + _ASK_EVERY_S
        with contextlib.suppress(*_NO_ANSWER):
            asked = subprocess.run(
                [*self._engine, "inspect", identity],
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
                "container.storage": found.get("Driver")
                or found.get("GraphDriver", {}).get("Name"),
                "container.entrypoint": os.path.basename(found.get("Path") or ""),
                "container.ports": len(host.get("PortBindings") or ()),
                "container.volumes": sum(
                    one.get("Type") == "volume" for one in found.get("Mounts") or ()
                ),
                "container.start_ms": _since_ms(self.began_s, state.get("StartedAt") or ""),
                "container.log_driver": host["LogConfig"]["Type"],
                "container.network": _NETWORKS.get(host["NetworkMode"], host["NetworkMode"]),
                # of Podman, which calls all of them "oci" there
                "container.runtime": found.get("OCIRuntime") or host.get("Runtime"),
            }
            pid = state["Pid"]
            # An engine on another machine, or a runtime with its own kernel, names no process here.
            is_here = identity in (read_text(f"/proc/{pid}/cgroup") or "")
            self._is_elsewhere = bool(pid) and not (is_here and not self._has_kernel)
            self.pid = 0 if self._is_elsewhere else pid
        return bool(self.pid)


def _major_faults(pid: int) -> Optional[int]:
    """Return how often a process and its ended children waited for a page (proc_pid_stat(5))."""
    fields = (read_text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(fields[9]) + int(fields[10]) if fields else None


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
