"""What several cells say together: one estimate over hosts, and the knee over batches.

Each host has its own comparison, and is a random effect. The log ratio of host i is y_i with the
standard error s_i. Its true value varies between hosts with the standard deviation τ, since an
environment costs more on some machines than on others. τ² is that of Paule and Mandel 1982 (Journal
of Research of the National Bureau of Standards 87:377–385), the root of Σ w_i (y_i − μ)² = k − 1
with w_i = 1 / (s_i² + τ²) and μ = Σ w_i y_i / Σ w_i. The interval is μ ± t_{k−1} √(q / Σ w_i) with
q = max(1, Σ w_i (y_i − μ)² / (k − 1)), after Hartung and Knapp 2001 (Statistics in Medicine
20:3875–3889) and Sidik and Jonkman 2002 (ibid. 21:3153–3159); that q is not below 1 is from Röver,
Knapp and Friede 2015 (BMC Medical Research Methodology 15:99).

Two groups of hosts are compared by the difference of their means. Hosts of different groups are not
paired, and each group has its own τ, so the half-widths of both add in quadrature (Banerjee 1960,
see `intervals`). In simulations with two or more hosts per group it covered at least 97 %; Welch's
interval covered 90 % with two hosts against six with a fifth of the variation. A group of one host
has an unknown variation, which is assumed to equal that of the other group. The interval then
covers that host (99 % in simulations), and its group only if that varies no more: 95 % for one host
against three or six with the same τ, and 24 to 50 % if its group varies by 5 % and the other by
0.5 % or not at all.

The knee is the smallest batch that is proven to be nearly as fast as the fastest. A restart runs
every batch in the same launch. Batches are the treatments and restarts the blocks of a randomised
block design (Montgomery, Design and Analysis of Experiments, chapter 4): log throughput = batch +
restart + rest. It is solved by least squares, since cells that end early leave incomplete blocks.
The effect of a restart on all batches cancels. The intervals of the ratios of all pairs of batches
have a joint level of 95 % (Bonferroni), since the same numbers choose the fastest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import optimize

from envcompare.stats.intervals import level_together, student_factor
from envcompare.stats.typical import Floats
from envcompare.stats.verdicts import Ends, difference

MIN_HOSTS = 2
# Fewer hosts cannot show an odd one.
_MIN_TO_NAME_ODD = 5
# In standard deviations, from Iglewicz and Hoaglin 1993.
_FAR = 3.5
_NORMAL_MAD = 1.4826  # converts the median absolute deviation to a standard deviation
_TINY = 1e-12  # of a log ratio
HostValues = tuple[Sequence[float], Sequence[float]]
"""The value of each host of a group, or of each run on a host, and its standard error."""
KNEE_SHARE: Final = 0.95  # of the best throughput, which the knee reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean with its standard error, its degrees of freedom, and the variation of hosts."""

    mean: float
    error: float
    df: float
    tau: float = 0.0  # standard deviation between hosts
    scale: float = 1.0  # q, the variation of hosts relative to their errors and τ

    def single(self, value: float, error: float) -> Mean:
        """Return the mean of one host in a further group, assuming the same variation of hosts."""
        spread = math.sqrt(self.scale * (max(error, _TINY) ** 2 + self.tau**2))
        return Mean(mean=value, error=spread, df=self.df)

    def ends(self, level: float) -> Ends:
        """Return the mean with Student's interval."""
        half = student_factor(self.df, level) * self.error
        return Ends(mean=self.mean, low=self.mean - half, high=self.mean + half)


def over_hosts(values: Sequence[float], errors: Sequence[float]) -> Mean | None:
    """Return the mean over several hosts; None below two of them."""
    if len(values) < MIN_HOSTS:
        return None
    y = np.asarray(values, dtype=float)
    # An error of 0 would give a host infinite weight.
    variances = np.maximum(np.asarray(errors, dtype=float), _TINY) ** 2
    tau_squared = _between(y, variances)
    weights = 1 / (variances + tau_squared)
    mean = float(weights @ y / weights.sum())
    scale = max(1.0, float(weights @ (y - mean) ** 2) / (y.size - 1))
    return Mean(
        mean=mean,
        error=math.sqrt(scale / float(weights.sum())),
        df=y.size - 1,
        tau=math.sqrt(tau_squared),
        scale=scale,
    )


def over_runs(hosts: Sequence[HostValues]) -> Mean | None:
    """Return the mean over several runs, given the runs of each host.

    With several hosts each is first pooled over its own runs. Hosts are the units, so a host
    measured on more days has no more weight. With one host the runs are the units. None below two
    units.
    """
    if len(hosts) == 1:
        return over_hosts(*hosts[0])
    pooled = [(over_hosts(*each), each) for each in hosts]
    return over_hosts(
        [each[0][0] if one is None else one.mean for one, each in pooled],
        [each[1][0] if one is None else one.error for one, each in pooled],
    )


def error_of(low: float, high: float, *, level: float) -> float:
    """Return the standard error of an interval, or a larger value.

    The normal quantile is below the quantiles that made the interval.
    """
    return (high - low) / 2 / student_factor(math.inf, level)


