"""The table in what Nsight Compute printed: found behind its messages, cut off or whole.

A live run prints messages and the output of the profiled program before the table; the table
begins where the first cell is `ID` (or `Process ID` in a summary).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envcompare.gpu.chips import chip_of
from envcompare.profile_files.ncu.launches import BASE_UNITS
from envcompare.profile_files.rawfiles import Row, csv_records, csv_row, csv_rows, refusal
from envcompare.run_folder.profiles import Device

_HEADER: Final = re.compile(r'^"(?:ID|Process ID)",')
_ERROR: Final = re.compile(r"^==ERROR==\s*(.*)")
_NONE: Final = "No kernels were profiled"
_PERMISSION: Final = re.compile(
    r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance Counters"
    r"|driver resource was unavailable"
)
_OPEN_COUNTERS: Final = (
    "let users read the counters: `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d on the host, then reboot; or profile as root, in Docker with "
    "--cap-add=SYS_ADMIN; where DCGM holds the counters, `dcgmi profile --pause` first"
)
_MAJOR: Final = "device__attribute_compute_capability_major"
_MINOR: Final = "device__attribute_compute_capability_minor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The header and the rows below it, all with their lines."""

    file: str
    header: Row
    rows: tuple[Row, ...]
    is_ended: bool

    def column(self, name: str) -> int | None:
        """Return where a column stands; None where there is none."""
        return self.header.cells.index(name) if name in self.header.cells else None

    def needed(self, names: Sequence[str], *, hint: str) -> list[int]:
        """Return where these columns stand; raises ProfileError where one is missing."""
        for name in names:
            if name not in self.header.cells:
                why = f"the column {name!r} is missing"
                raise refusal(self.file, line=self.header.line, why=why, hint=hint)
        return [self.header.cells.index(name) for name in names]

    def check_width(self, row: Row) -> None:
        """Refuse a row of another width; rows without a rule may end before its columns."""
        full, have = len(self.header.cells), len(row.cells)
        value, rule = self.column("Metric Value"), self.column("Rule Name")
        least = full if value is None or rule is None else value + 1
        if least <= have <= full:
            return
        cut = "; the file was cut off" if row is self.rows[-1] and not self.is_ended else ""
        why = f"{have} cells where the header has {full}{cut}"
        raise refusal(self.file, line=row.line, why=why)


def find_table(lines: tuple[str, ...], *, file: str) -> Table:
    """Return the table of a file; raises ProfileError with what ncu said where there is none."""
    _refuse_errors(lines, file)
    start = next((place for place, text in enumerate(lines) if _HEADER.match(text)), None)
    if start is None:
        raise refusal(file, why=_why_no_table(lines), hint=BASE_UNITS)
    if lines[-1].endswith(","):  # ncu ends its lines, and puts an empty cell in quotes too
        raise refusal(file, line=len(lines), why="the last cell is missing: the file was cut off")
    header = csv_row(start + 1, lines[start], file=file)
    _refuse_double_columns(header, file)
    below = list(csv_records(enumerate(lines[start + 1 :], start + 2), skipped="=="))
    again = next((number for number, text in below if _HEADER.match(text)), None)
    if again is not None:
        raise refusal(file, line=again, why="a second table begins", hint="import each by itself")
    is_ended = lines[-1].endswith("\n")
    return Table(file=file, header=header, rows=csv_rows(below, file=file), is_ended=is_ended)


def _refuse_errors(lines: tuple[str, ...], file: str) -> None:
    """Refuse a file in which ncu says that it failed, whatever it printed besides."""
    numbered = list(enumerate(lines, 1))
    errors = [(line, match[1]) for line, text in numbered if (match := _ERROR.match(text))]
    for line, error in errors:
        if _PERMISSION.search(error):
            why = f"ncu was not allowed to read the counters of the GPU: {error}"
            raise refusal(file, line=line, why=why, hint=_OPEN_COUNTERS)
    for line, error in errors:
        raise refusal(file, line=line, why=f"ncu failed: {error}", hint=BASE_UNITS)
    for line, text in numbered:
        if text.startswith("==") and _NONE in text:
            hint = (
                "check that the program uses the GPU between the marks that ncu was told of "
                "(--nvtx-include, --profile-from-start, --kernel-name)"
            )
            raise refusal(file, line=line, why="no kernels were profiled", hint=hint)


def _why_no_table(lines: tuple[str, ...]) -> str:
    if not any(text.strip() for text in lines):
        return "the file is empty"
    if any(text.startswith("==PROF==") for text in lines):
        return "ncu ran, but no table in CSV follows: it was run without --csv, or was cut off"
    return "it holds no table of Nsight Compute: no line begins with the column ID"


def _refuse_double_columns(header: Row, file: str) -> None:
    seen: set[str] = set()
    for name in header.cells:
        if name in seen:
            raise refusal(file, line=header.line, why=f"column {name!r} stands there twice")
        seen.add(name)


def devices_of(table: Table) -> tuple[Device, ...]:
    """Return each GPU once; a file that names none, as those before 2024, gives none."""
    if table.column("Metric Name") is not None and "Average" in table.header.cells:
        return _of_summary(table)
    rows = (dict(zip(table.header.cells, row.cells, strict=False)) for row in table.rows)
    return tuple(dict.fromkeys(gpu for row in rows if (gpu := device(row)) is not None))


def device(told: Mapping[str, str]) -> Device | None:
    """Return the GPU of a launch from its columns; None where nothing names it."""
    capability = told.get("CC", "")
    if told.get(_MAJOR, "").isdigit():
        capability = f"{told[_MAJOR]}.{told.get(_MINOR, '0')}"
    if not re.fullmatch(r"\d+\.\d", capability):
        return None
    count = re.sub(r"\D", "", told.get("device__attribute_multiprocessor_count", ""))
    return Device(
        name=told.get("device__attribute_display_name", ""),
        chip=chip_of(capability),
        compute_capability=capability,
        multiprocessors=int(count) if count else None,
    )


def _of_summary(table: Table) -> tuple[Device, ...]:
    name, average = table.column("Metric Name"), table.column("Average")
    told = (
        {}
        if name is None or average is None
        else {row.cells[name]: row.cells[average] for row in table.rows}
    )
    column = table.column("CC")
    told |= {"CC": table.rows[0].cells[column]} if column is not None else {}
    gpu = device(told)
    return () if gpu is None else (gpu,)
