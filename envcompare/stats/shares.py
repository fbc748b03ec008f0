"""What share of the gap between two arms a change of one of them closes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from envcompare.stats.intervals import student_factor

LEVEL: Final = 0.95
LEAST_UNITS: Final = 4  # of an interval, as of restarts
Unit = Mapping[str, float]
"""Mean times of arms in one round of processes, or one restart; an arm may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of a gap, 1 if all of it is closed, with its 95 % interval.

    The interval is infinite if there are fewer than 4 units.
    """

    value: float
    low: float
    high: float


def share_closed(units: Sequence[Unit], *, fast: str, slow: str, changed: str) -> Share | None:
    """Return the share of ln(slow ÷ fast) that a changed line closes, by the times' means.

    The interval is from the jackknife over units, with Student's t (Miller, Biometrika 61, 1974).
    None if no unit has all three, or if there is no gap.
    """
    return _jackknife(
        units,
        (fast, slow, changed),
        lambda means: 1 - _log(means, changed, fast) / _log(means, slow, fast),
    )


def excess_of_share(
    units: Sequence[Unit], *, fast: str, slow: str, changed: str, placebo: str
) -> Share | None:
    """Return by how much the share that a change closes exceeds that of a placebo."""
    return _jackknife(
        units,
        (fast, slow, changed, placebo),
        lambda means: _log(means, placebo, changed) / _log(means, slow, fast),
    )


def gap(units: Sequence[Unit], *, fast: str, slow: str) -> Share | None:
    """Return ln(slow ÷ fast) itself."""
    return _jackknife(units, (fast, slow), lambda means: _log(means, slow, fast))


def _log(means: Unit, above: str, below: str) -> float:
    return math.log(means[above] / means[below])


def _jackknife(
    units: Sequence[Unit], arms: tuple[str, ...], estimate: Callable[[Unit], float]
) -> Share | None:
    table = np.array([[unit[arm] for arm in arms] for unit in units if unit.keys() >= set(arms)])
    count = len(table)
    if not count:
        return None

    def of(rows: np.ndarray) -> float:
        return estimate(dict(zip(arms, map(float, rows.mean(axis=0)), strict=True)))

    try:
        whole = of(table)
        if count < LEAST_UNITS:
            return Share(value=whole, low=-math.inf, high=math.inf)
        left = np.array([of(np.delete(table, at, axis=0)) for at in range(count)])
    except ZeroDivisionError:
        return None
    pseudo = count * whole - (count - 1) * left
    half = student_factor(count - 1, LEVEL) * float(pseudo.std(ddof=1)) / math.sqrt(count)
    return Share(value=whole, low=whole - half, high=whole + half)
