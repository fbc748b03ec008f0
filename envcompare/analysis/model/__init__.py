"""The results of the analysis as types; comparison.json is a serialised `RunComparison`.

Ratios are time in the arm ÷ time in the reference, above 1 is slower. They are stored as natural
logarithms (`log_ratio`) and converted to percent only for output.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, Literal

import msgspec

from envcompare.analysis.model.profiling import (
    BatchSweep,
    CellPhases,
    CellProfiles,
    CellTraining,
    Scaling,
)
from envcompare.errors import Phase
from envcompare.run_folder.records import (
    SCHEMA,
    CellState,
    FactClass,
    FactDifference,
    Failure,
    FingerprintValue,
    Goal,
    HostGroup,
    IdentityChange,
    Proof,
    Scalar,
)

GroupOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
HostFact = Literal["torch.version", "torch.cuda", "lock.sha256"]
"""Software that may differ between hosts because of their drivers, GPUs and Pythons."""


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build of PyTorch: its release and CUDA version, empty for a CPU build."""

    version: str
    cuda: str = ""


class HostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware and software of one host; empty fields are unknown."""

    host: str
    devices: dict[str, str] = {}  # by cell, as its worker reported: cpu or cuda
    processor: str = ""
    cpu_family: str = ""  # with model and stepping, if the processor has numbers for them
    microcode: str = ""
    kernel: str = ""
    gpus: tuple[str, ...] = ()  # models that the arms found
    driver: str = ""
    torch: tuple[TorchBuild, ...] = ()  # imported by the arms
    unused_gpus: str = ""  # present but excluded from the run
    unused_driver: str = ""
    wheels: str = ""  # reason for this PyTorch


class HostDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Software of an arm that differs between hosts, a confounder for estimates over hosts."""

    arm: str
    key: HostFact
    values: dict[str, FingerprintValue]  # by host
    fact_class: Literal["confounder"] = "confounder"


class HostsEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The estimate over several hosts of one group for an arm; the host is a random effect."""

    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str
    group: str = ""  # of hosts; empty: the whole run
    hosts: int  # number of hosts with a measurement
    log_ratio: float  # the mean over similar hosts
    low: float
    high: float
    tau: float  # standard deviation of the log ratio between hosts, without their own errors
    level: float  # corrected for the number of these statements
    outcome: Literal["slower", "faster", "equivalent", "inconclusive"]
    odd_hosts: tuple[str, ...] = ()  # far from the others, the farthest first


class GroupDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A property in which two groups of hosts differ, as one arm found it."""

    group: str
    reference_group: str
    arm: str
    key: str
    fact_class: FactClass  # host: a property of the machine, which is what is compared
    values: dict[str, FingerprintValue]  # by host; for lists, the entries that not all hosts have
    is_apart: bool  # no host of one group equals a host of the other


class GroupEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """A group of hosts against another, in one workload and arm.

    For times it is the log ratio of the typical step there ÷ here. If `against` names an arm, it is
    the ratio arm ÷ `against` there ÷ the same ratio here: how much the effect of an environment
    differs.
    """

    group: str
    reference_group: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as in its cells
    arm: str
    against: str = ""  # empty: times are compared
    outcome: GroupOutcome
    metric: str = ""
    # By host, in group order: seconds of the typical step, or the log ratio to `against`
    values: dict[str, float] = {}
    reference_values: dict[str, float] = {}
    left_out: tuple[str, ...] = ()  # hosts without a known error, as with one restart
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    # Corrected for the number of statements of its kind. For costs on two machines it is the level
    # of the run's intervals.
    level: float | None = None
    unit: Literal["host", "restart"] = "host"  # the sampling unit; restarts if a group has one host
    # Hosts whose reference differed from itself, so that claims on costs below it were withdrawn.
    failed_controls: tuple[str, ...] = ()
    is_confounded: bool = False  # the arm's software also differs between the groups
    why_not: str = ""  # reason if it was not compared


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
    """Why a comparison is inconclusive, failed or was not run, with details by kind."""

    kind: ReasonKind
    when: When | None = None  # in which of two runs
    brief: str = ""  # of the failure, as recorded during measuring
    arm: str = ""  # the reference that failed, or the arm that worked outside its turns
    cpu_s: float | None = None  # CPU time that it used outside its turns
    children: int | None = None  # the largest number of its processes at one time
    is_unstopped: bool = False  # it could not be stopped as planned
    hidden: float | None = None  # share of a step that answers during its stops may hide
    unit: Literal["restart", "round"] = "restart"
    counted: int | None = None  # measured units
    needed: int | None = None  # units that a verdict needs
    planned: int | None = None  # planned units, if more
    missing: int | None = None  # units missing for an interval
    control_end: float | None = None  # log ratio by which the reference differs from itself
    metrics: tuple[str, str] | None = None  # metrics of the verdicts of the two runs


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio with its interval, both as log ratios; without an interval `low`, `high` are None."""

    metric: Literal["net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real"]
    log_ratio: float
    low: float | None = None
    high: float | None = None
    level: float  # of the interval before widening for interim looks, such as 0.98
    unit: Literal["round", "restart", "process"]
    restarts: int
    generations: int
    rounds: int
    is_widened: bool  # for several comparisons and for interim looks

    @property
    def has_size(self) -> bool:
        """Tell whether it has more than one restart, since one alone may be off by any amount."""
        return self.unit == "process" or self.restarts > 1

    @property
    def far_end(self) -> float:
        """Return the distance from 0 of the end of the interval that is farther from it."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))


