"""The files of profilers as they lie on disk: opened, decoded, cut into rows of CSV, or refused."""

from __future__ import annotations

import codecs
import csv
import re
import subprocess
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from envcompare.errors import ProfileError
from envcompare.text import shortened, visible_line

GZIP: Final = b"\x1f\x8b"
SQLITE: Final = b"SQLite format 3\0"
_SAMPLE_BYTES: Final = 256
_CONVERTED_WITHIN_S: Final = 600.0
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a CSV file as cells, with the line it begins in."""

    line: int
    cells: tuple[str, ...]


def refusal(file: str, *, why: str, line: int | None = None, hint: str = "") -> ProfileError:
    """Return the error for a file that cannot be read or trusted: which line, why, what to do."""
    place = "" if line is None else f"line {line}: "
    return ProfileError(
        f"cannot trust {file}",
        details=place + visible_line(shortened(why, most=600)),
        hint=hint or "write the file again with the profiler, and import it whole",
    )


def first_bytes(path: Path, count: int) -> bytes:
    """Return what a file begins with; raises ProfileError where it cannot be opened."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise refusal(
            path.name,
            why=f"it cannot be opened: {error.strerror or error}",
            hint="name a file that is there and may be read",
        ) from error


def convert(
    argv: Sequence[str],
    *,
    file: str,
    newer: re.Pattern[str],
    hint: str = "",
    env: Mapping[str, str] | None = None,
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the program that converts a report; return how it ended, and its line on a newer report.

    Raises ProfileError where it cannot be started, or does not end in time.
    """
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True,
            errors="replace", env=env, timeout=_CONVERTED_WITHIN_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        why = f"{argv[0]} did not convert it within {_CONVERTED_WITHIN_S:.0f} s"
        raise refusal(file, why=why, hint=hint) from error
    except OSError as error:
        raise refusal(file, why=f"{argv[0]} did not convert it: {error}", hint=hint) from error
    lines = (done.stdout + done.stderr).splitlines()
    return done, next((line.strip() for line in lines if newer.search(line)), "")


def first_repeated(keys: Iterable[tuple[int | None, _Key]]) -> tuple[int | None, _Key] | None:
    """Return the first key that stands in the file a second time, with its line there."""
    seen: set[_Key] = set()
    for line, key in keys:
        if key in seen:
            return line, key
        seen.add(key)
    return None


def lacking_at_end(names: Sequence[set[str]]) -> str:
    """Return a name that the last lacks and all others have, as where a file was cut off."""
    lacking = set.intersection(*names[:-1]) - names[-1] if len(names) > 1 else set[str]()
    return min(lacking, default="")


def encoding_of(head: bytes) -> str:
    """Return how a text is encoded, by its first bytes: UTF-8, or UTF-16 as of PowerShell."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:_SAMPLE_BYTES]
    is_wide = len(sample) > 1 and not any(sample[1::2]) and all(sample[::2])
    return "utf-16-le" if is_wide else "utf-8-sig"


def read_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a text file with their ends; raises ProfileError where it is none."""
    content = first_bytes(path, -1)
    try:
        text = content.decode(encoding_of(content))
    except UnicodeDecodeError as error:
        raise refusal(
            path.name,
            why=f"byte {error.start} is no {error.encoding.upper()} text",
            hint="write the file again with LC_ALL=C, and do not convert it",
        ) from error
    if "\0" in text:
        raise refusal(path.name, why="it holds zero bytes, so it is no text file")
    return tuple(text.replace("\r\n", "\n").splitlines(keepends=True)) if text else ()


def csv_records(lines: Iterable[tuple[int, str]], *, skipped: str) -> Iterator[tuple[int, str]]:
    """Yield rows of CSV by their first line: a cell in quotes may hold ends of lines.

    Lines between rows that begin with `skipped` are left out.
    """
    start, held, is_open = 0, list[str](), False
    for number, text in lines:
        if not held and text.startswith(skipped):
            continue
        start = start if held else number
        held.append(text)
        is_open ^= text.count('"') % 2 == 1
        if not is_open:
            yield start, "".join(held)
            held.clear()
    if held:
        yield start, "".join(held)


def csv_row(line: int, text: str, *, file: str) -> Row:
    """Return the cells of one row; a quote that stays open is refused."""
    try:
        cells = next(csv.reader([text.rstrip("\n")], strict=True), [])
    except csv.Error as error:
        why = f"{error} (a quote that does not close, or a line that was cut)"
        raise refusal(file, line=line, why=why) from error
    return Row(line, tuple(cells))


def csv_rows(lines: Iterable[tuple[int, str]], *, file: str) -> tuple[Row, ...]:
    """Return the rows of numbered records; empty lines are left out."""
    return tuple(csv_row(line, text, file=file) for line, text in lines if text.strip())
