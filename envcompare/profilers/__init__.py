"""The Profiler seam: what looks into a few steps of a worker, around its process or inside it.

A program around it is found on the host, started with the worker for a pass, and leaves a report
that the host's own copy of the program exports. A container may write anything into its scratch
folder, at any time: links, pipes, files without an end. So nothing there is opened by its name:
what an arm left is moved into a quarantine that no container is shown, and exported in there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from envcompare.command import Command
from envcompare.environments import Check, ask, unusable
from envcompare.errors import (
    CopyError,
    NothingTracedError,
    Problem,
    ProfileError,
    WorkloadError,
)
from envcompare.run_folder.profiles import PassName, Profile
from envcompare.stack import Mount
from envcompare.transport import Transport, make_new_folder, remove_folder
from envcompare.transport import run as run_command
from envcompare.transport.copies import FileType, RemoteFile, fetch, look, take

_T = TypeVar("_T")
KEPT_BYTES = 32 << 20  # of a raw file, compressed by its tool; a larger one is read and left
# The few steps of a profile leave some MB, at the most some hundred; what an arm leaves shall not
# fill the disk here.
MOST_BYTES = 1 << 30
READ_LOG: Final = "read its output in the log of the arm in the run folder"
_FILE_TYPES: Final = {
    FileType.FOLDER: "a folder",
    FileType.LINK: "a symbolic link",
    FileType.PIPE: "a named pipe",
    FileType.SOCKET: "a socket",
    FileType.BLOCK_DEVICE: "a block device",
    FileType.CHARACTER_DEVICE: "a character device",
    FileType.REGULAR: "a file with a second name (a hard link)",
}
DISTRUST: Final = (
    "do not trust what this arm reports; check what its Python runs at startup, such as "
    "sitecustomize.py and .pth files"
)
_EXPORT_LIMIT_S = 600.0
# The tools write to stdout, which belongs to the worker's protocol: they get stderr, and hand on
# the worker's stdout as descriptor 3, which it takes back.
_AROUND = 'exec "$@" 3>&1 1>&2'
_INSIDE = 'exec "$@" 1>&3 3>&-'
# What PATH leads to is often a script that picks the newest of several installations, so a search
# looks for the program itself. $1 stands before every path; facts are told as name, tab, value.
_SEARCH = r"""
root=$1
programs() { for one; do [ ! -x "$one" ] || printf '%s\n' "$one"; done; }
newest() { [ ! -x "$1" ] && [ $# = 1 ] || programs "$@" | sort -V | tail -n 1; }
first() { for one; do [ -z "$one" ] || { printf '%s\n' "$one"; break; }; done; }
on_path() { path=$(command -v "$1") && readlink -f -- "$path"; }
tell() { [ -z "$2" ] || printf '%s\t%s\n' "$1" "$2"; }
tell system "$(sed -n 's/^ID="\{0,1\}\([a-z]*\).*/\1/p' "$root/etc/os-release" 2>/dev/null)"
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
    cuda: str = ""  # the newest CUDA whose tracing library it holds, such as "11.8"

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
    second: tuple[str, ...] = ()  # arguments of another try, where the first saw nothing

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """The files of a tool: its own report, and what a script of the host makes of it to be read.

    The script gets the program, the folder with the report, and the importer.
    """

    script: str
    report: str
    export: str
    unfinished: str = ""  # what the importer makes the report of, where the tool could not


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The report of a tool, and what the host's tool has made of it; both in the quarantine."""

    report: RemoteFile
    export: RemoteFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a profiler inside the worker has answered after a few steps."""

    kind: Pass
    values: dict[str, Any]  # as the profiler gave them
    steps: int
    reason: str = ""  # what the values lack, and why
    trace: Path | None = None  # of a GPU, or of processes that exchange data


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A private folder on a host for what an arm has left: no container is shown it."""

    transport: Transport
    arm: str
    folder: str

    @classmethod
    @contextmanager
    def empty(cls, transport: Transport, arm: str, folder: str) -> Iterator[Quarantine]:
        """Give an empty one at that path, and remove it with all that is in it.

        Raises StackError where it cannot be made.
        """
        make_new_folder(transport, folder)
        try:
            yield cls(transport=transport, arm=arm, folder=folder)
        finally:
            remove_folder(transport, folder)

    def take(self, place: str, *names: str) -> RemoteFile | None:
        """Take the file of these names below a folder that the arm may write to.

        None where there is nothing. Raises WorkloadError of the phase `protocol` for what is no
        regular file or has a second name, ProfileError where it cannot be moved or is too large.
        """
        target = f"{self.folder}/{names[-1]}"
        try:
            taken = take(self.transport, place, names=names, target=target)
        except CopyError as error:
            raise _unfetched(error) from error
        if taken is not None and not taken.is_plain:
            raise WorkloadError(
                f"{self.arm}: the profile {taken.name} is {_FILE_TYPES[taken.type]}; it was not "
                "read",
                details="a profiler writes regular files: another program in the arm put it there",
                hint=DISTRUST,
                phase="protocol",
            )
        return taken and _of_allowed_size(taken)

    def written(self, name: str) -> RemoteFile:
        """Return what the host's own tool has written here; raises ProfileError without one."""
        file = look(self.transport, f"{self.folder}/{name}")
        if file is None or not file.is_plain:
            raise ProfileError(f"the tool on the host wrote no {name}", hint=READ_LOG)
        return _of_allowed_size(file)

    def fetch(self, taken: RemoteFile, target: Path) -> None:
        """Bring a file of the quarantine here; raises ProfileError where that fails.

        Raises TransportError when the host is lost.
        """
        try:
            fetch(self.transport, taken, target)
        except CopyError as error:
            raise _unfetched(error) from error


class Profiler(Protocol):
    """A program of the host that is started around a worker, which marks the steps for it."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def discover(self, transport: Transport, compute_capability: str = "") -> Tool | Check:
        """Return the tool of a host, with its metrics for a GPU if one is named, or why not."""
        ...

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun | Check:
        """Return how the tool is started for a pass and writes to `folder`, or why not; pure."""
        ...

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, said: str) -> Exported:
        """Take what the tool left in its folder, and export it; `said` is what it wrote beside.

        Raises ProfileError where nothing can be read, WorkloadError where an arm put something
        else in its place, TransportError when the host is lost and CommandTimeoutError when the
        export takes too long.
        """
        ...

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read an export that was brought here.

        Raises ProfileError where it cannot be trusted, NothingTracedError where no kernel is in it.
        """
        ...

    def explain(self, said: str) -> Problem | None:
        """Return what the tool complained of in a log, and what to try; None where it did not."""
        ...


class WorkerProfiler(Protocol):
    """A profiler inside the worker, which answers with what it found."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def read(self, answer: Answer) -> Profile | None:
        """Return the profile in an answer; None where nothing was found.

        Raises ProfileError where answer or trace cannot be trusted.
        """
        ...


def not_installed(title: str, package: str) -> dict[str, Check]:
    """Return that a tool of NVIDIA's is missing and its remedy, by the ID in /etc/os-release.

    Ubuntu's own packages are years old; each package of NVIDIA's CUDA repository has the version in
    its name, as nsight-compute-2025.4.1 has.
    """
    brief, tool = f"{title} is not installed", package.removeprefix("nsight-")
    ours = f"install it from https://developer.nvidia.com/nsight-{tool}, or, on Debian, "
    newest = f'"$(apt-cache pkgnames {package}-20 | sort -V | tail -n 1)"'
    return {
        "": unusable(brief, f"{ours}sudo apt-get install {package} (non-free)"),
        "ubuntu": unusable(
            brief,
            "add the CUDA repository (https://developer.nvidia.com/cuda-downloads) and install the "
            f"newest there: sudo apt-get install {newest}",
        ),
    }


def find_tool(
    transport: Transport,
    search: str,
    *,
    name: str,
    missing: Mapping[str, Check],
    root: str = "",
) -> Tool | Check:
    """Return the tool that a search on the host tells of, or else `missing` for its distribution.

    `search` is a shell script that tells program, folder, version, options, importer and CUDA by
    the functions of `_SEARCH`; `root` stands before the places it looks in.
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
        return missing.get(facts.get("system", "")) or missing[""]
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
        cuda=facts.get("cuda", ""),
    )


def export_report(
    quarantine: Quarantine, run: ProfilerRun, files: ReportFiles, *, complaint: Problem | None
) -> Exported:
    """Take the report that a tool left in its folder, and export it with the host's own tool.

    `complaint` explains a report that is missing. Raises as `Profiler.export` does.
    """
    _take_report(quarantine, run, files, complaint)
    tool = run.tool
    words = (tool.program, quarantine.folder, tool.importer)
    variables = (("LC_ALL", "C"), ("TMPDIR", quarantine.folder))
    command = Command(argv=("sh", "-c", files.script, "sh", *words), env=variables)
    result = run_command(quarantine.transport, command, timeout_s=_EXPORT_LIMIT_S)
    if not result.succeeded:
        raise ProfileError(
            f"the report of {tool.name} cannot be exported",
            details=result.tail(1),
            hint=f"install what {tool.importer or tool.program} needs on the host",
        )
    return Exported(
        report=quarantine.written(files.report), export=quarantine.written(files.export)
    )


def _take_report(
    quarantine: Quarantine, run: ProfilerRun, files: ReportFiles, complaint: Problem | None
) -> None:
    place, _, folder = run.folder.rpartition("/")
    names = (files.report, *((files.unfinished,) if run.tool.importer else ()))
    if not any(name and quarantine.take(place, folder, name) for name in names):
        raise NothingTracedError(
            f"{run.tool.name} left no report",
            details=(complaint and complaint.details) or "it did not say why",
            hint=complaint.hint if complaint else READ_LOG,
        )


def converted(values: dict[str, Any], kind: type[_T], *, what: str) -> _T:
    """Return what a worker gave as a type; raises ProfileError where it is something else."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ProfileError(
            f"{what} cannot be read from the worker's answer",
            details=str(error),
            hint="give the workloads of this version of envcompare to the host",
        ) from error


def _of_allowed_size(taken: RemoteFile) -> RemoteFile:
    if taken.size_bytes <= MOST_BYTES:
        return taken
    raise ProfileError(
        f"the file {taken.name} is too large to be read",
        details=f"it has {taken.size_bytes / 2**30:.1f} GiB, and the limit is "
        f"{MOST_BYTES >> 30} GiB",
        hint="profile smaller steps, for example with a smaller batch by --set",
    )


def _unfetched(error: CopyError) -> ProfileError:
    return ProfileError("the file could not be fetched", details=error.details, hint=error.hint)
