"""The events of a Kineto trace, sorted into rows: GPU work, API calls, operators, memory.

Operators are added up as torch.profiler does: what is theirs, and what is inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from envcompare.profile_files.activity import (
    KINDS,
    ROW,
    Numbers,
    Rows,
    Shape,
    Table,
    innermost,
    launching_calls,
)
from envcompare.profile_files.kineto.trace import Event, Trace, is_number
from envcompare.run_folder.profiles import Dim, Operator

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
EXCHANGE: Final = re.compile(r"gloo:\w+")
"""What the backend of torch.distributed that exchanges data by the host calls it."""

# An operator has a namespace. That of c10d hands an exchange to its backend; hooks that wait for
# one run in those of autograd, whose nodes, such as AddmmBackward0, have none.
_COMPUTES: Final = re.compile(r"(?!c10d::|(?:torch::)?autograd::)[\w.]+::")
_OCCUPANCY: Final = "est. achieved occupancy %"
OCCUPANCY_PARTS: Final = 1000
_CUDA: Final = 1


@dataclass(kw_only=True, slots=True)
class EventRows:
    """All rows of a trace; names, threads and shapes of kernels are numbered as they come."""

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
    steps_ns: int = 0  # they take in all
    exchanges: Rows = field(default_factory=lambda: Rows("start", "end"))  # between processes
    occupancy_weighted: int = 0
    occupancy_ns: int = 0

    def name(self, text: str) -> int:
        """Return the number of a name."""
        return self.names.setdefault(text, len(self.names))

    def thread(self, event: Event) -> int:
        """Return the number of the thread an event is of."""
        return self.threads.setdefault(f"{event.get('pid')}/{event.get('tid')}", len(self.threads))


def read_rows(trace: Trace) -> EventRows:
    """Read a whole trace; raises ProfileError for an event that cannot be."""
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


def _kernel(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    where = _where(trace, number, event)
    grid, block = (_dim(trace, number, event, key) for key in ("grid", "block"))
    shape = (_text(trace, number, event), grid, block)
    group = rows.shapes.setdefault(shape, len(rows.shapes))
    rows.kernels.add(*where, group, number)
    estimate = event["args"].get(_OCCUPANCY)
    if estimate is None:
        return
    if not is_number(estimate) or not 0 <= estimate <= 100:
        raise trace.refusal(number, f"{_OCCUPANCY} is {estimate!s:.40}")
    lasted = where[3] - where[2]
    # In whole parts, so that the order of events cannot change the sum.
    rows.occupancy_weighted += int(estimate * OCCUPANCY_PARTS) * lasted
    rows.occupancy_ns += lasted


def _dim(trace: Trace, number: int, event: Event, key: str) -> Dim | None:
    value = event["args"].get(key)
    # ROCm tells the kind of a dispatch, and zeros where it does not know its shape.
    if value is None or ("kind" in event["args"] and value == [0, 0, 0]):
        return None
    if not isinstance(value, list) or len(value) != 3 or not all(_is_size(size) for size in value):
        raise trace.refusal(number, f"{key} is {value!r:.40}")
    return (value[0], value[1], value[2])


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value < 1 << 32


def _copy(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    name, size = _text(trace, number, event), trace.whole(number, event, "bytes")
    match = _COPY.match(name)
    # An array (A) lies in the memory of the device.
    kind = (match[1] or f"{match[2]}to{match[3]}").replace("A", "D") if match else "other"
    if name.lower().startswith(_SETS):
        kind = "memset"
    where = _where(trace, number, event)
    rows.copies.add(*where, _PLACES[kind], size, number)


def _call(trace: Trace, number: int, event: Event, rows: EventRows) -> None:
    start, end = _times(trace, number, event)
    name = rows.name(_text(trace, number, event))
    call = _correlation(trace, number, event)
    rows.calls.add(rows.thread(event), start, end, call, name, number)


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
    """Add up the counters of a kernel; an average or a percentage cannot be added up."""
    args = event.get("args")
    name = _text(trace, number, event)
    calls, sums = rows.counters.get(name, (0, {}))
    for key, value in args.items() if isinstance(args, dict) else ():
        if not is_number(value) or "__" not in key:
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


def owners(rows: Table, calls: Table, operators: Table) -> Numbers:
    """Return the place in `operators` of what caused each row of GPU work, or -1.

    It is the innermost operator around the call that launched it; without a call, the one whose
    external id the row carries.
    """
    if not len(rows) or not len(operators):
        return np.full(len(rows), -1)
    callers = np.full(len(rows), -1)
    if len(calls):
        at = launching_calls(rows, calls)
        around = innermost(operators, threads=calls["thread"][at], times=calls["start"][at])
        callers = np.where(at >= 0, np.array(around, dtype=np.int64), -1)
    return np.where(callers >= 0, callers, _by_external(rows["owner"], operators["external"]))


def _by_external(asked: Numbers, offered: Numbers) -> Numbers:
    order = np.argsort(offered, kind="stable")
    at = np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)
    places = order[at]
    # Kineto writes 0 where it knows of no operator.
    return np.where((offered[places] == asked) & (asked > 0), places, -1)


def operator_sums(
    operators: Table,
    names: Sequence[str],
    *,
    work: Numbers,
    durations: Numbers,
    memory: Table,
) -> tuple[Operator, ...]:
    """Return the operators by name, those with the most time of their own first.

    `work` holds the operator, or -1, that caused each piece of GPU work of these `durations`.
    """
    if not len(operators):
        return ()
    order = np.lexsort(
        [operators[name] for name in ("name", "external")]
        + [-operators["end"], operators["start"], operators["thread"]]
    )
    parents = _parents(operators, order)
    stands_for = _once(operators, parents, order)
    is_kept = stands_for == np.arange(len(operators))
    parents = np.where(is_kept & (parents >= 0), stands_for[parents], -1)
    length = operators["end"] - operators["start"]
    device = _added(_moved(work, stands_for), durations, len(operators))
    owner = innermost(operators, threads=memory["thread"], times=memory["time"])
    held = _moved(np.array(owner, dtype=np.int64), stands_for)
    sums = np.stack([
        np.ones_like(length),
        length - _inside(operators, parents),
        length,
        device,
        _with_children(device, parents, order),
        *(
            _added(held[picked], memory["bytes"][picked], len(operators))
            for picked in (memory["is_device"] == 0, memory["is_device"] == 1)
        ),
    ])  # fmt: skip
    by_name = _by_name(sums[:, is_kept], operators["name"][is_kept])
    has_gpu, has_memory = len(work) > 0, len(memory) > 0
    rows = (
        _operator_row(names[number], cells, has_gpu=has_gpu, has_memory=has_memory)
        for number, cells in by_name.items()
    )
    return tuple(
        sorted(rows, key=lambda row: (-(row.self_device_ns or 0), -row.self_cpu_ns, row.name))
    )


def computing(operators: Table, names: Sequence[str]) -> Table:
    """Return the operators that compute, without what calls them and may wait in between."""
    kept = [at for at, name in enumerate(names) if _COMPUTES.match(name)]
    return operators[np.isin(operators["name"], kept)]


def _operator_row(name: str, cells: Sequence[int], *, has_gpu: bool, has_memory: bool) -> Operator:
    calls, self_time, total, device, device_all, host_bytes, device_bytes = cells
    return Operator(
        name=name,
        calls=calls,
        self_cpu_ns=float(self_time),
        cpu_ns=float(total),
        self_device_ns=float(device) if has_gpu else None,
        device_ns=float(device_all) if has_gpu else None,
        self_cpu_bytes=host_bytes if has_memory else None,
        self_device_bytes=device_bytes if has_memory else None,
    )


def _by_name(columns: Numbers, names: Numbers) -> dict[int, list[int]]:
    numbers, inverse = np.unique(names, return_inverse=True)
    sums = np.zeros((len(columns), len(numbers)), dtype=np.int64)
    for at, column in enumerate(columns):
        np.add.at(sums[at], inverse, column)
    return dict(zip(numbers.tolist(), sums.T.tolist(), strict=True))


def _parents(rows: Table, order: Numbers) -> Numbers:
    """Return the place of the operator each one stands in on its thread, or -1."""
    parents = np.full(len(rows), -1)
    threads, starts, ends = (rows[name].tolist() for name in ("thread", "start", "end"))
    around: list[int] = []
    for place in order.tolist():
        while around and (
            threads[around[-1]] != threads[place] or ends[around[-1]] <= starts[place]
        ):
            around.pop()
        if around:
            parents[place] = around[-1]
        around.append(place)
    return parents


def _once(rows: Table, parents: Numbers, order: Numbers) -> Numbers:
    """Return for each operator its place, or that of the one it repeats.

    A dispatcher may call the same name again and nothing else; torch.profiler shows one of them.
    """
    children = np.bincount(parents[parents >= 0], minlength=len(rows))
    repeats = (parents >= 0) & (rows["name"] == rows["name"][parents]) & (children[parents] == 1)
    stands_for = np.arange(len(rows))
    for place in order[repeats[order]].tolist():
        stands_for[place] = stands_for[parents[place]]
    return stands_for


def _moved(places: Numbers, stands_for: Numbers) -> Numbers:
    return np.where(places >= 0, stands_for[places], -1)


def _inside(rows: Table, parents: Numbers) -> Numbers:
    """Return how long children ran inside each operator; rounding may carry one past the end."""
    is_child = parents >= 0
    parent = parents[is_child]
    until = np.minimum(rows["end"][is_child], rows["end"][parent])
    return _added(parent, until - rows["start"][is_child], len(rows))


def _with_children(values: Numbers, parents: Numbers, order: Numbers) -> Numbers:
    sums = values.tolist()
    above = parents.tolist()
    for place in reversed(order.tolist()):
        if above[place] >= 0:
            sums[above[place]] += sums[place]
    return np.array(sums, dtype=np.int64)


def _added(places: Numbers, values: Numbers, count: int) -> Numbers:
    sums = np.zeros(count, dtype=np.int64)
    known = places >= 0
    np.add.at(sums, places[known], values[known])
    return sums
