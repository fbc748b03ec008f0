"""Start-up: engine call → process entry → imports → data → first step → short training → exit.

The launches of restarts are timed as they happen. A separate pass makes cold launches, and further
ones if the restarts were too few.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from envcompare.config.plan import shuffled
from envcompare.errors import CommandTimeoutError, WorkloadError
from envcompare.measure.cell import CellContext, Roster
from envcompare.measure.limits import block_limit_s, too_long
from envcompare.measure.replies import Generated, Hello
from envcompare.measure.worker import Worker
from envcompare.measure.workers import CellWorkers, WorkerPool
from envcompare.run_folder.records import Design, Startup

SHARE = 0.2  # of the budget of a cell
LEAST_REPETITIONS, MAX_REPETITIONS = 2, 5  # of restarts; and of each kind, warm and cold
_TRAIN_S = 0.3  # at most
_PARTS = ("engine", "import", "data", "build", "first_step", "train", "exit")
# 1 drops the page cache alone (kernel: Documentation/admin-guide/sysctl/vm.rst)
_DROP_CACHES = "sync && echo 1 >/proc/sys/vm/drop_caches"


@dataclass(slots=True)
class Launches:
    """The timed launches of a cell; cells that share one share its engine, imports and exit."""

    roster: Roster
    kept: list[Startup]  # those before an interruption too
    arms: set[str] = field(default_factory=set)  # launched since then
    sharing: int = 1  # cells that are served by a launch, and pay for it
    _running: dict[str, Startup] = field(default_factory=dict)  # by arm, until the workers end

    @property
    def context(self) -> CellContext:
        """Return the cell that is measured."""
        return self.roster.context

    @property
    def are_due(self) -> bool:
        """Tell whether the launches of the next restart are timed, one arm after the other.

        More than enough would say nothing more, and what they take is not measured in blocks: after
        two restarts no more are timed than would be in a pass of their own.
        """
        design = self.context.design
        warm = [one for one in self.kept if one.page_cache != "cold"]
        repetitions = len({one.repetition for one in warm})
        spent_s = sum(one.real_ns for one in warm) / 1e9
        spent_s *= len(self.context.arms) / max(1, len({one.arm for one in warm}))  # the control's
        is_cheap = _is_due(repetitions, spent_s, _limit_s(design, cells=self.sharing))
        return design.has_startup and (repetitions < LEAST_REPETITIONS or is_cheap)

    def train(
        self, workers: CellWorkers, arm: str, hello: Hello, *, repetition: int, order: int
    ) -> Generated | None:
        """Wait for the generation that was asked for, and run the short training after it.

        Return the generation, None where it failed.
        """
        budget_s = self.context.design.budget_s
        limit_s = self.context.begin_limit_s
        generated = workers.ask(arm, lambda worker: worker.await_begin(limit_s))
        if generated is None:
            return None
        if (failure := too_long(arm, generated, budget_s)) is not None:
            workers.drop(arm, failure)
            return None
        step_s = generated.first_step_ns / 1e9
        steps = self._steps(hello, step_s)
        sent_ns = time.monotonic_ns()
        ran = workers.ask(arm, lambda worker: worker.run(steps, block_limit_s(steps * step_s)))
        if ran is None:
            return None
        round_trip_ns = max(0, time.monotonic_ns() - sent_ns - sum(ran.wall_ns))
        launched = workers.pool.launched[arm]
        self._running[arm] = Startup(
            cell=self.context.cell,
            arm=arm,
            repetition=repetition,
            order=order,
            # the request to import and its answer have travelled as well
            engine_ns=max(0, launched.engine_ns - round_trip_ns // 2),
            import_ns=launched.import_ns + hello.import_ns,
            data_ns=hello.data_ns,
            build_ns=generated.build_ns,
            first_step_ns=generated.first_step_ns,
            train_ns=sum(ran.wall_ns),
            exit_ns=0,  # still to come
            real_ns=0,
            train_steps=steps,
            page_cache="unknown" if launched.is_first else "warm",
        )
        return generated

    def _steps(self, hello: Hello, step_s: float) -> int:
        """Return the steps of the short training, the same in all launches of a cell."""
        known = next((one.train_steps for one in (*self.kept, *self._running.values())), None)
        return known or _training_steps(hello, step_s, design=self.context.design)

    def end(self, exits_ns: dict[str, int], *, is_cold: bool = False) -> None:
        """Record the launches whose workers have ended by themselves; `exits_ns` is by arm."""
        for arm, start in self._running.items():
            if arm in exits_ns and arm != self.context.control:
                whole = msgspec.structs.replace(start, exit_ns=exits_ns[arm])
                real_ns = sum(getattr(whole, f"{part}_ns") for part in _PARTS)
                page_cache = "cold" if is_cold else start.page_cache
                whole = msgspec.structs.replace(whole, real_ns=real_ns, page_cache=page_cache)
                self.kept.append(whole)
                self.arms.add(arm)
                self.context.recorder.sample(whole)
        self._running = {}


@dataclass(slots=True)
class StartupPass:
    """Launch every arm alone, in random order, as often as a fifth of the budget allows.

    Each launch serves all the cells. What restarts and the part before an interruption have
    launched is not launched again. Where cold launches are asked for, each kind has half the time.
    """

    cells: Sequence[Launches]

    def measure_cold(self) -> None:
        """Launch with a cold page cache, where that was asked for and can be done.

        At least once an arm. An arm that fails is recorded and left out. Raises TransportError when
        the host is lost and InterruptedRunError when the user stops.
        """
        repetitions, spent_s = self._before(is_cold=True)
        limit_s = _limit_s(self.context.design, cells=len(self.cells))
        if _is_due(repetitions, spent_s, limit_s) and self._can_drop_caches():
            self._repeat_within(is_cold=True)

    def measure_warm(self) -> None:
        """Launch as often as restarts have not; raises as `measure_cold`."""
        self._repeat_within(is_cold=False)

    @property
    def context(self) -> CellContext:
        """Return the first of the cells."""
        return self.cells[0].context

    def _repeat_within(self, *, is_cold: bool) -> None:
        repetitions, before_s = self._before(is_cold=is_cold)
        began, spent_s = time.monotonic(), before_s
        limit_s = _limit_s(self.context.design, cells=len(self.cells))
        while _is_due(repetitions, spent_s, limit_s):
            self._repeat(is_cold=is_cold)
            repetitions += 1
            spent_s = before_s + time.monotonic() - began

    def _before(self, *, is_cold: bool) -> tuple[int, float]:
        """Return the whole repetitions of a kind that every cell has, and their seconds."""
        kept = [
            [launch for launch in cell.kept if (launch.page_cache == "cold") == is_cold]
            for cell in self.cells
        ]
        counts = [Counter(launch.arm for launch in launches) for launches in kept]
        repetitions = min(
            (
                count[arm]
                for cell, count in zip(self.cells, counts, strict=True)
                for arm in self._arms
                if arm in cell.roster.arms
            ),
            default=0,
        )
        # cells share their launches
        return repetitions, max(sum(one.real_ns for one in launches) for launches in kept) / 1e9

    @property
    def _arms(self) -> tuple[str, ...]:
        alive = {arm for cell in self.cells for arm in cell.roster.arms}
        return tuple(arm for arm in self.context.arms if arm in alive - {self.context.control})

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

    def _repeat(self, *, is_cold: bool) -> None:
        context = self.context
        numbers = (launch.repetition for cell in self.cells for launch in cell.kept)
        repetition = 1 + max(numbers, default=-1)
        seed = context.seed_of("startup", repetition)
        for order, arm in enumerate(shuffled(self._arms, seed)):
            context.check_interruption()
            if is_cold:
                self._drop_caches()
            exits_ns = self._launch(arm, repetition=repetition, order=order)
            for cell in self.cells:
                cell.end(exits_ns, is_cold=is_cold)

    def _launch(self, arm: str, *, repetition: int, order: int) -> dict[str, int]:
        """Take one worker from its launch to its exit; what fails is recorded."""
        pool = WorkerPool(
            spec=self.context.spec,
            restart=repetition,
            cells=len(self.cells),
            known=self.cells[0].arms,
            is_timed=True,
        )
        try:
            for cell in self.cells:
                if arm in cell.roster.arms:
                    _serve(cell, arm, pool, order=order)
            pool.dismiss(self.cells[-1].context)
        finally:
            pool.kill()
        return pool.exits_ns


def _serve(cell: Launches, arm: str, pool: WorkerPool, *, order: int) -> None:
    """Let a worker load the data of a cell, build its model and train for a moment."""
    context = cell.context
    seed = context.seed_of("startup model", pool.restart) % 2**31
    workers = CellWorkers(cell.roster, pool)
    try:
        hello = workers.begin((arm,), is_alone=True).get(arm)
        if hello is not None and arm in workers.arms:
            workers.tell(arm, partial(Worker.send_begin, seed=seed, pad=0))
            cell.train(workers, arm, hello, repetition=pool.restart, order=order)
        workers.give_back()
    finally:
        workers.kill()


def _limit_s(design: Design, *, cells: int) -> float:
    """Return the seconds of all budgets that launches of a kind may take."""
    return SHARE * design.budget_s * cells / (2 if design.cold_start else 1)


def _is_due(repetitions: int, spent_s: float, limit_s: float) -> bool:
    """Tell whether another repetition is to come: the first always, others where they fit."""
    fits = repetitions == 0 or spent_s * (repetitions + 1) / repetitions <= limit_s
    return fits and repetitions < MAX_REPETITIONS


def _training_steps(hello: Hello, step_s: float, *, design: Design) -> int:
    """Return the steps of a short training: at least one, and no more than the epochs asked for."""
    steps = max(1, min(design.train_steps, int(_TRAIN_S / max(step_s, 1e-9))))
    epochs = hello.params.get("epochs")
    if hello.steps_per_epoch is None or not isinstance(epochs, int):
        return steps
    return max(1, min(steps, hello.steps_per_epoch * epochs - 1))  # the first step is done already
