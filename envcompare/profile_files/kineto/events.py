"""Stream the events of a Kineto trace, plain or gzip, into rows.

There are rows for GPU work, API calls, operators and memory.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

from envcompare.errors import ProfileError
from envcompare.files import opened
from envcompare.profile_files import KINDS, ROW, Rows, Shape
from envcompare.profile_files.rawfiles import GZIP, refusal
from envcompare.run_folder.profiles import Dim

# Top-level fields read in addition to events; newer Kineto and merging tools write them last.
_FIELDS: Final = ("schemaVersion", "deviceProperties", "computeProperties", "distributedInfo")
# Every Kineto until 2026 writes schema 1.
_SCHEMA: Final = 1
_CHUNK_BYTES: Final = 1 << 18
# In characters: an event has some hundred, so a longer value is damage.
_VALUE_MOST: Final = 1 << 24
_SHOWN: Final = 24  # characters on each side of the damage
# gzip shrinks a trace to a tenth or a thirtieth, since each event has distinct times.
_FREE_BYTES: Final = 1 << 26
_SWELLING_MOST: Final = 200
# 16 digits of microseconds are three centuries after 1970.
_MOST_DIGITS: Final = 16
_ROUNDING_PARTS: Final = 100
_SPACES: Final = re.compile(r"[ \t\r\n]*")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_HINT: Final = "export the trace again, and copy it whole"
_DAMAGED: Final = (EOFError, zlib.error, gzip.BadGzipFile, ValueError, ArithmeticError)

# The categories since 2023, and older ones.
_CATEGORIES: Final = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy",
    "memset": "copy", "cuda_runtime": "call", "runtime": "call", "cuda_driver": "call",
    "cpu_op": "operator", "operator": "operator", "cuda_profiler_range": "counters",
    "user_annotation": "annotation", "cpu_instant_event": "memory",
}  # fmt: skip
# Flow events and metadata, which have no duration.
_TIMELESS: Final = ("s", "t", "f", "M")
# Fields that only GPU work has.
_WORK: Final = ({"stream", "grid", "block"}, {"stream", "bytes"})
# ROCm wrote CopyHostToDevice and FillBuffer before it wrote what CUDA writes.
# XPUs write M2D: M is host memory, H is pinned host memory, S is shared.
_COPY: Final = re.compile(r"Memcpy (PtoP|[HDAMS](?:to|2)[HDAMS])|Copy([HD])\w+To([HD])")
_CALLS: Final = re.compile(r"(\w+)_(?:runtime|driver)")
_VENDORS: Final = {"xpu": "Intel", "mtia": "Meta MTIA", "musa": "Moore Threads",
                   "mlu": "Cambricon", "hpu": "Intel Gaudi", "npu": "Huawei Ascend"}  # fmt: skip
_ASCEND: Final = {"Task Type", "Stream Id"}  # fields of torch_npu device work
_SIDES: Final = str.maketrans("AM", "DH")
_SETS: Final = ("memset", "fillbuffer")
_PLACES: Final[dict[str, int]] = {kind: place for place, kind in enumerate(KINDS)}
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
EXCHANGE: Final = re.compile(r"gloo:\w+")
"""Names of collectives of the host backend of torch.distributed."""

_QUEUE: Final = "sycl queue"  # the stream on an XPU
_OCCUPANCY: Final = "est. achieved occupancy %"
OCCUPANCY_PARTS: Final = 1000
_CUDA: Final = 1

Event = dict[str, Any]


def _is_number(value: object) -> bool:
    """Return whether a value is a number; true and false are not."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


