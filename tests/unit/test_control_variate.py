"""The control sharpens every other comparison of its cell, and changes no truth."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from envcompare.run_folder.records import CONTROL_SUFFIX, Block
from envcompare.stats.metrics import wall_ns
from envcompare.stats.pairs import pair

CONTROL = f"vm{CONTROL_SUFFIX}"


def block(arm: str, number: int, seconds: float) -> Block:
    """Return a block of one step."""
    return Block(
        cell="local/cnn/default",
        arm=arm,
        restart=0,
        generation=0,
        round=number,
        order=0,
        k=1,
        t0_ns=0,
        wall_ns=(round(seconds * 1e9),),
        cpu_ns=(round(seconds * 1e9),),
    )


def log_ratios(blocks: list[Block], arm: str) -> tuple[float, ...]:
    """Return the log ratios of the one generation there is."""
    return pair(blocks, arm=arm, reference="vm", read=wall_ns)[0][0]


def test_reference_is_the_geometric_mean_of_both_when_a_control_took_part() -> None:
    """A round divides by the reference and its twin alike."""
    blocks = [block("vm", 0, 1.0), block(CONTROL, 0, 4.0), block("docker", 0, 3.0)]
    assert log_ratios(blocks, "docker") == pytest.approx((math.log(3 / 2),))


def test_reference_stands_alone_when_the_control_is_missing_in_a_round() -> None:
    """A control that failed takes no round with it."""
    blocks = [block("vm", 0, 1.0), block("docker", 0, 3.0)]
    assert log_ratios(blocks, "docker") == pytest.approx((math.log(3),))


def test_control_is_compared_with_the_reference_alone() -> None:
    """The A/A comparison would be halved otherwise."""
    blocks = [block("vm", 0, 1.0), block(CONTROL, 0, 4.0), block("docker", 0, 3.0)]
    assert log_ratios(blocks, CONTROL) == pytest.approx((math.log(4),))


def test_variance_falls_by_a_quarter_when_the_control_takes_part() -> None:
    """Two equal measurements of the reference are worth what the theory says."""
    noise = random.Random(1)
    blocks = [
        block(arm, number, math.exp(noise.gauss(0, 0.05)))
        for number in range(4000)
        for arm in ("vm", CONTROL, "docker")
    ]
    with_control = np.var(log_ratios(blocks, "docker"))
    without = np.var(log_ratios([b for b in blocks if b.arm != CONTROL], "docker"))
    assert with_control / without == pytest.approx(0.75, abs=0.04)