TAIL_LEVEL: Final = 0.95
"""Level of the intervals of a `Tail`, which are not widened."""


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How often a step takes over 1.5 times the arm's median, in the arm and the reference.

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
    """The stretch of an arm's steps by waiting for a CPU, beyond that of the reference.

    The interval is at 99 % and not widened.
    """

    share: float
    low: float
    high: float
    is_counted: bool  # it differs from 0 and from the control, so the mean includes it


class TurnTrend(msgspec.Struct, frozen=True, kw_only=True):
    """How an arm's ratio to the reference changes from the first step of a block to the last."""

    first_log_ratio: float
    last_log_ratio: float
    p_value: float
    is_detected: bool  # at 1 % over the compared arms of the cell


class FarLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A launch of an arm that took much more, or less, time than its other launches."""

    restart: int
    arm: str
    launches: int  # of the arm
    log_ratio: float  # log ratio of its time to the arm's usual time, relative to the other arms


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

    The comparison is a difference in seconds, since phases add up to the total and one phase may be
    close to 0.
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
    cold_reason: str = ""  # why the cell has no launch with a cold page cache; empty if it has


class MemorySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of memory of one arm in one cell: the maximum over generations, in bytes."""

    cell: str
    arm: str
    generations: int
    max_rss_bytes: int | None = None
    cgroup_peak_bytes: int | None = None  # includes page cache: never a ratio against vm
    cuda_allocated_peak_bytes: int | None = None
    cuda_reserved_peak_bytes: int | None = None


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The trend of an arm's blocks within a generation, without the warm-up block."""

    arm: str
    is_ratio: bool  # of the log ratio that the verdict uses; otherwise of times
    slope: float  # mean change of the logarithm per round
    over_generation: float  # from the first round to the last
    p_value: float
    generations: int
    is_detected: bool  # at 1 % over all tests of its kind in the cell


class PickedValue(msgspec.Struct, frozen=True, kw_only=True):
    """A number from the output of a plain command, or from the `finish` of a workload.

    It belongs to one arm in one cell. No verdict uses it, since the better direction is unknown.
    """

    cell: str
    arm: str
    name: str
    processes: int  # number of processes, or generations of a workload, with a value
    median: float
    low: float  # the smallest and the largest value
    high: float
    log_ratio: float | None = None  # None for the reference, and for numbers not above 0
    ratio_low: float | None = None
    ratio_high: float | None = None
    level: float = 0.95  # not widened


