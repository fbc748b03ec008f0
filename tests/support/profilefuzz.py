"""Spoil the files profilers write, and ask of every reader: refuse, or say nothing impossible."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import signal
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType

from kinetotraces import step, write
from nsysexports import plain

from envcompare.errors import ProfileError
from envcompare.profilers.reading import READERS, read
from envcompare.profiles import Profile

DATA = Path(__file__).resolve().parents[1] / "data"
CORPUS = DATA / "fuzz"
LIMIT_S = 10.0
NAMES = tuple(sorted(READERS))
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


@dataclass(frozen=True, slots=True)
class Seed:
    """A whole file to start from."""

    name: str
    content: bytes


@cache
def seeds(reader: str) -> tuple[Seed, ...]:
    """Return whole files of a reader, small ones: what is kept, and what is made at run time."""
    with tempfile.TemporaryDirectory() as folder:
        made = tuple(_made(reader, Path(folder)))
    kept = sorted((DATA / "profiles").glob(f"{reader}_*.[cl][so][vg]"))
    return made + tuple(Seed(path.name, path.read_bytes()) for path in kept)


def _made(reader: str, folder: Path) -> Iterator[Seed]:
    if reader == "nsys":
        trace = plain(12)
        trace.range("envcompare", 0, 10_000, kind=60)
        for name, one in (("plain.sqlite", plain(12)), ("marked.sqlite", trace)):
            yield Seed(name, one.write(folder / name).read_bytes())
    if reader == "kineto":
        for name in ("step.json", "step.json.gz"):
            yield Seed(name, write(folder / name, [*step(0), *step(1, at=1000.0)]).read_bytes())
        # An event a line, so that a line more or less leaves it a trace.
        lines = ",\n".join(json.dumps(one) for one in (*step(0), *step(1, at=1000.0), {}))
        yield Seed("lines.json", f'{{"schemaVersion": 1, "traceEvents": [\n{lines}\n]}}'.encode())


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
            names = [
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE sql <> ''")
            ]
            change(database, draw.choice(sorted(names)))
            database.commit()
        except (sqlite3.Error, IndexError, UnicodeDecodeError):
            return content
        finally:
            database.close()
        return Path(file.name).read_bytes()


_BYTES: dict[str, Change] = {
    "flip": _flip, "cut": _cut, "drop": _drop, "repeat": _repeat, "insert": _insert,
}  # fmt: skip
_TEXT: dict[str, Change] = {
    "drop line": _lines(lambda lines, at, _: lines.__delitem__(at)),
    "repeat line": _lines(lambda lines, at, _: lines.insert(at, lines[at])),
    "swap lines": _lines(_swap),
    "number": _token(_NUMBER, _VALUES),
    "unit": _token(_UNIT, _UNITS),
    "separator": _separator,
    "separators": _separators,
}
_DATABASE: dict[str, Change] = {"cell": _cell, "row": _row}


def changes(reader: str) -> dict[str, Change]:
    """Return what can be done to the files of a reader, by name."""
    return {**_BYTES, **(_DATABASE if reader == "nsys" else _TEXT)}


def spoiled(reader: str, seed: Seed, steps: Sequence[tuple[str, int]]) -> bytes:
    """Return the file after these changes; each is drawn from its own number."""
    content = seed.content
    for name, number in steps:
        draw = random.Random(number)
        if name in _TEXT and content.startswith(b"\x1f\x8b"):
            with suppress(OSError, EOFError, zlib.error):
                content = gzip.compress(_TEXT[name](gzip.decompress(content), draw))
        else:
            content = changes(reader)[name](content, draw)
    return content


def outcome(reader: str, path: Path) -> Profile | None:
    """Return the profile of a file, or nothing where it is refused.

    Raises AssertionError for any other error, for a profile with an impossible number and for a
    reader that does not come back.
    """
    with _limited():
        try:
            profile = read(reader, [path])
        except ProfileError as error:
            refused = error
        else:
            refused = None
    if refused is not None:
        assert refused.brief and refused.details, "a refusal without a reason"  # noqa: PT018
        return None
    check(profile)
    return profile


@contextmanager
def _limited() -> Iterator[None]:
    def late(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"the reader did not come back within {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check(profile: Profile) -> None:
    """Assert that a profile says nothing impossible."""
    for kernel in profile.kernels:
        assert kernel.calls > 0
        _order(kernel.min_ns, kernel.max_ns, kernel.total_ns)
        for name, value in kernel.metrics.items():
            _possible(name, value)
    for one in (*profile.copies, *profile.api_calls):
        assert one.calls > 0
        _order(one.min_ns, one.max_ns, one.total_ns)
    for operator in profile.operators:
        _order(operator.self_cpu_ns, operator.cpu_ns)
    for quantity in profile.quantities:
        _possible(quantity.name, quantity.value)
        assert (quantity.value is None) == (quantity.status != "ok")
    _order(profile.kernel_busy_ns, profile.busy_ns, profile.span_ns)
    assert all(0 <= place < len(profile.kernels) for place in profile.sequence)


def _possible(name: str, value: float | None) -> None:
    assert value is None or (math.isfinite(value) and value >= 0), f"{name} is {value}"


def _order(*values: float | None) -> None:
    known = [value for value in values if value is not None]
    for value in known:
        _possible("a time", value)
    # Sums of rounded numbers may miss the last digit.
    assert all(one <= other * (1 + 1e-6) + 1e-6 for one, other in pairwise(known)), values
