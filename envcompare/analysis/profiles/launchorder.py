"""Pair two lists of launches by their order: exact first, then ever more loosely in the gaps.

Each level aligns the longest common subsequence (Myers, An O(ND) Difference Algorithm and Its
Variations, 1986) and hands what lies between its matches to the next level. After so many
differences the best path so far is kept and the alignment goes on from its end, so that lists of
any kind take a time that grows with their length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

MOST_DIFFERENCES = 300  # insertions and deletions before a path is kept for good

Token = Callable[[int], Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One way to call two launches the same, for the reference's places and for the arm's."""

    before: Token
    after: Token


Gap = tuple[range, range]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Two launches that were paired, by place in each list, and the level that paired them."""

    before: int
    after: int
    level: int


def align(lengths: tuple[int, int], levels: Sequence[Level]) -> Iterator[Match]:
    """Yield pairs of places; what is never paired is in one list only.

    No two matches cross each other, and no place occurs twice.
    """
    gaps: list[Gap] = [(range(lengths[0]), range(lengths[1]))]
    for number, level in enumerate(levels):
        following: list[Gap] = []
        for gap in gaps:
            matched = _common(gap, level)
            yield from (Match(before=a, after=b, level=number) for a, b in matched)
            following += _between(gap, matched)
        gaps = following


def _between(gap: Gap, matched: list[tuple[int, int]]) -> Iterator[Gap]:
    """Yield what lies between the matches; only where both lists have something left."""
    before, after = gap[0].start, gap[1].start
    for a, b in (*matched, (gap[0].stop, gap[1].stop)):
        if before < a and after < b:
            yield range(before, a), range(after, b)
        before, after = a + 1, b + 1


def _common(gap: Gap, level: Level) -> list[tuple[int, int]]:
    """Return the matches of a common subsequence, the longest where the lists are not far apart."""
    one = [(level.before(place), place) for place in gap[0]]
    other = [(level.after(place), place) for place in gap[1]]
    # what one list alone has cannot match, and would count as a difference
    shared = {token for token, _ in one} & {token for token, _ in other}
    one = [each for each in one if each[0] in shared]
    other = [each for each in other if each[0] in shared]
    tokens = [token for token, _ in one], [token for token, _ in other]
    found: list[tuple[int, int]] = []
    a, b = 0, 0
    while a < len(one) and b < len(other):
        matched, (x, y) = _myers(tokens[0][a:], tokens[1][b:])
        found += [(one[a + i][1], other[b + j][1]) for i, j in matched]
        a, b = a + x, b + y
    return found


def _myers(
    one: list[Hashable], other: list[Hashable]
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Return the matches of a shortest edit script and where it ends: both ends, or further on.

    With more than MOST_DIFFERENCES it ends where the path that came furthest does.
    """
    ends = {1: 0}  # the furthest place in `one` on each diagonal
    trace: list[dict[int, int]] = []
    best = (0, 0)
    for cost in range(MOST_DIFFERENCES + 1):
        trace.append(dict(ends))
        for diagonal in range(-cost, cost + 1, 2):
            x = _start(ends, diagonal, cost)[0]
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            ends[diagonal] = x
            if x >= len(one) and y >= len(other):
                return _walked_back(trace, x, y), (x, y)
            if cost == MOST_DIFFERENCES and x <= len(one) and y <= len(other):
                best = max(best, (x, y), key=sum)
    return _walked_back(trace, *best), best


def _start(ends: dict[int, int], diagonal: int, cost: int) -> tuple[int, int]:
    """Return where a path enters a diagonal, and the diagonal it comes from."""
    above, below = ends.get(diagonal + 1, -1), ends.get(diagonal - 1, -1)
    if diagonal == -cost or (diagonal != cost and below < above):
        return above, diagonal + 1
    return below + 1, diagonal - 1


def _walked_back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """Return the diagonal moves of the path that ends at (x, y), first to last."""
    matched: list[tuple[int, int]] = []
    for cost in range(len(trace) - 1, -1, -1):
        start, came_from = _start(trace[cost], x - y, cost) if cost else (0, 0)
        matched += [(place, place - x + y) for place in range(x - 1, start - 1, -1)]
        if cost:
            x = trace[cost][came_from]
            y = x - came_from
    return matched[::-1]
