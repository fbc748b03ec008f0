"""Compare the kernels of an arm with the reference: replaced, in one only, or in both.

Kernels are paired by launch order, or by name if the order is unknown. Two lists are aligned
exactly at first, then more loosely within the gaps: each level aligns the longest common
subsequence (Myers, An O(ND) Difference Algorithm and Its Variations, 1986) and passes the gaps
between its matches to the next level. After a fixed number of differences the best path is kept and
the alignment continues from its end, so the time grows linearly with the length of the lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

from envcompare.analysis.model.profiling import DiffKind, KernelDiff, KernelDiffRow, MatchRule
from envcompare.gpu.kernels import (
    classify,
    family,
    identity,
    is_nameless,
    is_truncated,
    shortened_name,
)
from envcompare.run_folder.profiles import RUN_KERNELS_ALONE, Dim, Kernel, Profile

_MOST_DIFFERENCES: Final = 300  # insertions and deletions before a path is kept for good

Level = tuple[Sequence[Hashable], Sequence[Hashable]]  # the token of each position in both lists
_Gap = tuple[range, range]
MOST_ROWS: Final = 20  # per kind; the rest is summed
_KINDS: Final[tuple[DiffKind, ...]] = ("replaced", "only-reference", "only-arm", "both")
_MOST_OPERATORS: Final = 3
_DIGITS: Final = 6  # launches per step that agree in so many digits are equal
_MOST_LAUNCHES: Final = 10_000  # launches that are aligned; the rest is split in proportion
_Shape = tuple[Dim | None, Dim | None]
_Key = tuple[str, _Shape]
_RULES_WITH_OPERATORS: Final[tuple[MatchRule, ...]] = (
    "operator, shape and launch order", "operator, name and launch order",
    "operator and launch order", "operator and launch order",
)  # fmt: skip
_RULES: Final[tuple[MatchRule, ...]] = (
    "shape and launch order", "name and launch order", "kind and launch order",
)  # fmt: skip
_RowKey = tuple[DiffKind, object, object]


class Match(NamedTuple):
    """A pair of positions, one in each list, and the level that paired them."""

    before: int
    after: int
    level: int


def align(levels: Sequence[Level]) -> Iterator[Match]:
    """Yield pairs of positions; unpaired positions are in one list only.

    Matches never cross, and no position occurs twice.
    """
    gaps: list[_Gap] = [(range(len(levels[0][0])), range(len(levels[0][1])))]
    for number, level in enumerate(levels):
        following: list[_Gap] = []
        for gap in gaps:
            matched = _common(gap, level)
            yield from (Match(before, after, number) for before, after in matched)
            following += _between(gap, matched)
        gaps = following


def _between(gap: _Gap, matched: list[tuple[int, int]]) -> Iterator[_Gap]:
    """Yield the gaps between matches that are non-empty in both lists."""
    before, after = gap[0].start, gap[1].start
    for a, b in (*matched, (gap[0].stop, gap[1].stop)):
        if before < a and after < b:
            yield range(before, a), range(after, b)
        before, after = a + 1, b + 1


def _common(gap: _Gap, level: Level) -> list[tuple[int, int]]:
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


@dataclass(frozen=True)
class _Side:
    """The kernels of one profile, and its launches that are aligned by order."""

    kernels: tuple[Kernel, ...]
    scale: float  # launches of a step ÷ calls of the profile
    window: tuple[int, ...] = ()

    @cached_property
    def keys(self) -> tuple[_Key, ...]:
        """Return identity and shape of each kernel."""
        return tuple(
            (identity(kernel.name), (kernel.grid, kernel.block)) for kernel in self.kernels
        )

    @cached_property
    def place_of(self) -> dict[_Key, int]:
        """Return a kernel for each identity and shape."""
        return {key: place for place, key in enumerate(self.keys)}

    def launches(self, place: int) -> float:
        """Return the launches of a kernel, per step if the number of steps is known."""
        return self.kernels[place].calls * self.scale

    def time_ns(self, place: int, launches: float) -> float | None:
        """Return the time in ns of this number of average launches; None without times."""
        kernel = self.kernels[place]
        if kernel.total_ns is None or not kernel.calls:
            return None
        return kernel.total_ns / kernel.calls * launches


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Launches of one kernel paired with launches of another; None if unpaired."""

    before: int | None
    after: int | None
    before_launches: float = 0.0
    after_launches: float = 0.0
    rule: MatchRule | None = None


