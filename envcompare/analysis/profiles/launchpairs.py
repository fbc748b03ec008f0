"""Which kernels of two profiles stand for each other: by order of launch first, by name second.

Two lists of launches are paired by their order: exact first, then ever more loosely in the gaps.
Each level aligns the longest common subsequence (Myers, An O(ND) Difference Algorithm and Its
Variations, 1986) and hands what lies between its matches to the next level. After so many
differences the best path so far is kept and the alignment goes on from its end, so that lists of
any kind take a time that grows with their length.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from envcompare.analysis.model.profiling import MatchRule
from envcompare.gpu.kernelnames import classify, family, identity
from envcompare.run_folder.profiles import Dim, Kernel, Profile

MOST_LAUNCHES: Final = 10_000  # that are put in order; the rest keeps their proportions

Shape = tuple[Dim | None, Dim | None]
Key = tuple[str, Shape]

_RULES_WITH_OPERATORS: Final[tuple[MatchRule, ...]] = (
    "operator, shape and launch order", "operator, name and launch order",
    "operator and launch order", "operator and launch order",
)  # fmt: skip
_RULES: Final[tuple[MatchRule, ...]] = (
    "shape and launch order", "name and launch order", "kind and launch order",
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """The kernels of one profile, and those launches of it that are put in order."""

    kernels: tuple[Kernel, ...]
    scale: float  # launches of a step ÷ calls of the profile
    window: tuple[int, ...] = ()

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Return identity and shape of each kernel."""
        return tuple((identity(one.name), (one.grid, one.block)) for one in self.kernels)

    @cached_property
    def place_of(self) -> dict[Key, int]:
        """Return a kernel for each identity and shape."""
        return {key: place for place, key in enumerate(self.keys)}

    def launches(self, place: int) -> float:
        """Return how often a kernel is launched, in a step where its number is known."""
        return self.kernels[place].calls * self.scale

    def time_ns(self, place: int, launches: float) -> float | None:
        """Return the time of so many average launches; None where the tool took none."""
        kernel = self.kernels[place]
        if kernel.total_ns is None or not kernel.calls:
            return None
        return kernel.total_ns / kernel.calls * launches


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """So many launches of one kernel stand for so many of another; None: for nothing."""

    before: int | None
    after: int | None
    before_launches: float = 0.0
    after_launches: float = 0.0
    rule: MatchRule | None = None


@dataclass(slots=True)
class _Rest:
    """Launches of one side that no order paired, by place of their kernel."""

    side: Side
    launches: dict[int, float] = field(default_factory=dict)

    def pop_all(self, keys: Container[Key]) -> list[tuple[int, float]]:
        popped = [one for one in self.launches.items() if self.side.keys[one[0]] in keys]
        for place, _ in popped:
            del self.launches[place]
        return popped


def sides(before: Profile, after: Profile) -> tuple[Side, Side]:
    """Return both profiles, each with the launches of one step where each step has the same."""
    windows = _windows(before, after)
    scales = (1.0 / before.steps, 1.0 / after.steps) if before.steps and after.steps else (1.0, 1.0)
    return (
        Side(before.kernels, scales[0], windows[0]),
        Side(after.kernels, scales[1], windows[1]),
    )


