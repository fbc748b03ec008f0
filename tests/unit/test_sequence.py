"""The confidence sequence: it holds at all looks together, and the printed interval contains it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.stats.intervals import (
    _sequence_half_width,
    gather,
    printed_interval,
)


def test_sequence_covers_at_every_look_together() -> None:
    """At 95 %, looked at after each of 4 to 60 values, it misses the truth in at most 5 %."""
    generator = np.random.default_rng(11)
    missed = 0
    for _ in range(400):
        values = generator.normal(0, 1, 60)
        missed += any(
            abs(values[:count].mean())
            > _sequence_half_width(values[:count].std(ddof=1) / math.sqrt(count), count, alpha=0.05)
            for count in range(4, 61)
        )
    assert missed / 400 <= 0.05


@given(st.integers(2, 500), st.floats(0.0005, 0.05))
def test_more_values_of_one_spread_narrow_the_sequence(count: int, alpha: float) -> None:
    """The half-width falls with every value."""
    here = _sequence_half_width(1 / math.sqrt(count), count, alpha=alpha)
    there = _sequence_half_width(1 / math.sqrt(count + 1), count + 1, alpha=alpha)
    assert there < here


def test_sequence_of_the_paper_is_reached_with_many_values() -> None:
    """With thousands of values Student's correction is gone and the formula alone is left."""
    count, alpha = 20_000, 0.01
    squared = 11.8 / 20  # (−W₋₁(−α²/e) − 1) ÷ t*, by hand
    scale = count * squared
    root = math.sqrt(2 * (scale + 1) / scale * math.log(math.sqrt(scale + 1) / alpha))
    assert _sequence_half_width(1.0, count, alpha=alpha) == pytest.approx(root, rel=1e-3)


def test_one_value_gives_no_sequence() -> None:
    """Its spread is unknown."""
    assert _sequence_half_width(0.0, 1, alpha=0.05) == math.inf


@given(
    st.lists(st.floats(-0.1, 0.1, allow_subnormal=False), min_size=2, max_size=30),
    st.integers(1, 20),
)
def test_printed_interval_holds_the_sequence_where_that_decided(
    values: list[float], comparisons: int
) -> None:
    """The union of both is printed, whatever ended the cell."""
    found = printed_interval(values, comparisons=comparisons)
    evidence = gather(values)
    assert found is not None
    assert evidence is not None
    half = _sequence_half_width(evidence.error, evidence.count, alpha=0.01 / comparisons)
    assert found.is_decided == (abs(found.mean) > half)
    if found.is_decided:
        assert found.half_width >= half


def test_decided_interval_still_excludes_zero() -> None:
    """What the sequence decides is not taken back by the interval printed."""
    values = [0.05 + step / 1000 for step in range(8)] + [0.052 - step / 1000 for step in range(8)]
    found = printed_interval(values, comparisons=6)
    assert found is not None
    assert found.is_decided
    assert found.low is not None
    assert found.low > 0
