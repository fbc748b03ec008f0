"""The comparisons of one run together: restart variance pooled, and screened for differences.

Sources: Satterthwaite 1946 (degrees of freedom of a sum of mean squares); Benjamini and Hochberg
1995 (false discovery rate); Benjamini and Yekutieli 2005 (intervals for the selected).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from envcompare.stats.intervals import (
    ALPHA,
    LOOK_FACTOR,
    SEQUENCE_SHARE,
    Evidence,
    Interval,
    gather,
    mean_squares,
    printed,
)
from envcompare.stats.pairs import Units

MIN_CELLS = 8  # below that every cell speaks for itself


def gather_pooled(cells: Sequence[Units]) -> tuple[Evidence | None, ...]:
    """Return the evidence of each cell, its restart variance pooled over all of them.

    The restart variance is the mean over cells of max(0, (MSB − MSW) ÷ g), to which each cell adds
    its own MSW ÷ (R g). Cells without two restarts of two generations, and fewer than 8 such cells,
    are left as they are.
    """
    each_cell = tuple(gather(groups) for groups in cells)
    usable = [np.asarray(groups) for groups in cells if _can_pool(groups)]
    if len(usable) < MIN_CELLS:
        return each_cell
    parts = [_restart_variance(data) for data in usable]
    variance = float(np.mean([max(0.0, part[0]) for part in parts]))
    uncertainty = sum(part[1] for part in parts) / len(parts) ** 2
    return tuple(
        found
        if found is None or not _can_pool(groups)
        else _pooled(found, np.asarray(groups), variance, uncertainty)
        for found, groups in zip(each_cell, cells, strict=True)
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
    evidence: Evidence, data: np.ndarray, restart_variance: float, uncertainty: float
) -> Evidence:
    restarts, per_restart = data.shape
    within = mean_squares(data)[1] / data.size
    variance = restart_variance / restarts + within
    spread = uncertainty / restarts**2 + 2 * within**2 / (restarts * (per_restart - 1))
    if variance <= 0 or spread <= 0:
        return evidence
    df = 2 * variance**2 / spread
    # Cut off at 0, the pooled part may be smaller than its uncertainty: then the cell knows more.
    if df < restarts - 1:
        return evidence
    return replace(evidence, error=math.sqrt(variance), df=df, unit="restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A comparison after screening; only a selected one may be called slower or faster."""

    interval: Interval
    is_selected: bool


def p_value(evidence: Evidence) -> float:
    """Return the smallest error at which the printed interval would still exclude 0, at most 1."""
    if evidence.mean == 0:
        return 1.0
    if evidence.error == 0:
        return 0.0
    tail = 2 * float(
        special.stdtr(evidence.df, -abs(evidence.mean) / (LOOK_FACTOR * evidence.error))
    )
    return min(1.0, tail / (1 - SEQUENCE_SHARE))


def screen(evidence: Sequence[Evidence], *, planned: int) -> tuple[Screened, ...]:
    """Select by Benjamini and Hochberg at 5 % and give each comparison its interval.

    R selected of m planned have theirs at error 5 % · R ÷ m, so that the false coverage rate is
    5 %; it excludes 0 exactly where the comparison is selected. The rest have theirs at 5 %,
    widened for looking and not for their number. Planned comparisons that were not measured count
    as not selected.
    """
    if not evidence:
        return ()
    padded = [*(p_value(one) for one in evidence), *[1.0] * (planned - len(evidence))]
    # a second to import, and seldom asked for
    from scipy.stats import false_discovery_control  # noqa: PLC0415

    adjusted = false_discovery_control(padded, method="bh")[: len(evidence)]
    selected = [float(one) <= ALPHA for one in adjusted]
    share = sum(selected) / max(planned, len(evidence))
    return tuple(
        Screened(interval=printed(one, alpha=ALPHA * share if is_in else ALPHA), is_selected=is_in)
        for one, is_in in zip(evidence, selected, strict=True)
    )
