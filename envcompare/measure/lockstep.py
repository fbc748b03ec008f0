"""The lockstep pass of a cell: its restarts, each of shuffled rounds of blocks, and their plan.

A restart begins one generation in every arm, runs a discarded warm-up block and rounds for as long
as its launch deserves, and ends. Where cells share their launches, they take turns: the workers of
a restart serve one cell after the other, in random order. Each cell has its own budget, and what a
decided one leaves is shared by the others.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field

from envcompare.measure import Hello, derive_seed, shuffled
from envcompare.measure.cell import CellContext, QuietGate, Roster
from envcompare.measure.generation import Generation, Marking, Tuning
from envcompare.measure.limits import (
    LEAST_MEASURING_S,
    OVERTIME_SHARE,
    PAUSE_CAUTION,
    CellEnd,
    Costs,
    RestartPlan,
    budget_text,
    no_room_caution,
    overtime_s,
    plan_restarts,
    plan_text,
    restart_s,
    small_budget_caution,
)
from envcompare.measure.workers import CellWorkers, Launches, WorkerPool
from envcompare.run_folder import LEFT_S
from envcompare.run_folder.records import Block, Design, Sample, Startup
from envcompare.stats.intervals import Interval, error_of_each
from envcompare.stats.metrics import Readings, wall_ns
from envcompare.stats.typical import (
    MIN_ROUNDS,
    PRIOR_SPREAD,
    ROUNDS_FOR_MEDIAN,
    TYPICAL_SHARE,
    Spread,
    restarts_before_a_look,
    spread,
    spread_of_rounds,
)
from envcompare.text import counted

FIRST_REVIEW_S = 1.0  # of a restart's rounds; later ones after twice the time
USUAL_SPREAD = 0.05  # of a round, until it is known


@dataclass(slots=True)
class Lockstep:
    """Measure one cell; the readings grow, the roster says which arms are out and why."""

    context: CellContext
    roster: Roster
    prior: InitVar[Iterable[Sample]] = ()  # of the part before an interruption
    noted: InitVar[Mapping[str, float] | None] = None  # of a calibration before it
    stopped_by: CellEnd | None = None
    readings: Readings = field(init=False)
    planned: PlannedRestarts = field(init=False)
    restart: int = field(init=False)  # the next one
    launches: Launches = field(init=False)
    marking: Marking = field(init=False)
    _tuning: Tuning = field(init=False)
    _costs: Costs | None = None  # of the last restart
    _overtime_s: float = 0.0  # that it has taken

    def __post_init__(self, prior: Iterable[Sample], noted: Mapping[str, float] | None) -> None:
        self.readings = self._no_readings()
        self.marking = Marking(is_wanted=self.context.design.marks)
        samples = tuple(prior)
        self.planned = PlannedRestarts.of(self.context.design, samples)
        self.restart = self.planned.next(self.roster.arms)
        launches = [sample for sample in samples if isinstance(sample, Startup)]
        self.launches = Launches(self.roster, launches)
        self._tuning = Tuning.of(noted or {}, self.context.arms)
        for block in (sample for sample in samples if isinstance(sample, Block)):
            self.readings.add(block)
            if not (block.warmup or self._tuning.block_s):  # the calibration was not noted
                self._tuning.steps = self._tuning.steps or block.k
                self._tuning.block_s = wall_ns(block) / block.k / 1e9 * self._tuning.steps

    @property
    def design(self) -> Design:
        """Return the design of the cell, with the restarts that a GPU needs once one is used."""
        return self.readings.design(self.context.design)

    def _no_readings(self) -> Readings:
        return Readings(metrics=("net", "wall"), threads=self.context.design.threads)

    def forget(self, costs: Costs, what: str) -> bool:
        """Forget all rounds, if those of such costs have room in the budget; tell whether.

        `what` is said to have none.
        """
        design = self.design
        missing = design.restarts or design.min_restarts
        measuring_s = max(LEAST_MEASURING_S / 2, self.least_rounds * costs.round_s)
        # The restart that runs has its workers already.
        needed_s = missing * (costs.launch_s + measuring_s) - costs.launch_s
        if needed_s > self.context.remaining_s:
            self.context.note("caution", text=no_room_caution(what, design, needed_s))
            return False
        self.readings = self._no_readings()
        self.planned = PlannedRestarts(design)
        self.planned.begin(self.restart)
        return True

    def why_done(self) -> CellEnd | None:
        """Return why no other restart is to come, None where one is.

        No interval ends a cell while it is not known whether its turns are long enough.
        """
        least = self.design.min_restarts
        why = self.roster.why_done(self.readings, min_restarts=least)
        if why != "failure" and not self._tuning.settling.is_settled:
            why = None
        if why is None and self.planned.are_done(self.roster.arms):
            return "planned"
        return "budget" if why is None and self._is_spent() else why

    def stop(self, reason: CellEnd) -> None:
        """End the cell, and record why."""
        self.stopped_by = reason
        self.context.note("stopped", text=reason)
        if self._tuning.settling.is_seen:
            self.context.note("caution", text=PAUSE_CAUTION)
        if reason != "budget":
            return
        design, restarts = self.design, self.readings.restarts
        spent_s = design.budget_s + self.context.budget.given_s - self.context.remaining_s
        missing = max(0, design.min_restarts - restarts)
        caution = small_budget_caution(
            design,
            restarts=restarts,
            needed_s=spent_s + missing * restart_s(self._costs or Costs(launch_s=0.0)),
        )
        if caution:
            self.context.note("caution", text=caution)

    def take_overtime(self) -> float:
        """Return the seconds that the cell takes beyond its budget, for the least of restarts."""
        design = self.design
        missing = design.min_restarts - self.readings.restarts
        if self._costs is None or design.restarts is not None:
            return 0.0
        more_s = overtime_s(
            self._costs,
            remaining_s=self.context.remaining_s,
            missing=missing,
            most_s=self._overtime_left_s,
        )
        if more_s:
            self._overtime_s += more_s
            self.context.budget.give(more_s)
            text = f"takes {more_s:.0f} s more than {budget_text(design)}"
            needed = f"{counted(missing, 'more restart')} needed for a verdict"
            self.context.note("note", text=f"{text}: {needed}")
        return more_s

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        is_out_of_budget = self.stopped_by == "budget"
        return self.roster.intervals(self.readings, is_out_of_budget=is_out_of_budget)

    @property
    def _overtime_left_s(self) -> float:
        return OVERTIME_SHARE * self.context.design.budget_s - self._overtime_s

    @property
    def _min_restarts(self) -> int:
        # Where restarts are the units of an interval, more of them are worth shorter ones.
        is_wide = self.roster.is_wide(self.readings)
        return restarts_before_a_look(self.design.min_restarts, is_wide=is_wide)

    @property
    def least_rounds(self) -> int:
        """Return how many rounds a restart has at least: enough for an interval.

        The restarts of a cell share them, but for those that are units of their own.
        """
        design = self.design
        if design.preset == "strict" or self.roster.is_wide(self.readings):
            return ROUNDS_FOR_MEDIAN
        return math.ceil(MIN_ROUNDS / max(1, design.min_restarts))

    def _is_spent(self) -> bool:
        """Tell whether no other restart is worth its launch; the first one always is."""
        if self._costs is None or self.context.design.restarts is not None:
            return self.readings.restarts > 0 and self.context.remaining_s <= 0
        return self._plan(self._costs).restarts < 1

    def _plan(self, costs: Costs, *, spent_s: float | None = None) -> RestartPlan:
        """Share the budget among the restarts to come; with `spent_s` one of them is measuring."""
        is_launched = spent_s is not None
        return plan_restarts(
            costs,
            remaining_s=self.context.remaining_s + (spent_s or 0.0),
            missing=max(0, self._min_restarts - self.readings.restarts + is_launched),
            is_launched=is_launched,
            overtime_s=self._overtime_left_s,
        )

    def run_restart(self, pool: WorkerPool) -> None:
        """Run the next restart with the workers of a launch, and give them back.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        restart = self.restart
        self.planned.begin(restart)
        seed = derive_seed(self.context.seed, "launch", self.context.host, restart)
        order = shuffled(self.roster.arms, seed)
        self.context.note("restart", values={"restart": restart}, text=" ".join(order))
        workers = CellWorkers(self.roster, pool)
        before = (pool.launch_s, pool.shared_s)
        began, counted_s = time.monotonic(), 0.0
        try:
            hellos = workers.begin(order, is_alone=pool.is_timed)
            began += self._pay(pool, *before)
            if self.context.reference in workers.arms and len(workers.arms) > 1:
                counted_s = self._run_generation(workers, hellos, restart, began)
            workers.give_back()
        finally:
            self.restart = self.planned.next(self.roster.arms)
            workers.kill()
            # what is no round: the launch, but for what it compiled, and the end of the work
            spent_s = time.monotonic() - began - counted_s
            costs = self._costs or Costs(launch_s=0.0)
            self._costs = dataclasses.replace(costs, launch_s=spent_s)

    def _pay(self, pool: WorkerPool, launch_s: float, shared_s: float) -> float:
        """Take launches off the budget; return the seconds of them that other cells pay.

        A launch is every cell's, and counts as its share in each; one of a worker that serves this
        cell alone is its own. The clock of the budget stood still meanwhile.
        """
        took_s = pool.launch_s - launch_s
        cost_s = took_s - (pool.shared_s - shared_s) + pool.share_s
        self.context.budget.left_s -= cost_s
        return took_s - cost_s

    def _run_generation(
        self, workers: CellWorkers, hellos: dict[str, Hello], restart: int, began: float
    ) -> float:
        """Run it and return the seconds of it that are no cost of every launch."""
        rounds = _Rounds(lockstep=self, began=began)
        generation = Generation(
            workers,
            restart,
            hellos,
            self.launches,
            self._tuning,
            self._keep,
            rounds.is_enough,
            rounds.forget,
            self.marking,
        )
        compiling_s = generation.begin()
        # Later workers load what the first one has compiled, so no other launch takes this time.
        if self._costs is None:
            rounds.began += compiling_s
        generation.run()
        if rounds.costs is not None:
            self._costs = rounds.costs
        self.context.recorder.progress(self.intervals(), self.context)
        return rounds.measured_s + generation.marked_s + rounds.began - began

    def _keep(self, block: Block) -> None:
        self.readings.add(block)
        self.planned.add(block)

    def end_restart(self, exits_ns: dict[str, int], *, exits_s: float) -> None:
        """Record the launches of the last restart, whose workers have ended by now.

        `exits_s` is this cell's share of the time that their ends took.
        """
        self.launches.end(exits_ns)
        if self._costs is not None:
            launch_s = self._costs.launch_s + exits_s
            self._costs = dataclasses.replace(self._costs, launch_s=launch_s)

    def noise(self) -> Spread:
        """Return how far the restarts of the A/A control alone scattered; nothing without one."""
        context, (metric, _) = self.context, self.readings.primary
        return spread([self.readings.groups(context.control, context.reference, metric)])

    def costs(self, launch_s: float, rounds_s: list[float]) -> Costs:
        """Return what this restart has cost, with what the rounds of all tell."""
        reference, (metric, _) = self.context.reference, self.readings.primary
        arms = [arm for arm in self.roster.arms if arm != reference]
        groups = [self.readings.groups(arm, reference, metric) for arm in arms]
        known = [group for group in map(spread_of_rounds, groups) if group is not None]
        noise = self.context.noise
        between = [self.readings.spread(a, reference, metric, noise).variance for a in arms]
        rounds = max((sum(map(len, group)) for group in groups), default=0)
        return Costs(
            launch_s=launch_s,
            # not of one round alone: a neighbour may have met that one
            round_s=statistics.median(rounds_s),
            round_spread=statistics.median(known) if known else USUAL_SPREAD,
            restart_spread=math.sqrt(statistics.median(between)) if between else PRIOR_SPREAD,
            # The plan counts the restart that runs among those to come.
            restarts=max(0, self.readings.restarts - 1),
            rounds=max(0, rounds - len(rounds_s)),
            compared=max(1, len(arms)),
            level=1
            - TYPICAL_SHARE
            * error_of_each(self.context.comparisons, is_screening=self.context.design.screen),
        )

    def measuring_s(self, costs: Costs, *, spent_s: float, is_first: bool) -> float:
        """Return for how long the restart that runs is to measure, `spent_s` of it are over."""
        plan = self._plan(costs, spent_s=spent_s)
        is_quick = self.context.design.preset == "quick"
        # a launch on a GPU takes seconds: say how many restarts fit
        if is_first and self.context.has_gpu and is_quick and self.restart == 0:
            left_s, missing = self.context.remaining_s + costs.launch_s, self._min_restarts
            text = plan_text(plan, costs, remaining_s=left_s, design=self.design, missing=missing)
            self.context.note("calibrated", text=text, values={"planned_restarts": plan.restarts})
        return plan.measuring_s * (1 - self.marking.share)


