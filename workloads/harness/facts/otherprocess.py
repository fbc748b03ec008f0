"""The facts of another process, as /proc shows them; what this login may not read is None."""

from __future__ import annotations

import os
import re
from functools import partial
from itertools import chain, islice
from typing import Any, Dict, Iterable, Iterator, List

from harness.attempts import attempt
from harness.facts.cgroups import limits, read_text, within
from harness.facts.confinement import interfaces, mount_of, rights, scheduling, soft_limits
from harness.facts.libraries import library_facts, mapped_libraries, short_hash
from harness.facts.machine import os_release, shared_memory_bytes
from harness.facts.modules import files_below
from harness.facts.packages import installed
from harness.facts.variables import environment_of, variables_of

_PYTHON = re.compile(r"(.*)/bin/python(3\.\d+)\S*")
# `library_facts` says these of the interpreter that reads.
OF_THE_READER = ("libc.version", "python.libpython_sha256")
# Of a prefix, and of Debian's own Python, whose packages are for all minor versions.
_SITES = ("{prefix}/lib/python{version}/site-packages",
          "{prefix}/local/lib/python{version}/dist-packages",
          "{prefix}/lib/python3/dist-packages")  # fmt: skip
_MOST_MODULES = 1500  # a process that ends meanwhile is not described
_CUSTOM = ("sitecustomize.py", "usercustomize.py")  # run by `site` as Python starts
_SHOWS_SYSTEM = re.compile(
    r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE
)
_IMPORTS = re.compile(r"^import[ \t]", re.MULTILINE)  # the lines of a .pth file that it runs


def process_facts(pid: int) -> Dict[str, Any]:
    """Return what confines a process: rights, limits, variables, file systems and network."""
    process = str(pid)
    folder, root = f"/proc/{process}", f"/proc/{process}/root"
    given = attempt(lambda: environment_of(process)) or None  # one that ends has none
    return {
        **rights(process),
        **scheduling(process),
        **soft_limits(pid),
        **limits(process),
        **({} if given is None else variables_of(given)),
        "cpu.affinity": attempt(lambda: sorted(os.sched_getaffinity(pid))),
        "mount.python": attempt(lambda: mount_of(f"{folder}/exe", process)),
        "mount.folder": attempt(lambda: mount_of(f"{folder}/cwd", process)),
        "mount.scratch": attempt(lambda: mount_of(f"{root}/tmp", process)),  # noqa: S108  what is mounted there
        "network.interfaces": attempt(lambda: interfaces(process)),
        "network.resolvers": attempt(lambda: _resolvers(root)),
        "home.is_writable": attempt(lambda: _is_writable(root, (given or {})["HOME"], process)),
        "os.release": attempt(lambda: os_release(root)),
        "shm.bytes": attempt(lambda: shared_memory_bytes(root)),
    }


def python_facts(pid: int) -> Dict[str, Any]:
    """Return version and packages of a process of Python; nothing of another one.

    Also return how many modules of the standard library have no byte code. What the process has
    imported is not visible.
    """
    folder = f"/proc/{pid}"
    given = attempt(lambda: environment_of(str(pid))) or {}
    found = attempt(lambda: _python(folder, f"{folder}/root", given)) or {}
    # of a process that ended meanwhile, some files only seem to be missing
    return found if attempt(lambda: os.readlink(f"{folder}/exe")) else {}


def _resolvers(root: str) -> str:
    """Return the name servers that programs ask, in this order, and how (resolv.conf(5))."""
    text = read_text(within(root, "/etc/resolv.conf"))
    if text is None:
        raise FileNotFoundError("resolv.conf")
    servers = ", ".join(re.findall(r"^\s*nameserver\s+(\S+)", text, re.MULTILINE)) or "none"
    options = " ".join(re.findall(r"^\s*options\s+(.*\S)", text, re.MULTILINE))
    return f"{servers} ({options})" if options else servers


