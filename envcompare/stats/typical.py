"""The typical ratio of two arms, and its interval: rounds first, then the effect of restarts.

A log ratio is ln(time in the arm ÷ time in the reference) of one round. The log ratios of all
restarts are pooled, and their median is the estimate. Its variance has two parts. The variance from
rounds comes from the order statistics around the median (David and Nagaraja 2003, Order Statistics,
section 7.1), with linear interpolation between two of them (Hettmansperger and Sheather 1986), so
that no interval is wider than one at a stricter level:

    w(α) = [h(z) ÷ z]²,  h(z_l) = (x₍N+1−l₎ − x₍l₎) ÷ 2,  z_l = −Φ⁻¹(P(Binomial(N, ½) ≤ l − 1))

with z the upper α/2 quantile of the normal distribution, which is between z_l and the next one.
That is for independent rounds; if a round resembles the one before, `correlation_factor` gives the
factor f on the variance. The variance from restarts is that of the sums U of scores by restart,
beyond the rounds: V = R/(R − 1) Σ U² and e = R (V − f w), the median over the comparisons of a
cell, shrunk towards a prior τ₀² with d₀ degrees of freedom:

    τ² = (d₀ τ₀² + d max(0, e)) ÷ (d₀ + d),  d = (R − 1)(1 + (p − 1)/2)
    half-width² = z² f w(α) + t²_{d₀+d} τ² Σ (n ÷ N)²

with n the rounds of a restart, so the last factor is 1 ÷ R if all have the same number.
The p comparisons share a reference, so each but the first adds half. The scores are the log
ratios clipped to the middle fifth of all (their 40 % and 60 % order statistics) and centred.
docs/measurement.md gives the coverage of such an interval.
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from envcompare.stats.intervals import Interval, student_factor

MIN_ROUNDS = 12  # below that no interval
MIN_RESTARTS = 2
# τ₀ comes from restarts on the hosts of our trials (docs/measurement.md).
PRIOR_SPREAD = 0.0075
PRIOR_WEIGHT = 4.0  # d₀, degrees of freedom
# No host is assumed to be calmer.
LEAST_SPREAD = 0.003
# Restarts that vary more need Student t on their own values.
WIDE_SPREAD = 0.01
# With fewer restarts, such an interval is too wide to be worthwhile.
_WIDE_RESTARTS = 6
TYPICAL_SHARE = 0.8  # of a comparison's error; its mean has the rest
# Significance alone never ends a cell: a difference must exceed the reported half-width this much
# (docs/measurement.md).
DECIDED_FACTOR = 1.2
_LOOK_SHARE = 0.2  # of the remaining error, for each look; the last look uses all of it
STRETCHES = 8  # time segments; the jackknife leaves one out at a time
_LEAST_P, _HALVINGS = 1e-12, 40
_CLEARLY = 2.0  # times the excess of its cell, before an arm has its own spread
_DOUBT = 2.0  # of a spread from few restarts, in degrees of freedom
_UNIT_WEIGHT = 2.0  # extra degrees of freedom of restarts as units
_SURE = 0.95  # confidence that an arm varies more than its cell, before its restarts are the units
_ROUNDS_FOR_QUARTILES = 4  # per restart
ROUNDS_FOR_MEDIAN = 6
_CLIPPED = 0.4  # of the rounds at each side
_CORRELATED = 0.1  # lag-1 correlation above which rounds are not independent
# A variance of log ratios below this is less than a clock resolves.
_NO_VARIANCE = 1e-18
_WINDOW = 2.0  # lags in the sum, in factors of the variance

Groups = tuple[tuple[float, ...], ...]
"""Log ratios of the complete rounds in order, by restart."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The variation of a cell's restarts beyond their rounds, as a variance of log ratios."""

    variance: float = PRIOR_SPREAD**2
    df: float = PRIOR_WEIGHT
    own_excess: float = 0.0  # of the cell alone, negative by chance, and its degrees of freedom
    own_df: float = 0.0
    prior_variance: float = PRIOR_SPREAD**2
    is_proven: bool = True  # of one arm: its cell and its rounds do not explain it
    of_cell: float | None = None  # variance over all arms, if this one is of a single arm

    def expected(self, restarts: int) -> tuple[float, float]:
        """Return the restart variance expected from other arms, and its degrees of freedom.

        The arm's own variation counts once, in its own restarts: if its cell is as wide, only the
        other arms' share of the evidence has weight.
        """
        if self.of_cell is not None:
            return self.of_cell, _UNIT_WEIGHT
        others = 1 - (restarts - 1) / self.own_df if self.own_df > 0 else 1.0
        return self.variance, _UNIT_WEIGHT * max(0.0, others)

    @property
    def is_wide(self) -> bool:
        """Tell whether restarts vary so much that only their own values are valid.

        Either the host is known for it, or the cell shows it; few restarts must show more.
        """
        if self.prior_variance >= WIDE_SPREAD**2:
            return True
        if not (self.is_proven and self.own_df > 0):
            return False
        return self.variance >= WIDE_SPREAD**2 * (1 + _DOUBT / self.own_df)


