"""The alignment of launches: as long as the longest common subsequence, never crossing."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from envcompare.analysis.profiles.kerneldiff import Match, align

LISTS = st.lists(st.integers(0, 3), max_size=14)


def aligned(one: list[int], other: list[int]) -> list[Match]:
    """Return the matches on equal numbers alone."""
    return list(align([(one, other)]))


def longest(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common subsequence by its definition."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            best = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else best
    return table[-1][-1]


@settings(deadline=None)
@given(LISTS, LISTS)
def test_matches_are_a_longest_common_subsequence(one: list[int], other: list[int]) -> None:
    """No pair is missed, none is made up, none crosses another."""
    made = aligned(one, other)
    assert all(one[match.before] == other[match.after] for match in made)
    assert [m.before for m in made] == sorted({m.before for m in made})
    assert [m.after for m in made] == sorted({m.after for m in made})
    assert len(made) == longest(one, other)


@settings(deadline=None)
@given(LISTS, LISTS)
def test_looser_level_pairs_only_between_the_matches(one: list[int], other: list[int]) -> None:
    """A second level in which all is equal fills each gap as far as the shorter side reaches."""
    loose = [0] * len(one), [0] * len(other)
    made = sorted(align([(one, other), loose]), key=lambda match: (match.before, match.after))
    assert [m.after for m in made] == sorted({m.after for m in made})
    assert [m.before for m in made] == sorted({m.before for m in made})
    assert len([m for m in made if m.level == 0]) == longest(one, other)


def test_long_lists_with_nothing_in_common_fall_through() -> None:
    """The bound on differences leaves them to the next level, which pairs them by place."""
    one, other = list(range(5_000)), list(range(10_000, 15_000))
    made = list(align([(one, other), ([0] * len(one), [0] * len(other))]))
    assert [(m.before, m.after, m.level) for m in made] == [(n, n, 1) for n in range(5_000)]


def test_long_list_with_few_changes_is_aligned_around_them() -> None:
    """One launch less and one other in twenty thousand are found."""
    one = [number % 40 for number in range(20_000)]
    other = [*one[:7_000], *one[7_001:15_000], 99, *one[15_001:]]
    assert len(aligned(one, other)) == 19_998


@settings(deadline=None, max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(2, 30))
def test_lists_far_apart_are_still_aligned_in_order(source: Random, kinds: int) -> None:
    """Beyond the bound on differences a path is kept and gone on from: no end, no crossing."""
    one, other = ([source.randrange(kinds) for _ in range(700)] for _ in range(2))
    made = aligned(one, other)
    assert all(one[match.before] == other[match.after] for match in made)
    assert [m.before for m in made] == sorted({m.before for m in made})
    assert [m.after for m in made] == sorted({m.after for m in made})
    assert len(made) >= 100
