"""The workers that serve one cell in a restart: asked one at a time, dropped when they fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from msgspec.structs import replace

from envcompare.errors import Phase, TransportError, WorkloadError
from envcompare.fingerprint.identity import changes, ended, mixed_text
from envcompare.measure.context import (
    ANSWERING,
    CellContext,
    Facts,
    Values,
    failure_of,
    keep_surroundings,
)
from envcompare.measure.limits import (
    ClockWatch,
    StopReason,
    begin_limit_s,
    is_look,
    one_cpu_caution,
    stop_reason,
)
from envcompare.measure.pool import WorkerPool
from envcompare.measure.replies import Found, Hello, LaunchSpec
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Event, Failure, IdentityChange, Taken
from envcompare.stats.intervals import Interval
from envcompare.stats.metrics import Readings, look
from envcompare.stats.typical import restarts_before_a_look

_T = TypeVar("_T")
_TOLERANCE = 1e-4  # relative, of the first loss: what summing in another order may change
_LOOSE_TOLERANCE = 1e-2  # with TF32, bf16 or fp16
_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")  # what a workload may declare as its `precision`
# A worker that merely died is launched once more, in the next restart; one that died with its
# engine more often, since that says nothing of the arm.
_RETRIES: Mapping[Phase, int] = {"process": 1, "environment": 3}
_UNCHECKED = (
    "the first loss is not a finite number in any arm, so it cannot be checked that all do the "
    "same work"
)
_OTHER_VALUES = (
    "the arms compare values of {names}: their losses may differ and are not checked against each "
    "other"
)
_OUTLIVED = frozenset({*ANSWERING, "checksum"})
_PARTS_OF_WORK = ("batch", "device", "code_hash", "data_hash", "params")


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
        self, readings: Readings, *, is_looked: bool = True
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
            is_looked=is_looked,
        )

    def why_done(
        self, readings: Readings, *, min_restarts: int
    ) -> StopReason | Literal["failure"] | None:
        """Return why nothing more is to be measured, None where the budget alone can end it.

        Processes are looked at after each round: their rule holds at all looks together. Restarts
        that scatter far end nothing before there are six: how far is not known sooner.
        """
        if self.context.reference in self.failed or not self.compared:
            return "failure"
        min_restarts = restarts_before_a_look(min_restarts, is_wide=self.is_wide(readings))
        if self.context.design.restarts is not None:
            return None
        if not (readings.is_program or is_look(readings.restarts, min_restarts)):
            return None
        intervals = self.intervals(readings).values()
        return stop_reason(intervals, design=self.context.design, min_restarts=min_restarts)

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
            self.context.note("caution", arm=arm, text=mixed_text(ended(arm, new)))
        return None


@dataclass(slots=True)
class CellWorkers:
    """The workers of a launch while they serve one cell."""

    roster: Roster
    pool: WorkerPool
    _workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def context(self) -> CellContext:
        """Return the cell that is measured."""
        return self.roster.context

    @property
    def arms(self) -> tuple[str, ...]:
        """Return the arms whose worker is alive, in the order of the plan."""
        return tuple(arm for arm in self.context.arms if arm in self._workers)

    def begin(self, order: tuple[str, ...], *, is_alone: bool) -> dict[str, Hello]:
        """Take the worker of each arm, in this order, and let it load the data of the cell.

        With `is_alone` a worker is launched and loads its data while no other computes, else all do
        that at the same time. Return what they say. Raises TransportError when the host is lost.
        """
        context = self.context
        limit_s = begin_limit_s(context.design.budget_s, remaining_s=context.remaining_s)
        hellos: dict[str, Hello] = {}
        for together in [(arm,) for arm in order] if is_alone else [order]:
            self._take_up(together)
            taken = tuple(arm for arm in together if arm in self._workers)
            for arm in taken:
                self.tell(arm, partial(Worker.send_hello, spec=self._spec(arm)))
            hellos |= self.collect(taken, lambda worker: worker.await_hello(limit_s))
        for arm, hello in hellos.items():
            self._take_hello(arm, hello)
        if len({self.roster.hellos[arm].generation for arm in self.arms}) > 1:
            return self._rebuild_all(order, is_alone=is_alone)
        self._check_same()
        return hellos

    def _take_up(self, arms: tuple[str, ...]) -> None:
        """Take the worker of each arm, all that must be launched at the same time."""
        new = []
        for arm in arms:
            self.context.check_interruption()
            worker = self._workers[arm] = self.pool.take(arm, self.context)
            if not self.pool.is_up(arm, worker):
                self.tell(arm, self.pool.send_import)
                new.append(arm)
        for arm in new:
            self.ask(arm, partial(self.pool.await_import, arm, self.context))

    def _spec(self, arm: str) -> LaunchSpec:
        """Return what a worker is told; a fingerprint is taken once an arm."""
        spec = self.context.spec_of(arm)
        return replace(
            spec,
            fingerprint=arm not in self.roster.hellos,
            generation=self.roster.generation or spec.generation,
        )

    def _rebuild_all(self, order: tuple[str, ...], *, is_alone: bool) -> dict[str, Hello]:
        """Begin again where some arms would fork and others not: all must begin alike."""
        hellos = self.roster.hellos
        unable = next(arm for arm in self.arms if hellos[arm].generation == "rebuild")
        text = f"all arms rebuild, since {unable} cannot fork: {hellos[unable].generation_reason}"
        self.context.note("caution", text=text)
        self.roster.generation = "rebuild"
        self.give_back()
        left = tuple(arm for arm in order if arm not in self.roster.failed)
        return self.begin(left, is_alone=is_alone)

    def ask(self, arm: str, question: Callable[[Worker], _T]) -> _T | None:
        """Ask one worker; a fault drops its arm and gives None."""
        context = self.context
        context.check_interruption()
        try:
            return question(self._workers[arm])
        except WorkloadError as error:
            context.check_interruption()
            if arm not in self.roster.hellos:
                keep_surroundings(context, self._workers[arm], error)
            self.drop(arm, failure_of(error))
            return None

    def collect(self, arms: tuple[str, ...], question: Callable[[Worker], _T]) -> dict[str, _T]:
        """Ask several workers for what they were sent; who fails is dropped and left out."""
        answers = {arm: self.ask(arm, question) for arm in arms}
        return {arm: answer for arm, answer in answers.items() if answer is not None}

    def tell(self, arm: str, message: Callable[[Worker], None]) -> None:
        """Send one worker something to do, without waiting for it."""
        message(self._workers[arm])

    def drop(self, arm: str, failure: Failure) -> None:
        """Record why an arm is out; its worker serves other cells, where it still answers."""
        worker = self._workers.pop(arm)
        self.roster.fail(arm, failure)
        if failure.phase in _OUTLIVED and worker.stays:
            with suppress(WorkloadError):
                self.pool.give_back(arm, worker)
                return
        worker.kill()

    def look_around(self, *, is_last: bool = False) -> None:
        """Once an arm, ask the process that has run steps what is loaded and set by now.

        Nothing is timed meanwhile, and the generation ends next; the last look is at workers that
        the user has stopped, of which some may not answer any more.
        """
        arms = tuple(arm for arm in self.arms if arm not in self.roster.looked_after_steps)
        for arm in arms:
            self.tell(arm, Worker.send_facts)
        answers = self._last_facts(arms) if is_last else self.collect(arms, Worker.await_facts)
        for arm, answer in answers.items():
            hello = replace(self.roster.hellos[arm], fingerprint=answer.fingerprint)
            self.roster.hellos[arm] = hello
            self.roster.looked_after_steps.add(arm)
            self._keep(arm, answer.fingerprint, taken="step")

    def _last_facts(self, arms: tuple[str, ...]) -> dict[str, Found]:
        answers = {}
        for arm in arms:
            with suppress(WorkloadError, TransportError):
                answers[arm] = self._workers[arm].await_facts()
        return answers

    def give_back(self) -> None:
        """Let every worker end its work for this cell, and give it back."""
        for arm in self.arms:
            if self.ask(arm, partial(self._give_back, arm)):
                del self._workers[arm]

    def _give_back(self, arm: str, worker: Worker) -> bool:
        self.pool.give_back(arm, worker)
        return True

    def kill(self) -> None:
        """Kill what is still alive, all of it whatever one of them raises; safe to repeat."""
        with ExitStack() as killing:
            for worker in self._workers.values():
                killing.callback(worker.kill)
            self._workers.clear()

    def _take_hello(self, arm: str, hello: Hello) -> None:
        context, known = self.context, self.roster.hellos.get(arm)
        self.roster.hellos[arm] = hello
        if known is None:
            context.note("note", arm=arm, values=_work_of(hello))
            self._keep(arm, hello.fingerprint or {}, taken="start")
            if arm not in self._workers:
                return
            text = f"generations by {hello.generation}: {hello.generation_reason}"
            context.note(
                "arm-ready",
                arm=arm,
                text=text,
                values={"generation": hello.generation, "why": hello.generation_reason},
            )
            if arm == context.reference and (caution := one_cpu_caution(hello)):
                context.note("caution", text=caution)
            if arm == context.reference and arm in context.values:
                names = ", ".join(context.values[arm])
                context.note("caution", text=_OTHER_VALUES.format(names=names))
        else:
            self.roster.hellos[arm] = replace(hello, fingerprint=known.fingerprint)

    def _keep(self, arm: str, facts: Facts, *, taken: Taken) -> None:
        """Keep what a worker found; one with other software than before an interruption ends."""
        changed = self.context.recorder.fingerprint(arm, facts, taken=taken)
        failure = self.roster.refused(arm, changed)
        if failure is not None:
            self.drop(arm, failure)

    def _check_same(self) -> None:
        """Drop an arm that would not do the same work as the reference, or as before."""
        for arm in self.arms:
            failure = self.roster.changed(arm, _work_of(self.roster.hellos[arm]))
            if failure is not None:
                self.drop(arm, failure)
        reference = self.roster.hellos.get(self.context.reference)
        if reference is None:
            return
        for arm in self.arms:
            hello = self._as_compared(arm, self.roster.hellos[arm])
            expected = self._as_compared(arm, reference)
            for key in _PARTS_OF_WORK:
                here, there = getattr(hello, key), getattr(expected, key)
                if here != there:
                    self.drop(arm, _other_work(arm, f"{key} differs", f"{here!r}, not {there!r}"))
                    break

    def _as_compared(self, arm: str, hello: Hello) -> Hello:
        """Return what a worker says without the parameters whose values the arms compare."""
        own = self.context.values.get(arm, {})
        params = {name: value for name, value in hello.params.items() if name not in own}
        return replace(hello, params=params)

    def compare_checksums(self, losses: dict[str, float | None]) -> None:
        """Drop an arm whose first loss is another than the reference's (relative tolerance)."""
        if self.context.reference not in losses:
            return  # it gave no answer: nothing speaks against the others
        expected = losses[self.context.reference]
        alike = [arm for arm in self.roster.hellos if self.context.is_same_work(arm)]
        is_loose = any(_is_rounded(self.roster.hellos[arm]) for arm in alike)
        tolerance = _LOOSE_TOLERANCE if is_loose else _TOLERANCE
        if not self.roster.is_unchecked and all(value is None for value in losses.values()):
            self.roster.is_unchecked = True
            self.context.note("caution", text=_UNCHECKED)
        for arm in self.arms:
            value = losses.get(arm)
            if self.context.is_same_work(arm) and not _agree(value, expected, tolerance):
                details = f"{value!r}, not {expected!r} (relative tolerance {tolerance:g})"
                self.drop(arm, _other_work(arm, "its first loss differs", details))


def _work_of(hello: Hello) -> Values:
    """Return what a worker does, as it is noted and compared after an interruption."""
    return {
        "batch": hello.batch,
        "device": hello.device,
        "code": hello.code_hash,
        "data": hello.data_hash,
    }


def _is_rounded(hello: Hello) -> bool:
    """Tell whether factors are rounded before they are multiplied: a workload may say so itself."""
    precision = hello.params.get("precision")
    if precision in _PRECISIONS:
        return precision != "fp32"
    facts = hello.fingerprint or {}
    keys = ("torch.tf32_matmul", "torch.tf32_cudnn")
    return hello.device == "cuda" and any(facts.get(key) is True for key in keys)


def _agree(value: float | None, expected: float | None, tolerance: float) -> bool:
    """Tell whether two losses are the same; None is a loss that is not a finite number."""
    if value is None or expected is None:
        return value is expected
    return abs(value - expected) <= tolerance * abs(expected)


def _other_work(arm: str, what: str, details: str) -> Failure:
    return Failure(
        phase="checksum",
        brief=f"{arm}: does not do the same work as the reference, {what}",
        details=details,
        hint="give both arms the same device, data, parameters and library versions",
    )
