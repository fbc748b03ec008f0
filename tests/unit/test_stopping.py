"""When a cell is done and how its time is spent, on numbers made by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders import design

from envcompare.measure.limits import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    Costs,
    affordable_rounds,
    generations_per_restart,
    plan_restarts,
    plan_text,
    rounds_per_generation,
    stop_reason,
)
from envcompare.stats.intervals import Interval
from envcompare.stats.pairs import Pairs

COSTS = Costs(launch_s=10, generation_s=4, round_s=1)
NARROW = Interval(
    mean=0.0, half_width=0.02, unit="generation", restarts=4, generations=8, level=0.96
)


def reason(*intervals: Interval | None, **changes: float) -> str | None:
    """Ask the rule at a margin of 5 %, a target of 2.5 % and four restarts."""
    return stop_reason(intervals, design=design(**changes), min_restarts=4)


def test_cell_stops_when_every_interval_is_narrow() -> None:
    """One wide arm keeps the cell going."""
    wide = replace(NARROW, half_width=0.06)
    assert reason(NARROW, NARROW) == "target"
    assert reason(NARROW, wide) is None


def test_arm_that_is_decided_holds_no_cell() -> None:
    """It is done although its interval is wide, and the cell says which rule it took."""
    decided = replace(NARROW, mean=0.2, half_width=0.1, is_decided=True)
    assert reason(NARROW, decided) == "decided"
    assert reason(replace(NARROW, is_decided=True), NARROW) == "target"


def test_arm_inside_the_margin_holds_no_cell_unless_precision_is_asked_for() -> None:
    """A target below half the margin is a wish for a narrow interval, whatever it says."""
    inside = replace(NARROW, half_width=0.03)
    assert reason(inside, NARROW) == "equivalent"
    assert reason(inside, target=0.024) is None
    assert reason(replace(inside, mean=0.02)) is None


@pytest.mark.parametrize("changes", [{"restarts": 3}, {"generations": 7}])
@pytest.mark.parametrize("is_decided", [False, True])
def test_no_rule_is_looked_at_before_enough_restarts_and_generations(
    changes: dict[str, int], *, is_decided: bool
) -> None:
    """A narrow interval of few launches is luck."""
    assert reason(replace(NARROW, is_decided=is_decided, **changes)) is None


def test_nothing_measured_stops_nothing() -> None:
    """Neither no arm at all nor an arm without an interval."""
    assert reason() is None
    assert reason(None) is None
    assert reason(NARROW, None) is None


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


@pytest.mark.parametrize(
    ("remaining_s", "restarts", "rounds"),
    [(1000, 48, 6), (70, 4, 6), (67, 4, 5), (55, 4, 2), (50, 3, 2), (1, 1, 2)],
)
def test_plan_gives_up_rounds_for_restarts(remaining_s: float, restarts: int, rounds: int) -> None:
    """Of 10 s a launch, 4 s a begin and 1 s a round, six rounds leave four restarts 70 s."""
    plan = plan_restarts(COSTS, rounds=6, remaining_s=remaining_s, budget_s=90, restarts=4)
    assert (plan.restarts, plan.rounds) == (restarts, rounds)


def test_plan_names_its_costs_and_the_budget_that_is_missing() -> None:
    """What is needed is the budget with what four restarts of two rounds lack."""
    plan = plan_restarts(COSTS, rounds=6, remaining_s=20, budget_s=30, restarts=4)
    text = plan_text(plan, COSTS, remaining_s=20, restarts=4)
    assert plan.needed_s == pytest.approx(30 + 3 * 17 + 3 - 20)
    assert "2 restarts fit the 20 s left of the budget, with 2 rounds in a generation" in text
    assert "a launch of all arms takes 10.0 s" in text
    assert text.endswith("4 are needed: give --budget 70 or more")
    enough = plan_restarts(COSTS, rounds=6, remaining_s=500, budget_s=600, restarts=4)
    assert "needed" not in plan_text(enough, COSTS, remaining_s=500, restarts=4)


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


@pytest.mark.parametrize(
    ("remaining_s", "restarts", "generations", "expected"),
    [(100, 3, 7, 9), (58, 3, 7, 3), (10, 3, 7, -4), (100, 0, 0, MAX_ROUNDS)],
)
def test_rounds_leave_time_for_the_restarts_to_come(
    remaining_s: float, restarts: int, generations: int, expected: int
) -> None:
    """Launches of 10 s and generations of 1 s come first; what is left is for rounds of 1 s."""
    found = affordable_rounds(
        COSTS, rounds=3, remaining_s=remaining_s, restarts=restarts, generations=generations
    )
    assert found == expected
