"""Which kernels of two profiles stand for each other: by order of launch first, by name second."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from envcompare.analysis.model.profiling import MatchRule
from envcompare.analysis.profiles.launchorder import Level, align
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
        found = [one for one in self.launches.items() if self.side.keys[one[0]] in keys]
        for place, _ in found:
            del self.launches[place]
        return found


def sides(before: Profile, after: Profile) -> tuple[Side, Side]:
    """Return both profiles, each with the launches of one step where each step has the same."""
    windows = _windows(before, after)
    scales = (1.0 / before.steps, 1.0 / after.steps) if before.steps and after.steps else (1.0, 1.0)
    return (
        Side(before.kernels, scales[0], windows[0]),
        Side(after.kernels, scales[1], windows[1]),
    )


def _windows(before: Profile, after: Profile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    one, other = _step_of(before), _step_of(after)
    if one and other:
        return one[:MOST_LAUNCHES], other[:MOST_LAUNCHES]
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
    found, rests = _shared_out(before, after, counts)
    found += _by_name(*rests)
    return tuple(found)


def _ordered(before: Side, after: Side) -> Counter[tuple[int, int, MatchRule]]:
    has_operators = all(any(one.op for one in side.kernels) for side in (before, after))
    rules = _RULES_WITH_OPERATORS if has_operators else _RULES
    tokens = [_tokens(side, has_operators=has_operators) for side in (before, after)]
    levels = [
        Level(
            before=[one[place] for place in before.window].__getitem__,
            after=[other[place] for place in after.window].__getitem__,
        )
        for one, other in zip(*tokens, strict=True)
    ]
    matches = align((len(before.window), len(after.window)), levels)
    found: Counter[tuple[int, int, MatchRule]] = Counter()
    for match in matches:
        one, other = before.window[match.before], after.window[match.after]
        # a tool that tells no shape cannot have paired by it
        is_shapeless = match.level == 0 and before.kernels[one].grid is None
        found[one, other, rules[1 if is_shapeless else match.level]] += 1
    return found


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
    found, paired = [], (Counter[int](), Counter[int]())
    for (a, b, rule), count in counts.items():
        paired[0][a] += count
        paired[1][b] += count
        found.append(
            Pair(
                before=a,
                after=b,
                before_launches=before.launches(a) * count / seen[0][a],
                after_launches=after.launches(b) * count / seen[1][b],
                rule=rule,
            )
        )
    rests = _Rest(before), _Rest(after)
    for rest, own, used in zip(rests, seen, paired, strict=True):
        for place in range(len(rest.side.kernels)):
            share = 1 - used[place] / own[place] if own[place] else 1.0
            if share and rest.side.launches(place):
                rest.launches[place] = rest.side.launches(place) * share
    return found, rests


def _by_name(one: _Rest, other: _Rest) -> list[Pair]:
    """Pair by identity and shape, by identity, by family; what then is left is in one only."""
    found: list[Pair] = []
    shared = one.side.place_of.keys() & other.side.place_of.keys()
    for place, count in one.pop_all(shared):
        partner = other.side.place_of[one.side.keys[place]]
        found.append(Pair(before=place, after=partner, before_launches=count, rule="name"))
    for place, count in other.pop_all(shared):
        partner = one.side.place_of[other.side.keys[place]]
        found.append(Pair(before=partner, after=place, after_launches=count, rule="name"))
    found += _zipped(one, other, _identity)
    found += _zipped(one, other, _family)
    found += [Pair(before=a, after=None, before_launches=n) for a, n in one.launches.items()]
    found += [Pair(before=None, after=b, after_launches=n) for b, n in other.launches.items()]
    return found


def _identity(side: Side, place: int) -> str:
    return side.keys[place][0]


def _family(side: Side, place: int) -> str:
    return family(side.kernels[place].name)


def _zipped(one: _Rest, other: _Rest, key: Callable[[Side, int], str]) -> Iterator[Pair]:
    """Pair what is left under one key, in the order of the first launch."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place in sorted(other.launches, key=lambda place: _first(other.side, place), reverse=True):
        groups[key(other.side, place)].append(place)
    for place in sorted(one.launches, key=lambda place: _first(one.side, place)):
        if partners := groups[key(one.side, place)]:
            partner = partners.pop()
            yield Pair(
                before=place,
                after=partner,
                before_launches=one.launches.pop(place),
                after_launches=other.launches.pop(partner),
                rule="name",
            )


def _first(side: Side, place: int) -> tuple[float, int]:
    first = side.kernels[place].first
    return (float("inf") if first is None else float(first), place)
