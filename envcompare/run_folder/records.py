"""Types for a run folder: samples, events, fingerprints, and the run itself.

Integers are nanoseconds or bytes, as their names show; `None` means not measured, never 0. The JSON
Schemas in `docs/schema/` are generated from these types.
"""

from __future__ import annotations

import time
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta
from typing_extensions import Unpack

from envcompare.errors import Phase

SCHEMA: Literal[2] = 2
CONTROL_SUFFIX = "~control"
CAPTURED = "captured-line"
"""The environment of an arm whose processes ran earlier, maybe on another machine."""
PLACE_OF_DATA = "place.data"
"""The cell parameter with the place of the data; workload parameters have no dots."""

CellState = Literal["ok", "failed", "timeout", "skipped", "unreachable"]
EventKind = Literal[
    "run-started", "run-resumed", "run-ended", "interrupted",
    "host-ready", "host-lost", "host-failed", "host-retried",
    "arm-ready", "arm-failed", "cell-started", "cell-failed", "cell-ended", "restart", "turn",
    "stopped", "batch-fits", "training-failed",
    "round-dropped", "generation", "calibrated", "swept", "note", "waited", "caution", "not-marked",
    "profiled", "imported", "identity", "wheels", "submitted", "allocated",
]  # fmt: skip
Scalar = str | int | float | bool | None
FingerprintValue = Scalar | tuple[Scalar, ...]
Count = Annotated[int, Meta(ge=-(10**18), le=10**18)]
"""What a clock or a counter may say, 30 years in ns; below 0 are clocks that jumped, of a block
that was dropped, and sums over threads, some of which have ended."""
Taken = Literal["start", "step"]
ProfileChoice = Literal["auto", "trace", "none"]
StepPhase = Literal["data", "forward", "backward", "optimizer", "other"]
OperatorTimes = Annotated[
    dict[Annotated[str, Meta(max_length=200)], Annotated[int, Meta(ge=0, le=10**18)]],
    Meta(max_length=2000),
]
FactClass = Literal["identity", "host", "varied", "confounder", "possible-influence"]


Part = Annotated[Count, Meta(description="how often its cell had been begun before")]


class Block(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="block"):
    """One block: k steps of one arm without a pause (per-step lists have length k)."""

    cell: str
    arm: str
    restart: Count
    generation: Count
    round: Count
    order: Annotated[Count, Meta(description="position of the arm within its round, from 0")]
    k: Count
    t0_ns: Annotated[Count, Meta(description="CLOCK_MONOTONIC of the host at the first step")]
    wall_ns: tuple[Count, ...]
    cpu_ns: tuple[Count, ...]
    gpu_ns: tuple[Count, ...] | None = None
    wait_ns: Annotated[Count | None, Meta(description="run-queue wait of the thread")] = None
    all_wait_ns: Annotated[Count | None, Meta(description="of all threads of the worker")] = None
    throttled_ns: Annotated[
        Count | None, Meta(description="for which a CPU quota stopped it, summed over CPUs")
    ] = None
    throttled_periods: Annotated[
        Count | None, Meta(description="of the quota, in which it was stopped")
    ] = None
    running: Annotated[
        Count | None, Meta(description="threads of all its processes that ran in it")
    ] = None
    user_ns: Annotated[Count | None, Meta(description="in ticks: only the sums tell")] = None
    sys_ns: Annotated[Count | None, Meta(description="likewise, inside the kernel")] = None
    voluntary_switches: Count | None = None
    involuntary_switches: Count | None = None
    minor_faults: Count | None = None
    major_faults: Count | None = None
    cpu: Annotated[Count | None, Meta(description="on which it ended")] = None
    is_held: Annotated[bool, Meta(description="on this CPU, all the time")] = False
    children: Annotated[
        Count | None, Meta(description="processes that it had started and that lived at its start")
    ] = None
    outside_cpu_ns: Annotated[
        Count | None,
        Meta(description="of other threads and of children, since the block before ended"),
    ] = None
    outside_runs: Annotated[
        Count | None,
        Meta(description="times that a thread of Python or of a child was given a CPU meanwhile"),
    ] = None
    run_in: Annotated[Count, Meta(description="steps since the last block that counts")] = 0
    calibration: Annotated[
        Count, Meta(description="of its turn; a cell's blocks of a lower one do not count")
    ] = 0
    is_stopped: Annotated[
        bool, Meta(description="its children had been stopped since the block before ended")
    ] = False
    loss: float | None = None
    checksum: float | None = None
    warmup: bool = False
    status: Literal["ok", "dropped"] = "ok"
    part: Part = 0
    schema: Literal[2] = SCHEMA


