"""A profiler around a command: the argv that starts both, and what of the host it must be shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from envcompare.command import Command
from envcompare.environments import Mount
from envcompare.profilers.finding import Tool

RANGE = "envcompare"  # that the worker marks
CONTROLS = (
    "caches and clocks were as the program has them (--cache-control none, --clock-control none)"
)
MOST_LAUNCHES = 2000  # of kernels whose counters are read; each is run several times for it
TRACE = "trace"  # names of files, without their ending
COUNTERS = "counters"

# The tools write to stdout, which belongs to the worker's protocol: they get stderr, and hand on
# the worker's stdout as descriptor 3, which it takes back. Where the tool has to be root, what was
# written goes to whom the folder belongs, and the exit code stays the tool's.
_AROUND = 'exec "$@" 3>&1 1>&2'
_INSIDE = 'exec "$@" 1>&3 3>&-'
_AROUND_AS_ROOT = r"""
folder=$1 && shift
"$@" 3>&1 1>&2
code=$?
chown -R "$(stat -c %u:%g "$folder")" "$HOME"
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiler:
    """One tool as it is started around a worker, and where it writes to."""

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
        outer: tuple[str, ...] = ("sh", "-c", _AROUND, "sh")
        if self.capabilities:
            outer = ("sh", "-c", _AROUND_AS_ROOT, "sh", self.folder)
        # numbers follow the locale, and a lock in a shared /tmp would be another user's
        variables = (("LC_ALL", "C"), ("TMPDIR", self.folder), *command.env)
        argv = (*outer, self.tool.program, *self.arguments, *inner)
        return replace(command, argv=argv, env=variables)


def trace(tool: Tool, *, folder: str) -> Profiler:
    """Return nsys as it traces kernels, copies and API calls between the worker's marks.

    Nothing is sampled on the CPU, so that no right is needed; CUDA graphs are taken apart, since
    their kernels would not be in the table of kernels otherwise. The worker outlives the trace:
    it still has to answer.
    """
    options = (
        ("--cpuctxsw", "none"),
        ("--cuda-graph-trace", "node"),
        ("--capture-range-end", "stop"),
        ("--kill", "none"),  # the default ends the program where the collection ends
    )
    known = (f"{name}={value}" for name, value in options if tool.knows(name))
    arguments = (
        *("profile", "--trace=cuda,nvtx", "--sample=none", *known),
        *("--capture-range=cudaProfilerApi", "--stats=false", "--export=none"),
        *("--force-overwrite=true", f"--output={folder}/{TRACE}"),
    )
    return Profiler(tool=tool, arguments=arguments, folder=folder)


def counters(
    tool: Tool, metrics: tuple[str, ...], *, folder: str, capabilities: tuple[str, ...] = ()
) -> Profiler:
    """Return ncu as it reads counters of every kernel between the worker's marks.

    The caches are left as the program has them and the clocks as they are, so that the counters
    describe the application; its time is not that of a run without counters.
    """
    options = (
        ("--replay-mode", "kernel"),
        ("--cache-control", "none"),
        ("--clock-control", "none"),
        ("--graph-profiling", "node"),
    )
    known = (word for pair in options if tool.knows(pair[0]) for word in pair)
    arguments = (
        *("--target-processes", "all", *known),
        *("--nvtx", "--nvtx-include", RANGE, "--launch-count", f"{MOST_LAUNCHES}"),
        *("--metrics", ",".join(metrics), "--force-overwrite", "--export", f"{folder}/{COUNTERS}"),
    )
    return Profiler(tool=tool, arguments=arguments, folder=folder, capabilities=capabilities)
