"""A confidence sequence: an interval that holds at all looks together, however often one looks.

Source: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, Time-uniform central limit theory and
asymptotic confidence sequences, arXiv:2103.06476, the two-sided sequence of Theorem 2.2:

    mean ± s √( 2(t r² + 1) / (t² r²) · ln( √(t r² + 1) / α ) )

after t values with standard deviation s; r is the paper's rho. It is narrowest at t* values where
r² = (−W₋₁(−α²/e) − 1) / t*, W₋₁ being the lower branch of Lambert's function (there, appendix B).
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import special

TUNED_FOR = 20  # values, where the sequence is narrowest


def sequence_half_width(error: float, count: int, *, alpha: float) -> float:
    """Return the half-width after `count` values whose mean has the standard error `error`.

    The theorem is asymptotic: it takes s as known. A cell is looked at from 4 values on, where s
    is not, so the half-width is widened by Student's quantile over the normal one at the same α.
    """
    return error * _factor(count, alpha) if count >= 2 else math.inf


@lru_cache(maxsize=4096)
def _factor(count: int, alpha: float) -> float:
    scale = count * _rho_squared(alpha)
    known = math.sqrt(2 * (scale + 1) / scale * math.log(math.sqrt(scale + 1) / alpha))
    student = float(special.stdtrit(count - 1, 1 - alpha / 2))
    return known * student / float(special.ndtri(1 - alpha / 2))


def _rho_squared(alpha: float) -> float:
    branch = float(special.lambertw(-(alpha**2) / math.e, k=-1).real)
    return (-branch - 1) / TUNED_FOR
