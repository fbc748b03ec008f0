"""A trace of torch.profiler as it stands on disk: one event at a time, packed by gzip or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, Final, cast

import ijson
import numpy as np

from envcompare.errors import ProfileError
from envcompare.profile_files.rawfiles import GZIP, refusal

_HEAD_BYTES: Final = 1 << 20
# What is read of a trace beside its events; newer Kineto and tools that merge traces write it last.
_FIELDS: Final = ("schemaVersion", "deviceProperties", "distributedInfo")
_SCHEMA: Final = 1  # of every Kineto until 2026
_LONGEST_FIELD: Final = 32  # its quotation marks included
_BUFFER_BYTES: Final = 1 << 18
_DEPTH_MOST: Final = 64  # events of Kineto nest five deep
_DIGITS_MOST: Final = 300
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_STEPS: Final = bytes.maketrans(b"{[}]", b"\x01\x01\xff\xff")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{[}]"))
# A trace is packed to a tenth or a thirtieth of its size: each event has times of its own.
_FREE_BYTES: Final = 1 << 26
_SWELLING_MOST: Final = 200
# The parser's time grows with the square of how long a name is.
_UNQUOTED_MOST_BYTES: Final = 1 << 22
# A microsecond count of 16 digits is a time three centuries after 1970.
_MOST_DIGITS: Final = 16
_ROUNDING_PARTS: Final = 100

Event = dict[str, Any]


def is_number(value: object) -> bool:
    """Return whether a value of the file is a number; true and false are none."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


class Trace:
    """The events of a trace with their numbers, and what stands beside them.

    `head` is complete when all events have been read.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self.head: dict[str, Any] = {}

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield all events; raises ProfileError where the file is damaged or ends too early."""
        number = -1
        try:
            with self._path.open("rb") as raw:
                try:
                    with _unpacked(raw) as file:
                        self._read_head(file)
                    self._refuse_newer()
                    with _unpacked(raw) as file:
                        for number, event in enumerate(_items(file, "traceEvents.item")):
                            yield number, self._object(number, event)
                    for field, times in file.mentioned.items():
                        if not self.head.get(field) and times > (field in self.head):
                            self._read_late(raw, field)
                    self._refuse_newer()
                except _DAMAGED as error:
                    at = f"after {number + 1} events, {raw.tell()} bytes into the file"
                    why = f"it is damaged or cut off {at}: {_said(error)}"
                    raise refusal(self.name, why=why, hint=_HINT) from error
        except OSError as error:
            raise refusal(self.name, why=f"it cannot be read: {error.strerror}") from error
        if number < 0 and "traceEvents" not in self.head:
            raise refusal(self.name, why="it has no traceEvents", hint=_HINT)

    def _read_head(self, file: _Checked) -> None:
        """Keep what stands before the events, which is where Kineto writes what it knows."""
        head, events, _ = file.read(_HEAD_BYTES).partition(b'"traceEvents"')
        if events:
            with suppress(ValueError, RecursionError):
                self.head = json.loads(head + b'"traceEvents": []}')
            self.head["traceEvents"] = True

    def _refuse_newer(self) -> None:
        """Refuse a schema after the one that is known, whose times may be of another unit."""
        schema = self.head.get("schemaVersion")
        if isinstance(schema, int | Decimal) and schema > _SCHEMA:
            why = f"it uses trace schema {schema}; envcompare reads schema {_SCHEMA} only"
            hint = "upgrade envcompare, or write the trace with an older PyTorch"
            raise refusal(self.name, why=why, hint=hint)

    def _read_late(self, raw: IO[bytes], field: str) -> None:
        """Take a field from behind the events; of two values of one name the last counts."""
        with _unpacked(raw) as file:
            for value in _items(file, field):
                self.head[field] = value

    def _object(self, number: int, event: object) -> Event:
        if not isinstance(event, dict):
            raise self.refusal(number, "it is no object")
        return event

    def refusal(self, number: int, why: str) -> ProfileError:
        """Return the error that names an event and what is wrong with it."""
        return refusal(self.name, why=f"event {number} of traceEvents: {why}", hint=_HINT)

    def whole(self, number: int, event: Event, key: str) -> int:
        """Return a whole number of `args`; -1 where it is missing."""
        args = event.get("args")
        value = args.get(key) if isinstance(args, dict) else None
        if value is None:
            return -1
        if type(value) is not int or not -1 <= value < 1 << 62:
            raise self.refusal(number, f"{key} is {value!r}, not a whole number")
        return value

    def nanoseconds(self, number: int, event: Event, key: str) -> int:
        """Return a time of an event, which Kineto writes in microseconds, to the nanosecond."""
        value = event.get(key)
        if type(value) is int:
            value = Decimal(value)
        if not isinstance(value, Decimal) or value < 0 or value.adjusted() > _MOST_DIGITS:
            raise self.refusal(number, f"{key} is {value!s:.40}, not a time in microseconds")
        return int((value * 1000).to_integral_value())

    def duration_ns(self, number: int, event: Event) -> int:
        """Return how long an event lasts; refuse one that rounding would change by over 1 %.

        Kineto writes whole nanoseconds; arithmetic of other tools leaves a trace of a fraction.
        """
        lasted = self.nanoseconds(number, event, "dur")
        exact = Decimal(event["dur"]) * 1000
        if abs(exact - lasted) * _ROUNDING_PARTS > exact:
            why = f"dur is {event['dur']!s:.40}, not a number of whole nanoseconds"
            raise self.refusal(number, why)
        return lasted