class Trace:
    """The numbered events of a trace, and the other top-level fields in `head`.

    `head` is complete once all events have been read.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self.head: dict[str, Any] = {}

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield all events; raises ProfileError if the file is damaged or truncated."""
        number = -1
        try:
            with opened(self._path) as raw:
                try:
                    for number, event in enumerate(self._items(_Json(raw))):
                        if not isinstance(event, dict):
                            raise self.refusal(number, "it is not an object")
                        yield number, event
                except _DAMAGED as error:
                    at = f"after {number + 1} events, {raw.tell()} bytes into the file"
                    why = f"it is damaged or cut off {at}: {str(error) or type(error).__name__}"
                    raise refusal(self.name, why=why, hint=_HINT) from error
        except OSError as error:
            raise refusal(self.name, why=f"it cannot be read: {error.strerror}") from error

    def _items(self, text: _Json) -> Iterator[object]:
        """Yield the items of `traceEvents`, and keep the known top-level fields."""
        has_events = False
        # The first releases of Kineto, and other tools, write the list of events alone.
        if text.peek() == "[":
            has_phase = False
            for event in self._list(text):
                has_phase = has_phase or (isinstance(event, dict) and "ph" in event)
                yield event
            text.end()
            # Any other list of objects would otherwise pass as a trace without GPU work.
            if not has_phase:
                raise refusal(self.name, why="it has no traceEvents", hint=_HINT)
            return
        if text.peek() != "{":
            raise refusal(self.name, why="it has no traceEvents", hint=_HINT)
        text.take("{")
        for _ in text.members("}"):
            name = text.value()
            text.take(":")
            if name == "traceEvents" and text.peek() == "[":
                has_events = True
                # Before the events, since a newer schema may change their times; the field may also
                # follow them.
                self._refuse_newer()
                yield from self._list(text)
            else:
                value = text.value()
                self.head |= {name: value} if name in _FIELDS else {}
        text.end()
        self._refuse_newer()
        if not has_events:
            raise refusal(self.name, why="it has no traceEvents", hint=_HINT)

    def _list(self, text: _Json) -> Iterator[object]:
        text.take("[")
        for _ in text.members("]"):
            yield text.value()

    def _refuse_newer(self) -> None:
        """Refuse a newer schema, whose times may have another unit."""
        schema = self.head.get("schemaVersion")
        if isinstance(schema, int | Decimal) and schema > _SCHEMA:
            why = f"it uses trace schema {schema}; envcompare reads schema {_SCHEMA} only"
            hint = "upgrade envcompare, or write the trace with an older PyTorch"
            raise refusal(self.name, why=why, hint=hint)

    def refusal(self, number: int, why: str) -> ProfileError:
        """Return the error for an event."""
        return refusal(self.name, why=f"event {number} of traceEvents: {why}", hint=_HINT)

    def whole(self, number: int, event: Event, key: str) -> int:
        """Return an integer of `args`, -1 if missing; raises ProfileError for anything else."""
        args = event.get("args")
        value = args.get(key) if isinstance(args, dict) else None
        if value is None:
            return -1
        # The test by isinstance would accept true and false.
        if type(value) is not int or not -1 <= value < 1 << 62:
            raise self.refusal(number, f"{key} is {value!r}, not a whole number")
        return value

    def nanoseconds(self, number: int, event: Event, key: str) -> int:
        """Return a time, which Kineto writes in microseconds, in whole ns."""
        value = event.get(key)
        if type(value) is int:
            value = Decimal(value)
        # Without a limit on the exponent, 1E+99999 would become an integer of that many digits.
        if not isinstance(value, Decimal) or value < 0 or value.adjusted() > _MOST_DIGITS:
            raise self.refusal(number, f"{key} is {value!s:.40}, not a time in microseconds")
        return int((value * 1000).to_integral_value())

    def duration_ns(self, number: int, event: Event) -> int:
        """Return the duration of an event in ns; refuse it if rounding changes it by over 1 %.

        Kineto writes whole nanoseconds; arithmetic in other tools leaves small fractions.
        """
        duration_ns = self.nanoseconds(number, event, "dur")
        exact = Decimal(event["dur"]) * 1000
        if abs(exact - duration_ns) * _ROUNDING_PARTS > exact:
            why = f"dur is {event['dur']!s:.40}, not a number of whole nanoseconds"
            raise self.refusal(number, why)
        return duration_ns


