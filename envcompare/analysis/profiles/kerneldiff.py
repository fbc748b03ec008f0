"""The kernels of an arm against those of the reference: replaced, in one only, in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from envcompare.analysis.model.profiling import DiffKind, KernelDiff, KernelDiffRow
from envcompare.analysis.profiles.launchpairs import MOST_LAUNCHES, Pair, Side, pairs, sides
from envcompare.gpu.kernelnames import classify, is_truncated, shown
from envcompare.run_folder.profiles import RUN_KERNELS_ALONE, Profile

MOST_ROWS: Final = 20  # of one kind; the rest is summed
_KINDS: Final[tuple[DiffKind, ...]] = ("replaced", "only-reference", "only-arm", "both")
_MOST_OPERATORS: Final = 3
_DIGITS: Final = 6  # launches of a step that agree so far are the same

RowKey = tuple[DiffKind, object, object]


@dataclass(slots=True)
class _Sum:
    """All pairs of one row, added up; its rule is that of the first, the strictest."""

    kind: DiffKind
    first: Pair
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
    both = sides(before, after)
    sums = _sums(*both)
    counts = Counter(one.kind for one in sums)
    whole = _added(sums)
    factor = _launch_factor(before, after)
    is_of_program = not RUN_KERNELS_ALONE & {before.tool, after.tool}
    return KernelDiff(
        arm=names[1],
        source=source,
        scaling=_scaling(before, after, both, names),
        is_per_step=bool(before.steps and after.steps),
        identical_kernel_set=factor == 1,
        launch_factor=None if factor == 1 else factor,
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
    """Return how many times as often the same names in the same shapes were launched.

    It is 1 for one program. None stands for other kernels, and for another number of them in a
    step where steps are known; without steps one proportion of all is all that can be told.
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


def _sums(before: Side, after: Side) -> list[_Sum]:
    """Return what will be a row each, the largest change first."""
    sums: dict[RowKey, _Sum] = {}
    for pair in pairs(before, after):
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


def _key(pair: Pair, before: Side, after: Side) -> RowKey:
    before_key = None if pair.before is None else before.keys[pair.before]
    after_key = None if pair.after is None else after.keys[pair.after]
    if before_key is None or after_key is None:
        return ("only-arm" if before_key is None else "only-reference", before_key, after_key)
    return ("both" if before_key[0] == after_key[0] else "replaced", before_key, after_key)


def _row(total: _Sum, before: Side, after: Side) -> KernelDiffRow:
    reference_kernel = None if total.first.before is None else before.kernels[total.first.before]
    arm_kernel = None if total.first.after is None else after.kernels[total.first.after]
    named = reference_kernel or arm_kernel
    ops = list(total.ops)
    more = f" and {len(ops) - _MOST_OPERATORS} more" if len(ops) > _MOST_OPERATORS else ""
    return KernelDiffRow(
        kind=total.kind,
        rule=total.first.rule,
        kernel_class=classify(named.name) if named else "other",
        reference_name=shown(reference_kernel.name) if reference_kernel else "",
        arm_name=shown(arm_kernel.name) if arm_kernel else "",
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


def _more(sum_ns: float | None, side: Side, place: int | None, launches: float) -> float | None:
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


def _cut(sums: Sequence[_Sum], before: Side, after: Side) -> tuple[KernelDiffRow, ...]:
    """Return rows of one kind; a row is made only where it is shown, since names may be many."""
    has_rest = len(sums) > MOST_ROWS + 1
    shown = sums[:MOST_ROWS] if has_rest else sums
    rows = tuple(_row(one, before, after) for one in shown)
    return (*rows, _added(sums[MOST_ROWS:])) if has_rest else rows


def _added(sums: Sequence[_Sum]) -> KernelDiffRow:
    """Return all of them in one row."""
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
    before: Profile, after: Profile, both: tuple[Side, Side], names: tuple[str, str]
) -> str:
    if before.steps and after.steps:
        times = (
            "Times and launches are of one step: "
            f"the profiles hold {before.steps} in {names[0]} and {after.steps} in {names[1]}."
        )
    else:
        times = "The number of steps is not known: times and launches are of the whole profiles."
    lengths = [len(side.window) for side in both]
    if not all(lengths):
        return f"{times} The order of launches in a step is not known; names alone were paired."
    cut = f", the first {MOST_LAUNCHES} of them" if MOST_LAUNCHES in lengths else ""
    return (
        f"{times} Kernels were paired in the order of {lengths[0]} and {lengths[1]} launches{cut}."
    )


def _cautions(before: Profile, after: Profile, names: tuple[str, str]) -> Iterable[str]:
    if before.tool != after.tool:
        yield (
            f"{names[0]} was profiled with {before.tool} and {names[1]} with {after.tool}; they "
            "may write the name of one kernel differently."
        )
    if RUN_KERNELS_ALONE & {before.tool, after.tool}:
        yield (
            "Nsight Compute runs each kernel alone, by default with empty caches and a locked "
            "clock: its times are not those of the program."
        )
    for profile, name in zip((before, after), names, strict=True):
        if any(is_truncated(kernel.name) for kernel in profile.kernels):
            yield f"Names of kernels were cut in {name}; kernels with one beginning look the same."
        launches = sum(kernel.calls for kernel in profile.kernels)
        if profile.steps and launches % profile.steps:
            yield (
                f"The {launches} launches in {name} do not divide into {profile.steps} equal "
                "steps; a step has a mean number of them."
            )