def prior_of(deviation: float) -> Spread:
    """Return the prior of a host with a known variation of restarts."""
    return Spread(variance=deviation**2, prior_variance=deviation**2)


def spread(comparisons: Iterable[Groups], prior: Spread | None = None) -> Spread:
    """Return the restart spread of a cell, pooled over its comparisons and shrunk to the prior."""
    prior = prior or Spread()
    known = [groups for groups in comparisons if _is_enough(groups)]
    if not known:
        return prior
    # the median, so that one environment with varying restarts does not widen the others
    own = float(np.median([_excess(groups) for groups in known]))
    restarts = float(np.median([len(groups) for groups in known]))
    df = (restarts - 1) * _df_of_a_restart(len(known))
    variance = (prior.df * prior.variance + df * max(0.0, own)) / (prior.df + df)
    return Spread(
        variance=variance,
        df=prior.df + df,
        own_excess=own,
        own_df=df,
        prior_variance=prior.variance,
    )


def _df_of_a_restart(comparisons: int) -> float:
    """Return a restart's contribution to d: 1, plus ½ for each further comparison."""
    return 1 + (comparisons - 1) / 2


def own_spread(groups: Groups, pooled: Spread, prior: Spread | None = None) -> Spread:
    """Return the restart spread of one comparison: that of its cell, or its own if wider.

    Restarts of one environment may vary where those of the others do not. Its own spread is the
    variance of the medians of restarts beyond the errors from the quartiles of their rounds, shrunk
    to the prior like the pooled one. Restarts become the units only if an F test separates the
    spread from those errors and the cell's spread: two restarts are often far apart.
    """
    prior = prior or Spread()
    centres = [centre(group) for group in groups if len(group) >= _ROUNDS_FOR_QUARTILES]
    if len(centres) < MIN_RESTARTS or pooled.is_wide:
        return pooled
    scatter = statistics.variance(median for median, _ in centres)
    errors = correlation_factor(groups) * statistics.fmean(error**2 for _, error in centres)
    own = max(0.0, scatter - errors)
    own_df = len(centres) - 1
    variance = (prior.df * prior.variance + own_df * own) / (prior.df + own_df)
    if variance <= pooled.variance or own <= _CLEARLY * max(0.0, pooled.own_excess):
        return pooled
    return replace(
        pooled,
        variance=variance,
        of_cell=pooled.variance,
        df=prior.df + own_df,
        own_df=own_df,
        is_proven=scatter > _f_quantile(own_df, pooled.df) * (errors + pooled.variance),
    )


@lru_cache(maxsize=256)
def _f_quantile(above: float, below: float) -> float:
    return float(special.fdtri(above, below, _SURE))