@dataclass(slots=True)
class _Rounds:
    """When a restart has measured enough."""

    lockstep: Lockstep
    began: float  # of the launch, as if nothing had been compiled in it
    costs: Costs | None = None
    _first_s: float | None = None  # of the first round
    measured_s: float = 0.0
    _rounds_s: list[float] = field(default_factory=list)
    _measuring_s: float = math.inf
    _least: int = 1
    _review_s: float = FIRST_REVIEW_S

    def is_enough(self, round_s: float | None) -> bool:
        """Tell whether the rounds suffice; `round_s` is the duration of the last, None before one.

        After 1, 2, 4 … seconds the rest of the budget is shared again by the scatter of the rounds,
        without a look at their ratios.
        """
        now, context = time.monotonic(), self.lockstep.context
        if round_s is None:
            self._first_s = now
            return context.remaining_s <= 0 and self.lockstep.readings.restarts > 0
        self._rounds_s.append(round_s)
        spent_s = self.measured_s = now - (self._first_s or now)
        if context.design.rounds is not None:
            return len(self._rounds_s) >= context.design.rounds or context.remaining_s <= 0
        if self.costs is None or spent_s >= self._review_s:
            is_first = self.costs is None
            launch_s = (self._first_s or now) - self.began
            self.costs = self.lockstep.costs(launch_s, self._rounds_s)
            self._measuring_s = self.lockstep.measuring_s(
                self.costs, spent_s=spent_s, is_first=is_first
            )
            self._least = self.lockstep.least_rounds
            self._review_s = max(FIRST_REVIEW_S, 2 * spent_s)
        is_enough = spent_s >= self._measuring_s and len(self._rounds_s) >= self._least
        return is_enough or context.remaining_s <= 0

    def forget(self, round_s: float, what: str) -> bool:
        """Forget all rounds, if rounds of so many seconds have room; tell whether."""
        now = time.monotonic()
        launch_s = (self._first_s or now) - self.began
        if not self.lockstep.forget(Costs(launch_s=launch_s, round_s=round_s), what):
            return False
        # What was discarded is no cost of a launch.
        self.began = now - launch_s
        self._rounds_s.clear()
        self.costs = None
        return True


