"""The lockstep pass of a cell: its restarts, each of shuffled rounds of blocks, and their plan.

A restart begins one generation in every arm, runs a discarded warm-up block and rounds for as long
as its launch deserves, and ends. Its workers may serve other cells before and after.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field
from functools import partial
from typing import Literal

from msgspec.structs import asdict, replace

from envcompare.config.plan import derive_seed, shuffled
from envcompare.errors import InterruptedRunError
from envcompare.measure.context import CellContext
from envcompare.measure.limits import (
    MIN_STEPS,
    Costs,
    RestartPlan,
    StopReason,
    begin_limit_s,
    block_limit_s,
    cpu_count,
    expected_block_s,
    plan_restarts,
    plan_text,
    small_budget_caution,
    steps_a_block,
    too_long,
    too_short,
    wanted_block_s,
    warmup_steps,
)
from envcompare.measure.marked import Marking
from envcompare.measure.pool import WorkerPool
from envcompare.measure.quiet import QuietGate
from envcompare.measure.replies import Generated, Hello, Ran
from envcompare.measure.startup import Launches
from envcompare.measure.worker import Worker
from envcompare.measure.workers import CellWorkers, Roster
from envcompare.run_folder.records import Block, Memory, Sample, Startup
from envcompare.stats.intervals import Interval
from envcompare.stats.metrics import Readings, wall_ns
from envcompare.stats.typical import (
    MIN_ROUNDS,
    PRIOR_SPREAD,
    ROUNDS_FOR_MEDIAN,
    Spread,
    pays_for_looks,
    restarts_before_a_look,
    spread,
    spread_of_rounds,
)

_CALIBRATION_STEPS = 4
_WARMUP = -1
_MAX_PAD_BYTES = 1 << 20
FIRST_REVIEW_S = 1.0  # of a restart's rounds; later ones after twice the time
USUAL_SPREAD = 0.05  # of a round, until it is known
_TOLERANCE = 1e-4  # relative, of the first loss: what summing in another order may change
_LOOSE_TOLERANCE = 1e-2  # with TF32 or bf16


@dataclass(slots=True)
class Lockstep:
    """Measure one cell; the readings grow, the roster says which arms are out and why."""

    context: CellContext
    roster: Roster
    prior: InitVar[Iterable[Sample]] = ()  # of the part before an interruption
    tuning: dict[str, float] = field(default_factory=dict)  # as noted before it
    stopped_by: StopReason | Literal["budget", "failure"] | None = None
    readings: Readings = field(init=False)
    restart: int = 0  # the next one
    gate: QuietGate = field(init=False)
    launches: Launches = field(init=False)
    marking: Marking = field(init=False)
    _steps: int | None = None
    _block_s: float = 0.0
    _costs: Costs | None = None  # of the last restart

    def __post_init__(self, prior: Iterable[Sample]) -> None:
        self.readings = Readings(metrics=("net", "wall"), threads=self.context.design.threads)
        self.marking = Marking(is_wanted=self.context.design.marks)
        self.gate = QuietGate(self.context)
        samples = tuple(prior)
        launches = [one for one in samples if isinstance(one, Startup)]
        self.launches = Launches(self.roster, launches)
        for block in (one for one in samples if isinstance(one, Block)):
            self.readings.add(block)
            self.restart = max(self.restart, 1 + block.restart)
            if block.warmup:
                continue
            self._steps = int(self.tuning.get("steps_per_block", block.k))
            step_s = wall_ns(block) / max(1, block.k) / 1e9
            self._block_s = self._steps * self.tuning.get("step_s", step_s)

    def why_done(self) -> StopReason | Literal["budget", "failure"] | None:
        """Return why no other restart is to come, None where one is."""
        planned = self.context.design.min_restarts
        why = self.roster.why_done(self.readings, min_restarts=planned)
        return "budget" if why is None and self._is_spent() else why

    def stop(self, reason: StopReason | Literal["budget", "failure"]) -> None:
        """End the cell, and record why."""
        self.stopped_by = reason
        self.context.note("stopped", text=reason)
        if reason == "budget":
            self._note_small_budget()

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        is_looked = pays_for_looks(
            is_out_of_budget=self.stopped_by == "budget",
            restarts=self.readings.restarts,
            planned=self.context.design.min_restarts,
        )
        return self.roster.intervals(self.readings, is_looked=is_looked)

    @property
    def _min_restarts(self) -> int:
        is_wide = self.roster.is_wide(self.readings)  # then more are worth shorter ones
        return restarts_before_a_look(self.context.design.min_restarts, is_wide=is_wide)

    @property
    def least_rounds(self) -> int:
        """Return how many rounds a restart has at least: enough for an interval.

        The restarts of a cell share them, but for those that are units of their own.
        """
        design = self.context.design
        if design.preset == "strict" or self.roster.is_wide(self.readings):
            return ROUNDS_FOR_MEDIAN
        return math.ceil(MIN_ROUNDS / max(1, design.min_restarts))

    def _is_spent(self) -> bool:
        """Tell whether no other restart is worth its launch; the first one always is."""
        if self._costs is None:
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
        )

    def _note_small_budget(self) -> None:
        costs, design = self._costs, self.context.design
        each_s = costs.launch_s + 4 * costs.round_s + 1 if costs else 0.0
        caution = small_budget_caution(
            design.budget_s,
            restarts=self.readings.restarts,
            least=design.min_restarts,
            needed_s=design.min_restarts * each_s,
        )
        if caution:
            self.context.note("caution", text=caution)

    def run_restart(self, pool: WorkerPool) -> None:
        """Run the next restart with the workers of a launch, and give them back.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        restart, self.restart = self.restart, self.restart + 1
        seed = derive_seed(self.context.seed, "launch", self.context.host, restart)
        order = shuffled(self.roster.arms, seed)
        self.context.note("restart", values={"restart": restart}, text=" ".join(order))
        workers = CellWorkers(self.roster, pool)
        before_s, began, measured_s = pool.launch_s, time.monotonic(), 0.0
        try:
            hellos = workers.begin(order, is_alone=self.launches.are_due)
            # a launch is every cell's: it counts as its share in each
            began += pool.launch_s - before_s - pool.share_s
            self.context.budget.left_s -= pool.share_s
            if self.context.reference in workers.arms and len(workers.arms) > 1:
                measured_s = self._run_generation(workers, hellos, restart, began)
            workers.give_back()
        finally:
            workers.kill()
            # what is no round: the launch, and the end of the work
            spent_s = time.monotonic() - began - measured_s
            costs = self._costs or Costs(launch_s=0.0)
            self._costs = dataclasses.replace(costs, launch_s=spent_s)

    def _run_generation(
        self, workers: CellWorkers, hellos: dict[str, Hello], restart: int, began: float
    ) -> float:
        """Run it and return the seconds that its rounds took."""
        rounds = _Rounds(lockstep=self, began=began)
        generation = _Generation(
            workers,
            restart,
            hellos,
            self.launches,
            self._steps,
            self._block_s,
            self.readings.add,
            rounds.is_enough,
            self.marking,
        )
        generation.run()
        self._steps, self._block_s = generation.steps, generation.block_s
        if rounds.costs is not None:
            self._costs = rounds.costs
        self.context.recorder.progress(self.intervals(), self.context)
        return rounds.measured_s + generation.marked_s

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
        groups = (self.readings.groups(arm, reference, metric) for arm in arms)
        known = [one for one in map(spread_of_rounds, groups) if one is not None]
        noise = self.context.noise
        between = [self.readings.spread(a, reference, metric, noise).variance for a in arms]
        return Costs(
            launch_s=launch_s,
            # not of one round alone: a neighbour may have met that one
            round_s=statistics.median(rounds_s),
            round_spread=statistics.median(known) if known else USUAL_SPREAD,
            restart_spread=math.sqrt(statistics.median(between)) if between else PRIOR_SPREAD,
        )

    def measuring_s(self, costs: Costs, *, spent_s: float, is_first: bool) -> float:
        """Return for how long the restart that runs is to measure, `spent_s` of it are over."""
        plan = self._plan(costs, spent_s=spent_s)
        if is_first and self._is_planned_aloud():
            left_s, missing = self.context.remaining_s + costs.launch_s, self._min_restarts
            budget_s = self.context.design.budget_s
            text = plan_text(plan, costs, remaining_s=left_s, budget_s=budget_s, missing=missing)
            self.context.note("calibrated", text=text, values={"planned_restarts": plan.restarts})
        return plan.measuring_s * (1 - self.marking.share)

    def _is_planned_aloud(self) -> bool:
        """Tell whether to say how many restarts fit: a launch on a GPU takes seconds."""
        is_quick = self.context.design.preset == "quick"
        return self.context.has_gpu and is_quick and self.restart == 1


