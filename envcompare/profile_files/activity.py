"""What ran on GPUs, row by row, as a trace tells it; and the sums that make a profile of it.

Rows are columns of whole numbers, 8 bytes a cell.

Kernels are grouped by name, grid and block. GPU work comes from the call that launched it, and a
call stands in a range of its thread. Launch order is that of the correlation ids, which CUPTI
counts up with each call of a process: on several streams the order of starts is a race. Busy time
is a union of intervals, of one GPU: times of several GPUs are never merged.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    CopyKind,
    Device,
    Dim,
    Kernel,
    Note,
    Profile,
    Quantity,
    Rule,
)

SEQUENCE_MOST: Final = 100_000
KINDS: Final[tuple[CopyKind, ...]] = get_args(CopyKind)
ROW: Final = ("process", "correlation", "start", "end", "device", "context", "stream", "owner")
"""Columns of kernels and copies; an owner is the number of the operator that caused a row."""

_ORDER: Final = ("group", "stream", "device", "end", "start", "correlation", "process")
Shape = tuple[str, Dim | None, Dim | None]
_GRAPH_LAUNCH: Final = re.compile(r"cu(?:da)?GraphLaunch")
THREAD_BITS: Final = 24
"""The upper bits of a thread's number are its process's, as in the global ids of nsys."""

_KEYS_MOST: Final = 1 << 62
Numbers = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]
"""A structured array; `table["start"]` is a column of 64-bit integers."""


def union_ns(starts: Numbers, ends: Numbers) -> int:
    """Return the length of the union of [start, end), in any order and however they overlap."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    # What an interval adds begins where everything before it has ended.
    covered_until = np.concatenate((begin[:1], reach[:-1]))
    added = reach - np.maximum(begin, covered_until)
    return int(np.maximum(added, 0).sum())


def span_ns(starts: Numbers, ends: Numbers) -> int:
    """Return the time from the first start to the last end."""
    return int(ends.max() - starts.min()) if len(starts) else 0


def exposed_ns(of: tuple[Numbers, Numbers], under: tuple[Numbers, Numbers]) -> int:
    """Return how long the first intervals run while none of the second does."""
    starts, ends = (np.concatenate(pair) for pair in zip(of, under, strict=True))
    return union_ns(starts, ends) - union_ns(*under)


def with_gpu_times(
    profile: Profile, tables: Sequence[Table], known: Mapping[int, Device], *, source: str
) -> Profile:
    """Return the profile with its GPUs, their span and busy time; kernels are the first table.

    Of several GPUs each has quantities, and no number is of all. Where none did anything all that
    are known stand there.
    """
    used = np.unique(np.concatenate([table["device"] for table in tables])).tolist()
    numbers = used or sorted(known)
    devices = tuple(known.get(number) or _any_of(known.values()) for number in numbers)
    profile = replace(profile, devices=devices)
    if len(used) == 1:
        values = {name: float(value) for name, (value, _) in _times(tables).items()}
        return replace(profile, **values)
    if not used:
        return profile
    quantities = (
        Quantity(
            name=name, value=float(value), unit="ns", rule=rule, source=source,
            scope=f"GPU {number}", gpu=number,
        )
        for number in used
        for name, (value, rule) in _times([t[t["device"] == number] for t in tables]).items()
    )  # fmt: skip
    return replace(
        profile,
        quantities=(*quantities, *profile.quantities),
        notes=(Note(kind="several-gpus", values={"gpus": len(used)}), *profile.notes),
    )


def _any_of(known: Iterable[Device]) -> Device:
    """Return the model of a GPU that is not listed, where all that are listed are of one model.

    ROCm numbers the agents of all GPUs of a host, and lists those that the process sees.
    """
    models = {replace(device, uuid="") for device in known}
    return models.pop() if len(models) == 1 else Device()


def _times(tables: Sequence[Table]) -> dict[str, tuple[int, Rule]]:
    """Return span, busy time and gaps of one GPU by their names."""
    starts = np.concatenate([table["start"] for table in tables])
    ends = np.concatenate([table["end"] for table in tables])
    span, busy = span_ns(starts, ends), union_ns(starts, ends)
    return {
        "span_ns": (span, "difference"),
        "busy_ns": (busy, "union"),
        "kernel_busy_ns": (union_ns(tables[0]["start"], tables[0]["end"]), "union"),
        "launch_gap_ns": (span - busy, "difference"),
    }


