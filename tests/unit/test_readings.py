"""What is read once for a cell is what each estimate would have read by itself."""

from __future__ import annotations

import math
import random

import pytest
from builders import block

from envcompare.run_folder.records import Block
from envcompare.stats.metrics import METRICS, MetricName, Readings, typical_ns
from envcompare.stats.typical import own_spread, spread

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
def test_rounds_of_one_reading_are_those_of_each_arm_by_itself(
    metric: MetricName, seed: int
) -> None:
    """To the last bit, whatever was asked for before."""
    found = rough_blocks(seed)
    readings = Readings(found)
    for arm in (*ARMS, *ARMS):
        alone = Readings((b for b in found if b.arm in {arm, "vm"}), metrics=(metric,))
        groups = readings.groups(arm, "vm", metric)
        assert groups == alone.groups(arm, "vm", metric)
        assert readings.mean(arm, "vm", "wall") == Readings(found).mean(arm, "vm", "wall")
        if metric not in {"gpu", "user", "sys", "real"}:
            assert groups


@pytest.mark.parametrize("seed", range(5))
def test_log_ratios_are_those_of_the_typical_steps_in_complete_rounds(seed: int) -> None:
    """In the order of the rounds, by restart; the control is an arm as any other."""
    found = [b for b in rough_blocks(seed) if not b.warmup and b.status == "ok"]
    at = {(b.arm, b.restart, b.generation, b.round): typical_ns(b, "wall") for b in found}
    for arm in ARMS:
        expected: dict[int, list[float]] = {}
        for _, *number in sorted(key for key in at if key[0] == arm):
            ours, theirs = at[(arm, *number)], at.get(("vm", *number))
            if ours and theirs:
                expected.setdefault(number[0], []).append(math.log(ours) - math.log(theirs))
        assert Readings(found).groups(arm, "vm", "wall") == tuple(map(tuple, expected.values()))


def test_what_is_added_later_is_in_the_next_estimate() -> None:
    """Nothing that was asked for before is kept beyond its time."""
    found = rough_blocks(1)
    readings = Readings()
    for sample in found:
        readings.add(sample)
        readings.groups("docker", "vm", "wall")
    whole = Readings(found)
    assert readings.groups("docker", "vm", "wall") == whole.groups("docker", "vm", "wall")
    assert readings.spread("docker", "vm", "wall") == whole.spread("docker", "vm", "wall")


def test_restarts_are_those_with_a_measured_block() -> None:
    """A restart that only warmed up, or whose blocks were dropped, measured nothing."""
    readings = Readings(
        [block(restart=0), block(restart=2, warmup=True), block(restart=3, status="dropped")]
    )
    assert readings.restarts == 1


def test_spread_is_that_of_all_arms_the_control_among_them() -> None:
    """What a launch adds shows in every arm alike."""
    readings = Readings(rough_blocks(2))
    arms = [readings.groups(arm, "vm", "wall") for arm in ARMS]
    own = own_spread(arms[0], spread(arms))
    assert readings.spread(ARMS[0], "vm", "wall") == own
    found = readings.evidence(ARMS[0], "vm", "wall")
    assert found is not None
    assert found.spread == own


def test_arm_without_a_complete_round_has_no_evidence() -> None:
    """`None` is not measured."""
    readings = Readings([block(arm="vm"), block(arm="docker", round=1)])
    assert readings.evidence("docker", "vm", "wall") is None
    assert readings.mean("docker", "vm", "wall") is None
