"""Find secrets in profiler files, which may record the environment of the profiled program."""

from __future__ import annotations

import gzip
import re
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, cast

from envcompare.masking import masked
from envcompare.profile_files.rawfiles import GZIP, SQLITE, first_bytes

_CHUNK_BYTES: Final = 1 << 22
_OVERLAP_BYTES: Final = 1 << 12  # so that a variable across two chunks is found in the second
# NAME=value and "NAME": "value", with the quotes of JSON within JSON
_VARIABLE: Final = re.compile(
    rb"(?<![A-Za-z0-9_])([A-Za-z][A-Za-z0-9_]{2,127})\\{0,3}[\"']?[ \t]{0,3}[=:][ \t]{0,3}\\{0,3}"
    rb"[\"']?([^\s\"'\\,}\0]{4,512})"
)
# Paths of folders, sockets and programs.
_NO_SECRETS: Final = frozenset({
    "PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "SSH_ASKPASS", "GIT_ASKPASS", "SUDO_ASKPASS",
})  # fmt: skip
# In lower case, a word such as key is too common.
_PLAIN: Final = re.compile(r"passw|secret|api_?key|access_?key|_token$")
_NUMBER: Final = re.compile(r"INT\w*|REAL|FLOAT|DOUBLE|NUM\w*", re.IGNORECASE)
_ROWS: Final = 10_000
# a command line, which nvprof and ncu repeat
_COMMAND: Final = re.compile(rb"^==\d*=*.*$", re.MULTILINE)


def secret_in(path: Path) -> str:
    """Return the name of a variable with a secret, or "a command line"; empty if none.

    Data in a packed format of the tool, other than gzip, is not searched.
    """
    if first_bytes(path, len(SQLITE)) == SQLITE:
        return next((name for text in _cells(path) if (name := _secret(text))), "")
    return next((name for chunk in _chunks(path) if (name := _secret(chunk))), "")


def _secret(text: bytes) -> str:
    for name, value in {(name.decode(), value) for name, value in _VARIABLE.findall(text)}:
        is_suspect = name.isupper() or b"@" in value or _PLAIN.search(name)
        if is_suspect and name not in _NO_SECRETS:
            pair = f"{name}={value.decode(errors='replace')}"
            if masked(pair) != pair:
                return str(name)
    lines = (line.decode(errors="replace") for line in _COMMAND.findall(text))
    return "a command line" if any(masked(line) != line for line in lines) else ""


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield a file in chunks, unpacked if it is gzip."""
    with path.open("rb") as raw:
        is_packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_packed else raw
        held = b""
        try:
            while chunk := file.read(_CHUNK_BYTES):
                yield held + chunk
                held = chunk[-_OVERLAP_BYTES:]
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return  # its reader reports the damage


def _cells(path: Path) -> Iterator[bytes]:
    """Yield the texts of a database row by row, as name=value and individually."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    database.text_factory = lambda raw: raw.decode(errors="replace")  # a variable may hold anything
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    try:
        for (table,) in database.execute(tables).fetchall():
            kinds = database.execute(f'PRAGMA table_info("{table}")').fetchall()
            names = [f'"{column[1]}"' for column in kinds if _NUMBER.fullmatch(column[2]) is None]
            if names:
                query = f'SELECT {", ".join(names)} FROM "{table}"'  # noqa: S608 — of the schema
                yield from _rows(database.execute(query))
    except sqlite3.Error:
        return  # its reader reports the damage
    finally:
        database.close()


def _rows(cursor: sqlite3.Cursor) -> Iterator[bytes]:
    while rows := cursor.fetchmany(_ROWS):
        texts = [[str(cell) for cell in row if isinstance(cell, str)] for row in rows]
        yield "\n".join(text for row in texts for text in ("=".join(row), *row)).encode(
            errors="replace"
        )
