"""The knee of a throughput: the smallest batch that is nearly as fast as the fastest, if proven.

A restart runs every batch in the same launch, so that batches are the treatments and restarts the
blocks of a randomized complete block design (Montgomery, Design and Analysis of Experiments,
chapter 4): what a restart adds to all batches cancels, and the residual variance is pooled over
them, with (restarts − 1)(batches − 1) degrees of freedom. The intervals of the ratios of all pairs
of batches hold together at 95 % (Bonferroni), since the fastest is chosen by the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from envcompare.stats.intervals import ALPHA, student_factor

SHARE: Final = 0.95  # of the best throughput, that the knee has at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """Between which batches the knee lies; `high` is None where no batch is proven to reach it."""

    best: int
    low: int  # all smaller ones are proven to stay below the share
    high: int | None  # the smallest that is proven to reach it, whatever is the fastest
    restarts: int
    half_width: float  # of the log ratio of two batches; infinite with one restart

    @property
    def decided(self) -> int | None:
        """Return the knee, None where it is not decided."""
        return self.high if self.low == self.high else None


def knee(rates: Mapping[int, Mapping[int, float]]) -> Knee | None:
    """Return the knee of log throughputs by batch and restart; None without two to compare.

    Restarts that lack a batch are left out.
    """
    batches = sorted(rates)
    common = sorted(set.intersection(*(set(rates[one]) for one in batches))) if batches else []
    if len(batches) < 2 or not common:
        return None
    values = np.asarray([[rates[batch][restart] for restart in common] for batch in batches])
    means = values.mean(axis=1)
    half = _half_width(values)
    apart = means[:, None] - means[None, :]  # of a batch over another; 0 over itself
    is_itself = np.eye(len(batches), dtype=bool)
    reached = ((apart - half >= math.log(SHARE)) | is_itself).all(axis=1)
    excluded = (apart + half < math.log(SHARE)).any(axis=1)
    proven = [batch for batch, is_proven in zip(batches, reached, strict=True) if is_proven]
    return Knee(
        best=batches[int(means.argmax())],
        low=next(batch for batch, is_out in zip(batches, excluded, strict=True) if not is_out),
        high=proven[0] if proven else None,
        restarts=len(common),
        half_width=half,
    )


def _half_width(values: np.ndarray) -> float:
    """Return the half-width of the difference of two rows (batches) of values by restart."""
    count, restarts = values.shape
    if restarts < 2:
        return math.inf
    rest = values - values.mean(axis=1, keepdims=True) - values.mean(axis=0) + values.mean()
    df = (restarts - 1) * (count - 1)
    pairs = count * (count - 1) // 2
    error = math.sqrt(2 * float((rest**2).sum()) / df / restarts)
    return student_factor(df, 1 - ALPHA / pairs) * error
