"""One generation: begin in every arm, a discarded warm-up block, shuffled rounds, and the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import asdict, replace

from envcompare.config.plan import derive_seed, shuffled
from envcompare.errors import InterruptedRunError
from envcompare.measure.crew import Crew
from envcompare.measure.limits import (
    MIN_STEPS,
    begin_limit_s,
    block_limit_s,
    cpu_count,
    expected_block_s,
    short_block_caution,
    steps_a_block,
    too_long,
    too_short,
    warmup_steps,
)
from envcompare.measure.protocol import Hello, Ran
from envcompare.measure.stopping import first_rounds
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Block, Memory

CALIBRATION_STEPS = 4
WARMUP = -1
MAX_PAD_BYTES = 1 << 20
TOLERANCE = 1e-4  # relative, of the first loss: what summing in another order may change
LOOSE_TOLERANCE = 1e-2  # with TF32 or bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in the cell a generation stands."""

    restart: int
    generation: int


@dataclass(slots=True)
class GenerationRun:
    """Run one generation with a crew; `blocks` and `round_s` are what came of it."""

    crew: Crew
    place: Place
    rounds: int
    steps: int | None  # in a block; None: calibrate first
    block_s: float = 0.0  # of the reference, as calibrated
    blocks: list[Block] = field(default_factory=list)
    round_s: float = 0.0
    aside_s: float = 0.0  # spent on what other generations need not do
    _checksums: dict[str, float | None] = field(default_factory=dict)
    _first_step_s: float = 0.0  # the longest of all arms

    def run(self) -> None:
        """Run it all; an arm that fails ends the generation for every arm.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        self._begin()
        self.crew.compare_checksums(self._checksums, tolerance=self._tolerance())
        arms = self.crew.arms
        if self.steps is None:
            self._calibrate()
        spent_s: list[float] = []
        try:
            for number in range(WARMUP, self.rounds):
                if self.crew.arms != arms or not self._can_measure():
                    break
                began = time.monotonic()
                self._run_round(number)
                spent_s.append(time.monotonic() - began)
        except InterruptedRunError:
            if not self.crew.roster.bench.interruption.is_forced:
                self.crew.look_around(is_last=True)  # else what a resumed run has measured is lost
            raise
        # not of one round alone: rounds are planned from it, and a neighbour may have met that one
        self.round_s = statistics.median(spent_s[1:] or spent_s or [0.0])  # the first is warm-up
        self._look_around()
        self._end()

    def _look_around(self) -> None:
        """Fingerprint what is new; it costs this generation alone, so that no plan counts it."""
        began = time.monotonic()
        self.crew.look_around()
        self.aside_s = time.monotonic() - began

    def _can_measure(self) -> bool:
        return self.steps is not None and self.crew.roster.bench.reference in self.crew.arms

    def _order(self, purpose: str) -> tuple[str, ...]:
        return shuffled(self.crew.arms, self._seed(purpose))

    def _seed(self, purpose: str) -> int:
        bench = self.crew.roster.bench
        return derive_seed(
            bench.seed, purpose, bench.cell, self.place.restart, self.place.generation
        )

    def _begin(self) -> None:
        seed = self._seed("model") % 2**31
        order = self._order("begin")
        for arm in order:
            pad = self._seed(f"pad {arm}") % MAX_PAD_BYTES
            self.crew.tell(arm, partial(Worker.send_begin, seed=seed, pad=pad))
        budget_s = self.crew.roster.bench.design.budget_s
        limit_s = begin_limit_s(budget_s, remaining_s=self.crew.roster.bench.remaining_s)
        began = self.crew.collect(order, lambda worker: worker.await_begin(limit_s))
        self._checksums = {arm: generated.checksum for arm, generated in began.items()}
        for arm, generated in began.items():
            step_s = generated.first_step_ns / 1e9
            self._first_step_s = max(self._first_step_s, step_s)
            if (failure := too_long(arm, step_s, budget_s)) is not None:
                self.crew.drop(arm, failure)

    def _tolerance(self) -> float:
        hellos = self.crew.roster.hellos.values()
        return LOOSE_TOLERANCE if any(map(_uses_tf32, hellos)) else TOLERANCE

    def _calibrate(self) -> None:
        """Choose k on the reference so that a block lasts about 0.1 s; all arms do these steps."""
        bench = self.crew.roster.bench
        for arm in self._order("calibrate"):
            limit_s = block_limit_s(CALIBRATION_STEPS * self._first_step_s)
            ran = self.crew.ask(arm, _steps(CALIBRATION_STEPS, limit_s))
            if ran is not None and arm == bench.reference:
                # the mean: a GPU waits in the last step
                self._take_steps(sum(ran.wall_ns) / len(ran.wall_ns) / 1e9)

    def _take_steps(self, step_s: float) -> None:
        bench = self.crew.roster.bench
        if (failure := too_short(bench.reference, step_s)) is not None:
            self.crew.drop(bench.reference, failure)
            return
        self.steps = steps_a_block(step_s)
        self.block_s = self.steps * step_s
        self.rounds = min(self.rounds, first_rounds(self.block_s))
        bench.note("calibrated", values={"steps_per_block": self.steps, "step_s": step_s})
        if caution := short_block_caution(step_s, self.steps):
            bench.note("caution", text=caution)

    def _run_round(self, number: int) -> None:
        steps = self.steps or MIN_STEPS
        if number == WARMUP:
            steps = warmup_steps(steps, self._first_step_s)
        for order, arm in enumerate(self._order(f"round {number}")):
            limit_s = block_limit_s(expected_block_s(self._first_step_s))
            ran = self.crew.ask(arm, _steps(steps, limit_s))
            if ran is None:
                self.crew.roster.bench.note("round-dropped", arm=arm, text=f"round {number}")
                return
            block = self._checked(self._block(arm, ran, number=number, order=order))
            self.blocks.append(block)
            self.crew.roster.bench.recorder.sample(block)

    def _checked(self, block: Block) -> Block:
        """Return the block, marked as dropped where its times cannot be true."""
        roster = self.crew.roster
        fault = roster.clocks.fault(block, cpus=cpu_count(roster.hellos.get(block.arm)))
        if not fault:
            return block
        roster.bench.note("round-dropped", arm=block.arm, text=f"round {block.round}: {fault}")
        return replace(block, status="dropped")

    def _block(self, arm: str, ran: Ran, *, number: int, order: int) -> Block:
        return Block(
            cell=self.crew.roster.bench.cell,
            arm=arm,
            restart=self.place.restart,
            generation=self.place.generation,
            round=number,
            order=order,
            k=len(ran.wall_ns),
            checksum=self._checksums.get(arm),
            warmup=number == WARMUP,
            **asdict(ran),
        )

    def _end(self) -> None:
        for arm in self.crew.arms:
            self.crew.tell(arm, Worker.send_end)
        for arm, ended in self.crew.collect(self.crew.arms, Worker.await_end).items():
            peaks = asdict(ended)
            result = peaks.pop("result")
            memory = Memory(
                cell=self.crew.roster.bench.cell,
                arm=arm,
                restart=self.place.restart,
                generation=self.place.generation,
                **peaks,
            )
            self.crew.roster.bench.recorder.sample(memory)
            if result:
                self.crew.roster.bench.note("generation", arm=arm, values=result)


def _uses_tf32(hello: Hello) -> bool:
    facts = hello.fingerprint or {}
    keys = ("torch.tf32_matmul", "torch.tf32_cudnn")
    return hello.device == "cuda" and any(facts.get(key) is True for key in keys)


def _steps(count: int, limit_s: float) -> Callable[[Worker], Ran]:
    return lambda worker: worker.run(count, limit_s)
