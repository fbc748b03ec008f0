"""What can happen to a file: bytes, lines, numbers, units, and the rows of a database."""

from __future__ import annotations

import math
import random
import re
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import strategies as st

_NUMBER = re.compile(rb"-?\d[\d.,]*(?:[eE][+-]?\d+)?")
_UNIT = re.compile(
    rb"\b(?:ns|us|ms|s|nsecond|usecond|msecond|second|byte|Kbyte|Mbyte|Gbyte|inst|sector|cycle)\b|%"
)
_VALUES = (
    b"-1", b"0", b"1", b"nan", b"inf", b"-inf", b"1e308", b"1e-400", b"n/a", b"", b"null", b"[]",
    b"9223372036854775807", b"99999999999999999999999999", b"1.234,5", b"1,234.5", b"0x10",
    "\u0661".encode(), b"true", b'"7"',
)  # fmt: skip
_UNITS = (
    b"ns",
    b"us",
    b"ms",
    b"s",
    b"byte",
    b"Kbyte",
    b"Mbyte",
    b"GB/s",
    b"%",
    b"inst",
    b"",
    b"parsec",
)


Change = Callable[[bytes, random.Random], bytes]


def _place(content: bytes, draw: random.Random) -> int:
    return draw.randrange(len(content) + 1)


def _flip(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(max(1, len(content)))
    return (
        content[:at]
        + bytes(one ^ (1 << draw.randrange(8)) for one in content[at : at + 1])
        + content[at + 1 :]
    )


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: _place(content, draw)]


def _drop(content: bytes, draw: random.Random) -> bytes:
    at = _place(content, draw)
    return content[:at] + content[at + draw.randint(1, 64) :]


def _repeat(content: bytes, draw: random.Random) -> bytes:
    at = _place(content, draw)
    return content[:at] + content[max(0, at - draw.randint(1, 64)) :]


def _insert(content: bytes, draw: random.Random) -> bytes:
    at = _place(content, draw)
    return (
        content[:at] + draw.choice((b"\0", b"\n", b'"', b",", b"\xff", b"==1== x\n")) + content[at:]
    )


def _lines(change: Callable[[list[bytes], int, random.Random], None]) -> Change:
    def changed(content: bytes, draw: random.Random) -> bytes:
        lines = content.splitlines(keepends=True)
        if lines:
            change(lines, draw.randrange(len(lines)), draw)
        return b"".join(lines)

    return changed


def _swap(lines: list[bytes], at: int, draw: random.Random) -> None:
    other = draw.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]


def _token(pattern: re.Pattern[bytes], others: Sequence[bytes]) -> Change:
    def changed(content: bytes, draw: random.Random) -> bytes:
        found = list(pattern.finditer(content))
        if not found:
            return content
        one = draw.choice(found)
        return content[: one.start()] + draw.choice(others) + content[one.end() :]

    return changed


def _separators(content: bytes, _: random.Random) -> bytes:
    swapped = bytes.maketrans(b".,", b",.")
    return _NUMBER.sub(lambda found: found[0].translate(swapped), content)


def _separator(content: bytes, draw: random.Random) -> bytes:
    found = [one for one in _NUMBER.finditer(content) if b"." in one[0] or b"," in one[0]]
    if not found:
        return content
    one = draw.choice(found)
    swapped = one[0].translate(bytes.maketrans(b".,", b",."))
    return content[: one.start()] + swapped + content[one.end() :]


def _cell(content: bytes, draw: random.Random) -> bytes:
    """Put a value that does not belong there into a cell of a database."""

    def changed(database: sqlite3.Connection, table: str) -> None:
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        value = draw.choice((None, -1, 0, 1, 2**63 - 1, -(2**63), 1.5, "x", b"\xff", math.inf, 7))
        database.execute("PRAGMA writable_schema = ON")
        query = f'UPDATE "{table}" SET "{draw.choice(columns)}" = ? WHERE rowid = ?'
        database.execute(query, (value, draw.randint(1, 12)))

    return _in_database(content, draw, changed)


def _row(content: bytes, draw: random.Random) -> bytes:
    """Remove or repeat a row of a database, or all of a table."""

    def changed(database: sqlite3.Connection, table: str) -> None:
        number = draw.randint(1, 12)
        texts = (
            f'DELETE FROM "{table}" WHERE rowid = {number}',
            f'INSERT INTO "{table}" SELECT * FROM "{table}" WHERE rowid = {number}',
            f'DROP TABLE "{table}"',
            f'ALTER TABLE "{table}" RENAME COLUMN "start" TO "begin"',
        )
        database.execute(draw.choice(texts))

    return _in_database(content, draw, changed)


def _in_database(
    content: bytes, draw: random.Random, change: Callable[[sqlite3.Connection, str], None]
) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        Path(file.name).write_bytes(content)
        database = sqlite3.connect(file.name)
        try:
            query = "SELECT CAST(name AS TEXT) FROM sqlite_master WHERE sql <> ''"
            names = [row[0] for row in database.execute(query)]
            change(database, draw.choice(sorted(names)))
            database.commit()
        except (sqlite3.Error, IndexError, UnicodeDecodeError):
            return content
        finally:
            database.close()
        return Path(file.name).read_bytes()


BYTES: dict[str, Change] = {
    "flip": _flip, "cut": _cut, "drop": _drop, "repeat": _repeat, "insert": _insert,
}  # fmt: skip
TEXT: dict[str, Change] = {
    "drop line": _lines(lambda lines, at, _: lines.__delitem__(at)),
    "repeat line": _lines(lambda lines, at, _: lines.insert(at, lines[at])),
    "swap lines": _lines(_swap),
    "number": _token(_NUMBER, _VALUES),
    "unit": _token(_UNIT, _UNITS),
    "separator": _separator,
    "separators": _separators,
}
DATABASE: dict[str, Change] = {"cell": _cell, "row": _row}


def spoilt(data: st.DataObject, content: bytes) -> bytes:
    """Return the content with up to four places replaced, cut or widened."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    return bytes(changed)
