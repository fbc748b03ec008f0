"""GPU activity of a trace as tables of rows, and the sums that make a profile.

Tables have columns of 64-bit integers.

Kernels are grouped by name, grid and block. GPU work is attributed to the call that launched it,
and a call to the ranges of its thread. Launch order is the order of correlation ids, which CUPTI
increments with each call of a process, because start order on several streams is a race. Busy time
is a union of intervals on one GPU; times of several GPUs are never merged.
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
"""Columns of kernels and copies; an owner is the number of the operator behind a row."""

_ORDER: Final = ("group", "stream", "device", "end", "start", "correlation", "process")
Shape = tuple[str, Dim | None, Dim | None]
_GRAPH_LAUNCH: Final = re.compile(r"cu(?:da)?GraphLaunch")
THREAD_BITS: Final = 24
"""The bits above these in a thread number are its process, as in the global ids of nsys."""

_KEYS_MOST: Final = 1 << 62
Numbers = npt.NDArray[np.int64]
Table = npt.NDArray[np.void]
"""A structured array; `table["start"]` is a column of 64-bit integers."""


def union_ns(starts: Numbers, ends: Numbers) -> int:
    """Return the length of the union of the intervals [start, end), in any order."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    # An interval adds only its part after the end of all earlier ones.
    covered_until = np.concatenate((begin[:1], reach[:-1]))
    added = reach - np.maximum(begin, covered_until)
    return int(np.maximum(added, 0).sum())


def span_ns(starts: Numbers, ends: Numbers) -> int:
    """Return the time from the first start to the last end."""
    return int(ends.max() - starts.min()) if len(starts) else 0


def exposed_ns(of: tuple[Numbers, Numbers], under: tuple[Numbers, Numbers]) -> int:
    """Return the time covered by the first intervals and not by the second."""
    starts, ends = (np.concatenate(pair) for pair in zip(of, under, strict=True))
    return union_ns(starts, ends) - union_ns(*under)


def with_gpu_times(
    profile: Profile, tables: Sequence[Table], known: Mapping[int, Device], *, source: str
) -> Profile:
    """Return the profile with its GPUs, their span and busy time; kernels are the first table.

    Each of several GPUs gets separate quantities. Without GPU work, all known GPUs are listed.
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
    """Return the model of an unlisted GPU, if all listed GPUs are of one model.

    ROCm numbers all GPUs of a host but lists only those visible to the process.
    """
    models = {replace(device, uuid="") for device in known}
    return models.pop() if len(models) == 1 else Device()


def _times(tables: Sequence[Table]) -> dict[str, tuple[int, Rule]]:
    """Return span, busy time and gaps of one GPU by name, in ns."""
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
    """Return the kernels in launch order, process by process."""
    process, correlation = table["process"], table["correlation"]
    order = np.argsort(correlation, kind="stable")
    # The other columns only break ties between rows with the same correlation id.
    if (process[1:] == process[:-1]).all() and (np.diff(correlation[order]) > 0).all():
        return table[order]
    return table[np.lexsort([table[name] for name in _ORDER])]


def kernel_groups(
    table: Table, shapes: Sequence[Shape], ops: Sequence[str] = ()
) -> tuple[tuple[Kernel, ...], tuple[int, ...]]:
    """Return kernels ordered by first launch, and the launch sequence as places of kernels.

    The rows are in launch order; `ops` has the operator of each row.
    """
    groups, firsts, inverse = np.unique(table["group"], return_index=True, return_inverse=True)
    by_first = np.argsort(firsts)
    called = _call_sums(inverse, table, len(groups))
    named = _ops(inverse, ops, len(groups))
    kernels = []
    for at in by_first.tolist():
        name, grid, block = shapes[int(groups[at])]
        first, op = int(firsts[at]), named[at]
        kernels.append(Kernel(name=name, grid=grid, block=block, first=first, op=op, **called[at]))
    places = np.argsort(by_first)[inverse[:SEQUENCE_MOST]]
    return tuple(kernels), tuple(places.tolist())


def copy_groups(table: Table) -> tuple[Copy, ...]:
    """Return copies by direction, memsets last; bytes are None if any row lacks them."""
    kinds, inverse = np.unique(table["kind"], return_inverse=True)
    sizes = [table["bytes"][inverse == at] for at in range(len(kinds))]
    return tuple(
        Copy(
            kind=KINDS[kind],
            total_bytes=int(size.sum()) if size.min() >= 0 else None,
            **called,
        )
        for kind, size, called in zip(
            kinds.tolist(), sizes, _call_sums(inverse, table, len(kinds)), strict=True
        )
    )


def without_memsets(copies: Table, *, source: str, hidden: str = "") -> tuple[Quantity, ...]:
    """Return memset time and bytes as 0 for a trace without memsets, or missing.

    They are missing if something hides memsets, for the reason in `hidden`.
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
    """Return the calls by function, longest total first; column `name` indexes `names`."""
    numbers, inverse = np.unique(calls["name"], return_inverse=True)
    called = zip(numbers.tolist(), _call_sums(inverse, calls, len(numbers)), strict=True)
    by_name = (ApiCall(name=names[number], **sums) for number, sums in called)
    return tuple(sorted(by_name, key=lambda call: (-call.total_ns, call.name)))


