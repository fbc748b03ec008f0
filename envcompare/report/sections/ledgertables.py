"""Differences of profiles as tables: the ledger of a step, and the kernels of two arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.profiling import (
    DiffKind,
    KernelDiff,
    KernelDiffRow,
    Ledger,
    LedgerPart,
)
from envcompare.report.format.marks import Change, signed_bar
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    TimeScale,
    number_text,
)
from envcompare.report.wording.labels import short_name
from envcompare.report.wording.profilewords import (
    kernel_sentence,
    ledger_sentence,
    share_text,
    timing_sentences,
)
from envcompare.run_folder.profiles import Dim
from envcompare.text import visible_line

_ABSENT: Final = "absent"
_SHOWN_BOTH: Final = 3  # of the kernels in both, those that changed most
_SYMBOLS: Final[dict[DiffKind, str]] = {
    "replaced": "⇄",
    "only-reference": "−",
    "only-arm": "+",
    "both": "=",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One part: its time in both arms, the change, and what share of the whole change it is."""

    label: str
    reference: str
    arm: str
    change: str
    share: str
    bar: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """One arm against the reference."""

    arm: str
    whole: str
    unit: str
    sentence: str
    rows: tuple[LedgerRow, ...]
    total: LedgerRow
    notes: tuple[str, ...]


def ledger_view(ledger: Ledger, *, reference: str) -> LedgerView:
    """Return the ledger as a table of one unit."""
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    changes = [abs(part.change_ns) for part in ledger.parts]
    largest = float(max((*changes, abs(ledger.change_ns)), default=0))
    whole = LedgerPart(
        part="rest",
        label="whole",
        reference_ns=ledger.reference_ns,
        arm_ns=ledger.arm_ns,
        change_ns=ledger.change_ns,
        share=1.0 if ledger.change_ns else None,
    )
    return LedgerView(
        arm=ledger.arm,
        whole=ledger.whole,
        unit=scale.unit,
        sentence=ledger_sentence(ledger, reference=reference),
        rows=tuple(_ledger_row(part, scale, largest) for part in ledger.parts),
        total=_ledger_row(whole, scale, largest),
        notes=(
            f"{ledger.rule} Source: {ledger.source}.".strip(),
            *timing_sentences(ledger),
            *ledger.notes,
        ),
    )


def _ledger_row(part: LedgerPart, scale: TimeScale, largest: float) -> LedgerRow:
    return LedgerRow(
        label=part.label,
        reference=scale.number(part.reference_ns),
        arm=scale.number(part.arm_ns),
        change=scale.signed(part.change_ns),
        share=share_text(part),
        bar=signed_bar(part.change_ns, largest=largest),
    )


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
    rows = [_kernel_row(row, scale, largest=largest, names=names) for row in diff.rows]
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


def _kernel_row(
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
