"""Open and decode profiler files, split CSV rows, and parse numbers and units exactly.

Nsight Compute prints numbers in the locale of its user, so a cell can be ambiguous: 1.234 is more
than a thousand in German. All cells of a file must fit one convention. A file that fits two
conventions with different values is refused.

Secrets are found in such files too, since a profiler may record the environment of its program.
"""

from __future__ import annotations

import codecs
import csv
import errno
import gzip
import os
import re
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar, cast

from envcompare.errors import ProfileError
from envcompare.files import MIB, PRINTED_BYTES, SETTINGS_BYTES, opened, read_whole
from envcompare.text import masked, shortened, visible_line

GZIP: Final = b"\x1f\x8b"
SQLITE: Final = b"SQLite format 3\0"
_SAMPLE_BYTES: Final = 256
_CONVERTED_WITHIN_S: Final = 600.0
# The marks of all locales, so that no number is mistaken for text.
_MARKS: Final = r"[\d.,'\u2019\u202f\u00a0 ]"
_LOOK: Final = re.compile(rf"[+-]?{_MARKS}*\d{_MARKS}*(?:[eE][+-]?\d+)?")
# ncu prints scaled values with six decimals and a point in every locale, even among grouped ones
_FIXED: Final = re.compile(r"[+-]?\d+\.\d{6}")
_MISSING: Final = frozenset({"", "n/a", "nan", "-nan", "inf", "-inf", "(nan)", "no data"})
_PLAIN_NUMBERS: Final = (
    "write the file again with `LC_ALL=C ncu --import … --csv --page raw --print-units base`"
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_TIMES: Final = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "µs": 1e3, "msecond": 1e6, "ms": 1e6,
    "second": 1e9, "s": 1e9,
}  # fmt: skip
_COUNTS: Final = frozenset({
    "block", "cta", "cycle", "dsects", "inst", "instruction", "op", "ops", "register", "request",
    "sector", "thread", "thread_inst", "warp", "wavefront", "tag", "access", "node", "item",
})  # fmt: skip
_Key = TypeVar("_Key", bound=Hashable)
_CHUNK_BYTES: Final = 1 << 22
# So much of a chunk is searched again with the next one, to find a variable that lies across both.
_OVERLAP_BYTES: Final = 1 << 12
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
# a command line, which nvprof and ncu repeat
_COMMAND: Final = re.compile(rb"^==\d*=*.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one CSV row, and the number of its first line."""

    line: int
    cells: tuple[str, ...]


def refusal(file: str, *, why: str, line: int | None = None, hint: str = "") -> ProfileError:
    """Return the error for a file that cannot be read or trusted."""
    place = "" if line is None else f"line {line}: "
    return ProfileError(
        f"cannot trust {file}",
        details=place + visible_line(shortened(why, most=600)),
        hint=hint or "write the file again with the profiler, and import it whole",
    )


def first_bytes(path: Path, count: int, *, most: int | None = None) -> bytes:
    """Return up to `count` bytes; raises ProfileError if the file cannot be opened.

    Also raises ProfileError if it is larger than `most` bytes.
    """
    try:
        with opened(path, most=most) as file:
            return file.read(count)
    except OSError as error:
        raise _unopened(path, error) from error


def _unopened(path: Path, error: OSError) -> ProfileError:
    is_large = error.errno == errno.EFBIG
    return refusal(
        path.name,
        why=str(error) if is_large else f"it cannot be opened: {error.strerror or error}",
        hint="profile fewer steps" if is_large else "check the path and its permissions",
    )


def convert(  # noqa: PLR0913 — a command, its limit, and the parts of its error
    argv: Sequence[str],
    *,
    file: str,
    newer: re.Pattern[str],
    most: int = SETTINGS_BYTES,
    hint: str = "",
    env: Mapping[str, str] | None = None,
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a program that converts a report.

    Returns its result, and its first line that matches `newer` (a report of a newer version).
    Raises ProfileError if it cannot be started, times out, or prints more than `most` bytes to a
    stream.
    """
    try:
        done = _run_bounded(argv, env, most=most)
    except _PrintedTooMuchError as error:
        why = f"{argv[0]} printed more than {most // MIB} MiB to convert it"
        raise refusal(file, why=why, hint=hint) from error
    except subprocess.TimeoutExpired as error:
        why = f"{argv[0]} did not convert it within {_CONVERTED_WITHIN_S:.0f} s"
        raise refusal(file, why=why, hint=hint) from error
    except OSError as error:
        raise refusal(file, why=f"{argv[0]} did not convert it: {error}", hint=hint) from error
    lines = (done.stdout + done.stderr).splitlines()
    return done, next((line.strip() for line in lines if newer.search(line)), "")


class _PrintedTooMuchError(Exception):
    """A program printed more than its limit, and was ended."""


def _run_bounded(
    argv: Sequence[str], env: Mapping[str, str] | None, *, most: int
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; kill it and its children beyond a limit of time or output."""
    with (
        subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # As leader of a process group, so that a kill reaches its children too.
            env=env, start_new_session=True,
        ) as process,
        # Both pipes are read at once, because a program blocks on a full pipe (pipe(7)).
        ThreadPoolExecutor(max_workers=2) as readers,
    ):  # fmt: skip
        try:
            pipes = (process.stdout, process.stderr)
            reading = [readers.submit(_read_bounded, pipe, most) for pipe in pipes if pipe]
            # In order of completion, so that one stream above its limit is noticed while the other
            # is open.
            for done in as_completed(reading, timeout=_CONVERTED_WITHIN_S):
                done.result()
            process.wait(timeout=_CONVERTED_WITHIN_S)
        except BaseException as error:
            # the whole group, since a child that holds a pipe would keep its reader waiting
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, FutureTimeoutError):
                raise subprocess.TimeoutExpired(argv, _CONVERTED_WITHIN_S) from error
            raise
        stdout, stderr = (done.result().decode(errors="replace") for done in reading)
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def _read_bounded(pipe: IO[bytes], most: int) -> bytes:
    content = pipe.read(most + 1)
    if len(content) > most:
        raise _PrintedTooMuchError
    return content


