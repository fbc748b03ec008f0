"""The time of a step in the reference and in an arm, each bar divided into the ledger's parts."""

from __future__ import annotations

from functools import partial
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import CellProfiles, Ledger, LedgerPart
from envcompare.analysis.model.profiling import Part as PartName
from envcompare.report.charts.bars import Bar, Part, Segment, stacked
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.words import chart_name, label, shown
from envcompare.report.format.units import TimeScale
from envcompare.report.wording.labels import cell_labels

_LONGEST_NAME: Final = 34
_TOLD: Final = 4  # parts that the description names
_COLOURS: Final[dict[PartName, tuple[int, bool]]] = {  # place in the palette, and whether pale
    "gemm": (0, False),
    "attention": (0, True),
    "element-wise": (2, False),
    "reduction": (2, True),
    "normalisation": (4, False),
    "rnn": (1, False),
    "other-kernels": (4, True),
    "communication": (5, False),
    "memcpy": (3, False),
    "memset": (3, True),
    "idle": (6, False),
    "cpu": (0, False),
    "user": (0, False),
    "system": (1, False),
    "wait": (3, False),
    "throttled": (5, False),
    "rest": (6, True),
}


def time_chart(run: RunComparison, profiles: CellProfiles, ledger: Ledger) -> Chart | None:
    """Return both times as stacked bars, None where there is no time to divide."""
    has_parts = any(max(part.reference_ns, part.arm_ns) > 0 for part in ledger.parts)
    if max(ledger.reference_ns, ledger.arm_ns) <= 0 or not has_parts:
        return None
    where = shown(cell_labels(run).get(profiles.cell, profiles.cell))
    arms = f"{shown(ledger.arm)} and {shown(profiles.reference)}"
    scale = TimeScale.of(max(ledger.reference_ns, ledger.arm_ns))
    parts = tuple(
        Part(
            name=label(part.label.partition(":")[0], most=_LONGEST_NAME),
            place=_COLOURS[part.part][0],
            is_pale=_COLOURS[part.part][1],
        )
        for part in ledger.parts
    )
    bars = (
        _bar(ledger, profiles.reference, scale, is_arm=False),
        _bar(ledger, ledger.arm, scale, is_arm=True),
    )
    return Chart(
        name=chart_name("time", profiles.cell, ledger.arm),
        title=f"Time {_per(ledger)} by part, {arms}, {where}",
        description=_description(ledger, profiles.reference, scale),
        declare=partial(
            stacked, bars=bars, parts=parts, title=f"time {_per(ledger)} ({scale.unit})"
        ),
    )


def _bar(ledger: Ledger, name: str, scale: TimeScale, *, is_arm: bool) -> Bar:
    whole = ledger.arm_ns if is_arm else ledger.reference_ns
    return Bar(
        name=label(name),
        segments=tuple(_segment(part, name, scale, is_arm=is_arm) for part in ledger.parts),
        total=scale.number(whole),
    )


def _segment(part: LedgerPart, name: str, scale: TimeScale, *, is_arm: bool) -> Segment:
    time = part.arm_ns if is_arm else part.reference_ns
    text = scale.number(time)  # as in the table
    tip = f"{shown(part.label)}, {shown(name)}: {text} {scale.unit}"
    return Segment(size=max(0, time) / scale.size_ns, text=text, tip=tip)


def _description(ledger: Ledger, reference: str, scale: TimeScale) -> str:
    """Say the wholes and the parts that changed most; the table holds every part."""
    moved = sorted(ledger.parts, key=lambda part: -abs(part.change_ns))[:_TOLD]
    told = [
        f"{shown(part.label.partition(':')[0])} {scale.signed(part.change_ns)} {scale.unit}"
        for part in moved
        if part.change_ns
    ]
    changes = f" Most changed: {', '.join(told)}." if told else ""
    return (
        f"{shown(reference)} {scale.number(ledger.reference_ns)} {scale.unit}, "
        f"{shown(ledger.arm)} {scale.number(ledger.arm_ns)} {scale.unit} {_per(ledger)}.{changes}"
    )


def _per(ledger: Ledger) -> str:
    return f"of a {ledger.piece}" if ledger.is_per_step else "of the whole profile"
