"""How well a share is known that was counted in a number of trials."""

from __future__ import annotations

from scipy import stats as distributions


def share_interval(count: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval of a binomial share (Clopper and Pearson 1934)."""
    found = distributions.binomtest(count, trials).proportion_ci(level, method="exact")
    return float(found.low), float(found.high)