def _call_sums(groups: npt.NDArray[Any], table: Table, count: int) -> list[dict[str, Any]]:
    """Return number of calls and times of each group, under the field names of a profile."""
    durations_ns = table["end"] - table["start"]
    total = np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.full(count, np.iinfo(np.int64).min)
    for sums, add in ((total, np.add), (least, np.minimum), (most, np.maximum)):
        add.at(sums, groups, durations_ns)
    calls = np.bincount(groups, minlength=count)
    times = (sums.astype(float).tolist() for sums in (total, least, most))
    names = ("calls", "total_ns", "min_ns", "max_ns")
    return [dict(zip(names, row, strict=True)) for row in zip(calls.tolist(), *times, strict=True)]


def _ops(groups: npt.NDArray[Any], ops: Sequence[str], count: int) -> list[str]:
    """Return the most frequent operator of each group; ties go by name."""
    counted: list[Counter[str]] = [Counter() for _ in range(count)]
    for group, op in zip(groups.tolist(), ops, strict=False):
        counted[group][op] += 1
    return [min(counts, key=lambda op: (-counts[op], op), default="") for counts in counted]


class Rows:
    """A table that grows row by row; its last column is the position of the row in the file."""

    def __init__(self, *names: str) -> None:
        self._names = (*names, "place")
        self._cells = array("q")

    def __len__(self) -> int:
        return len(self._cells) // len(self._names)

    def add(self, *cells: int) -> None:
        """Append a row; raises OverflowError for a number of more than 64 bits."""
        self._cells.extend(cells)

    def table(self) -> Table:
        """Return all rows as a structured array that shares memory; no row may be added later."""
        return np.asarray(self._cells).view([(name, np.int64) for name in self._names])


def columns(cells: Mapping[str, Numbers]) -> Table:
    """Return a table of columns of equal length."""
    length = len(next(iter(cells.values())))
    table: Table = np.empty(length, dtype=[(name, np.int64) for name in cells])
    for name, values in cells.items():
        table[name] = values
    return table


def keys(parts: Sequence[Numbers]) -> Numbers:
    """Return one number for each row, equal for equal rows and in the order of the columns."""
    numbers, count = np.zeros(len(parts[0]), dtype=np.int64), 1
    for part in parts if len(parts[0]) else ():
        low, high = int(part.min()), int(part.max())
        if count * (high - low + 1) > _KEYS_MOST:
            numbers, part = (  # noqa: PLW2901 — the same column with smaller numbers
                np.unique(column, return_inverse=True)[1].astype(np.int64)
                for column in (numbers, part)
            )
            count, low, high = len(numbers), 0, len(numbers) - 1
        numbers = numbers * (high - low + 1) + (part - low)
        count *= high - low + 1
    return numbers


def first_duplicate(table: Table) -> tuple[int, int] | None:
    """Return the places of two rows that are equal apart from their place.

    Only rows with the same start are compared: they are few, and a full sort is slow.
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
    """Return the index in `calls` of the call that launched each row, or -1.

    A call is matched by process and correlation id; the first of several matches counts.
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
    """Return the number of CUDA graph launches if none of them has GPU work, else 0.

    Work of a graph traced by its nodes carries the correlation id of the launch.
    """
    launching = [number for number, name in enumerate(names) if _GRAPH_LAUNCH.match(name)]
    if not launching:
        return 0
    launches = np.flatnonzero(np.isin(calls["name"], launching) & (calls["correlation"] >= 0))
    worked = np.concatenate([launching_calls(table, calls) for table in tables])
    # old traces do not link work to calls
    are_linked = not len(worked) or (worked >= 0).any()
    return len(launches) if are_linked and not np.isin(launches, worked).any() else 0


def _call_keys(rows: Table, calls: Table) -> Numbers:
    """Return one number for each pair of process and correlation id, rows first."""
    processes = np.concatenate((rows["process"], calls["thread"])) >> THREAD_BITS
    if (rows["process"] < 0).all():
        # The first releases did not record the process of a kernel.
        processes = np.zeros_like(processes)
    return keys([processes, np.concatenate((rows["correlation"], calls["correlation"]))])


def innermost(ranges: Table, *, threads: Numbers, times: Numbers) -> list[int]:
    """Return for each time the index of the innermost range on its thread, or -1."""
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
        # A range that has ended below a longer one is dropped when it reaches the top.
        while around and (around[-1][0] != moment[0] or around[-1][2] < moment[1]):
            around.pop()
        if around:
            places[place] = around[-1][3]
    return places