class ResultGap(msgspec.Struct, frozen=True, kw_only=True):
    """The gap between a result of an arm and the reference's at the same point of the work."""

    cell: str
    arm: str
    name: str
    reference_value: float | None  # None: not a finite number
    value: float | None
    # |value − reference| ÷ the larger of the two, maximum over points; None: one is not finite
    relative: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the reference in one cell; exactly one outcome."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as in its cell
    arm: str
    environment: str
    stack: str
    arm_parameters: dict[str, Scalar] = {}  # of the workload, if their values are compared
    is_control: bool = False
    outcome: Outcome
    leaning: Leaning = "none"
    is_confounded: bool = False
    # Keys of `differences` that may be the cause, the likeliest first; None: no facts to compare.
    candidates: tuple[str, ...] | None = None
    # The typical step on `net`, or on `wall` if net is undefined; or a process of a command.
    primary: Estimate | None = None
    # The headline: the mean of all steps of all launches, including a counted `own_waiting`.
    mean: Estimate | None = None
    excess: Estimate | None = None  # mean minus typical step: 95 %, not widened
    is_mean_firm: bool = False  # it may claim a difference: no screen, and a passed control
    is_by_mean: bool = False  # the mean, not the typical step alone, gave the outcome
    own_waiting: OwnWaiting | None = None  # None unless the metric is `net`
    far_launches: tuple[FarLaunch, ...] = ()  # of both arms; all estimates include them
    turn_trend: TurnTrend | None = None
    steps: int | None = None  # steps of the arm with fewer steps
    # Seconds of the reference's step or process; times the ratio of `deciding`, the arm's.
    reference_step_s: float | None = None
    tail: Tail | None = None
    secondary: tuple[Estimate, ...] = ()  # means of wall, stretch, cpu, gpu: not widened
    reason: Reason | None = None  # why it failed, did not run, or is inconclusive
    forecast_s: float | None = None  # more measuring time that would decide
    forecast_restarts: int | None = None  # or processes that would decide
    works_outside: bool = False  # the arm or its reference works during the turns of others
    control_failed: bool = False  # then only claims beyond `noise_floor` remain
    failure: Failure | None = None

    @property
    def deciding(self) -> Estimate | None:
        """The reported estimate of the outcome: the mean or the typical step."""
        return self.mean if self.is_by_mean else self.primary

    @property
    def is_left_out(self) -> bool:
        """Tell whether the batch search or the plan excluded it on purpose."""
        return self.reason is not None and self.reason.kind in LEFT_OUT

    @property
    def is_skipped_size(self) -> bool:
        """Tell whether its batch does not fit, which the section *Batch sizes* reports."""
        return self.reason is not None and self.reason.kind == "size-skipped"


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """One 2 × 2 of a cell: a difference split into environment and stack, without widening.

    `total` is `environment` + `stack`. If the plain process also ran with the image's software, it
    is also `environment_by_image` + `stack_by_base`; the paths differ by `interaction`.
    """

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str  # the container with its image
    host_arm: str  # the container with the host's own files
    base: str  # the plain process with the host's own files
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
    below: str = ""  # the arm below; empty for the lowest rung, and for unmeasured ones
    outcome: Outcome  # of the step
    step: Estimate | None = None  # arm ÷ below, widened like the comparisons of the run
    why_not: str = ""  # reason if not measured
    # keys of the facts that differ from the rung below; None if unknown
    changed: tuple[str, ...] | None = ()
    is_confounded: bool = False

    @property
    def deciding(self) -> Estimate | None:
        """The estimate that the outcome rests on."""
        return self.step


class ArmThreads(msgspec.Struct, frozen=True, kw_only=True):
    """The threads in the blocks of an arm, and how long a CPU quota stopped them."""

    arm: str
    running: int  # threads of all its processes in a block, the median
    throttled_s: float | None = None  # summed over CPUs; None: not measured
    throttled_periods: int | None = None  # of the quota in which it was stopped
    measured_s: float  # wall time of all its blocks


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one cell."""

    id: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # with several arms in `--envs`, the arm whose values are compared here
    is_program: bool = False  # a plain command
    state: CellState
    reason: str = ""
    metric: Literal["net", "wall"] = "net"
    metric_reason: str = ""
    generation: Literal["", "fork", "rebuild"] = ""  # how a generation starts
    generation_reason: str = ""  # the reason for `generation`
    steps_per_block: int | None = None
    restarts: int = 0
    generations: int = 0
    rounds: int = 0
    dropped_rounds: int = 0
    held_rounds: int = 0  # rounds with all blocks on the same CPU
    stops: bool = False  # arms are stopped during the turns of others
    run_in_s: float = 0.0  # of untimed steps of the reference at the start of a turn
    steps: int = 0
    processes: int = 0  # of a plain command; each is a restart, a generation and a round
    measured_s: float = 0.0
    elapsed_s: float = 0.0
    stopped_by: StoppedBy = "unknown"
    noise_floor: Estimate | None = None  # result of the A/A control
    step_times: tuple[StepTimes, ...] = ()
    step_edges_s: tuple[float, ...] = ()  # of the histograms of all arms; few steps are beyond
    drifts: tuple[Drift, ...] = ()  # of every test
    dropped_blocks: int = 0  # blocks with a jump of the clock
    restart_spread: float | None = None  # standard deviation that restarts add, as estimated
    waited_s: float = 0.0  # for a quiet machine
    threads: tuple[ArmThreads, ...] = ()  # of the arms with a count
    cautions: tuple[str, ...] = ()  # sentences from measuring, each with a next step


class ArmSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An arm on a host: its state, identity and the facts the report lists."""

    host: str
    arm: str
    environment: str
    stack: str
    reference: str
    state: CellState
    reason: str = ""
    is_timed: bool = True  # False if it only has imported profiles
    takes_options: bool = False  # of the command that starts its container
    parameters: dict[str, Scalar] = {}  # of the workloads, if their values are compared
    identity: dict[str, Scalar] = {}
    facts: dict[str, FingerprintValue] = {}


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, for the failures section."""

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


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the run was asked to do."""

    preset: str
    seed: int
    margin: float
    target: float
    budget_s: float
    min_restarts: int
    threads: int | None  # in every arm; None: each arm's own number
    stabilise: bool = False  # every arm had fixed allocator thresholds and hash seed
    planned_sessions: int = 1  # 1: measured in one go
    planned_comparisons: int  # m: the intervals are widened for this number
    screen: bool = False  # Benjamini and Hochberg instead of Bonferroni
    until: Goal | None = None  # the goal of training
    command_line: tuple[str, ...] = ()
    configuration: str = ""