class Startup(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="startup"):
    """One launch, from engine call to exit, on the clocks of the controller and the host."""

    cell: str
    arm: str
    repetition: Count
    order: Count
    engine_ns: Annotated[Count, Meta(description="engine call to process entry")]
    import_ns: Count
    data_ns: Count
    build_ns: Count
    first_step_ns: Count
    train_ns: Annotated[Count, Meta(description="the remaining steps of the short training run")]
    exit_ns: Annotated[Count, Meta(description="quit sent to exit seen")]
    real_ns: Annotated[
        Count, Meta(description="spawn to exit on the controller's clock; of a restart the sum")
    ]
    user_ns: Annotated[Count | None, Meta(description="null if the launch measured more")] = None
    sys_ns: Annotated[Count | None, Meta(description="likewise")] = None
    train_steps: Count
    page_cache: Literal["warm", "cold", "unknown"] = "unknown"
    status: Literal["ok", "dropped"] = "ok"
    schema: Literal[2] = SCHEMA


class Memory(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="memory"):
    """Peaks of one generation, measured in the worker's process."""

    cell: str
    arm: str
    restart: Count
    generation: Count
    max_rss_bytes: Count
    cgroup_peak_bytes: Count | None = None
    cuda_allocated_peak_bytes: Count | None = None
    cuda_reserved_peak_bytes: Count | None = None
    part: Part = 0
    schema: Literal[2] = SCHEMA


class ProcessRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="process"):
    """One whole process of a plain command, timed by a launcher inside the arm.

    The statistics treat it as a restart with one generation of one round.
    """

    cell: str
    arm: str
    number: Annotated[Count, Meta(description="of the pass through all arms, from 0")]
    order: Annotated[Count, Meta(description="position of the arm within its pass, from 0")]
    t0_ns: Annotated[Count, Meta(description="CLOCK_MONOTONIC of the host before the start")]
    wall_ns: Annotated[Count, Meta(description="just before the program is started to its exit")]
    user_ns: Annotated[
        Count | None,
        Meta(description="of the program and the children it waited for; null: in a container"),
    ]
    sys_ns: Annotated[Count | None, Meta(description="likewise, inside the kernel")]
    real_ns: Annotated[Count, Meta(description="engine call to exit on the controller's clock")]
    max_rss_bytes: Count | None = None
    exit_code: Count
    values: Annotated[dict[str, float], Meta(description="picked from what it printed")] = {}
    warmup: bool = False
    status: Literal["ok", "failed"] = "ok"
    schema: Literal[2] = SCHEMA

    @property
    def restart(self) -> int:
        """Return its pass, since each process is a fresh start."""
        return self.number

    @property
    def generation(self) -> int:
        """Return the only generation of its restart."""
        return 0

    @property
    def round(self) -> int:
        """Return the only round of its generation."""
        return 0


