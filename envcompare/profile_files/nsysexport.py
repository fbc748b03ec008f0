"""Open the SQLite export of an Nsight Systems report; every number is checked when it is read.

A report is first exported by nsys, if nsys is on PATH.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from envcompare.errors import ProfileError
from envcompare.profile_files import Table
from envcompare.profile_files.rawfiles import (
    SQLITE,
    convert,
    first_bytes,
    refusal,
    secret_in,
)
from envcompare.text import cause_line

_HEADER_BYTES: Final = 100
_STEPS: Final = 1_000_000  # of the SQLite virtual machine
_LIMIT_S: Final = 3600.0  # for a whole file
AGAIN: Final = "export again: nsys export --type sqlite --lazy=false -f true -o OUT.sqlite REPORT"
_COLLECT: Final = f"collect again, since the report itself may be damaged; if it is not, {AGAIN}"
_OF_TRACE: Final = re.compile(
    r"ANALYSIS_DETAILS|CUPTI_ACTIVITY_KIND_|NVTX_EVENTS|TARGET_INFO_|OSRT_|SCHED_EVENTS|COMPOSITE_"
)
# Message of nsys: Report was created in Nsight Systems version (…), newer than your current version
_NEWER: Final = re.compile(r"\bnewer than\b")


class Export:
    """The tables of an export."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name = name
        self._connection = connection
        # No export contains views or virtual tables, which could run anything.
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
        self._tables = frozenset(name for (name,) in connection.execute(query))
        self._strings: dict[int, str] = {}

    @property
    def is_of_nsys(self) -> bool:
        """Return whether nsys wrote it."""
        # exports of 2019 lack some tables
        return "StringIds" in self._tables and any(map(_OF_TRACE.match, self._tables))

    def has(self, table: str) -> bool:
        """Return whether a table exists and has rows; older exports omit empty tables."""
        if table not in self._tables:
            return False
        query = f'SELECT 1 FROM "{table}" LIMIT 1'  # noqa: S608 — a name of the schema
        return self._connection.execute(query).fetchone() is not None

    def has_any(self, table: str, column: str) -> bool:
        """Return whether a table has the column, with a number above 0."""
        if column not in self.columns(table):
            return False
        query = f'SELECT 1 FROM "{table}" WHERE "{column}" > 0 LIMIT 1'  # noqa: S608 — names of the schema
        return self._connection.execute(query).fetchone() is not None

    def columns(self, table: str) -> frozenset[str]:
        """Return the column names of a table; none for a view or a missing table."""
        if table not in self._tables:
            return frozenset()
        return frozenset(
            row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')
        )

    def rows(
        self, table: str, needed: Sequence[str], optional: Sequence[str] = (), *, where: str
    ) -> Iterator[tuple[int, ...]]:
        """Return rows of integers, row number last; a missing optional value is -1.

        Only rows that match `where` are checked. Raises ProfileError if a needed column or value
        is missing.
        """
        self._check(table, needed, self._columns(table, needed, optional), where=where)
        # Not a generator: closing an unfinished one fails after the database is closed.
        return self._select(table, needed, optional, where=where)

    def numbers(self, table: str, needed: Sequence[str], optional: Sequence[str] = ()) -> Table:
        """Return the rows as a table of these columns and `place`.

        An array of machine integers takes a tenth of the memory of Python objects and rejects
        anything else; only then are the rows searched for the reason.
        """
        kept = self._columns(table, needed, optional)
        cursor = self._select(table, needed, optional)
        names = (*needed, *optional, "place")
        try:
            cells = array("q", chain.from_iterable(cursor))
        except TypeError:
            self._check(table, needed, kept)
            raise
        rows = np.asarray(cells).view([(name, np.int64) for name in names])
        if {"start", "end"} <= set(names) and not (
            (rows["start"] >= 0) & (rows["end"] >= rows["start"])
        ).all():
            self._check(table, needed, kept)
        return rows

    def _columns(
        self, table: str, needed: Sequence[str], optional: Sequence[str]
    ) -> tuple[str, ...]:
        """Return the optional columns that exist; raises ProfileError for a missing needed one."""
        there = self.columns(table)
        for name in needed:
            if name not in there:
                raise self.refusal(table, f"there is no column {name}")
        return tuple(name for name in optional if name in there)

    def _select(
        self, table: str, needed: Sequence[str], optional: Sequence[str], *, where: str = "1"
    ) -> sqlite3.Cursor:
        kept = self._columns(table, needed, optional)
        cells = [f'"{name}"' for name in needed]
        cells += [f'COALESCE("{name}", -1)' if name in kept else "-1" for name in optional]
        # An index on a column of `where` would give the rows in its own order.
        query = f'SELECT {", ".join(cells)}, rowid FROM "{table}" WHERE {where} ORDER BY rowid'  # noqa: S608 — names of the schema
        return self._connection.execute(query)

    def _check(
        self, table: str, needed: Sequence[str], optional: Sequence[str], *, where: str = "1"
    ) -> None:
        """Refuse the first row with a non-integer cell, or with an end before its start."""
        wrong = [f"typeof(\"{name}\") <> 'integer'" for name in needed]
        wrong += [f"typeof(\"{name}\") NOT IN ('integer', 'null')" for name in optional]
        if {"start", "end"} <= {*needed, *optional}:
            wrong += ['"end" < "start"', '"start" < 0']
        names = ", ".join(f'"{name}"' for name in (*needed, *optional))
        query = (
            f'SELECT rowid, {names} FROM "{table}" WHERE {where} AND ({" OR ".join(wrong)}) LIMIT 1'  # noqa: S608 — names of the schema
        )
        wrong_row = self._connection.execute(query).fetchone()
        if wrong_row is None:
            return
        number, *cells = wrong_row
        row = dict(zip((*needed, *optional), cells, strict=True))
        raise self.refusal(table, _reason(row, needed), row=number, hint=_COLLECT)

    def pairs(self, table: str, key: str, value: str) -> dict[str, str]:
        """Return a table of names and values; empty if the table or a column is missing."""
        if not {key, value} <= self.columns(table):
            return {}
        query = f'SELECT "{key}", "{value}" FROM "{table}"'  # noqa: S608 — names of the schema
        return {str(name): str(text) for name, text in self._connection.execute(query)}

    def query(self, text: str) -> Iterator[tuple[object, ...]]:
        """Return the rows that an SQL text selects."""
        return self._connection.execute(text)

    def text(self, table: str, column: str, row: np.void) -> str:
        """Return the text whose number is in a column; raises ProfileError if there is none."""
        return self.string(table, column, int(row[column]), row=int(row["place"]))

    def string(self, table: str, column: str, number: int, *, row: int) -> str:
        """Return a string of StringIds; raises ProfileError if the number has none."""
        if number in self._strings:
            return self._strings[number]
        query = "SELECT value FROM StringIds WHERE id = ?"
        values = self._connection.execute(query, (number,)).fetchmany(2)
        if len(values) != 1 or not isinstance(values[0][0], str):
            rows = "no row" if not values else "no single text"
            raise self.refusal(table, f"{column} {number} has {rows} in StringIds", row=row)
        self._strings[number] = values[0][0]
        return self._strings[number]

    def refusal(
        self, table: str, why: str, *, row: int | None = None, hint: str = AGAIN
    ) -> ProfileError:
        """Return the error for a table or one of its rows."""
        place = f"table {table}" if row is None else f"table {table}, row {row}"
        return refusal(self.name, why=f"{place}: {why}", hint=hint)