class RunCourse(msgspec.Struct, frozen=True, kw_only=True):
    """How the run went."""

    is_complete: bool  # False after an interruption or a crash
    sessions: int = 1  # that were measured
    days: int = 1  # calendar days (UTC) on which sessions started
    duration_s: float | None = None
    failures: tuple[FailureRow, ...] = ()
    identity_changes: tuple[IdentityChange, ...] = ()  # measured despite these, after a resumption
    torn_lines: int = 0


class BetweenHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a run compared with each other, alone and in groups."""

    differences: tuple[HostDifference, ...] = ()  # in one arm
    estimates: tuple[HostsEstimate, ...] = ()  # for work that two or more hosts compared
    groups: tuple[HostGroup, ...] = ()  # the others are compared with the first
    group_differences: tuple[GroupDifference, ...] = ()  # those of the machines first
    group_estimates: tuple[GroupEstimate, ...] = ()  # times, then the costs of environments


class RunViews(msgspec.Struct, frozen=True, kw_only=True):
    """What some runs show in addition to their comparisons."""

    decompositions: tuple[Decomposition, ...] = ()
    scaling: tuple[Scaling, ...] = ()  # of cells that set `ranks`
    ladder: tuple[LadderStep, ...] = ()  # from the lowest rung up, by cell
    startup: tuple[StartupSummary, ...] = ()
    memory: tuple[MemorySummary, ...] = ()
    picked: tuple[PickedValue, ...] = ()
    result_gaps: tuple[ResultGap, ...] = ()
    phases: tuple[CellPhases, ...] = ()
    batch_sweeps: tuple[BatchSweep, ...] = ()
    training: tuple[CellTraining, ...] = ()  # of each cell, to the goal of training


class RunComparison(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # dict: it caches
    """comparison.json: the complete input of the report."""

    run_id: str
    created: str
    tool_version: str
    tool_commit: str = ""  # with suffix `modified` for changed sources; empty if unknown
    title: str = ""
    imports: tuple[str, ...] = ()  # commands that imported profiles, as typed
    settings: RunSettings
    course: RunCourse
    reference_arm: str
    references: dict[str, str] = {}  # by cell, unless it is `reference_arm`
    comparisons: tuple[Comparison, ...]
    cells: tuple[CellSummary, ...]
    arms: tuple[ArmSummary, ...]
    differences: tuple[FactDifference, ...] = ()  # with the strongest evidence of any cell
    # By cell, differences with other evidence than in `differences`.
    cell_differences: dict[str, tuple[FactDifference, ...]] = {}
    hosts: tuple[HostSummary, ...] = ()  # hosts of timed work
    between_hosts: BetweenHosts = BetweenHosts()
    profiles: tuple[CellProfiles, ...] = ()
    views: RunViews = RunViews()
    proof: Proof | None = None  # of the cause of a difference between lines
    schema: Literal[2] = SCHEMA

    @cached_property
    def differences_by_arm(self) -> dict[tuple[str, str], tuple[FactDifference, ...]]:
        """The differences of all cells by host and arm; there may be thousands of both."""
        by_arm: dict[tuple[str, str], list[FactDifference]] = {}
        for difference in self.differences:
            by_arm.setdefault((difference.host, difference.arm), []).append(difference)
        return {place: tuple(differences) for place, differences in by_arm.items()}

    def reference_in(self, cell: str) -> str:
        """Return the reference arm of a cell."""
        return self.references.get(cell, self.reference_arm)

    def reference_of(self, arm: str) -> str:
        """Return the reference arm of an arm, in any cell."""
        cells = (comparison.cell for comparison in self.comparisons if comparison.arm == arm)
        return self.reference_in(next(cells, ""))

    @property
    def all_references(self) -> tuple[str, ...]:
        """The references of all cells, each once."""
        return tuple(dict.fromkeys((self.reference_arm, *self.references.values())))

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """The comparisons that need a verdict: no reference and no control."""
        return tuple(
            comparison
            for comparison in self.comparisons
            if not comparison.is_control and comparison.outcome != "reference"
        )
