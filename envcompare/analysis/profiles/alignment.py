"""Align two lists by their order: exact first, then ever more loosely in the gaps.

Each level aligns the longest common subsequence (Myers, An O(ND) Difference Algorithm and Its
Variations, 1986) and hands what lies between its matches to the next level. After so many
differences the best path so far is kept and the alignment goes on from its end, so that lists of
any kind take a time that grows with their length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

_MOST_DIFFERENCES: Final = 300  # insertions and deletions before a path is kept for good

Level = tuple[Sequence[Hashable], Sequence[Hashable]]  # what each place of both lists is called
Gap = tuple[range, range]


class Match(NamedTuple):
    """Two places that were paired, one of each list, and the level that paired them."""

    before: int
    after: int
    level: int


def align(levels: Sequence[Level]) -> Iterator[Match]:
    """Yield pairs of places; what is never paired is in one list only.

    No two matches cross each other, and no place occurs twice.
    """
    gaps: list[Gap] = [(range(len(levels[0][0])), range(len(levels[0][1])))]
    for number, level in enumerate(levels):
        following: list[Gap] = []
        for gap in gaps:
            matched = _common(gap, level)
            yield from (Match(before, after, number) for before, after in matched)
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
    # what one list alone has cannot match, and would count as a difference
    sets = ({names[place] for place in places} for names, places in zip(level, gap, strict=True))
    shared = set.intersection(*sets)
    before, after = (
        [place for place in places if names[place] in shared]
        for names, places in zip(level, gap, strict=True)
    )
    tokens = [level[0][place] for place in before], [level[1][place] for place in after]
    matches: list[tuple[int, int]] = []
    a, b = 0, 0
    while a < len(before) and b < len(after):
        matched, (x, y) = _myers(tokens[0][a:], tokens[1][b:])
        matches += [(before[a + i], after[b + j]) for i, j in matched]
        a, b = a + x, b + y
    return matches


def _myers(
    before: list[Hashable], after: list[Hashable]
) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Return the matches of a shortest edit script and where it ends: both ends, or further on.

    With more than _MOST_DIFFERENCES it ends where the path that came furthest does.
    """
    ends = {1: 0}  # the furthest place in `before` on each diagonal
    trace: list[dict[int, int]] = []
    best = (0, 0)
    for cost in range(_MOST_DIFFERENCES + 1):
        trace.append(dict(ends))
        for diagonal in range(-cost, cost + 1, 2):
            x = _start(ends, diagonal, cost)[0]
            y = x - diagonal
            while x < len(before) and y < len(after) and before[x] == after[y]:
                x, y = x + 1, y + 1
            ends[diagonal] = x
            if x >= len(before) and y >= len(after):
                return _walked_back(trace, x, y), (x, y)
            if cost == _MOST_DIFFERENCES and x <= len(before) and y <= len(after):
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
