"""The mean time that a user feels beside the typical step, and which of the two decides.

The mean has every step of every launch in it, and what an arm waits for a CPU beyond the reference
where that is not 0. A few slow steps make its interval far wider than that of the typical step. To
call an arm equivalent the mean is therefore taken as the typical step and what the mean has above
it, with the errors of both:

    half-width² = (half-width of the typical step)² + t² e²

e being the jackknife error of the difference over stretches of time and t Student's factor. Both
are at 90 %, that of the typical step widened for looks: an arm beyond either end of the margin is
then called equivalent with an error of 5 % (two one-sided tests; Schuirmann 1987). Equivalence is
claimed of each comparison by itself, and all of several are equivalent with no more error (an
intersection–union test; Berger 1982, Technometrics 24:295–300).
The two are not correlated where the median is an efficient estimate of the middle (the covariance
of an efficient estimate with what another differs from it is 0; Hausman 1978, Econometrica 46,
lemma 2.1), and negatively where it is less efficient than the mean, so that the sum is too wide
rather than too narrow. `benchmarks/estimator.py` says how often it is right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from envcompare.stats.intervals import ALPHA, CONTROL_LEVEL, Interval, student_factor
from envcompare.stats.typical import (
    DECIDED_FACTOR,
    Contrast,
    Floats,
    Groups,
    Spread,
    stretched,
)
from envcompare.stats.verdicts import Verdict, verdict

EQUAL_LEVEL = 1 - 2 * ALPHA  # of the intervals by which an arm is equivalent
RARE_TIMES = 20  # as long as usual: a slow step for which it is said how rare it may be
_NO_MORE = 3.0  # events that may still be expected of a kind of which none was seen (95 %)


def least_steps(margin: float) -> int:
    """Return in how many steps a rare slow one that matters would have shown.

    Of a kind not seen in n steps at most 3 ÷ n are expected at 95 % (the rule of three; Hanley and
    Lippman-Hand 1983, JAMA 249:1743), which lengthen the mean by 3 (20 − 1) ÷ n.
    """
    return math.ceil(_NO_MORE * (RARE_TIMES - 1) / margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWaiting:
    """By how much more than the reference's a step of an arm is stretched by waiting for a CPU.

    A slower arm waits longer where neighbors wait for the CPU too, but is not stretched more.
    """

    share: float  # (wall ÷ net) ÷ (wall ÷ net of the reference) − 1
    half_width: float  # at 99 %; infinite with fewer rounds than stretches
    is_counted: bool  # it is not 0, nor the waiting of the control


def own_waiting(rows: Sequence[Floats], of_control: Sequence[Floats] | None) -> OwnWaiting:
    """Return it of an arm, from rows as `felt_ratio` takes them with the waits.

    `of_control` are the same rows for the control, whose truth is 0: it says what neighbors do.
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
    """Return the log ratio of the means of steps, by round: of two arms, and then their waits.

    With their waits it is that of the times on the clock: of what a neighbor takes, both have the
    same share.
    """
    return stretched(np.vstack(rows), _felt)


def _felt(columns: Floats) -> float:
    sums = columns.sum(axis=1)
    arm, reference = sums[:2] + sums[2:] if len(sums) > 2 else sums
    return float(np.log(arm / reference))


def excess_of_mean(rows: Sequence[Floats]) -> Contrast:
    """Return what the felt mean has above the typical step, as a log ratio.

    The rows are by round the logarithms of the typical steps of arm and reference, and then those
    of `felt_ratio`.
    """

    def excess(columns: Floats) -> float:
        return _felt(columns[2:]) - float(np.median(columns[0] - columns[1]))

    return stretched(np.vstack(rows), excess)


Decider = Literal["typical", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What is printed of one comparison: its typical step, and the mean in two intervals."""

    typical: Interval
    mean: Interval | None  # a difference rests on it
    implied: Interval | None  # of the same mean: equivalence rests on it
    excess: Interval | None  # of the mean above the typical step: at 95 %, not widened

    @classmethod
    def of(  # noqa: PLR0913 — each is a choice of its own
        cls,
        typical: Interval,
        mean: Contrast | None,
        excess: Contrast | None,
        *,
        equal: Interval,
        spread: Spread,
        groups: Groups,
        level: float,
        widening: float,
    ) -> Headline:
        """Return the headline of a typical step as printed, and of a mean at its own level.

        `equal` is the typical step at the level by which arms are equivalent.
        """
        if mean is None or excess is None:
            return cls(typical=typical, mean=None, implied=None, excess=None)
        direct = mean.interval(
            level=level,
            factor=widening,
            spread=spread,
            groups=groups,
            generations=typical.generations,
        )
        half, half_equal = (
            student_factor(excess.df, level) * excess.error for level in (1 - ALPHA, EQUAL_LEVEL)
        )
        is_decided = widening > 1 and abs(direct.mean) > DECIDED_FACTOR * direct.half_width
        return cls(
            typical=typical,
            mean=replace(direct, is_decided=is_decided),
            implied=replace(
                direct, half_width=math.hypot(equal.half_width, half_equal), level=EQUAL_LEVEL
            ),
            excess=replace(
                direct, mean=excess.mean, half_width=half, level=1 - ALPHA, is_decided=False
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict, and the estimate with the interval that it rests on."""

    verdict: Verdict
    by: Decider
    interval: Interval


def decide(headline: Headline, typical: Verdict, *, margin: float, is_mean_firm: bool) -> Decision:
    """Return the verdict of typical step and mean together; `typical` is that of the former.

    Either makes an arm slower or faster; the mean, where it is firm, goes first. Equivalent is what
    the mean says alone.
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
    """Return the interval that says whether a cell has been measured for long enough.

    Where nothing is decided it is that of the mean by which equivalence would be.
    """
    typical = headline.typical
    of_typical = verdict(typical.low, typical.high, margin=margin)
    found = decide(headline, of_typical, margin=margin, is_mean_firm=is_mean_firm)
    if found.verdict == "inconclusive" and headline.implied is not None:
        return replace(headline.implied, is_decided=False)
    return found.interval