@dataclass(slots=True)
class _Sum:
    """All pairs of one row, summed; the rule is that of the first and strictest."""

    kind: DiffKind
    first: _Pair
    before_launches: float = 0.0
    after_launches: float = 0.0
    before_ns: float | None = None
    after_ns: float | None = None
    ops: dict[str, None] = field(default_factory=dict)


def kernel_diff(
    before: Profile, after: Profile, *, names: tuple[str, str], source: str
) -> KernelDiff:
    """Compare the kernels of two profiles; `names` are those of the reference and of the arm.

    Each launch is in exactly one row, so that the rows add up to the kernel time of both.
    """
    both = _sides(before, after)
    sums = _sums(*both)
    counts = Counter(one.kind for one in sums)
    whole = _total_row(sums)
    every = (*before.kernels, *after.kernels)
    nameless = sum(kernel.calls for kernel in every if is_nameless(kernel.name))
    factor = None if nameless else _launch_factor(before, after)
    is_of_program = not RUN_KERNELS_ALONE & {before.tool, after.tool}
    return KernelDiff(
        arm=names[1],
        source=source,
        scaling=_scaling(before, after, both, names),
        is_per_step=bool(before.steps and after.steps),
        identical_kernel_set=factor == 1,
        launch_factor=None if factor == 1 else factor,
        nameless=nameless,
        replaced=counts["replaced"],
        only_reference=counts["only-reference"],
        only_arm=counts["only-arm"],
        both=counts["both"],
        both_names=len(
            {
                both[0].keys[one.first.before][0]
                for one in sums
                if one.kind == "both" and one.first.before is not None
            }
        ),
        reference_ns=whole.reference_ns if is_of_program else None,
        arm_ns=whole.arm_ns if is_of_program else None,
        reference_launches=whole.reference_launches,
        arm_launches=whole.arm_launches,
        rows=tuple(
            row for kind in _KINDS for row in _cut([one for one in sums if one.kind == kind], *both)
        ),
        cautions=tuple(_cautions(before, after, names)),
    )


def _launch_factor(before: Profile, after: Profile) -> float | None:
    """Return the common ratio of launches, if names and shapes are the same.

    It is 1 for the same program. None means other kernels, or different launches per step. Without
    known steps, any common ratio is returned.
    """
    first, second = _launches(before), _launches(after)
    if not first or first.keys() != second.keys():
        return None
    has_steps = bool(before.steps and after.steps)
    scale = (before.steps or 1) / (after.steps or 1) if has_steps else 1.0
    ratios = {round(second[key] * scale / first[key], _DIGITS) for key in first}
    factor = next(iter(ratios))
    return factor if len(ratios) == 1 and (factor == 1 or not has_steps) else None


def _launches(profile: Profile) -> Counter[tuple[object, ...]]:
    counts: Counter[tuple[object, ...]] = Counter()
    for kernel in profile.kernels:
        if kernel.calls:
            counts[kernel.name, kernel.grid, kernel.block] += kernel.calls
    return counts


def _sums(before: _Side, after: _Side) -> list[_Sum]:
    """Return the sum for each row, largest change first."""
    sums: dict[_RowKey, _Sum] = {}
    # every launch of both sides is exactly once in a pair or alone
    paired, rests = _distribute(before, after, _ordered(before, after))
    for pair in (*paired, *_by_name(*rests)):
        key = _key(pair, before, after)
        total = sums.setdefault(key, _Sum(key[0], pair))
        total.before_launches += pair.before_launches
        total.after_launches += pair.after_launches
        for side, place in ((before, pair.before), (after, pair.after)):
            if place is not None and side.kernels[place].op:
                total.ops[side.kernels[place].op] = None
        total.before_ns = _more(total.before_ns, before, pair.before, pair.before_launches)
        total.after_ns = _more(total.after_ns, after, pair.after, pair.after_launches)
    return sorted(sums.values(), key=_weight)


def _key(pair: _Pair, before: _Side, after: _Side) -> _RowKey:
    before_key = None if pair.before is None else before.keys[pair.before]
    after_key = None if pair.after is None else after.keys[pair.after]
    if before_key is None or after_key is None:
        return ("only-arm" if before_key is None else "only-reference", before_key, after_key)
    return ("both" if before_key[0] == after_key[0] else "replaced", before_key, after_key)


