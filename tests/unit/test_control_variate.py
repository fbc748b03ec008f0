"""The control sharpens the comparisons of a plain command, and no others; it changes no truth."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from builders import block

from envcompare.run_folder.records import CONTROL_SUFFIX, ProcessRun
from envcompare.stats.metrics import Readings

CONTROL = f"vm{CONTROL_SUFFIX}"


def process(arm: str, number: int, seconds: float) -> ProcessRun:
    """Return a process of a plain command."""
    return ProcessRun(
        cell="local/cnn/default",
        arm=arm,
        number=number,
        order=0,
        t0_ns=0,
        wall_ns=round(seconds * 1e9),
        user_ns=0,
        sys_ns=0,
        real_ns=round(seconds * 1e9),
        exit_code=0,
    )


def log_ratios(runs: list[ProcessRun], arm: str) -> tuple[float, ...]:
    """Return the log ratio of each pass."""
    return Readings(runs).estimate(arm, "vm", "wall")


@pytest.mark.parametrize(
    ("seconds", "arm", "ratio"),
    [
        ({"vm": 1.0, CONTROL: 4.0, "docker": 3.0}, "docker", 3 / 2),
        ({"vm": 1.0, "docker": 3.0}, "docker", 3.0),  # a control that failed takes no pass with it
        ({"vm": 1.0, CONTROL: 4.0, "docker": 3.0}, CONTROL, 4.0),  # it would be halved otherwise
    ],
)
def test_reference_is_the_geometric_mean_of_both_when_a_control_took_part(
    seconds: dict[str, float], arm: str, ratio: float
) -> None:
    """A pass divides by the reference and its twin alike; the control by the reference alone."""
    runs = [process(name, 0, lasted) for name, lasted in seconds.items()]
    assert log_ratios(runs, arm) == pytest.approx((math.log(ratio),))


def test_variance_falls_by_a_quarter_when_the_control_takes_part() -> None:
    """Two equal measurements of the reference are worth what the theory says."""
    noise = random.Random(1)
    runs = [
        process(arm, number, math.exp(noise.gauss(0, 0.05)))
        for number in range(4000)
        for arm in ("vm", CONTROL, "docker")
    ]
    with_control = np.var(log_ratios(runs, "docker"))
    without = np.var(log_ratios([b for b in runs if b.arm != CONTROL], "docker"))
    assert with_control / without == pytest.approx(0.75, abs=0.04)


def test_steps_are_compared_with_the_reference_alone_whether_a_control_took_part() -> None:
    """The median over rounds gains nothing from a mean of two references."""
    found = [
        block(arm=arm, wall_ns=(ns,) * 3)
        for arm, ns in (("vm", 10**7), (CONTROL, 4 * 10**7), ("docker", 3 * 10**7))
    ]
    assert Readings(found).groups("docker", "vm", "wall") == ((pytest.approx(math.log(3)),),)
