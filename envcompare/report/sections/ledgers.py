"""The difference ledger: where the change of a step comes from, in parts that add up to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.profiling import Basis, Ledger, LedgerPart
from envcompare.report.charts.marks import Change, signed_bar
from envcompare.report.format.numbers import MINUS, listed
from envcompare.report.format.units import TimeScale, time_text

_LARGEST: Final = 3  # parts that a sentence names
_LEAST_SHARE: Final = 0.05  # of the change; smaller parts are named in the table alone
_WHERE: Final[dict[Basis, str]] = {"gpu-trace": "on the GPU", "timing": "on the clock"}


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
        sentence=_sentence(ledger, scale, reference),
        rows=tuple(_row(part, scale, largest) for part in ledger.parts),
        total=_row(whole, scale, largest),
        notes=(f"{ledger.rule} Source: {ledger.source}.".strip(), *_timing(ledger), *ledger.notes),
    )


def largest_parts(ledger: Ledger) -> str:
    """Return "+1.93 ms a step on the GPU: idle +1.55 ms (80 %) and memcpy +120 µs (6 %)".

    Shares are left out where parts outweigh the whole in both directions.
    """
    ordered = sorted(ledger.parts, key=lambda part: -abs(part.change_ns))
    named = [part for part in ordered if abs(part.share or 0.0) >= _LEAST_SHARE][:_LARGEST]
    has_shares = all(-_LEAST_SHARE < (part.share or 0.0) <= 1 for part in named)
    texts = [
        f"{_short(part.label)} {_signed(part.change_ns)}{f' ({_share(part)})' * has_shares}"
        for part in named
    ]
    change = f"{_signed(ledger.change_ns)}{_a_piece(ledger)} {_WHERE[ledger.basis]}"
    return f"{change}: {listed(texts)}" if texts else change


def _sentence(ledger: Ledger, scale: TimeScale, reference: str) -> str:
    ends = (scale.number(ledger.reference_ns), scale.number(ledger.arm_ns))
    change = scale.signed(ledger.change_ns)
    return (
        f"{reference} {ends[0]} {scale.unit} → {ledger.arm} {ends[1]} {scale.unit}: "
        f"{change} {scale.unit}{_a_piece(ledger)}."
    )


def _row(part: LedgerPart, scale: TimeScale, largest: float) -> LedgerRow:
    return LedgerRow(
        label=part.label,
        reference=scale.number(part.reference_ns),
        arm=scale.number(part.arm_ns),
        change=scale.signed(part.change_ns),
        share=_share(part),
        bar=signed_bar(part.change_ns, largest=largest),
    )


def _timing(ledger: Ledger) -> tuple[str, ...]:
    """Say how the change in the profile stands to that of the timing pass."""
    if ledger.basis == "timing" or ledger.timing_change_ns is None:
        return ()
    change = _signed(ledger.timing_change_ns)
    text = f"In the timing pass, without a profiler, a step changed by {change}"
    if ledger.unseen_ns is None:
        return (f"{text}.",)
    return (f"{text}; {_signed(ledger.unseen_ns)} of that the profile does not show.",)


def _signed(ns: float) -> str:
    sign = "" if not ns else MINUS if ns < 0 else "+"
    return f"{sign}{time_text(abs(ns))}"


def _share(part: LedgerPart) -> str:
    if part.share is None:
        return "–"
    return f"{100 * part.share:.0f} %".replace("-0 ", "0 ").replace("-", MINUS)


def _short(label: str) -> str:
    """Return a label for a list in a sentence: no colon with what explains it, no comma."""
    head, _, rest = label.partition(":")[0].partition(", ")
    return f"{head} ({rest})" if rest else head


def _a_piece(ledger: Ledger) -> str:
    return f" a {ledger.piece}" if ledger.is_per_step else " in the whole profile"
