"""The cell that the passes measure: its arms and what is known of them, its rules, its recorder.

The quiet gate waits before a launch while others want the CPUs of the host. A first glance at the
averages of the kernel costs one command. They still hold the launches of our own workers, so that
they only raise a suspicion; a second look, over 0.2 s in which no worker of ours computes, decides.
Neither looks at the time of any arm. Before a launch, when no worker of ours lives, the GPU is
looked at too: every process that computes on it then is a stranger's.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from typing_extensions import Unpack

from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    InterruptedRunError,
    Interruption,
    Phase,
    WorkloadError,
)
from envcompare.fingerprint.comparing import changes, ended
from envcompare.gpu import throttle_causes
from envcompare.measure import (
    Facts,
    Hello,
    LaunchSpec,
    Placed,
    Values,
    Variables,
    derive_seed,
    stable_variables,
    with_parameters,
)
from envcompare.measure.limits import (
    ClockWatch,
    StopReason,
    begin_limit_s,
    block_limit_s,
    limit_s,
    stop_reason,
)
from envcompare.measure.worker import Worker
from envcompare.run_folder import elapsed_s, own_left_s
from envcompare.run_folder.records import (
    Design,
    Event,
    EventKind,
    EventParts,
    Failure,
    IdentityChange,
    Sample,
    Taken,
    event_now,
)
from envcompare.stats.intervals import Interval
from envcompare.stats.metrics import Readings, look
from envcompare.stats.typical import Spread, is_look, restarts_before_a_look
from envcompare.stats.verdicts import least_steps
from envcompare.text import CommandResult, counted, first_few, masked

# A worker that merely died is launched once more, in the next restart; one that died with its
# engine more often, since that says nothing of the arm.
_RETRIES: Mapping[Phase, int] = {"process": 1, "environment": 3}
# What is loaded late or chosen by trial must be over before anything is looked at.
_WARMUP_STEPS = 3
_BEGIN_LIMIT_S = 300.0  # for a start, and for a setup with the first step, under a profiler
_FIRST_BEGIN_LIMIT_S = 60.0  # for a start that can be tried again

Launch = Callable[[str, Variables], Worker]
"""Starts the worker of an arm without waiting, with these additional variables."""


class Recorder(Protocol):
    """Takes what a pass finds and keeps it at once."""

    def sample(self, sample: Sample) -> None:
        """Keep one measurement."""
        ...

    def event(self, event: Event) -> None:
        """Keep one event."""
        ...

    def fingerprint(self, arm: str, facts: Facts, *, taken: Taken) -> tuple[IdentityChange, ...]:
        """Keep what a worker found around itself; a later one takes the place of an earlier.

        The first part of a resumed run keeps its own; the software that differs from it is
        returned.
        """
        ...

    def progress(self, intervals: dict[str, Interval | None], context: CellContext) -> None:
        """Show how far the cell is: the live intervals and the time left."""
        ...


@dataclass(slots=True)
class Budget:
    """The seconds that a cell may still take; its clock stops while other cells are served.

    A finished cell leaves its remaining time to the cells that share its launches.
    """

    left_s: float
    share_s: float  # the part of what all cells have left that share their launches
    given_s: float = 0.0  # by other cells, or as overtime
    _since_s: float | None = None  # on the monotonic clock; None while it is stopped

    @classmethod
    def of(cls, whole_s: float, events: Sequence[Event] = ()) -> Budget:
        """Return what is left by the events of a cell, the whole where it has none.

        `left_s` is right for all cells together: events count a launch for the cell that it served
        first.
        """
        return cls(whole_s - elapsed_s(events), own_left_s(events, whole_s=whole_s))

    @classmethod
    def running(cls, left_s: float) -> Budget:
        """Return a budget whose clock runs from now on."""
        return cls(left_s, left_s, _since_s=time.monotonic())

    @property
    def remaining_s(self) -> float:
        """Return the seconds left; negative when it is overspent."""
        return self.left_s - (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    def give(self, seconds: float) -> None:
        """Add to it what other cells leave, or overtime; less than nothing is spent."""
        self.left_s += seconds
        self.given_s += max(0.0, seconds)

    def stop(self) -> None:
        """Stop its clock."""
        self._set(runs=False)

    @contextmanager
    def counting(self, *, on: bool = True) -> Iterator[None]:
        """Run its clock, or stop it, during the body."""
        ran = self._since_s is not None
        self._set(runs=on)
        try:
            yield
        finally:
            self._set(runs=ran)

    def _set(self, *, runs: bool) -> None:
        self.left_s, self._since_s = self.remaining_s, time.monotonic() if runs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellContext:
    """One cell made ready: who takes part, how a worker of an arm is launched, and the rules."""

    cell: str
    host: str
    arms: tuple[str, ...]  # all that are usable here, reference and control among them
    reference: str
    control: str
    launch: Launch
    log_of: Callable[[str], tuple[Path, str]]  # of an arm: the file, and its name in the run folder
    spec: LaunchSpec
    design: Design
    seed: int
    comparisons: int
    recorder: Recorder
    on_host: Callable[[str], CommandResult]  # runs a fixed script of sh on the host itself
    interruption: Interruption
    budget: Budget
    waited_s: float = 0.0  # for a quiet machine, before an interruption
    has_gpu: bool = False  # which the workload is to use
    values: dict[str, Values] = field(default_factory=dict)  # of parameters, by arm
    placed: dict[str, Placed] = field(default_factory=dict)  # where the data lie, by arm
    noise: Spread = field(default_factory=Spread)  # how far restarts are expected to scatter here

    @property
    def remaining_s(self) -> float:
        """Return the seconds left of the budget; negative when it is overspent."""
        return self.budget.remaining_s

    @property
    def begin_limit_s(self) -> float:
        """Return how long to wait for a worker or its first step; a script also begins then."""
        limit = begin_limit_s(self.design.budget_s, remaining_s=self.remaining_s)
        return max(limit, self.remaining_s / 2) if self.is_line else limit

    def turn_limit_s(self, expected_s: float) -> float:
        """Return how long to wait for a turn; a step of a line may hold an evaluation."""
        return max(block_limit_s(expected_s), self.is_line * self.begin_limit_s)

    @property
    def is_line(self) -> bool:
        """Return whether a script of the user takes the steps."""
        return bool(self.spec.cwd)

    def seed_of(self, purpose: str, *numbers: int) -> int:
        """Return what to draw with in this cell for a purpose, the same in a resumed run."""
        return derive_seed(self.seed, purpose, self.cell, *numbers)

    def spec_of(self, arm: str) -> LaunchSpec:
        """Return the spec of an arm's worker: the cell's parameters, and those of the arm."""
        spec = with_parameters(self.spec, self.values.get(arm, {}))
        return msgspec.structs.replace(spec, place=self.placed.get(arm))

    def untimed_spec(self, arm: str) -> LaunchSpec:
        """Return the spec of a worker that serves one generation outside the timing."""
        spec = self.spec_of(arm)
        return msgspec.structs.replace(spec, generation="rebuild", fingerprint=False)

    def is_same_work(self, arm: str) -> bool:
        """Tell whether an arm has the same parameters as the reference."""
        return self.values.get(arm) == self.values.get(self.reference)

    def variables(self, restart: int) -> Variables:
        """Return the variables that every worker of a restart is started with, in all cells."""
        return stable_variables(self.seed, self.host, restart) if self.design.stabilise else ()

    def check_interruption(self) -> None:
        """Raise InterruptedRunError when the user asked to stop."""
        if self.interruption.is_requested:
            raise InterruptedRunError(
                "interrupted", hint="resume with `envcompare run --resume` and the run folder"
            )

    def note(self, what: EventKind, **parts: Unpack[EventParts]) -> None:
        """Record an event of this cell."""
        self.recorder.event(event_now(what, host=self.host, cell=self.cell, **parts))


def failure_of(error: EnvcompareError, phase: Phase = "process") -> Failure:
    """Return the record of an error, masked; a fault inside an arm names its phase itself."""
    brief, details, hint = map(masked, (error.brief, error.details, error.hint))
    failure = Failure(phase=phase, brief=brief, details=details, hint=hint)
    if not isinstance(error, WorkloadError):
        return failure
    return msgspec.structs.replace(
        failure, phase=error.phase, exit_code=error.worker_exit_code, log=error.log
    )


@contextmanager
def started(
    launch: Callable[[], Worker], spec: LaunchSpec, *, starts: int = 1
) -> Iterator[tuple[Worker, Hello]]:
    """Yield a worker that has said hello, then end it and the processes around it.

    If its process ends or is silent instead, it is started again, up to `starts` times in all. Each
    is ended with what it leaves, such as the agent of nsys. Raises WorkloadError if it does not
    start, TransportError when the host is lost.
    """
    for further in reversed(range(starts)):
        worker = launch()
        try:
            worker.send_hello(spec)
            try:
                hello = worker.await_hello(_FIRST_BEGIN_LIMIT_S if further else _BEGIN_LIMIT_S)
            except WorkloadError as error:
                if further and error.phase == "process":
                    continue
                raise
            yield worker, hello
            return
        finally:
            worker.kill()


def warmed_up(context: CellContext, worker: Worker) -> float:
    """Bring a worker past its first steps, in which things are loaded; return what one took."""
    worker.send_begin(context.seed_of("profile model") % 2**31, 0)
    begun = worker.await_begin(_BEGIN_LIMIT_S)
    limit = limit_s(_BEGIN_LIMIT_S, _WARMUP_STEPS, begun.first_step_ns / 1e9)
    ran = worker.run(_WARMUP_STEPS, limit)
    return sum(ran.wall_ns) / len(ran.wall_ns) / 1e9


def failed_for_good(events: Iterable[Event]) -> set[str]:
    """Return the arms that failed more often in a phase than a roster launches them again."""
    failures = ((e.arm, e.failure) for e in events if e.what == "arm-failed")
    failed = Counter((arm, failure.phase) for arm, failure in failures if failure)
    return {
        arm
        for (arm, phase), times in failed.items()
        # those of an engine are noted only once it is given up
        if phase == "environment" or times > _RETRIES.get(phase, 0)
    }


@dataclass(slots=True)
class Roster:
    """What is known of the arms of a cell over all its restarts."""

    context: CellContext
    failed: dict[str, Failure] = field(default_factory=dict)
    hellos: dict[str, Hello] = field(default_factory=dict)
    generation: str = ""  # how all arms begin one, where they would not all do it alike
    before: dict[str, Values] = field(default_factory=dict)  # the work before an interruption
    allow_mismatch: bool = False  # go on where it is another, and say so
    clocks: ClockWatch = field(default_factory=ClockWatch)
    looked_after_steps: set[str] = field(default_factory=set)  # arms with their whole fingerprint
    exhausted: set[str] = field(default_factory=set)  # scripts that ended, and that was said
    is_unchecked: bool = False  # no arm has a first loss to compare, and that was said
    _deaths: Counter[tuple[str, Phase]] = field(default_factory=Counter)
    _mixed: set[tuple[str, str]] = field(default_factory=set)  # said of an arm and a property

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms that still take part."""
        return tuple(arm for arm in self.context.arms if arm not in self.failed)

    @property
    def compared(self) -> tuple[str, ...]:
        """Return the arms under comparison; the control where it is the only one planned."""
        left_out = {self.context.reference}
        if not set(self.context.arms) <= {self.context.reference, self.context.control}:
            left_out.add(self.context.control)
        return tuple(arm for arm in self.arms if arm not in left_out)

    @property
    def gpu_uuid(self) -> str:
        """Return the GPU that the reference runs on; empty where none is known."""
        hello = self.hellos.get(self.context.reference)
        return str(((hello.fingerprint if hello else None) or {}).get("gpu.uuid") or "")

    def intervals(
        self, readings: Readings, *, is_out_of_budget: bool = False
    ) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        context = self.context
        return look(
            readings,
            self.compared,
            reference=context.reference,
            design=readings.design(context.design),
            m=context.comparisons,
            prior=context.noise,
            is_out_of_budget=is_out_of_budget,
        )

    def why_done(
        self, readings: Readings, *, min_restarts: int
    ) -> StopReason | Literal["failure"] | None:
        """Return why nothing more is to be measured, None where the budget alone can end it.

        Processes are looked at after each round: their rule holds at all looks together. Restarts
        that scatter far end nothing before there are six: how far is not known sooner. Nothing
        ends a session early: each is to have its share of the time. In the first half of the budget
        narrow intervals end nothing while rare slow steps that matter may not have shown.
        """
        if self.context.reference in self.failed or not self.compared:
            return "failure"
        min_restarts = restarts_before_a_look(min_restarts, is_wide=self.is_wide(readings))
        if self.context.design.restarts is not None or self.context.design.sessions > 1:
            return None
        if not (readings.is_program or is_look(readings.restarts, min_restarts)):
            return None
        intervals = self.intervals(readings).values()
        design = self.context.design
        reason = stop_reason(intervals, design=design, min_restarts=min_restarts)
        steps = min((readings.steps(arm) for arm in self.arms), default=0)
        is_short = not readings.is_program and steps < least_steps(design.margin)
        is_early = self.context.remaining_s > design.budget_s / 2
        return None if is_short and is_early and reason in {"target", "equivalent"} else reason

    def is_wide(self, readings: Readings) -> bool:
        """Tell whether restarts scatter so far that they are the units of an interval."""
        if readings.is_program:
            return False
        context = self.context
        metric, _ = readings.primary
        return any(
            readings.spread(arm, context.reference, metric, context.noise).is_wide
            for arm in self.compared
        )

    def fail(self, arm: str, failure: Failure) -> None:
        """Take an arm out for good, or for this restart when its worker died the first time."""
        self._deaths[arm, failure.phase] += 1
        is_over = self.context.remaining_s <= 0
        # what a living worker says its environment lacks is lacking in the next restart as well
        is_lacking = failure.phase == "environment" and failure.exit_code is None
        is_last = is_lacking or self._deaths[arm, failure.phase] > _RETRIES.get(failure.phase, 0)
        if failure.phase == "environment" and not (is_last or is_over):
            text = f"{failure.brief}; {arm} was not measured in this restart"
            self.context.note("caution", arm=arm, text=text)
            return
        self.context.note("arm-failed", arm=arm, text=failure.brief, failure=failure)
        if is_last or is_over:
            self.failed[arm] = failure

    def changed(self, arm: str, now: Values) -> Failure | None:
        """Return why an arm must end: its work is not what was measured before an interruption."""
        host = self.context.host
        return self.refused(arm, changes(self.before.get(arm, now), now, host=host, arm=arm))

    def refused(self, arm: str, changed: tuple[IdentityChange, ...]) -> Failure | None:
        """Return why an arm that changed must end; said once of a property where it may go on."""
        if changed and not self.allow_mismatch:
            return ended(arm, changed)
        new = tuple(change for change in changed if (arm, change.key) not in self._mixed)
        if new:
            self._mixed.update((arm, change.key) for change in new)
            text = f"{ended(arm, new).brief}; its numbers come from both states (--allow-mismatch)"
            self.context.note("caution", arm=arm, text=text)
        return None


