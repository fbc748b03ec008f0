"""Types for a profile of one arm: kernels, copies, API calls, operators, quantities.

Times are nanoseconds, sizes bytes; `None` means not measured, never 0. Readers of profiler files
create these types, the run folder stores them, and the analysis compares them. Impossible numbers
are refused, whether they come from a tool, a worker or an editor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from envcompare.errors import Problem
from envcompare.run_folder.records import SCHEMA
from envcompare.text import counted

Tool = Literal["nsys", "kineto", "torch", "nvprof", "ncu", "perf"]
"""The tool of a profile; those that disturb kernel times less come first."""

GPU_TOOLS: Final[tuple[Tool, ...]] = ("nsys", "ncu", "kineto", "nvprof")
"""The tools with readable files that show GPU activity."""

RUN_KERNELS_ALONE: Final[frozenset[Tool]] = frozenset({"ncu"})
"""The tools that run each kernel alone, so that its time is not that in the program."""

Rule = Literal["sum", "ratio of sums", "time-weighted", "maximum", "union", "difference"]
Status = Literal["ok", "missing", "refused"]
CopyKind = Literal["HtoD", "DtoH", "DtoD", "HtoH", "PtoP", "unified", "memset", "other"]
Page = Literal["raw", "details", "summary"]
Dim = tuple[int, int, int]
KernelClass = Literal[
    "gemm", "element-wise", "reduction", "normalisation", "rnn", "attention", "communication",
    "memcpy", "memset", "other",
]  # fmt: skip
"""What a kernel does, judged by its name; used in the time ledger and the kernel diff."""
# Tools print sums of rounded numbers, so a part may be above the whole.
_ROUNDING: Final = 1e-3
_HELPER: Final = ("helper_", "_ns")  # before and after the name of a program
HELPERS_WINDOW: Final = "helpers_window_ns"
"""The quantity with the time over which helper programs were observed."""
# Far above any count, and far below an overflow of sums.
_MOST: Final = 1e30


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One number with its unit and origin; without a value there is a reason."""

    name: str
    value: float | None
    unit: str
    rule: Rule
    source: Annotated[str, Meta(description="tool and version, such as ncu 2024.1")]
    scope: Annotated[str, Meta(description="which launches or steps it covers")] = ""
    gpu: Annotated[
        int | None, Meta(description="of this GPU alone; null: of all that was seen")
    ] = None
    rank: Annotated[
        int | None, Meta(description="of this rank alone; null: of all that was seen")
    ] = None
    status: Status = "ok"
    reason: str = ""


def helper_quantity(program: str) -> str:
    """Return the quantity with the CPU time of a helper program."""
    return program.join(_HELPER)