@lru_cache(maxsize=256)
def centre(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the median and its standard error, by the quartiles as if normal."""
    ordered = sorted(values)
    width = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    # A normal median has a standard error of 1.2533 standard deviations ÷ √n, and the quartiles are
    # 1.349 standard deviations apart.
    return quantile(ordered, 0.5), 0.93 * width / math.sqrt(len(ordered))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of ascending values, linear between two (Hyndman and Fan 1996, type 7)."""
    place = share * (len(ordered) - 1)
    low = int(place)
    above = ordered[min(low + 1, len(ordered) - 1)]
    return float(ordered[low] + (place - low) * (above - ordered[low]))


def _is_enough(groups: Groups) -> bool:
    return len(groups) >= MIN_RESTARTS and sum(map(len, groups)) >= MIN_ROUNDS


def _excess(groups: Groups) -> float:
    """Return e, the variance of a restart beyond that of its rounds; it may be below 0."""
    values = np.concatenate([np.asarray(group) for group in groups])
    restarts, clipped = len(groups), math.floor(_CLIPPED * values.size)
    ordered = np.sort(values)
    scores = _scores(values)
    ends = np.cumsum([0, *map(len, groups)])
    sums = np.add.reduceat(scores, ends[:-1]) / (values.size - 2 * clipped)
    between = restarts / (restarts - 1) * float(np.sum(sums**2))
    rounds = correlation_factor(groups) * _median_variance(ordered, alpha=0.05)
    return restarts * (between - rounds)


def _scores(values: Floats) -> Floats:
    """Return the scores of the median: values clipped to the middle fifth, and centred."""
    ordered, clipped = np.sort(values), math.floor(_CLIPPED * values.size)
    scores: Floats = np.clip(values, ordered[clipped], ordered[values.size - clipped - 1])
    scores -= scores.mean()
    return scores


@lru_cache(maxsize=256)
def correlation_factor(groups: Groups) -> float:
    """Return the variance of a median relative to that with independent rounds.

    It is f = 1 + 2 Σ r_k, with r_k the correlation of scores k rounds apart within restarts for k =
    1 … W, and the smallest W ≥ 2 f (the automatic window of Madras and Sokal 1988, Journal of
    Statistical Physics 50:109). A factor 1 + (2 W + 1) ÷ n accounts for the subtracted mean (Wolff
    2004, Computer Physics Communications 156:143), with n the rounds of a restart. It is 1 if the
    lag-1 correlation of the log ratios is at most 0.1.
    """
    series = [np.asarray(group) for group in groups if len(group) >= _ROUNDS_FOR_QUARTILES]
    if not series:
        return 1.0
    rounds = statistics.fmean(map(len, series))
    if _correlation([one - one.mean() for one in series], 1) + 1 / rounds <= _CORRELATED:
        return 1.0
    scores = [_scores(one) for one in series]
    factor, window = 1.0, 0
    while window < max(_WINDOW * factor, 1) and 2 * window < max(map(len, series)):
        window += 1
        factor += 2 * _correlation(scores, window)
    return max(1.0, factor) * (1 + (2 * window + 1) / rounds)


def _correlation(series: Sequence[Floats], lag: int) -> float:
    """Return the correlation of values this many rounds apart, for series without their means."""
    pairs = [(one[:-lag], one[lag:]) for one in series if one.size > lag]
    variance = sum(float(one @ one) for one in series) / sum(one.size for one in series)
    count = sum(before.size for before, _ in pairs)
    if not count or variance < _NO_VARIANCE:
        return 0.0
    # rounded, so that the last digit of nearly equal values does not matter
    return round(sum(float(before @ after) for before, after in pairs) / count / variance, 9)


def _median_variance(ordered: Floats, *, alpha: float) -> float:
    """Return w(α), the variance of the median of ascending independent values."""
    score = -float(special.ndtri(alpha / 2))
    if score <= 0:
        return 0.0
    place, scores = _order(ordered.size, alpha)
    outer, inner = (_half_distance(ordered, one) for one in (place, place + 1))
    if score > scores[0]:  # beyond the outermost values
        return (outer / scores[0]) ** 2
    share = (score - scores[1]) / (scores[0] - scores[1])
    return ((inner + share * (outer - inner)) / score) ** 2


def _half_distance(ordered: Floats, place: int) -> float:
    """Return half the distance of an order statistic, counted from 1, to its mirror image."""
    if 2 * place > ordered.size:
        return 0.0
    return float(ordered[ordered.size - place] - ordered[place - 1]) / 2


@lru_cache(maxsize=4096)
def _order(count: int, alpha: float) -> tuple[int, tuple[float, float]]:
    """Return l, counted from 1, with z_l and the z of the place after it, at least 0."""
    places = range(1, count // 2)
    below = bisect.bisect_left(places, alpha / 2, key=lambda place: special.bdtr(place, count, 0.5))
    place = 1 + below
    scores = [-float(special.ndtri(special.bdtr(one, count, 0.5))) for one in (place - 1, place)]
    return place, (scores[0], max(0.0, scores[1]))


def restarts_before_a_look(planned: int, *, is_wide: bool) -> int:
    """Return the restarts before anything ends a cell: more if they vary widely."""
    return max(planned, _WIDE_RESTARTS) if is_wide else planned


def is_look(restarts: int, planned: int) -> bool:
    """Tell whether a cell is looked at after this many restarts: the plan's and doublings."""
    if restarts <= planned:
        return restarts == planned
    return restarts.bit_count() == 1


def error_share(
    *, is_out_of_budget: bool, restarts: int, planned: int, is_fixed: bool = False
) -> float:
    """Return the share of its error that an interval may spend after this many restarts.

    Each look spends a fifth of the remaining error, and the end of the budget spends the rest, so
    that all looks together spend no more than the total (Bonferroni; spending an error over looks
    is from Lan and DeMets 1983). It is 1 if the budget ended the cell no later than the first look,
    or if its size was fixed.
    """
    if is_fixed:
        return 1.0
    looks = sum(is_look(count, planned) for count in range(planned, restarts))
    left = (1 - _LOOK_SHARE) ** looks
    return left if is_out_of_budget else _LOOK_SHARE * left


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvidence:
    """The evidence of one comparison's rounds before choosing a level."""

    groups: Groups
    spread: Spread
    generations: int
    is_strict: bool = False  # always Student t on restarts
    widening: float = 1.0  # of the reported interval, for interim looks

    @property
    def mean(self) -> float:
        """Return the median log ratio over all rounds."""
        return float(np.median([value for group in self.groups for value in group]))

    @property
    def is_by_restart(self) -> bool:
        """Tell whether the interval only uses restarts."""
        return self.is_strict or self.spread.is_wide

    @property
    def _units(self) -> Groups:
        """Return the restarts that count; as units, only those with enough rounds."""
        if not self.is_by_restart:
            return self.groups
        return tuple(group for group in self.groups if len(group) >= ROUNDS_FOR_MEDIAN)

    @property
    def _expected_spread(self) -> tuple[float, float]:
        """Return what moderates restarts as units; nothing with `--strict`."""
        return (0.0, 0.0) if self.is_strict else self.spread.expected(len(self._units))

    @property
    def p_value(self) -> float:
        """Return the smallest error at which the reported interval would still exclude 0."""
        # Halved on a logarithm, since errors span many orders of magnitude.
        low, high = math.log(_LEAST_P), 0.0
        if not self._excludes_zero(alpha=1.0):
            return 1.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            excludes = self._excludes_zero(alpha=math.exp(middle))
            low, high = (low, middle) if excludes else (middle, high)
        return math.exp(high)

    def _excludes_zero(self, *, alpha: float) -> bool:
        shown = self.printed(alpha=alpha)
        return abs(shown.mean) > shown.half_width

    def printed(self, *, alpha: float) -> Interval:
        """Return the interval for a verdict, with an error of `alpha` over all looks.

        The mean's share of the error is subtracted.
        """
        return self.interval(level=1 - TYPICAL_SHARE * alpha, factor=self.widening)

    def interval(self, *, level: float, factor: float = 1.0) -> Interval:
        """Return the estimate with its interval, `factor` times as wide."""
        centre, half = self._half_width(level)
        return Interval(
            mean=centre,
            half_width=factor * half,
            unit="restart" if self.is_by_restart else "round",
            restarts=len(self._units),
            generations=self.generations,
            level=level,
            more_df=self._expected_spread[1] if self.is_by_restart else 0.0,
            is_decided=self.widening > 1 and abs(centre) > DECIDED_FACTOR * factor * half,
        )

    def _half_width(self, level: float) -> tuple[float, float]:
        if self.is_by_restart:
            return _by_restart(
                self._units, level, expected=self._expected_spread, default=self.mean
            )
        if not _is_enough(self.groups):
            return self.mean, math.inf
        alpha = 1 - level
        ordered = np.sort([value for group in self.groups for value in group])
        variance = correlation_factor(self.groups) * _median_variance(ordered, alpha=alpha)
        rounds = special.ndtri(1 - alpha / 2) ** 2 * variance
        student = student_factor(self.spread.df, level)
        restarts = student**2 * self.spread.variance * _concentration(self.groups)
        return float(np.median(ordered)), math.sqrt(rounds + restarts)


def expected_half_width(  # noqa: PLR0913 — the plan's restarts and rounds
    restarts: Floats,
    rounds: Floats,
    *,
    round_spread: float,
    restart_spread: float,
    comparisons: int,
    level: float,
) -> Floats:
    """Return the expected half-width for these restarts with this many rounds in total.

    The result is an array. It is that above with w = s² ÷ N, s being the standard deviation of a
    round; t falls as the degrees of freedom grow with the restarts.
    """
    df = PRIOR_WEIGHT + (restarts - 1) * _df_of_a_restart(comparisons)
    student, normal = special.stdtrit(df, (1 + level) / 2), special.ndtri((1 + level) / 2)
    of_rounds: Floats = normal * round_spread / np.sqrt(rounds)
    of_restarts: Floats = student * restart_spread / np.sqrt(restarts)
    return np.sqrt(of_rounds**2 + of_restarts**2)


def _concentration(groups: Groups) -> float:
    """Return Σ (n ÷ N)² over restarts with n rounds: a shortened one averages out less."""
    counts = np.asarray([len(group) for group in groups], dtype=float)
    return float(np.sum((counts / counts.sum()) ** 2))


def _by_restart(
    groups: Groups, level: float, *, expected: tuple[float, float], default: float
) -> tuple[float, float]:
    """Return the mean of the medians of restarts, and Student's width; `default` without one.

    Their variance is moderated (Smyth 2004, Statistical Applications in Genetics and Molecular
    Biology 3, article 3) by the scatter of their rounds plus `expected`: the variance of restarts
    and its degrees of freedom.
    """
    medians = np.asarray([np.median(group) for group in groups])
    if medians.size < MIN_RESTARTS:
        return default, math.inf
    (among, weight), own_df = expected, medians.size - 1
    errors = correlation_factor(groups) * statistics.fmean(
        centre(group)[1] ** 2 for group in groups
    )
    prior = errors + among
    df = weight + own_df
    variance = (weight * prior + own_df * float(medians.var(ddof=1))) / df
    return float(medians.mean()), student_factor(df, level) * math.sqrt(variance / medians.size)


def spread_of_rounds(groups: Groups) -> float | None:
    """Return the standard deviation of a round as the median sees it; None below 12 rounds.

    Correlated rounds have a larger one, so plans get enough of them.
    """
    values = np.sort([value for group in groups for value in group])
    if values.size < MIN_ROUNDS:
        return None
    variance = correlation_factor(groups) * _median_variance(values, alpha=0.05)
    return math.sqrt(values.size * variance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """An estimate and its jackknife over time segments."""

    mean: float
    error: float  # standard error; infinite with fewer rounds than stretches
    df: float

    def interval(
        self,
        *,
        level: float,
        spread: Spread,
        groups: Groups,
        generations: int,
        factor: float = 1.0,
    ) -> Interval:
        """Return it with Student's interval, widened for the restarts of these rounds."""
        half = math.inf
        if math.isfinite(self.error) and _is_enough(groups):
            own = student_factor(self.df, level) * self.error
            more = student_factor(spread.df, level) ** 2 * spread.variance * _concentration(groups)
            half = math.sqrt(own**2 + more)
        return Interval(
            mean=self.mean,
            half_width=factor * half,
            unit="round",
            restarts=len(groups),
            generations=generations,
            level=level,
        )


def jackknife(estimate: Sequence[float], whole: float) -> Contrast:
    """Return the total with its jackknife error, from estimates without one segment each.

    Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 11.2.
    """
    without = np.asarray(estimate, dtype=float)
    count = without.size
    if count < 2:
        return Contrast(mean=whole, error=math.inf, df=1)
    scatter = float(np.sum((without - without.mean()) ** 2))
    return Contrast(mean=whole, error=math.sqrt((count - 1) / count * scatter), df=count - 1)


def contrast(logarithms: Floats, weights: Sequence[float]) -> Contrast:
    """Return a sum of arms with weights that sum to 0, for logarithms of shape arm × round.

    Each arm is the median of its distance to the mean of the round, so that additive contrasts add
    up here too.
    """
    signs = np.asarray(weights, dtype=float)

    def weighted(columns: Floats) -> float:
        return float(signs @ np.median(columns - columns.mean(axis=0), axis=1))

    return stretched(logarithms, weighted)


def ratio_of_sums(times: Sequence[Floats]) -> Contrast:
    """Return the mean log ratio of sums over all steps: ln Σa − ln Σb of `times` a and b.

    Four arrays are a ratio of ratios, a/b ÷ c/d. All have the rounds in order.
    """
    signs = np.asarray([1, -1, -1, 1][: len(times)])
    data = np.vstack([np.asarray(one, dtype=float) for one in times])

    def log_ratio(columns: Floats) -> float:
        return float(signs @ np.log(columns.sum(axis=1)))

    return stretched(data, log_ratio)


def stretched(data: Floats, estimate: Callable[[Floats], float]) -> Contrast:
    """Return an estimate of ordered columns, with its jackknife over 8 segments."""
    count = data.shape[1]
    if count < STRETCHES:
        return jackknife((), estimate(data))
    # Rounds may resemble their neighbours, so whole stretches of them are left out.
    stretches = np.array_split(np.arange(count), STRETCHES)
    return jackknife(
        [estimate(np.delete(data, stretch, axis=1)) for stretch in stretches], estimate(data)
    )
