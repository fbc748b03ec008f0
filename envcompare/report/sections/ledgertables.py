"""Differences of profiles as tables: the ledger of a step, and the kernels of two arms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from envcompare.analysis.model.profiling import DiffKind, KernelDiff, KernelDiffRow, Ledger
from envcompare.report.format.blocks import (
    Block,
    Column,
    Fold,
    Items,
    Line,
    Row,
    Span,
    Table,
    texts,
)
from envcompare.report.format.marks import signed_bar
from envcompare.report.format.numbers import NOT_MEASURED, TimeScale, number_text
from envcompare.report.wording.labels import short_name
from envcompare.report.wording.profilewords import (
    kernel_sentence,
    part_label,
    share_text,
    timing_sentences,
)
from envcompare.run_folder.profiles import Dim
from envcompare.text import counted, visible, visible_line

_ABSENT: Final = "absent"
_SHOWN_BOTH: Final = 3  # of the kernels in both, those that changed most
_SYMBOLS: Final[dict[DiffKind, str]] = {
    "replaced": "⇄",
    "only-reference": "−",
    "only-arm": "+",
    "both": "=",
}


def ledger_blocks(ledger: Ledger, *, reference: str, label: str) -> tuple[Block, ...]:
    """Return the ledger as a table of one unit, and what is to be known of it."""
    rule = f"{ledger.rule} Source: {ledger.source}.".strip()
    notes = (rule, *timing_sentences(ledger), *ledger.notes)
    return ledger_table(ledger, reference=reference, label=label), Items(items=notes, style="small")


def ledger_table(ledger: Ledger, *, reference: str, label: str) -> Table:
    """Return a row for each part, and the whole below them."""
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    changes = [abs(part.change_ns) for part in ledger.parts]
    largest = float(max((*changes, abs(ledger.change_ns)), default=0))

    def row(name: str, times: tuple[int, int, int], share: float | None) -> Row:
        before, after, change = times
        bar = Line(change=signed_bar(change, largest=largest))
        moved = Line(strong=scale.signed(change))
        numbers = (scale.number(before), scale.number(after), moved)
        return Row(cells=(name, *numbers, bar, share_text(share)))

    whole = (ledger.reference_ns, ledger.arm_ns, ledger.change_ns)
    return Table(
        label=f"Difference ledger of {ledger.arm} in {label}",
        caption=f"The whole is {ledger.whole}, in {scale.unit}; the parts add up to it",
        style="fit",
        columns=(
            Column(head="Part", is_row_head=True),
            *(Column(head=visible(head), kind="number") for head in (reference, ledger.arm)),
            Column(head="Change", kind="number"),
            Column(kind="bar"),
            Column(head="Share", kind="number"),
        ),
        rows=tuple(
            row(
                part_label(part.part),
                (part.reference_ns, part.arm_ns, part.change_ns),
                part.share,
            )
            for part in ledger.parts
        ),
        foot=(row("whole", whole, 1.0 if ledger.change_ns else None),),
    )


def kernel_blocks(diff: KernelDiff, *, reference: str, label: str, most: int) -> tuple[Block, ...]:
    """Return what differs, and apart from it what is in both and changed least."""
    changed = [row for row in diff.rows if row.kind != "both"]
    both = [row for row in diff.rows if row.kind == "both"]
    shown = 0 if diff.identical_kernel_set or diff.launch_factor else _SHOWN_BOTH
    differing = (*changed[:most], *both[:shown])
    rest = both[shown : shown + most]
    source = Span(text=f"{diff.source}. {diff.scaling}".strip(), style="small")
    sentence = kernel_sentence(diff, reference=reference)
    blocks: list[Block] = [
        Line(text=sentence, after=(source,)),
        *texts(*(f"⚠ {text}" for text in diff.cautions), style="small"),
    ]
    if differing:
        name = f"Kernels that differ, {diff.arm}, {label}"
        blocks.append(kernel_table(diff, differing, reference=reference, label=name))
    if rest:
        name = f"Kernels in both, {diff.arm}, {label}"
        table = kernel_table(diff, rest, reference=reference, label=name)
        summary = f"{counted(len(rest), 'kernel')} in both"
        blocks.append(Fold(summary=summary, blocks=(table,)))
    return tuple(blocks)


def kernel_table(
    diff: KernelDiff, rows: Iterable[KernelDiffRow], *, reference: str, label: str
) -> Table:
    """Return these rows of a difference, on the scale of all of its rows."""
    times = [ns for row in diff.rows for ns in (row.reference_ns, row.arm_ns) if ns is not None]
    scale = TimeScale.of(max(times, default=0.0))
    largest = max((abs(change) for row in diff.rows if (change := _change(row))), default=0.0)
    per = "per step" if diff.is_per_step else "in the profile"
    return Table(
        label=label,
        caption=f"Time {per} in {scale.unit}, launches {per}",
        columns=(
            Column(head="Kind"),
            Column(head="Kernel", kind="kernel", is_row_head=True),
            *(Column(head=visible(head), kind="number") for head in (reference, diff.arm)),
            Column(head="Change", kind="number"),
            Column(kind="bar"),
            Column(head="Launches", kind="figure"),
        ),
        rows=tuple(
            _kernel_row(row, scale, largest=largest, names=(reference, diff.arm)) for row in rows
        ),
    )


def _kernel_row(
    row: KernelDiffRow, scale: TimeScale, *, largest: float, names: tuple[str, str]
) -> Row:
    change = _change(row)
    style = "badge" if row.kind == "both" else "badge moved"
    badge = Span(text=f"{_SYMBOLS[row.kind]} {_word(row, names)}", style=style)
    rule = f"by {row.rule}" if row.rule and row.kind == "replaced" else ""
    return Row(
        cells=(
            Line(before=(badge,), below=(rule,)),
            Line(codes=_names(row), below=(_shape(row),)),
            _time(row, row.reference_ns, scale, is_there=row.kind != "only-arm"),
            _time(row, row.arm_ns, scale, is_there=row.kind != "only-reference"),
            Line(strong=NOT_MEASURED if change is None else scale.signed(change)),
            Line(change=None if change is None else signed_bar(change, largest=largest)),
            f"{number_text(row.reference_launches)} → {number_text(row.arm_launches)}",
        )
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
    names = dict.fromkeys((row.reference_name, row.arm_name))
    return tuple(short_name(name) for name in names if name)


def _shape(row: KernelDiffRow) -> str:
    """Return grid and block, of both sides where they differ, and the operator."""
    before = _launch(row.reference_grid, row.reference_block)
    after = _launch(row.arm_grid, row.arm_block)
    shapes = " → ".join(dict.fromkeys(text for text in (before, after) if text))
    return ", ".join(text for text in (shapes, visible_line(row.op)) if text)


def _launch(grid: Dim | None, block: Dim | None) -> str:
    sizes = ("×".join(map(str, size)) for size in (grid, block) if size is not None)
    return " ".join(f"({size})" for size in sizes)


def _time(row: KernelDiffRow, ns: float | None, scale: TimeScale, *, is_there: bool) -> str:
    return scale.number(ns) if is_there or row.is_rest else _ABSENT
