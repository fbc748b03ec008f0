"""Replay the schedule of a cell in simulated time, deciding with the product's own functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from envcompare.measure.limits import (
    Costs,
    StopReason,
    affordable_rounds,
    first_rounds,
    generations_per_restart,
    rounds_per_generation,
    stop_reason,
)
from envcompare.measure.lockstep import GENERATIONS_BEFORE_TUNING
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import Interval, printed_interval
from envcompare.stats.pairs import Pairs, Units, trimmed_mean, units
from streams import Cost, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a simulated cell left: its units, why it stopped, and what it cost."""

    groups: Units
    stopped_by: StopReason | Literal["budget"]
    generations: int
    seconds: float


class _Schedule:
    """One cell, from its first launch to its stop."""

    def __init__(self, values: np.ndarray, cost: Cost, design: Design, comparisons: int) -> None:
        self._values = values
        self._cost = cost
        self._design = design
        self._comparisons = comparisons
        self._rounds = first_rounds(cost.block_s)
        self._per_restart: int | None = None
        self._pairs: Pairs = {}  # until the rounds are tuned
        self._means: Pairs = {}  # a trimmed mean is its own trimmed mean
        self._is_tuned = False
        self.spent_s = 0.0

    def run(self) -> Cell:
        """Run restarts until the rule stops the cell or the next would not fit."""
        reason: StopReason | None = None
        for restart in range(len(self._values)):
            began_s = self.spent_s
            self._restart(restart)
            reason = self._look() if restart + 1 >= self._design.min_restarts else None
            if reason or self.spent_s - began_s >= self._remaining_s:
                break
        return Cell(
            groups=units(self._means),
            stopped_by=reason or "budget",
            generations=sum(len(gens) for gens in self._means.values()),
            seconds=self.spent_s,
        )

    @property
    def _remaining_s(self) -> float:
        return self._design.budget_s - self.spent_s

    def _look(self) -> StopReason | None:
        found = printed(units(self._means), self._design, self._comparisons)
        return stop_reason([found], design=self._design, min_restarts=self._design.min_restarts)

    def _restart(self, restart: int) -> None:
        began_s = self._remaining_s
        self.spent_s += self._cost.launch_s
        for generation in range(self._values.shape[1]):
            costs = self._generation(restart, generation)
            if self._per_restart is None:
                self._per_restart = generations_per_restart(
                    costs, remaining_s=began_s, restarts_to_come=self._design.min_restarts
                )
            is_full = generation + 1 >= self._per_restart
            if is_full or costs.generation_s > self._remaining_s:
                break

    def _generation(self, restart: int, generation: int) -> Costs:
        taken = tuple(self._values[restart, generation, : self._rounds].tolist())
        self._pairs.setdefault(restart, {})[generation] = taken
        self._means.setdefault(restart, {})[generation] = (trimmed_mean(taken),)
        whole_s = self._cost.generation_s + self._rounds * self._cost.round_s
        self.spent_s += whole_s
        costs = Costs(
            launch_s=self._cost.launch_s,
            generation_s=whole_s,
            round_s=self._cost.round_s,
            block_s=self._cost.block_s,
        )
        count = sum(len(gens) for gens in self._pairs.values())
        if not self._is_tuned and count >= GENERATIONS_BEFORE_TUNING:
            best = rounds_per_generation([self._pairs], costs, rounds=self._rounds)
            most = max(self._rounds, self._affordable(costs, restart, generation))
            self._rounds = min(best, most)
            self._is_tuned = True
        return costs

    def _affordable(self, costs: Costs, restart: int, generation: int) -> int:
        restarts = max(0, self._design.min_restarts - restart - 1)
        per_restart = self._per_restart or 1
        return affordable_rounds(
            costs,
            rounds=self._rounds,
            remaining_s=self._remaining_s,
            restarts=restarts,
            generations=(restarts + 1) * per_restart - generation - 1,
        )


def replay(
    stream: Stream,
    design: Design,
    generator: np.random.Generator,
    *,
    effect: float = 0.0,
    comparisons: int = 1,
) -> Cell:
    """Simulate one cell whose true log ratio is ln(1 + effect)."""
    values = stream.draw(generator) + np.log1p(effect)
    return _Schedule(values, stream.cost, design, comparisons).run()


def printed(groups: Units, design: Design, comparisons: int) -> Interval | None:
    """Return the interval the product prints for a cell by itself."""
    return printed_interval(
        groups,
        comparisons=comparisons,
        is_strict=design.preset == "strict",
        is_screening=design.screen,
    )