_HINT: Final = "export the trace again, and copy it whole"
_DAMAGED: Final = (
    ijson.JSONError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError,
)  # fmt: skip


def _unpacked(raw: IO[bytes]) -> _Checked:
    """Return the file from its beginning, unpacked where it is packed."""
    raw.seek(0)
    is_packed = raw.read(2) == GZIP
    raw.seek(0)
    file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_packed else raw
    return _Checked(file, packed=raw)


class _Checked(BufferedIOBase):
    """A file read for a parser that a number of thousands of digits crashes.

    Its time also grows with the square of how deep brackets of any kind are nested. What stands in
    strings does neither, but may be endless, as may spaces, in a small file that is packed.
    """

    def __init__(self, file: IO[bytes], *, packed: IO[bytes]) -> None:
        self._file = file
        self._packed = packed
        self._size = 0
        self._unquoted = 0
        self._escape = b""
        self._is_inside = False
        self._digits = b""
        self._depth = 0
        self._edge = b""
        self.mentioned: Counter[str] = Counter()  # names of fields, in events as well

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._file.read(-1 if size is None else size)
        self._refuse_swelling(len(data))
        self._notice(data)
        plain = self._without_strings(data)
        self._refuse_digits(plain)
        self._refuse_depth(plain)
        return data

    def _notice(self, data: bytes) -> None:
        for field in _FIELDS:
            name = f'"{field}"'.encode()
            # what the last read ended with holds no whole name
            self.mentioned[field] += (self._edge[1 - len(name) :] + data).count(name)
        self._edge = (self._edge + data)[-_LONGEST_FIELD:]

    def _without_strings(self, data: bytes) -> bytes:
        text = self._escape + data
        # A backslash that escapes what the next read begins with waits for it.
        ends_open = (len(text) - len(text.rstrip(b"\\"))) % 2
        self._escape = text[len(text) - ends_open :]
        whole = text[: len(text) - ends_open].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = whole.split(b'"')
        plain = b'"'.join(parts[int(self._is_inside) :: 2])
        self._is_inside ^= len(parts) % 2 == 0
        self._refuse_unquoted(len(data) if len(parts) > 1 else self._unquoted + len(data))
        return plain

    def _refuse_swelling(self, size: int) -> None:
        self._size += size
        most = max(_FREE_BYTES, _SWELLING_MOST * self._packed.tell())
        if self._size > most:
            raise ValueError(f"it unpacks to more than {_SWELLING_MOST} times its size")

    def _refuse_unquoted(self, size: int) -> None:
        """Refuse what no quotation mark ends; what stands before one in this read is short."""
        self._unquoted = size
        if size > _UNQUOTED_MOST_BYTES:
            most = f"{_UNQUOTED_MOST_BYTES >> 20} MiB"
            raise ValueError(f"a name, or what stands between names, of more than {most}")

    def _refuse_digits(self, plain: bytes) -> None:
        seen = self._digits + plain.translate(_DIGITS)
        if b"0" * _DIGITS_MOST in seen:
            raise ValueError("a number of hundreds of digits")
        self._digits = seen[-_DIGITS_MOST:]

    def _refuse_depth(self, plain: bytes) -> None:
        steps = np.frombuffer(plain.translate(_STEPS, _NO_BRACKETS), dtype=np.int8)
        if not len(steps):
            return
        depths = self._depth + np.cumsum(steps, dtype=np.int64)
        if depths.max() > _DEPTH_MOST:
            raise ValueError(f"brackets are nested more than {_DEPTH_MOST} deep")
        self._depth = int(depths[-1])


def _items(file: _Checked, place: str) -> Iterator[object]:
    items: Iterator[object] = ijson.items(file, place, buf_size=_BUFFER_BYTES)
    return items


def _said(error: BaseException) -> str:
    said = next(iter(error.args), "")
    # The parser hands over bytes where what it quotes is no UTF-8.
    text = said.decode(errors="backslashreplace") if isinstance(said, bytes) else str(error)
    return " ".join(text.split()) or type(error).__name__
