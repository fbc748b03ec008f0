"""One statement over several hosts, each of which compared for itself: the host is a random effect.

The log ratio of host i is y_i with the standard error s_i. Its true value scatters between hosts
with the standard deviation τ, since an environment does not cost the same on every machine. τ² is
that of Paule and Mandel 1982 (Journal of Research of the National Bureau of Standards 87:377–385),
the root of Σ w_i (y_i − μ)² = k − 1 with w_i = 1 / (s_i² + τ²) and μ = Σ w_i y_i / Σ w_i. The
interval is μ ± t_{k−1} √(q / Σ w_i) with q = max(1, Σ w_i (y_i − μ)² / (k − 1)), after Hartung and
Knapp 2001 (Statistics in Medicine 20:3875–3889) and Sidik and Jonkman 2002 (ibid. 21:3153–3159);
that q is not below 1 is from Röver, Knapp and Friede 2015 (BMC Medical Research Methodology 15:99).

Two groups of hosts differ by the difference of their means. Nothing pairs hosts of different
groups, and each group scatters by a τ of its own, so that the half-widths of both add up as
squares (Banerjee 1960, see `intervals`): in simulations of two hosts or more a group that covered
97 % and more, where an interval after Welch covered 90 % with two hosts against six whose scatter
is a fifth of theirs. Of a group of one host nothing tells how it scatters. It is taken to scatter
as the other one does, which covers that host (99 % in simulations), and its group only where that
scatters no more: 95 % for one host against three or six with the same τ, and 24 to 50 % where its
group scatters by 5 % and the other by 0.5 % or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from envcompare.stats.intervals import student_factor
from envcompare.stats.verdicts import Ends, difference

MIN_HOSTS = 2
_MIN_TO_NAME_ODD = 5  # hosts; below that none can be told to be the odd one
_FAR = 3.5  # standard deviations, of Iglewicz and Hoaglin 1993
_NORMAL_MAD = 1.4826  # by which the median absolute deviation becomes a standard deviation
_TINY = 1e-12  # of a log ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean with its standard error, the degrees of freedom of that, and how far hosts differ."""

    mean: float
    error: float
    df: float
    tau: float = 0.0  # standard deviation between hosts
    scale: float = 1.0  # q, by which hosts scatter more than their errors and τ tell

    def single(self, value: float, error: float) -> Mean:
        """Return what one host of a further group tells if hosts scatter there as they do here."""
        spread = math.sqrt(self.scale * (max(error, _TINY) ** 2 + self.tau**2))
        return Mean(mean=value, error=spread, df=self.df)

    def ends(self, level: float) -> Ends:
        """Return it with Student's interval."""
        half = student_factor(self.df, level) * self.error
        return Ends(mean=self.mean, low=self.mean - half, high=self.mean + half)


def over_hosts(values: Sequence[float], errors: Sequence[float]) -> Mean | None:
    """Return what several hosts say together; None below two of them."""
    if len(values) < MIN_HOSTS:
        return None
    y = np.asarray(values, dtype=float)
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


HostValues = tuple[Sequence[float], Sequence[float]]
"""The value of each host of a group, or of each run on a host, and its standard error."""


def over_runs(hosts: Sequence[HostValues]) -> Mean | None:
    """Return what several runs say together, given the runs of each host.

    Of several hosts each is pooled over its own runs first, and the hosts are the units, so that
    one that was measured on more days is no heavier. Of one host the runs are the units. None below
    two units.
    """
    if len(hosts) == 1:
        return over_hosts(*hosts[0])
    pooled = [(over_hosts(*each), each) for each in hosts]
    return over_hosts(
        [each[0][0] if one is None else one.mean for one, each in pooled],
        [each[1][0] if one is None else one.error for one, each in pooled],
    )


def error_of(low: float, high: float, *, level: float) -> float:
    """Return the standard error of an interval, or more.

    The quantile is that of the normal distribution, which is below those that made the interval.
    """
    return (high - low) / 2 / student_factor(math.inf, level)


def between_groups(first: HostValues, second: HostValues, *, level: float) -> Ends | None:
    """Return second − first with an interval whose unit is the host.

    A group of one host is taken to scatter as the other group does, so that the interval is of that
    host, and of its group only where that scatters no more. None where neither group has two hosts:
    then nothing tells how hosts of a group differ.
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
    """Return the variance between hosts; 0 where their own errors explain how they scatter."""

    def excess(tau_squared: float) -> float:
        weights = 1 / (variances + tau_squared)
        mean = weights @ y / weights.sum()
        return float(weights @ (y - mean) ** 2) - (y.size - 1)

    if excess(0.0) <= 0:
        return 0.0
    # at this variance no weight exceeds 1 / Σ (y − ȳ)², so that the sum is 1 at most; a
    # thousandth more, since both are rounded
    highest = 1.001 * float(((y - y.mean()) ** 2).sum())
    return float(optimize.brentq(excess, 0.0, highest, xtol=_TINY**2))


def odd_hosts(values: Sequence[float], errors: Sequence[float]) -> tuple[int, ...]:
    """Return the places of hosts far from the median of all, the farthest first.

    Far is beyond 3.5 standard deviations, which are those of the other hosts and of its own error.
    """
    if len(values) < _MIN_TO_NAME_ODD:
        return ()
    y, own = np.asarray(values, dtype=float), np.asarray(errors, dtype=float)
    distances = np.abs(y - np.median(y))
    scatter = _NORMAL_MAD * float(np.median(distances))
    scores = distances / np.maximum(np.hypot(scatter, own), _TINY)
    far = (int(place) for place in np.argsort(-scores, kind="stable") if scores[place] > _FAR)
    return tuple(far)