@dataclass(slots=True)
class PlannedRestarts:
    """What was measured of each restart.

    If the user fixed the size of the design, an interrupted restart is measured again under its
    number; otherwise it keeps its rounds, and the next one gets a new number.
    """

    design: Design
    _rounds: dict[int, Counter[str]] = field(default_factory=dict)  # by restart and arm

    @classmethod
    def of(cls, design: Design, samples: Iterable[Sample]) -> PlannedRestarts:
        """Return the restarts that the blocks among these samples are of."""
        restarts = cls(design)
        for sample in samples:
            if isinstance(sample, Block):
                restarts.add(sample)
        return restarts

    def add(self, block: Block) -> None:
        """Count a block of a round; one that was dropped or had a model compiled ran too."""
        self._rounds.setdefault(block.restart, Counter())[block.arm] += block.round >= 0

    def begin(self, restart: int) -> None:
        """Count a restart from its first round."""
        self._rounds[restart] = Counter()

    def next(self, arms: Iterable[str]) -> int:
        """Return the number of the next restart of these arms."""
        if self.design.restarts is None:
            return 1 + max(self._rounds, default=-1)
        numbers = range(self.design.restarts)
        return next((n for n in numbers if not self._is_whole(n, arms)), self.design.restarts)

    def are_done(self, arms: Iterable[str]) -> bool:
        """Tell whether the size of the design is fixed and all its restarts are whole."""
        return self.design.restarts is not None and self.next(arms) == self.design.restarts

    def _is_whole(self, restart: int, arms: Iterable[str]) -> bool:
        rounds = self._rounds.get(restart, Counter())
        return all(rounds[arm] >= (self.design.rounds or 1) for arm in arms)


