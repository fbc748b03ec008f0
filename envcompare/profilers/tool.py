"""A profiler's program on a host: found there, and started around a worker for a pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from envcompare.command import Command
from envcompare.environments import Check, unusable
from envcompare.environments.running import ask
from envcompare.run_folder.profiles import PassName
from envcompare.stack import Mount
from envcompare.transport import Transport

# The tools write to stdout, which belongs to the worker's protocol: they get stderr, and hand on
# the worker's stdout as descriptor 3, which it takes back.
_AROUND = 'exec "$@" 3>&1 1>&2'
_INSIDE = 'exec "$@" 1>&3 3>&-'
# What PATH leads to is often a script that picks the newest of several installations, so a search
# looks for the program itself. $1 stands before every path; facts are told as name, tab, value.
_SEARCH = r"""
root=$1
newest() { for one; do [ ! -x "$one" ] || printf '%s\n' "$one"; done | sort -V | tail -n 1; }
first() { for one; do [ -z "$one" ] || { printf '%s\n' "$one"; break; }; done; }
on_path() { path=$(command -v "$1") && readlink -f -- "$path"; }
tell() { [ -z "$2" ] || printf '%s\t%s\n' "$1" "$2"; }
options() { grep -oE '(^|[[:space:]])--[a-z][a-z-]+' | sort -u | tr -s '[:space:]' ' '; }
"""
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One look at a few steps of every arm, which leaves a record of this name."""

    name: PassName
    limit_s: float = 300.0  # how long it may take beside the steps themselves
    needs_gpu: bool = True  # else it looks into work of the CPU too, and needs no marks
    is_counting: bool = False  # reads hardware counters: each kernel is run several times for it
    most_launches: int | None = None  # of kernels, after which the tool stops counting
    file: str = ""  # that the worker writes, where the profiler is inside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A profiler's program on a host; in a container it is started by the same path."""

    name: str
    program: str
    folder: str  # to be shown as a whole, at the same path
    version: str
    options: tuple[str, ...] = ()  # that it knows, with their dashes
    importer: str = ""  # on the host: makes the report that the tool could not make inside
    metrics: Mapping[PassName, tuple[str, ...]] = field(default_factory=dict)
    reason: str = ""  # why metrics are missing

    @property
    def check(self) -> Check:
        """Return the tool as a check that it passed."""
        return Check(version=f"{self.version} ({self.program})")

    def knows(self, option: str) -> bool:
        """Tell whether this version has an option."""
        return option in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerRun:
    """One start of a tool around a worker: its arguments, and the folder it writes to."""

    kind: Pass
    tool: Tool
    arguments: tuple[str, ...]
    folder: str  # of the host and writable inside: for its file, and for what it needs meanwhile
    capabilities: tuple[str, ...] = ()  # that a container has to have for it

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return what a container must be shown: the tool's folder as a whole, by its own name."""
        return (Mount(path=self.tool.folder),)

    def wrap(self, command: Command) -> Command:
        """Return the tool around a command, which keeps its stdin, stdout and variables; pure."""
        inner = ("sh", "-c", _INSIDE, "sh", *command.argv)
        outer = ("sh", "-c", _AROUND, "sh")
        # numbers follow the locale, and a lock in a shared /tmp would be another user's
        variables = (("LC_ALL", "C"), ("TMPDIR", self.folder), *command.env)
        argv = (*outer, self.tool.program, *self.arguments, *inner)
        return replace(command, argv=argv, env=variables)


def find_tool(
    transport: Transport, search: str, *, name: str, missing: Check, root: str = ""
) -> Tool | Check:
    """Return the tool that a search on the host tells of, or else `missing`.

    `search` is a shell script that tells program, folder, version, options and importer by the
    functions of `_SEARCH`; `root` stands before the places it looks in.
    """
    command = Command(argv=("sh", "-c", f"{_SEARCH}{search}\nexit 0\n", "sh", root))
    hint = f"run {name} --version there by hand"
    result = ask(transport, command, what=f"the search for {name}", hint=hint)
    if isinstance(result, Check):
        return result
    lines = (line.partition("\t") for line in result.stdout.splitlines())
    facts = {fact: value for fact, _, value in lines}
    program, said = facts.get("program", ""), facts.get("version", "")
    version = _NUMBERS.search(said)
    if not program:
        return missing
    if version is None:
        return unusable(
            f"{program} does not start: {said or 'it says nothing'}",
            f"run {program} --version there, and install what it misses",
        )
    return Tool(
        name=name,
        program=program,
        folder=facts["folder"],
        version=version[0],
        options=tuple(facts.get("options", "").split()),
        importer=facts.get("importer", ""),
    )
