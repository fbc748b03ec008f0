"""A trace of torch.profiler as it stands on disk: one event at a time, packed by gzip or not."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, Final, cast

import ijson

from envcompare.errors import ProfileError
from envcompare.profilers.refusing import refusal

_GZIP: Final = b"\x1f\x8b"
_HEAD_BYTES: Final = 1 << 20
_BUFFER_BYTES: Final = 1 << 18
# Every digit is a 0, every bracket a [, spaces are nothing: what harms is then one text to find.
_PLAIN: Final = bytes.maketrans(b"123456789{", b"000000000[")
_SPACES: Final = b" \t\r\n"
_HARMFUL: Final = (b"0" * 300, b"[" * 64)
_OVERLAP_BYTES: Final = 600
# A microsecond count of 16 digits is a time three centuries after 1970.
_MOST_DIGITS: Final = 16

Event = dict[str, Any]


def is_number(value: object) -> bool:
    """Return whether a value of the file is a number; true and false are none."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


class Trace:
    """The head of a trace, and its events with their numbers."""

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
                    raw.seek(0)
                    with _unpacked(raw) as file:
                        for number, event in enumerate(_items(file)):
                            yield number, self._object(number, event)
                except _DAMAGED as error:
                    at = f"after {number + 1} events, {raw.tell()} bytes into the file"
                    why = f"it is damaged or cut off {at}: {_said(error)}"
                    raise refusal(self.name, why=why, hint=HINT) from error
        except OSError as error:
            raise refusal(self.name, why=f"it cannot be read: {error.strerror}") from error
        if number < 0 and "traceEvents" not in self.head:
            raise refusal(self.name, why="it has no traceEvents", hint=HINT)

    def _read_head(self, file: IO[bytes]) -> None:
        """Keep what stands before the events, which is where Kineto writes what it knows."""
        head, found, _ = file.read(_HEAD_BYTES).partition(b'"traceEvents"')
        if found:
            with suppress(ValueError, RecursionError):
                self.head = json.loads(head + b'"traceEvents": []}')
            self.head["traceEvents"] = True

    def _object(self, number: int, event: object) -> Event:
        if not isinstance(event, dict):
            raise self.refusal(number, "it is no object")
        return event

    def refusal(self, number: int, why: str) -> ProfileError:
        """Return the error that names an event and what is wrong with it."""
        return refusal(self.name, why=f"event {number} of traceEvents: {why}", hint=HINT)

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


HINT: Final = "export the trace again, and copy it whole"
_DAMAGED: Final = (
    ijson.JSONError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError,
)  # fmt: skip


def _unpacked(raw: IO[bytes]) -> IO[bytes]:
    is_packed = raw.read(2) == _GZIP
    raw.seek(0)
    file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_packed else raw
    return cast("IO[bytes]", _Checked(file))


class _Checked(BufferedIOBase):
    """A file read for a parser that a number of thousands of digits crashes.

    Nor does it come back from brackets in brackets: its time grows with the square of the depth.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._before = b""

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._file.read(-1 if size is None else size)
        seen = self._before + data.translate(_PLAIN, _SPACES)
        if any(harmful in seen for harmful in _HARMFUL):
            raise ValueError("a number of hundreds of digits, or brackets in brackets")
        self._before = seen[-_OVERLAP_BYTES:]
        return data


def _items(file: IO[bytes]) -> Iterator[object]:
    found: Iterator[object] = ijson.items(file, "traceEvents.item", buf_size=_BUFFER_BYTES)
    return found


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
