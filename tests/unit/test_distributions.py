"""How step times are summarised: quantiles, and histograms that the arms of a cell share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.analysis.timing import BINS, _shared_edges, _step_times

TIMES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=80).map(np.asarray)


@given(st.lists(TIMES, min_size=1, max_size=3))
def test_the_edges_hold_the_times_of_all_arms_but_their_tails(arms: list[np.ndarray]) -> None:
    """The middle of each arm lies inside, and no arm is counted more often than it stepped."""
    edges = _shared_edges(arms)
    for times in arms:
        found = _step_times("vm", times, edges=edges, batch=None)
        assert found is not None
        assert sum(found.counts) <= found.steps
        if edges:
            assert edges[0] <= np.median(times) <= edges[-1]
            assert len(found.counts) == BINS == len(edges) - 1


@given(TIMES)
def test_quantiles_never_fall(times: np.ndarray) -> None:
    """A larger share of the steps takes no less time, and none more than the longest."""
    found = _step_times("vm", times, edges=(), batch=None)
    assert found is not None
    assert list(found.quantiles_s) == sorted(found.quantiles_s)
    assert found.quantiles_s[-1] <= (found.longest_s or 0)


def test_equal_times_have_no_histogram() -> None:
    """There is no width to divide up."""
    assert _shared_edges([np.full(5, 0.01), np.full(3, 0.01)]) == ()


def test_steps_of_no_time_have_no_speed() -> None:
    """A clock that stood still divides nothing."""
    found = _step_times("vm", np.zeros(5), edges=(), batch=64)
    assert found is not None
    assert (found.median_s, found.samples_per_s) == (0.0, None)


@pytest.mark.parametrize("arms", [[], [np.asarray([])]])
def test_no_times_have_no_summary(arms: list[np.ndarray]) -> None:
    """An arm that took no step is left out."""
    assert _shared_edges(arms) == ()
    assert all(_step_times("vm", arm, edges=(), batch=None) is None for arm in arms)