def first_repeated(keys: Iterable[tuple[int | None, _Key]]) -> tuple[int | None, _Key] | None:
    """Return the first repeated key, with the line of the repetition."""
    seen: set[_Key] = set()
    for line, key in keys:
        if key in seen:
            return line, key
        seen.add(key)
    return None


def lacking_at_end(names: Sequence[set[str]]) -> str:
    """Return a name that all sets have except the last, which suggests a truncated file."""
    lacking = set.intersection(*names[:-1]) - names[-1] if len(names) > 1 else set[str]()
    return min(lacking, default="")


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text, judged by its first bytes: UTF-8 or UTF-16."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:_SAMPLE_BYTES]
    # In UTF-16 without a byte order mark, ASCII text has a zero in every second byte.
    is_wide = len(sample) > 1 and not any(sample[1::2]) and all(sample[::2])
    return "utf-16-le" if is_wide else "utf-8-sig"


def read_lines(path: Path) -> tuple[str, ...]:
    """Return the lines with their line ends; raises ProfileError if it is not a text file."""
    try:
        content = read_whole(path, most=PRINTED_BYTES)
    except OSError as error:
        raise _unopened(path, error) from error
    try:
        text = content.decode(encoding_of(content))
    except UnicodeDecodeError as error:
        raise refusal(
            path.name,
            why=f"byte {error.start} is not valid {error.encoding.upper()}",
            hint="write the file again with LC_ALL=C, and do not convert it",
        ) from error
    if "\0" in text:
        raise refusal(path.name, why="it contains zero bytes, so it is not a text file")
    return tuple(text.replace("\r\n", "\n").splitlines(keepends=True)) if text else ()


def csv_records(lines: Iterable[tuple[int, str]], *, skipped: str) -> Iterator[tuple[int, str]]:
    """Yield CSV rows with the number of their first line; quoted cells may span lines.

    Lines between rows that start with `skipped` are dropped.
    """
    start, held, is_open = 0, list[str](), False
    for number, text in lines:
        if not held and text.startswith(skipped):
            continue
        start = start if held else number
        held.append(text)
        # Quotes within a cell are doubled (RFC 4180), so an odd number of them leaves the cell
        # open.
        is_open ^= text.count('"') % 2 == 1
        if not is_open:
            yield start, "".join(held)
            held.clear()
    if held:
        yield start, "".join(held)


