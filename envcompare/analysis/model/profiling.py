"""Types for what a run shows besides times: profiles, batches that fit, ranks, epochs to a goal."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from envcompare.run_folder.profiles import (
    Dim,
    KernelClass,
    Lacking,
    Note,
    PassName,
    Rule,
    Status,
    Tool,
)
from envcompare.run_folder.records import FactDifference, Scalar, StepPhase

Part = Literal[
    "gemm", "attention", "element-wise", "reduction", "normalisation", "rnn", "other-kernels",
    "communication", "memcpy", "memset", "idle", "cpu", "user", "system", "wait",
    "throttled", "stolen", "rest",
]  # fmt: skip
Basis = Literal["gpu-trace", "timing"]
Agreement = Literal["reference", "equal", "differs", "unknown"]
DiffKind = Literal["replaced", "only-reference", "only-arm", "both"]
MatchRule = Literal[
    "operator, shape and launch order", "operator, name and launch order",
    "operator and launch order", "shape and launch order", "name and launch order",
    "kind and launch order", "name",
]  # fmt: skip
Unlike = Literal["", "tool", "page", "rule", "ranks"]
PartKind = Literal["step", "phase", "operator", "others"]


class PassState(msgspec.Struct, frozen=True, kw_only=True):
    """One profile of an arm: its tool, or why it is missing and how to get it."""

    kind: PassName
    name: Annotated[str, Meta(description="of the record, below profiles/<cell>/<arm>/")]
    state: Literal["ok", "missing"]
    lacks: Annotated[
        Lacking | None, Meta(description="why it is missing, or what it lacks; null: nothing")
    ] = None
    tool: Annotated[str, Meta(description="tool and version, such as ncu 2024.1")] = ""
    steps: int | None = None
    has_time: bool = True
    has_gpu_work: Annotated[
        bool | None, Meta(description="of a profile that would show kernels, copies and memsets")
    ] = None
    notes: tuple[Note, ...] = ()
    raw: Annotated[tuple[str, ...], Meta(description="raw files, below the run folder")] = ()


class QuantityRow(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity of one arm: in total, per step, per sample, and against the reference.

    Sums are divided by steps and samples; ratios, rates and maxima only have `value`.
    """

    name: str
    unit: str
    rule: Rule
    source: str
    tool: Annotated[Tool | None, Meta(description="null where it was timed")] = None
    scope: str = ""
    gpu: Annotated[
        int | None, Meta(description="of this GPU alone; null: of all that was seen")
    ] = None
    rank: Annotated[
        int | None, Meta(description="of this rank alone; null: of all that was seen")
    ] = None
    kind: PassName | Literal["timing"]
    status: Status = "ok"
    reason: Annotated[str, Meta(description="why there is no value")] = ""
    value: Annotated[float | None, Meta(description="of the whole profile")] = None
    per_step: float | None = None
    per_sample: float | None = None
    reference_value: Annotated[float | None, Meta(description="the same in the reference")] = None
    reference_per_step: float | None = None
    ratio: Annotated[float | None, Meta(description="arm ÷ reference, of a step if known")] = None
    agreement: Agreement = "unknown"
    page: Annotated[str, Meta(description="of Nsight Compute: raw, details or summary")] = ""
    unlike: Annotated[
        Unlike, Meta(description="in what the reference's number is of another kind: no ratio")
    ] = ""
    tolerance: Annotated[float, Meta(description="ratios within 1 ± this are equal")] = 0.0


class ActivityRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of nvprof's summary table, for the whole profile."""

    type: Literal["GPU activities", "API calls"]
    name: str
    kernel_class: KernelClass | None = None
    percent: Annotated[float, Meta(description="of the time of its type, all lines added up")]
    time_ns: float
    calls: int
    average_ns: float
    min_ns: float | None = None
    max_ns: float | None = None
    total_bytes: Annotated[int | None, Meta(description="copies and memsets")] = None
    is_rest: Annotated[bool, Meta(description="the sum of all lines that were cut")] = False
    is_tensor_core: Annotated[bool, Meta(description="by its name: a heuristic")] = False


class ActivityTable(msgspec.Struct, frozen=True, kw_only=True):
    """GPU activities and API calls of one profile, longest first."""

    source: str
    kind: PassName
    steps: int | None = None
    gpu_ns: Annotated[float, Meta(description="sum, not union, of all GPU activities")]
    api_ns: float
    rows: tuple[ActivityRow, ...]


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operator with torch.profiler's sums, for the whole profile."""

    name: str
    calls: int
    self_cpu_ns: float
    self_cpu_percent: float
    cpu_ns: float | None
    self_device_ns: float | None = None
    self_device_percent: float | None = None
    device_ns: float | None = None
    self_cpu_bytes: int | None = None
    self_device_bytes: int | None = None
    is_rest: bool = False


