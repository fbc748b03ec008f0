"""The table in what Nsight Compute printed: found behind its messages, cut off or whole.

A live run prints messages and the output of the profiled program before the table; the table
begins where the first cell is `ID` (or `Process ID` in a summary).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.tables import Row, csv_records, csv_row, csv_rows

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
_AGAIN: Final = (
    "write it again: `LC_ALL=C ncu --import FILE.ncu-rep --csv --page raw --print-units base`"
)


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


def find_table(lines: tuple[str, ...], *, file: str) -> Table:
    """Return the table of a file; raises ProfileError with what ncu said where there is none."""
    _refuse_errors(lines, file)
    start = next((place for place, text in enumerate(lines) if _HEADER.match(text)), None)
    if start is None:
        raise refusal(file, why=_why_no_table(lines), hint=_AGAIN)
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
    told = [
        (number, found) for number, text in enumerate(lines, 1) if (found := _ERROR.match(text))
    ]
    locked = next((one for one in told if _PERMISSION.search(one[1][1])), None)
    if locked:
        why = f"ncu was not allowed to read the counters of the GPU: {locked[1][1]}"
        raise refusal(file, line=locked[0], why=why, hint=_OPEN_COUNTERS)
    empty = next(
        (n for n, text in enumerate(lines, 1) if text.startswith("==") and _NONE in text), None
    )
    if told:
        raise refusal(file, line=told[0][0], why=f"ncu failed: {told[0][1][1]}", hint=_AGAIN)
    if empty is not None:
        raise refusal(
            file,
            line=empty,
            why="no kernels were profiled",
            hint="check that the program uses the GPU between the marks that ncu was told of "
            "(--nvtx-include, --profile-from-start, --kernel-name)",
        )


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
