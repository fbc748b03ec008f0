"""When a cell is done and how its time is spent, on numbers made by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from envcompare.measure.stopping import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    Costs,
    generations_per_restart,
    reached_target,
    rounds_per_generation,
)
from envcompare.stats.intervals import Interval
from envcompare.stats.pairs import Pairs

COSTS = Costs(launch_s=10, generation_s=4, round_s=1)
NARROW = Interval(
    mean=0.0, half_width=0.02, unit="generation", restarts=4, generations=8, level=0.96
)


def test_target_is_reached_when_every_interval_is_narrow() -> None:
    """One wide arm keeps the cell going."""
    assert reached_target([NARROW, NARROW], target=0.025, min_restarts=4)
    wide = replace(NARROW, half_width=0.03)
    assert not reached_target([NARROW, wide], target=0.025, min_restarts=4)


@pytest.mark.parametrize("changes", [{"restarts": 3}, {"generations": 7}])
def test_target_is_not_looked_at_before_enough_restarts_and_generations(
    changes: dict[str, int],
) -> None:
    """A narrow interval of few launches is luck."""
    assert not reached_target([replace(NARROW, **changes)], target=0.025, min_restarts=4)


def test_nothing_measured_reaches_no_target() -> None:
    """Neither no arm at all nor an arm without an interval."""
    assert not reached_target([], target=0.025, min_restarts=4)
    assert not reached_target([None], target=0.025, min_restarts=4)


@pytest.mark.parametrize(
    ("remaining_s", "expected"),
    [(1000, 3), (100, 3), (72, 2), (60, 1), (10, 1)],
)
def test_generations_repay_a_launch_and_leave_time_for_the_restarts_to_come(
    remaining_s: float, expected: int
) -> None:
    """Three of 4 s repay a launch of 10 s; a small budget gets fewer, never none."""
    found = generations_per_restart(COSTS, remaining_s=remaining_s, restarts_to_come=4)
    assert found == expected


def drawn(*, within: float, between: float, effect: float = 0.0) -> Pairs:
    """Draw 40 generations of 4 rounds with these spreads around an effect."""
    generator = random.Random(5)
    generations = {}
    for number in range(40):
        mean = generator.gauss(effect, between)
        generations[number] = tuple(generator.gauss(mean, within) for _ in range(4))
    return {0: generations}


def test_generations_that_agree_get_many_rounds() -> None:
    """Where starting anew adds no spread, rounds are the cheap replication."""
    samples = [drawn(within=0.05, between=0.0)]
    assert rounds_per_generation(samples, COSTS, rounds=4) == MAX_ROUNDS


def test_generations_that_differ_get_few_rounds() -> None:
    """Where starting anew is the spread, more rounds teach nothing."""
    samples = [drawn(within=0.002, between=0.05)]
    assert rounds_per_generation(samples, COSTS, rounds=4) == MIN_ROUNDS


def test_difference_between_arms_is_no_spread_of_generations() -> None:
    """An arm that is slower throughout leaves the number of rounds as it is."""
    equal = [drawn(within=0.05, between=0.0), drawn(within=0.05, between=0.0)]
    slower = [drawn(within=0.05, between=0.0), drawn(within=0.05, between=0.0, effect=0.5)]
    assert rounds_per_generation(slower, COSTS, rounds=4) == rounds_per_generation(
        equal, COSTS, rounds=4
    )


def test_rounds_stay_until_enough_is_known() -> None:
    """Two generations tell nothing of the spread between them."""
    assert rounds_per_generation([{0: {0: (0.1, 0.2), 1: (0.1, 0.3)}}], COSTS, rounds=3) == 3
