"""Compare the parts of a step between two arms by log ratios of paired rounds.

A part is a set of times that are summed, such as an operator or a phase. Its estimate is that of a
step (stats/typical.py), at 1 − 0.05 ÷ m for m parts that are tested together. A part is tested if
it has 1 % of the steps of the reference; its share is independent of its difference.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from envcompare.stats.intervals import Interval
from envcompare.stats.pairs import Logarithms, Round, grouped
from envcompare.stats.typical import RoundEvidence, Spread, own_spread, spread

Times = Mapping[str, Mapping[Round, float]]
"""arm → round → ns a step."""
LEAST_SHARE: Final = 0.01  # of the steps of the reference
_WIDEST: Final = 1.0  # half-width of a log ratio; wider intervals, from few restarts, are dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two arms of a cell, and the expected variation of restarts."""

    arm: str
    reference: str
    prior: Spread
    is_strict: bool  # always Student t on restarts

    def interval(self, times: Times, *, level: float) -> Interval | None:
        """Return the log ratio of a part with its interval, None without a complete round.

        There are no looks at it during measuring, so it needs no correction for them.
        """
        values = _logarithms(times)
        groups = self._groups(values, self.arm)
        if not groups:
            return None
        others = (self._groups(values, name) for name in values if name != self.reference)
        pooled = spread(filter(None, others), self.prior)
        evidence = RoundEvidence(
            groups=groups,
            spread=own_spread(groups, pooled, self.prior),
            generations=len(groups),
            is_strict=self.is_strict,
        )
        interval = evidence.interval(level=level)
        return (
            interval if interval.half_width <= _WIDEST else replace(interval, half_width=math.inf)
        )

    def _groups(self, values: Logarithms, arm: str) -> tuple[tuple[float, ...], ...]:
        return grouped(values, arm=arm, reference=self.reference)


def _logarithms(times: Times) -> Logarithms:
    """Return the logarithm of each time above 0, by arm and round."""
    return {
        arm: {number: math.log(ns) for number, ns in found.items() if ns > 0}
        for arm, found in times.items()
    }


def added(parts: Iterable[Times]) -> Times:
    """Return the sum of parts, in each round with any of them."""
    sums: dict[str, dict[Round, float]] = {}
    for times in parts:
        for arm, by_round in times.items():
            of_arm = sums.setdefault(arm, {})
            for number, ns in by_round.items():
                of_arm[number] = of_arm.get(number, 0.0) + ns
    return sums


def usual_ns(times: Times, arm: str) -> float:
    """Return the median over the rounds of an arm, 0 without one."""
    by_round = times.get(arm)
    return statistics.median(by_round.values()) if by_round else 0.0


def usual_share(times: Times, whole: Times, arm: str) -> float:
    """Return the median share of a part in an arm's total; a round without the part has none."""
    known, of_whole = times.get(arm, {}), whole.get(arm, {})
    shares = [known.get(number, 0.0) / ns for number, ns in of_whole.items() if ns > 0]
    return statistics.median(shares) if shares else 0.0