def csv_row(line: int, text: str, *, file: str) -> Row:
    """Return the cells of one row; raises ProfileError for an unclosed quote."""
    try:
        # Only the strict mode refuses an unclosed quote.
        cells = next(csv.reader([text.rstrip("\n")], strict=True), [])
    except csv.Error as error:
        why = f"{error} (an unclosed quote or a truncated line)"
        raise refusal(file, line=line, why=why) from error
    return Row(line, tuple(cells))


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a locale writes numbers."""

    name: str
    groups: str
    decimal: str
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, name: str, *, groups: str, decimal: str) -> Convention:
        """Return a convention whose groups of three digits are mandatory."""
        # No locale groups digits after a leading 0, so 0.123 can only be a fraction.
        whole = (
            rf"(?:\d{{1,3}}|[1-9]\d{{0,2}}(?:{re.escape(groups)}\d{{3}})+)" if groups else r"\d+"
        )
        pattern = rf"[+-]?{whole}(?:{re.escape(decimal)}\d+)?(?:[eE][+-]?\d+)?"
        return cls(name=name, groups=groups, decimal=decimal, pattern=re.compile(pattern, re.ASCII))

    def fits(self, text: str) -> bool:
        """Return whether the text is a number in this convention."""
        return bool(self.pattern.fullmatch(text) or _FIXED.fullmatch(text))

    def value(self, text: str) -> float:
        """Return the number in a text that fits."""
        if _FIXED.fullmatch(text):
            return float(text)
        plain = text.replace(self.groups, "") if self.groups else text
        return float(plain.replace(self.decimal, "."))


_CONVENTIONS: Final = (
    Convention.of("1234.5", groups="", decimal="."),
    Convention.of("1,234.5", groups=",", decimal="."),
    Convention.of("1.234,5", groups=".", decimal=","),
)
"""The conventions of LC_ALL=C, English and German locales."""


def is_missing(text: str) -> bool:
    """Return whether a cell has no value: empty, n/a or not finite."""
    return text.strip().lower() in _MISSING


def decide(cells: Iterable[tuple[int, str]], *, file: str) -> Convention:
    """Return the one convention that fits all cells; `cells` are lines and texts.

    Raises ProfileError if none fits, or if several fit and disagree on a value.
    """
    lines: dict[str, int] = {}
    for line, text in cells:
        if text not in lines:
            lines[text] = line
    # fixed six-decimal numbers are the same in every locale
    numbers = {
        text: line
        for text, line in lines.items()
        if _LOOK.fullmatch(text) and not _FIXED.fullmatch(text)
    }
    fitting = list(_CONVENTIONS)
    for text, line in numbers.items():
        remaining = [convention for convention in fitting if convention.fits(text)]
        if not remaining:
            names = " or ".join(convention.name for convention in fitting)
            why = f"{text!r} does not fit the number format of the lines above ({names})"
            raise refusal(file, line=line, why=why, hint=_PLAIN_NUMBERS)
        fitting = remaining
    for text, line in numbers.items():
        readings = {convention.value(text): convention.name for convention in reversed(fitting)}
        if len(readings) > 1:
            values_text = " or ".join(f"{value:g} (as {name})" for value, name in readings.items())
            why = f"{text!r} may be {values_text}, and no other number in the file decides which"
            raise refusal(file, line=line, why=why, hint=_PLAIN_NUMBERS)
    return fitting[0]


@dataclass(frozen=True, slots=True)
class Unit:
    """The factor that converts a number to its base unit."""

    factor: float
    base: str


def read_unit(text: str) -> Unit | None:
    """Parse a unit such as `Mbyte/second`; None if unknown.

    Times become ns, sizes B, and rates are per second. Prefixes are powers of 1000, as in ncu.
    """
    upper, line, lower = text.strip().partition("/")
    above = _unit(upper)
    if above is None or not line:
        return above
    below = _unit(lower)
    if below is None or not lower:
        return None
    if below.base == "ns":
        return Unit(above.factor * (1e9 / below.factor), f"{above.base}/s")
    return Unit(above.factor / below.factor, f"{above.base}/{below.base}")


def _unit(text: str) -> Unit | None:
    if text in _TIMES:
        return Unit(_TIMES[text], "ns")
    if text in {"", "%"}:
        return Unit(1.0, text)
    word = text.lower()
    short = ("b", "B") if text.endswith("B") else ("byte", "B")
    for ending, base in (("byte", "B"), short, ("hz", "cycle/s")):
        if word.endswith(ending) and word.removesuffix(ending) in _PREFIXES:
            return Unit(_PREFIXES[word.removesuffix(ending)], base)
    noun = word if word in _COUNTS else word.removesuffix("s")
    return Unit(1.0, noun) if noun in _COUNTS else None


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
            # The reader of the file reports the damage.
            return


def _cells(path: Path) -> Iterator[bytes]:
    """Yield the texts of a database row by row, as name=value and individually."""
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    # An environment variable may contain any bytes.
    database.text_factory = lambda raw: raw.decode(errors="replace")
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    try:
        for (table,) in database.execute(tables).fetchall():
            kinds = database.execute(f'PRAGMA table_info("{table}")').fetchall()
            names = [f'"{column[1]}"' for column in kinds if _NUMBER.fullmatch(column[2]) is None]
            if names:
                query = f'SELECT {", ".join(names)} FROM "{table}"'  # noqa: S608 — of the schema
                cursor = database.execute(query)
                while rows := cursor.fetchmany(10_000):
                    texts = [[cell for cell in row if isinstance(cell, str)] for row in rows]
                    lines = (text for row in texts for text in ("=".join(row), *row))
                    yield "\n".join(lines).encode(errors="replace")
    except sqlite3.Error:
        # The reader of the file reports the damage.
        return
    finally:
        database.close()