class _Json:
    """A JSON stream of any length, with one value at a time in memory.

    It refuses values without an end, and small files that unpack to huge ones.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        is_packed = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        self._raw = raw
        self._file = cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if is_packed else raw
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._size = 0
        self._text = ""
        self._at = 0

    def peek(self) -> str:
        """Return the next non-space character; empty at the end of the file."""
        while True:
            self._at = cast("re.Match[str]", _SPACES.match(self._text, self._at)).end()
            if self._at < len(self._text) or not self._fill():
                return self._text[self._at : self._at + 1]

    def take(self, *expected: str) -> str:
        """Consume one of these characters, and return it."""
        if (letter := self.peek()) not in expected:
            raise _damage(f"expecting {' or '.join(expected)}", self._text, self._at)
        self._at += 1
        return letter

    def members(self, closing: str) -> Iterator[None]:
        """Yield before each member of an open list or object, then consume its end."""
        letter = self.take(closing) if self.peek() == closing else ""
        while letter != closing:
            yield
            letter = self.take(",", closing)

    def value(self) -> object:
        """Return the next value; a number with a fraction is a Decimal."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not self._fill():
                    raise _damage(error.msg, error.doc, error.pos) from error
                continue
            # A number at the end of the buffer may continue in the next chunk.
            if end < len(self._text) or not self._fill():
                break
        if _SURROGATE.search(self._text, self._at, end):
            # Half of a surrogate pair is no character, and raises UnicodeEncodeError when it is
            # encoded.
            json.dumps(value, ensure_ascii=False, default=str).encode()
        self._at = end
        return value

    def end(self) -> None:
        """Refuse extra data after the last value, and a wrong checksum."""
        # Reading up to the end makes gzip verify its checksum.
        if self.peek():
            raise _damage("extra data", self._text, self._at)

    def _fill(self) -> bool:
        """Read at least as much as is buffered; return whether there was more."""
        held = len(self._text) - self._at
        if held > _VALUE_MOST:
            raise ValueError(f"a value of more than {_VALUE_MOST >> 20} MiB")
        # The buffer at least doubles each time, so that the attempts to parse a long value cost
        # linear time.
        data = self._file.read(max(_CHUNK_BYTES, held))
        self._size += len(data)
        if self._size > max(_FREE_BYTES, _SWELLING_MOST * self._raw.tell()):
            raise ValueError(f"it unpacks to more than {_SWELLING_MOST} times its size")
        try:
            text = self._utf8.decode(data, final=not data)
        except UnicodeDecodeError as error:
            near = error.object[max(0, error.start - _SHOWN) : error.start + _SHOWN]
            raise ValueError(f"not UTF-8: {near.decode(errors='backslashreplace')}") from error
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(data)


def _damage(why: str, text: str, at: int) -> ValueError:
    """Return the error for damage, with the surrounding text."""
    return ValueError(f"{why}: {text[max(0, at - _SHOWN) : at + _SHOWN]}")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


# A float cannot hold microseconds since 1970 to the nanosecond. Python's decoder accepts NaN and
# Infinity, which JSON does not have (RFC 8259).
_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)


@dataclass(kw_only=True, slots=True)
class EventRows:
    """All rows of a trace; names, threads and kernel shapes are numbered by first use."""

    kernels: Rows = field(default_factory=lambda: Rows(*ROW, "group"))
    copies: Rows = field(default_factory=lambda: Rows(*ROW, "kind", "bytes"))
    shapes: dict[Shape, int] = field(default_factory=dict)
    calls: Rows = field(
        default_factory=lambda: Rows("thread", "start", "end", "correlation", "name")
    )
    operators: Rows = field(
        default_factory=lambda: Rows("thread", "start", "end", "external", "name")
    )
    memory: Rows = field(default_factory=lambda: Rows("thread", "time", "is_device", "bytes"))
    names: dict[str, int] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    counters: dict[str, tuple[int, dict[str, float]]] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    steps: set[str] = field(default_factory=set)
    steps_ns: int = 0  # total
    step_times: Rows = field(default_factory=lambda: Rows("start", "end"))
    exchanges: Rows = field(default_factory=lambda: Rows("start", "end"))  # between processes
    vendor: str = ""  # of the GPUs, derived from call categories
    occupancy_weighted: int = 0
    occupancy_ns: int = 0

    def name(self, text: str) -> int:
        """Return the number of a name."""
        return self.names.setdefault(text, len(self.names))

    def thread(self, event: Event) -> int:
        """Return the number of the thread of an event."""
        return self.threads.setdefault(f"{event.get('pid')}/{event.get('tid')}", len(self.threads))


