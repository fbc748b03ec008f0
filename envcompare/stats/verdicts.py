"""Verdicts of intervals against a margin, changes between two, and comparisons screened together.

Sources: Schuirmann 1987 (two one-sided tests); Zou and Donner 2008, "Construction of confidence
limits about effect measures: a general approach", Statistics in Medicine 27:1693–1702 (MOVER, the
method of variance estimates recovery). Of two Student t intervals it is that of Banerjee 1960,
Sankhyā 22:357–358, which never covers less. Of the screening: Benjamini and Hochberg 1995 (false
discovery rate); Benjamini and Yekutieli 2005 (intervals for the selected).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from envcompare.stats.intervals import ALPHA, Interval

Verdict = Literal["equivalent", "slower", "faster", "inconclusive"]


class AnyEvidence(Protocol):
    """The evidence of processes or rounds before choosing a level."""

    @property
    def p_value(self) -> float:
        """Return the smallest error at which the reported interval would still exclude 0."""

    def printed(self, *, alpha: float) -> Interval:
        """Return the interval for a verdict, with an error of `alpha` over all looks."""

    def interval(self, *, level: float) -> Interval:
        """Return an uncorrected interval."""


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

    The two must be independent. Each end uses the squared half-width in its direction as the
    variance of its estimate at that level, so that a skewed interval stays skewed and a widened one
    stays widened. At levels 1 − a and 1 − b the interval covers with at least the lower of both,
    provided that each one does.
    """
    mean = after.mean - before.mean
    down = math.hypot(_reach(after.mean - after.low), _reach(before.high - before.mean))
    up = math.hypot(_reach(after.high - after.mean), _reach(before.mean - before.low))
    return Ends(mean=mean, low=mean - down, high=mean + up)


def _reach(width: float) -> float:
    """Return a half-width; only rounding can put an end beyond its estimate."""
    return max(0.0, width)


class Screened(NamedTuple):
    """A comparison after screening; only a selected one may be called slower or faster."""

    interval: Interval
    is_selected: bool


def screen(evidence: Sequence[AnyEvidence], *, planned: int) -> tuple[Screened, ...]:
    """Select by Benjamini and Hochberg at 5 % and give each comparison its interval.

    R selected of m planned have theirs at error 5 % · R ÷ m, so the false coverage rate is 5 %; it
    excludes 0 exactly if the comparison is selected. The rest have theirs at 5 %, widened for looks
    but not for their number. Planned comparisons without a measurement count as not selected.
    """
    if not evidence:
        return ()
    padded = [*(each.p_value for each in evidence), *[1.0] * (planned - len(evidence))]
    # takes a second to import, and is rarely needed
    from scipy.stats import false_discovery_control  # noqa: PLC0415 — see above

    adjusted = false_discovery_control(padded, method="bh")[: len(evidence)]
    selected = [float(value) <= ALPHA for value in adjusted]
    share = sum(selected) / max(planned, len(evidence))
    return tuple(
        Screened(each.printed(alpha=ALPHA * share if is_in else ALPHA), is_in)
        for each, is_in in zip(evidence, selected, strict=True)
    )