class OperatorTable(msgspec.Struct, frozen=True, kw_only=True):
    """The operators of one profile, longest self time first."""

    source: str
    kind: PassName
    steps: int | None = None
    self_cpu_ns: float
    self_device_ns: float | None
    rows: tuple[OperatorRow, ...]


class ArmProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """All profiles of one arm in a cell."""

    arm: str
    passes: tuple[PassState, ...]
    gpus: Annotated[
        tuple[str, ...], Meta(description="models that profiles saw at work; empty: not known")
    ] = ()
    builds: Annotated[
        tuple[str, ...], Meta(description="compute_… and sm… that names of its kernels carry")
    ] = ()
    quantities: tuple[QuantityRow, ...] = ()
    activities: ActivityTable | None = None
    operators: OperatorTable | None = None


class KernelDiffRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel in the reference, in the arm, or in both; times and launches are per step.

    If the number of steps is unknown they are per profile; the diff has a flag.
    """

    kind: DiffKind
    rule: MatchRule | None = None
    kernel_class: KernelClass
    reference_name: str = ""
    arm_name: str = ""
    op: Annotated[str, Meta(description="operators it was launched in, as far as known")] = ""
    reference_ns: float | None = None
    arm_ns: float | None = None
    reference_launches: float = 0.0
    arm_launches: float = 0.0
    reference_grid: Dim | None = None
    reference_block: Dim | None = None
    arm_grid: Dim | None = None
    arm_block: Dim | None = None
    is_rest: Annotated[bool, Meta(description="the sum of `rows_cut` rows of its kind")] = False
    rows_cut: int = 0


class KernelDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of an arm against those of the reference, ordered by change of time."""

    arm: str
    source: Annotated[str, Meta(description="the pass and tool both profiles are of")]
    scaling: Annotated[str, Meta(description="sentences: what times are of, how rows were paired")]
    is_per_step: bool
    identical_kernel_set: Annotated[
        bool, Meta(description="the same names with the same shapes, as often in a step")
    ]
    launch_factor: Annotated[
        float | None,
        Meta(description="the same names and shapes, each so many times as often; not of a step"),
    ] = None
    replaced: int
    only_reference: int
    only_arm: int
    both: int
    both_names: Annotated[int, Meta(description="of how many names; `both` counts shapes")] = 0
    nameless: Annotated[
        int, Meta(description="launches of both without a name: whether all are the same is open")
    ] = 0
    reference_ns: float | None = None
    arm_ns: float | None = None
    reference_launches: float
    arm_launches: float
    rows: tuple[KernelDiffRow, ...]
    cautions: tuple[str, ...] = ()


class LedgerPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step; the parts of a ledger add up to the total, to the nanosecond."""

    part: Part
    label: str
    reference_ns: int
    arm_ns: int
    change_ns: int
    share: Annotated[float | None, Meta(description="of the change; None where it is 0")] = None


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of the parts of a step, which sum exactly to its change."""

    arm: str
    basis: Basis
    whole: Annotated[str, Meta(description="what is divided up, in words")]
    source: str = ""
    rule: Annotated[str, Meta(description="how overlapping time was given to one part")]
    is_per_step: bool = True
    piece: Annotated[
        Literal["step", "process"], Meta(description="what a whole is where it is no profile")
    ] = "step"
    reference_ns: int
    arm_ns: int
    change_ns: int
    parts: tuple[LedgerPart, ...]
    timing_change_ns: Annotated[
        int | None, Meta(description="change of a step in the timing pass, no profiler attached")
    ] = None
    kernel_error_ns: Annotated[
        int | None, Meta(description="standard error of the change of `system`, by ticks")
    ] = None
    unseen_ns: Annotated[
        int | None, Meta(description="the timing pass's change less that of the trace")
    ] = None
    helpers: Annotated[
        dict[str, int],
        Meta(
            description="CPU ns a step of the environment's helper programs, above their rate with "
            "the reference and beyond what the control shows"
        ),
    ] = {}
    notes: tuple[str, ...] = ()


class Roof(msgspec.Struct, frozen=True, kw_only=True):
    """The limit for one precision: a horizontal roof and its ridge point."""

    precision: Annotated[str, Meta(description="such as fp32 or tensor_bf16")]
    flops_per_s: float
    ridge: Annotated[float | None, Meta(description="FLOP per byte; None without a bandwidth")]
    is_used: Annotated[bool, Meta(description="at least one point was computed in it")]


class RooflinePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, or the total of an arm, in one precision; or in all, against a time floor."""

    arm: str
    name: str
    is_total: bool = False
    precision: Annotated[str, Meta(description="`mixed` where several count; has no roof")]
    precisions: tuple[str, ...] = ()
    kernel_class: KernelClass | None = None
    calls: int | None = None
    flops: float
    bytes: float | None = None
    time_ns: float
    time_share: Annotated[float | None, Meta(description="of all kernels with counters")] = None
    intensity: Annotated[float | None, Meta(description="FLOP per byte of device memory")] = None
    flops_per_s: Annotated[float, Meta(description="achieved: FLOP ÷ kernel time")]
    attainable_flops_per_s: float | None = None
    bound: Literal["compute", "memory"] | None = None
    floor_ns: Annotated[float | None, Meta(description="no device with these roofs is faster")]


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The roofs of a device, and the points of each arm below them."""

    device: str
    source: str
    is_measured: bool
    bytes_per_s: float | None = None
    level: Annotated[str, Meta(description="which memory the bytes are of")] = "device memory"
    roofs: tuple[Roof, ...]
    points: tuple[RooflinePoint, ...] = ()
    missing: Annotated[tuple[str, ...], Meta(description="sentences: what has no point, why")] = ()
    notes: tuple[str, ...] = ()


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a step in an arm and in the reference, and its ratio, arm ÷ reference."""

    reference_ns: float
    arm_ns: float
    log_ratio: float
    low: Annotated[float | None, Meta(description="of the log ratio, at 95 %")] = None
    high: float | None = None


class GpuParts(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU step in two parts: the GPU is busy, or it waits for the host."""

    arm: str
    steps: Annotated[tuple[int, int], Meta(description="traced of the reference and of the arm")]
    kernels: Annotated[GpuPart, Meta(description="busy time of the GPU: kernels and copies")]
    host: Annotated[
        GpuPart | None, Meta(description="the timed step less the busy time; null: none is left")
    ] = None


