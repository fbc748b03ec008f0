"""Text files of profilers as lines, and quoted CSV as rows that know their line."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envcompare.profilers.refusing import refusal


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a CSV file as cells."""

    line: int
    cells: tuple[str, ...]


def read_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a text file with their ends; raises ProfileError where it is none."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise refusal(path.name, why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise refusal(
            path.name,
            why=f"byte {error.start} is no UTF-8 text",
            hint="write the file again with LC_ALL=C, and do not convert it",
        ) from error
    if "\0" in text:
        raise refusal(path.name, why="it holds zero bytes, so it is no text file")
    return tuple(text.replace("\r\n", "\n").splitlines(keepends=True)) if text else ()


def csv_row(line: int, text: str, *, file: str) -> Row:
    """Return the cells of one line; a quote that stays open is refused."""
    try:
        # names of kernels hold commas and doubled quotes, never a new line
        cells = next(csv.reader([text.rstrip("\n")], strict=True), [])
    except csv.Error as error:
        why = f"{error} (a quote that does not close, or a line that was cut)"
        raise refusal(file, line=line, why=why) from error
    return Row(line, tuple(cells))


def csv_rows(lines: Iterable[tuple[int, str]], *, file: str) -> tuple[Row, ...]:
    """Return the rows of numbered lines; empty lines are left out."""
    return tuple(csv_row(line, text, file=file) for line, text in lines if text.strip())
