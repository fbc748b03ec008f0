"""Verdicts of intervals against a margin, and which estimate decides: mean or typical step.

Also changes between two verdicts, and comparisons screened together.

Sources: Schuirmann 1987 (two one-sided tests); Zou and Donner 2008, "Construction of confidence
limits about effect measures: a general approach", Statistics in Medicine 27:1693–1702 (MOVER, the
method of variance estimates recovery). Of two Student t intervals it is that of Banerjee 1960,
Sankhyā 22:357–358, which never covers less. Of the screening: Benjamini and Hochberg 1995 (false
discovery rate); Benjamini and Yekutieli 2005 (intervals for the selected).

The mean, which a user feels, includes every step of every launch, and an arm's wait for a CPU
beyond the reference's if that is not 0. A few slow steps make its interval far wider than that of
the typical step. To call an arm equivalent, the mean is therefore the typical step plus the mean's
excess over it, with the errors of both:

    half-width² = (half-width of the typical step)² + t² e²

with e the jackknife error of the difference over time segments and t Student's factor. Both are at
90 % and widened for looks: an arm beyond either end of the margin is then
called equivalent with an error of 5 % (two one-sided tests; Schuirmann 1987). Equivalence is
claimed for each comparison separately, and for all of several with no larger error (an
intersection–union test; Berger 1982, Technometrics 24:295–300).
The two are uncorrelated if the median is an efficient estimate of the middle (the covariance of an
efficient estimate with another one's difference from it is 0; Hausman 1978, Econometrica 46, lemma
2.1). They are negatively correlated if it is less efficient than the mean, so the sum is too wide
rather than too narrow. `benchmarks/estimator.py` measures the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from envcompare.stats.intervals import ALPHA, CONTROL_LEVEL, Interval, student_factor
from envcompare.stats.typical import Contrast, Floats, stretched

Verdict = Literal["equivalent", "slower", "faster", "inconclusive"]
EQUAL_LEVEL = 1 - 2 * ALPHA  # of the intervals by which an arm is equivalent
_RARE_TIMES = 20  # times the usual; such slow steps get a statement on how rare they may be
# The rule of three: after none was seen, so many events are possible at 95 % (Hanley and
# Lippman-Hand 1983).
_NO_MORE = 3.0
_Decider = Literal["typical", "mean"]


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


def least_steps(margin: float) -> int:
    """Return the number of steps that would show a rare slow step that matters.

    Of a kind not seen in n steps at most 3 ÷ n are expected at 95 % (the rule of three; Hanley and
    Lippman-Hand 1983, JAMA 249:1743), which lengthen the mean by 3 (20 − 1) ÷ n.
    """
    return math.ceil(_NO_MORE * (_RARE_TIMES - 1) / margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWaiting:
    """The stretch of an arm's steps by waiting for a CPU, beyond that of the reference.

    A slower arm waits longer if neighbours also wait for the CPU, but is not stretched more.
    """

    share: float  # (wall ÷ net) ÷ (wall ÷ net of the reference) − 1
    half_width: float  # at 99 %; infinite with fewer rounds than stretches
    is_counted: bool  # it differs from 0 and from the waiting of the control


def own_waiting(rows: Sequence[Floats], of_control: Sequence[Floats] | None) -> OwnWaiting:
    """Return an arm's own waiting, from rows as in `felt_ratio`, including waits.

    `of_control` are the same rows for the control, whose true value is 0: it shows the effect of
    neighbours.
    """
    waiting = _waiting(rows)
    half = _half_width(waiting)
    least = 0.0
    if of_control is not None:
        null = _waiting(of_control)
        is_failed = abs(null.mean) > _half_width(null)
        least = abs(null.mean) + _half_width(null) if is_failed else 0.0
    is_counted = math.isfinite(half) and abs(waiting.mean) > max(half, least)
    return OwnWaiting(share=waiting.mean, half_width=half, is_counted=is_counted)


def _waiting(rows: Sequence[Floats]) -> Contrast:
    def share(columns: Floats) -> float:
        arm, reference, arm_waits, reference_waits = columns.sum(axis=1)
        return float((1 + arm_waits / arm) / (1 + reference_waits / reference) - 1)

    return stretched(np.vstack(rows), share)


def _half_width(contrast: Contrast) -> float:
    return student_factor(contrast.df, CONTROL_LEVEL) * contrast.error


def felt_ratio(rows: Sequence[Floats]) -> Contrast:
    """Return the log ratio of step means by round: of two arms, optionally with their waits.

    With waits it is the ratio of wall times: neighbours take the same share from both.
    """
    return stretched(np.vstack(rows), _felt)


def _felt(columns: Floats) -> float:
    sums = columns.sum(axis=1)
    arm, reference = sums[:2] + sums[2:] if len(sums) > 2 else sums
    return float(np.log(arm / reference))


def excess_of_mean(rows: Sequence[Floats]) -> Contrast:
    """Return the felt mean minus the typical step, as a log ratio.

    The rows are by round: the logarithms of the typical steps of arm and reference, then those of
    `felt_ratio`.
    """

    def excess(columns: Floats) -> float:
        return _felt(columns[2:]) - float(np.median(columns[0] - columns[1]))

    return stretched(np.vstack(rows), excess)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The reported estimates of one comparison: its typical step, and the mean in two intervals."""

    typical: Interval
    mean: Interval | None  # for a difference
    implied: Interval | None  # of the same mean, for equivalence
    excess: Interval | None  # mean minus typical step: at 95 %, not widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict, and the estimate with the interval behind it."""

    verdict: Verdict
    by: _Decider
    interval: Interval


def decide(headline: Headline, typical: Verdict, *, margin: float, is_mean_firm: bool) -> Decision:
    """Return the verdict of typical step and mean together; `typical` is that of the former.

    Either makes an arm slower or faster; a firm mean has priority. Only the mean decides
    equivalence.
    """
    mean = headline.mean
    if mean is None:
        return Decision(verdict=typical, by="typical", interval=headline.typical)
    of_mean = verdict(mean.low, mean.high, margin=margin)
    if is_mean_firm and of_mean in {"slower", "faster"}:
        return Decision(verdict=of_mean, by="mean", interval=mean)
    if typical in {"slower", "faster"}:
        return Decision(verdict=typical, by="typical", interval=headline.typical)
    for interval in filter(None, (headline.implied, mean)):
        if verdict(interval.low, interval.high, margin=margin) == "equivalent":
            return Decision(verdict="equivalent", by="mean", interval=interval)
    return Decision(verdict="inconclusive", by="mean", interval=mean)


def deciding_interval(headline: Headline, *, margin: float, is_mean_firm: bool) -> Interval:
    """Return the interval that decides whether a cell has been measured long enough.

    Without a decision it is that of the mean for equivalence.
    """
    typical = headline.typical
    of_typical = verdict(typical.low, typical.high, margin=margin)
    found = decide(headline, of_typical, margin=margin, is_mean_firm=is_mean_firm)
    if found.verdict == "inconclusive" and headline.implied is not None:
        return replace(headline.implied, is_decided=False)
    return found.interval
