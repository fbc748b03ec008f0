"""What an environment can do to steps, block by block, and what headline and verdict make of it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator import (
    ARM,
    AT_THE_MARGIN,
    CALIBRATED,
    RAW,
    REFERENCE,
    SCENARIOS,
    bands,
    begun,
    draw,
    judged,
    missed_goals,
    reach,
    seeded,
)
from msgspec.structs import replace

from bookkeeping import RESULTS, Places
from envcompare.analysis.model import Comparison
from envcompare.report.wording.verdicts import verdict
from envcompare.stats import far_launches
from envcompare.stats.intervals import Evidence
from envcompare.stats.metrics import Readings
from envcompare.stats.verdicts import least_steps, own_waiting

BY_NAME = {one.name: one for one in SCENARIOS}
REPEATS = 4
NULLS = [one.name for one in SCENARIOS if one.truth == 1.0]
FELT = [one.name for one in SCENARIOS if one.truth > 1.06]  # by more than the margin


def found(name: str, repeat: int = 0) -> Comparison:
    """Return what the product says of one cell of a scenario."""
    return judged(draw(BY_NAME[name], seeded(name, repeat)))


def remarks(one: Comparison) -> str:
    """Return what stands beside the verdict of a comparison."""
    return "; ".join(verdict(one, label="made", margin=0.05).remarks)


@pytest.mark.parametrize("name", FELT)
def test_what_a_user_feels_is_never_called_equivalent(name: str) -> None:
    """However it comes about, and what is printed covers the truth in most cells."""
    cells = [found(name, repeat) for repeat in range(REPEATS)]
    assert {cell.outcome for cell in cells} <= {"slower", "inconclusive"}
    covered = 0
    for one in cells:
        said = one.deciding
        assert said is not None
        assert said.low is not None
        assert said.high is not None
        covered += said.low <= math.log(BY_NAME[name].truth) <= said.high
    assert covered >= REPEATS - 1


@pytest.mark.parametrize("name", NULLS[:2])
def test_equal_arms_are_equivalent_within_a_usual_budget(name: str) -> None:
    """At the noise of rounds and restarts that the kept runs have."""
    assert [found(name, repeat).outcome for repeat in range(REPEATS)] == ["equivalent"] * REPEATS


def test_waiting_of_its_own_is_part_of_the_headline_and_said() -> None:
    """A helper of the environment that takes the CPU makes a user wait."""
    one = found("a helper takes 12 % of the CPU")
    assert one.own_waiting is not None
    assert one.own_waiting.is_counted
    assert one.own_waiting.share == pytest.approx(0.12, abs=0.02)
    assert (one.outcome, one.is_by_mean) == ("slower", True)
    assert "more waiting for a CPU than the reference has" in remarks(one)


def test_waiting_that_neighbours_cause_is_not_counted() -> None:
    """It falls on all arms alike."""
    one = found("nothing")
    assert one.own_waiting is not None
    assert not one.own_waiting.is_counted
    assert remarks(one) == ""


@pytest.mark.parametrize(
    ("of_control", "is_counted"), [(0.0, True), (0.02, True), (0.0999, False), (0.1, False)]
)
def test_waiting_counts_only_beyond_that_of_a_control_that_failed(
    of_control: float, *, is_counted: bool
) -> None:
    """Where the reference waits longer than itself, so long a wait is no doing of an arm."""
    step, noise = np.ones(120), 0.001 * (np.arange(120) % 7)

    def rows(share: float) -> tuple[np.ndarray, ...]:
        return step, step, share + noise, noise[::-1]

    assert own_waiting(rows(0.1), None).is_counted
    assert own_waiting(rows(0.1), rows(of_control)).is_counted == is_counted


def test_net_time_is_read_in_one_way_in_all_blocks() -> None:
    """An arm that gives up the CPU is not charged with the steal that the others leave out."""
    one = found("5 % steal, one arm gives up the CPU")
    assert one.outcome == "equivalent"
    blocks = draw(BY_NAME["nothing"], seeded("nothing", 0))
    assert not Readings(blocks).goes_by_clock
    last = replace(blocks[-1], voluntary_switches=1)
    assert Readings((*blocks[:-1], last)).goes_by_clock


def test_slow_launch_stays_in_the_mean_and_is_named() -> None:
    """A user may meet it too."""
    one = found("1 launch of 4 slower by 40 %")
    assert one.mean is not None
    assert math.expm1(one.mean.log_ratio) == pytest.approx(0.1, abs=0.02)
    assert one.outcome == "inconclusive"
    assert remarks(one).startswith(f"1 of 4 launches of {ARM}: +")


@pytest.mark.parametrize(
    ("launches", "named"),
    [((0.0, 0.3), []), ((0.0, 0.3, 0.0), [1]), ((0.0, 0.3, 0.0, 0.3, 0.0), [])],
)
def test_one_launch_of_few_is_named_and_two_are_how_launches_scatter(
    launches: tuple[float, ...], named: list[int]
) -> None:
    """Of three one may be; two launches say only that they differ."""
    rounds = {(r, 0, n): 0.001 * (n % 3) for r in range(len(launches)) for n in range(12)}
    values = {REFERENCE: rounds, ARM: {key: x + launches[key[0]] for key, x in rounds.items()}}
    assert [one.restart for one in far_launches(values, ARM)] == named


def test_slow_steps_part_the_mean_from_the_typical_step() -> None:
    """The sentence gives both, and how often a step is slow."""
    one = next(one for one in map(slow_steps, range(REPEATS)) if one.outcome == "slower")
    assert one.is_by_mean
    said = remarks(one)
    assert "mean of all steps; typical step: " in said
    assert "takes 4 times as long as usual" in said


def test_steps_that_rise_within_a_turn_are_said() -> None:
    """A longer turn would give another ratio."""
    one = found("steps rise from 1.0 to 1.6 in a block")
    assert one.turn_trend is not None
    assert one.turn_trend.is_detected
    assert math.expm1(one.turn_trend.last_log_ratio) == pytest.approx(0.6, abs=0.05)
    assert "in the first step of a turn to +" in remarks(one)


def test_equal_arms_have_no_trend_within_a_turn() -> None:
    """At 1 % of false alarms none of these is one."""
    for repeat in range(REPEATS):
        trend = found("nothing", repeat).turn_trend
        assert trend is not None
        assert not trend.is_detected


def slow_steps(repeat: int) -> Comparison:
    """Return a cell of which one step in 50 takes four times as long."""
    return found("one step in 50 takes 4 times", repeat)


def test_the_step_of_an_arm_is_that_of_the_reference_times_the_ratio() -> None:
    """So that no column can contradict the verdict."""
    name = "every step 8 % slower"
    one = found(name)
    assert one.deciding is not None
    assert one.reference_step_s is not None
    blocks = draw(BY_NAME[name], seeded(name, 0))
    times = {
        arm: sum(sum(b.cpu_ns) for b in blocks if b.arm == arm)
        / sum(b.k for b in blocks if b.arm == arm)
        for arm in (REFERENCE, ARM)
    }
    assert one.reference_step_s == pytest.approx(times[REFERENCE] / 1e9)
    ours = one.reference_step_s * math.exp(one.deciding.log_ratio)
    assert ours == pytest.approx(times[ARM] / 1e9)


def test_rare_slow_steps_of_twenty_times_are_covered_from_so_many_steps_on() -> None:
    """At a margin of 5 %: 3 (20 − 1) ÷ 0.05."""
    assert least_steps(0.05) == 1140


def kept() -> Any:
    """Return what the page is made of."""
    return json.loads((RESULTS / RAW).read_text(encoding="utf-8"))


def test_calibration_meets_its_goals() -> None:
    """Of every scenario, at the number of cells that the bands ask for."""
    found = kept()
    assert found["cells"] >= 200
    assert set(found["calibration"]) == {one.name for one in CALIBRATED}
    assert set(found["margin"]) == {one.name for one in AT_THE_MARGIN}
    assert missed_goals(found) == []


def test_an_interval_that_is_too_narrow_is_named() -> None:
    """With too many cells that exclude the truth, or too wide a scatter, or an arm too often."""
    found = kept()
    (_, most), (_, square) = bands(found["cells"])
    found["calibration"]["nothing"]["mean"]["excludes"] = most + 1
    found["calibration"]["every step 2 % slower"]["typical"]["square"] = square + 0.01
    found["margin"]["every step 5 % slower"] = most + 1
    assert missed_goals(found) == [
        "nothing, mean: too narrow",
        "every step 2 % slower, typical: too narrow",
        f"every step 5 % slower: {most + 1} equivalent",
    ]


def test_z_is_that_of_the_level_at_which_an_interval_reaches_the_truth() -> None:
    """Of a normal estimate it is its distance to the truth in standard errors, with its sign."""
    evidence = Evidence(mean=-0.03, error=0.02, count=10**9)
    z = reach(lambda level: evidence.interval(level=level), 0.01)
    assert z == pytest.approx(-2.0, abs=1e-6)


def test_a_stopped_run_goes_on_at_its_own_commit_alone(tmp_path: Path) -> None:
    """Rows of other code, or of code that is not committed, are simulated again."""
    places, found = Places.below(tmp_path), kept()
    places.results.mkdir()
    shutil.copy(RESULTS / RAW, places.results)
    head = {key: found[key] for key in ("commit", "is_dirty", "repeats", "cells")}
    assert begun(places, head) == found
    for other in ({"commit": "a" * 40}, {"is_dirty": True}, {"cells": 1}):
        assert begun(places, {**head, **other})["rows"] == {}
