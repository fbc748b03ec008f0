"""The restart variance of many cells: shared where there are enough, and never out of nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envcompare.stats.intervals import gather, interval, student_factor
from envcompare.stats.multiplicity import gather_pooled
from envcompare.stats.pairs import Units


def cells(count: int, *, seed: int = 1, restart: float = 0.01, restarts: int = 6) -> list[Units]:
    """Draw cells of six restarts of two generations."""
    generator = np.random.default_rng(seed)
    return [
        tuple(
            tuple(row)
            for row in generator.normal(0, restart, (restarts, 1))
            + generator.normal(0, 0.005, (restarts, 2))
        )
        for _ in range(count)
    ]


def test_fewer_than_eight_cells_speak_for_themselves() -> None:
    """Nothing is shared."""
    few = cells(7)
    assert gather_pooled(few) == tuple(gather(one) for one in few)


def test_equal_cells_keep_their_own_variance() -> None:
    """The mean of eight equal variances is each of them, with more degrees of freedom."""
    own = gather(cells(1)[0], always_restarts=True)
    (pooled, *_) = gather_pooled(cells(1) * 8)
    assert own is not None
    assert pooled is not None
    assert pooled.error == pytest.approx(own.error)
    assert pooled.mean == own.mean
    assert pooled.df > own.df


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 0.03))
def test_degrees_of_freedom_stay_within_what_was_measured(seed: int, restart: float) -> None:
    """Satterthwaite gives at least the fewest and at most all of them together."""
    for found in gather_pooled(cells(10, seed=seed, restart=restart)):
        assert found is not None
        assert 1 <= found.df <= 10 * 6 * 2


def test_cell_speaks_for_itself_when_the_others_tell_less() -> None:
    """A spread between restarts that is cut off at 0 is too uncertain for a cell that is quiet."""
    data = cells(10, seed=143, restart=0.0)
    own = [gather(groups) for groups in data]
    pooled = gather_pooled(data)
    assert any(one == alone for one, alone in zip(pooled, own, strict=True))
    assert all(one is not None and one.df >= 5 for one in pooled)


def test_cell_that_cannot_be_split_is_left_as_it_is() -> None:
    """One generation a restart tells nothing of the spread within."""
    single: Units = ((0.01,), (0.02,), (0.0,))
    found = gather_pooled([*cells(8), single, ()])
    assert found[8] == gather(single)
    assert found[9] is None


def test_pooled_intervals_cover_and_are_narrower_with_few_restarts() -> None:
    """At 95 %, over 40 runs of 8 cells with 4 restarts each."""
    hits, widths = [], []
    for seed in range(40):
        for found, groups in zip(
            gather_pooled(data := cells(8, seed=seed, restarts=4)), data, strict=True
        ):
            own = interval(groups, level=0.95, always_restarts=True)
            assert found is not None
            assert own is not None
            half = student_factor(found.df, 0.95) * found.error
            hits.append(abs(found.mean) <= half)
            widths.append(half / own.half_width)
    assert np.mean(hits) >= 0.93
    assert np.median(widths) < 0.9
