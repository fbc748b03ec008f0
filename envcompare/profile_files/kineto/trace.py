"""A trace of torch.profiler as it stands on disk: one event at a time, packed by gzip or not."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

from envcompare.errors import ProfileError
from envcompare.profile_files.rawfiles import GZIP, refusal

# What is read of a trace beside its events; newer Kineto and tools that merge traces write it last.
_FIELDS: Final = ("schemaVersion", "deviceProperties", "distributedInfo")
_SCHEMA: Final = 1  # of every Kineto until 2026
_CHUNK_BYTES: Final = 1 << 18
_VALUE_MOST: Final = 1 << 24  # characters; an event has some hundred
_SHOWN: Final = 24  # characters on each side of a damaged place
# A trace is packed to a tenth or a thirtieth of its size: each event has times of its own.
_FREE_BYTES: Final = 1 << 26
_SWELLING_MOST: Final = 200
# A microsecond count of 16 digits is a time three centuries after 1970.
_MOST_DIGITS: Final = 16
_ROUNDING_PARTS: Final = 100
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HINT: Final = "export the trace again, and copy it whole"
_DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError)

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
                    for number, event in enumerate(self._items(_Json(raw))):
                        yield number, self._object(number, event)
                except _DAMAGED as error:
                    at = f"after {number + 1} events, {raw.tell()} bytes into the file"
                    why = f"it is damaged or cut off {at}: {str(error) or type(error).__name__}"
                    raise refusal(self.name, why=why, hint=_HINT) from error
        except OSError as error:
            raise refusal(self.name, why=f"it cannot be read: {error.strerror}") from error

    def _items(self, text: _Json) -> Iterator[object]:
        """Yield the items of `traceEvents`, and keep what is known of the fields beside it."""
        has_events = False
        if text.peek() != "{":
            raise refusal(self.name, why="it has no traceEvents", hint=_HINT)
        text.take("{")
        for _ in text.members("}"):
            field = text.value()
            text.take(":")
            if field == "traceEvents" and text.peek() == "[":
                has_events = True
                self._refuse_newer()
                text.take("[")
                for _ in text.members("]"):
                    yield text.value()
            else:
                value = text.value()
                self.head |= {field: value} if field in _FIELDS else {}
        text.end()
        self._refuse_newer()
        if not has_events:
            raise refusal(self.name, why="it has no traceEvents", hint=_HINT)

    def _refuse_newer(self) -> None:
        """Refuse a schema after the one that is known, whose times may be of another unit."""
        schema = self.head.get("schemaVersion")
        if isinstance(schema, int | Decimal) and schema > _SCHEMA:
            why = f"it uses trace schema {schema}; envcompare reads schema {_SCHEMA} only"
            hint = "upgrade envcompare, or write the trace with an older PyTorch"
            raise refusal(self.name, why=why, hint=hint)

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


class _Json:
    """JSON of any length, of which one value at a time is in memory.

    A value that does not end, and a small file that is packed and unpacks to a huge one, are
    refused.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        is_packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        self._raw = raw
        self._file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_packed else raw
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._size = 0
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next character that is no space; an empty text at the end of the file."""
        while True:
            self._at = cast("re.Match[str]", _SPACES.match(self._text, self._at)).end()
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def take(self, *expected: str) -> str:
        """Go past one of these characters, and return it."""
        if (letter := self.peek()) not in expected:
            raise _damage(f"expecting {' or '.join(expected)}", self._text, self._at)
        self._at += 1
        return letter

    def members(self, closing: str) -> Iterator[None]:
        """Stop before each member of the list or object that was opened, and go past its end."""
        letter = self.take(closing) if self.peek() == closing else ""
        while letter != closing:
            yield
            letter = self.take(",", closing)

    def value(self) -> object:
        """Return the value that comes next; a number with a fraction is a Decimal."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._fill():
                    raise _damage(error.msg, error.doc, error.pos) from error
                continue
            if end < len(self._text) or not self._fill():
                break
        if _SURROGATE.search(self._text, self._at, end):
            json.dumps(value, ensure_ascii=False, default=str).encode()  # half a character is none
        self._at = end
        return value

    def end(self) -> None:
        """Refuse anything behind the last value, and a file whose checksum is another."""
        if self.peek():
            raise _damage("extra data", self._text, self._at)

    def _fill(self) -> bool:
        """Read on, as much again as is held; say whether there was more."""
        held = len(self._text) - self._at
        if held > _VALUE_MOST:
            raise ValueError(f"a value of more than {_VALUE_MOST >> 20} MiB")
        data = self._file.read(max(_CHUNK_BYTES, held))
        self._size += len(data)
        if self._size > max(_FREE_BYTES, _SWELLING_MOST * self._raw.tell()):
            raise ValueError(f"it unpacks to more than {_SWELLING_MOST} times its size")
        try:
            text = self._utf8.decode(data, final=not data)
        except UnicodeDecodeError as error:
            near = error.object[max(0, error.start - _SHOWN) : error.start + _SHOWN]
            raise ValueError(f"no UTF-8: {near.decode(errors='backslashreplace')}") from error
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(data)


def _damage(why: str, text: str, at: int) -> ValueError:
    """Return the error for a damaged place, with what stands around it."""
    return ValueError(f"{why}: {text[max(0, at - _SHOWN) : at + _SHOWN]}")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
