"""The statistics: they cover, they say nothing they cannot know, and the verdict is one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import block, blocks, design
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.intervals import Interval, interval, printed_interval, restarts_needed
from envcompare.stats.metrics import Readings, look, net_ns, primary_metric
from envcompare.stats.verdicts import verdict

finite = st.floats(-1, 1, allow_nan=False)


def test_log_ratios_are_those_of_complete_rounds() -> None:
    """A round in which one arm is missing is left out."""
    readings = Readings(
        [
            block(arm="vm", round=0),
            block(arm="docker", round=0, wall_ns=(20_000_000,) * 3),
            block(arm="vm", round=1),
        ]
    )
    assert readings.groups("docker", "vm", "wall") == ((pytest.approx(math.log(2)),),)


def test_warmup_blocks_never_count() -> None:
    """The first block of a generation is discarded."""
    readings = Readings([block(arm="vm", warmup=True), block(arm="docker", warmup=True)])
    assert readings.groups("docker", "vm", "wall") == ()


def test_one_process_gives_no_interval_and_none_no_estimate() -> None:
    """The spread between processes is then unknown; `None` is not measured."""
    found = interval((0.1,), level=0.95)
    assert found is not None
    assert (found.low, found.high) == (None, None)
    assert interval((), level=0.95) is None


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """At 95 %, with few processes and with many, coverage is near 95 %."""
    generator = np.random.default_rng(3)
    for count in (4, 12):
        hits = 0
        for _ in range(600):
            found = interval(generator.normal(0, 0.01, count).tolist(), level=0.95)
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            hits += found.low <= 0 <= found.high
        assert hits / 600 >= 0.92


def test_more_comparisons_widen_the_printed_interval() -> None:
    """Bonferroni over the planned comparisons."""
    values = (0.01, 0.02, 0.0, 0.01)
    one = printed_interval(values, comparisons=1)
    ten = printed_interval(values, comparisons=10)
    assert one is not None
    assert ten is not None
    assert ten.half_width > one.half_width


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.01, 0.01, "equivalent"),
        (0.001, 0.01, "equivalent"),
        (0.03, 0.09, "slower"),
        (-0.09, -0.03, "faster"),
        (-0.09, 0.03, "inconclusive"),
        (None, None, "inconclusive"),
    ],
)
def test_verdict_is_exactly_one_in_the_fixed_order(
    low: float | None, high: float | None, expected: str
) -> None:
    """Equivalent comes first, then slower, faster, inconclusive."""
    assert verdict(low, high, margin=0.02) == expected


@given(finite, st.floats(0, 1, allow_nan=False), st.floats(0.001, 0.5))
def test_verdict_turns_with_its_sign(mean: float, half: float, margin: float) -> None:
    """Swapping arm and reference swaps slower and faster and nothing else."""
    turned = {"slower": "faster", "faster": "slower"}
    here = verdict(mean - half, mean + half, margin=margin)
    there = verdict(-mean - half, -mean + half, margin=margin)
    assert there == turned.get(here, here)


def test_net_takes_the_wait_out_and_leaves_throttling_in() -> None:
    """Throttling by a quota is the environment's own doing."""
    waited = block(wall_ns=(10,), wait_ns=4, throttled_ns=1)
    assert net_ns(waited, by_clock=True) == 10 - 3
    assert net_ns(block(wait_ns=None), by_clock=True) is None


def test_verdict_rests_on_wall_where_net_is_not_defined() -> None:
    """With several threads or processes, on a GPU, and without schedstat; each with its reason."""
    assert primary_metric([block()], threads=1) == ("net", "")
    several, blind = (([block()], 2), ([block()], None)), ([block(wait_ns=None)], 1)
    helped = ([block(children=1)], 1), ([block(is_stopped=True)], 1)
    for found, threads in (*several, ([block(gpu_ns=(1,))], 1), blind, *helped):
        metric, reason = primary_metric(found, threads=threads)
        assert metric == "wall"
        assert reason


@pytest.mark.parametrize("ratio", [0.9, 1.0, 1.1])
def test_estimate_finds_the_injected_ratio(ratio: float) -> None:
    """Blocks that take `ratio` times as long give that ratio."""
    readings = Readings(blocks({"vm": 1.0, "docker": ratio}))
    found = look(readings, ("docker",), reference="vm", design=design(), m=1)["docker"]
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= math.log(ratio) <= found.high
    assert found.half_width < 0.015


def rounds(mean: float, half_width: float, *, restarts: int = 4) -> Interval:
    """Return an interval over rounds of so many restarts."""
    return Interval(
        mean=mean, half_width=half_width, unit="round", restarts=restarts, generations=restarts,
        level=0.96,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (rounds(0.0, 0.02), 5),  # (0.02 / ln 1.02)² = 1.02 times as many
        (rounds(0.03, 0.06), 16),
        (rounds(0.01, 0.04), 64),
        (rounds(0.05, 0.02), 4),
        (rounds(0.0, 1.5), None),
        (rounds(0.0, math.inf), None),
        (rounds(0.0, 0.02, restarts=1), None),
    ],
)
def test_forecast_of_rounds_falls_with_the_root_of_the_restarts(
    found: Interval, expected: int | None
) -> None:
    """A half-width below the way to 0, or to the far side of the margin, whichever is longer."""
    assert restarts_needed(found, margin=0.02) == expected


def test_forecast_asks_for_more_where_the_interval_is_wide() -> None:
    """About how many processes would decide; at least those there are."""
    found = printed_interval((0.01, 0.03, -0.02, 0.02, -0.01, 0.0), comparisons=1)
    assert found is not None
    needed = restarts_needed(found, margin=0.01)
    assert needed is not None
    assert needed > found.restarts


def test_forecast_of_restarts_falls_faster_as_students_factor_does() -> None:
    """Few values owe much of their width to how few they are."""
    over_rounds = rounds(0.0, 0.04)
    over_restarts = replace(over_rounds, unit="restart")
    few, many = (restarts_needed(one, margin=0.02) for one in (over_restarts, over_rounds))
    assert few is not None
    assert many is not None
    assert 4 < few < many


def test_forecast_is_nothing_more_where_the_interval_decides() -> None:
    """What is there is enough."""
    found = printed_interval([0.1 + n / 1000 for n in range(6)], comparisons=1)
    assert found is not None
    assert restarts_needed(found, margin=0.02) == found.restarts