def _reason(row: dict[str, object], needed: Sequence[str]) -> str:
    for name, cell in row.items():
        if cell is None and name in needed:
            return f"{name} is NULL"
        if cell is not None and not isinstance(cell, int):
            return f"{name} is {cell!r}, not a whole number"
    start, end = row["start"], row["end"]
    assert isinstance(start, int)
    return f"start {start} is before 0" if start < 0 else f"end {end} is before start {start}"


@contextmanager
def open_export(path: Path) -> Iterator[Export]:
    """Open an export read-only, or a report if nsys is on PATH to export it.

    Raises ProfileError if it is incomplete, or if nsys is missing, with the command to run.
    """
    with export_path(path) as database, _connect(database) as connection:
        yield Export(path.name, connection)


@contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    _check_file(path)
    connection, end = None, time.monotonic() + _LIMIT_S
    try:
        # `immutable` creates no lock or journal next to a file on a shared disk.
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True)
        # an environment variable may contain any bytes
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        # Python handles Ctrl-C only in this callback
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        # SQLite recommends these settings and a check for a file of unknown origin
        # (sqlite.org/security.html).
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise refusal(path.name, why=f"the database is damaged: {verdict}", hint=AGAIN)
        yield connection
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        if time.monotonic() > end:
            why = f"reading it takes longer than {_LIMIT_S / 60:.0f} min"
            hint = "collect fewer steps, and export again"
            raise refusal(path.name, why=why, hint=hint) from error
        raise refusal(path.name, why=f"the database is damaged: {error}", hint=AGAIN) from error
    finally:
        if connection is not None:
            connection.close()