def read_rows(trace: Trace) -> EventRows:
    """Read a whole trace; raises ProfileError for an impossible event."""
    rows = EventRows()
    number = 0
    try:
        for number, event in trace.events():
            if kind := _kind(trace, number, event):
                _ADD[kind](trace, number, event, rows)
    except RecursionError as error:
        raise trace.refusal(number, "it is nested too deeply") from error
    return rows


def _kind(trace: Trace, number: int, event: Event) -> str:
    """Return the kind of an event, or empty; refuse an event that would hide GPU work."""
    category, phase = event.get("cat"), event.get("ph")
    kind = _CATEGORIES.get(category.lower(), "") if isinstance(category, str) else ""
    if not kind and isinstance(category, str) and _CALLS.fullmatch(category):
        kind = "call"
    if not kind:
        _refuse_hidden(trace, number, event)
    if not kind or kind == "memory" or phase == "X":
        return kind
    if phase in _TIMELESS:
        return ""
    # No release of torch writes pairs of B and E, and their nesting is undefined.
    why = f"ph is {phase!r:.40}; a {category:.40} needs ph X, which has a duration"
    raise trace.refusal(number, why)


def _refuse_hidden(trace: Trace, number: int, event: Event) -> None:
    """Refuse a multiple or unknown category that would silently drop GPU work."""
    category, args = event.get("cat"), event.get("args")
    if not isinstance(category, str | None):
        raise trace.refusal(number, f"cat is {category!r:.40}, not a text")
    parts = (category or "").lower().split(",")
    if any(part.strip() in _CATEGORIES for part in parts):
        raise trace.refusal(number, f"cat is {category!r:.40}, not one category")
    if isinstance(args, dict) and args.keys() >= _ASCEND:
        why = "it is from a Huawei Ascend NPU; only NVIDIA, AMD and Intel GPUs are supported"
        raise trace.refusal(number, why)
    if isinstance(args, dict) and any(args.keys() >= keys for keys in _WORK):
        why = f"its args are those of GPU work, but cat is {category!r:.40}"
        raise trace.refusal(number, why)


def _times(trace: Trace, number: int, event: Event) -> tuple[int, int]:
    start = trace.nanoseconds(number, event, "ts")
    return start, start + trace.duration_ns(number, event)


def _text(trace: Trace, number: int, event: Event) -> str:
    name = event.get("name")
    if not isinstance(name, str):
        raise trace.refusal(number, f"name is {name!r:.40}")
    return name


def _where(trace: Trace, number: int, event: Event) -> tuple[int, ...]:
    """Return the columns that kernels and copies share."""
    start, end = _times(trace, number, event)
    args = event.get("args")
    is_xpu = isinstance(args, dict) and _QUEUE in args
    device = trace.whole(number, event, "device")
    stream = trace.whole(number, event, _QUEUE if is_xpu else "stream")
    if device < 0 or stream < 0:
        properties = trace.head.get("deviceProperties")
        devices = properties if isinstance(properties, list) else ()
        names = [entry.get("name") for entry in devices if isinstance(entry, dict)]
        gpus = ", ".join(sorted({str(name) for name in names if name}))
        origin = f" of {gpus}" if gpus else "; early releases of PyTorch for ROCm wrote neither"
        raise trace.refusal(number, f"a device or stream is missing in the trace{origin}")
    # On XPUs it is an address.
    context = -1 if is_xpu else trace.whole(number, event, "context")
    # Without a process: a torch trace has only one.
    correlation = trace.whole(number, event, "correlation")
    external = _external(trace, number, event)
    return -1, correlation, start, end, device, context, stream, external


def _external(trace: Trace, number: int, event: Event) -> int:
    newer = trace.whole(number, event, "External id")
    # Older traces spell it in lower case.
    return newer if newer >= 0 else trace.whole(number, event, "external id")


