"""The facts of another process, as /proc shows them; what this login may not read is None."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import Any, Dict, Iterator, List

from harness.attempts import attempt
from harness.facts.cgroups import limits, read_text
from harness.facts.confinement import mount_of, rights, scheduling, soft_limits
from harness.facts.machine import os_release, shared_memory_bytes
from harness.facts.modules import MOST_FILES, files_below
from harness.facts.packages import installed
from harness.facts.variables import environment_of, variables_of

_PYTHON = re.compile(r"(.*)/bin/python(3\.\d+)")
# Of a prefix, and of Debian's own Python, whose packages are for all minor versions.
_SITES = ("{prefix}/lib/python{version}/site-packages", "{prefix}/lib/python3/dist-packages",
          "{prefix}/local/lib/python{version}/dist-packages")  # fmt: skip


def process_facts(pid: int) -> Dict[str, Any]:
    """Return what confines a process: rights, limits, variables, file systems and network.

    Of a process of Python, also return its version and packages, and how many modules of the
    standard library have no byte code. What it has imported is not visible.
    """
    process = str(pid)
    folder, root = f"/proc/{process}", f"/proc/{process}/root"
    identity = re.findall(r"^[UG]id:\s+(\d+)", read_text(f"{folder}/status") or "", re.MULTILINE)
    given = attempt(lambda: environment_of(process))
    return {
        "uid": attempt(lambda: int(identity[0])),
        "gid": attempt(lambda: int(identity[1])),
        **rights(process),
        **scheduling(process),
        **soft_limits(pid),
        **limits(process),
        **({} if given is None else variables_of(given)),
        "cpu.affinity": attempt(lambda: sorted(os.sched_getaffinity(pid))),
        "mount.python": attempt(lambda: mount_of(f"{folder}/exe", process)),
        "mount.folder": attempt(lambda: mount_of(f"{folder}/cwd", process)),
        "mount.scratch": attempt(lambda: mount_of(f"{root}/tmp", process)),  # noqa: S108  what is mounted there
        "network.interfaces": attempt(lambda: _interfaces(folder)),
        "os.release": attempt(lambda: os_release(root)),
        "shm.bytes": attempt(lambda: shared_memory_bytes(root)),
        **(attempt(lambda: _python(folder, root, given or {})) or {}),
    }


def _interfaces(folder: str) -> str:
    """Return the network devices that a process sees (proc_pid_net(5))."""
    with open(f"{folder}/net/dev", encoding="utf-8") as file:
        names = (line.partition(":")[0].strip() for line in file if ":" in line)
        return ", ".join(sorted(name for name in names if not name.startswith("veth")))


def _python(folder: str, root: str, given: Dict[str, str]) -> Dict[str, Any]:
    """Return what is installed for the interpreter of a process; nothing if it is no Python."""
    path = os.readlink(f"{folder}/exe")
    program = _PYTHON.fullmatch(path)
    if program is None:
        return {}
    prefix, version = program.groups()
    prefixes = [*_environments(folder, given), prefix]
    sites = [root + site.format(prefix=one, version=version) for one in prefixes for site in _SITES]
    library = f"{root}{prefix}/lib/python{version}/"
    modules = islice(files_below(library), MOST_FILES)
    return {
        "python.executable": path,
        "python.version": version,
        "python.uncompiled": sum(not _has_byte_code(one, version) for _, one in modules),
        "packages": [str(one) for one in installed(sites)],
    }


def _environments(folder: str, given: Dict[str, str]) -> Iterator[str]:
    """Yield the virtual environments that a process may have been started from."""
    words: List[str] = (read_text(f"{folder}/cmdline") or "").split("\0")
    if words[0].startswith("/"):
        yield os.path.dirname(os.path.dirname(words[0]))
    if given.get("VIRTUAL_ENV"):
        yield given["VIRTUAL_ENV"]


def _has_byte_code(source: str, version: str) -> bool:
    """Return whether there is byte code of a source; whether it is of this source is not read."""
    folder, name = os.path.split(source)
    tag = f"cpython-{version.replace('.', '')}"
    return os.path.exists(os.path.join(folder, "__pycache__", f"{name[:-3]}.{tag}.pyc"))
