"""The lockstep pass: restarts of new workers, shuffled rounds of blocks, until a cell is decided.

A generation begins in every arm, runs a discarded warm-up block and its rounds, and ends.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from msgspec.structs import asdict, replace

from envcompare.config.plan import derive_seed, shuffled
from envcompare.errors import InterruptedRunError
from envcompare.measure.context import CellContext
from envcompare.measure.limits import (
    FIRST_ROUNDS,
    MIN_STEPS,
    Costs,
    StopReason,
    affordable_rounds,
    begin_limit_s,
    block_limit_s,
    cpu_count,
    expected_block_s,
    first_rounds,
    generations_per_restart,
    plan_restarts,
    plan_text,
    rounds_per_generation,
    short_block_caution,
    small_budget_caution,
    steps_a_block,
    too_long,
    too_short,
    warmup_steps,
)
from envcompare.measure.quiet import QuietGate
from envcompare.measure.startup import SHARE
from envcompare.measure.worker import Hello, Ran, Worker
from envcompare.measure.workers import Roster, WorkerPool
from envcompare.run_folder.records import Block, Memory
from envcompare.stats.intervals import REBUILD_RESTARTS, Interval
from envcompare.stats.metrics import estimate, primary_metric

GENERATIONS_BEFORE_TUNING = 3
_CALIBRATION_STEPS = 4
_WARMUP = -1
_MAX_PAD_BYTES = 1 << 20
_TOLERANCE = 1e-4  # relative, of the first loss: what summing in another order may change
_LOOSE_TOLERANCE = 1e-2  # with TF32 or bf16


@dataclass(slots=True)
class Lockstep:
    """Measure one cell; `blocks` grows, the roster says which arms are out and why."""

    context: CellContext
    roster: Roster
    blocks: list[Block] = field(default_factory=list)
    tuning: dict[str, float] = field(default_factory=dict)  # as noted before an interruption
    stopped_by: StopReason | Literal["budget", "failure"] | None = None
    _restart: int = 0
    _rounds: int = FIRST_ROUNDS
    _steps: int | None = None
    _block_s: float = 0.0
    _generations: int | None = None  # in a restart, once the costs are known
    _costs: Costs = field(default_factory=lambda: Costs(launch_s=0, generation_s=0, round_s=0))
    _restart_s: float = 0.0

    def __post_init__(self) -> None:
        if self.blocks:
            self._continue()

    def measure(self) -> None:
        """Run restarts until all arms are done, the budget is spent, or nothing is left.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        gate = QuietGate(self.context)
        while not self._is_done():
            gate.wait_to_launch(uuid=self.roster.gpu_uuid)
            began = time.monotonic()
            self._run_restart(gate)
            self._restart_s = time.monotonic() - began
            self._restart += 1
        self.context.note("stopped", text=self.stopped_by or "")
        if self.stopped_by == "budget":
            self._note_small_budget()

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        return self.roster.intervals(self.blocks)

    def _continue(self) -> None:
        """Go on after the last restart of an interrupted run; a torn restart is left out later."""
        self.blocks = [_summed(block) for block in self.blocks]
        self._restart = 1 + max(block.restart for block in self.blocks)
        self._steps = int(self.tuning.get("steps_per_block", self.blocks[-1].k))
        self._block_s = self._steps * self.tuning.get("step_s", 0.0)
        rounds = self.tuning.get("rounds_per_generation", first_rounds(self._block_s))
        self._rounds = int(rounds)
        generations = self.tuning.get("generations_per_restart")
        self._generations = None if generations is None else int(generations)

    def _is_done(self) -> bool:
        self.stopped_by = self.roster.why_done(self.blocks, min_restarts=self._min_restarts())
        if (
            self.stopped_by is None
            and self._restart > 0
            and self._restart_s >= self.context.remaining_s
        ):
            self.stopped_by = "budget"
        return self.stopped_by is not None

    def _min_restarts(self) -> int:
        is_rebuilt = any(h.generation == "rebuild" for h in self.roster.hellos.values())
        return max(self.context.design.min_restarts, REBUILD_RESTARTS if is_rebuilt else 0)

    def _note_small_budget(self) -> None:
        costs, design = self._costs, self.context.design
        lockstep_s = self._min_restarts() * (costs.launch_s + 2 * costs.generation_s)
        caution = small_budget_caution(
            design.budget_s,
            generations=len({(b.restart, b.generation) for b in self.blocks if not b.warmup}),
            needed_s=lockstep_s / (1 - SHARE if design.has_startup else 1),
        )
        if caution:
            self.context.note("caution", text=caution)

    def _run_restart(self, gate: QuietGate) -> None:
        began_s = self.context.remaining_s
        seed = derive_seed(self.context.seed, "launch", self.context.cell, self._restart)
        order = shuffled(self.roster.arms, seed)
        self.context.note("restart", values={"restart": self._restart}, text=" ".join(order))
        pool = WorkerPool(self.roster)
        try:
            pool.launch(order, restart=self._restart)
            launch_s = began_s - self.context.remaining_s
            generation = 0
            while self._can_go_on(pool, generation):
                if generation > 0:
                    gate.wait()
                self._run_generation(pool, generation, launch_s)
                generation += 1
                self._spread(began_s)
            pool.dismiss()
        finally:
            pool.kill()

    def _can_go_on(self, pool: WorkerPool, generation: int) -> bool:
        if self.context.reference not in pool.arms or len(pool.arms) < 2:
            return False
        if generation == 0:
            return True
        fits = self._costs.generation_s <= self.context.remaining_s
        return fits and generation < (self._generations or 1)

    def _run_generation(self, pool: WorkerPool, generation: int, launch_s: float) -> None:
        began = time.monotonic()
        run = _Generation(pool, self._restart, generation, self._rounds, self._steps, self._block_s)
        if self.context.has_gpu and self.context.design.preset == "quick":
            run.plan = partial(self._plan, launch_s)
        run.run()
        self._steps, self._block_s = run.steps, run.block_s
        self.blocks += map(_summed, run.blocks)
        self._rounds = run.rounds
        self._costs = Costs(
            launch_s=launch_s,
            generation_s=time.monotonic() - began - run.aside_s,
            round_s=run.round_s,
            block_s=run.block_s,
        )
        if "rounds_per_generation" not in self.tuning:
            self._tune_rounds(generation)
        self.context.recorder.progress(self.intervals(), self.context)

    def _plan(self, launch_s: float, begin_s: float, round_s: float, rounds: int) -> int:
        """Say before the first block how many restarts fit; return the rounds that they leave.

        A launch on a GPU takes seconds, of which a small budget holds few.
        """
        costs = Costs(launch_s=launch_s, generation_s=begin_s, round_s=round_s)
        left_s, restarts = self.context.remaining_s, self._min_restarts()
        plan = plan_restarts(
            costs,
            rounds=rounds,
            remaining_s=left_s,
            budget_s=self.context.design.budget_s,
            restarts=restarts,
        )
        text = plan_text(plan, costs, remaining_s=left_s, restarts=restarts)
        self.context.note("calibrated", text=text, values={"planned_restarts": plan.restarts})
        return plan.rounds

    def _spread(self, began_s: float) -> None:
        """After the first generation, fix how many of them each restart has."""
        if self._generations is None:
            self._generations = generations_per_restart(
                self._costs, remaining_s=began_s, restarts_to_come=self._min_restarts()
            )
            self._note_tuning("generations_per_restart", self._generations)

    def _note_tuning(self, name: str, value: int) -> None:
        self.tuning[name] = value
        self.context.note("calibrated", values={name: value})

    def _tune_rounds(self, generation: int) -> None:
        """After three generations, fix the rounds: more only where all restarts still fit."""
        if len({(b.restart, b.generation) for b in self.blocks}) < GENERATIONS_BEFORE_TUNING:
            return
        metric, _ = primary_metric(self.blocks, threads=self.context.design.threads)
        reference = self.context.reference
        arms = tuple(arm for arm in self.roster.arms if arm != reference)
        pairs = [estimate(self.blocks, arm=a, reference=reference, metric=metric)[0] for a in arms]
        best = rounds_per_generation(pairs, self._costs, rounds=self._rounds)
        self._rounds = min(best, max(self._rounds, self._affordable_rounds(generation)))
        self._note_tuning("rounds_per_generation", self._rounds)

    def _affordable_rounds(self, generation: int) -> int:
        restarts = max(0, self._min_restarts() - self._restart - 1)
        per_restart = self._generations or 1
        return affordable_rounds(
            self._costs,
            rounds=self._rounds,
            remaining_s=self.context.remaining_s,
            restarts=restarts,
            generations=(restarts + 1) * per_restart - generation - 1,
        )


