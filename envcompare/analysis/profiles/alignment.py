"""Align two lists by order: exactly at first, then more loosely within the gaps.

Each level aligns the longest common subsequence (Myers, An O(ND) Difference Algorithm and Its
Variations, 1986) and passes the gaps between its matches to the next level. After a fixed number of
differences the best path is kept and the alignment continues from its end, so the time grows
linearly with the length of the lists.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

_MOST_DIFFERENCES: Final = 300  # insertions and deletions before a path is kept for good

Level = tuple[Sequence[Hashable], Sequence[Hashable]]  # the token of each position in both lists
Gap = tuple[range, range]


class Match(NamedTuple):
    """A pair of positions, one in each list, and the level that paired them."""

    before: int
    after: int
    level: int


def align(levels: Sequence[Level]) -> Iterator[Match]:
    """Yield pairs of positions; unpaired positions are in one list only.

    Matches never cross, and no position occurs twice.
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
    """Yield the gaps between matches that are non-empty in both lists."""
    before, after = gap[0].start, gap[1].start
    for a, b in (*matched, (gap[0].stop, gap[1].stop)):
        if before < a and after < b:
            yield range(before, a), range(after, b)
        before, after = a + 1, b + 1


def _common(gap: Gap, level: Level) -> list[tuple[int, int]]:
    """Return the matches of a common subsequence, the longest if the lists are similar."""
    # tokens of one list only cannot match, and would count as differences
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
    """Return the matches of a shortest edit script, and its end.

    With more than _MOST_DIFFERENCES it ends with the furthest path.
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
                return _backtrack(trace, x, y), (x, y)
            if cost == _MOST_DIFFERENCES and x <= len(before) and y <= len(after):
                best = max(best, (x, y), key=sum)
    return _backtrack(trace, *best), best


def _start(ends: dict[int, int], diagonal: int, cost: int) -> tuple[int, int]:
    """Return the entry point of a path into a diagonal, and its previous diagonal."""
    above, below = ends.get(diagonal + 1, -1), ends.get(diagonal - 1, -1)
    if diagonal == -cost or (diagonal != cost and below < above):
        return above, diagonal + 1
    return below + 1, diagonal - 1


def _backtrack(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    """Return the diagonal moves of the path that ends at (x, y), first to last."""
    matched: list[tuple[int, int]] = []
    for cost in range(len(trace) - 1, -1, -1):
        start, came_from = _start(trace[cost], x - y, cost) if cost else (0, 0)
        matched += [(place, place - x + y) for place in range(x - 1, start - 1, -1)]
        if cost:
            x = trace[cost][came_from]
            y = x - came_from
    return matched[::-1]