SHARE = 0.2  # of the budget of a cell, at most
POLL_S = 2.0
# GNU nproc takes the threads of OpenMP for CPUs, where these variables are set
_NPROC = "unset OMP_NUM_THREADS OMP_THREAD_LIMIT; nproc; "
_GLANCE = _NPROC + "cat /proc/loadavg /proc/pressure/cpu 2>/dev/null"
_LOOK = (
    f"{_NPROC}for i in 1 2 3; do cat /proc/uptime /proc/loadavg; "
    "cat /proc/pressure/cpu 2>/dev/null; test $i = 3 || sleep 0.1; done"
)
# Each query by itself: nvidia-smi answers none of its fields where it does not know one, and the
# reasons of clocks have another name from driver 535 on. The name of a process has 15 characters
# in /proc, which both programs of MPS share.
# An nvidia-smi that waits for its driver is killed, so that none goes on during the measurement.
_GPUS = """command -v nvidia-smi >/dev/null 2>&1 || exit 0
limit=; ! command -v timeout >/dev/null || limit="timeout -s KILL 20"
ask() { $limit nvidia-smi "--query-$2" --format=csv,noheader 2>/dev/null | sed "s/^/$1, /"; }
ask mode gpu=uuid,compute_mode
ask clocks gpu=uuid,clocks_event_reasons.active
ask clocks gpu=uuid,clocks_throttle_reasons.active
ask process compute-apps=gpu_uuid,pid,process_name
cat /proc/[0-9]*/comm 2>/dev/null | grep -q "^nvidia-cuda-mps" && echo mps
true
"""
_MASK = re.compile("0x[0-9a-fA-F]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpusSeen:
    """What nvidia-smi says of a host's GPUs, each by its UUID, and whether MPS shares them."""

    modes: dict[str, str]
    limits: dict[str, tuple[str, ...]]  # what holds the clocks down
    processes: tuple[tuple[str, str], ...]  # UUID of the GPU, and "PID name"
    has_mps: bool = False

    def of(self, uuid: str) -> tuple[str, ...]:
        """Return the GPUs that may be the one of a UUID: all where it is not known."""
        return (uuid,) if uuid in self.modes else tuple(self.modes)


def _parse_gpus(text: str) -> _GpusSeen | None:
    modes: dict[str, str] = {}
    limits: dict[str, tuple[str, ...]] = {}
    processes: list[tuple[str, str]] = []
    for line in text.splitlines():
        match [part.strip() for part in line.split(",", 3)]:
            case ["mode", uuid, mode] if uuid.startswith("GPU-"):
                modes[uuid] = mode
            case ["clocks", uuid, mask] if _MASK.fullmatch(mask):
                limits[uuid] = throttle_causes(int(mask, 16))
            case ["process", uuid, pid, name] if pid.isdecimal() and "nvidia-cuda-mps" not in name:
                processes.append((uuid, f"{pid} {name.rpartition('/')[2]}"))
    if not modes:
        return None
    has_mps = "mps" in text.splitlines()
    return _GpusSeen(modes=modes, limits=limits, processes=tuple(processes), has_mps=has_mps)


def _gpu_cautions(seen: _GpusSeen, uuid: str) -> tuple[str, ...]:
    """Return what makes the GPU of a UUID unfit before anything runs on it, each with a remedy."""
    cautions = []
    if seen.has_mps:
        cautions.append(
            "the MPS daemon of CUDA runs on this host: plain processes share the GPU through it "
            "and containers usually do not; end it with `echo quit | nvidia-cuda-mps-control`"
        )
    for gpu in seen.of(uuid):
        mode = seen.modes[gpu]
        if mode.lower().startswith(("exclusive", "prohibited")):
            cautions.append(
                f"the compute mode of {gpu} is {mode}: it takes one process at a time at most, "
                "and every arm has one; run `sudo nvidia-smi -c DEFAULT`"
            )
        if limits := seen.limits.get(gpu):
            cautions.append(
                f"the clock of {gpu} is held down before anything runs on it ({', '.join(limits)}):"
                " let it cool, look at its power limit and supply, and measure again"
            )
    return tuple(cautions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the host said; None where it does not say it."""

    cpus: int
    load: float  # tasks that run or wait for a CPU
    pressure: float | None  # percent of the time in which some task waited for a CPU


def parse_glance(text: str) -> Reading | None:
    """Return the averages of the kernel: load of one minute, pressure of ten seconds."""
    try:
        cpus, loads, *pressure = text.splitlines()
        return Reading(
            cpus=int(cpus), load=float(loads.split()[0]), pressure=_field(pressure, "avg10")
        )
    except (ValueError, IndexError):
        return None


def parse_look(text: str) -> Reading | None:
    """Return what was seen over the samples: the fewest tasks, and the exact pressure between."""
    try:
        cpus, *lines = text.splitlines()
        size = len(lines) // 3
        samples = [lines[start : start + size] for start in range(0, 3 * size, size)]
        # the task that reads is running as well
        tasks = [int(sample[1].split()[3].partition("/")[0]) - 1 for sample in samples]
        seconds = float(samples[-1][0].split()[0]) - float(samples[0][0].split()[0])
        count = int(cpus)
        first, last = (_field(sample[2:], "total") for sample in (samples[0], samples[-1]))
    except (ValueError, IndexError):
        return None
    known = first is not None and last is not None and seconds > 0
    # the uptime has two decimals, so that the share may come out above the whole
    pressure = min(100.0, (last - first) / seconds / 1e4) if known else None  # type: ignore[operator]
    return Reading(cpus=count, load=max(0, min(tasks)), pressure=pressure)


def _field(lines: list[str], key: str) -> float | None:
    """Return a field of the line `some` (kernel: Documentation/accounting/psi.rst)."""
    for line in lines:
        kind, *fields = line.split()
        if kind == "some":
            return next(float(f.partition("=")[2]) for f in fields if f.startswith(f"{key}="))
    return None


@dataclass(slots=True)
class QuietGate:
    """The gate of one cell; `waited_s` grows up to a fifth of the budget, over resumptions too."""

    context: CellContext
    waited_s: float = field(init=False)
    _is_open: bool = field(default=False)  # for good: it was switched off, is blind, or has waited
    _is_gpu_open: bool = field(default=False)  # likewise
    _said: set[str] = field(default_factory=set)  # cautions about the GPU
    _cells: Sequence[CellContext] = ()  # the cells that a caution is for; its own where none is

    def __post_init__(self) -> None:
        self._is_open = not self.context.design.quiet_gate
        self._is_gpu_open = self._is_open or not self.context.has_gpu
        self.waited_s = self.context.waited_s

    def wait(self) -> None:
        """Wait while the host is busy, and record how long.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        if self._is_open:
            return
        seen = parse_glance(self._ask(_GLANCE))
        if seen is None:
            self._is_open = True
            self._caution(
                "the load of the host cannot be read there (nproc, /proc/loadavg): look at the "
                "stretch of each comparison, or give --no-quiet-gate"
            )
        elif self._is_busy(seen, to_come=0):
            self._wait_while_busy()

    def wait_to_launch(self, cells: Sequence[CellContext] = (), *, uuid: str = "") -> None:
        """Wait as `wait` does, and while others compute on the GPU of a UUID; empty: any.

        No worker of this run may live. The launch serves these cells, each of which gets what is
        to be said of the machine. Raises as `wait`.
        """
        self._cells = cells
        self.wait()
        if self._is_gpu_open:
            return
        seen = _parse_gpus(self._ask(_GPUS))
        if seen is None:
            self._is_gpu_open = True
            return
        for caution in _gpu_cautions(seen, uuid):
            if caution not in self._said:
                self._said.add(caution)
                self._caution(caution)
        # of several GPUs it is not known before the first launch which one will be used
        if len(seen.of(uuid)) == 1:
            self._wait_for_gpu(seen.of(uuid)[0], seen)

    def _wait_for_gpu(self, uuid: str, seen: _GpusSeen | None) -> None:
        began = time.monotonic()
        left_s = SHARE * self.context.design.budget_s - self.waited_s
        worst = strangers = _strangers(seen, uuid)
        try:
            while strangers and (spent_s := time.monotonic() - began) < left_s:
                self.context.check_interruption()
                time.sleep(min(POLL_S, left_s - spent_s))
                strangers = _strangers(_parse_gpus(self._ask(_GPUS)), uuid)
        finally:
            if worst:
                seconds = time.monotonic() - began
                self.waited_s += seconds
                text = f"waited {seconds:.0f} s for the GPU: {worst}"
                values: Values = {"seconds": seconds, "is_quiet": not strangers}
                self._waiting.note("waited", text=text, values=values)
        if strangers:
            self._is_gpu_open = True
            text = f"other processes used the GPU before this run did ({strangers})"
            self._caution(f"{text}: end them, or measure at a quieter time")

    def busy(self) -> str:
        """Return what keeps the host busy now; empty where it is quiet or does not say."""
        seen = self._look()
        return _reading_text(seen) if seen else ""

    def _wait_while_busy(self) -> None:
        began = time.monotonic()
        seen = self._look()
        if seen is None:
            return
        worst, left_s = seen, SHARE * self.context.design.budget_s - self.waited_s
        try:
            while seen is not None and (spent_s := time.monotonic() - began) < left_s:
                self.context.check_interruption()
                time.sleep(min(POLL_S, left_s - spent_s))
                seen = self._look()
        finally:
            # A wait that was interrupted is a part of the whole too.
            seconds = time.monotonic() - began
            self.waited_s += seconds
            self._waiting.note(
                "waited",
                text=f"waited {seconds:.0f} s for a quiet machine: {_reading_text(worst)}",
                values={
                    "seconds": seconds,
                    "pressure_percent": worst.pressure,
                    "tasks": worst.load,
                    "is_quiet": seen is None,
                },
            )
        if seen is not None:
            self._is_open = True
            text = f"the machine was still busy after waiting {self.waited_s:.0f} s"
            remedy = "measure at a quieter time, or raise --quiet-pressure and --quiet-load"
            self._caution(f"{text} ({_reading_text(worst)}): {remedy}")

    def _look(self) -> Reading | None:
        """Return what was seen where the host is busy, None where it is not."""
        seen = parse_look(self._ask(_LOOK))
        # The threads of our own worker are still to come, and need CPUs too.
        threads = self.context.design.threads or 1
        return seen if seen is not None and self._is_busy(seen, to_come=threads) else None

    def _is_busy(self, seen: Reading, *, to_come: int) -> bool:
        design = self.context.design
        most = design.quiet_load if design.quiet_load is not None else seen.cpus + 1
        under_pressure = seen.pressure is not None and seen.pressure > design.quiet_pressure
        return under_pressure or seen.load + to_come >= most

    @property
    def _waiting(self) -> CellContext:
        return self._cells[0] if self._cells else self.context

    def _caution(self, text: str) -> None:
        # What is wrong with the machine concerns every cell that is measured on it now.
        for context in self._cells or (self.context,):
            context.note("caution", text=text)

    def _ask(self, script: str) -> str:
        try:
            return self.context.on_host(script).stdout
        except CommandTimeoutError:
            return ""


def _strangers(seen: _GpusSeen | None, uuid: str) -> str:
    processes = [name for gpu, name in seen.processes if gpu == uuid] if seen else []
    return f"process {first_few(processes, most=3)}" if processes else ""


def _reading_text(worst: Reading) -> str:
    pressure = "" if worst.pressure is None else f"CPU pressure {worst.pressure:.0f} %, "
    return f"{pressure}{counted(round(worst.load), 'other task')} for {worst.cpus} CPUs"