class GpuReading(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gpu"):
    """Readings from NVIDIA's management library for one GPU in part of a timing or energy pass.

    Lists have an entry for each reading; None is a value that the library refused.
    """

    cell: str
    uuid: str
    t_ns: Annotated[tuple[Count, ...], Meta(description="CLOCK_MONOTONIC of the host")]
    power_mw: tuple[Count | None, ...]
    has_instant_power: Annotated[
        bool, Meta(description="else the power is a mean, on most GPUs over a second")
    ] = False
    energy_mj: Annotated[tuple[Count | None, ...], Meta(description="since the driver was loaded")]
    sm_mhz: tuple[Count | None, ...]
    memory_mhz: tuple[Count | None, ...]
    temperature_c: tuple[Count | None, ...]
    throttling: Annotated[tuple[int | None, ...], Meta(description="nvmlClocksThrottleReasons")]
    utilization_percent: tuple[Count | None, ...]
    schema: Literal[2] = SCHEMA


class EnergyBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="energy"):
    """Steps of one arm in the energy pass, long enough for power readings.

    No comparison uses its time.
    """

    cell: str
    arm: str
    round: Annotated[Count, Meta(description="of the energy pass, from 0")]
    order: Annotated[Count, Meta(description="position of the arm within its round, from 0")]
    k: Count
    t0_ns: Annotated[Count, Meta(description="CLOCK_MONOTONIC of the host at the first step")]
    wall_ns: Annotated[Count, Meta(description="from the first step to the end of the last")]
    schema: Literal[2] = SCHEMA


class Epoch(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="epoch"):
    """One epoch of one arm in training to a goal, with the metric at its end.

    No comparison of steps uses its time.
    """

    cell: str
    arm: str
    restart: Annotated[Count, Meta(description="of the way to the goal, from 0")]
    epoch: Annotated[Count, Meta(description="from 1")]
    order: Annotated[Count, Meta(description="position of the arm within its epoch, from 0")]
    k: Annotated[Count, Meta(description="timed steps; the first of all only if no other is")]
    wall_ns: Annotated[Count, Meta(description="of these steps")]
    wait_ns: Annotated[
        Count | None, Meta(description="for a CPU that others held, in these steps; null: unknown")
    ] = None
    evaluate_ns: Annotated[Count, Meta(description="afterwards; in no other time")]
    value: Annotated[float | None, Meta(description="of the goal's metric; null is no number")]
    is_last: Annotated[bool, Meta(description="the goal is reached, or no epoch is left")] = False
    schema: Literal[2] = SCHEMA


class MarkedBlock(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="marked"):
    """Steps of one arm with marks, after the rounds of a restart: where their time goes.

    The marks cost time, so no verdict uses these steps; all arms have the same marks.
    """

    cell: str
    arm: str
    restart: Count
    generation: Count
    round: Annotated[Count, Meta(description="of the marked rounds of the restart, from 0")]
    order: Annotated[Count, Meta(description="position of the arm within its round, from 0")]
    k: Annotated[int, Meta(ge=1, le=10**18)]
    phases: Annotated[
        dict[StepPhase, OperatorTimes],
        Meta(
            description="ns of all k steps by phase and operator; without a name what no operator "
            "took, and `(all others)` those below a thousandth of the steps"
        ),
    ]
    calibration: Annotated[Count, Meta(description="as that of the blocks")] = 0
    part: Part = 0
    schema: Literal[2] = SCHEMA


Measured = Block | ProcessRun
"""The samples that a verdict can use."""

Sample = Block | Startup | Memory | ProcessRun | GpuReading | EnergyBlock | Epoch | MarkedBlock
OfRestart = Block | Memory | MarkedBlock


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure: its three sentences, its phase and the path of its log."""

    phase: Phase
    brief: str
    details: str = ""
    hint: str = ""
    exit_code: int | None = None
    log: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a host, a cell or an arm; `t` is UTC seconds since 1970.

    The values of `identity` describe a host, or an arm on it. The first such event of each counts:
    a run resumes if all values but `boot.id` are unchanged. Otherwise it needs --allow-mismatch,
    and a further event has the new values.
    """

    t: float
    what: EventKind
    host: str = ""
    cell: str = ""
    arm: str = ""
    text: str = ""
    state: CellState | None = None
    failure: Failure | None = None
    values: dict[str, Scalar] = {}
    clock_s: Annotated[
        float | None, Meta(description="of a clock that no one sets; for differences in one part")
    ] = None
    schema: Literal[2] = SCHEMA


class EventParts(TypedDict, total=False):
    """Optional details of an event of a cell."""

    arm: str
    text: str
    state: CellState | None
    failure: Failure | None
    values: dict[str, Scalar]


