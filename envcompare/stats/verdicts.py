"""The one verdict of an interval, against a margin fixed before the run.

Source: Schuirmann 1987 (two one-sided tests).
"""

from __future__ import annotations

import math
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
