"""The profiler interfaces: programs started around a worker, and profilers inside it.

A program is found on the host and started around the worker for one pass. The host's copy of the
program exports its report. A container may write anything into its scratch folder at any time:
links, pipes, endless files. So nothing there is opened by name: output is first moved into a
quarantine that no container can see, and exported there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec

from envcompare.environments import Check, ask, unusable
from envcompare.errors import (
    DISTRUST,
    CopyError,
    NothingTracedError,
    Problem,
    ProfileError,
    WorkloadError,
)
from envcompare.run_folder.profiles import PassName, Profile
from envcompare.stack import Mount
from envcompare.text import Command
from envcompare.transport import Transport, make_new_folder, remove_folder
from envcompare.transport import run as run_command
from envcompare.transport.copies import FileType, RemoteFile, fetch, look, take

_T = TypeVar("_T")
KEPT_BYTES = 32 << 20  # of a raw file, compressed by its tool; a larger one is read but not kept
# A profile of a few steps takes at most some hundred MB; an arm must not fill the local disk.
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
_EXPORT_LIMIT_S = 600.0
# The tools print to stdout, which the worker's protocol needs. So they get stderr as stdout, and
# pass the worker's stdout on as descriptor 3, which the worker takes back.
_AROUND = 'exec "$@" 3>&1 1>&2'
_INSIDE = 'exec "$@" 1>&3 3>&-'
# The entry on PATH is often a script that picks the newest of several installations, so a search
# looks for the program itself. $1 is a prefix of every path; facts are printed as name, tab, value.
_SEARCH = r"""
root=$1
programs() { for one; do [ ! -x "$one" ] || printf '%s\n' "$one"; done; }
newest() { [ ! -x "$1" ] && [ $# = 1 ] || programs "$@" | sort -V | tail -n 1; }
first() { for one; do [ -z "$one" ] || { printf '%s\n' "$one"; break; }; done; }
on_path() { path=$(command -v "$1") && readlink -f -- "$path"; }
report() { [ -z "$2" ] || printf '%s\t%s\n' "$1" "$2"; }
report system "$(sed -n 's/^ID="\{0,1\}\([a-z]*\).*/\1/p' "$root/etc/os-release" 2>/dev/null)"
options() { grep -oE '(^|[[:space:]])--[a-z][a-z-]+' | sort -u | tr -s '[:space:]' ' '; }
"""
_NUMBERS = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One profiling pass over a few steps of every arm, recorded under this name."""

    name: PassName
    limit_s: float = 300.0  # in addition to the time of the steps
    needs_gpu: bool = True  # otherwise it also profiles CPU work, and needs no marks
    is_counting: bool = False  # hardware counters; each kernel is replayed several times
    most_launches: int | None = None  # kernel launches after which the tool stops counting
    file: str = ""  # written by the worker, for a profiler inside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A profiler program on a host; a container starts it by the same path."""

    name: str
    program: str
    folder: str  # mounted as a whole, at the same path
    version: str
    options: tuple[str, ...] = ()  # supported options, with dashes
    importer: str = ""  # host program that makes the report if the tool in the container could not
    metrics: Mapping[PassName, tuple[str, ...]] = field(default_factory=dict)
    reason: str = ""  # why metrics are missing
    cuda: str = ""  # newest CUDA version whose tracing library it includes, such as "11.8"

    @property
    def check(self) -> Check:
        """Return a passed check."""
        return Check(version=f"{self.version} ({self.program})")

    def knows(self, option: str) -> bool:
        """Return whether this version has an option."""
        return option in self.options


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerRun:
    """One start of a tool around a worker: its arguments, and the folder it writes to."""

    kind: Pass
    tool: Tool
    arguments: tuple[str, ...]
    folder: str  # on the host, writable inside: for its report and its temporary files
    capabilities: tuple[str, ...] = ()  # that the container needs
    second: tuple[str, ...] = ()  # arguments of a second attempt, if the first traced nothing

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return the mount of the tool's folder, at the same path."""
        return (Mount(path=self.tool.folder),)

    def wrap(self, command: Command) -> Command:
        """Wrap the tool around a command, which keeps its stdin, stdout and variables; pure."""
        inner = ("sh", "-c", _INSIDE, "sh", *command.argv)
        outer = ("sh", "-c", _AROUND, "sh")
        # the locale changes numbers, and a lock in a shared /tmp may belong to another user
        variables = (("LC_ALL", "C"), ("TMPDIR", self.folder), *command.env)
        argv = (*outer, self.tool.program, *self.arguments, *inner)
        return replace(command, argv=argv, env=variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFiles:
    """The report of a tool, and the export that a host script makes of it.

    Arguments of the script: the program, the folder of the report, and the importer.
    """

    script: str
    report: str
    export: str
    unfinished: str = ""  # raw file, which the importer turns into the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The report of a tool and its export, both in the quarantine."""

    report: RemoteFile
    export: RemoteFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a profiler inside the worker after a few steps."""

    kind: Pass
    values: dict[str, Any]  # as the profiler gave them
    steps: int
    reason: str = ""  # why some values are missing
    trace: Path | None = None  # of GPU work, or of collectives between processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """A private folder on a host for files of an arm; no container can see it."""

    transport: Transport
    arm: str
    folder: str

    @classmethod
    @contextmanager
    def empty(cls, transport: Transport, arm: str, folder: str) -> Iterator[Quarantine]:
        """Create an empty quarantine at `folder`, and remove it with its contents afterwards.

        Raises StackError if it cannot be created.
        """
        make_new_folder(transport, folder)
        try:
            yield cls(transport=transport, arm=arm, folder=folder)
        finally:
            remove_folder(transport, folder)

    def take(self, place: str, *names: str) -> RemoteFile | None:
        """Move a file here; `names` is its path below `place`, which the arm may write to.

        Returns None if there is no file. Raises WorkloadError of the phase `protocol` if it is not
        a regular file or has hard links, ProfileError if it cannot be moved or is too large.
        """
        target = f"{self.folder}/{names[-1]}"
        try:
            taken = take(self.transport, place, names=names, target=target)
        except CopyError as error:
            raise _fetch_error(error) from error
        if taken is not None and not taken.is_plain:
            raise WorkloadError(
                f"{self.arm}: the profile {taken.name} is {_FILE_TYPES[taken.type]}; it was not "
                "read",
                details="a profiler writes regular files: another program in the arm put it there",
                hint=DISTRUST,
                phase="protocol",
            )
        return taken and _check_size(taken)

    def written(self, name: str) -> RemoteFile:
        """Return a file that the host's tool wrote here; raises ProfileError if missing."""
        file = look(self.transport, f"{self.folder}/{name}")
        if file is None or not file.is_plain:
            raise ProfileError(f"the tool on the host wrote no {name}", hint=READ_LOG)
        return _check_size(file)

    def fetch(self, taken: RemoteFile, target: Path) -> None:
        """Copy a file of the quarantine to the local path `target`.

        Raises ProfileError if that fails, TransportError when the host is lost.
        """
        try:
            fetch(self.transport, taken, target)
        except CopyError as error:
            raise _fetch_error(error) from error


class Profiler(Protocol):
    """A host program that is started around a worker, which marks the steps for it."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def discover(self, transport: Transport, compute_capability: str = "") -> Tool | Check:
        """Return the tool of a host, with its metrics for the GPU if given, or a failed check."""
        ...

    def wrap(self, tool: Tool, kind: Pass, *, folder: str) -> ProfilerRun | Check:
        """Return how to start the tool for a pass that writes to `folder`, or why not; pure."""
        ...

    def export(self, quarantine: Quarantine, run: ProfilerRun, *, log: str) -> Exported:
        """Take the report from the tool's folder and export it; `log` is the tool's output.

        Raises ProfileError if nothing can be read, WorkloadError if an arm put something else in
        its place, TransportError when the host is lost and CommandTimeoutError when the export
        takes too long.
        """
        ...

    def read(self, run: ProfilerRun, export: Path) -> Profile:
        """Read a local export.

        Raises ProfileError if it cannot be trusted, NothingTracedError if it has no kernel.
        """
        ...

    def explain(self, log: str) -> Problem | None:
        """Return the errors and warnings of the tool in a log, with a hint; None if none."""
        ...


class WorkerProfiler(Protocol):
    """A profiler inside the worker."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        """Name its passes, in the order in which they are run."""
        ...

    def read(self, answer: Answer) -> Profile | None:
        """Return the profile in an answer; None if there is none.

        Raises ProfileError if the answer or the trace cannot be trusted.
        """
        ...


def install_hints(title: str, package: str) -> dict[str, Check]:
    """Return how to install a missing NVIDIA tool, by the ID in /etc/os-release.

    Ubuntu's packages are years old. Packages in NVIDIA's CUDA repository have the version in their
    name, such as nsight-compute-2025.4.1.
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
    """Return the tool that a search on the host reports, or `missing` for its distribution.

    `search` is a shell script that reports program, folder, version, options, importer and CUDA
    with the functions of `_SEARCH`; `root` is a prefix of all its paths.
    """
    command = Command(argv=("sh", "-c", f"{_SEARCH}{search}\nexit 0\n", "sh", root))
    hint = f"run {name} --version there by hand"
    result = ask(transport, command, what=f"the search for {name}", hint=hint)
    if isinstance(result, Check):
        return result
    lines = (line.partition("\t") for line in result.stdout.splitlines())
    facts = {fact: value for fact, _, value in lines}
    program, version_text = facts.get("program", ""), facts.get("version", "")
    version = _NUMBERS.search(version_text)
    if not program:
        return missing.get(facts.get("system", "")) or missing[""]
    if version is None:
        return unusable(
            f"{program} does not start: {version_text or 'no output'}",
            f"run {program} --version there, and install what is missing",
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
    """Take the report from the tool's folder, and export it with the host's tool.

    `complaint` explains a missing report. Raises the errors of `Profiler.export`.
    """
    tool = run.tool
    place, _, folder = run.folder.rpartition("/")
    names = (files.report, *((files.unfinished,) if tool.importer else ()))
    if not any(name and quarantine.take(place, folder, name) for name in names):
        raise NothingTracedError(
            f"{tool.name} left no report",
            details=(complaint and complaint.details) or "no reason given",
            hint=complaint.hint if complaint else READ_LOG,
        )
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


def convert_answer(values: dict[str, Any], kind: type[_T], *, what: str) -> _T:
    """Convert values of a worker to a type; raises ProfileError if they do not match."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ProfileError(
            f"{what} cannot be read from the worker's answer",
            details=str(error),
            hint="use the workloads of this envcompare version on the host",
        ) from error


def _check_size(taken: RemoteFile) -> RemoteFile:
    if taken.size_bytes <= MOST_BYTES:
        return taken
    raise ProfileError(
        f"the file {taken.name} is too large to be read",
        details=f"it has {taken.size_bytes / 2**30:.1f} GiB, and the limit is "
        f"{MOST_BYTES >> 30} GiB",
        hint="profile smaller steps, for example with a smaller batch by --set",
    )


def _fetch_error(error: CopyError) -> ProfileError:
    return ProfileError("the file could not be fetched", details=error.details, hint=error.hint)
