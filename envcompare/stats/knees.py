"""The knee of a throughput: the smallest batch proven to be nearly as fast as the fastest.

A restart runs every batch in the same launch. Batches are the treatments and restarts the blocks of
a randomized block design (Montgomery, Design and Analysis of Experiments, chapter 4):
log throughput = batch + restart + rest. It is solved by least squares, since cells that end early
leave incomplete blocks. The effect of a restart on all batches cancels. The intervals of the ratios
of all pairs of batches have a joint level of 95 % (Bonferroni), since the same numbers choose the
fastest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envcompare.stats.intervals import level_together, student_factor

Floats = NDArray[np.float64]
SHARE: Final = 0.95  # of the best throughput, which the knee reaches


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
    np.fill_diagonal(lowest, 0.0)  # a batch over itself
    log_share = math.log(SHARE)
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
    return apart, student_factor(df, level) * np.sqrt(spread * variance.clip(0))


def _filled(count: int, value: float) -> Floats:
    return np.full((count, count), value)
