"""Limits and counters of the control groups of this process, in version 1 and 2."""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from itertools import islice
from typing import NamedTuple, Sequence

# The inode of the first cgroup namespace, fixed in the kernel (include/linux/proc_ns.h).
FIRST_NAMESPACE = "cgroup:[4026531835]"
# Version 1 writes "no limit" as the largest multiple of a page.
NO_LIMIT_BYTES = 1 << 62
CHUNK = 1 << 16  # characters
MOST_CHUNKS = 256
MOST_LINKS = 40  # as in the kernel


def opened(path: str) -> int:
    """Return a descriptor to read a regular file.

    Raises OSError for others: in a container, a path may lead to a pipe or a device, which never
    end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def read_text(path: str) -> str | None:
    """Return the stripped content of a small file, or None if it cannot be read."""
    try:
        with open(opened(path), encoding="utf-8", errors="replace") as file:
            parts = iter(partial(file.read, CHUNK), "")  # sysctl refuses a large read
            return "".join(islice(parts, MOST_CHUNKS)).strip()
    except OSError:
        return None


def within(root: str, path: str) -> str:
    """Return where a path leads below a root, where its links are those of processes there.

    Raises OSError for links that lead to themselves (path_resolution(7)).
    """
    here, links = "", 0
    parts = path.split("/")[::-1]
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.rpartition("/")[0]
        if part in ("", ".", ".."):
            continue
        try:
            target = os.readlink(f"{root}{here}/{part}")
        except OSError:  # no link
            here = f"{here}/{part}"
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        here = "" if target.startswith("/") else here
        parts += target.split("/")[::-1]
    return root + here


class Cgroup(NamedTuple):
    """The folder of one controller for this process, and the visible folders above it."""

    version: int
    folders: Sequence[str]

    def read(self, name: str) -> str | None:
        """Return the content of a file in the own folder."""
        return read_text(os.path.join(self.folders[0], name)) if self.folders else None

    def read_all(self, name: str) -> list[str]:
        """Return the content of the file from the own folder upwards, where it is there."""
        texts = (read_text(os.path.join(folder, name)) for folder in self.folders)
        return [text for text in texts if text is not None]


def group_of(controller: str, process: str = "self") -> Cgroup:
    """Return the group of a process, as this one sees it; version 0 and no folder for none."""
    for version, name in ((1, controller), (2, "")):
        path = _path_of(name, process)
        mount = _mount(version, name)
        if path is not None and mount is not None:
            return Cgroup(version, _folders(path, *mount))
    return Cgroup(0, ())


def throttled_ns(cpu: Cgroup) -> int | None:
    """Return for how long a CPU quota has stopped this group or one above it, summed over CPUs."""
    key, factor = ("throttled_usec", 1000) if cpu.version == 2 else ("throttled_time", 1)
    total = _in_stat(cpu, key)
    return None if total is None else total * factor


def limit_hits(memory: Cgroup) -> int | None:
    """Return how often this group reached its limit of memory, and pages had to go."""
    if memory.version == 2:
        return _field(memory.read("memory.events") or "", "max")
    return _number(memory.read("memory.failcnt"))


def throttled_periods(cpu: Cgroup) -> int | None:
    """Return in how many periods a CPU quota has stopped this group or one above it."""
    return _in_stat(cpu, "nr_throttled")


def _in_stat(cpu: Cgroup, key: str) -> int | None:
    found = [_field(text, key) for text in cpu.read_all("cpu.stat")]
    known = [value for value in found if value is not None]
    return sum(known) if known else None


def memory_peak_bytes() -> int | None:
    """Return the peak of the group's memory, page cache included; None outside any group."""
    memory = group_of("memory")
    if _is_whole_machine("memory" if memory.version == 1 else ""):
        return None
    return _number(memory.read("memory.peak" if memory.version == 2 else _V1_PEAK))


def limits(process: str = "self") -> dict[str, object]:
    """Return the fingerprint keys of the control groups; the tightest visible limit counts."""
    cpu, memory, cpuset, processes, disk = (
        group_of(name, process) for name in ("cpu", "memory", "cpuset", "pids", "blkio")
    )
    counts = [top for top in map(_number, processes.read_all("pids.max")) if top is not None]
    second = memory.version == 2
    tops = [_number(text) for text in memory.read_all("memory.max" if second else _V1_LIMIT)]
    bytes_limits = [top for top in tops if top is not None and top < NO_LIMIT_BYTES]
    return {
        "cgroup.version": memory.version if memory.folders else None,
        "cgroup.cpu_quota": cpu_quota(cpu),
        "cgroup.cpu_weight": _number(cpu.read("cpu.weight" if cpu.version == 2 else "cpu.shares")),
        "cgroup.io_weight": _first_number(disk.read("io.weight" if disk.version == 2 else _V1_IO)),
        "cgroup.cpuset": cpuset.read("cpuset.cpus.effective") or cpuset.read("cpuset.cpus"),
        "cgroup.mems": cpuset.read("cpuset.mems.effective") or cpuset.read("cpuset.mems"),
        "cgroup.memory_limit_bytes": min(bytes_limits, default=_no_limit(memory)),
        "cgroup.pids_limit": min(counts, default=_no_limit(processes)),
    }


_V1_IO = "blkio.weight"
_V1_PEAK = "memory.max_usage_in_bytes"
_V1_LIMIT = "memory.limit_in_bytes"


def _folders(path: str, root: str, point: str) -> list[str]:
    """Return the folders from the own path up to the mount point, whose own path is `root`."""
    below = os.path.relpath(path, root) if _is_below(path, root) else "."
    parts = [] if below == "." or ".." in below else below.split("/")
    folders = [os.path.join(point, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in folders if os.path.isdir(folder)]


def _path_of(name: str, process: str = "self") -> str | None:
    for line in (read_text(f"/proc/{process}/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if name in names.split(","):
            return path
    return None


def _mount(version: int, name: str) -> tuple[str, str] | None:
    """Return the root and the mount point of a hierarchy (proc_pid_mountinfo(5))."""
    kind = "cgroup" if version == 1 else "cgroup2"
    for line in (read_text("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, system = left.split(), right.split()
        if system[0] == kind and (version == 2 or name in system[-1].split(",")):
            return fields[3], fields[4]
    return None


def _is_below(path: str, root: str) -> bool:
    return root in {"/", path} or path.startswith(root + "/")


def _is_whole_machine(name: str) -> bool:
    """Return whether the own group is the root of all, where a peak would be the machine's."""
    try:
        return _path_of(name) == "/" and os.readlink("/proc/self/ns/cgroup") == FIRST_NAMESPACE
    except OSError:
        return False


def cpu_quota(cpu: Cgroup) -> object:
    """Return the tightest quota in CPUs, `unlimited`, or None if nothing can be read."""
    if cpu.version == 2:
        pairs = [text.split() for text in cpu.read_all("cpu.max")]
    else:
        quotas, periods = cpu.read_all("cpu.cfs_quota_us"), cpu.read_all("cpu.cfs_period_us")
        pairs = [list(pair) for pair in zip(quotas, periods)]
    shares = [int(quota) / int(period) for quota, period in pairs if quota not in {"max", "-1"}]
    if shares:
        return min(shares)
    return _no_limit(cpu)


def _no_limit(group: Cgroup) -> str | None:
    return "unlimited" if group.folders else None


def _field(text: str, key: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return _number(value)
    return None


def _first_number(text: str | None) -> int | None:
    """Return the weight that holds for most devices: `default 100`, or the number alone."""
    lines = (text or "").splitlines()
    return _number(lines[0].removeprefix("default ")) if lines else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
