"""The verdict of an interval against a margin fixed before the run, and the change between two.

Sources: Schuirmann 1987 (two one-sided tests); Zou and Donner 2008, "Construction of confidence
limits about effect measures: a general approach", Statistics in Medicine 27:1693–1702 (MOVER, the
method of variance estimates recovery). Of two Student t intervals it is that of Banerjee 1960,
Sankhyā 22:357–358, which never covers less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["equivalent", "slower", "faster", "inconclusive"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """An estimate and the ends of its interval, of any shape around it."""

    mean: float
    low: float
    high: float


def difference(before: Ends, after: Ends) -> Ends:
    """Return after − before with the interval that both intervals imply.

    The two must be independent. Each end takes the square of the half-width that points its way
    for the variance of its estimate at that level, so that a skewed interval stays skewed, and a
    widened one keeps what it was widened for: at levels 1 − a and 1 − b the
    interval covers with at least the lower of both, as far as each one does.
    """
    mean = after.mean - before.mean
    down = math.hypot(_reach(after.mean - after.low), _reach(before.high - before.mean))
    up = math.hypot(_reach(after.high - after.mean), _reach(before.mean - before.low))
    return Ends(mean=mean, low=mean - down, high=mean + up)


def _reach(width: float) -> float:
    """Return a half-width; rounding can put an end beyond its own estimate, and nothing else."""
    return max(0.0, width)