def helper_of(quantity: str) -> str:
    """Return the helper program of a CPU time quantity; empty for any other quantity."""
    start, end = _HELPER
    is_helper = quantity.startswith(start) and quantity.endswith(end)
    return quantity[len(start) : -len(end)] if is_helper else ""


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel with one shape."""

    name: Annotated[str, Meta(description="demangled, as the tool wrote it")]
    calls: int
    total_ns: float | None
    min_ns: float | None = None
    max_ns: float | None = None
    grid: Dim | None = None
    block: Dim | None = None
    first: Annotated[int | None, Meta(description="place of the first launch, from 0")] = None
    op: Annotated[str, Meta(description="NVTX range or operator it was launched in")] = ""
    metrics: Annotated[
        dict[str, float],
        Meta(description="by the tool's name or that of a quantity, in base units, of all calls"),
    ] = {}


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """All copies in one direction, or all memsets."""

    kind: CopyKind
    calls: int
    total_ns: float
    min_ns: float | None = None
    max_ns: float | None = None
    total_bytes: int | None = None


class ApiCall(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one function of the CUDA API on the host."""

    name: str
    calls: int
    total_ns: float
    min_ns: float | None = None
    max_ns: float | None = None


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator with torch.profiler's sums; `self` excludes the operators it calls."""

    name: str
    calls: int
    self_cpu_ns: float
    cpu_ns: float
    self_device_ns: float | None = None
    device_ns: float | None = None
    self_cpu_bytes: int | None = None
    self_device_bytes: int | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a profile, if the tool reports it."""

    name: Annotated[str, Meta(description="empty where the tool tells none")] = ""
    chip: str = ""
    compute_capability: str = ""
    uuid: str = ""
    multiprocessors: int | None = None
    clock_hz: float | None = None
    memory_bytes_per_s: float | None = None


NoteKind = Literal[
    "calls-without-gpu", "controls-off", "controls-unknown", "counters-of-ranges", "cut-names",
    "distributed", "events-left-out", "flops-of-operator", "impossible-metrics",
    "launches-not-in-file", "launches-without-kernel", "marked-range", "metric-missing",
    "metric-of-some", "metrics-without-sums", "nameless-launches", "newer-schema",
    "no-api-calls", "no-cuda-data", "no-gpu-events", "no-time", "processes", "rounded-counts",
    "several-gpus", "text", "times-of-counting", "unended-line", "uneven-metric", "uneven-rate",
    "unpatched-time", "unread-rows", "unread-table", "untraced-graphs",
    "whole-graphs", "work-without-call",
]  # fmt: skip


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A remark on the numbers of a profile; the report has a sentence for each kind."""

    kind: NoteKind
    values: Annotated[
        Mapping[str, int | float | str], Meta(description="what the sentence names")
    ] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one file or one pass of one tool."""

    tool: Tool
    version: str = ""
    format: str = ""
    pages: Annotated[
        tuple[Page, ...], Meta(description="of Nsight Compute; a report tells what `raw` does")
    ] = ()
    files: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    span_ns: Annotated[float | None, Meta(description="first start to last end on the GPU")] = None
    busy_ns: Annotated[
        float | None, Meta(description="union over all streams of kernels, copies and memsets")
    ] = None
    kernel_busy_ns: Annotated[float | None, Meta(description="union of kernels alone")] = None
    step_busy_ns: Annotated[
        tuple[float, ...], Meta(description="busy time of one GPU with each step; empty: not known")
    ] = ()
    launch_gap_ns: Annotated[
        float | None, Meta(description="GPU idle between the first start and the last end")
    ] = None
    kernels: tuple[Kernel, ...] = ()
    sequence: Annotated[
        tuple[int, ...], Meta(description="places in `kernels` in launch order, cut at 100 000")
    ] = ()
    copies: tuple[Copy, ...] = ()
    api_calls: tuple[ApiCall, ...] = ()
    operators: tuple[Operator, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    steps: Annotated[int | None, Meta(description="steps of the workload in the profile")] = None
    has_time: Annotated[
        bool, Meta(description="false where counters were collected in a way that changes time")
    ] = True
    notes: tuple[Note, ...] = ()


def hidden_graphs(profile: Profile) -> Note | None:
    """Return the note that CUDA graphs hide kernels; None if all kernels are visible."""
    return next((note for note in profile.notes if hides_kernels(note)), None)


def hides_kernels(note: Note) -> bool:
    """Say whether a note reports CUDA graphs with hidden kernels."""
    return note.kind in {"whole-graphs", "untraced-graphs"}


def graphs_of(note: Note) -> str:
    """Return the number of CUDA graphs in a note, as "2 CUDA graphs"."""
    count = note.values.get("graphs")
    return counted(count, "CUDA graph") if isinstance(count, int) else "CUDA graphs"


PassName = Literal["nsys", "torch", "ncu-memory", "ncu-flops", "imported", "flops", "host"]
"""The pass of a record; those that disturb kernel times less come first."""

TRACE: Final[PassName] = "nsys"
"""The pass that records kernel times as the program runs."""


Lack = Literal[
    "no-gpu", "not-requested", "no-steps", "not-usable", "arm-failed", "failed",
    "not-measured", "raw-not-kept", "launches-cut", "partial",
]  # fmt: skip
"""Why a pass has no profile, or, from `raw-not-kept` on, what its profile lacks."""


class Lacking(msgspec.Struct, frozen=True, kw_only=True):
    """Why a profile is missing or incomplete: as data, and in words with a remedy."""

    why: Lack
    problem: Problem


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """profiles/<cell>/<arm>/<name>.json: one profile of one arm, or the reason for its absence."""

    host: str
    cell: str
    arm: str
    kind: PassName
    name: Annotated[str, Meta(description="of the file; the kind, or with a number behind it")]
    state: Literal["ok", "missing"] = "ok"
    lacks: Annotated[
        Lacking | None, Meta(description="why it is missing, or what it lacks; null: nothing")
    ] = None
    steps: Annotated[int | None, Meta(description="steps of the workload between the marks")] = None
    batch: Annotated[int | None, Meta(description="samples in a step")] = None
    code_hash: Annotated[str, Meta(description="of the profiled program; empty: not known")] = ""
    raw: Annotated[tuple[str, ...], Meta(description="raw files, below the run folder")] = ()
    sha256: Annotated[
        dict[str, str], Meta(description="of the files that were imported, by their name")
    ] = {}
    profile: Profile | None = None
    schema: Literal[2] = SCHEMA

    @property
    def is_failure(self) -> bool:
        """Tell whether the attempt failed, so that a resumed run repeats it."""
        return self.lacks is not None and self.lacks.why == "failed"


class Roofs(msgspec.Struct, frozen=True, kw_only=True):
    """profiles/roofs/<host>.json: the limits of a device, measured or from a table."""

    host: str
    device: str
    source: Annotated[str, Meta(description="`measured`, or the table and its row")]
    is_measured: bool
    bytes_per_s: Annotated[float | None, Meta(description="to and from device memory")] = None
    flops_per_s: Annotated[
        dict[str, float], Meta(description="by precision, such as fp32 or tensor_bf16; dense")
    ] = {}
    uuid: str = ""
    driver: str = ""
    clocks: Annotated[str, Meta(description="the clocks it was measured at")] = ""
    reason: Annotated[str, Meta(description="why nothing was measured")] = ""
    schema: Literal[2] = SCHEMA


def impossible(profile: Profile) -> Iterator[str]:
    """Yield the impossible numbers of a profile: negative, infinite, a minimum above a maximum."""
    yield from _at_least_one({"steps": profile.steps})
    for place in profile.sequence:
        if not 0 <= place < len(profile.kernels):
            yield f"the order of launches names kernel {place} of {len(profile.kernels)}"
    yield from _numbers({"idle time": profile.launch_gap_ns}, "the GPU")
    whole = {
        "time of kernels": profile.kernel_busy_ns,
        "busy time": profile.busy_ns,
        "span": profile.span_ns,
    }
    yield from _numbers(whole, "the GPU", is_rising=True)
    for quantity in profile.quantities:
        yield from _numbers({quantity.name: quantity.value}, "the profile")
    calls: tuple[Kernel | Copy | ApiCall, ...] = (*profile.kernels, *profile.copies)
    for call in (*calls, *profile.api_calls):
        yield from _calls(call)
    for kernel in profile.kernels:
        labelled = {**kernel.metrics, "place of the first launch": kernel.first}
        yield from _numbers(labelled, f"kernel {kernel.name}")
    for operator in profile.operators:
        what = f"operator {operator.name}"
        yield from _at_least_one({f"{what}: calls": operator.calls})
        times = {"self time": operator.self_cpu_ns, "time": operator.cpu_ns}
        device = {
            "self time on the GPU": operator.self_device_ns,
            "time on the GPU": operator.device_ns,
        }
        # PyTorch's own sums go below 0 if operators overlap
        if profile.tool != "torch":
            yield from _numbers(times, what, is_rising=True)
        for name, value in {**times, **device}.items():
            if value is not None and not abs(value) <= _MOST:
                yield f"{what}: {name} is {_shown(value)}"


def impossible_record(record: ProfileRecord) -> Iterator[str]:
    """Yield the impossible numbers of a record, including its profile."""
    yield from _at_least_one({"steps": record.steps})
    yield from _numbers({"samples in a step": record.batch}, "the record")
    if record.profile is not None:
        yield from impossible(record.profile)


def impossible_roofs(roofs: Roofs) -> Iterator[str]:
    """Yield the impossible roofs of a device."""
    yield from _numbers({"bytes per second": roofs.bytes_per_s}, roofs.device)
    yield from _numbers(roofs.flops_per_s, roofs.device)


def _at_least_one(counts: dict[str, int | None]) -> Iterator[str]:
    for name, count in counts.items():
        if count is not None and not 1 <= count <= _MOST:
            yield f"{name}: {_shown(count)}"


def _calls(call: Kernel | Copy | ApiCall) -> Iterator[str]:
    what = call.kind if isinstance(call, Copy) else call.name
    yield from _at_least_one({f"{what}: calls": call.calls})
    if isinstance(call, Copy):
        yield from _numbers({"bytes": call.total_bytes}, what)
    times = {"shortest": call.min_ns, "longest": call.max_ns, "total": call.total_ns}
    yield from _numbers(times, what, is_rising=True)


def _numbers(
    values: Mapping[str, float | None], what: str, *, is_rising: bool = False
) -> Iterator[str]:
    known = [(name, value) for name, value in values.items() if value is not None]
    for name, value in known:
        if not 0 <= value <= _MOST:
            yield f"{what}: {name} is {_shown(value)}"
    for (name, value), (larger, limit) in pairwise(known):
        if is_rising and value > limit * (1 + _ROUNDING) + 1:
            yield f"{what}: {name} is {value:g} and {larger} {limit:g}"


def _shown(value: float) -> str:
    """Return a number as text; whole numbers may be too large for that."""
    return f"{value:g}" if abs(value) < 1e300 else f"{'-' * (value < 0)}endless"
