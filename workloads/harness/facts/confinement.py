"""How the environment confines this process: rights, filters, limits and file systems."""

from __future__ import annotations

import os
import re
import resource
import sys
import sysconfig
from functools import partial
from typing import Any

from harness.attempts import attempt
from harness.facts.cgroups import read_text
from harness.facts.variables import scratch_folder

# Per mount and per file system (mount(8), nfs(5)): what can be felt and names no path and no id.
_FELT_OPTION = re.compile(
    r"ro|rw|nosuid|nodev|noexec|noatime|relatime|strictatime|nodiratime|lazytime|sync|dirsync|dax"
    r"|volatile|metacopy=on|(data|compress|vers|proto|rsize|wsize|cache)=[\w.:-]+"
)


# sched.h; of the kernel's own threads there are others.
_POLICIES = {"0": "other", "1": "fifo", "2": "rr", "3": "batch", "5": "idle", "6": "deadline"}


def confinement(data: str | None) -> dict[str, Any]:
    """Return the facts of this process; `data` is the folder that the workload reads."""
    return {
        **rights(),
        "uid": os.getuid(),  # gVisor's status names none
        "gid": os.getgid(),
        **scheduling(),
        **soft_limits(),
        "mount.python": attempt(lambda: mount_of(os.path.realpath(sys.executable))),
        "mount.packages": attempt(lambda: mount_of(sysconfig.get_path("purelib"))),
        "mount.data": None if data is None else attempt(lambda: mount_of(data)),
        "mount.scratch": attempt(lambda: mount_of(scratch_folder())),
        "network.interfaces": attempt(interfaces),
    }


def interfaces(process: str = "self") -> str:
    """Return the network devices of a process, but the host's ends of those of containers."""
    with open(f"/proc/{process}/net/dev", encoding="utf-8") as file:
        names = [line.partition(":")[0].strip() for line in file if ":" in line]
    return ", ".join(sorted(name for name in names if not name.startswith("veth")))


def scheduling(process: str = "self") -> dict[str, Any]:
    """Return how the kernel runs a process, as set by `nice`, `chrt` and prctl(2)."""
    status = read_text(f"/proc/{process}/status") or ""
    fields = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.MULTILINE))
    # from the third field of proc_pid_stat(5) on: a name before it may hold blanks
    stat = (read_text(f"/proc/{process}/stat") or "").rpartition(")")[2].split()
    return {
        "process.nice": attempt(lambda: int(stat[16])),
        "process.scheduler": attempt(lambda: _POLICIES.get(stat[38], stat[38])),
        "thp.is_disabled": attempt(lambda: fields["THP_enabled"] == "0"),
    }


def rights(process: str = "self") -> dict[str, Any]:
    """Return what the kernel lets a process do, and the number of its threads."""
    status = read_text(f"/proc/{process}/status") or ""
    fields = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.MULTILINE))
    return {
        "uid": attempt(lambda: int(fields["Uid"].split()[0])),
        "gid": attempt(lambda: int(fields["Gid"].split()[0])),
        "seccomp.mode": attempt(lambda: int(fields["Seccomp"])),
        "seccomp.filters": attempt(lambda: int(fields["Seccomp_filters"])),
        "no_new_privs": attempt(lambda: bool(int(fields["NoNewPrivs"]))),
        "capabilities.effective": fields.get("CapEff"),
        "speculation.ssb": fields.get("Speculation_Store_Bypass"),
        "speculation.indirect_branch": fields.get("SpeculationIndirectBranch"),
        "lsm.label": security_label(
            (read_text(f"/proc/{process}/attr/current") or "").rstrip("\0")
        ),
        "threads.alive": attempt(lambda: len(os.listdir(f"/proc/{process}/task"))),
    }


def security_label(text: str) -> str | None:
    """Return the label of AppArmor or SELinux without the categories of SELinux.

    Engines draw these at random for each container (container_selinux(8)).
    """
    context = re.fullmatch(r"(\w+:\w+:\w+):s\d\S*", text)
    return context[1] if context else text or None


def soft_limits(process: int = 0) -> dict[str, Any]:
    """Return all soft limits of a process, by default this one.

    The limit of files has a second name, from BSD.
    """
    names = {name for name in dir(resource) if name.startswith("RLIMIT_")} - {"RLIMIT_OFILE"}
    return {
        f"limits.{name[7:].lower()}": attempt(partial(_soft, process, getattr(resource, name)))
        for name in names
    }


def _soft(process: int, kind: int) -> int | str:
    value = resource.prlimit(process, kind)[0]
    return "unlimited" if value == resource.RLIM_INFINITY else value


def mount_of(path: str, process: str = "self") -> str | None:
    """Return `type options` of the mount of a process that holds a path, which must exist.

    The kernel is asked for its number (proc_pid_fdinfo(5)): the longest name would be wrong where
    a later mount hides an earlier one.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        info = read_text(f"/proc/self/fdinfo/{fd}") or ""
    finally:
        os.close(fd)
    number = re.search(r"mnt_id:\s*(\d+)", info)
    for line in (read_text(f"/proc/{process}/mountinfo") or "").splitlines():
        if number and line.startswith(f"{number[1]} "):
            return describe_mount(line)
    return None


def describe_mount(line: str) -> str:
    """Return `type options` of a line of mountinfo, without what names a path or an id."""
    left, _, right = line.partition(" - ")
    kind, _, of_system = right.split(" ", 2)
    options = {*left.split()[5].split(","), *of_system.split(",")}
    felt = {option for option in options if _FELT_OPTION.fullmatch(option)}
    if "ro" in felt:  # one of mount and file system is enough
        felt.discard("rw")
    return f"{kind} {','.join(sorted(felt))}"
