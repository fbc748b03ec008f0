"""How the times of single steps are spread: quantiles of each arm, and histograms on shared edges.

Descriptive only: steps of one process are no independent measurements, and no verdict rests on
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from envcompare.analysis.model.comparison import STEP_PROBABILITIES, StepTimes
from envcompare.run_folder.records import Measured, ProcessRun

BINS: Final = 48
_TAIL: Final = 0.005  # of the steps of an arm that may lie beyond either end of the edges

Times = NDArray[np.float64]


def times_s(blocks: Iterable[Measured]) -> Times:
    """Return the times of all steps, or whole processes, of the blocks, in seconds."""
    parts = [_times_ns(block) for block in blocks]
    return np.fromiter((ns for part in parts for ns in part), dtype=np.float64) / 1e9


def shared_edges(times: Iterable[Times]) -> tuple[float, ...]:
    """Return BINS + 1 edges in seconds that hold the times of all arms but their far tails.

    They are evenly spaced. Empty where there are no times, or where all are the same.
    """
    ends = [np.quantile(one, (_TAIL, 1 - _TAIL)) for one in times if one.size]
    if not ends:
        return ()
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    if not high > low:
        return ()
    return tuple(float(edge) for edge in np.linspace(low, high, BINS + 1))


def step_times(
    arm: str, times: Times, *, edges: tuple[float, ...], batch: int | None
) -> StepTimes | None:
    """Return the summary of an arm's times; None where it took no step."""
    if not times.size:
        return None
    low, median, high = (float(value) for value in np.quantile(times, (0.05, 0.5, 0.95)))
    quantiles = np.quantile(times, STEP_PROBABILITIES)
    counts = np.histogram(times, bins=np.asarray(edges))[0] if edges else ()
    return StepTimes(
        arm=arm,
        steps=int(times.size),
        median_s=median,
        p05_s=low,
        p95_s=high,
        quantiles_s=tuple(float(value) for value in quantiles),
        longest_s=float(times.max()),
        counts=tuple(int(count) for count in counts),
        samples_per_s=batch / median if batch and median else None,
    )


def _times_ns(block: Measured) -> tuple[int, ...]:
    if isinstance(block, ProcessRun):
        return (block.wall_ns,)
    # on a GPU a step's wall time is its launch; the events around it hold the work
    return block.gpu_ns or block.wall_ns
