"""The cell that the passes measure: its arms and what is known of them, its rules, its recorder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from typing_extensions import Unpack

from envcompare.command import CommandResult
from envcompare.config.plan import derive_seed
from envcompare.errors import (
    EnvcompareError,
    InterruptedRunError,
    Phase,
    StillRunningError,
    WorkloadError,
)
from envcompare.fingerprint.comparing import changes, ended
from envcompare.interrupt import Interruption
from envcompare.measure import Facts, Values, Variables, stable_variables, with_parameters
from envcompare.measure.limits import ClockWatch, StopReason, begin_limit_s, limit_s, stop_reason
from envcompare.measure.replies import Hello, LaunchSpec, Placed
from envcompare.measure.worker import Worker
from envcompare.run_folder.history import elapsed_s, own_left_s
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
from envcompare.text import masked

# A worker that merely died is launched once more, in the next restart; one that died with its
# engine more often, since that says nothing of the arm.
_RETRIES: Mapping[Phase, int] = {"process": 1, "environment": 3}
_WARMUP_STEPS = 3  # what is loaded late, or chosen by trial, is so before anything is seen
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
        """Return how long to wait for a worker, or for its setup with the first step."""
        return begin_limit_s(self.design.budget_s, remaining_s=self.remaining_s)

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
def surviving(
    context: CellContext,
    arm: str,
    *,
    what: str,
    drop: Callable[[], None],
    event: EventKind = "note",
) -> Iterator[None]:
    """Continue a pass outside the timing if a worker of an arm fails in the body.

    Record an `event` that says `what` no longer happens, and why. Any event but a note is a failure
    of the arm, and so is a violation of the protocol. Raises StillRunningError if something is
    still computing.
    """
    try:
        yield
    except StillRunningError:
        raise
    except WorkloadError as error:
        context.check_interruption()
        drop()
        is_failure = event != "note" or error.phase == "protocol"
        failure = failure_of(error) if is_failure else None
        context.note(event, arm=arm, text=f"{what}: {error.brief}", failure=failure)


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
            design=context.design,
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