class CellProfiles(msgspec.Struct, frozen=True, kw_only=True):
    """All profile results of a cell: each arm alone and against the reference, the roofline."""

    cell: str
    host: str
    reference: str
    devices: tuple[str, ...] = ()
    arms: tuple[ArmProfiles, ...]
    kernel_diffs: tuple[KernelDiff, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    gpu_parts: tuple[GpuParts, ...] = ()
    roofline: Roofline | None = None
    roofline_reason: Annotated[str, Meta(description="why there is none")] = ""
    betrayed: Annotated[
        tuple[FactDifference, ...], Meta(description="other builds, as kernel names show")
    ] = ()
    cautions: Annotated[
        tuple[str, ...], Meta(description="sentences: what to mind before relying on it")
    ] = ()


class PartDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a marked step in an arm and in the reference, in seconds per step.

    `others` is the step without the operators that differ. An unnamed operator is the time of a
    phase outside its operators: Python and PyTorch's dispatch.
    """

    kind: PartKind
    phase: StepPhase | None = None
    operator: str = ""
    share: float  # of the step of the reference, 0 to 1
    reference_s: float
    log_ratio: float
    low: float | None = None
    high: float | None = None
    difference_s: float  # the ratio applied to the time of the reference
    difference_low_s: float | None = None
    difference_high_s: float | None = None
    is_distinguishable: bool = False  # the interval excludes 0


class LoneOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator that only one of the arms runs; `share` and `time_s` are of that arm's step."""

    phase: StepPhase
    operator: str
    arm: str
    share: float  # 0 to 1
    time_s: float


class ArmPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step in one arm: the step, phases, operators by size, and the rest.

    The intervals of phases and operators have a joint level of 95 %; the step and the rest have 95
    % each.
    """

    arm: str
    rounds: int
    restarts: int
    level: float
    tested: int  # number of phases and operators with at least 1 % of the step
    parts: tuple[PartDifference, ...]
    most_log_ratio: float | None = None  # the far end of the intervals of operators that do not
    # differ: no operator was seen to differ by more
    lone: tuple[LoneOperator, ...] = ()  # of 1 % of a step and more, the largest first


class CellPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a cell's marked rounds, or the reason why there are none."""

    cell: str
    reference: str
    reason: str = ""
    arms: tuple[ArmPhases, ...] = ()


Limit = Literal["memory", "workload", "cap"]
"""The limit of a batch: memory, the workload's maximum, or the last size tried."""


class SizeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput of one arm at one batch: its typical step, the geometric mean of restarts."""

    batch: int
    cell: str
    samples_per_s: float
    low: float | None = None  # Student t over restarts at 95 %, not widened
    high: float | None = None
    restarts: int


class ArmSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one arm by batch; the knee has at least 95 % of the best throughput."""

    arm: str
    rates: tuple[SizeRate, ...] = ()  # by batch
    best: int | None = None  # the batch of the highest throughput
    knee_low: int | None = None  # no smaller batch has 95 % of the best throughput
    knee_high: int | None = None  # the smallest that has; null: proven for none
    knee_restarts: int = 0  # number of restarts behind the knee
    largest: int | None = None  # that fits; null if unknown or not searched
    beyond: int | None = None  # the smallest tried that does not fit
    limited_by: Limit | None = None
    memory_mib: int | None = None  # of a process, or of PyTorch on a GPU; 0 is the whole GPU
    device: str = ""
    reason: str = ""  # why the limit is unknown, or the workload's message

    @property
    def knee(self) -> int | None:
        """The knee, None if undecided."""
        return self.knee_high if self.knee_low == self.knee_high else None


class BatchSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that differ only in their batch."""

    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # except the batch
    within: str = ""  # as in its cells
    sizes: tuple[int, ...]
    cells: tuple[str, ...]  # one per size
    is_searched: bool = False
    arms: tuple[ArmSizes, ...]


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of several ranks, against one rank of the same arm and work."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # without `ranks`
    arm: str
    ranks: int
    hosts: tuple[str, ...] = ()  # of the ranks, including that of the first rank
    samples_per_s: float | None = None
    speed_up: float | None = None  # in samples per second; geometric mean over restarts
    speed_up_low: float | None = None  # Student t over three restarts or more, 95 %, not widened
    speed_up_high: float | None = None
    restarts: int = 0  # number of restarts that measured both
    efficiency: float | None = None  # the speed-up divided by the ranks
    waited_share: float | None = None  # of one rank's steps, waiting for a CPU others held
    collective_s: float | None = None  # per step of the first rank, under torch.profiler
    collective_exposed_s: float | None = None  # while nothing computes
    collective_share: float | None = None  # of the step time
    collective_exposed_share: float | None = None


class EpochPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state at the end of an epoch: medians over the restarts that have reached it."""

    epoch: int
    training_s: float  # of training so far, without evaluation
    value: float | None
    restarts: int


class ArmTraining(msgspec.Struct, frozen=True, kw_only=True):
    """One arm training to a goal; intervals are Student t over restarts at 95 %, not widened."""

    arm: str
    is_control: bool = False
    restarts: int  # number of completed restarts
    reached: int  # number of those that reached the goal
    epochs: tuple[int, ...] = ()  # by restart that reached the goal
    most_epochs: int = 0  # the maximum over restarts
    best: float | None = None  # value of any epoch
    training_s: float | None = None  # to the goal: geometric mean over the restarts that reached it
    training_low_s: float | None = None
    training_high_s: float | None = None
    log_ratio: float | None = None  # epoch time against the reference, paired by epoch
    ratio_low: float | None = None
    ratio_high: float | None = None
    points: tuple[EpochPoint, ...] = ()
    is_same_work: bool = True  # same parameters as the reference
    why_not: str = ""  # reason if it did not train, or stopped training


class CellTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Training to the goal of a run in one cell."""

    cell: str
    is_net: bool = False  # epochs are compared without waits for a CPU that others held
    arms: tuple[ArmTraining, ...]
    # epochs that all trained arms with the reference's parameters completed, without the control:
    # those with equal values, and the others
    same_values: int = 0
    other_values: int = 0


PART_LABELS: Final[dict[Part, str]] = {
    "gemm": "GEMM and convolution",
    "attention": "attention",
    "element-wise": "element-wise kernels",
    "reduction": "reductions",
    "normalisation": "normalisation",
    "rnn": "recurrent kernels",
    "other-kernels": "other kernels",
    "communication": "communication",
    "memcpy": "memcpy",
    "memset": "memset",
    "idle": "GPU idle: launch gaps and waiting for the host",
    "cpu": "on a CPU",
    "user": "on a CPU, the program's own work",
    "system": "on a CPU, inside the kernel",
    "wait": "waiting for a CPU that others held",
    "throttled": "stopped by a CPU quota",
    "stolen": "taken by the hypervisor, or by interrupts",
    "rest": "rest",
}
