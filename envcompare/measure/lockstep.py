"""The lockstep pass: restarts of new processes and containers until a cell is decided."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from envcompare.config.plan import derive_seed, shuffled
from envcompare.measure.bench import Bench
from envcompare.measure.crew import Crew, Roster
from envcompare.measure.generation import GenerationRun, Place
from envcompare.measure.limits import small_budget_caution
from envcompare.measure.quiet import QuietGate
from envcompare.measure.startup import SHARE
from envcompare.measure.stopping import (
    FIRST_ROUNDS,
    Costs,
    StopReason,
    affordable_rounds,
    first_rounds,
    generations_per_restart,
    rounds_per_generation,
    stop_reason,
)
from envcompare.run_folder.records import Block
from envcompare.stats.intervals import REBUILD_RESTARTS, Interval
from envcompare.stats.metrics import estimate, look, primary_metric

GENERATIONS_BEFORE_TUNING = 3


@dataclass(slots=True)
class Lockstep:
    """Measure one cell; `blocks` grows, the roster says which arms are out and why."""

    bench: Bench
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
        gate = QuietGate(self.bench)
        while not self._is_done():
            gate.wait()
            began = time.monotonic()
            self._run_restart(gate)
            self._restart_s = time.monotonic() - began
            self._restart += 1
        self.bench.note("stopped", text=self.stopped_by or "")
        if self.stopped_by == "budget":
            self._note_small_budget()

    def intervals(self) -> dict[str, Interval | None]:
        """Return the printed interval of each compared arm, as far as it is known."""
        return look(
            tuple(self.blocks),
            self.roster.compared,
            reference=self.bench.reference,
            design=self.bench.design,
            m=self.bench.comparisons,
        )

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
        if self.bench.reference in self.roster.failed or not self.roster.compared:
            self.stopped_by = "failure"
        elif self.blocks and (reason := self._stop_reason()):
            self.stopped_by = reason
        elif self._restart > 0 and self._restart_s >= self.bench.remaining_s:
            self.stopped_by = "budget"
        return self.stopped_by is not None

    def _stop_reason(self) -> StopReason | None:
        return stop_reason(
            self.intervals().values(),
            design=self.bench.design,
            min_restarts=self._min_restarts(),
        )

    def _min_restarts(self) -> int:
        is_rebuilt = any(h.generation == "rebuild" for h in self.roster.hellos.values())
        return max(self.bench.design.min_restarts, REBUILD_RESTARTS if is_rebuilt else 0)

    def _note_small_budget(self) -> None:
        costs, design = self._costs, self.bench.design
        lockstep_s = self._min_restarts() * (costs.launch_s + 2 * costs.generation_s)
        caution = small_budget_caution(
            design.budget_s,
            generations=len({(b.restart, b.generation) for b in self.blocks if not b.warmup}),
            needed_s=lockstep_s / (1 - SHARE if design.has_startup else 1),
        )
        if caution:
            self.bench.note("caution", text=caution)

    def _run_restart(self, gate: QuietGate) -> None:
        began_s = self.bench.remaining_s
        seed = derive_seed(self.bench.seed, "launch", self.bench.cell, self._restart)
        order = shuffled(self.roster.arms, seed)
        self.bench.note("restart", values={"restart": self._restart}, text=" ".join(order))
        crew = Crew(self.roster)
        try:
            crew.launch(order, restart=self._restart)
            launch_s = began_s - self.bench.remaining_s
            generation = 0
            while self._can_go_on(crew, generation):
                if generation > 0:
                    gate.wait()
                self._run_generation(crew, generation, launch_s)
                generation += 1
                self._spread(began_s)
            crew.dismiss()
        finally:
            crew.kill()

    def _can_go_on(self, crew: Crew, generation: int) -> bool:
        if self.bench.reference not in crew.arms or len(crew.arms) < 2:
            return False
        if generation == 0:
            return True
        fits = self._costs.generation_s <= self.bench.remaining_s
        return fits and generation < (self._generations or 1)

    def _run_generation(self, crew: Crew, generation: int, launch_s: float) -> None:
        began = time.monotonic()
        place = Place(restart=self._restart, generation=generation)
        run = GenerationRun(crew, place, self._rounds, self._steps, self._block_s)
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
        self.bench.recorder.progress(self.intervals(), self.bench)

    def _spread(self, began_s: float) -> None:
        """After the first generation, fix how many of them each restart has."""
        if self._generations is None:
            self._generations = generations_per_restart(
                self._costs, remaining_s=began_s, restarts_to_come=self._min_restarts()
            )
            self._note_tuning("generations_per_restart", self._generations)

    def _note_tuning(self, name: str, value: int) -> None:
        self.tuning[name] = value
        self.bench.note("calibrated", values={name: value})

    def _tune_rounds(self, generation: int) -> None:
        """After three generations, fix the rounds: more only where all restarts still fit."""
        if len({(b.restart, b.generation) for b in self.blocks}) < GENERATIONS_BEFORE_TUNING:
            return
        metric, _ = primary_metric(self.blocks, threads=self.bench.design.threads)
        reference = self.bench.reference
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
            remaining_s=self.bench.remaining_s,
            restarts=restarts,
            generations=(restarts + 1) * per_restart - generation - 1,
        )


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