def _windows(before: Profile, after: Profile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    first, second = _step_of(before), _step_of(after)
    if first and second:
        return first[:MOST_LAUNCHES], second[:MOST_LAUNCHES]
    if before.steps == after.steps:
        return before.sequence[:MOST_LAUNCHES], after.sequence[:MOST_LAUNCHES]
    return (), ()


def _step_of(profile: Profile) -> tuple[int, ...]:
    """Return the launches of one step, the last that is whole; none where steps are uneven."""
    launches = sum(kernel.calls for kernel in profile.kernels)
    if not profile.steps or not launches or launches % profile.steps:
        return ()
    length = launches // profile.steps
    end = len(profile.sequence) // length * length
    return profile.sequence[end - length : end] if end else ()


def pairs(before: Side, after: Side) -> tuple[Pair, ...]:
    """Return every launch of both sides exactly once, in a pair or alone."""
    counts = _ordered(before, after)
    paired, rests = _shared_out(before, after, counts)
    paired += _by_name(*rests)
    return tuple(paired)


def _ordered(before: Side, after: Side) -> Counter[tuple[int, int, MatchRule]]:
    has_operators = all(any(one.op for one in side.kernels) for side in (before, after))
    rules = _RULES_WITH_OPERATORS if has_operators else _RULES
    tokens = [_tokens(side, has_operators=has_operators) for side in (before, after)]
    levels = [
        ([first[place] for place in before.window], [second[place] for place in after.window])
        for first, second in zip(*tokens, strict=True)
    ]
    counts: Counter[tuple[int, int, MatchRule]] = Counter()
    for match in align(levels):
        reference_place, arm_place = before.window[match.before], after.window[match.after]
        # a tool that tells no shape cannot have paired by it
        is_shapeless = match.level == 0 and before.kernels[reference_place].grid is None
        counts[reference_place, arm_place, rules[1 if is_shapeless else match.level]] += 1
    return counts


def _tokens(side: Side, *, has_operators: bool) -> list[list[tuple[object, ...]]]:
    """Return what each kernel is called on each level, strictest first."""
    ops = [kernel.op if has_operators else "" for kernel in side.kernels]
    names = [kernel.name for kernel in side.kernels]
    levels: list[list[tuple[object, ...]]] = [
        [(op, *key) for op, key in zip(ops, side.keys, strict=True)],
        [(op, family(name)) for op, name in zip(ops, names, strict=True)],
        [(op, classify(name)) for op, name in zip(ops, names, strict=True)],
    ]
    if has_operators:
        levels.append([(op or name,) for op, name in zip(ops, names, strict=True)])
    return levels


def _shared_out(
    before: Side, after: Side, counts: Counter[tuple[int, int, MatchRule]]
) -> tuple[list[Pair], tuple[_Rest, _Rest]]:
    """Give each kernel's launches to its partners as its launches in the window went to them."""
    seen = Counter(before.window), Counter(after.window)
    shared, paired = [], (Counter[int](), Counter[int]())
    for (a, b, rule), count in counts.items():
        paired[0][a] += count
        paired[1][b] += count
        shared.append(
            Pair(
                before=a,
                after=b,
                before_launches=before.launches(a) * count / seen[0][a],
                after_launches=after.launches(b) * count / seen[1][b],
                rule=rule,
            )
        )
    rests = _Rest(before), _Rest(after)
    for rest, in_window, used in zip(rests, seen, paired, strict=True):
        for place in range(len(rest.side.kernels)):
            share = 1 - used[place] / in_window[place] if in_window[place] else 1.0
            if share and rest.side.launches(place):
                rest.launches[place] = rest.side.launches(place) * share
    return shared, rests


def _by_name(before: _Rest, after: _Rest) -> list[Pair]:
    """Pair by identity and shape, by identity, by family; what then is left is in one only."""
    matched: list[Pair] = []
    shared = before.side.place_of.keys() & after.side.place_of.keys()
    for place, count in before.pop_all(shared):
        partner = after.side.place_of[before.side.keys[place]]
        matched.append(Pair(before=place, after=partner, before_launches=count, rule="name"))
    for place, count in after.pop_all(shared):
        partner = before.side.place_of[after.side.keys[place]]
        matched.append(Pair(before=partner, after=place, after_launches=count, rule="name"))
    matched += _zipped(before, after, lambda side, place: side.keys[place][0])
    matched += _zipped(before, after, lambda side, place: family(side.kernels[place].name))
    matched += [Pair(before=a, after=None, before_launches=n) for a, n in before.launches.items()]
    matched += [Pair(before=None, after=b, after_launches=n) for b, n in after.launches.items()]
    return matched


def _zipped(before: _Rest, after: _Rest, key: Callable[[Side, int], str]) -> Iterator[Pair]:
    """Pair what is left under one key, in the order of the first launch."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place in sorted(after.launches, key=lambda place: _first(after.side, place), reverse=True):
        groups[key(after.side, place)].append(place)
    for place in sorted(before.launches, key=lambda place: _first(before.side, place)):
        if partners := groups[key(before.side, place)]:
            partner = partners.pop()
            yield Pair(
                before=place,
                after=partner,
                before_launches=before.launches.pop(place),
                after_launches=after.launches.pop(partner),
                rule="name",
            )


def _first(side: Side, place: int) -> tuple[float, int]:
    first = side.kernels[place].first
    return (float("inf") if first is None else float(first), place)


_MOST_DIFFERENCES = 300  # insertions and deletions before a path is kept for good

Level = tuple[Sequence[Hashable], Sequence[Hashable]]  # what each launch of both lists is called
Gap = tuple[range, range]


class Match(NamedTuple):
    """Two launches that were paired, by place in each list, and the level that paired them."""

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
