"""What the analysis found in a run, as types: comparison.json is `RunComparison` written out.

Ratios are time in the arm ÷ time in the reference, above 1 is slower; they are kept as natural
logarithms (`log_ratio`), and turned into percent only where they are printed.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from envcompare.analysis.model.machines import (
    GroupDifference,
    GroupEstimate,
    HostDifference,
    HostsEstimate,
    HostSummary,
)
from envcompare.analysis.model.profiling import CellPhases, CellProfiles
from envcompare.analysis.model.scaling import BatchSweep, CellTraining, Scaling
from envcompare.errors import Phase
from envcompare.run_folder.records import (
    SCHEMA,
    CellState,
    FactDifference,
    Failure,
    FingerprintValue,
    Goal,
    HostGroup,
    IdentityChange,
    Scalar,
)

When = Literal["before", "after"]
Outcome = Literal[
    "slower", "faster", "equivalent", "inconclusive", "failed", "not-run", "reference"
]

StoppedBy = Literal[
    "target", "equivalent", "decided", "planned", "budget", "failure", "interrupted", "unknown"
]
Leaning = Literal["slower", "faster", "none"]
ReasonKind = Literal[
    "failed", "reference-failed", "cell-ended", "no-complete-round",  # not measured
    "size-skipped", "not-planned",  # on purpose: by the search, or by the plan
    "too-few", "control-failed", "not-selected", "target-first", "no-interval",  # inconclusive
    "outside-turns",  # never equivalent
    "other-metric", "only-before", "mean-open", "unknown",  # of two runs
]  # fmt: skip
STEP_PROBABILITIES: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


LEFT_OUT: Final[frozenset[ReasonKind]] = frozenset({"size-skipped", "not-planned"})


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a comparison is inconclusive, failed or was not run, with what a kind has to tell."""

    kind: ReasonKind
    when: When | None = None  # in which of two runs
    brief: str = ""  # what failed, as it was recorded while measuring
    arm: str = ""  # the reference that failed, or the arm that worked outside its turns,
    cpu_s: float | None = None  # CPU time that it used there,
    children: int | None = None  # and its processes that lived at the same time
    is_unstopped: bool = False  # it was to be stopped there, and could not be
    unit: Literal["restart", "round"] = "restart"
    counted: int | None = None  # units that were measured,
    needed: int | None = None  # that a verdict needs,
    planned: int | None = None  # that were planned where these are more,
    missing: int | None = None  # and that are missing before there is an interval
    control_end: float | None = None  # log ratio by which the reference differs from itself
    metrics: tuple[str, str] | None = None  # that the two runs were judged on


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its interval, both as log ratios; without an interval `low`, `high` are None."""

    metric: Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]
    log_ratio: float
    low: float | None = None
    high: float | None = None
    level: float  # of the interval before it was widened for looking, e.g. 0.98
    unit: Literal["round", "restart", "process"]
    restarts: int
    generations: int
    rounds: int
    is_widened: bool  # for several comparisons and for looking

    @property
    def has_size(self) -> bool:
        """Tell whether it is of more than one restart: a single one may be off by any amount."""
        return self.unit == "process" or self.restarts > 1


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step is slow, above 1.5 times the median of its arm, here and in the reference.

    Shares of steps from 0 to 1, and ratios to the median; the interval of the difference of shares
    is at 95 % and not widened.
    """

    share: float
    reference_share: float
    difference_low: float | None = None
    difference_high: float | None = None
    slow_ratio: float | None = None  # median of the slow steps ÷ median of all, in the arm
    p90_log_ratio: float | None = None  # of the 90th percentiles, arm ÷ reference
    p90_low: float | None = None
    p90_high: float | None = None


class OwnWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """By how much more than its reference's a step is stretched by waiting for a CPU, as a share.

    The interval is at 99 % and not widened.
    """

    share: float
    low: float
    high: float
    is_counted: bool  # it is not 0, nor what the control waits: the mean has it in


