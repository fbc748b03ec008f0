"""Nsight Compute: its CSV (raw page, details page, summary per kernel) and its reports.

A report (`.ncu-rep`) is read through NVIDIA's module `ncu_report`, or converted by the local `ncu`.
A live run prints messages and program output before the table; the table starts where the first
cell is `ID` (or `Process ID` in a summary). A summary (`ncu --print-summary per-kernel`) has a row
for each kernel and metric, as in nvprof.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from envcompare.files import PRINTED_BYTES
from envcompare.profile_files.ncu.launches import (
    BASE_UNITS,
    CUT,
    LABELS,
    NEWER_HINT,
    TIME,
    Cell,
    Counted,
    Launch,
    Measured,
    changes_time,
    combine_launches,
    combining_rule,
    device,
    dim,
    is_unpatched_time,
    odd_notes,
    read_report,
    time_notes,
)
from envcompare.profile_files.rawfiles import (
    Convention,
    Row,
    convert,
    csv_records,
    csv_row,
    decide,
    first_bytes,
    first_repeated,
    lacking_at_end,
    read_lines,
    refusal,
)
from envcompare.run_folder.profiles import Device, Dim, Kernel, Note, Page, Profile

_HINT: Final = (
    "pip install '.[ncu]' in a clone of envcompare, or import the output of "
    "`LC_ALL=C ncu --import {file} --csv --page raw --print-units base`"
)
_GROUPS: Final = re.compile(r"[.,'\u2019\u202f\u00a0 ]")
_MAGIC: Final = b"NVR\0"
_NEWER: Final = re.compile(r"\bnewer\b|[Uu]nsupported .*version|version .*not supported")
_FIXED: Final = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
    "Stream", "Block Size", "Grid Size", "Device", "Device Id", "CC", "Invocations",
})  # fmt: skip
_RANGES: Final = (":Push/Pop_Range:", ":Start/Stop_Range:")
_PATCHING: Final = re.compile(r"Roofline|Source ?Counters")
_NEEDED: Final = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_OF_SUMMARY: Final = ("Kernel Name", "Invocations", "Metric Name", "Minimum", "Maximum", "Average")
_KEYS: Final = (
    "Process ID", "Kernel Name", "Grid Size", "Block Size", "Device", "Device Id", "CC",
)  # fmt: skip
_LAUNCHES: Final = (
    "only per-kernel summaries are supported; otherwise print launches: "
    "`LC_ALL=C ncu --import … --csv --page raw --print-units base`"
)
_HEADER: Final = re.compile(r'^"(?:ID|Process ID)",')
_ERROR: Final = re.compile(r"^==ERROR==\s*(.*)")
_NO_KERNEL: Final = (
    "check that the program uses the GPU within the range that ncu profiles (--nvtx-include, "
    "--profile-from-start, --kernel-name), and that ncu follows its children (--target-processes)"
)
_PROFILING: Final = re.compile(r"==PROF== Profiling ")
_PERMISSION: Final = re.compile(
    r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance Counters"
    r"|driver resource was unavailable"
)
_OPEN_COUNTERS: Final = (
    "let users read the counters: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d on the host, then reboot; or profile as root, in Docker with "
    "--cap-add=SYS_ADMIN; where DCGM holds the counters, `dcgmi profile --pause` first"
)


def read(path: Path) -> Profile:
    """Return the profile in a `.ncu-rep` report or a CSV of Nsight Compute 2020 to 2026.

    Raises ProfileError, with the line, for a file that cannot be read or trusted.
    """
    if path.suffix.lower() != ".ncu-rep":
        return _printed(path, read_lines(path))
    # The module treats any other file as a report without launches.
    head = first_bytes(path, len(_MAGIC))
    if head != _MAGIC:
        why = "it is not an Nsight Compute report" + ("" if head else ": it is empty")
        raise refusal(path.name, why=why, hint=CUT)
    try:
        module = importlib.import_module("ncu_report")
    except ImportError:
        program = shutil.which("ncu")
        if program is None:
            raise refusal(
                path.name,
                why="it needs the module ncu_report or the program ncu; neither is installed",
                hint=_HINT.format(file=path.name),
            ) from None
        return _by_program(program, path)
    kernels, devices = read_report(module, path)
    return _profile(path, "report by ncu_report", "raw", kernels, devices)


def _profile(
    path: Path, form: str, page: Page, kernels: Counted, devices: tuple[Device, ...]
) -> Profile:
    return Profile(
        tool="ncu",
        format=form,
        pages=(page,),
        files=(path.name,),
        devices=devices,
        kernels=kernels.kernels,
        sequence=kernels.sequence,
        has_time=kernels.has_time,
        notes=(*kernels.notes, Note(kind="controls-unknown")),
    )


def _by_program(program: str, path: Path) -> Profile:
    argv = [program, "--import", str(path), "--csv", "--page", "raw", "--print-units", "base"]
    # ncu prints numbers in the locale of its user, in which 1.234 may be more than a thousand.
    env = os.environ | {"LC_ALL": "C"}
    done, newer = convert(argv, file=path.name, newer=_NEWER, most=PRINTED_BYTES, env=env)
    if done.returncode:
        message = (done.stdout + done.stderr).strip()
        why = f"ncu cannot read it: {message.splitlines()[-1] if message else 'no reason given'}"
        why = f"the ncu on PATH is older than the report: {newer}" if newer else why
        hint = NEWER_HINT.format(file=path.name) if newer else CUT
        raise refusal(path.name, why=why, hint=hint)
    return _printed(path, tuple(done.stdout.splitlines(keepends=True)), form="report by ncu")


def _printed(path: Path, lines: tuple[str, ...], *, form: str = "") -> Profile:
    table = _find_table(lines, file=path.name)
    page: Page = "raw" if table.column("Metric Name") is None else "details"
    if table.header.cells[0] == "Process ID":
        page, kernels = "summary", _summary_kernels(table)
    else:
        kernels = combine_launches(
            _raw_launches(table) if page == "raw" else _details_launches(table)
        )
        numbers = {int(row.cells[0]) for row in table.rows if row.cells[0].isdigit()}
        # an import filter, or lost lines, leave gaps in the launch numbers
        lacking = max(numbers, default=-1) + 1 - len(numbers)
        gap = Note(kind="launches-not-in-file", values={"launches": lacking})
        kernels = replace(kernels, notes=(*kernels.notes, *(gap,) * bool(lacking)))
    rows = [table.fields_of(row) for row in table.rows]
    # A summary has one row for each metric, so the attributes of the GPU are in several rows.
    if "Average" in table.header.cells:
        rows = [{**rows[0], **{row["Metric Name"]: row["Average"] for row in rows}}]
    # files before 2024 name no GPU
    devices = dict.fromkeys(gpu for row in rows if (gpu := device(row)) is not None)
    return _profile(path, form or f"csv {page}", page, kernels, tuple(devices))


@lru_cache(maxsize=2_000)
def _is_range(column: str) -> bool:
    # the NVTX ranges around a launch
    return any(mark in column for mark in _RANGES)


def _raw_launches(table: _Table) -> tuple[Launch, ...]:
    """Return the launches of the raw page: a row of units, then a row for each launch."""
    if not table.rows or table.rows[0].cells[:1] != ("",):
        line = table.rows[0].line if table.rows else None
        why = "the row of units below the header is missing"
        raise refusal(table.file, line=line, why=why, hint=BASE_UNITS)
    units, rows = table.rows[0].cells, table.rows[1:]
    _check_order(table, rows, is_repeated=False)
    cells = [
        [
            Cell(row.line, name, unit, text)
            for name, unit, text in zip(table.header.cells, units, row.cells, strict=True)
            if name not in _FIXED and not _is_range(name)
        ]
        for row in rows
    ]
    convention = _convention((cell for of_row in cells for cell in of_row), table.file)
    return tuple(
        _launch(table, row, Measured.printed(of_row, convention, table.file))
        for row, of_row in zip(rows, cells, strict=True)
    )


def _details_launches(table: _Table) -> tuple[Launch, ...]:
    """Return the launches of the details page: a row for each metric of each launch."""
    by_launch, first = _details_cells(table)
    metrics = [{cell.metric for cell in cells} for cells in by_launch.values()]
    if lacking := lacking_at_end(metrics):
        why = f"the last launch lacks {lacking}, which all others have: the file was cut off"
        raise refusal(table.file, line=table.rows[-1].line, why=why)
    cells = (cell for of_launch in by_launch.values() for cell in of_launch)
    convention = _convention(cells, table.file)
    # these sections count instructions, but their rows do not name the counters
    section = table.header.cells.index("Section Name")
    is_patched = any(_PATCHING.search(row.cells[section]) for row in table.rows)
    counts = (Measured.printed(by_launch[ident], convention, table.file) for ident in first)
    rows = zip(first.values(), counts, strict=True)
    return tuple(_launch(table, row, each, is_patched=is_patched) for row, each in rows)


def _details_cells(table: _Table) -> tuple[dict[str, list[Cell]], dict[str, Row]]:
    """Return the metrics of each launch by its ID, and the first row of each."""
    places = table.needed(_NEEDED, hint=BASE_UNITS)
    _check_order(table, table.rows, is_repeated=True)
    by_launch: dict[str, list[Cell]] = {}
    first: dict[str, Row] = {}
    fields: list[tuple[int | None, tuple[str, str, str]]] = []
    for row in table.rows:
        section, name, unit, text = (row.cells[place] for place in places)
        ident = row.cells[0]
        first.setdefault(ident, row)
        cells = by_launch.setdefault(ident, [])
        if not name:
            # A row without a metric holds the advice of a rule.
            continue
        fields.append((row.line, (ident, section, name)))
        cells.append(Cell(row.line, LABELS.get(name, name), unit, text))
    if twice := first_repeated(fields):
        why = f"{twice[1][2]} of launch {twice[1][0]} is listed twice"
        raise refusal(table.file, line=twice[0], why=why)
    return by_launch, first


def _convention(cells: Iterable[Cell], file: str) -> Convention:
    return decide(((cell.line or 0, cell.text) for cell in cells), file=file)


def _check_order(table: _Table, rows: Sequence[Row], *, is_repeated: bool) -> None:
    """Refuse rows without a launch, and launch numbers that do not increase."""
    if not rows:
        raise refusal(table.file, line=table.header.line, why="no launch follows the header")
    name = table.column("Kernel Name")
    last = -1
    for row in rows:
        ident = row.cells[0]
        if not ident.isascii() or not ident.isdigit() or name is None or not row.cells[name]:
            why = "the row has no launch ID or no kernel name"
            raise refusal(table.file, line=row.line, why=why)
        if int(ident) < last or (int(ident) == last and not is_repeated):
            why = f"launch {ident} follows launch {last}: rows are duplicated or out of order"
            raise refusal(table.file, line=row.line, why=why)
        last = int(ident)


def _launch(table: _Table, row: Row, measured: Measured, *, is_patched: bool = False) -> Launch:
    fields = table.fields_of(row)
    ranges = (_range(name, fields[name]) for name in fields if _is_range(name))
    return Launch(
        name=fields["Kernel Name"],
        grid=dim(fields.get("Grid Size", "")) or _dim_of(fields, "launch__grid"),
        block=dim(fields.get("Block Size", "")) or _dim_of(fields, "launch__block"),
        op=next(filter(None, ranges), ""),
        is_patched=is_patched,
        measured=measured,
    )


def _range(column: str, text: str) -> str:
    """Return the name of the NVTX range in a cell; the column title gives its position."""
    titles, parts = column.split(":"), text.strip('"').split(":")
    place = next((n for n, title in enumerate(titles) if title.endswith("_Range")), None)
    return parts[place] if place is not None and place < len(parts) else ""


def _dim_of(fields: Mapping[str, str], what: str) -> Dim | None:
    """Return a shape that the raw page of older versions gives as three metrics."""
    cells = (fields.get(f"{what}_dim_{axis}", "") for axis in "xyz")
    # without digit groups, and without the six decimals of scaled output
    digits = [_GROUPS.sub("", text.removesuffix(".000000")) for text in cells]
    if not all(text.isdigit() for text in digits):
        return None
    x, y, z = map(int, digits)
    return x, y, z


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    fields: Mapping[str, str]
    average: Cell
    is_steady: bool


def _summary_kernels(table: _Table) -> Counted:
    """Return the kernels of a summary: the average of each metric times the invocations.

    A rate that varies between launches is dropped, since a summary lacks the launch times.
    """
    table.needed(_OF_SUMMARY, hint=_LAUNCHES)
    if not table.rows:
        raise refusal(table.file, line=table.header.line, why="no kernel follows the header")
    members, numbers = _members(table)
    convention = _convention(numbers, table.file)
    groups: dict[tuple[str, ...], list[_Member]] = {}
    for member in members:
        groups.setdefault(tuple(member.fields.get(name, "") for name in _KEYS), []).append(member)
    averages = []
    for group in groups.values():
        _check_group(table, group)
        averages.append(
            Measured.printed([member.average for member in group], convention, table.file)
        )
    is_patched = any(changes_time(member.average.metric) for member in members)
    has_time = not is_patched or all(is_unpatched_time(means.values) for means in averages)
    odd = {name: value for means in averages for name, value in means.odd.items()}
    left: set[str] = set()
    kernels = []
    for group, means in zip(groups.values(), averages, strict=True):
        steady = {member.average.metric for member in group if member.is_steady}
        unsteady = {
            name for name in means.values if combining_rule(name) == "rate" and name not in steady
        }
        left |= unsteady
        kept = {name: mean for name, mean in means.values.items() if name not in unsteady}
        kernels.append(_kernel(group[0].fields, kept, has_time=has_time))
    notes = (
        *time_notes(is_patched=is_patched, has_time=has_time),
        *(Note(kind="uneven-rate", values={"metric": name}) for name in sorted(left)),
        *odd_notes(odd),
    )
    return Counted(kernels=tuple(kernels), has_time=has_time, notes=notes)


def _members(table: _Table) -> tuple[list[_Member], list[Cell]]:
    """Return the metrics of all kernels, and all numbers to choose the convention."""
    members: list[_Member] = []
    numbers: list[Cell] = []
    for row in table.rows:
        fields = table.fields_of(row)
        name, unit = fields["Metric Name"], fields.get("Metric Unit", "")
        low, high, average = (
            Cell(row.line, LABELS.get(name, name), unit, fields[column])
            for column in _OF_SUMMARY[3:]
        )
        is_steady = low.text == high.text
        members.append(_Member(fields=fields, average=average, is_steady=is_steady))
        numbers += (low, high, average)
    return members, numbers


def _check_group(table: _Table, group: Sequence[_Member]) -> None:
    """Refuse rows of a kernel that repeat a metric, or disagree on the invocations."""
    twice = first_repeated(
        (member.average.line, (member.fields.get("Section Name", ""), member.fields["Metric Name"]))
        for member in group
    )
    if twice:
        why = f"{twice[1][1]} of one kernel is listed twice"
        raise refusal(table.file, line=twice[0], why=why)
    counts = {member.fields["Invocations"] for member in group}
    text = min(counts)
    if len(counts) > 1 or not text.isascii() or not text.isdigit() or not int(text):
        why = f"the rows of a kernel do not agree on its invocations: {sorted(counts)}"
        raise refusal(table.file, line=group[0].average.line, why=why)


def _kernel(fields: Mapping[str, str], means: Mapping[str, float], *, has_time: bool) -> Kernel:
    calls = int(fields["Invocations"])
    sums = {
        name: mean * calls if combining_rule(name) == "sum" else mean
        for name, mean in means.items()
    }
    time = sums.pop(TIME, None)
    return Kernel(
        name=fields["Kernel Name"],
        calls=calls,
        total_ns=time if has_time else None,
        grid=dim(fields.get("Grid Size", "")),
        block=dim(fields.get("Block Size", "")),
        metrics=sums,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """The header and the rows below it."""

    file: str
    header: Row
    rows: tuple[Row, ...]

    def column(self, name: str) -> int | None:
        """Return the index of a column; None if missing."""
        return self.header.cells.index(name) if name in self.header.cells else None

    def needed(self, names: Sequence[str], *, hint: str) -> list[int]:
        """Return the indices of these columns; raises ProfileError if one is missing."""
        for name in names:
            if name not in self.header.cells:
                why = f"the column {name!r} is missing"
                raise refusal(self.file, line=self.header.line, why=why, hint=hint)
        return [self.header.cells.index(name) for name in names]

    def fields_of(self, row: Row) -> dict[str, str]:
        """Return the cells of a row by column name."""
        return dict(zip(self.header.cells, row.cells, strict=False))

    def check_widths(self, *, is_ended: bool) -> None:
        """Refuse a row of another width; rows without a rule may omit the rule columns."""
        full = len(self.header.cells)
        value, rule = self.column("Metric Value"), self.column("Rule Name")
        least = full if value is None or rule is None else value + 1
        for row in self.rows:
            if not least <= len(row.cells) <= full:
                cut = "; the file was cut off" if row is self.rows[-1] and not is_ended else ""
                why = f"{len(row.cells)} cells where the header has {full}{cut}"
                raise refusal(self.file, line=row.line, why=why)


def _find_table(lines: tuple[str, ...], *, file: str) -> _Table:
    """Return the table of a file; raises ProfileError with the messages of ncu if none."""
    _refuse_errors(lines, file)
    start = next((place for place, text in enumerate(lines) if _HEADER.match(text)), None)
    if start is None:
        why = "it has no Nsight Compute table: no line starts with the column ID"
        if not any(text.strip() for text in lines):
            why = "the file is empty"
        elif any(text.startswith("==PROF==") for text in lines):
            why = "ncu ran without --csv, or its output was cut off: there is no CSV table"
        raise refusal(file, why=why, hint=BASE_UNITS)
    # ncu ends each line and quotes an empty cell, so a comma at the end is a cut.
    if lines[-1].endswith(","):
        raise refusal(file, line=len(lines), why="the last cell is missing: the file was cut off")
    header = csv_row(start + 1, lines[start], file=file)
    if twice := first_repeated((header.line, name) for name in header.cells):
        raise refusal(file, line=header.line, why=f"column {twice[1]!r} is listed twice")
    below = list(csv_records(enumerate(lines[start + 1 :], start + 2), skipped="=="))
    again = next((number for number, text in below if _HEADER.match(text)), None)
    if again is not None:
        raise refusal(file, line=again, why="a second table begins", hint="import each separately")
    rows = tuple(csv_row(line, text, file=file) for line, text in below if text.strip())
    table = _Table(file=file, header=header, rows=rows)
    table.check_widths(is_ended=lines[-1].endswith("\n"))
    return table


def _refuse_errors(lines: tuple[str, ...], file: str) -> None:
    """Refuse a file in which ncu reports a failure."""
    numbered = list(enumerate(lines, 1))
    errors = [(line, match[1]) for line, text in numbered if (match := _ERROR.match(text))]
    for line, error in errors:
        if _PERMISSION.search(error):
            why = f"ncu was not allowed to read the counters of the GPU: {error}"
            raise refusal(file, line=line, why=why, hint=_OPEN_COUNTERS)
    if errors:
        message = "; ".join(dict.fromkeys(error.rstrip(".") for _, error in errors[:3]))
        why = f"the profiled program, or ncu in it, failed: {message}"
        raise refusal(
            file,
            line=errors[0][0],
            why=why,
            hint="make the program succeed without ncu, then profile it again",
        )
    is_profiled = any(_HEADER.match(text) or _PROFILING.match(text) for text in lines)
    for line, text in numbered:
        is_reported = text.startswith("==") and "No kernels were profiled" in text
        if is_reported or (text.startswith("==PROF== ") and not is_profiled):
            raise refusal(file, line=line, why="no kernel was profiled", hint=_NO_KERNEL)
