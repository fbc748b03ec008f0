"""The events of a Kineto trace, sorted into rows: GPU work, API calls, operators, memory."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from envcompare.profile_files.activity import KINDS, Activity
from envcompare.profile_files.kineto.events import Event, Trace, is_number
from envcompare.profile_files.rows import Rows
from envcompare.run_folder.profiles import Dim

# The categories of 2023 and later, and those before them.
_CATEGORIES: Final = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "copy",
    "memset": "copy", "cuda_runtime": "call", "runtime": "call", "cuda_driver": "call",
    "cpu_op": "operator", "operator": "operator", "cuda_profiler_range": "counters",
    "user_annotation": "annotation", "cpu_instant_event": "memory",
}  # fmt: skip
# What points from an event to another, and what names processes: it lasts no time.
_TIMELESS: Final = ("s", "t", "f", "M")
# What no event but one of GPU work has.
_WORK: Final = ({"stream", "grid", "block"}, {"stream", "bytes"})
# ROCm wrote CopyHostToDevice and FillBuffer before it wrote what CUDA writes.
_COPY: Final = re.compile(r"Memcpy ([HDA]to[HDA]|PtoP)|Copy([HD])\w+To([HD])")
_SETS: Final = ("memset", "fillbuffer")
_PLACES: Final[dict[str, int]] = {kind: place for place, kind in enumerate(KINDS)}
_STEP: Final = re.compile(r"ProfilerStep#(\d+)")
_OCCUPANCY: Final = "est. achieved occupancy %"
OCCUPANCY_PARTS: Final = 1000
_CUDA: Final = 1


@dataclass(kw_only=True, slots=True)
class Found:
    """All rows of a trace; names and threads are numbered as they come."""

    activity: Activity = field(default_factory=Activity)
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
    occupancy_weighted: int = 0
    occupancy_ns: int = 0

    def name(self, text: str) -> int:
        """Return the number of a name."""
        return self.names.setdefault(text, len(self.names))

    def thread(self, event: Event) -> int:
        """Return the number of the thread an event is of."""
        return self.threads.setdefault(f"{event.get('pid')}/{event.get('tid')}", len(self.threads))


def read_rows(trace: Trace) -> Found:
    """Read a whole trace; raises ProfileError for an event that cannot be."""
    found = Found()
    number = 0
    try:
        for number, event in trace.events():
            if kind := _kind(trace, number, event):
                _ADD[kind](trace, number, event, found)
    except RecursionError as error:
        raise trace.refusal(number, "it is nested too deeply") from error
    return found


def _kind(trace: Trace, number: int, event: Event) -> str:
    """Return what an event is, or an empty text; what hides GPU work is refused."""
    category, phase = event.get("cat"), event.get("ph")
    kind = _CATEGORIES.get(category.lower(), "") if isinstance(category, str) else ""
    if not kind:
        _refuse_hidden(trace, number, event)
    if not kind or kind == "memory" or phase == "X":
        return kind
    if phase in _TIMELESS:
        return ""
    # Pairs of B and E are written by no release of torch; nothing says how they would nest.
    why = f"ph is {phase!r:.40}, and only X tells how long a {category:.40} lasts"
    raise trace.refusal(number, why)


def _refuse_hidden(trace: Trace, number: int, event: Event) -> None:
    """Refuse what a category of several words, or an unknown one, would leave out unseen."""
    category, args = event.get("cat"), event.get("args")
    if not isinstance(category, str | None):
        raise trace.refusal(number, f"cat is {category!r:.40}, not a text")
    parts = (category or "").lower().split(",")
    if any(part.strip() in _CATEGORIES for part in parts):
        raise trace.refusal(number, f"cat is {category!r:.40}, not one category")
    if isinstance(args, dict) and any(args.keys() >= keys for keys in _WORK):
        why = f"its args are those of GPU work, and cat is {category!r:.40}, which is none"
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
    device, stream = (trace.whole(number, event, key) for key in ("device", "stream"))
    if device < 0 or stream < 0:
        why = "a device or stream is missing; early releases of PyTorch for ROCm wrote neither"
        raise trace.refusal(number, why)
    context = trace.whole(number, event, "context")
    # Without a process: a trace of torch is of one.
    return (-1, _correlation(trace, number, event), start, end, device, context, stream,
            _external(trace, number, event))  # fmt: skip


def _correlation(trace: Trace, number: int, event: Event) -> int:
    return trace.whole(number, event, "correlation")


def _external(trace: Trace, number: int, event: Event) -> int:
    newer = trace.whole(number, event, "External id")
    return newer if newer >= 0 else trace.whole(number, event, "external id")


def _kernel(trace: Trace, number: int, event: Event, found: Found) -> None:
    where = _where(trace, number, event)
    grid, block = (_dim(trace, number, event, key) for key in ("grid", "block"))
    group = found.activity.group((_text(trace, number, event), grid, block))
    found.activity.kernels.add(*where, group, number)
    estimate = event["args"].get(_OCCUPANCY)
    if estimate is None:
        return
    if not is_number(estimate) or not 0 <= estimate <= 100:
        raise trace.refusal(number, f"{_OCCUPANCY} is {estimate!s:.40}")
    lasted = where[3] - where[2]
    # In whole parts, so that the order of events cannot change the sum.
    found.occupancy_weighted += int(estimate * OCCUPANCY_PARTS) * lasted
    found.occupancy_ns += lasted


def _dim(trace: Trace, number: int, event: Event, key: str) -> Dim | None:
    value = event["args"].get(key)
    # ROCm tells the kind of a dispatch, and zeros where it does not know its shape.
    if value is None or ("kind" in event["args"] and value == [0, 0, 0]):
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(_is_size(one) for one in value):
        raise trace.refusal(number, f"{key} is {value!r:.40}")
    return (value[0], value[1], value[2])


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value < 1 << 32


def _copy(trace: Trace, number: int, event: Event, found: Found) -> None:
    name, size = _text(trace, number, event), trace.whole(number, event, "bytes")
    match = _COPY.match(name)
    # An array (A) lies in the memory of the device.
    kind = (match[1] or f"{match[2]}to{match[3]}").replace("A", "D") if match else "other"
    if name.lower().startswith(_SETS):
        kind = "memset"
    where = _where(trace, number, event)
    found.activity.copies.add(*where, _PLACES[kind], size, number)


def _call(trace: Trace, number: int, event: Event, found: Found) -> None:
    start, end = _times(trace, number, event)
    name = found.name(_text(trace, number, event))
    call = _correlation(trace, number, event)
    found.calls.add(found.thread(event), start, end, call, name, number)


def _operator(trace: Trace, number: int, event: Event, found: Found) -> None:
    start, end = _times(trace, number, event)
    name = found.name(_text(trace, number, event))
    external = _external(trace, number, event)
    found.operators.add(found.thread(event), start, end, external, name, number)


def _annotation(trace: Trace, number: int, event: Event, found: Found) -> None:
    if match := _STEP.fullmatch(_text(trace, number, event)):
        found.steps.add(match[1])


def _memory(trace: Trace, number: int, event: Event, found: Found) -> None:
    args = event.get("args")
    size = args.get("Bytes") if isinstance(args, dict) else None
    if event.get("name") != "[memory]" or size is None:
        return
    if type(size) is not int or abs(size) >= 1 << 52:
        raise trace.refusal(number, f"Bytes is {size!r:.40}")
    is_device = trace.whole(number, event, "Device Type") == _CUDA
    time = trace.nanoseconds(number, event, "ts")
    found.memory.add(found.thread(event), time, int(is_device), size, number)


def _counters(trace: Trace, number: int, event: Event, found: Found) -> None:
    """Add up the counters of a kernel; an average or a percentage cannot be added up."""
    args = event.get("args")
    name = _text(trace, number, event)
    calls, sums = found.counters.get(name, (0, {}))
    for key, value in args.items() if isinstance(args, dict) else ():
        if not is_number(value) or "__" not in key:
            continue
        if not key.endswith(".sum"):
            found.dropped.add(key)
        elif not 0 <= value < 1 << 62:
            raise trace.refusal(number, f"{key} is {value!s:.40}")
        else:
            sums[key] = sums.get(key, 0.0) + float(value)
    found.counters[name] = (calls + 1, sums)


_ADD: Final = {
    "kernel": _kernel,
    "copy": _copy,
    "call": _call,
    "operator": _operator,
    "annotation": _annotation,
    "counters": _counters,
    "memory": _memory,
}