class TurnTrend(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm's ratio to the reference changes from the first step of a block to its last."""

    first_log_ratio: float
    last_log_ratio: float
    p_value: float
    is_detected: bool  # at 1 % over the compared arms of the cell


class FarLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch of an arm that took far more, or less, time than its others."""

    restart: int
    arm: str
    launches: int  # of the arm
    log_ratio: float  # of its time to what it usually takes against the other arms


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one arm in a cell, in seconds, from all measured blocks (descriptive only)."""

    arm: str
    steps: int
    median_s: float
    p05_s: float
    p95_s: float
    quantiles_s: tuple[float, ...] = ()  # at STEP_PROBABILITIES
    longest_s: float | None = None
    counts: tuple[int, ...] = ()  # of steps between the `step_edges_s` of the cell
    samples_per_s: float | None = None  # batch ÷ median step time


class StartupPart(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of the start-up of one arm: median over launches and its range, in seconds.

    Against the reference the difference in seconds, no ratio: seconds of phases add up to those of
    the whole, and a phase may take next to nothing.
    """

    phase: Literal[
        "engine", "import", "data", "build", "first_step", "train", "exit", "real", "user", "sys"
    ]
    median_s: float
    low_s: float
    high_s: float
    difference_s: float | None = None  # mean of (arm − reference), paired by repetition
    difference_low_s: float | None = None  # Student t at 95 %, not widened
    difference_high_s: float | None = None
    pairs: int = 0


class StartupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The start-up pass of one arm in one cell."""

    cell: str
    arm: str
    launches: int
    train_steps: int
    page_cache: str
    parts: tuple[StartupPart, ...]
    cold_reason: str = ""  # why the cell has no launch with a cold page cache; empty where it has


class MemorySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of memory of one arm in one cell: the largest seen in any generation, in bytes."""

    cell: str
    arm: str
    generations: int
    max_rss_bytes: int | None = None
    cgroup_peak_bytes: int | None = None  # holds page cache: never a ratio against vm
    cuda_allocated_peak_bytes: int | None = None
    cuda_reserved_peak_bytes: int | None = None


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of an arm's blocks inside a generation, after the discarded warm-up block."""

    arm: str
    is_ratio: bool  # of the log ratio to the reference, which the verdict rests on; else of times
    slope: float  # mean change of the logarithm a round
    over_generation: float  # from the first round to the last
    p_value: float
    generations: int
    is_detected: bool  # at 1 % over all tests of its kind in the cell


class PickedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number read from the output of a plain command, or returned by the `finish` of a workload.

    It is of one arm in one cell. Which way is better is not known, so that no verdict rests on it.
    """

    cell: str
    arm: str
    name: str
    processes: int  # in which it was found, or generations of a workload
    median: float
    low: float  # the smallest and the largest seen
    high: float
    log_ratio: float | None = None  # to the reference; None for it, and for numbers not above 0
    ratio_low: float | None = None
    ratio_high: float | None = None
    level: float = 0.95  # not widened


class ResultGap(msgspec.Struct, frozen=True, kw_only=True):
    """How far a result of an arm lies from the reference's, at the same point of the same work."""

    cell: str
    arm: str
    name: str
    reference_value: float
    value: float
    relative: float  # |value − reference| ÷ the larger of the two, the most of any point


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the reference in one cell; exactly one outcome."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as of its cell
    arm: str
    environment: str
    stack: str
    arm_parameters: dict[str, Scalar] = {}  # of the workload, where their values are compared
    is_control: bool = False
    outcome: Outcome
    leaning: Leaning = "none"
    is_confounded: bool = False
    # Keys of `differences` that may explain it, the likeliest first; None: no facts to compare.
    candidates: tuple[str, ...] | None = None
    # The typical step, on `net`, or on `wall` where net is not defined; a process of a command.
    primary: Estimate | None = None
    # The headline: the mean of all steps of all launches, `own_waiting` in it where it is counted.
    mean: Estimate | None = None
    excess: Estimate | None = None  # of the mean above the typical step: 95 %, not widened
    is_mean_firm: bool = False  # it may claim a difference: no screen, and its own control held
    is_by_mean: bool = False  # the outcome is that of the mean, not of the typical step alone
    own_waiting: OwnWaiting | None = None  # None where the metric is not `net`
    far_launches: tuple[FarLaunch, ...] = ()  # of the arm and its reference; no estimate lacks them
    turn_trend: TurnTrend | None = None
    steps: int | None = None  # that the arm of the two with fewer took
    # Seconds of the reference's step, or process: times the ratio of `deciding` it is the arm's.
    reference_step_s: float | None = None
    tail: Tail | None = None
    secondary: tuple[Estimate, ...] = ()  # means of wall, stretch, cpu, gpu: not widened
    reason: Reason | None = None  # why it failed, was not run, or is inconclusive
    forecast_s: float | None = None  # more seconds of measuring that would decide
    forecast_restarts: int | None = None  # or processes
    works_outside: bool = False  # or its reference does, while others have their turns
    control_failed: bool = False  # then only claims beyond `noise_floor` were kept
    failure: Failure | None = None

    @property
    def deciding(self) -> Estimate | None:
        """The estimate that the outcome rests on, and that is printed: the mean or the typical."""
        return self.mean if self.is_by_mean else self.primary

    @property
    def is_left_out(self) -> bool:
        """Tell whether it was not run on purpose: by the search for a batch, or by the plan."""
        return self.reason is not None and self.reason.kind in LEFT_OUT

    @property
    def is_skipped_size(self) -> bool:
        """Tell whether it is of a batch that does not fit; *Batch sizes* says so."""
        return self.reason is not None and self.reason.kind == "size-skipped"


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """One 2 × 2 of a cell: a difference split into environment and stack, none of it widened.

    `total` is `environment` + `stack`, and, where the plain process ran with the image's software
    too, `environment_by_image` + `stack_by_base`; the paths differ by `interaction`.
    """

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str  # the container with its image
    host_arm: str  # the container with the host's own files
    base: str  # the plain process with them
    base_image: str = ""  # the plain process with the software of the image
    total: Estimate  # arm ÷ base
    environment: Estimate  # host_arm ÷ base
    stack: Estimate  # arm ÷ host_arm
    environment_by_image: Estimate | None = None  # arm ÷ base_image
    stack_by_base: Estimate | None = None  # base_image ÷ base
    interaction: Estimate | None = None


class LadderStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rung of the ladder in a cell, against the nearest rung below that was measured."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str
    rung: str  # what it adds
    below: str = ""  # the arm below; empty for the lowest, and where this one was not measured
    outcome: Outcome  # of the step
    step: Estimate | None = None  # arm ÷ below, widened as the comparisons of the run
    why_not: str = ""  # it was not measured
    # keys of the facts in which it differs from the rung below; None where they are not known
    changed: tuple[str, ...] | None = ()
    is_confounded: bool = False

    @property
    def deciding(self) -> Estimate | None:
        """The estimate that the outcome rests on."""
        return self.step


class ArmThreads(msgspec.Struct, frozen=True, kw_only=True):
    """What ran in the blocks of an arm, and for how long a CPU quota stopped it."""

    arm: str
    running: int  # threads of all its processes in a block, the median
    throttled_s: float | None = None  # summed over CPUs; None: not measured
    throttled_periods: int | None = None  # of the quota, in which it was stopped
    measured_s: float  # of all its blocks, on the clock


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one cell."""

    id: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # the arm of `--envs` whose values are compared in it, of several
    is_program: bool = False  # a plain command
    state: CellState
    reason: str = ""
    metric: Literal["net", "wall"] = "net"
    metric_reason: str = ""
    generation: Literal["", "fork", "rebuild"] = ""  # how one starts afresh
    generation_reason: str = ""  # and why so
    steps_per_block: int | None = None
    restarts: int = 0
    generations: int = 0
    rounds: int = 0
    dropped_rounds: int = 0
    held_rounds: int = 0  # in which each block was held on the same CPU
    stops: bool = False  # what an arm had started, while others had their turns
    steps: int = 0
    processes: int = 0  # of a plain command; then each is a restart, a generation and a round
    measured_s: float = 0.0
    elapsed_s: float = 0.0
    stopped_by: StoppedBy = "unknown"
    noise_floor: Estimate | None = None  # the A/A control
    step_times: tuple[StepTimes, ...] = ()
    step_edges_s: tuple[float, ...] = ()  # of the histograms of all arms; few steps lie beyond
    drifts: tuple[Drift, ...] = ()  # every one that was tested
    dropped_blocks: int = 0  # their clocks jumped
    restart_spread: float | None = None  # standard deviation of what a restart adds, as reckoned
    waited_s: float = 0.0  # for a quiet machine
    threads: tuple[ArmThreads, ...] = ()  # of the arms in which they were counted
    cautions: tuple[str, ...] = ()  # sentences noted while measuring, each with a next step


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An arm on a host: its state, identity and the facts the report lists."""

    host: str
    arm: str
    environment: str
    stack: str
    reference: str
    state: CellState
    reason: str = ""
    is_timed: bool = True  # False: all that is known of it are imported profiles
    parameters: dict[str, Scalar] = {}  # of the workloads, where their values are compared
    identity: dict[str, Scalar] = {}
    facts: dict[str, FingerprintValue] = {}


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as it happened, for the failures section."""

    t: float
    host: str
    cell: str
    arm: str
    phase: Phase
    brief: str
    details: str
    hint: str
    exit_code: int | None
    log: str


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """comparison.json: all that the report draws."""

    run_id: str
    created: str
    tool_version: str
    tool_commit: str = ""  # `modified` follows where it was changed; empty: not known
    title: str = ""
    seed: int
    command_line: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()  # commands that put profiles into the run folder, as typed
    configuration: str = ""
    preset: str
    margin: float
    target: float
    budget_s: float
    min_restarts: int
    threads: int | None  # of every arm; None: as many as each itself has
    stabilise: bool = False  # allocator thresholds and hash seed were fixed in every arm
    planned_sessions: int = 1  # 1: it was measured at one time
    sessions: int = 1  # that were measured
    days: int = 1  # of the calendar (UTC) on which they began
    is_complete: bool  # False after an interruption or a crash
    reference_arm: str
    references: dict[str, str] = {}  # by cell, where it is another arm than `reference_arm`
    planned_comparisons: int  # m: what the intervals are widened for
    screen: bool = False  # Benjamini and Hochberg instead of Bonferroni
    comparisons: tuple[Comparison, ...]
    cells: tuple[CellSummary, ...]
    arms: tuple[ArmSummary, ...]
    differences: tuple[FactDifference, ...] = ()  # of one that cells share the strongest
    hosts: tuple[HostSummary, ...] = ()  # what was timed on them
    host_differences: tuple[HostDifference, ...] = ()  # between hosts, in one arm
    over_hosts: tuple[HostsEstimate, ...] = ()  # where two hosts or more compared the same
    groups: tuple[HostGroup, ...] = ()  # of hosts that are compared, the others with the first
    group_differences: tuple[GroupDifference, ...] = ()  # what tells their machines apart first
    group_estimates: tuple[GroupEstimate, ...] = ()  # times, then what environments cost
    # By cell, the differences of which the cell has other evidence than `differences` says.
    cell_differences: dict[str, tuple[FactDifference, ...]] = {}
    decompositions: tuple[Decomposition, ...] = ()
    scaling: tuple[Scaling, ...] = ()  # of cells that set `ranks`
    ladder: tuple[LadderStep, ...] = ()  # from the lowest rung up, cell after cell
    startup: tuple[StartupSummary, ...] = ()
    memory: tuple[MemorySummary, ...] = ()
    picked: tuple[PickedValue, ...] = ()
    result_gaps: tuple[ResultGap, ...] = ()
    profiles: tuple[CellProfiles, ...] = ()
    phases: tuple[CellPhases, ...] = ()
    batch_sweeps: tuple[BatchSweep, ...] = ()
    until: Goal | None = None  # that was trained to
    training: tuple[CellTraining, ...] = ()  # of each cell, to that goal
    failures: tuple[FailureRow, ...] = ()
    identity_changes: tuple[IdentityChange, ...] = ()  # measured on after a resumption
    torn_lines: int = 0
    duration_s: float | None = None
    schema: Literal[2] = SCHEMA

    def reference_in(self, cell: str) -> str:
        """Return the arm that the others of a cell are compared with."""
        return self.references.get(cell, self.reference_arm)

    def reference_of(self, arm: str) -> str:
        """Return the arm that an arm is compared with, in whichever cell."""
        cells = (one.cell for one in self.comparisons if one.arm == arm)
        return self.reference_in(next(cells, ""))

    @property
    def all_references(self) -> tuple[str, ...]:
        """The references of all cells, each once."""
        return tuple(dict.fromkeys((self.reference_arm, *self.references.values())))

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """The comparisons that a verdict is asked of: no reference and no control."""
        return tuple(
            one for one in self.comparisons if not one.is_control and one.outcome != "reference"
        )