def _check_file(path: Path) -> None:
    """Refuse a file that is not SQLite, is truncated, or is still being written."""
    head = first_bytes(path, _HEADER_BYTES)
    size = path.stat().st_size
    if not head.startswith(SQLITE) or len(head) < _HEADER_BYTES:
        raise refusal(path.name, why="it is not an SQLite database", hint=AGAIN)
    page = int.from_bytes(head[16:18], "big")
    # A page size of 65536 does not fit into the two bytes, and is written as 1 (SQLite file format,
    # section 1.3.2).
    whole = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    if size < whole:
        raise refusal(path.name, why=f"it is cut off after {size} of {whole} bytes", hint=AGAIN)
    for ending in ("-wal", "-journal"):
        journal = path.with_name(path.name + ending)
        if journal.is_file() and journal.stat().st_size:
            raise refusal(
                path.name, why=f"it is still being written: {journal.name} exists", hint=AGAIN
            )


def secret_in_report(path: Path) -> str:
    """Return what `secret_in` finds in a file; in a report of nsys, also in its export.

    A report packs its texts. Raises ProfileError if nsys cannot export it.
    """
    if name := secret_in(path):
        return name
    with export_path(path) as database:
        return "" if database == path else secret_in(database)


@contextmanager
def export_path(path: Path) -> Iterator[Path]:
    """Yield the path of an export, or of a temporary export of a report."""
    if path.suffix.lower() not in {".nsys-rep", ".qdrep"}:
        yield path
        return
    command = " ".join(_command(path.name, f"{path.stem}.sqlite"))
    hint = f"with the nsys that collected it, or a newer one: {command}"
    if shutil.which("nsys") is None:
        why = "this is a report of nsys, and nsys, which exports it, is not on PATH"
        raise refusal(path.name, why=why, hint=hint)
    if not path.is_file():
        raise refusal(path.name, why="there is no such file", hint=hint)
    with tempfile.TemporaryDirectory(prefix="envcompare-") as folder:
        database = Path(folder, f"{path.stem}.sqlite")
        argv = _command(str(path.resolve()), str(database))
        done, newer = convert(argv, file=path.name, newer=_NEWER, hint=hint)
        if done.returncode or not database.is_file():
            cause = cause_line(done.stdout + done.stderr, brief="")
            why = f"nsys cannot export it: {cause or f'exit code {done.returncode}'}"
            if newer:
                why = f"the nsys on PATH is older than the report: {newer}"
            raise refusal(path.name, why=why, hint=hint)
        yield database


def _command(report: str, database: str) -> tuple[str, ...]:
    return (
        "nsys", "export", "--type=sqlite", "--lazy=false", "--force-overwrite=true",
        f"--output={database}", report,
    )  # fmt: skip