def _row(total: _Sum, before: _Side, after: _Side) -> KernelDiffRow:
    reference_kernel = None if total.first.before is None else before.kernels[total.first.before]
    arm_kernel = None if total.first.after is None else after.kernels[total.first.after]
    named = reference_kernel or arm_kernel
    ops = list(total.ops)
    more = f" and {len(ops) - _MOST_OPERATORS} more" if len(ops) > _MOST_OPERATORS else ""
    return KernelDiffRow(
        kind=total.kind,
        rule=total.first.rule,
        kernel_class=classify(named.name) if named else "other",
        reference_name=shortened_name(reference_kernel.name) if reference_kernel else "",
        arm_name=shortened_name(arm_kernel.name) if arm_kernel else "",
        op=", ".join(ops[:_MOST_OPERATORS]) + more,
        reference_ns=total.before_ns,
        arm_ns=total.after_ns,
        reference_launches=total.before_launches,
        arm_launches=total.after_launches,
        reference_grid=reference_kernel.grid if reference_kernel else None,
        reference_block=reference_kernel.block if reference_kernel else None,
        arm_grid=arm_kernel.grid if arm_kernel else None,
        arm_block=arm_kernel.block if arm_kernel else None,
    )


def _more(sum_ns: float | None, side: _Side, place: int | None, launches: float) -> float | None:
    added_ns = None if place is None else side.time_ns(place, launches)
    return added_ns if sum_ns is None else sum_ns + (added_ns or 0.0)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _weight(total: _Sum) -> tuple[float, float]:
    """Order by change of time, then by time, then by launches: the largest first."""
    before_ns, after_ns = total.before_ns or 0.0, total.after_ns or 0.0
    return (
        -abs(after_ns - before_ns),
        -max(before_ns, after_ns, total.before_launches, total.after_launches),
    )


def _cut(sums: Sequence[_Sum], before: _Side, after: _Side) -> tuple[KernelDiffRow, ...]:
    """Return the largest rows of one kind, and the rest in one row."""
    has_rest = len(sums) > MOST_ROWS + 1
    kept = sums[:MOST_ROWS] if has_rest else sums
    rows = tuple(_row(one, before, after) for one in kept)
    return (*rows, _total_row(sums[MOST_ROWS:])) if has_rest else rows


def _total_row(sums: Sequence[_Sum]) -> KernelDiffRow:
    return KernelDiffRow(
        kind=sums[0].kind if sums else "both",
        kernel_class="other",
        reference_ns=_total(one.before_ns for one in sums),
        arm_ns=_total(one.after_ns for one in sums),
        reference_launches=sum(one.before_launches for one in sums),
        arm_launches=sum(one.after_launches for one in sums),
        is_rest=True,
        rows_cut=len(sums),
    )


def _scaling(
    before: Profile, after: Profile, both: tuple[_Side, _Side], names: tuple[str, str]
) -> str:
    if before.steps and after.steps:
        times = (
            "Times and launches are for one step: "
            f"the profiles have {before.steps} in {names[0]} and {after.steps} in {names[1]}."
        )
    else:
        times = "Times and launches are for whole profiles: the number of steps is unknown."
    lengths = [len(side.window) for side in both]
    if not all(lengths):
        return f"{times} The launch order within a step is unknown; kernels were paired by name."
    cut = f", the first {_MOST_LAUNCHES} of them" if _MOST_LAUNCHES in lengths else ""
    return (
        f"{times} Kernels were paired by the order of {lengths[0]} and {lengths[1]} launches{cut}."
    )


def _cautions(before: Profile, after: Profile, names: tuple[str, str]) -> Iterable[str]:
    if before.tool != after.tool:
        yield (
            f"{names[0]} was profiled with {before.tool} and {names[1]} with {after.tool}, which "
            "may name the same kernel differently."
        )
    if RUN_KERNELS_ALONE & {before.tool, after.tool}:
        yield (
            "Nsight Compute runs each kernel alone, so its times differ from those of the program."
        )
    for profile, name in zip((before, after), names, strict=True):
        if any(is_truncated(kernel.name) for kernel in profile.kernels):
            yield f"Kernel names were cut in {name}; kernels with a common prefix look the same."
        launches = sum(kernel.calls for kernel in profile.kernels)
        if profile.steps and launches % profile.steps:
            yield (
                f"The {launches} launches in {name} do not divide evenly into {profile.steps} "
                "steps: means are given."
            )


@dataclass(slots=True)
class _Rest:
    """Launches of one side not paired by order, by index of their kernel."""

    side: _Side
    launches: dict[int, float] = field(default_factory=dict)

    def pop_all(self, keys: Container[_Key]) -> list[tuple[int, float]]:
        popped = [one for one in self.launches.items() if self.side.keys[one[0]] in keys]
        for place, _ in popped:
            del self.launches[place]
        return popped