class PlacedEventParts(EventParts, total=False):
    """The same with the place; without a host, a cell or an arm it concerns all of them."""

    host: str
    cell: str


def event_now(what: EventKind, **parts: Unpack[PlacedEventParts]) -> Event:
    """Return an event with the current time."""
    return Event(t=time.time(), clock_s=time.monotonic(), what=what, **parts)


class ArmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An arm as planned; `reference` is a user's image, SIF or line, empty if built."""

    id: str
    environment: str
    stack: Literal["image", "host", "line"] = "image"
    reference: str = ""
    is_plain: Annotated[
        bool | None, Meta(description="a process of the host, isolated by nothing; null: unknown")
    ] = None
    limit_command: Annotated[
        str, Meta(description="whose options limit CPUs and memory, as in `docker run`")
    ] = ""
    takes_options: Annotated[
        bool, Meta(description="whether the user may choose options of that command")
    ] = False
    options: Annotated[
        tuple[str, ...], Meta(description="the user's, of the command that starts a container")
    ] = ()
    parameters: Annotated[
        dict[str, Scalar], Meta(description="of the workload, in addition to those of the cell")
    ] = {}
    rung: Annotated[
        str, Meta(description="what it adds to the arm below it on the ladder; empty: no rung")
    ] = ""
    within: Annotated[
        str, Meta(description="the arm of --envs whose values are compared, where it has several")
    ] = ""
    is_reference: bool = False
    is_control: bool = False
    is_timed: Annotated[
        bool, Meta(description="false where all that is known are imported profiles")
    ] = True


class CellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A cell as planned; `id` is host/workload/k=v,… with sorted keys."""

    id: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    is_program: bool = False  # a plain command, timed as whole processes
    within: Annotated[
        str, Meta(description="the arms that are compared in it; empty: all of the run")
    ] = ""
    hosts: Annotated[
        tuple[str, ...], Meta(description="over which its ranks are spread; empty: its host alone")
    ] = ()


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """The end of training: a metric at or above a value, or a number of epochs."""

    metric: str
    value: float
    epochs: Annotated[int, Meta(ge=1)]


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """How the run measures: margin and target as fractions (0.02 is 2 %), budget in seconds."""

    preset: Literal["quick", "default", "strict"]
    margin: Annotated[float, Meta(gt=0, lt=1)]
    target: Annotated[float, Meta(gt=0)]
    budget_s: Annotated[float, Meta(ge=0)]  # 0, like all that follows, if nothing was timed
    min_restarts: Annotated[int, Meta(ge=0)]
    gpu_restarts: Annotated[
        int, Meta(ge=0, description="likewise where a GPU works; 0: as many as elsewhere")
    ] = 0
    restarts: Annotated[
        int | None, Meta(description="exactly so many; null: as many as are needed")
    ] = None
    rounds: Annotated[int | None, Meta(description="of a restart, likewise")] = None
    steps: Annotated[int | None, Meta(description="of a block; null: as calibrated")] = None
    sessions: Annotated[
        int, Meta(ge=1, description="in each of which an equal part of the budget is measured")
    ] = 1
    threads: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="null: as many as each arm itself has")
    ]
    pin: tuple[int, ...] | None = None
    has_startup: bool = True
    train_steps: int = 10
    cold_start: bool = False
    quiet_gate: bool = True
    quiet_pressure: float = 10.0  # percent of the time in which a task waits for a CPU
    quiet_load: float | None = None  # tasks that want a CPU, including ours; None: CPUs + 1
    stabilise: bool = False
    same_cpu: bool = False  # for all arms of a round, if each has a single thread
    noise_memory: bool = False
    marks: Annotated[
        bool, Meta(description="phases and operators are timed in some rounds of each restart")
    ] = False
    screen: bool = False
    until: Annotated[Goal | None, Meta(description="trained to, after the timing")] = None
    profile: Annotated[
        ProfileChoice, Meta(description="after the timing: all that is possible, no counters, none")
    ] = "none"

    def on_gpu(self) -> Design:
        """Return the design of a cell with work on a GPU."""
        least = max(self.min_restarts, self.gpu_restarts)
        return msgspec.structs.replace(self, min_restarts=least)


class HostGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts of a run that form one side of a comparison."""

    name: str
    hosts: tuple[str, ...]


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """run.json: all decisions before the first measurement."""

    run_id: str
    created: str
    seed: int
    title: str = ""
    tool_version: str
    tool_commit: Annotated[
        str, Meta(description="of git; `modified` follows where it was changed; empty: not known")
    ] = ""
    command_line: tuple[str, ...] = ()
    design: Design
    arms: tuple[ArmRecord, ...]
    cells: tuple[CellRecord, ...]
    configuration: Annotated[str, Meta(description="the resolved experiment as TOML text")] = ""
    groups: Annotated[
        tuple[HostGroup, ...],
        Meta(description="of hosts that are compared, the others with the first; none: no groups"),
    ] = ()
    controller: dict[str, Scalar] = {}
    schema: Literal[2] = SCHEMA


