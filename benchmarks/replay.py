"""Replay the schedule of a cell in simulated time, deciding with the product's own functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from envcompare.measure.limits import (
    Costs,
    RestartPlan,
    StopReason,
    plan_restarts,
    stop_reason,
)
from envcompare.measure.lockstep import FIRST_REVIEW_S, USUAL_SPREAD
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import Interval, error_of_each
from envcompare.stats.metrics import widening_for_looks
from envcompare.stats.typical import (
    MIN_ROUNDS,
    ROUNDS_FOR_MEDIAN,
    TYPICAL_SHARE,
    Groups,
    RoundEvidence,
    Spread,
    is_look,
    own_spread,
    restarts_before_a_look,
    spread,
    spread_of_rounds,
)
from streams import Cost, Floats, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a simulated cell left: its rounds, why it stopped, and what it cost."""

    evidence: RoundEvidence
    stopped_by: StopReason | Literal["budget"]
    seconds: float


@dataclass(slots=True)
class _Schedule:
    """One cell of an arm and its reference, from its first launch to its stop."""

    restarts: Iterator[Floats]
    cost: Cost
    design: Design
    comparisons: int
    spent_s: float = 0.0
    _groups: Groups = ()
    _known: tuple[Groups | None, Spread] = (None, Spread())  # the spread of groups
    _costs: Costs = field(default_factory=lambda: Costs(launch_s=0.0))

    def run(self) -> Cell:
        """Run restarts until the rule stops the cell or another is not worth its launch."""
        reason: StopReason | Literal["budget"] | None = None
        while reason is None:
            self._restart(next(self.restarts))
            reason = self._look() or (None if self._plan(spent_s=None).restarts else "budget")
        evidence = self._evidence(is_out_of_budget=reason == "budget")
        return Cell(evidence=evidence, stopped_by=reason, seconds=self.spent_s)

    def _look(self) -> StopReason | None:
        least = self._least
        if not is_look(len(self._groups), least):
            return None
        found = printed(self._evidence(), self.design, self.comparisons)
        return stop_reason([found], design=self.design, min_restarts=least)

    @property
    def _spread(self) -> Spread:
        groups, known = self._known
        if groups is not self._groups:
            known = own_spread(self._groups, spread([self._groups]))
            self._known = (self._groups, known)
        return known

    @property
    def _least(self) -> int:
        """Return how many restarts a verdict needs: more where they scatter far."""
        return restarts_before_a_look(self.design.min_restarts, is_wide=self._spread.is_wide)

    @property
    def _alpha(self) -> float:
        return error_of_each(self.comparisons, is_screening=self.design.screen)

    def _evidence(self, *, is_out_of_budget: bool = False) -> RoundEvidence:
        widening = widening_for_looks(
            TYPICAL_SHARE * self._alpha,
            self.design,
            restarts=len(self._groups),
            is_out_of_budget=is_out_of_budget,
        )
        return RoundEvidence(
            groups=self._groups,
            spread=self._spread,
            generations=len(self._groups),
            is_strict=self.design.preset == "strict",
            widening=widening,
        )

    def _restart(self, values: Floats) -> None:
        """Measure for as long as is planned, reviewed after the first round and 1, 2, 4 … s."""
        self.spent_s += self.cost.launch_s
        done, count, wanted = self._groups, 0, 1
        limit = max(1, self._rounds(self.design.budget_s - self.spent_s))
        while count < (most := min(wanted, limit, len(values))):
            review_s = max(FIRST_REVIEW_S, 2 * count * self.cost.round_s)
            count = min(most, self._rounds(review_s))
            self._groups = (*done, tuple(values[:count].tolist()))
            wanted = self._wanted(spent_s=count * self.cost.round_s)
        self.spent_s += count * self.cost.round_s

    def _wanted(self, *, spent_s: float) -> int:
        """Return how many rounds the restart should have, as seen after `spent_s` of them."""
        between = self._spread.variance
        self._costs = Costs(
            launch_s=self.cost.launch_s,
            round_s=self.cost.round_s,
            round_spread=spread_of_rounds(self._groups) or USUAL_SPREAD,
            restart_spread=math.sqrt(between),
            restarts=len(self._groups) - 1,
            rounds=sum(map(len, self._groups[:-1])),
            level=1 - TYPICAL_SHARE * self._alpha,
        )
        is_unit = self.design.preset == "strict" or self._spread.is_wide
        least = math.ceil(MIN_ROUNDS / self.design.min_restarts)
        least = ROUNDS_FOR_MEDIAN if is_unit else least
        return max(least, self._rounds(self._plan(spent_s=spent_s).measuring_s))

    def _rounds(self, seconds: float) -> int:
        return math.ceil(seconds / self.cost.round_s)

    def _plan(self, *, spent_s: float | None) -> RestartPlan:
        is_launched = spent_s is not None
        return plan_restarts(
            self._costs,
            remaining_s=self.design.budget_s - self.spent_s,
            missing=max(0, self._least - len(self._groups) + is_launched),
            is_launched=is_launched,
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
    restarts = (rounds + np.log1p(effect) for rounds in stream.draw(generator))
    return _Schedule(restarts, stream.cost, design, comparisons).run()


def printed(evidence: RoundEvidence, design: Design, comparisons: int) -> Interval:
    """Return the interval the product prints for a cell by itself."""
    return evidence.printed(alpha=error_of_each(comparisons, is_screening=design.screen))