@dataclass(slots=True)
class _Rounds:
    """When a restart has measured enough."""

    lockstep: Lockstep
    began: float  # of the launch
    costs: Costs | None = None
    _first_s: float | None = None  # of the first round
    measured_s: float = 0.0
    _rounds_s: list[float] = field(default_factory=list)
    _measuring_s: float = math.inf
    _least: int = 1
    _review_s: float = FIRST_REVIEW_S

    def is_enough(self, round_s: float | None) -> bool:
        """Tell whether no further round is to come; `round_s` is what the last one took.

        It is None before the first. What is left of the budget is shared anew as the rounds tell
        how far they scatter, after 1, 2, 4 … seconds; no look is taken at their ratios.
        """
        now = time.monotonic()
        if round_s is None:
            self._first_s = now
            return self.lockstep.context.remaining_s <= 0 and self.lockstep.readings.restarts > 0
        self._rounds_s.append(round_s)
        spent_s = self.measured_s = now - (self._first_s or now)
        if self.costs is None or spent_s >= self._review_s:
            is_first = self.costs is None
            launch_s = (self._first_s or now) - self.began
            self.costs = self.lockstep.costs(launch_s, self._rounds_s)
            self._measuring_s = self.lockstep.measuring_s(
                self.costs, spent_s=spent_s, is_first=is_first
            )
            self._least = self.lockstep.least_rounds
            self._review_s = max(FIRST_REVIEW_S, 2 * spent_s)
        if self.lockstep.context.remaining_s <= 0:
            return True
        return spent_s >= self._measuring_s and len(self._rounds_s) >= self._least