Turn = Callable[[Lockstep, WorkerPool], None]


@dataclass(slots=True)
class Turns:
    """Measures cells of one host until each is decided, or all budgets are spent.

    `turn` runs a restart of one cell; what it raises ends all of them.
    """

    cells: Sequence[Lockstep]
    turn: Turn = Lockstep.run_restart
    _launched: set[str] = field(default_factory=set)  # arms

    def measure(self) -> None:
        """Run restarts of all cells.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        if not self.cells:
            return
        contexts = [cell.context for cell in self.cells]
        gate = QuietGate(contexts[0])
        # A wait for all cells is noted in one of them, so their sum is how long they have waited.
        gate.waited_s = sum(context.waited_s for context in contexts)
        for cell, part_s in zip(self.cells, _parts_s(self.cells), strict=True):
            cell.context.budget.stop()
            cell.context.budget.left_s = part_s
            cell.launches.sharing = len(self.cells)
        while live := self._share_budget():
            ends = time.monotonic() + _left_s(live)
            self._run_restart(live, gate)
            # what no cell has paid: waiting for a quiet machine, the ends of the workers
            _give(live, ends - time.monotonic() - _left_s(live))

    def _share_budget(self) -> list[Lockstep]:
        """Stop the cells that are done; share what they leave among those that go on.

        What one takes beyond its budget is for itself. Where what they have is not worth a launch,
        the last of these cells ends and leaves it.
        """
        while live := [cell for cell in self.cells if cell.stopped_by is None]:
            ended = [cell for cell in self.cells if cell.stopped_by is not None]
            _give(live, sum(max(0.0, cell.context.budget.left_s) for cell in ended))
            for cell in ended:
                cell.context.budget.left_s = 0.0
            reasons = [(cell, cell.why_done()) for cell in live]
            done = [(cell, why) for cell, why in reasons if why not in (None, "budget")]
            spent = [(cell, why) for cell, why in reasons if why == "budget"]
            if not done and sum(cell.take_overtime() for cell, _ in spent) > 0:
                continue
            for cell, why in done or spent[-1:]:
                assert why is not None
                cell.stop(why)
            if not done and not spent:
                break
        return live

    def _run_restart(self, live: Sequence[Lockstep], gate: QuietGate) -> None:
        """Launch once and serve each cell; after a break those first that are a restart behind."""
        restart = min(cell.restart for cell in live)
        cells = [cell for cell in live if cell.restart == restart]
        gate.wait_to_launch([cell.context for cell in live], uuid=cells[0].roster.gpu_uuid)
        pool = WorkerPool(
            spec=self.cells[0].context.spec,
            restart=restart,
            cells=len(cells),
            known=self._launched,
            is_timed=any(cell.launches.are_due for cell in cells),
        )
        try:
            for cell in self._in_order(cells, restart):
                with cell.context.budget.counting():
                    self.turn(cell, pool)
                # A resumed run gives each cell what it had left (docs/measurement.md).
                left_s = cell.context.remaining_s
                cell.context.note("turn", values={"restart": restart, LEFT_S: left_s})
            began = time.monotonic()
            pool.dismiss(cells[-1].context)
            exits_s = (time.monotonic() - began) / len(cells)
            for cell in cells:
                cell.end_restart(pool.exits_ns, exits_s=exits_s)
        finally:
            pool.kill()

    def _in_order(self, cells: Sequence[Lockstep], restart: int) -> list[Lockstep]:
        by_name = {cell.context.cell: cell for cell in cells}
        context = cells[0].context
        seed = derive_seed(context.seed, "cells", context.host, restart)
        return [by_name[name] for name in shuffled(tuple(by_name), seed)]


def _parts_s(cells: Sequence[Lockstep]) -> tuple[float, ...]:
    """Share what all cells have left by what each one had when a run was interrupted."""
    total_s = sum(cell.context.remaining_s for cell in cells)
    shares_s = [0.0 if cell.stopped_by else cell.context.budget.share_s for cell in cells]
    if not any(shares_s):
        return (total_s / len(cells),) * len(cells)
    return tuple(total_s * share_s / sum(shares_s) for share_s in shares_s)


def _left_s(cells: Iterable[Lockstep]) -> float:
    return sum(cell.context.budget.left_s for cell in cells)


def _give(cells: Sequence[Lockstep], seconds: float) -> None:
    """Give each of these cells an equal part of it; less than nothing is taken from them."""
    for cell in cells:
        cell.context.budget.give(seconds / len(cells))
