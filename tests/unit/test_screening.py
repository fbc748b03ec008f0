"""Screening: few false ones among the selected, and intervals that agree with the selection."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.intervals import Evidence
from envcompare.stats.typical import Groups, RoundEvidence, spread
from envcompare.stats.verdicts import screen


def evidence(mean: float, error: float = 0.01, count: int = 20) -> Evidence:
    """Return the evidence of so many processes."""
    return Evidence(mean=mean, error=error, count=count)


@given(st.lists(st.floats(-0.2, 0.2, allow_subnormal=False), min_size=1, max_size=12))
def test_an_interval_excludes_zero_exactly_where_it_is_selected(means: list[float]) -> None:
    """Selection and interval at the level of the selection say the same, but for the rest."""
    found = screen([evidence(mean) for mean in means], planned=12)
    for interval, is_selected in found:
        if is_selected:
            assert interval.low is not None
            assert interval.high is not None
            assert interval.low > 0 or interval.high < 0


rounds_of_restarts = st.lists(
    st.lists(st.floats(-0.3, 0.3, allow_subnormal=False), min_size=6, max_size=12).map(tuple),
    min_size=2,
    max_size=4,
).map(tuple)


@given(st.lists(rounds_of_restarts, min_size=1, max_size=6), st.floats(0, 0.3))
def test_an_interval_of_rounds_excludes_zero_where_it_is_selected(
    arms: list[Groups], shift: float
) -> None:
    """However unevenly the rounds lie."""
    moved = [tuple(tuple(x + shift for x in rounds) for rounds in arm) for arm in arms]
    found = screen(
        [RoundEvidence(groups=arm, spread=spread([arm]), generations=len(arm)) for arm in moved],
        planned=6,
    )
    for interval, is_selected in found:
        if is_selected:
            assert abs(interval.mean) > interval.half_width


@given(
    st.floats(0.001, 0.2),
    st.lists(st.floats(1e-4, 0.5), min_size=2, max_size=8),
)
def test_processes_that_differ_at_one_level_differ_at_each_looser_one(
    mean: float, alphas: list[float]
) -> None:
    """The confidence sequence may widen the interval there, and never across 0."""
    found = [evidence(mean).printed(alpha=alpha) for alpha in sorted(alphas)]
    excluded = [abs(one.mean) > one.half_width for one in found]
    assert excluded == sorted(excluded)


def test_more_selected_make_narrower_intervals() -> None:
    """The level is 1 − R · 5 % ÷ m; the rest have theirs for themselves."""
    alone = screen([evidence(0.2), *[evidence(0.0)] * 9], planned=10)
    many = screen([*[evidence(0.2)] * 5, *[evidence(0.0)] * 5], planned=10)
    assert [case.is_selected for case in alone] == [True, *[False] * 9]
    assert many[0].interval.half_width < alone[0].interval.half_width
    assert alone[0].interval.level == 1 - 0.8 * 0.05 / 10
    assert alone[1].interval.level == 1 - 0.8 * 0.05


def test_what_was_not_measured_counts_as_not_selected() -> None:
    """A single result of many planned must be as strong as if the others had said nothing."""
    one = evidence(0.034)
    assert screen([one], planned=1)[0].is_selected
    assert not screen([one], planned=50)[0].is_selected


def test_p_value_is_that_of_the_widened_interval() -> None:
    """Nothing is 1, certainty is 0, and it falls with the distance from 0."""
    assert evidence(0.0).p_value == 1
    assert evidence(0.1, error=0.0).p_value == 0
    assert evidence(0.05).p_value < evidence(0.03).p_value < 1


def test_few_of_the_selected_are_false() -> None:
    """With nothing to be found, at most 5 % of the runs select anything."""
    generator = np.random.default_rng(5)
    runs = 400
    wrong = 0
    for _ in range(runs):
        values = generator.normal(0, 1, (10, 20))
        found = [
            evidence(float(row.mean()), error=float(row.std(ddof=1)) / np.sqrt(20))
            for row in values
        ]
        wrong += any(case.is_selected for case in screen(found, planned=10))
    assert wrong / runs <= 0.05


def test_nothing_measured_screens_nothing() -> None:
    """No comparison, no result."""
    assert screen([], planned=3) == ()