def _sides(before: Profile, after: Profile) -> tuple[_Side, _Side]:
    """Return both profiles, each with the launches of one step if all steps are alike."""
    windows = _step_of(before), _step_of(after)
    if not all(windows):
        is_alike = before.steps == after.steps
        windows = (before.sequence, after.sequence) if is_alike else ((), ())
    scales = (1.0 / before.steps, 1.0 / after.steps) if before.steps and after.steps else (1.0, 1.0)
    return (
        _Side(before.kernels, scales[0], windows[0][:_MOST_LAUNCHES]),
        _Side(after.kernels, scales[1], windows[1][:_MOST_LAUNCHES]),
    )


def _step_of(profile: Profile) -> tuple[int, ...]:
    """Return the launches of the last complete step; empty if steps are uneven."""
    launches = sum(kernel.calls for kernel in profile.kernels)
    if not profile.steps or not launches or launches % profile.steps:
        return ()
    length = launches // profile.steps
    end = len(profile.sequence) // length * length
    return profile.sequence[end - length : end] if end else ()


def _ordered(before: _Side, after: _Side) -> Counter[tuple[int, int, MatchRule]]:
    has_operators = all(any(kernel.op for kernel in side.kernels) for side in (before, after))
    rules = _RULES_WITH_OPERATORS if has_operators else _RULES
    tokens = [_tokens(side, has_operators=has_operators) for side in (before, after)]
    levels = [
        ([first[place] for place in before.window], [second[place] for place in after.window])
        for first, second in zip(*tokens, strict=True)
    ]
    counts: Counter[tuple[int, int, MatchRule]] = Counter()
    for match in align(levels):
        reference_place, arm_place = before.window[match.before], after.window[match.after]
        # without a recorded shape, the match is by name
        is_shapeless = match.level == 0 and before.kernels[reference_place].grid is None
        counts[reference_place, arm_place, rules[1 if is_shapeless else match.level]] += 1
    return counts


def _tokens(side: _Side, *, has_operators: bool) -> list[list[tuple[object, ...]]]:
    """Return the token of each kernel on each level, strictest first."""
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


def _distribute(
    before: _Side, after: _Side, counts: Counter[tuple[int, int, MatchRule]]
) -> tuple[list[_Pair], tuple[_Rest, _Rest]]:
    """Divide each kernel's launches among its partners in the proportion of the window."""
    seen = Counter(before.window), Counter(after.window)
    shared, paired = [], (Counter[int](), Counter[int]())
    for (a, b, rule), count in counts.items():
        paired[0][a] += count
        paired[1][b] += count
        shared.append(
            _Pair(
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


def _by_name(before: _Rest, after: _Rest) -> list[_Pair]:
    """Pair by identity and shape, by identity, then by family; the rest stays unpaired."""
    matched: list[_Pair] = []
    shared = before.side.place_of.keys() & after.side.place_of.keys()
    for place, count in before.pop_all(shared):
        partner = after.side.place_of[before.side.keys[place]]
        matched.append(_Pair(before=place, after=partner, before_launches=count, rule="name"))
    for place, count in after.pop_all(shared):
        partner = before.side.place_of[after.side.keys[place]]
        matched.append(_Pair(before=partner, after=place, after_launches=count, rule="name"))
    matched += _zipped(before, after, lambda side, place: side.keys[place][0])
    matched += _zipped(before, after, lambda side, place: family(side.kernels[place].name))
    matched += [_Pair(before=a, after=None, before_launches=n) for a, n in before.launches.items()]
    matched += [_Pair(before=None, after=b, after_launches=n) for b, n in after.launches.items()]
    return matched


def _zipped(before: _Rest, after: _Rest, key: Callable[[_Side, int], str]) -> Iterator[_Pair]:
    """Pair remaining kernels with equal keys, in order of first launch."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place in sorted(after.launches, key=lambda place: _first(after.side, place), reverse=True):
        groups[key(after.side, place)].append(place)
    for place in sorted(before.launches, key=lambda place: _first(before.side, place)):
        if partners := groups[key(before.side, place)]:
            partner = partners.pop()
            yield _Pair(
                before=place,
                after=partner,
                before_launches=before.launches.pop(place),
                after_launches=after.launches.pop(partner),
                rule="name",
            )


def _first(side: _Side, place: int) -> tuple[float, int]:
    first = side.kernels[place].first
    return (float("inf") if first is None else float(first), place)