def in_launch_order(table: Table) -> Table:
    """Return the kernels as they were launched, process by process."""
    process, correlation = table["process"], table["correlation"]
    order = np.argsort(correlation, kind="stable")
    # The rest of the columns decides only between rows with one correlation id.
    if (process[1:] == process[:-1]).all() and (np.diff(correlation[order]) > 0).all():
        return table[order]
    return table[np.lexsort([table[name] for name in _ORDER])]


def kernel_groups(
    table: Table, shapes: Sequence[Shape], ops: Sequence[str] = ()
) -> tuple[tuple[Kernel, ...], tuple[int, ...]]:
    """Return kernels by their first launch, and the sequence; `ops` stands beside the rows.

    The rows are in launch order.
    """
    groups, firsts, inverse = np.unique(table["group"], return_index=True, return_inverse=True)
    by_first = np.argsort(firsts)
    called = _called(inverse, table, len(groups))
    named = _ops(inverse, ops, len(groups))
    kernels = []
    for at in by_first.tolist():
        name, grid, block = shapes[int(groups[at])]
        first, op = int(firsts[at]), named[at]
        kernels.append(Kernel(name=name, grid=grid, block=block, first=first, op=op, **called[at]))
    places = np.argsort(by_first)[inverse[:SEQUENCE_MOST]]
    return tuple(kernels), tuple(places.tolist())


def copy_groups(table: Table) -> tuple[Copy, ...]:
    """Return copies by direction, memsets last; a size is known where each row has one."""
    kinds, inverse = np.unique(table["kind"], return_inverse=True)
    sizes = [table["bytes"][inverse == at] for at in range(len(kinds))]
    return tuple(
        Copy(
            kind=KINDS[kind],
            total_bytes=int(size.sum()) if size.min() >= 0 else None,
            **called,
        )
        for kind, size, called in zip(
            kinds.tolist(), sizes, _called(inverse, table, len(kinds)), strict=True
        )
    )


def without_memsets(copies: Table, *, source: str, hidden: str = "") -> tuple[Quantity, ...]:
    """Return time and bytes of the memsets that a trace which records them does not hold: 0.

    Where something hides them they are missing, for the reason in `hidden`.
    """
    if (copies["kind"] == KINDS.index("memset")).any():
        return ()
    value, scope = (None, "") if hidden else (0.0, "0 memsets")
    return tuple(
        Quantity(
            name=name, value=value, unit=unit, rule="sum", source=source, scope=scope,
            status="missing" if hidden else "ok", reason=hidden,
        )
        for name, unit in (("memset_ns", "ns"), ("memset_bytes", "B"))
    )  # fmt: skip


def api_calls(calls: Table, names: Sequence[str]) -> tuple[ApiCall, ...]:
    """Return the calls by function, those that took longest first; `name` is a place in `names`."""
    numbers, inverse = np.unique(calls["name"], return_inverse=True)
    called = zip(numbers.tolist(), _called(inverse, calls, len(numbers)), strict=True)
    by_name = (ApiCall(name=names[number], **sums) for number, sums in called)
    return tuple(sorted(by_name, key=lambda call: (-call.total_ns, call.name)))


def _called(groups: npt.NDArray[Any], table: Table, count: int) -> list[dict[str, Any]]:
    """Return calls and times of each group of rows, by the names they have in a profile."""
    lasted = table["end"] - table["start"]
    total = np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.full(count, np.iinfo(np.int64).min)
    for sums, add in ((total, np.add), (least, np.minimum), (most, np.maximum)):
        add.at(sums, groups, lasted)
    calls = np.bincount(groups, minlength=count)
    times = (sums.astype(float).tolist() for sums in (total, least, most))
    names = ("calls", "total_ns", "min_ns", "max_ns")
    return [dict(zip(names, row, strict=True)) for row in zip(calls.tolist(), *times, strict=True)]


def _ops(groups: npt.NDArray[Any], ops: Sequence[str], count: int) -> list[str]:
    """Return the operator most launches of each group stand in; ties go by name."""
    counted: list[Counter[str]] = [Counter() for _ in range(count)]
    for group, op in zip(groups.tolist(), ops, strict=False):
        counted[group][op] += 1
    return [min(counts, key=lambda op: (-counts[op], op), default="") for counts in counted]


class Rows:
    """A table that grows row by row; its last column says where in the file a row stands."""

    def __init__(self, *names: str) -> None:
        self._names = (*names, "place")
        self._cells = array("q")

    def __len__(self) -> int:
        return len(self._cells) // len(self._names)

    def add(self, *cells: int) -> None:
        """Append a row; raises OverflowError for a number of more than 64 bits."""
        self._cells.extend(cells)

    def table(self) -> Table:
        """Return all rows as a structured array, which shares their memory: nothing may follow."""
        return np.asarray(self._cells).view([(name, np.int64) for name in self._names])


