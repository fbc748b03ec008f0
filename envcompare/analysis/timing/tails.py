"""The slow steps of an arm: how many there are, and how the 90th percentile compares.

A typical step says nothing of the one in fifty that takes three times as long.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envcompare.analysis.model.comparison import Tail
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import Measured
from envcompare.stats.intervals import student_factor
from envcompare.stats.metrics import MetricName, net_steps_ns
from envcompare.stats.typical import STRETCHES, Contrast, jackknife

SLOW = 1.5  # times the median step of its arm
LEVEL = 0.95
_LEAST_STEPS = 100  # in each arm; the tail of fewer is a step or two

Floats = NDArray[np.float64]


def tail(data: CellData, arm: str) -> Tail | None:
    """Return the slow steps of an arm beside those of the reference; None where they are too few.

    On a GPU a step is timed between events. Stretches are those of the rounds both took part in.
    """
    if data.is_program or arm == data.reference.id:
        return None
    ours, theirs = (_by_round(data, one) for one in (arm, data.reference.id))
    both_arms = (arm, data.reference.id)
    complete = [
        number
        for number in data.readings.complete_rounds(both_arms, data.metric[0])
        if number in ours and number in theirs
    ]
    both = [[one[key] for key in complete] for one in (ours, theirs)]
    if len(complete) < STRETCHES or min(sum(map(len, one)) for one in both) < _LEAST_STEPS:
        return None
    stretches = np.array_split(np.arange(len(complete)), STRETCHES)
    parts = [[np.concatenate([one[i] for i in part]) for part in stretches] for one in both]
    a, b = (np.concatenate(one) for one in parts)
    kept = [
        [np.concatenate([part for i, part in enumerate(one) if i != left]) for one in parts]
        for left in range(STRETCHES)
    ]
    shares = jackknife([_share(x) - _share(y) for x, y in kept], _share(a) - _share(b))
    p90 = jackknife([_p90(x) - _p90(y) for x, y in kept], _p90(a) - _p90(b))
    # without a slow step in either the jackknife sees no scatter, which is no certainty
    low, high = _ends(shares) if _share(a) or _share(b) else (None, None)
    p90_low, p90_high = _ends(p90)
    slow = a[a > SLOW * np.median(a)]
    return Tail(
        share=_share(a),
        reference_share=_share(b),
        difference_low=low,
        difference_high=high,
        slow_ratio=float(np.median(slow) / np.median(a)) if slow.size else None,
        p90_log_ratio=p90.mean,
        p90_low=p90_low,
        p90_high=p90_high,
    )


def _by_round(data: CellData, arm: str) -> dict[tuple[int, int, int], Floats]:
    rounds = {}
    for block in data.arm_blocks(arm):
        steps = _steps(block, data.metric[0])
        if steps is not None:
            rounds[block.restart, block.generation, block.round] = steps
    return rounds


def _steps(block: Measured, metric: MetricName) -> Floats | None:
    on_clock = getattr(block, "gpu_ns", None) or getattr(block, "wall_ns", None)
    steps = net_steps_ns(block) if metric == "net" else on_clock
    return np.asarray(steps, dtype=float) if steps else None


def _share(steps: Floats) -> float:
    return float(np.mean(steps > SLOW * np.median(steps)))


def _p90(steps: Floats) -> float:
    return float(np.log(np.quantile(steps, 0.9)))


def _ends(excess: Contrast) -> tuple[float, float]:
    half = student_factor(excess.df, LEVEL) * excess.error
    return excess.mean - half, excess.mean + half