def between_groups(first: HostValues, second: HostValues, *, level: float) -> Ends | None:
    """Return second − first with an interval whose unit is the host.

    A group of one host is assumed to vary like the other group. The interval then holds for that
    host, and for its group only if that varies no more. None if neither group has two hosts, since
    the variation of hosts is then unknown.
    """
    groups = first, second
    pooled = [over_hosts(*each) for each in groups]
    known = next((each for each in pooled if each is not None), None)
    if known is None or not all(len(values) for values, _ in groups):
        return None
    means = [
        known.single(values[0], errors[0]) if each is None else each
        for each, (values, errors) in zip(pooled, groups, strict=True)
    ]
    return difference(means[0].ends(level), means[1].ends(level))


def _between(y: np.ndarray, variances: np.ndarray) -> float:
    """Return the variance between hosts; 0 if their own errors explain the variation."""

    def excess(tau_squared: float) -> float:
        weights = 1 / (variances + tau_squared)
        mean = weights @ y / weights.sum()
        return float(weights @ (y - mean) ** 2) - (y.size - 1)

    if excess(0.0) <= 0:
        return 0.0
    # at this variance no weight exceeds 1 / Σ (y − ȳ)², so the sum is at most 1; a
    # thousandth more allows for rounding
    highest = 1.001 * float(((y - y.mean()) ** 2).sum())
    # The root is a variance, so the tolerance of a log ratio is squared.
    return float(optimize.brentq(excess, 0.0, highest, xtol=_TINY**2))


def odd_hosts(values: Sequence[float], errors: Sequence[float]) -> tuple[int, ...]:
    """Return the indices of hosts far from the median, the farthest first.

    Far is beyond 3.5 standard deviations, which combine those of the other hosts and its own error.
    """
    if len(values) < _MIN_TO_NAME_ODD:
        return ()
    y, own = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    distances = np.abs(y - np.median(y))
    scatter = _NORMAL_MAD * float(np.median(distances))
    scores = distances / np.maximum(np.hypot(scatter, own), _TINY)
    far = (int(place) for place in np.argsort(-scores, kind="stable") if scores[place] > _FAR)
    return tuple(far)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """The batches that enclose the knee; `high` is None if no batch is proven to reach it."""

    best: int
    low: int  # all smaller ones are proven to stay below the share
    high: int | None  # the smallest that is proven to reach it, whichever is the fastest
    restarts: int  # with two or more batches


def knee(rates: Mapping[int, Mapping[int, float]]) -> Knee | None:
    """Return the knee of log throughputs by batch and restart; None without two to compare."""
    batches = sorted(rates)
    met = Counter(restart for values in rates.values() for restart in values)
    restarts = sorted(restart for restart, count in met.items() if count > 1)
    apart, half = _differences([[rates[b].get(r) for r in restarts] for b in batches])
    if len(batches) < 2 or not np.isfinite(apart).all():
        return None
    lowest, highest = apart - half, apart + half
    # A batch over itself has no error.
    np.fill_diagonal(lowest, 0.0)
    log_share = math.log(KNEE_SHARE)
    proven = [
        batch for batch, end in zip(batches, lowest.min(axis=1), strict=True) if end >= log_share
    ]
    left = [
        batch for batch, end in zip(batches, highest.min(axis=1), strict=True) if end >= log_share
    ]
    return Knee(
        best=batches[int(apart[:, 0].argmax())],
        low=left[0],
        high=proven[0] if proven else None,
        restarts=len(restarts),
    )


def _differences(values: Sequence[Sequence[float | None]]) -> tuple[Floats, Floats]:
    """Return the differences of all pairs of rows and their half-widths, infinite if unknown.

    Rows are batches, columns restarts. The differences are nan if no chain of restarts joins all
    rows.
    """
    count, blocks = len(values), len(values[0]) if values else 0
    known = [
        (row, at, value)
        for row, of_row in enumerate(values)
        for at, value in enumerate(of_row)
        if value is not None
    ]
    design = np.zeros((len(known), count + blocks))
    for place, (row, at, _) in enumerate(known):
        design[place, row] = design[place, count + at] = 1
    rank = int(np.linalg.matrix_rank(design)) if known else 0
    if not known or rank < count + blocks - 1:
        return _filled(count, np.nan), _filled(count, np.nan)
    measured = np.asarray([value for *_, value in known])
    # Batches and restarts share a constant, so the matrix is singular; the differences of batches
    # do not depend on it.
    inverse = np.linalg.pinv(design.T @ design)
    fitted = inverse @ design.T @ measured
    apart = fitted[:count, None] - fitted[None, :count]
    df = len(known) - rank
    if df < 1:
        return apart, _filled(count, np.inf)
    spread = float(((measured - design @ fitted) ** 2).sum()) / df
    own = np.diag(inverse)[:count]
    variance = own[:, None] + own[None, :] - 2 * inverse[:count, :count]
    level = level_together(count * (count - 1) // 2)
    # Rounding can make the variance of a batch over itself negative.
    return apart, student_factor(df, level) * np.sqrt(spread * variance.clip(0))


def _filled(count: int, value: float) -> Floats:
    return np.full((count, count), value)