@dataclass(slots=True)
class _Generation:
    """The generation of a restart; `steps` and `block_s` are known when it has run."""

    workers: CellWorkers
    restart: int
    hellos: dict[str, Hello]
    launches: Launches
    steps: int | None  # in a block; None: calibrate first
    block_s: float  # of the reference, as calibrated
    keep: Callable[[Block], None]
    is_enough: Callable[[float | None], bool]
    marking: Marking
    marked_s: float = 0.0
    number: int = 0
    _checksums: dict[str, float | None] = field(default_factory=dict)
    _first_step_s: float = 0.0  # the longest of all arms

    @property
    def context(self) -> CellContext:
        return self.workers.context

    def run(self) -> None:
        """Run it all; an arm that fails ends the generation for every arm.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        self._begin()
        self.workers.compare_checksums(self._checksums, tolerance=self._tolerance())
        arms = self.workers.arms
        if self.steps is None:
            self._calibrate()
        began = time.monotonic()
        try:
            if self._can_measure():
                self._run_round(_WARMUP)
                began = time.monotonic()
            self._run_rounds(arms)
        except InterruptedRunError:
            if not self.context.interruption.is_forced:
                self.workers.look_around(is_last=True)  # else what was measured is lost on resume
            raise
        self.workers.look_around()
        if self.steps is not None and self.workers.arms == arms:
            self._run_marked(time.monotonic() - began)
        self._end()

    def _run_rounds(self, arms: tuple[str, ...]) -> None:
        number, round_s = 0, None
        while self.workers.arms == arms and self._can_measure() and not self.is_enough(round_s):
            began = time.monotonic()
            self._run_round(number)
            round_s = time.monotonic() - began
            number += 1

    def _run_marked(self, rounds_s: float) -> None:
        steps = self.steps or MIN_STEPS
        step_s, order = self.block_s / steps, self._order
        self.marked_s = self.marking.run(
            self.workers, restart=self.restart, steps=steps, step_s=step_s, rounds_s=rounds_s,
            order=order,
        )  # fmt: skip

    def _can_measure(self) -> bool:
        return self.steps is not None and self.context.reference in self.workers.arms

    def _order(self, purpose: str) -> tuple[str, ...]:
        return shuffled(self.workers.arms, self._seed(purpose))

    def _seed(self, purpose: str) -> int:
        context = self.context
        return derive_seed(context.seed, purpose, context.cell, self.restart, self.number)

    def _begin(self) -> None:
        """Build the model in every arm, in one after the other where the launch is timed."""
        order = self._order("begin")
        began: dict[str, Generated] = {}
        if self.launches.are_due:
            for number, arm in enumerate(order):
                self._send_begin(arm)
                hello = self.hellos[arm]
                generated = self.launches.train(
                    self.workers, arm, hello, repetition=self.restart, order=number
                )
                if generated is not None:
                    began[arm] = generated
        else:
            budget_s = self.context.design.budget_s
            limit_s = begin_limit_s(budget_s, remaining_s=self.context.remaining_s)
            for arm in order:
                self._send_begin(arm)
            began = self.workers.collect(order, lambda worker: worker.await_begin(limit_s))
            for arm, generated in began.items():
                failure = too_long(arm, generated.first_step_ns / 1e9, budget_s)
                if failure is not None:
                    self.workers.drop(arm, failure)
        self._checksums = {arm: generated.checksum for arm, generated in began.items()}
        steps_ns = (generated.first_step_ns for generated in began.values())
        self._first_step_s = max(steps_ns, default=0) / 1e9

    def _send_begin(self, arm: str) -> None:
        seed, pad = self._seed("model") % 2**31, self._seed(f"pad {arm}") % _MAX_PAD_BYTES
        self.workers.tell(arm, partial(Worker.send_begin, seed=seed, pad=pad))

    def _tolerance(self) -> float:
        hellos = self.workers.roster.hellos.values()
        return _LOOSE_TOLERANCE if any(map(_uses_tf32, hellos)) else _TOLERANCE

    def _calibrate(self) -> None:
        """Choose k on the reference so that a block lasts 20 ms; all arms do these steps."""
        context = self.context
        for arm in self._order("calibrate"):
            limit_s = block_limit_s(_CALIBRATION_STEPS * self._first_step_s)
            ran = self.workers.ask(arm, _steps(_CALIBRATION_STEPS, limit_s))
            if ran is not None and arm == context.reference:
                # the mean: a GPU waits in the last step
                self._take_steps(sum(ran.wall_ns) / len(ran.wall_ns) / 1e9)

    def _take_steps(self, step_s: float) -> None:
        context = self.context
        if (failure := too_short(context.reference, step_s)) is not None:
            self.workers.drop(context.reference, failure)
            return
        wanted_s = wanted_block_s(self.workers.roster.hellos.values())
        self.steps = steps_a_block(step_s, block_s=wanted_s)
        self.block_s = self.steps * step_s
        context.note("calibrated", values={"steps_per_block": self.steps, "step_s": step_s})

    def _run_round(self, number: int) -> None:
        steps = self.steps or MIN_STEPS
        if number == _WARMUP:
            steps = warmup_steps(steps, self.block_s)
        for order, arm in enumerate(self._order(f"round {number}")):
            limit_s = block_limit_s(expected_block_s(self._first_step_s))
            ran = self.workers.ask(arm, _steps(steps, limit_s))
            if ran is None:
                self.context.note("round-dropped", arm=arm, text=f"round {number}")
                return
            block = self._checked(self._block(arm, ran, number=number, order=order))
            self.keep(block)
            self.context.recorder.sample(block)

    def _checked(self, block: Block) -> Block:
        """Return the block, marked as dropped where its times cannot be true."""
        roster = self.workers.roster
        fault = roster.clocks.fault(block, cpus=cpu_count(roster.hellos.get(block.arm)))
        if not fault:
            return block
        roster.context.note("round-dropped", arm=block.arm, text=f"round {block.round}: {fault}")
        return replace(block, status="dropped")

    def _block(self, arm: str, ran: Ran, *, number: int, order: int) -> Block:
        return Block(
            cell=self.context.cell,
            arm=arm,
            restart=self.restart,
            generation=self.number,
            round=number,
            order=order,
            k=len(ran.wall_ns),
            checksum=self._checksums.get(arm),
            warmup=number == _WARMUP,
            **asdict(ran),
        )

    def _end(self) -> None:
        for arm in self.workers.arms:
            self.workers.tell(arm, Worker.send_end)
        for arm, ended in self.workers.collect(self.workers.arms, Worker.await_end).items():
            peaks = asdict(ended)
            result = peaks.pop("result")
            if arm in self.workers.pool.served:
                peaks["cgroup_peak_bytes"] = None  # that of cells before it
            memory = Memory(
                cell=self.context.cell,
                arm=arm,
                restart=self.restart,
                generation=self.number,
                **peaks,
            )
            self.context.recorder.sample(memory)
            if result:
                self.context.note("generation", arm=arm, values=result)


def _uses_tf32(hello: Hello) -> bool:
    facts = hello.fingerprint or {}
    keys = ("torch.tf32_matmul", "torch.tf32_cudnn")
    return hello.device == "cuda" and any(facts.get(key) is True for key in keys)


def _steps(count: int, limit_s: float) -> Callable[[Worker], Ran]:
    return lambda worker: worker.run(count, limit_s)