def _is_writable(root: str, home: str, process: str) -> bool:
    """Return whether a process may write to its home, as its owner, its group or anyone."""
    status = read_text(f"/proc/{process}/status") or ""
    uid, gid = (int(one) for one in re.findall(r"^[UG]id:\s+\d+\s+(\d+)", status, re.MULTILINE))
    home = within(root, home)
    found = os.stat(home)
    mine = (found.st_uid == uid) * 0o200 | (found.st_gid == gid) * 0o020 | 0o002
    is_read_only = os.statvfs(home).f_flag & os.ST_RDONLY
    return not is_read_only and (uid == 0 or bool(found.st_mode & mine))


def software_facts(pid: int) -> Dict[str, Any]:
    """Return the program and the libraries that a process has mapped now, by content."""
    root = f"/proc/{pid}/root"
    paths = attempt(lambda: mapped_libraries(str(pid))) or []
    program = attempt(lambda: os.readlink(f"/proc/{pid}/exe"))
    facts = library_facts(paths, {path: root + path for path in paths})
    if program is not None:
        facts["programs"] = [f"{os.path.basename(program)} {short_hash(root + program)}"]
    return {key: value for key, value in facts.items() if key not in OF_THE_READER}


def _python(folder: str, root: str, given: Dict[str, str]) -> Dict[str, Any]:
    """Return what is installed for the interpreter of a process; nothing if it is no Python."""
    path = os.readlink(f"{folder}/exe")
    program = _PYTHON.fullmatch(path)
    if program is None:
        return {}
    prefix, version = program.groups()
    sites = [
        root + site.format(prefix=one, version=version)
        for one in _prefixes(folder, root, given, prefix)
        for site in _SITES
    ]
    library = f"{root}{prefix}/lib/python{version}/"
    paths = [*sites, *_own_paths(root, given)]
    below = chain.from_iterable(files_below(f"{one}/") for one in [library.rstrip("/"), *paths])
    modules = islice(below, _MOST_MODULES)
    return {
        "python.executable": path,
        "python.version": version,
        "python.uncompiled": sum(not _has_byte_code(one, version) for _, one in modules),
        "python.start_files": sorted(_start_files([library, *paths], root)),
        "packages": [str(one) for one in installed(sites)],
        # elsewhere its paths lead to other files
        "packages.folders": [one[len(root) :] for one in sites if os.path.isdir(one)]
        if attempt(lambda: os.path.samefile(root, "/"))
        else None,
    }


def _own_paths(root: str, given: Dict[str, str]) -> List[str]:
    """Return the absolute folders that PYTHONPATH adds."""
    paths = given.get("PYTHONPATH", "").split(os.pathsep)
    return [root + path for path in paths if os.path.isabs(path)]


def _start_files(folders: Iterable[str], root: str) -> Iterator[str]:
    """Yield the files in these folders that Python runs as it starts, with their hashes."""
    for folder in dict.fromkeys(folders):
        names = attempt(partial(os.listdir, within(root, folder[len(root) :]))) or []
        for name in names:
            path = within(root, os.path.join(folder[len(root) :], name))
            if name in _CUSTOM or (
                name.endswith(".pth") and _IMPORTS.search(read_text(path) or "")
            ):
                yield f"{name} {short_hash(path)}"


def _prefixes(folder: str, root: str, given: Dict[str, str], base: str) -> Iterator[str]:
    """Yield where an interpreter finds packages: a virtual environment may hide the others."""
    name = (read_text(f"{folder}/cmdline") or "").split("\0")[0]
    here = os.readlink(f"{folder}/cwd")
    paths = [here] if "/" in name else given.get("PATH", "").split(os.pathsep)
    for path in paths:
        program = os.path.normpath(os.path.join(path, name))
        if os.path.lexists(root + program):
            prefix = os.path.dirname(os.path.dirname(program))
            settings = read_text(within(root, f"{prefix}/pyvenv.cfg"))
            if settings is not None:
                yield prefix
                if not _SHOWS_SYSTEM.search(settings):
                    return
            break
    if given.get("HOME"):
        yield f"{given['HOME']}/.local"
    yield base


def _has_byte_code(source: str, version: str) -> bool:
    """Return whether there is byte code of a source; whether it is of this source is not read."""
    folder, name = os.path.split(source)
    tag = f"cpython-{version.replace('.', '')}"
    return os.path.exists(os.path.join(folder, "__pycache__", f"{name[:-3]}.{tag}.pyc"))