class FingerprintRecord(msgspec.Struct, frozen=True, kw_only=True):
    """fingerprints/<host>/<arm>/<cell>.json: a worker's facts, and the proof of its stack."""

    host: str
    arm: str
    cell: str = ""
    facts: dict[str, FingerprintValue]
    identity: dict[str, Scalar] = {}
    taken: Annotated[
        Taken, Meta(description="before any work, or after steps, which load libraries late")
    ] = "start"
    schema: Literal[2] = SCHEMA


class IdentityChange(msgspec.Struct, frozen=True, kw_only=True):
    """A property of a host, or of an arm on it, that changed before the run was resumed."""

    host: str
    arm: Annotated[str, Meta(description="empty where it is a property of the host")] = ""
    key: str
    before: Annotated[Scalar, Meta(description="when it was first prepared; null is not known")]
    after: Scalar


class FactDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One property of an arm that differs from the reference on a host."""

    host: str
    arm: str
    key: str
    reference: FingerprintValue
    value: FingerprintValue
    fact_class: FactClass
    sentence: str = ""
    evidence: Annotated[str, Meta(description="what was seen that tells whether it is felt")] = ""
    is_felt: Annotated[
        bool | None, Meta(description="the workload was seen to use it; null where nothing tells")
    ] = None
    remedy: Annotated[str, Meta(description="what tells its part from the environment's")] = ""
    part_of: Annotated[str, Meta(description="the key of the difference that includes it")] = ""


class ProofShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share of the gap between two lines that a change closes; 1 is all of it."""

    value: float
    low: Annotated[float, Meta(description="of its 95 % interval")]
    high: float


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The slow line with one or more properties of the fast line, in a search or its end."""

    keys: tuple[str, ...]
    what: Annotated[str, Meta(description="such as: the limit nofile 20000 → 1024")]
    line: Annotated[str, Meta(description="as it was run, without secrets")]
    files: Annotated[
        tuple[str, ...], Meta(description="of the image that became the fast line's, at most 1000")
    ] = ()
    share: ProofShare | None = None
    failed: Annotated[str, Meta(description="why it has no share")] = ""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """proof.json: what was changed to find the cause of a difference between two arms."""

    arm: Annotated[str, Meta(description="whose comparison with the reference it explains")]
    cell: Annotated[str, Meta(description="where; of an older version empty: the only one")] = ""
    slow: Annotated[str, Meta(description="the arm that was changed")]
    outcome: Annotated[
        Literal["cause", "contributes", "not-proven", "none"],
        Meta(
            description="cause: more than half of the gap in fresh rounds, whole interval; "
            "contributes: more than the placebo; none: nothing tried closes much"
        ),
    ]
    confirmed: Trial | None = None  # in fresh rounds
    placebo: ProofShare | None = None  # in the same rounds
    mend: str = ""
    cost: Annotated[str, Meta(description="in safety")] = ""
    tried: tuple[Trial, ...] = ()
    runs: Annotated[tuple[str, ...], Meta(description="folders, below that of the run")] = ()
    schema: Literal[2] = SCHEMA
