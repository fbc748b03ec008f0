"""Intervals of a mean log ratio: with interim looks, forecasts, and joint levels.

Source: Kalibera and Jones 2013 (levels of repetition). The confidence sequence, an interval that
holds at all looks together, is from Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Time-uniform
central limit theory and asymptotic confidence sequences, arXiv:2103.06476, the two-sided one of
Theorem 2.2:

    mean ± s √( 2(t r² + 1) / (t² r²) · ln( √(t r² + 1) / α ) )

after t values with standard deviation s; r is the paper's rho. It is narrowest at t* values where
r² = (−W₋₁(−α²/e) − 1) / t*, W₋₁ being the lower branch of Lambert's function (there, appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

# A cell of processes is looked at after each round, for which its half-width has to pay.
_LOOK_FACTOR = 1.2
ALPHA = 0.05  # for all planned comparisons together
_SEQUENCE_SHARE = (
    0.2  # of alpha, for the confidence sequence; the rest is for the reported interval
)
CONTROL_LEVEL = 0.99
MIN_PROCESSES = 8  # of a plain command in each arm, before the first look
# A longer forecast is meaningless.
_MAX_FORECAST = 10_000
_TUNED_FOR = 20  # number of values at which the sequence is narrowest

Unit = Literal["round", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean log ratio and its two-sided interval; `half_width` is infinite without one."""

    mean: float
    half_width: float
    unit: Unit
    restarts: int
    generations: int
    level: float
    more_df: float = 0.0  # degrees of freedom in addition to those of restarts as units
    is_decided: bool = False  # the rule that ends a cell found a difference

    @property
    def low(self) -> float | None:
        """Return the lower end, None without an interval."""
        return self.mean - self.half_width if math.isfinite(self.half_width) else None

    @property
    def high(self) -> float | None:
        """Return the upper end, None without an interval."""
        return self.mean + self.half_width if math.isfinite(self.half_width) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of processes before choosing a level: mean, standard error, and number."""

    mean: float
    error: float
    count: int

    @property
    def df(self) -> int:
        """Return the degrees of freedom of the error."""
        return max(1, self.count - 1)

    @property
    def p_value(self) -> float:
        """Return the smallest error at which the reported interval still excludes 0, at most 1."""
        if self.mean == 0:
            return 1.0
        if self.error == 0:
            return 0.0
        place = -abs(self.mean) / (_LOOK_FACTOR * self.error)
        return min(1.0, 2 * float(special.stdtr(self.df, place)) / (1 - _SEQUENCE_SHARE))

    def printed(self, *, alpha: float, sequence_alpha: float | None = None) -> Interval:
        """Return the interval with an error of `alpha` over all interim looks.

        Student t at level 1 − 0.8 α, its half-width × 1.2. If the confidence sequence at 1 − 0.2 α
        excludes 0, which may have ended the cell, it is the union of both: they share their middle.
        """
        plain = self.interval(level=1 - (1 - _SEQUENCE_SHARE) * alpha, factor=_LOOK_FACTOR)
        share = _SEQUENCE_SHARE * (sequence_alpha or alpha)
        half = _sequence_half_width(self.error, self.count, alpha=share)
        if abs(self.mean) <= half:
            return plain
        return replace(plain, half_width=max(plain.half_width, half), is_decided=True)

    def interval(self, *, level: float, factor: float = 1.0) -> Interval:
        """Return a Student t interval, `factor` times as wide as an uncorrected one."""
        return Interval(
            mean=self.mean,
            half_width=factor * student_factor(self.df, level) * self.error,
            unit="restart",
            restarts=self.count,
            generations=self.count,
            level=level,
        )


@lru_cache(maxsize=256)
def look_factor(alpha: float, share: float) -> float:
    """Return how many times wider a normal interval is at `share` of the error `alpha`."""
    return float(special.ndtri(share * alpha / 2) / special.ndtri(alpha / 2))


def error_of_each(comparisons: int, *, is_screening: bool = False) -> float:
    """Return the error of one of this many planned comparisons; a screen sets its own later."""
    return ALPHA if is_screening else ALPHA / max(1, comparisons)


def gather(values: Sequence[float]) -> Evidence | None:
    """Return the evidence of processes, None without any; a single one has no error."""
    if not values:
        return None
    data = np.asarray(values, dtype=float)
    error = float(data.std(ddof=1)) / math.sqrt(data.size) if data.size > 1 else math.inf
    return Evidence(mean=float(data.mean()), error=error, count=data.size)


def interval(values: Sequence[float], *, level: float) -> Interval | None:
    """Return the mean with an uncorrected Student t interval, None without any value."""
    evidence = gather(values)
    return None if evidence is None else evidence.interval(level=level)


def printed_interval(
    values: Sequence[float], *, comparisons: int, is_screening: bool = False
) -> Interval | None:
    """Return the interval for a verdict, for one of this many planned comparisons.

    While screening it is widened only for looks. The sequence still counts the comparisons, so that
    what it decides is selected at the end.
    """
    evidence = gather(values)
    if evidence is None:
        return None
    alpha = error_of_each(comparisons, is_screening=is_screening)
    return evidence.printed(alpha=alpha, sequence_alpha=error_of_each(comparisons))


def restarts_needed(so_far: Interval, *, margin: float) -> int | None:
    """Forecast the total number of restarts that would decide, with the variation so far.

    A verdict needs a reported half-width below the distance of the mean to 0, or to the far side of
    the margin, whichever is longer. The half-widths of rounds and of restarts fall with the square
    root of the restarts; if only restarts count, Student's factor falls too. The confidence
    sequence is always wider, so it decides no sooner. None if there is no forecast, or beyond 10
    000.
    """
    if so_far.restarts < 2 or not math.isfinite(so_far.half_width) or so_far.half_width <= 0:
        return None
    reach = max(abs(so_far.mean), math.log1p(margin) - abs(so_far.mean))
    if so_far.unit == "round":
        needed = math.ceil(so_far.restarts * (so_far.half_width / reach) ** 2)
        return max(needed, so_far.restarts) if needed <= _MAX_FORECAST else None
    scale = so_far.half_width / _width(so_far.restarts, so_far)
    restarts = so_far.restarts
    while restarts <= _MAX_FORECAST:
        if scale * _width(restarts, so_far) <= reach:
            return restarts
        # steps of 5 % keep long forecasts cheap
        restarts = max(restarts + 1, math.ceil(restarts * 1.05))
    return None


def _width(count: int, like: Interval) -> float:
    """Return the half-width of a Student t interval over `count` values of standard deviation 1."""
    return student_factor(count - 1 + like.more_df, like.level) / math.sqrt(count)


@lru_cache(maxsize=4096)
def student_factor(df: float, level: float) -> float:
    """Return the half-width, in standard errors, of a two-sided Student t interval."""
    return float(special.stdtrit(df, (1 + level) / 2))


def level_together(count: int) -> float:
    """Return the level of each of several intervals with a joint level of 95 % (Bonferroni)."""
    return 1 - ALPHA / max(1, count)


def _sequence_half_width(error: float, count: int, *, alpha: float) -> float:
    """Return the half-width after `count` values whose mean has the standard error `error`.

    The theorem is asymptotic: it takes s as known. A cell is looked at from 4 values on, where s
    is not, so the half-width is widened by Student's quantile over the normal one at the same α.
    """
    return error * _factor(count, alpha) if count >= 2 else math.inf


@lru_cache(maxsize=4096)
def _factor(count: int, alpha: float) -> float:
    branch = float(special.lambertw(-(alpha**2) / math.e, k=-1).real)
    scale = count * ((-branch - 1) / _TUNED_FOR)  # t r²
    known = math.sqrt(2 * (scale + 1) / scale * math.log(math.sqrt(scale + 1) / alpha))
    student = float(special.stdtrit(count - 1, 1 - alpha / 2))
    return known * student / float(special.ndtri(1 - alpha / 2))
