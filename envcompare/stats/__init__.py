"""Estimates, intervals, tests and stopping rules on log ratios; pure.

This file has the log ratios of the rounds of two arms, for steps and their parts, their drift, and
launches far from the others.

A log ratio is ln(time in the arm ÷ time in the reference).

Drift is a trend of the blocks within a generation, after the discarded warm-up block. A generation
gives one least-squares slope. Without drift its rounds are exchangeable, so a slope is as likely as
its negative, and Student t on slopes keeps its level or is conservative, even with heavy tails
(Efron 1969; Benjamini 1983).

Of some hundred forked workers a few take 20 to 50 % longer, or less, for their whole life, without
a reason in any counter. Users may meet such launches too, so every estimate includes them and the
report names them. The offset of a launch is the arm's time relative to the others in a restart,
minus its median over restarts. A launch is named if its offset is above 10 % and five times its own
error. At most a quarter of the launches, or one, can be far; more show that the arm's launches vary
in general.

A part of a step is a set of times that are summed, such as an operator or a phase. Its estimate is
that of a step (stats/typical.py), at 1 − 0.05 ÷ m for m parts that are tested together. A part is
tested if it has 1 % of the steps of the reference; its share is independent of its difference.

A change of an arm closes a share of the gap between two others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy import special

from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.stats.intervals import Interval, student_factor
from envcompare.stats.typical import RoundEvidence, Spread, centre, own_spread, spread

Pairs = dict[int, dict[int, tuple[float, ...]]]
"""restart → generation → log ratios of the complete rounds."""

Round = tuple[int, int, int]
"""Restart, generation, and the number of the round in it."""

Logarithms = Mapping[str, Mapping[Round, float]]
"""arm → round → logarithm of a time."""
DRIFT_LEVEL = 0.01  # false-alarm rate of all tests of a family together, by Bonferroni
# Fewer generations cannot show even a strong drift.
_MIN_SLOPES = 4
# Smaller log ratios are rounding errors between equal numbers.
_ROUNDING = 1e-12
_LEAST_OFF = math.log(1.1)
_ROUNDS_FOR_TREND = 12  # with two or more steps
_FAR_ERRORS = 5.0
# Two restarts only show that they differ.
_LEAST_RESTARTS = 3
_LEAST_ROUNDS = 6
_MOST_FAR = 0.25  # of the restarts, and at least one
Times = Mapping[str, Mapping[Round, float]]
"""arm → round → ns a step."""
LEAST_SHARE: Final = 0.01  # of the steps of the reference
LEVEL: Final = 0.95  # of the interval of a share
_LEAST_UNITS: Final = 4  # of such an interval, as of restarts
# A wider interval of a log ratio, from few restarts, counts as none (docs/measurement.md).
_WIDEST: Final = 1.0


def paired(values: Logarithms, *, arm: str, reference: str) -> Pairs:
    """Return the log ratios of an arm to the reference in the rounds where both have a value.

    If the control took part in a round, the reference's time is the geometric mean of both. The
    control's log ratio to the reference has mean 0 whatever an environment does, so half of it is a
    control variate, and the variance falls by a quarter (Glasserman 2003, section 4.1).
    """
    twin = reference + CONTROL_SUFFIX
    compared, others = values.get(arm, {}), values.get(reference, {})
    twins = values.get(twin, {}) if arm != twin else {}
    pairs: dict[int, dict[int, list[float]]] = {}
    for key in sorted(compared.keys() & others.keys()):
        known = (others[key], twins[key]) if key in twins else (others[key],)
        ratios = pairs.setdefault(key[0], {}).setdefault(key[1], [])
        ratios.append(compared[key] - statistics.fmean(known))
    return {r: {g: tuple(v) for g, v in gens.items()} for r, gens in pairs.items()}


def grouped(values: Logarithms, *, arm: str, reference: str) -> tuple[tuple[float, ...], ...]:
    """Return the log ratios of the rounds that both have, by restart."""
    ours, theirs = values.get(arm, {}), values.get(reference, {})
    restarts: dict[int, list[float]] = {}
    for number in sorted(ours.keys() & theirs.keys()):
        restarts.setdefault(number[0], []).append(ours[number] - theirs[number])
    return tuple(map(tuple, restarts.values()))


def flat(pairs: Pairs) -> tuple[float, ...]:
    """Return the log ratios of all rounds in order."""
    return tuple(x for gens in pairs.values() for rounds in gens.values() for x in rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The mean change of a logarithm from one round to the next, over generations."""

    slope: float
    over_generation: float  # from the first round to the last
    p_value: float
    generations: int


