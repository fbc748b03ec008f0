"""What ran longest: GPU activities as nvprof printed them, operators as torch.profiler does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.profiling import (
    ActivityRow,
    ActivityTable,
    OperatorRow,
    OperatorTable,
)
from envcompare.report.format.numbers import NOT_MEASURED
from envcompare.report.format.units import bytes_text, number_text, time_text
from envcompare.report.wording.labels import short_name
from envcompare.text import counted

ACTIVITY_HEADS: Final = ("Time (%)", "Time", "Calls", "Avg", "Min", "Max")
_OPERATOR_HEADS: Final = ("Self CPU %", "Self CPU", "CPU total", "CPU time avg")
_DEVICE_HEADS: Final = ("Self CUDA", "Self CUDA %", "CUDA total")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    """One line: what it is, its numbers in the order of the heads."""

    name: str
    values: tuple[str, ...]
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The table of one arm, made for a fold."""

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[ListedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns that not every table of operators has."""

    device: bool
    cpu_bytes: bool
    device_bytes: bool


def activity_listing(table: ActivityTable, *, arm: str, most: int) -> Listing:
    """Return the table of GPU activities and API calls, as nvprof's summary has it."""
    rows = [row for row in table.rows if row.type == "GPU activities"][:most]
    rows += [row for row in table.rows if row.type == "API calls"][:most]
    return Listing(
        title=f"GPU activities and API calls of {arm}",
        note=_note(table.source, table.steps, len(table.rows) - len(rows)),
        heads=ACTIVITY_HEADS,
        rows=tuple(_activity(row) for row in rows),
    )


def operator_listing(table: OperatorTable, *, arm: str, most: int) -> Listing:
    """Return the table of operators, as torch.profiler's has it."""
    rows = table.rows[:most]
    shown = _Columns(
        device=any(row.self_device_ns is not None for row in rows),
        cpu_bytes=any(row.self_cpu_bytes is not None for row in rows),
        device_bytes=any(row.self_device_bytes is not None for row in rows),
    )
    return Listing(
        title=f"Operators of {arm}",
        note=_note(table.source, table.steps, len(table.rows) - len(rows)),
        heads=(
            *_OPERATOR_HEADS,
            *_DEVICE_HEADS * shown.device,
            *("Self CPU Mem",) * shown.cpu_bytes,
            *("Self CUDA Mem",) * shown.device_bytes,
            "# of Calls",
        ),
        rows=tuple(_operator(row, shown) for row in rows),
    )


def _note(source: str, steps: int | None, left_out: int) -> str:
    what = f"{counted(steps, 'step')}" if steps else "the whole profile"
    rest = f"; {counted(left_out, 'more line')} in comparison.json" if left_out else ""
    return f"From {source}, {what}{rest}."


def _activity(row: ActivityRow) -> ListedRow:
    return ListedRow(
        type=row.type,
        name=short_name(row.name),
        values=(
            f"{row.percent:.2f} %",
            time_text(row.time_ns),
            number_text(row.calls),
            time_text(row.average_ns),
            time_text(row.min_ns),
            time_text(row.max_ns),
        ),
    )


def _operator(row: OperatorRow, shown: _Columns) -> ListedRow:
    average = None if row.cpu_ns is None or not row.calls else row.cpu_ns / row.calls
    device = (time_text(row.self_device_ns), _percent(row.self_device_percent))
    return ListedRow(
        name=short_name(row.name),
        values=(
            _percent(row.self_cpu_percent),
            time_text(row.self_cpu_ns),
            time_text(row.cpu_ns),
            time_text(average),
            *(*device, time_text(row.device_ns)) * shown.device,
            *(bytes_text(row.self_cpu_bytes),) * shown.cpu_bytes,
            *(bytes_text(row.self_device_bytes),) * shown.device_bytes,
            number_text(row.calls),
        ),
    )


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f} %"
