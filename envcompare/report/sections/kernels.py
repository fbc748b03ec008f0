"""The kernels of two arms side by side: replaced, only in one of them, in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.profiling import DiffKind, KernelDiff, KernelDiffRow
from envcompare.report.charts.marks import Change, signed_bar
from envcompare.report.format.numbers import NOT_MEASURED, listed
from envcompare.report.format.units import TimeScale, number_text, time_text
from envcompare.report.wording.labels import short_name
from envcompare.run_folder.profiles import Dim
from envcompare.text import counted, counted_kernels, visible_line

_ABSENT: Final = "absent"
_SHOWN_BOTH: Final = 3  # of the kernels in both, those that changed most
_SYMBOLS: Final[dict[DiffKind, str]] = {
    "replaced": "⇄",
    "only-reference": "−",
    "only-arm": "+",
    "both": "=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One kernel, or one and what replaced it."""

    kind: DiffKind
    symbol: str
    word: str
    rule: str
    names: tuple[str, ...]
    shape: str
    reference: str
    arm: str
    change: str
    bar: Change | None
    launches: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelView:
    """The kernels of one arm against those of the reference."""

    arm: str
    sentence: str
    source: str
    unit: str
    per: str
    rows: tuple[KernelRow, ...]
    both: tuple[KernelRow, ...]
    cautions: tuple[str, ...]


def kernel_view(diff: KernelDiff, *, reference: str, most: int) -> KernelView:
    """Return the table; what is in both and changed least stands apart."""
    times = [ns for row in diff.rows for ns in (row.reference_ns, row.arm_ns) if ns is not None]
    scale = TimeScale.of(max(times, default=0.0))
    largest = max((abs(change) for row in diff.rows if (change := _change(row))), default=0.0)
    names = (reference, diff.arm)
    rows = [_row(row, scale, largest=largest, names=names) for row in diff.rows]
    changed = [row for row in rows if row.kind != "both"]
    both = [row for row in rows if row.kind == "both"]
    shown = 0 if diff.identical_kernel_set or diff.launch_factor else _SHOWN_BOTH
    return KernelView(
        arm=diff.arm,
        sentence=kernel_sentence(diff, reference=reference),
        source=f"{diff.source}. {diff.scaling}".strip(),
        unit=scale.unit,
        per="a step" if diff.is_per_step else "in the profile",
        rows=tuple(changed[:most] + both[:shown]),
        both=tuple(both[shown : shown + most]),
        cautions=diff.cautions,
    )


def kernel_sentence(diff: KernelDiff, *, reference: str) -> str:
    """Say whether both ran the same kernels, and how many were replaced."""
    if diff.identical_kernel_set:
        return (
            f"{diff.arm} and {reference} ran the same kernels: {_both(diff)} with "
            f"the same shapes, as often{_kernel_time(diff)}."
        )
    if diff.launch_factor:
        return (
            f"{diff.arm} and {reference} ran the same kernels in the same proportion, but "
            f"{_times(diff.launch_factor)} as many launches in {diff.arm}: another number of steps?"
        )
    changed = _changed(diff, reference=reference)
    parts = [f"{count} {word}" for count, word in changed]
    parts += [f"{diff.both} in both"] * bool(diff.both)
    parts += ["with other shapes or counts"] * (not changed)
    return (
        f"The kernels of {diff.arm} and {reference} differ: {', '.join(parts)}{_kernel_time(diff)}."
    )


def short_sentence(diff: KernelDiff, *, reference: str) -> str:
    """Return the same in fewer words: "the same 12 kernels as vm"."""
    if diff.identical_kernel_set:
        return f"the same {_both(diff)} as {reference}, as often"
    if diff.launch_factor:
        return (
            f"the same {_both(diff)} as {reference} in the same proportion, but "
            f"{_times(diff.launch_factor)} as many launches (another number of steps?)"
        )
    changed = _changed(diff, reference=reference)
    if not changed:
        return f"the {_both(diff)} of {reference}, with other shapes or counts"
    (first, word), *others = changed
    texts = [f"{counted(first, 'kernel')} {word}", *(f"{count} {word}" for count, word in others)]
    return listed(texts)


def _both(diff: KernelDiff) -> str:
    """Return how many kernels ran in both, in how many shapes."""
    return counted_kernels(diff.both_names or diff.both, diff.both)


def _changed(diff: KernelDiff, *, reference: str) -> list[tuple[int, str]]:
    """Return how many kernels were replaced or are in one arm alone; what is none is left out."""
    counts = (
        (diff.replaced, "replaced"),
        (diff.only_reference, f"only in {reference}"),
        (diff.only_arm, f"only in {diff.arm}"),
    )
    return [(count, word) for count, word in counts if count]


def _times(factor: float) -> str:
    return f"{number_text(factor)} times"


def _kernel_time(diff: KernelDiff) -> str:
    if diff.reference_ns is None or diff.arm_ns is None:
        return ""
    per = " a step" if diff.is_per_step else ""
    ends = f"{time_text(diff.reference_ns)} → {time_text(diff.arm_ns)}"
    return f"; kernel time{per} {ends}"


def _row(
    row: KernelDiffRow, scale: TimeScale, *, largest: float, names: tuple[str, str]
) -> KernelRow:
    change = _change(row)
    return KernelRow(
        kind=row.kind,
        symbol=_SYMBOLS[row.kind],
        word=_word(row, names),
        rule=f"by {row.rule}" if row.rule and row.kind == "replaced" else "",
        names=_names(row),
        shape=_shape(row),
        reference=_time(row, row.reference_ns, scale, is_there=row.kind != "only-arm"),
        arm=_time(row, row.arm_ns, scale, is_there=row.kind != "only-reference"),
        change=NOT_MEASURED if change is None else scale.signed(change),
        bar=None if change is None else signed_bar(change, largest=largest),
        launches=f"{number_text(row.reference_launches)} → {number_text(row.arm_launches)}",
    )


def _change(row: KernelDiffRow) -> float | None:
    """Return the change of time; a kernel that one side lacks takes no time there."""
    ends = (row.reference_ns, row.arm_ns)
    if ends == (None, None) or (row.kind in {"both", "replaced"} and None in ends):
        return None
    return (ends[1] or 0.0) - (ends[0] or 0.0)


def _word(row: KernelDiffRow, names: tuple[str, str]) -> str:
    match row.kind:
        case "only-reference":
            return f"only in {names[0]}"
        case "only-arm":
            return f"only in {names[1]}"
        case "both":
            return "in both"
        case _:
            return "replaced"


def _names(row: KernelDiffRow) -> tuple[str, ...]:
    if row.is_rest:
        return (f"all {row.rows_cut} others together",)
    found = dict.fromkeys((row.reference_name, row.arm_name))
    return tuple(short_name(name) for name in found if name)


def _shape(row: KernelDiffRow) -> str:
    """Return grid and block, of both sides where they differ, and the operator."""
    before = _launch(row.reference_grid, row.reference_block)
    after = _launch(row.arm_grid, row.arm_block)
    shapes = " → ".join(dict.fromkeys(text for text in (before, after) if text))
    return ", ".join(text for text in (shapes, visible_line(row.op)) if text)


def _launch(grid: Dim | None, block: Dim | None) -> str:
    texts = ("×".join(map(str, size)) for size in (grid, block) if size is not None)
    return " ".join(f"({text})" for text in texts)


def _time(row: KernelDiffRow, ns: float | None, scale: TimeScale, *, is_there: bool) -> str:
    if is_there or row.is_rest:
        return scale.number(ns)
    return _ABSENT
