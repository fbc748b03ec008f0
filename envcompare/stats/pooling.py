"""The spread between restarts, learnt from all cells of a run where there are many.

Sources: Satterthwaite 1946 (degrees of freedom of a sum of mean squares).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envcompare.stats.intervals import Evidence, gather, mean_squares
from envcompare.stats.pairs import Units

MIN_CELLS = 8  # below that every cell speaks for itself


def gather_pooled(cells: Sequence[Units]) -> tuple[Evidence | None, ...]:
    """Return the evidence of each cell, its restart variance pooled over all of them.

    The restart variance is the mean over cells of max(0, (MSB − MSW) ÷ g), to which each cell adds
    its own MSW ÷ (R g). Cells without two restarts of two generations, and fewer than 8 such cells,
    are left as they are.
    """
    own = tuple(gather(groups) for groups in cells)
    usable = [np.asarray(groups) for groups in cells if _can_pool(groups)]
    if len(usable) < MIN_CELLS:
        return own
    parts = [_restart_variance(data) for data in usable]
    variance = float(np.mean([max(0.0, part[0]) for part in parts]))
    uncertainty = sum(part[1] for part in parts) / len(parts) ** 2
    return tuple(
        found
        if found is None or not _can_pool(groups)
        else _pooled(found, np.asarray(groups), variance, uncertainty)
        for found, groups in zip(own, cells, strict=True)
    )


def _can_pool(groups: Units) -> bool:
    return len(groups) >= 2 and len(groups[0]) >= 2


def _restart_variance(data: np.ndarray) -> tuple[float, float]:
    """Return (MSB − MSW) ÷ g and the variance of that estimate."""
    restarts, per_restart = data.shape
    between, within = mean_squares(data)
    spread = between**2 / (restarts - 1) + within**2 / (restarts * (per_restart - 1))
    return (between - within) / per_restart, 2 * spread / per_restart**2


def _pooled(
    found: Evidence, data: np.ndarray, restart_variance: float, uncertainty: float
) -> Evidence:
    restarts, per_restart = data.shape
    own = mean_squares(data)[1] / data.size
    variance = restart_variance / restarts + own
    spread = uncertainty / restarts**2 + 2 * own**2 / (restarts * (per_restart - 1))
    if variance <= 0 or spread <= 0:
        return found
    df = 2 * variance**2 / spread
    # Cut off at 0, the pooled part may be smaller than its uncertainty: then the cell knows more.
    if df < restarts - 1:
        return found
    return replace(found, error=math.sqrt(variance), df=df, unit="restart")