@dataclass(slots=True)
class _Generation:
    """One generation of a restart; `blocks` and `round_s` are what came of it."""

    pool: WorkerPool
    restart: int
    number: int
    rounds: int
    steps: int | None  # in a block; None: calibrate first
    block_s: float = 0.0  # of the reference, as calibrated
    blocks: list[Block] = field(default_factory=list)
    round_s: float = 0.0
    plan: Callable[[float, float, int], int] | None = None  # of a restart, once blocks are known
    aside_s: float = 0.0  # spent on what other generations need not do
    _checksums: dict[str, float | None] = field(default_factory=dict)
    _first_step_s: float = 0.0  # the longest of all arms

    @property
    def context(self) -> CellContext:
        return self.pool.context

    def run(self) -> None:
        """Run it all; an arm that fails ends the generation for every arm.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        began = time.monotonic()
        self._begin()
        begin_s = time.monotonic() - began
        self.pool.compare_checksums(self._checksums, tolerance=self._tolerance())
        arms = self.pool.arms
        if self.steps is None:
            self._calibrate()
            if self.plan is not None and self._can_measure():
                self.rounds = self.plan(begin_s, len(arms) * self.block_s, self.rounds)
        spent_s: list[float] = []
        try:
            for number in range(_WARMUP, self.rounds):
                if self.pool.arms != arms or not self._can_measure():
                    break
                began = time.monotonic()
                self._run_round(number)
                spent_s.append(time.monotonic() - began)
        except InterruptedRunError:
            if not self.context.interruption.is_forced:
                self.pool.look_around(is_last=True)  # else what a resumed run has measured is lost
            raise
        # not of one round alone: rounds are planned from it, and a neighbour may have met that one
        self.round_s = statistics.median(spent_s[1:] or spent_s or [0.0])  # the first is warm-up
        self._look_around()
        self._end()

    def _look_around(self) -> None:
        """Fingerprint what is new; it costs this generation alone, so that no plan counts it."""
        began = time.monotonic()
        self.pool.look_around()
        self.aside_s = time.monotonic() - began

    def _can_measure(self) -> bool:
        return self.steps is not None and self.context.reference in self.pool.arms

    def _order(self, purpose: str) -> tuple[str, ...]:
        return shuffled(self.pool.arms, self._seed(purpose))

    def _seed(self, purpose: str) -> int:
        context = self.context
        return derive_seed(context.seed, purpose, context.cell, self.restart, self.number)

    def _begin(self) -> None:
        seed = self._seed("model") % 2**31
        order = self._order("begin")
        for arm in order:
            pad = self._seed(f"pad {arm}") % _MAX_PAD_BYTES
            self.pool.tell(arm, partial(Worker.send_begin, seed=seed, pad=pad))
        budget_s = self.context.design.budget_s
        limit_s = begin_limit_s(budget_s, remaining_s=self.context.remaining_s)
        began = self.pool.collect(order, lambda worker: worker.await_begin(limit_s))
        self._checksums = {arm: generated.checksum for arm, generated in began.items()}
        for arm, generated in began.items():
            step_s = generated.first_step_ns / 1e9
            self._first_step_s = max(self._first_step_s, step_s)
            if (failure := too_long(arm, step_s, budget_s)) is not None:
                self.pool.drop(arm, failure)

    def _tolerance(self) -> float:
        hellos = self.pool.roster.hellos.values()
        return _LOOSE_TOLERANCE if any(map(_uses_tf32, hellos)) else _TOLERANCE

    def _calibrate(self) -> None:
        """Choose k on the reference so that a block lasts about 0.1 s; all arms do these steps."""
        context = self.context
        for arm in self._order("calibrate"):
            limit_s = block_limit_s(_CALIBRATION_STEPS * self._first_step_s)
            ran = self.pool.ask(arm, _steps(_CALIBRATION_STEPS, limit_s))
            if ran is not None and arm == context.reference:
                # the mean: a GPU waits in the last step
                self._take_steps(sum(ran.wall_ns) / len(ran.wall_ns) / 1e9)

    def _take_steps(self, step_s: float) -> None:
        context = self.context
        if (failure := too_short(context.reference, step_s)) is not None:
            self.pool.drop(context.reference, failure)
            return
        self.steps = steps_a_block(step_s)
        self.block_s = self.steps * step_s
        self.rounds = min(self.rounds, first_rounds(self.block_s))
        context.note("calibrated", values={"steps_per_block": self.steps, "step_s": step_s})
        if caution := short_block_caution(step_s, self.steps):
            context.note("caution", text=caution)

    def _run_round(self, number: int) -> None:
        steps = self.steps or MIN_STEPS
        if number == _WARMUP:
            steps = warmup_steps(steps, self._first_step_s)
        for order, arm in enumerate(self._order(f"round {number}")):
            limit_s = block_limit_s(expected_block_s(self._first_step_s))
            ran = self.pool.ask(arm, _steps(steps, limit_s))
            if ran is None:
                self.context.note("round-dropped", arm=arm, text=f"round {number}")
                return
            block = self._checked(self._block(arm, ran, number=number, order=order))
            self.blocks.append(block)
            self.context.recorder.sample(block)

    def _checked(self, block: Block) -> Block:
        """Return the block, marked as dropped where its times cannot be true."""
        roster = self.pool.roster
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
        for arm in self.pool.arms:
            self.pool.tell(arm, Worker.send_end)
        for arm, ended in self.pool.collect(self.pool.arms, Worker.await_end).items():
            peaks = asdict(ended)
            result = peaks.pop("result")
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


def _summed(block: Block) -> Block:
    """Return the block without its single steps: a look needs sums, and the folder keeps the rest.

    Thousands of short steps a block would fill the memory, and make every look slow.
    """
    return replace(
        block,
        wall_ns=(sum(block.wall_ns),),
        cpu_ns=(sum(block.cpu_ns),),
        gpu_ns=None if block.gpu_ns is None else (sum(block.gpu_ns),),
    )
