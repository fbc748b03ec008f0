"""The raw page and the details page of Nsight Compute as launches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from envcompare.profile_files.ncu.launches import Launch, dim
from envcompare.profile_files.ncu.metrics import LABELS, adding, is_possible, is_used, scale
from envcompare.profile_files.ncu.text import Table
from envcompare.profile_files.numbers import Convention, decide, is_missing
from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.tables import Row

_FIXED: Final = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Block Size", "Grid Size", "Device", "Device Id", "CC", "Invocations",
})  # fmt: skip
_RANGES: Final = (":Push/Pop_Range:", ":Start/Stop_Range:")
_PATCHING: Final = re.compile(r"Roofline|Source ?Counters")
_NEEDED: Final = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_BASE_UNITS: Final = (
    "write it again: `LC_ALL=C ncu --import FILE.ncu-rep --csv --page raw --print-units base`"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of one launch, as it was printed."""

    line: int
    metric: str
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The metrics of one launch, and those of no quantity whose value cannot be."""

    values: Mapping[str, float]
    odd: Mapping[str, float]


@lru_cache(maxsize=2_000)
def is_range(column: str) -> bool:
    """Say whether a column holds the NVTX ranges around a launch."""
    return any(mark in column for mark in _RANGES)


def is_fixed(column: str) -> bool:
    """Say whether a column tells of the launch, and is no metric."""
    return column in _FIXED or is_range(column)


def raw_launches(table: Table) -> tuple[Launch, ...]:
    """Return the launches of the raw page: units in the second row, then a row for each."""
    if not table.rows or table.rows[0].cells[:1] != ("",):
        line = table.rows[0].line if table.rows else None
        why = "the row of units below the header is missing"
        raise refusal(table.file, line=line, why=why, hint=_BASE_UNITS)
    for row in table.rows:
        check_width(table, row)
    units, rows = table.rows[0].cells, table.rows[1:]
    _check_order(table, rows, is_repeated=False)
    cells = [
        [
            Cell(row.line, name, unit, text)
            for name, unit, text in zip(table.header.cells, units, row.cells, strict=True)
            if not is_fixed(name)
        ]
        for row in rows
    ]
    convention = decide_over((one for row in cells for one in row), table.file)
    return tuple(
        _launch(table, row, values(of_row, convention, table.file))
        for row, of_row in zip(rows, cells, strict=True)
    )


def details_launches(table: Table) -> tuple[Launch, ...]:
    """Return the launches of the details page: a row for each metric of each launch."""
    by_launch, first = _details_cells(table)
    _refuse_cut_launch(table, by_launch)
    convention = decide_over([one for cells in by_launch.values() for one in cells], table.file)
    # sections that count instructions, though their rows hide the names of the counters
    section = table.header.cells.index("Section Name")
    is_patched = any(_PATCHING.search(row.cells[section]) for row in table.rows)
    return tuple(
        _launch(table, row, values(by_launch[ident], convention, table.file), is_patched=is_patched)
        for ident, row in first.items()
    )


def _details_cells(table: Table) -> tuple[dict[str, list[Cell]], dict[str, Row]]:
    """Return the metrics of each launch by its ID, and the first row of each."""
    lacking = [name for name in _NEEDED if table.column(name) is None]
    if lacking:
        why = f"the column {lacking[0]!r} is missing"
        raise refusal(table.file, line=table.header.line, why=why, hint=_BASE_UNITS)
    places = [table.header.cells.index(name) for name in _NEEDED]
    for row in table.rows:
        check_width(table, row)
    _check_order(table, table.rows, is_repeated=True)
    by_launch: dict[str, list[Cell]] = {}
    first: dict[str, Row] = {}
    seen: set[tuple[str, str, str]] = set()
    for row in table.rows:
        section, name, unit, text = (row.cells[place] for place in places)
        ident = row.cells[0]
        first.setdefault(ident, row)
        cells = by_launch.setdefault(ident, [])
        if not name:  # the advice of a rule
            continue
        if (ident, section, name) in seen:
            why = f"{name} of launch {ident} stands there twice"
            raise refusal(table.file, line=row.line, why=why)
        seen.add((ident, section, name))
        cells.append(Cell(row.line, LABELS.get(name, name), unit, text))
    return by_launch, first


def gap_note(table: Table) -> str:
    """Return what to know of a file whose launches are not numbered without a gap; empty: none.

    ncu leaves launches out that a filter of the import excludes, and so does a lost line.
    """
    numbers = dict.fromkeys(int(row.cells[0]) for row in table.rows if row.cells[0].isdigit())
    lacking = max(numbers, default=-1) + 1 - len(numbers)
    return f"{lacking} launches are not in the file: filtered out, or lost" if lacking else ""


def check_width(table: Table, row: Row) -> None:
    """Refuse a row of another width; rows without a rule may end before its columns."""
    full, have = len(table.header.cells), len(row.cells)
    value = table.column("Metric Value")
    rule = table.column("Rule Name")
    least = full if value is None or rule is None else value + 1
    if least <= have <= full:
        return
    is_last = row.line == (table.rows[-1].line if table.rows else None)
    cut = "; the file was cut off" if is_last and not table.is_ended else ""
    why = f"{have} cells where the header has {full}{cut}"
    raise refusal(table.file, line=row.line, why=why)


def values(cells: Sequence[Cell], convention: Convention, file: str) -> Measured:
    """Return the metrics of one launch in base units; what is missing is left out.

    A metric that quantities are derived from must have a unit that is known and its own, and a
    value that can be; one of no quantity that cannot be stands apart.
    """
    found: dict[str, float] = {}
    odd: dict[str, float] = {}
    for cell in cells:
        if adding(cell.metric) is None or is_missing(cell.text):
            continue
        value = _value(cell, convention, file)
        if value is None:
            continue
        if not is_possible(value) and not is_used(cell.metric):
            odd[cell.metric] = value
        elif not is_possible(value):
            why = f"{cell.metric} is {cell.text}, which cannot be"
            raise refusal(file, line=cell.line, why=why)
        elif found.setdefault(cell.metric, value) != value:
            why = f"{cell.metric} is told twice for a launch: {found[cell.metric]:g} and {value:g}"
            raise refusal(file, line=cell.line, why=why)
    return Measured(values={one: found[one] for one in found if one not in odd}, odd=odd)


def _value(cell: Cell, convention: Convention, file: str) -> float | None:
    """Return a number in its base unit; None where its unit is not known and it is not needed."""
    measured = scale(cell.metric, cell.unit)
    if measured.reason:
        if is_used(cell.metric):
            raise refusal(file, line=cell.line, why=measured.reason, hint=_BASE_UNITS)
        return None
    if not convention.fits(cell.text):
        why = f"{cell.metric} is {cell.text!r}, which is no number"
        raise refusal(file, line=cell.line, why=why, hint=_BASE_UNITS)
    return convention.value(cell.text) * measured.factor


def decide_over(cells: Iterator[Cell] | Sequence[Cell], file: str) -> Convention:
    """Return the convention of all numbers of a file."""
    return decide(((one.line, one.text) for one in cells), file=file)


def _check_order(table: Table, rows: Sequence[Row], *, is_repeated: bool) -> None:
    """Refuse rows of no launch, and launches whose numbers do not rise."""
    if not rows:
        raise refusal(table.file, line=table.header.line, why="no launch follows the header")
    name = table.column("Kernel Name")
    last = -1
    for row in rows:
        ident = row.cells[0]
        if not ident.isascii() or not ident.isdigit() or name is None or not row.cells[name]:
            why = "the row belongs to no launch: it has no ID or no name of a kernel"
            raise refusal(table.file, line=row.line, why=why)
        if int(ident) < last or (int(ident) == last and not is_repeated):
            why = f"launch {ident} comes after launch {last}: rows are doubled or out of order"
            raise refusal(table.file, line=row.line, why=why)
        last = int(ident)


def _refuse_cut_launch(table: Table, by_launch: Mapping[str, Sequence[Cell]]) -> None:
    """Refuse a file whose last launch lacks what every other launch has."""
    sets = [{one.metric for one in cells} for cells in by_launch.values()]
    if len(sets) < 2:
        return
    lacking = set.intersection(*sets[:-1]) - sets[-1]
    if lacking:
        why = f"the last launch lacks {min(lacking)}, which all others have: the file was cut off"
        raise refusal(table.file, line=table.rows[-1].line, why=why)


def _launch(table: Table, row: Row, found: Measured, *, is_patched: bool = False) -> Launch:
    told = dict(zip(table.header.cells, row.cells, strict=False))
    ranges = (_range(name, told[name]) for name in told if is_range(name))
    named = next((one for one in ranges if one), "")
    return Launch(
        line=row.line,
        name=told["Kernel Name"],
        grid=dim(told.get("Grid Size", "")) or _dim_of(told, "launch__grid"),
        block=dim(told.get("Block Size", "")) or _dim_of(told, "launch__block"),
        op=named,
        is_patched=is_patched,
        values=found.values,
        odd=found.odd,
    )


def _range(column: str, text: str) -> str:
    """Return the name of the NVTX range in a cell, which stands where its column says."""
    titles, parts = column.split(":"), text.strip('"').split(":")
    place = next((n for n, title in enumerate(titles) if title.endswith("_Range")), None)
    return parts[place] if place is not None and place < len(parts) else ""


def _dim_of(told: Mapping[str, str], what: str) -> tuple[int, int, int] | None:
    """Return the shape the raw page of older versions tells as three metrics."""
    digits = [_digits(told.get(f"{what}_dim_{axis}", "")) for axis in "xyz"]
    if not all(one.isdigit() for one in digits):
        return None
    x, y, z = (int(one) for one in digits)
    return x, y, z


def _digits(text: str) -> str:
    """Return a whole number without its groups; scaled output writes it with six zeros behind."""
    return re.sub(r"[.,'\u2019\u202f\u00a0 ]", "", text.removesuffix(".000000"))
