"""Intervals of a mean log ratio, over restarts or generations, and the forecast of their width.

Sources: Kalibera and Jones 2013 (levels of repetition).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as distributions

from envcompare.stats.pairs import Units

LOOK_FACTOR = 1.1  # the half-width pays for looking after each restart
ALPHA = 0.04  # of the printed interval; 0.01 is kept for the confidence sequence
CONTROL_LEVEL = 0.99
MAX_FORECAST = 10_000  # units; beyond that a forecast says nothing

Unit = Literal["restart", "generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean log ratio and its two-sided interval; `half_width` is infinite without one."""

    mean: float
    half_width: float
    unit: Unit
    restarts: int
    generations: int
    level: float

    @property
    def low(self) -> float | None:
        """Return the lower end, None where there is no interval."""
        return self.mean - self.half_width if math.isfinite(self.half_width) else None

    @property
    def high(self) -> float | None:
        """Return the upper end, None where there is no interval."""
        return self.mean + self.half_width if math.isfinite(self.half_width) else None


def interval(
    groups: Units,
    *,
    level: float,
    always_restarts: bool = False,
    factor: float = 1.0,
) -> Interval | None:
    """Return the mean with a Student t interval, None without any value.

    Units are restart means whenever the mean square between restarts exceeds that within, else
    generations. One restart alone gives no interval: the spread between restarts is unknown.
    """
    if not groups:
        return None
    data = np.asarray(groups, dtype=float)
    restarts, per_restart = data.shape
    mean = float(data.mean())
    means = data.mean(axis=1)
    unit: Unit = "restart"
    half = math.inf
    if restarts >= 2:
        between = per_restart * float(means.var(ddof=1))
        within = float(data.var(axis=1, ddof=1).mean()) if per_restart > 1 else 0.0
        if always_restarts or per_restart == 1 or between > within:
            half = _t_half_width(means, level)
        else:
            unit = "generation"
            half = _t_half_width(data.ravel(), level)
    return Interval(
        mean=mean,
        half_width=half * factor,
        unit=unit,
        restarts=restarts,
        generations=restarts * per_restart,
        level=level,
    )


def _t_half_width(values: np.ndarray, level: float) -> float:
    return _t_factor(values.size, level) * float(values.std(ddof=1))


def printed_interval(groups: Units, *, comparisons: int, is_strict: bool) -> Interval | None:
    """Return the interval a verdict rests on: level 1 − 0.04/m, half-width × 1.1 for looking."""
    return interval(
        groups,
        level=1 - ALPHA / max(1, comparisons),
        always_restarts=is_strict,
        factor=LOOK_FACTOR,
    )


def generations_needed(found: Interval, *, margin: float) -> int | None:
    """Forecast how many generations in all would decide, at the spread seen so far.

    A decision needs a printed half-width below the distance of the mean to 0, or to the far side
    of the margin, whichever is longer. None where nothing can be said, or beyond 10 000 units.
    """
    count = found.restarts if found.unit == "restart" else found.generations
    if count < 2 or not math.isfinite(found.half_width) or found.half_width <= 0:
        return None
    reach = max(abs(found.mean), math.log1p(margin) - abs(found.mean))
    scale = found.half_width / _t_factor(count, found.level)
    needed = next((n for n in _counts(count) if scale * _t_factor(n, found.level) <= reach), None)
    if needed is None:
        return None
    per_unit = found.generations // count
    return max(found.generations, needed * per_unit)


def _t_factor(count: int, level: float) -> float:
    """Return the half-width of a Student t interval over `count` values of spread 1."""
    return float(distributions.t.ppf((1 + level) / 2, count - 1)) / math.sqrt(count)


def _counts(first: int) -> Iterable[int]:
    """Count up from `first`, in steps of 5 % so that far forecasts cost little."""
    count = float(first)
    while count <= MAX_FORECAST:
        yield math.ceil(count)
        count = max(count + 1, count * 1.05)