def columns(cells: Mapping[str, Numbers]) -> Table:
    """Return a table of these columns, which are of one length."""
    length = len(next(iter(cells.values())))
    table: Table = np.empty(length, dtype=[(name, np.int64) for name in cells])
    for name, values in cells.items():
        table[name] = values
    return table


def keys(parts: Sequence[Numbers]) -> Numbers:
    """Return one number for each combination of these columns, ordered as the columns are."""
    numbers, count = np.zeros(len(parts[0]), dtype=np.int64), 1
    for part in parts if len(parts[0]) else ():
        low, high = int(part.min()), int(part.max())
        if count * (high - low + 1) > _KEYS_MOST:
            numbers, part = (  # noqa: PLW2901 — the same column in fewer numbers
                np.unique(column, return_inverse=True)[1].astype(np.int64)
                for column in (numbers, part)
            )
            count, low, high = len(numbers), 0, len(numbers) - 1
        numbers = numbers * (high - low + 1) + (part - low)
        count *= high - low + 1
    return numbers


def first_duplicate(table: Table) -> tuple[int, int] | None:
    """Return the places of two rows that are equal in all but their place.

    Only rows with the same start can be; they are few, and sorting by all columns takes time.
    """
    names = [name for name in table.dtype.names or () if name != "place"]
    if len(table) < 2:
        return None
    by_start = np.argsort(table["start"], kind="stable")
    starts = table["start"][by_start]
    same = np.concatenate(([False], starts[1:] == starts[:-1], [False]))
    few = table[by_start[same[1:] | same[:-1]]]
    seen: dict[tuple[int, ...], int] = {}
    for place, row in sorted(zip(few["place"].tolist(), few[names].tolist(), strict=True)):
        if seen.setdefault(row, place) != place:
            return seen[row], place
    return None


def launching_calls(rows: Table, calls: Table) -> Numbers:
    """Return the place in `calls` of the call that launched each row, or -1.

    A call is found by process and correlation id; of several with one id the first counts.
    """
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1)
    both = _call_keys(rows, calls)
    asked, offered = both[: len(rows)], both[len(rows) :]
    order = np.lexsort((calls["start"], offered))
    at = np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)
    places = order[at]
    return np.where((offered[places] == asked) & (rows["correlation"] >= 0), places, -1)


def untraced_graphs(calls: Table, names: Sequence[str], tables: Sequence[Table]) -> int:
    """Return how often CUDA graphs were launched where not one launch has GPU work; else 0.

    Work of a graph that was traced by its nodes carries the correlation id of the launch.
    """
    launching = [number for number, name in enumerate(names) if _GRAPH_LAUNCH.match(name)]
    if not launching:
        return 0
    launches = np.flatnonzero(np.isin(calls["name"], launching) & (calls["correlation"] >= 0))
    worked = np.concatenate([launching_calls(table, calls) for table in tables])
    # an old trace does not tell which call launched what
    is_told = not len(worked) or (worked >= 0).any()
    return len(launches) if is_told and not np.isin(launches, worked).any() else 0


def _call_keys(rows: Table, calls: Table) -> Numbers:
    """Return one number for each pair of process and correlation id, rows first."""
    processes = np.concatenate((rows["process"], calls["thread"])) >> THREAD_BITS
    if (rows["process"] < 0).all():
        # The first releases wrote no process beside a kernel.
        processes = np.zeros_like(processes)
    return keys([processes, np.concatenate((rows["correlation"], calls["correlation"]))])


def innermost(ranges: Table, *, threads: Numbers, times: Numbers) -> list[int]:
    """Return for each moment the place in `ranges` of the innermost one on its thread, or -1."""
    places = [-1] * len(times)
    order = np.lexsort((times, threads)).tolist()
    by_start = np.lexsort((-ranges["end"], ranges["start"], ranges["thread"]))
    columns = [ranges[name][by_start].tolist() for name in ("thread", "start", "end")]
    starts = list(zip(*columns, by_start.tolist(), strict=True))
    around: list[tuple[int, int, int, int]] = []
    upcoming = 0
    for place in order:
        moment = (int(threads[place]), int(times[place]))
        while upcoming < len(starts) and starts[upcoming][:2] <= moment:
            around.append(starts[upcoming])
            upcoming += 1
        # What ended early below a longer range is dropped when it comes to the top.
        while around and (around[-1][0] != moment[0] or around[-1][2] < moment[1]):
            around.pop()
        if around:
            places[place] = around[-1][3]
    return places
