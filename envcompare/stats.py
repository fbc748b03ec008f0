"""Estimates, intervals and verdicts on log ratios; pure, the one home of the statistics.

Design and sources: Kalibera and Jones 2013 (levels of repetition), Schuirmann 1987 (two one-sided
tests), Yuen 1974 (trimmed means). A log ratio is ln(time in the arm ÷ time in the reference).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as distributions  # noqa: TID251 — this is the home of scipy

from envcompare.records import Block

TRIM = 0.2  # each side, of the rounds of a generation
MIN_ROUNDS_TO_TRIM = 5  # below that the median
LOOK_FACTOR = 1.1  # the half-width pays for looking after each restart
ALPHA = 0.04  # of the printed interval; 0.01 is kept for the confidence sequence
CONTROL_LEVEL = 0.99
MAX_FORECAST = 10_000  # units; beyond that a forecast says nothing

Unit = Literal["restart", "generation"]
Verdict = Literal["equivalent", "slower", "faster", "inconclusive"]


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


def trimmed_mean(values: Iterable[float]) -> float:
    """Return the 20 % trimmed mean, below 5 values the median; raises ValueError when empty."""
    data = np.sort(np.fromiter(values, dtype=float))
    if data.size == 0:
        raise ValueError("no values")
    if data.size < MIN_ROUNDS_TO_TRIM:
        return float(np.median(data))
    cut = int(TRIM * data.size)
    return float(data[cut : data.size - cut].mean())


Pairs = dict[int, dict[int, tuple[float, ...]]]
"""restart → generation → log ratios of the complete rounds."""


def pair(
    blocks: Iterable[Block],
    *,
    arm: str,
    reference: str,
    read: Callable[[Block], float | None],
) -> Pairs:
    """Pair the blocks of one cell by round and return their log ratios.

    Warm-up blocks, dropped blocks and rounds in which either arm has no value are left out.
    """
    values: dict[tuple[int, int, int], dict[str, float]] = {}
    for block in blocks:
        if block.warmup or block.status != "ok" or block.arm not in {arm, reference}:
            continue
        value = read(block)
        if value is not None and value > 0:
            key = (block.restart, block.generation, block.round)
            values.setdefault(key, {})[block.arm] = value
    pairs: dict[int, dict[int, list[float]]] = {}
    for (restart, generation, _), found in sorted(values.items()):
        if len(found) == 2:
            ratios = pairs.setdefault(restart, {}).setdefault(generation, [])
            ratios.append(math.log(found[arm] / found[reference]))
    return {r: {g: tuple(v) for g, v in gens.items()} for r, gens in pairs.items()}


def units(pairs: Pairs) -> tuple[tuple[float, ...], ...]:
    """Return one value a generation, grouped by restart, balanced to the same number in each.

    The usual number of generations a restart is kept; a restart with fewer is dropped.
    """
    groups = [tuple(trimmed_mean(rounds) for rounds in gens.values()) for gens in pairs.values()]
    groups = [group for group in groups if group]
    if not groups:
        return ()
    sizes = [len(group) for group in groups]
    usual = max(set(sizes), key=lambda size: (sizes.count(size) * size, size))
    return tuple(group[:usual] for group in groups if len(group) >= usual)


def interval(
    groups: tuple[tuple[float, ...], ...],
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


def printed_interval(
    groups: tuple[tuple[float, ...], ...], *, comparisons: int, is_strict: bool
) -> Interval | None:
    """Return the interval a verdict rests on: level 1 − 0.04/m, half-width × 1.1 for looking."""
    return interval(
        groups,
        level=1 - ALPHA / max(1, comparisons),
        always_restarts=is_strict,
        factor=LOOK_FACTOR,
    )


def verdict(low: float | None, high: float | None, *, margin: float) -> Verdict:
    """Return exactly one verdict for an interval of the log ratio, in the fixed order.

    `margin` is a fraction; the band is ± ln(1 + margin).
    """
    if low is None or high is None:
        return "inconclusive"
    band = math.log1p(margin)
    if -band < low and high < band:
        return "equivalent"
    if low > 0:
        return "slower"
    if high < 0:
        return "faster"
    return "inconclusive"


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
