"""When a cell is done and how its time is spent, on numbers made by hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import design
from hypothesis import given
from hypothesis import strategies as st

from envcompare.measure import Fact, Generated, Hello, Ran
from envcompare.measure.generation import have_like_cpus
from envcompare.measure.limits import (
    BLOCK_S,
    LEAST_MEASURING_S,
    MAX_STEPS,
    MOST_MEASURING_S,
    QUOTA_BLOCK_S,
    QUOTA_RUN_IN_S,
    SHORT_TURNS,
    Costs,
    SlowerBlock,
    has_quota,
    no_room_caution,
    overtime_s,
    plan_restarts,
    plan_text,
    run_in_steps,
    slower_block,
    small_budget_caution,
    steps_a_block,
    stop_reason,
    too_long,
    works_outside,
)
from envcompare.stats.intervals import Interval
from envcompare.stats.typical import expected_half_width, is_look

COSTS = Costs(launch_s=10, round_s=0.1)
NARROW = Interval(mean=0.0, half_width=0.02, unit="round", restarts=4, generations=4, level=0.96)
INSIDE = replace(NARROW, half_width=0.03)


@pytest.mark.parametrize(
    ("intervals", "changes", "expected"),
    [
        ((), {}, None),
        ((NARROW, None), {}, None),
        ((NARROW, NARROW), {}, "target"),
        ((NARROW, replace(NARROW, half_width=0.06)), {}, None),
        ((NARROW, replace(NARROW, mean=0.2, half_width=0.1, is_decided=True)), {}, "decided"),
        ((replace(NARROW, is_decided=True), NARROW), {}, "target"),
        ((INSIDE, NARROW), {}, "equivalent"),
        ((INSIDE,), {"target": 0.024}, None),  # a wish for a narrow interval, whatever it says
        ((replace(INSIDE, mean=0.02),), {}, None),
        ((replace(NARROW, restarts=3),), {}, None),  # a narrow one of few launches is luck
        ((replace(NARROW, restarts=3, is_decided=True),), {}, None),
    ],
)
def test_cell_stops_when_every_arm_is_done(
    intervals: tuple[Interval | None, ...], changes: dict[str, float], expected: str | None
) -> None:
    """An interval is narrow, decided or inside the margin; the reason is what the last took."""
    # at a margin of 5 %, a target of 2.5 % and four restarts
    assert stop_reason(intervals, design=design(**changes), min_restarts=4) == expected


@pytest.mark.parametrize(
    ("least", "expected"),
    [(2, [2, 4, 8, 16, 32]), (4, [4, 8, 16, 32]), (6, [6, 8, 16, 32])],
)
def test_cell_is_looked_at_after_the_least_restarts_and_after_each_doubling(
    least: int, expected: list[int]
) -> None:
    """More looks would ask for wider intervals."""
    assert [restarts for restarts in range(40) if is_look(restarts, least)] == expected


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(1e-5, MAX_STEPS), (1e-3, 20), (0.0066, 3), (0.009, 2), (0.02, 1), (0.09, 1), (5.0, 1)],
)
def test_block_lasts_20_ms_and_has_a_step_at_least(step_s: float, steps: int) -> None:
    """There are more rounds of short blocks, and each spreads hardly more."""
    assert BLOCK_S == 0.02
    assert steps_a_block(step_s) == steps


def hello(device: str = "cpu", **facts: Fact) -> Hello:
    """Return what a worker said first, with these facts."""
    return Hello(
        protocol=1, pid=1, entry_ns=0, now_ns=0, import_ns=0, data_ns=0, generation="fork",
        device=device, batch=1, code_hash="",
        fingerprint={name.replace("__", "."): value for name, value in facts.items()},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("hellos", "threads", "expected"),
    [
        ([], 1, False),
        ([hello(), hello(cgroup__cpu_quota=1.0)], 1, False),
        ([hello(), hello(cgroup__cpu_quota="max")], 4, False),
        ([hello(), hello(cgroup__cpu_quota=0.5)], 1, True),
        ([hello(), hello(cgroup__cpu_quota=1.0)], 2, True),
        ([hello(), hello(cgroup__cpu_quota=2.0)], 4, True),
        ([hello(), hello(cgroup__cpu_quota=4.0)], 4, False),
    ],
)
def test_blocks_are_longer_where_a_quota_is_below_the_threads_that_run(
    hellos: list[Hello], threads: int, *, expected: bool
) -> None:
    """In short turns it would never meet the quota that it meets in earnest."""
    assert has_quota(hellos, threads=threads) is expected
    assert steps_a_block(0.004, block_s=QUOTA_BLOCK_S) == 250


@pytest.mark.parametrize(
    ("outside", "threads", "expected"),
    [
        ({}, 1, False),
        ({"children": 1}, 1, True),
        ({"outside_runs": 1}, 1, True),
        ({"outside_cpu_ns": 10_000_000}, 1, True),
        ({"outside_cpu_ns": 10_000_000}, 2, False),
        ({"outside_cpu_ns": 21_000_000}, 2, True),
    ],
)
def test_arms_are_stopped_where_something_of_one_may_work_in_the_turns_of_others(
    outside: dict[str, Any], threads: int, *, expected: bool
) -> None:
    """A child may; a pool of threads may spin for a moment, and one thread has no pool."""
    ran = Ran(t0_ns=0, wall_ns=(20_000_000,), cpu_ns=(20_000_000,), **outside)
    assert works_outside(ran, threads=threads) == expected


def stopped_block_s(work_s: float, left_s: float, *, threads: int, cpus: float) -> float:
    """Return how long so much CPU time takes in a group with a quota in each period of 0.1 s.

    The group has paused before: it has the whole budget for what is left of its first period.
    """
    taken_s, period_s = 0.0, 0.1
    while True:
        done_s = min(work_s, cpus * period_s, threads * left_s)
        work_s -= done_s
        if work_s < 1e-9:
            return taken_s + done_s / threads
        taken_s, left_s = taken_s + left_s, period_s


@pytest.mark.parametrize(("threads", "cpus"), [(2, 1.0), (4, 1.0), (2, 0.5), (4, 3.0), (2, 1.9)])
@pytest.mark.parametrize("alone_s", [0.002, 0.02])
def test_blocks_under_a_quota_take_as_long_as_a_loop_of_hours(
    threads: int, cpus: float, alone_s: float
) -> None:
    """Whenever in a period a turn begins: alone, in a loop of seconds, it takes n ÷ q as long."""
    work_s = threads * QUOTA_BLOCK_S  # as calibrated where nothing stops it
    step_s = alone_s * threads / cpus
    taken = []
    for number in range(400):
        rest_s, share = 0.1 * (number % 20 + 0.5) / 20, (number // 20 + 0.5) / 20
        run_in = run_in_steps(QUOTA_RUN_IN_S, step_s, share=share, stops=False)
        run_in_s = alone_s * threads * run_in
        ends_s = (
            stopped_block_s(part_s, rest_s, threads=threads, cpus=cpus)
            for part_s in (run_in_s, run_in_s + work_s)
        )
        taken.append(-next(ends_s) + next(ends_s))
    change = statistics.fmean(taken) / QUOTA_BLOCK_S - 1
    assert change == pytest.approx(threads / cpus - 1, rel=0.02)


@pytest.mark.parametrize(
    ("run_in_s", "step_s", "stops", "steps"),
    [
        (0.0, 0.001, False, (0, 0)),
        (0.1, 0.001, False, (100, 200)),
        (0.1, 0.3, False, (1, 1)),
        (0.1, 3.0, False, (0, 0)),  # a period of a quota is short against it
        (0.005, 3.0, True, (1, 1)),  # an answer that came in a pause is worth a whole wait
    ],
)
def test_turn_begins_with_untimed_steps(
    run_in_s: float, step_s: float, steps: tuple[int, int], *, stops: bool
) -> None:
    """For one to two times what a pause leaves, and at least one if anything is left."""
    shares = (0.0, 1.0)
    assert steps == tuple(run_in_steps(run_in_s, step_s, share=one, stops=stops) for one in shares)


@pytest.mark.parametrize(
    ("docker", "expected"),
    [
        (hello(cpu__affinity=(0, 1), numa__nodes=1), True),
        (hello(cpu__affinity=(1,), numa__nodes=1), False),
        (hello(cpu__affinity=(0, 1), numa__nodes=2), False),
        (hello("cuda", cpu__affinity=(0, 1), numa__nodes=1), False),
        (hello(), False),
    ],
)
def test_arms_have_like_cpus_where_none_is_forbidden_or_far(
    docker: Hello, *, expected: bool
) -> None:
    """Each memory is near to each of them, and none drives a GPU."""
    vm = hello(cpu__affinity=(0, 1), numa__nodes=1)
    assert have_like_cpus((vm, docker)) is expected


@pytest.mark.parametrize("round_spread", [0.005, 0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("remaining_s", [50, 130, 590])
@pytest.mark.parametrize("done", [0, 3])
def test_no_other_number_of_restarts_makes_intervals_narrower(
    round_spread: float, remaining_s: float, done: int
) -> None:
    """Among those that measure between 2 and 40 s each."""
    costs = replace(
        COSTS, round_spread=round_spread, restarts=done, rounds=60 * done, compared=3, level=0.99
    )
    plan = plan_restarts(costs, remaining_s=remaining_s, missing=0)
    counts = np.asarray(
        [
            float(count)
            for count in range(1, 100)
            if LEAST_MEASURING_S <= remaining_s / count - costs.launch_s <= MOST_MEASURING_S
        ]
    )
    widths = expected_half_width(
        done + counts,
        costs.rounds + (remaining_s - counts * costs.launch_s) / costs.round_s,
        round_spread=round_spread,
        restart_spread=costs.restart_spread,
        comparisons=3,
        level=0.99,
    )
    assert plan.restarts == counts[np.argmin(widths)]


def test_restart_measures_for_as_long_as_its_launch_deserves() -> None:
    """Longer where launches are dear or rounds scatter, shorter where restarts do."""

    def measures_s(**changes: float) -> float:
        costs = replace(COSTS, round_spread=0.1, **changes)
        return plan_restarts(costs, remaining_s=600, missing=0).measuring_s

    here = measures_s()
    assert LEAST_MEASURING_S < here < MOST_MEASURING_S / 2
    assert measures_s(launch_s=40) > 1.5 * here
    assert measures_s(round_s=0.4) > 1.5 * here
    assert measures_s(restart_spread=0.015) < here / 1.5
    assert measures_s(restart_spread=0.5) == pytest.approx(LEAST_MEASURING_S)
    assert measures_s(round_s=6.0) == pytest.approx(MOST_MEASURING_S)


@pytest.mark.parametrize(
    ("remaining_s", "missing", "restarts", "each_s"),
    [
        (600, 4, 38, 600 / 38 - 10),  # as many as make the interval narrowest
        (60, 2, 4, 5.0),
        (48, 4, 4, 2.0),  # those that are missing come first, and each measures for less
        (40, 4, 3, 40 / 3 - 10),
        (12, 2, 1, 2.0),
        (10, 2, 0, 0.0),
        (-1, 2, 0, 0.0),
    ],
)
def test_plan_shares_what_is_left_among_the_restarts_to_come(
    remaining_s: float, missing: int, restarts: int, each_s: float
) -> None:
    """All alike; none where what is left is not worth a launch."""
    costs = replace(COSTS, round_spread=0.046)
    plan = plan_restarts(costs, remaining_s=remaining_s, missing=missing)
    assert (plan.restarts, plan.measuring_s) == (restarts, pytest.approx(each_s))


@given(
    launch_s=st.floats(0.1, 60),
    round_s=st.floats(0.001, 5),
    remaining_s=st.floats(-5, 2000),
    missing=st.integers(0, 8),
    is_launched=st.booleans(),
)
def test_plan_spends_what_is_left_and_not_more(
    launch_s: float, round_s: float, remaining_s: float, missing: int, *, is_launched: bool
) -> None:
    """Launches and rounds of all restarts are the rest of the budget, or too few for a verdict."""
    costs = Costs(launch_s=launch_s, round_s=round_s)
    plan = plan_restarts(costs, remaining_s=remaining_s, missing=missing, is_launched=is_launched)
    assert plan.restarts >= is_launched
    if plan.restarts:
        paid_s = (plan.restarts - is_launched) * launch_s + plan.restarts * plan.measuring_s
        if plan.restarts < missing and plan.measuring_s == 2 * LEAST_MEASURING_S:
            assert paid_s <= remaining_s + 1e-6
        else:
            assert paid_s == pytest.approx(remaining_s, abs=1e-6)


@pytest.mark.parametrize(
    ("round_s", "left_s", "measuring_s"),
    [
        (0.1, {"remaining_s": 1}, 1),
        (0.1, {"remaining_s": 8}, 2 * LEAST_MEASURING_S),
        (3.0, {"remaining_s": 25, "overtime_s": 5}, 25),  # not even overtime is enough for another
        (3.0, {"remaining_s": 25, "overtime_s": 30}, 2 * LEAST_MEASURING_S),
    ],
)
def test_restart_that_runs_is_planned_without_its_launch(
    round_s: float, left_s: dict[str, float], measuring_s: float
) -> None:
    """It leaves what may yet be enough for another, and measures to the end where nothing is."""
    costs = replace(COSTS, round_s=round_s)
    plan = plan_restarts(costs, missing=2, is_launched=True, **left_s)
    assert (plan.restarts, plan.measuring_s) == (1, pytest.approx(measuring_s))


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.0002, None), (0.0009, None), (0.002, 40), (0.06, 1), (5.0, 1)]
)
def test_far_slower_arm_does_fewer_steps_so_that_its_block_stays_short(
    step_s: float, steps: int | None
) -> None:
    """Up to four times the length wanted it does as many as the reference."""
    block = slower_block(87, step_s, block_s=0.02)
    assert (block and block.steps) == steps


@pytest.mark.parametrize(
    ("steps", "step_s", "expected"), [(40, 0.002, 150), (1, 0.06, 6), (1, 0.2, 2), (1, 5, 1)]
)
def test_far_slower_arm_is_warmed_up_for_as_long_as_the_others(
    steps: int, step_s: float, expected: int
) -> None:
    """A GPU has raised its clocks after 0.3 s; a few steps show whether they change in a loop."""
    assert SlowerBlock(steps=steps, step_s=step_s).warmup_steps(0.3) == expected


@given(
    launch_s=st.floats(0.1, 20),
    round_s=st.floats(0.001, 5),
    remaining_s=st.floats(-5, 100),
    missing=st.integers(1, 4),
)
def test_overtime_that_is_granted_is_enough_for_the_restarts_that_are_missing(
    launch_s: float, round_s: float, remaining_s: float, missing: int
) -> None:
    """The plan asks for no more than what it was granted for, however long a round takes."""
    costs = Costs(launch_s=launch_s, round_s=round_s)
    more_s = overtime_s(costs, remaining_s=remaining_s, missing=missing, most_s=math.inf)
    left_s = remaining_s + more_s
    assert plan_restarts(costs, remaining_s=left_s, missing=missing).restarts >= missing


def test_advice_names_no_smaller_budget_than_was_given() -> None:
    """Whatever the costs promise, the one that was given was not enough."""
    rules = design(budget_s=60.0, min_restarts=2)
    text = small_budget_caution(rules, restarts=1, needed_s=37.0)
    assert text.endswith("give --budget 60 or more")


def test_advice_of_a_session_names_the_budget_of_all() -> None:
    """Each session has its part of it, which nobody has given."""
    rules = design(budget_s=300.0, min_restarts=3, sessions=4)
    budget = "a session's 300 s of the budget of 1200 s"
    text = small_budget_caution(rules, restarts=2, needed_s=375.0)
    assert text == (
        f"{budget} had room for 2 restarts so far, and 3 were planned: give --budget 1500 or more"
    )
    text = no_room_caution(SHORT_TURNS, rules, 20.0)
    assert text.endswith(f"do not fit {budget}: give --budget 1280 or more")
    begun = Generated(pid=1, spawn_ns=0, build_ns=0, first_step_ns=400 * 10**9, checksum=None)
    failure = too_long("vm", begun, rules)
    assert failure is not None
    assert failure.brief == f"vm: one step took 400 s, longer than {budget}"
    assert failure.hint.startswith("give --budget 160000 or more")
    plan = plan_restarts(COSTS, remaining_s=20, missing=4)
    text = plan_text(plan, COSTS, remaining_s=20, design=rules, missing=4)
    assert text.endswith("4 are needed: give --budget 1350 or more")


def test_plan_names_its_costs_and_the_budget_that_is_missing() -> None:
    """What is needed is a launch with 2 s of rounds for each that does not fit."""
    plan = plan_restarts(COSTS, remaining_s=20, missing=4)
    text = plan_text(plan, COSTS, remaining_s=20, design=design(budget_s=30.0), missing=4)
    assert "1 restart fits the 20 s left of the budget" in text
    assert "a launch of all arms takes 10.0 s, and each measures for 4 s" in text
    assert text.endswith("4 are needed: give --budget 70 or more")
    late = plan_restarts(COSTS, remaining_s=-3, missing=2, is_launched=True)
    text = plan_text(late, COSTS, remaining_s=0, design=design(budget_s=10.0), missing=2)
    assert "each measures for 0 s" in text
    enough = plan_restarts(COSTS, remaining_s=500, missing=4)
    text = plan_text(enough, COSTS, remaining_s=500, design=design(budget_s=600.0), missing=4)
    assert "needed" not in text
