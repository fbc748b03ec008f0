"""The union of intervals against counting every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envcompare.profile_files import exposed_ns, span_ns, union_ns

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def times(intervals: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of intervals given by start and length."""
    table = np.array(intervals, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table.sum(axis=1)


def moments(intervals: list[tuple[int, int]]) -> set[int]:
    """Return every nanosecond the intervals cover."""
    return {moment for start, length in intervals for moment in range(start, start + length)}


@given(INTERVALS)
def test_union_is_the_number_of_covered_moments(intervals: list[tuple[int, int]]) -> None:
    """Brute force counts the same."""
    assert union_ns(*times(intervals)) == len(moments(intervals))


@given(INTERVALS, st.randoms())
def test_union_does_not_depend_on_order(intervals: list[tuple[int, int]], draw: object) -> None:
    """A file may list its rows in any order."""
    shuffled = list(intervals)
    draw.shuffle(shuffled)  # type: ignore[attr-defined]
    assert union_ns(*times(shuffled)) == union_ns(*times(intervals))


@given(INTERVALS)
def test_union_is_at_most_sum_and_span(intervals: list[tuple[int, int]]) -> None:
    """Busy time never exceeds the time there was."""
    starts, ends = times(intervals)
    assert union_ns(starts, ends) <= min(int((ends - starts).sum()), span_ns(starts, ends))


@given(INTERVALS, INTERVALS)
def test_exposed_is_what_the_others_do_not_cover(
    of: list[tuple[int, int]], under: list[tuple[int, int]]
) -> None:
    """Brute force takes one set of moments from the other."""
    assert exposed_ns(times(of), times(under)) == len(moments(of) - moments(under))


def test_union_of_large_times_is_exact() -> None:
    """Nanoseconds since 1970 need all 64 bits."""
    start = 1_795_000_000_000_000_001
    intervals = np.array([start, start + 2]), np.array([start + 3, start + 7])
    assert union_ns(*intervals) == 7
