"""`ncu --print-summary per-kernel`: one row for each kernel and metric, as nvprof printed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envcompare.profile_files.ncu.launches import Counted, dim, odd_notes, time_notes
from envcompare.profile_files.ncu.metrics import (
    LABELS,
    TIME,
    adding,
    changes_time,
    is_unpatched_time,
)
from envcompare.profile_files.ncu.pages import Cell, check_width, decide_over, values
from envcompare.profile_files.ncu.text import Table
from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.tables import Row
from envcompare.run_folder.profiles import Kernel

_HINT: Final = "print launches: `LC_ALL=C ncu --import … --csv --page raw --print-units base`"
_NEEDED: Final = ("Kernel Name", "Invocations", "Metric Name", "Minimum", "Maximum", "Average")
_KEYS: Final = (
    "Process ID", "Kernel Name", "Grid Size", "Block Size", "Device", "Device Id", "CC",
)  # fmt: skip
_Told = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One metric of one kernel."""

    told: _Told
    average: Cell
    is_steady: bool


def summary_kernels(table: Table) -> Counted:
    """Return the kernels of a summary: the average of each metric times the invocations.

    A rate whose launches differ is left out, since a summary does not tell their times.
    """
    _refuse_other_columns(table)
    members, numbers = _members(table)
    convention = decide_over(numbers, table.file)
    groups: dict[tuple[str, ...], list[_Member]] = {}
    for one in members:
        groups.setdefault(tuple(one.told.get(name, "") for name in _KEYS), []).append(one)
    found = []
    for group in groups.values():
        _refuse_doubles(table, group)
        found.append(values([one.average for one in group], convention, table.file))
    is_patched = any(changes_time(one.average.metric) for one in members)
    has_time = not is_patched or all(is_unpatched_time(one.values) for one in found)
    odd = {name: value for one in found for name, value in one.odd.items()}
    left: set[str] = set()
    kernels = []
    for group, means in zip(groups.values(), (one.values for one in found), strict=True):
        steady = {one.average.metric for one in group if one.is_steady}
        unsteady = {name for name in means if adding(name) == "rate" and name not in steady}
        left |= unsteady
        kept = {name: mean for name, mean in means.items() if name not in unsteady}
        kernels.append(_kernel(table, group, kept, has_time=has_time))
    notes = [f"{name} is left out: its launches differ, their times are not told" for name in left]
    times = time_notes(is_patched=is_patched, has_time=has_time)
    told = (*times, *sorted(notes), *odd_notes(odd))
    return Counted(kernels=tuple(kernels), sequence=(), has_time=has_time, notes=told)


def _refuse_other_columns(table: Table) -> None:
    for name in _NEEDED:
        if table.column(name) is None:
            why = f"a summary without the column {name!r}: only per-kernel summaries are read"
            raise refusal(table.file, line=table.header.line, why=why, hint=_HINT)
    if not table.rows:
        raise refusal(table.file, line=table.header.line, why="no kernel follows the header")


def _members(table: Table) -> tuple[list[_Member], list[Cell]]:
    """Return the metrics of all kernels, and every number for the choice of the convention."""
    members: list[_Member] = []
    numbers: list[Cell] = []
    for row in table.rows:
        check_width(table, row)
        told = dict(zip(table.header.cells, row.cells, strict=True))
        low, high, average = (_cell(told, row, name) for name in _NEEDED[3:])
        is_steady = low.text == high.text
        members.append(_Member(told=told, average=average, is_steady=is_steady))
        numbers += (low, high, average)
    return members, numbers


def _cell(told: _Told, row: Row, column: str) -> Cell:
    name = told["Metric Name"]
    return Cell(row.line, LABELS.get(name, name), told.get("Metric Unit", ""), told[column])


def _refuse_doubles(table: Table, group: Sequence[_Member]) -> None:
    seen: set[tuple[str, str]] = set()
    for one in group:
        place = (one.told.get("Section Name", ""), one.told["Metric Name"])
        if place in seen:
            why = f"{place[1]} of one kernel stands there twice"
            raise refusal(table.file, line=one.average.line, why=why)
        seen.add(place)


def _kernel(
    table: Table, group: Sequence[_Member], means: Mapping[str, float], *, has_time: bool
) -> Kernel:
    told, calls = group[0].told, _calls(table, group)
    sums = {name: mean * calls if adding(name) == "sum" else mean for name, mean in means.items()}
    time = sums.pop(TIME, None)
    return Kernel(
        name=told["Kernel Name"],
        calls=calls,
        total_ns=time if has_time else None,
        grid=dim(told.get("Grid Size", "")),
        block=dim(told.get("Block Size", "")),
        metrics=sums,
    )


def _calls(table: Table, group: Sequence[_Member]) -> int:
    counts = {one.told["Invocations"] for one in group}
    text = min(counts)
    if len(counts) > 1 or not text.isascii() or not text.isdigit() or not int(text):
        why = f"the rows of a kernel do not agree on its invocations: {sorted(counts)}"
        raise refusal(table.file, line=group[0].average.line, why=why)
    return int(text)
