"""The way to a goal: after the timing every arm trains, epoch by epoch in turns, until it is there.

All arms of a restart have the same seeds, so that they should take the same number of epochs; what
an environment can change is the time of each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Final

from envcompare.config.plan import shuffled
from envcompare.errors import StillRunningError, WorkloadError
from envcompare.measure.cell import CellContext, started, surviving
from envcompare.measure.limits import limit_s
from envcompare.measure.replies import Hello, Ran
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Epoch, Goal
from envcompare.text import counted

_MOST_STEPS: Final = 500  # in a call: a worker answers with the times of each
_LEAST_LIMIT_S: Final = 300.0  # of a call, plus 30 times what its steps took so far


@dataclass(slots=True, kw_only=True)
class _Training:
    """An arm in training, and the part of its first epoch that ran while the model was built."""

    worker: Worker
    steps_per_epoch: int
    first_step_ns: int = 0
    longest_step_ns: int = 0  # of an average over a call

    def limit_s(self, steps: int) -> float:
        """Return how long a call may take that has to do with so many steps."""
        return limit_s(_LEAST_LIMIT_S, steps, self.longest_step_ns / 1e9)


@dataclass(slots=True, kw_only=True)
class AccuracyPass:
    """Trains every arm to the goal, once for each of the cell's minimum restarts.

    It takes at most the budget of the cell again, plus one restart; an epoch that has begun is
    finished. Only the first restart is cut: a later one would count as not reaching the goal, which
    would leave only the quick ones. An arm that fails is trained no further.
    """

    context: CellContext
    goal: Goal
    arms: tuple[str, ...]
    launch: Callable[[str], Worker]
    prior: Sequence[Epoch] = ()  # of this cell, before an interruption
    _training: dict[str, _Training] = field(default_factory=dict)
    _reached: int = 0
    _failed: set[str] = field(default_factory=set)

    @property
    def missing(self) -> int:
        """Return how many restarts are left to train, 0 or less where none is."""
        return (self.context.design.restarts or self.context.design.min_restarts) - self._complete

    def measure(self) -> str:
        """Train, and say in a line how often the goal was reached.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        began, design = time.monotonic(), self.context.design
        first = 1 + max((one.restart for one in self.prior), default=-1)
        done, complete = 0, self._complete
        try:
            for restart in range(first, first + self.missing):
                spent_s = time.monotonic() - began
                if done and spent_s * (done + 1) / done > design.budget_s:
                    break
                is_cut = not (done or complete)
                if not self._run(restart, until_s=began + design.budget_s if is_cut else math.inf):
                    break
                done += 1
        except StillRunningError as error:
            self.context.note("note", text=f"no arm was trained further: {error.brief}")
        goal = f"{self.goal.metric} {self.goal.value:g}"
        if not done:
            return f"not trained to {goal}: no arm finished an epoch"
        tried = f"{counted(done, 'restart')} of {counted(len(self.arms), 'arm')}"
        return f"trained to {goal} in {tried}: reached {counted(self._reached, 'time')}"

    @property
    def _complete(self) -> int:
        """Count the restarts before an interruption in which every arm came to an end."""
        ends: dict[int, set[str]] = {}
        for epoch in self.prior:
            if epoch.is_last:
                ends.setdefault(epoch.restart, set()).add(epoch.arm)
        return sum(set(self.arms) <= arms for arms in ends.values())

    def _run(self, restart: int, *, until_s: float) -> bool:
        """Train in a restart all arms that have not failed; return whether any ended an epoch."""
        arms = tuple(arm for arm in self.arms if arm not in self._failed)
        trained: set[str] = set()
        with ExitStack() as stack:
            for arm in shuffled(arms, self._seed("launch", restart)):
                with self._surviving(arm):
                    self._start(arm, restart, stack)
            for epoch in range(1, self.goal.epochs + 1):
                order = shuffled(tuple(self._training), self._seed(f"epoch {epoch}", restart))
                is_last = epoch == self.goal.epochs or time.monotonic() >= until_s
                for place, arm in enumerate(order):
                    self.context.check_interruption()
                    with self._surviving(arm):
                        self._train(arm, restart, epoch, order=place, is_last=is_last)
                        trained.add(arm)
            self._training.clear()
        return bool(trained)

    def _seed(self, purpose: str, restart: int) -> int:
        return self.context.seed_of(f"until {purpose}", restart)

    def _start(self, arm: str, restart: int, stack: ExitStack) -> None:
        """Build the model of an arm, the same as in all others."""
        self.context.check_interruption()
        spec = self.context.untimed_spec(arm)
        worker, hello = stack.enter_context(started(lambda: self.launch(arm), spec))
        training = _Training(worker=worker, steps_per_epoch=_steps_per_epoch(hello))
        self._training[arm] = training  # from now on it is killed where it does not answer
        worker.send_begin(self._seed("model", restart) % 2**31, 0)
        training.first_step_ns = training.longest_step_ns = worker.await_begin().first_step_ns

    def _train(self, arm: str, restart: int, epoch: int, *, order: int, is_last: bool) -> None:
        """Train an arm for an epoch and ask how well it does; keep both."""
        training = self._training[arm]
        steps = training.steps_per_epoch - (epoch == 1)  # the first one built the model
        # the first one may start CUDA or compile the model: it counts only where there is no other
        times_ns = [] if steps else [training.first_step_ns]
        waits_ns: list[int | None] = []
        while steps:
            k = min(steps, _MOST_STEPS)
            self.context.check_interruption()
            ran = training.worker.run(k, training.limit_s(k))
            times_ns += ran.wall_ns
            training.longest_step_ns = max(training.longest_step_ns, sum(ran.wall_ns) // k)
            waits_ns.append(_outside_ns(ran))
            steps -= k
        known_ns = [wait for wait in waits_ns if wait is not None]
        evaluated = training.worker.evaluate(training.limit_s(training.steps_per_epoch))
        value = evaluated.values.get(self.goal.metric)
        is_reached = value is not None and value >= self.goal.value
        sample = Epoch(
            cell=self.context.cell,
            arm=arm,
            restart=restart,
            epoch=epoch,
            order=order,
            k=len(times_ns),
            wall_ns=sum(times_ns),
            wait_ns=sum(known_ns) if len(known_ns) == len(waits_ns) else None,
            evaluate_ns=evaluated.wall_ns,
            value=value,
            is_last=is_reached or is_last,
        )
        self.context.recorder.sample(sample)
        self._reached += is_reached
        if sample.is_last:
            self._training.pop(arm).worker.quit()

    def _surviving(self, arm: str) -> AbstractContextManager[None]:
        """Note why an arm is trained no further."""
        what = "it was trained no further"
        return surviving(
            self.context, arm, what=what, drop=lambda: self._drop(arm), event="training-failed"
        )

    def _drop(self, arm: str) -> None:
        self._failed.add(arm)
        if arm in self._training:
            self._training.pop(arm).worker.kill()


def _outside_ns(ran: Ran) -> int | None:
    """Return the wait for a CPU that others held; a stop by a quota is the environment's own."""
    return None if ran.wait_ns is None else max(0, ran.wait_ns - (ran.throttled_ns or 0))


def _steps_per_epoch(hello: Hello) -> int:
    if not hello.steps_per_epoch:
        raise WorkloadError(
            "the workload does not tell how many steps an epoch has",
            hint="set `steps_per_epoch` in its `load`",
            phase="data",
        )
    return hello.steps_per_epoch
