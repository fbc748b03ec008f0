"""The start-up pass: engine call → process entry → imports → data → first step → exit."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from envcompare.config.plan import derive_seed, shuffled
from envcompare.errors import CommandTimeoutError, WorkloadError
from envcompare.measure.context import CellContext, failure_of, keep_surroundings
from envcompare.measure.limits import begin_limit_s, block_limit_s, too_long
from envcompare.measure.replies import Hello
from envcompare.measure.worker import Worker
from envcompare.measure.workers import Roster, work_of
from envcompare.run_folder.records import Failure, Startup

SHARE = 0.2  # of the budget of a cell
MAX_REPETITIONS = 5  # of each kind, warm and cold
# 1 drops the page cache alone (kernel: Documentation/admin-guide/sysctl/vm.rst)
_DROP_CACHES = "sync && echo 1 >/proc/sys/vm/drop_caches"


@dataclass(slots=True)
class StartupPass:
    """Launch every arm alone, in random order, as often as a fifth of the budget allows.

    The launches with a cold page cache come last, in half of that time: a launch after one would
    be neither cold nor warm. After an interruption only what is missing is launched.
    """

    context: CellContext
    roster: Roster
    prior: tuple[Startup, ...] = ()  # launches before an interruption
    _launched: set[str] = field(default_factory=set)
    _train_steps: int | None = None  # the same in all arms, known after the first launch
    _next: int = 0

    def __post_init__(self) -> None:
        if self.prior:
            self._next = 1 + max(launch.repetition for launch in self.prior)
            self._train_steps = self.prior[0].train_steps

    def measure(self) -> None:
        """Run at least one repetition of each kind; an arm that fails is recorded and left out.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        limit_s = SHARE * self.context.design.budget_s
        repetitions, spent_s = self._before(is_cold=True)
        with_cold = _is_due(repetitions, spent_s, limit_s / 2) and self._can_drop_caches()
        has_cold = with_cold or repetitions > 0
        self._repeat_within(limit_s / 2 if has_cold else limit_s, is_cold=False)
        if with_cold:
            self._repeat_within(limit_s / 2, is_cold=True)

    def _repeat_within(self, limit_s: float, *, is_cold: bool) -> None:
        repetitions, before_s = self._before(is_cold=is_cold)
        began, spent_s = time.monotonic(), before_s
        while _is_due(repetitions, spent_s, limit_s):
            self._repeat(self._next, is_cold=is_cold)
            self._next += 1
            repetitions += 1
            spent_s = before_s + time.monotonic() - began

    def _before(self, *, is_cold: bool) -> tuple[int, float]:
        """Return the whole repetitions of a kind before an interruption, and their seconds."""
        prior = [launch for launch in self.prior if (launch.page_cache == "cold") == is_cold]
        launches = Counter(launch.arm for launch in prior)
        repetitions = min((launches[arm] for arm in self._arms), default=0)
        return repetitions, sum(launch.real_ns for launch in prior) / 1e9

    @property
    def _arms(self) -> tuple[str, ...]:
        return tuple(arm for arm in self.roster.arms if arm != self.context.control)

    def _can_drop_caches(self) -> bool:
        """Try it where it was asked for, and say why where it cannot be done."""
        if not self.context.design.cold_start:
            return False
        try:
            self._drop_caches()
        except WorkloadError as error:
            why = f"{error.details or error.brief}; {error.hint}"
            text = f"cold start not measured: {why}"
            self.context.note("note", text=text, values={"cold": False, "why": why})
            return False
        return True

    def _drop_caches(self) -> None:
        """Empty the page cache of the host itself; raises WorkloadError when it refuses."""
        hint = "only root of the host may drop its page cache: log in as root there"
        try:
            done = self.context.on_host(_DROP_CACHES)
        except CommandTimeoutError as error:
            raise WorkloadError(error.brief, hint=hint, phase="process") from error
        if not done.succeeded:
            raise WorkloadError(
                "the page cache cannot be dropped", details=done.tail(1), hint=hint, phase="process"
            )

    def _repeat(self, repetition: int, *, is_cold: bool) -> None:
        context = self.context
        seed = derive_seed(context.seed, "startup", context.cell, repetition)
        for order, arm in enumerate(shuffled(self._arms, seed)):
            context.check_interruption()
            if is_cold:
                self._drop_caches()
            worker = context.launch(arm, context.variables(repetition))
            try:
                sample = self._launch(worker, repetition=repetition, order=order)
                cache = "cold" if is_cold else "warm" if arm in self._launched else "unknown"
                context.recorder.sample(msgspec.structs.replace(sample, page_cache=cache))
                self._launched.add(arm)
            except WorkloadError as error:
                context.check_interruption()
                keep_surroundings(context, worker, error)
                self.roster.fail(arm, failure_of(error))
            finally:
                worker.kill()

    def _launch(self, worker: Worker, *, repetition: int, order: int) -> Startup:
        """Take one worker from its launch to its exit, as a short training run."""
        context = self.context
        worker.send_hello(
            msgspec.structs.replace(context.spec, generation="rebuild", fingerprint=False)
        )
        budget_s = context.design.budget_s
        hello = worker.await_hello(begin_limit_s(budget_s, remaining_s=context.remaining_s))
        arrived_ns = time.monotonic_ns()
        _refuse(self.roster.changed(worker.arm, work_of(hello)))
        seed = derive_seed(context.seed, "startup model", context.cell, repetition) % 2**31
        worker.send_begin(seed, 0)
        began = worker.await_begin(begin_limit_s(budget_s, remaining_s=context.remaining_s))
        step_s = began.first_step_ns / 1e9
        _refuse(too_long(worker.arm, step_s, budget_s))
        steps = self._steps(hello, step_s)
        sent_ns = time.monotonic_ns()
        ran = worker.run(steps, block_limit_s(steps * step_s))
        round_trip_ns = max(0, time.monotonic_ns() - sent_ns - sum(ran.wall_ns))
        worker.end()
        quit_ns = time.monotonic_ns()
        cost = worker.quit()
        ended_ns = time.monotonic_ns()
        inside_ns = hello.now_ns - hello.entry_ns
        return Startup(
            cell=context.cell,
            arm=worker.arm,
            repetition=repetition,
            order=order,
            engine_ns=max(0, arrived_ns - worker.spawned_ns - inside_ns - round_trip_ns // 2),
            import_ns=hello.import_ns,
            data_ns=hello.data_ns,
            build_ns=began.build_ns,
            first_step_ns=began.first_step_ns,
            train_ns=sum(ran.wall_ns),
            exit_ns=ended_ns - quit_ns,
            real_ns=ended_ns - worker.spawned_ns,
            user_ns=cost.user_ns,
            sys_ns=cost.sys_ns,
            train_steps=len(ran.wall_ns),
        )

    def _steps(self, hello: Hello, step_s: float) -> int:
        """Return the steps of the short training run; fewer where one takes long."""
        if self._train_steps is None:
            design, arms = self.context.design, len(self.context.arms)
            affordable = int(SHARE * design.budget_s / arms / max(step_s, 1e-9))
            self._train_steps = _train_steps(hello, max(1, min(design.train_steps, affordable)))
        return self._train_steps


def _is_due(repetitions: int, spent_s: float, limit_s: float) -> bool:
    """Tell whether another repetition is to come: the first always, others where they fit."""
    fits = repetitions == 0 or spent_s * (repetitions + 1) / repetitions <= limit_s
    return fits and repetitions < MAX_REPETITIONS


def _refuse(failure: Failure | None) -> None:
    if failure is not None:
        raise WorkloadError(
            failure.brief, details=failure.details, hint=failure.hint, phase=failure.phase
        )


def _train_steps(hello: Hello, most: int) -> int:
    """Return the steps of the short training run; fewer where the epochs asked for are over."""
    epochs = hello.params.get("epochs")
    if hello.steps_per_epoch is None or not isinstance(epochs, int):
        return most
    return max(1, min(most, hello.steps_per_epoch * epochs - 1))  # the first step is done already
