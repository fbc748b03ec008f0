"""The interval of a difference: mirrored, never surer than its parts, and covering as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.verdicts import Ends, difference

STUDENT = {4: 3.182446, 16: 2.131450}  # of so many draws, at 97.5 %
CHI_SQUARE = {6: (4.403789, 23.336664), 12: (12.401150, 39.364077)}  # likewise, both ends
widths = st.floats(0, 2)
means = st.floats(-2, 2)


@st.composite
def ends(draw: st.DrawFn) -> Ends:
    """Draw an estimate with an interval of any shape around it."""
    mean = draw(means)
    return Ends(mean=mean, low=mean - draw(widths), high=mean + draw(widths))


@given(before=ends(), after=ends())
def test_swapping_the_runs_mirrors_the_interval(before: Ends, after: Ends) -> None:
    """Slower by that much one way is faster by that much the other way."""
    there, back = difference(before, after), difference(after, before)
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low))


@given(before=ends(), after=ends())
def test_a_difference_is_never_surer_than_its_parts(before: Ends, after: Ends) -> None:
    """It reaches each way at least as far as either run does alone, and no further than both."""
    found = difference(before, after)
    up = found.high - found.mean
    parts = after.high - after.mean, before.mean - before.low
    assert max(parts) - 1e-9 <= up <= sum(parts) + 1e-9


def test_a_run_without_error_leaves_the_interval_of_the_other() -> None:
    """What is known exactly only moves the interval."""
    exact = Ends(mean=0.5, low=0.5, high=0.5)
    found = difference(exact, Ends(mean=1.0, low=0.75, high=2.0))
    assert (found.mean, found.low, found.high) == (0.5, 0.25, 1.5)


@pytest.mark.parametrize(("first", "second"), [((4, 1.0), (4, 1.0)), ((4, 3.0), (16, 1.0))])
def test_interval_of_a_difference_covers_as_often_as_it_says(
    first: tuple[int, float], second: tuple[int, float]
) -> None:
    """Of Student t intervals of few and unequal generations, at least 95 % of 20000 cover."""
    generator = np.random.default_rng(8)
    covered = 0
    for _ in range(20_000):
        found = difference(_student(generator, *first), _student(generator, *second))
        covered += found.low <= 0 <= found.high
    assert covered / 20_000 >= 0.95


def test_interval_of_a_difference_covers_where_intervals_are_skewed() -> None:
    """Exact intervals of two rates, far from symmetric, keep the level within the simulation's."""
    generator = np.random.default_rng(9)
    covered = 0
    for _ in range(20_000):
        found = difference(_exponential(generator, 6), _exponential(generator, 12))
        covered += found.low <= 0 <= found.high
    assert covered / 20_000 >= 0.945


def _student(generator: np.random.Generator, count: int, spread: float) -> Ends:
    drawn = generator.normal(0, spread, count)
    half = STUDENT[count] * drawn.std(ddof=1) / math.sqrt(count)
    return Ends(mean=drawn.mean(), low=drawn.mean() - half, high=drawn.mean() + half)


def _exponential(generator: np.random.Generator, count: int) -> Ends:
    total = generator.exponential(1.0, count).sum()
    low, high = CHI_SQUARE[count]
    return Ends(mean=total / count, low=2 * total / high, high=2 * total / low)
