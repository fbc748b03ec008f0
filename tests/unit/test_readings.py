"""What is read once for a cell is what each estimate would have read by itself."""

from __future__ import annotations

import random

import pytest
from builders import block

from envcompare.run_folder.records import Block
from envcompare.stats.metrics import METRICS, MetricName, Readings, estimate
from envcompare.stats.pairs import pair

ARMS = ("docker", "singularity", "vm~control")


def rough_blocks(seed: int) -> tuple[Block, ...]:
    """Return the blocks of a cell that lost some, dropped some, and waited now and then."""
    draws = random.Random(seed)
    return tuple(
        block(
            arm=arm, restart=restart, generation=generation, round=number, warmup=number < 0,
            wall_ns=tuple(int(1e7 * draws.lognormvariate(0, 0.02)) for _ in range(3)),
            wait_ns=draws.choice((None, 0, 10**5, 10**8)),
            status="dropped" if draws.random() < 0.05 else "ok",
        )
        for restart in range(4)
        for generation in range(draws.choice((2, 3)))
        for number in range(-1, draws.randint(1, 6))
        for arm in ("vm", *ARMS)
        if draws.random() > 0.1
    )  # fmt: skip


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(5))
def test_estimates_of_one_reading_are_those_of_each_arm_by_itself(
    metric: MetricName, seed: int
) -> None:
    """To the last bit, whatever was asked for before."""
    found = rough_blocks(seed)
    readings = Readings(found)
    for arm in (*ARMS, *ARMS):
        alone = estimate(found, arm=arm, reference="vm", metric=metric)
        assert readings.estimate(arm, "vm", metric) == alone
        pairs = pair(found, arm=arm, reference="vm", read=METRICS[metric])
        assert readings.pairs(arm, "vm", metric) == pairs
