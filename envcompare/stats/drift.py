"""Whether blocks get slower or faster inside a generation, after the discarded warm-up block.

A generation gives one least-squares slope. Without drift its rounds are exchangeable, so a slope
is as likely as its negative, and Student t on slopes holds its level or stays below it, heavy
tails included (Efron 1969; Benjamini 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

LEVEL = 0.01  # false alarms of all tests of a family together, by Bonferroni
MIN_SLOPES = 4  # generations; below that even a strong drift cannot be told
_ROUNDING = 1e-12  # a log ratio below it is what floating point leaves of equal numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The mean change of a logarithm from one round to the next, over generations."""

    slope: float
    over_generation: float  # from the first round to the last
    p_value: float
    generations: int


def trend(generations: Sequence[Sequence[float]]) -> Trend | None:
    """Test whether the mean slope over generations is 0, two-sided.

    Each generation holds the logarithms of its rounds in order; those with one round say nothing.
    None below four generations.
    """
    usable = [np.asarray(rounds, dtype=float) for rounds in generations if len(rounds) >= 2]
    if len(usable) < MIN_SLOPES:
        return None
    slopes = np.asarray([_slope(rounds) for rounds in usable])
    mean = float(slopes.mean())
    span = float(np.mean([rounds.size - 1 for rounds in usable]))
    return Trend(
        slope=mean, over_generation=mean * span, p_value=_p_value(slopes), generations=len(usable)
    )


def _slope(rounds: np.ndarray) -> float:
    numbers = np.arange(rounds.size) - (rounds.size - 1) / 2
    return float(numbers @ rounds / (numbers @ numbers))


def _p_value(slopes: np.ndarray) -> float:
    if float(np.ptp(slopes)) < _ROUNDING:  # no spread: a drift of nothing, or one seen exactly
        return 1.0 if abs(float(slopes.mean())) < _ROUNDING else 0.0
    mean, count = slopes.mean(), slopes.size
    error = np.sqrt(np.mean((slopes - mean) ** 2) * (count / (count - 1)) / count)
    # as scipy.stats.ttest_1samp, which takes a hundred times as long for so few numbers
    return float(2 * special.stdtr(count - 1, -abs(mean / error)))
