"""What share of the gap between two arms a change of one of them closes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envcompare.stats.intervals import student_factor

LEVEL = 0.95
_LEAST_UNITS = 3
Unit = Mapping[str, float]
"""Mean times of all arms in one round of processes, or one restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of a gap, 1 if all of it is closed, with its 95 % interval."""

    value: float
    low: float
    high: float


def share_closed(units: Sequence[Unit], *, fast: str, slow: str, changed: str) -> Share | None:
    """Return the share of ln(slow ÷ fast) that a changed line closes, by the times' means.

    The interval is from the jackknife over units, with Student's t (Miller, Biometrika 61, 1974).
    None if there are fewer than 3 units, or no gap.
    """
    return _jackknife(units, lambda means: 1 - _log(means, changed, fast) / _log(means, slow, fast))


def excess_of_share(
    units: Sequence[Unit], *, fast: str, slow: str, changed: str, placebo: str
) -> Share | None:
    """Return by how much the share that a change closes exceeds that of a placebo."""
    return _jackknife(units, lambda means: _log(means, placebo, changed) / _log(means, slow, fast))


def _log(means: Unit, above: str, below: str) -> float:
    return math.log(means[above] / means[below])


def _jackknife(units: Sequence[Unit], estimate: Callable[[Unit], float]) -> Share | None:
    count = len(units)
    if count < _LEAST_UNITS:
        return None
    try:
        whole = estimate(_means(units))
        left = [estimate(_means([*units[:at], *units[at + 1 :]])) for at in range(count)]
    except ZeroDivisionError:
        return None
    pseudo = count * whole - (count - 1) * np.array(left)
    half = student_factor(count - 1, LEVEL) * float(np.std(pseudo, ddof=1)) / math.sqrt(count)
    return Share(value=whole, low=whole - half, high=whole + half)


def _means(units: Sequence[Unit]) -> dict[str, float]:
    return {arm: math.fsum(unit[arm] for unit in units) / len(units) for arm in units[0]}