def _kernel(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    where = _where(trace, number, event)
    grid, block = (_dim(trace, number, event, key) for key in ("grid", "block"))
    shape = (_text(trace, number, event), grid, block)
    group = rows.shapes.setdefault(shape, len(rows.shapes))
    rows.kernels.add(*where, group, number)
    estimate = event["args"].get(_OCCUPANCY)
    if estimate is None:
        return
    # Kineto writes -99 where it knows no properties of the device.
    if estimate == -99:
        return
    if not _is_number(estimate) or not 0 <= estimate <= 100:
        raise trace.refusal(number, f"{_OCCUPANCY} is {estimate!s:.40}")
    duration_ns = where[3] - where[2]
    # Integers, so that the sum does not depend on the order of events.
    rows.occupancy_weighted += int(estimate * OCCUPANCY_PARTS) * duration_ns
    rows.occupancy_ns += duration_ns


def _dim(trace: Trace, number: int, event: Event, key: str) -> Dim | None:
    value = event["args"].get(key)
    # ROCm records the kind of a dispatch, and zeros for an unknown shape.
    if value is None or ("kind" in event["args"] and value == [0, 0, 0]):
        return None
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(type(size) is int and 1 <= size < 1 << 32 for size in value)
    ):
        raise trace.refusal(number, f"{key} is {value!r:.40}")
    return (value[0], value[1], value[2])


def _copy(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    name, size = _text(trace, number, event), trace.whole(number, event, "bytes")
    match = _COPY.match(name)
    # An array (A) is in device memory.
    kind = (match[1] or f"{match[2]}to{match[3]}") if match else "other"
    kind = "unified" if "S" in kind else kind.replace("2", "to").translate(_SIDES)
    if name.lower().startswith(_SETS):
        kind = "memset"
    where = _where(trace, number, event)
    rows.copies.add(*where, _PLACES[kind], size, number)


def _call(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    start, end = _times(trace, number, event)
    name = rows.name(_text(trace, number, event))
    if match := _CALLS.fullmatch(event["cat"]):
        rows.vendor = rows.vendor or _VENDORS.get(match[1].lower(), "")
    correlation = trace.whole(number, event, "correlation")
    rows.calls.add(rows.thread(event), start, end, correlation, name, number)


def _operator(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    start, end = _times(trace, number, event)
    name = rows.name(_text(trace, number, event))
    external = _external(trace, number, event)
    rows.operators.add(rows.thread(event), start, end, external, name, number)


def _annotation(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    name = _text(trace, number, event)
    if match := _STEP.fullmatch(name):
        rows.steps.add(match[1])
        rows.steps_ns += trace.duration_ns(number, event)
        rows.step_times.add(*_times(trace, number, event), number)
    elif EXCHANGE.fullmatch(name):
        rows.exchanges.add(*_times(trace, number, event), number)


def _memory(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    args = event.get("args")
    size = args.get("Bytes") if isinstance(args, dict) else None
    if event.get("name") != "[memory]" or size is None:
        return
    if type(size) is not int or abs(size) >= 1 << 52:
        raise trace.refusal(number, f"Bytes is {size!r:.40}")
    is_device = trace.whole(number, event, "Device Type") == _CUDA
    time = trace.nanoseconds(number, event, "ts")
    rows.memory.add(rows.thread(event), time, int(is_device), size, number)


def _counters(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    """Sum the counters of a kernel; averages and percentages are dropped."""
    args = event.get("args")
    name = _text(trace, number, event)
    calls, sums = rows.counters.get(name, (0, {}))
    for key, value in args.items() if isinstance(args, dict) else ():
        if not _is_number(value) or "__" not in key:
            continue
        if not key.endswith(".sum"):
            rows.dropped.add(key)
        elif not 0 <= value < 1 << 62:
            raise trace.refusal(number, f"{key} is {value!s:.40}")
        else:
            sums[key] = sums.get(key, 0.0) + float(value)
    rows.counters[name] = (calls + 1, sums)


_ADD: Final = {
    "kernel": _kernel,
    "copy": _copy,
    "call": _call,
    "operator": _operator,
    "annotation": _annotation,
    "counters": _counters,
    "memory": _memory,
}