def trend(generations: Sequence[Sequence[float]]) -> Trend | None:
    """Test whether the mean slope over generations is 0, two-sided.

    Each generation has the logarithms of its rounds in order; those with one round are ignored.
    None below four generations.
    """
    usable = [np.asarray(rounds, dtype=float) for rounds in generations if len(rounds) >= 2]
    if len(usable) < _MIN_SLOPES:
        return None
    slopes = np.asarray([_slope(rounds) for rounds in usable])
    mean = float(slopes.mean())
    span = float(np.mean([rounds.size - 1 for rounds in usable]))
    return Trend(
        slope=mean, over_generation=mean * span, p_value=_p_value(slopes), generations=len(usable)
    )


def _slope(rounds: np.ndarray) -> float:
    """Return the least-squares slope over the positions of the rounds."""
    numbers = np.arange(rounds.size) - (rounds.size - 1) / 2
    return float(numbers @ rounds / (numbers @ numbers))


def _p_value(slopes: np.ndarray) -> float:
    # Without variance there is no drift, or an exact one.
    if float(np.ptp(slopes)) < _ROUNDING:
        return 1.0 if abs(float(slopes.mean())) < _ROUNDING else 0.0
    mean, count = slopes.mean(), slopes.size
    error = np.sqrt(np.mean((slopes - mean) ** 2) * (count / (count - 1)) / count)
    # like scipy.stats.ttest_1samp, which is a hundred times slower for so few numbers
    return float(2 * special.stdtr(count - 1, -abs(mean / error)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrend:
    """How the ratio of two arms changes from the first step of a block to its last."""

    first_log_ratio: float  # of the first steps of all blocks
    last_log_ratio: float
    p_value: float


def turn_trend(rounds: Sequence[tuple[np.ndarray, np.ndarray]]) -> TurnTrend | None:
    """Test whether log ratios change with the position in a block; None below 12 rounds.

    Each round has the steps of both arms, in order; positions missing in one are left out. A round
    gives one slope. The signed ranks of slopes (Wilcoxon 1945) have mean 0 if a slope is as likely
    as its negative; their sum is approximated as normal.
    """
    pairs = [(ours[: len(theirs)], theirs[: len(ours)]) for ours, theirs in rounds]
    pairs = [
        (ours, theirs)
        for ours, theirs in pairs
        if ours.size >= 2 and min(ours.min(), theirs.min()) > 0
    ]
    if len(pairs) < _ROUNDS_FOR_TREND:
        return None
    slopes = np.asarray([_slope(np.log(ours / theirs)) for ours, theirs in pairs])
    count = slopes.size
    ranks = np.argsort(np.argsort(np.abs(slopes))) + 1
    score = float(np.sum(np.sign(slopes) * ranks)) / math.sqrt(
        count * (count + 1) * (2 * count + 1) / 6
    )
    first, last = (
        math.log(sum(ours[at] for ours, _ in pairs) / sum(theirs[at] for _, theirs in pairs))
        for at in (0, -1)
    )
    return TurnTrend(
        first_log_ratio=first,
        last_log_ratio=last,
        p_value=float(2 * special.ndtr(-abs(score))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FarLaunch:
    """A launch of an arm that took much more, or less, time than its others."""

    restart: int
    arm: str
    log_ratio: float  # log ratio of its time to the arm's usual time, relative to the other arms


def far_launches(values: Logarithms, arm: str) -> tuple[FarLaunch, ...]:
    """Return the launches of an arm that are far off; empty below three, or with too many."""
    offsets = _offsets(values, arm) if len(values) > 1 and arm in values else {}
    far = _far(offsets)
    if len(far) > max(1, math.floor(_MOST_FAR * len(offsets))):
        return ()
    return tuple(
        FarLaunch(restart=restart, arm=arm, log_ratio=far[restart]) for restart in sorted(far)
    )


def _offsets(values: Logarithms, arm: str) -> dict[int, list[float]]:
    """Return the arm's offset from the median of the others by restart, for each round."""
    others = [by_round for name, by_round in values.items() if name != arm]
    offsets: dict[int, list[float]] = {}
    for number, value in values[arm].items():
        if peers := [by_round[number] for by_round in others if number in by_round]:
            offsets.setdefault(number[0], []).append(value - statistics.median(peers))
    return {restart: kept for restart, kept in offsets.items() if len(kept) >= _LEAST_ROUNDS}


def _far(offsets: dict[int, list[float]]) -> dict[int, float]:
    """Return the restarts in which an arm is far from its usual offset, and the distance."""
    if len(offsets) < _LEAST_RESTARTS:
        return {}
    centres = {restart: centre(tuple(kept)) for restart, kept in offsets.items()}
    usual = statistics.median(median for median, _ in centres.values())
    offs = {restart: (median - usual, error) for restart, (median, error) in centres.items()}
    return {
        restart: off
        for restart, (off, error) in offs.items()
        if abs(off) > max(_LEAST_OFF, _FAR_ERRORS * error)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Two arms of a cell, and the expected variation of restarts."""

    arm: str
    reference: str
    prior: Spread
    is_strict: bool  # always Student t on restarts

    def interval(self, times: Times, *, level: float) -> Interval | None:
        """Return the log ratio of a part with its interval, None without a complete round.

        There are no looks at it during measuring, so it needs no correction for them.
        """
        values = {
            arm: {number: math.log(ns) for number, ns in by_round.items() if ns > 0}
            for arm, by_round in times.items()
        }
        groups = grouped(values, arm=self.arm, reference=self.reference)
        if not groups:
            return None
        others = (
            grouped(values, arm=name, reference=self.reference)
            for name in values
            if name != self.reference
        )
        pooled = spread(filter(None, others), self.prior)
        evidence = RoundEvidence(
            groups=groups,
            spread=own_spread(groups, pooled, self.prior),
            generations=len(groups),
            is_strict=self.is_strict,
        )
        interval = evidence.interval(level=level)
        is_wide = interval.half_width > _WIDEST
        return replace(interval, half_width=math.inf) if is_wide else interval


def added(parts: Iterable[Times]) -> Times:
    """Return the sum of parts, in each round with any of them."""
    sums: dict[str, dict[Round, float]] = {}
    for times in parts:
        for arm, by_round in times.items():
            of_arm = sums.setdefault(arm, {})
            for number, ns in by_round.items():
                of_arm[number] = of_arm.get(number, 0.0) + ns
    return sums


def usual_ns(times: Times, arm: str) -> float:
    """Return the median over the rounds of an arm, 0 without one."""
    by_round = times.get(arm)
    return statistics.median(by_round.values()) if by_round else 0.0


def usual_share(times: Times, whole: Times, arm: str) -> float:
    """Return the median share of a part in an arm's total; a round without the part has none."""
    known, of_whole = times.get(arm, {}), whole.get(arm, {})
    shares = [known.get(number, 0.0) / ns for number, ns in of_whole.items() if ns > 0]
    return statistics.median(shares) if shares else 0.0


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
        if count < _LEAST_UNITS:
            return Share(value=whole, low=-math.inf, high=math.inf)
        left = np.array([of(np.delete(table, at, axis=0)) for at in range(count)])
    except ZeroDivisionError:
        # Without a gap there is no share of it.
        return None
    pseudo = count * whole - (count - 1) * left
    half = student_factor(count - 1, LEVEL) * float(pseudo.std(ddof=1)) / math.sqrt(count)
    return Share(value=whole, low=whole - half, high=whole + half)
