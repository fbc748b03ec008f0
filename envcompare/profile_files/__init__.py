"""Read the files of profilers, and derive quantities from them.

`read` is the entry point to all readers. It detects the tool from the first bytes, and names it
when it refuses a file of another tool. Several passes over the same launches become one profile
with the counters of all.

GPU activity of a trace is kept as tables with columns of 64-bit integers. Kernels are grouped by
name, grid and block. GPU work is attributed to the call that launched it, and a call to the ranges
of its thread. Launch order is the order of correlation ids, which CUPTI increments with each call
of a process, because start order on several streams is a race. Busy time is a union of intervals on
one GPU; times of several GPUs are never merged.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from envcompare.errors import ConfigError
from envcompare.files import PRINTED_BYTES, is_hollow
from envcompare.gpu.kernels import is_nameless
from envcompare.profile_files.derive import with_quantities
from envcompare.profile_files.rawfiles import GZIP, SQLITE, encoding_of, first_bytes, refusal
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
    impossible,
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
    # ROCm numbers all GPUs of a host but lists only those visible to the process. If all listed
    # GPUs are of one model, an unlisted one is too.
    models = {replace(device, uuid="") for device in known.values()}
    unlisted = models.pop() if len(models) == 1 else Device()
    devices = tuple(known.get(number) or unlisted for number in numbers)
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
        # A product beyond 63 bits would silently wrap around; dense numbers keep the order.
        if count * (high - low + 1) > 1 << 62:
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
    processes = np.concatenate((rows["process"], calls["thread"])) >> THREAD_BITS
    if (rows["process"] < 0).all():
        # The first releases did not record the process of a kernel.
        processes = np.zeros_like(processes)
    both = keys([processes, np.concatenate((rows["correlation"], calls["correlation"]))])
    asked, offered = both[: len(rows)], both[len(rows) :]
    order = np.lexsort((calls["start"], offered))
    # A key above all others gets an index past the end. Whether the keys are equal is checked
    # below.
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


def innermost(ranges: Table, *, threads: Numbers, times: Numbers) -> list[int]:
    """Return for each time the index of the innermost range on its thread, or -1."""
    places = [-1] * len(times)
    order = np.lexsort((times, threads)).tolist()
    # Of ranges that start together, the longest is the outer one and has to come first.
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


READERS: Final = {
    "kineto": "envcompare.profile_files.kineto",
    "ncu": "envcompare.profile_files.ncu",
    "nsys": "envcompare.profile_files.nsys",
    "nvprof": "envcompare.profile_files.nvprof",
}
"""The module of each tool, with a function `read(path) -> Profile`; imported on demand."""

SEVERAL: Final = frozenset({"ncu", "nvprof"})
"""Tools that collect counters in several runs over the same launches."""

_KINDS: Final = {
    "kineto": "a trace of torch.profiler",
    "ncu": "a file of Nsight Compute",
    "nsys": "a file of Nsight Systems",
    "nvprof": "a file of nvprof",
}
_HEAD_BYTES: Final = 1 << 20
_POINTERS: Final = (
    # The first releases of Git LFS were called Hawser, and wrote this name into their pointers.
    (re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/"), "Git LFS",
     "git lfs pull --include '*{file}'"),
    (re.compile(rb"/annex/objects/\S+"), "git-annex", "git annex get {file}"),
)  # fmt: skip
_ARCHIVES: Final = (
    # The magic word of a tar archive is at offset 257 (tar(5)).
    (re.compile(rb".{257}ustar", re.DOTALL), "a tar archive", "tar xf {file}"),
    (re.compile(rb"PK\x03\x04"), "a zip archive", "unzip {file}"),
    (re.compile(rb"\x28\xb5\x2f\xfd"), "packed by zstd", "zstd -d {file}"),
    (re.compile(rb"\xfd7zXZ"), "packed by xz", "xz -d {file}"),
    (re.compile(rb"BZh\d"), "packed by bzip2", "bzip2 -d {file}"),
)
_STATS: Final = re.compile(
    rb"^Processing \[.*\] with \[|^ \*\* [^\n]{0,99}?(?:Summary|Trace)[^\n]{0,99}? \(\w{1,40}\):"
    rb'|^"?Start \(ns\)"?,"?Duration|"?Time ?\(%\)"?[\s,]+"?Total Time'
    rb'|\[\s*\{\s*"Time \(%\)" ?:',
    re.MULTILINE,
)
_PAGE: Final = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_TEXT_TOOLS: Final = frozenset({"ncu", "nvprof"})
_TEXTS: Final = (
    (
        "nvprof",
        re.compile(rb'^"?==\d+== |^"Type","Time\(%\)"|^"Device","Kernel","Inv', re.MULTILINE),
    ),
    (
        "ncu",
        re.compile(rb'^==PROF== |^"ID","Process ID"|^"Process ID","Process Name"', re.MULTILINE),
    ),
    ("kineto", re.compile(rb'^\s*\{\s*"|"traceEvents"\s*:|^\s*\[\s*\{')),
)


def read(
    tool: str, paths: Sequence[Path], *, version: str = "", controls: Note | None = None
) -> Profile:
    """Read the files of one tool, with quantities; several passes of ncu or nvprof are merged.

    `version` and `controls` (cache and clock control) supply what the file does not record.

    Raises ConfigError for an unknown tool, or for several files of a tool with one; ProfileError
    for a file that cannot be trusted or is another tool's, and for passes whose launches differ.
    """
    if tool not in READERS:
        raise ConfigError(
            f"unknown profiler {tool!r}", hint=f"choose one of {', '.join(sorted(READERS))}"
        )
    if len(paths) != 1 and not (paths and tool in SEVERAL):
        raise ConfigError(
            f"{len(paths)} files for one profile of {tool}",
            hint="import one file at a time; each gets its own name",
        )
    for path in paths:
        check(tool, path)
    reader: Callable[[Path], Profile] = import_module(READERS[tool]).read
    merged = _merge([reader(path) for path in paths])
    notes = [
        controls if controls and note == Note(kind="controls-unknown") else note
        for note in merged.notes
    ]
    lost = sum(kernel.calls for kernel in merged.kernels if is_nameless(kernel.name))
    if lost:
        notes.append(Note(kind="nameless-launches", values={"launches": lost}))
    profile = replace(merged, version=version or merged.version, notes=tuple(notes))
    return validate(with_quantities(profile))


def validate(profile: Profile) -> Profile:
    """Return the profile.

    Raises ProfileError for an impossible number: negative, infinite, or a minimum above a maximum.
    """
    why = next(impossible(profile), None)
    if why is not None:
        raise refusal(", ".join(profile.files), why=why)
    return profile


def check(tool: str, path: Path) -> None:
    """Raise ProfileError for a file of another tool, too large, or only partly copied.

    Only the beginning is read.
    """
    is_text = tool in _TEXT_TOOLS and not _by_name(path)
    # Only text is read into memory as a whole.
    writer = recognise(path, most=PRINTED_BYTES if is_text else None)
    if writer and writer != tool:
        raise refusal(
            path.name,
            why=f"this is {_KINDS[writer]}, not {_KINDS[tool]}",
            hint=f"use `envcompare import {writer}`",
        )
    if is_hollow(path):
        why = "nearly all of it are holes, which nothing was written to: it was not copied whole"
        raise refusal(path.name, why=why)


def recognise(path: Path, *, most: int | None = None) -> str:
    """Return nsys, ncu, kineto or nvprof, or an empty string for an unknown file.

    `most` is in bytes. Raises ProfileError when the file cannot be opened, is larger than `most`,
    or is something else in its place: a repository pointer, zeros, an archive, a web page, or text
    in an encoding that the reader does not support.
    """
    head = first_bytes(path, _HEAD_BYTES, most=most)
    plain = _plain(head)
    _refuse_placeholder(path.name, head, plain)
    tool = _by_name(path)
    if not tool and plain.startswith(SQLITE):
        # Both write SQLite with the same table names; only nsys keeps strings in `StringIds`.
        tool = "nvprof" if b"StringTable" in plain and b"StringIds" not in plain else "nsys"
    elif not tool:
        tool = next((name for name, pattern in _TEXTS if pattern.search(plain)), "")
    # A list of objects, which `nsys stats` prints as JSON, would pass as the events of a trace.
    if tool in {"", "kineto"} and _STATS.search(plain):
        why = "it is the output of `nsys stats`, which has neither launch order nor busy time"
        hint = "import the report, or: nsys export --type sqlite -o OUT.sqlite REPORT.nsys-rep"
        raise refusal(path.name, why=why, hint=hint)
    if tool not in _TEXT_TOOLS and encoding_of(head).startswith("utf-16"):
        raise refusal(
            path.name,
            why="the file is UTF-16, which a PowerShell redirect writes; this format must be UTF-8",
            hint=f"iconv -f UTF-16 -t UTF-8 {path.name} > NEW, and import that",
        )
    return tool


def _refuse_placeholder(name: str, head: bytes, plain: bytes) -> None:
    """Refuse a repository pointer, a web page, zeros or an archive in place of the file.

    `head` is the start of the file, `plain` the same unpacked.
    """
    for pattern, form, command in _ARCHIVES:
        if pattern.match(plain):
            hint = f"{command.format(file=name)}, then import the files that come out"
            raise refusal(name, why=f"it is {form}", hint=hint)
    for pattern, keeper, command in _POINTERS:
        if pattern.match(head):
            size = re.search(rb"^size (\d+)$", head, re.MULTILINE)
            length = f" ({int(size[1]):,} bytes)" if size else ""
            why = f"it is a {keeper} pointer: the file itself{length} was not fetched"
            raise refusal(name, why=why, hint=f"{command.format(file=name)}, then import it again")
    if len(head) == _HEAD_BYTES and not any(head):
        why = f"its first {_HEAD_BYTES >> 20} MiB are zero bytes: the copy is incomplete"
        raise refusal(name, why=why)
    if _PAGE.match(head):
        why = "it is a web page, not the file itself"
        raise refusal(name, why=why, hint="download the raw file, and import that")


def _by_name(path: Path) -> str:
    endings = {".nsys-rep": "nsys", ".qdrep": "nsys", ".ncu-rep": "ncu"}
    return endings.get(path.suffix.lower(), "")


def _plain(head: bytes) -> bytes:
    """Return the head unpacked if it is gzip, and as UTF-8 if it is UTF-16.

    Data that cannot be unpacked gives empty bytes.
    """
    encoding = encoding_of(head)
    if encoding.startswith("utf-16"):
        return head.decode(encoding, "ignore").encode()
    if not head.startswith(GZIP):
        return head
    try:
        # 31 expects a gzip header and the largest window (zlib manual, inflateInit2). The limit is
        # for a small file that unpacks to a huge one.
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""


def _merge(profiles: Sequence[Profile]) -> Profile:
    """Merge the passes over one program; raises ProfileError if their launches differ.

    Launches are matched by order if all files record it, else by kernel and number of calls.
    Times and repeated metrics come from the first pass that has them.
    """
    first = profiles[0]
    if len(profiles) == 1:
        return first
    timed = next((profile for profile in profiles if profile.has_time), first)
    _refuse_repeated(profiles)
    for other in profiles:
        if other is not timed:
            _refuse_other_launches(timed, other)
    merged = [
        {_shape(kernel): kernel for kernel in profile.kernels}
        for profile in profiles
        if profile is not timed
    ]
    kernels = []
    for kernel in timed.kernels:
        metrics = dict(kernel.metrics)
        for others in merged:
            metrics = others[_shape(kernel)].metrics | metrics
        kernels.append(replace(kernel, metrics=metrics))
    notes: list[Note] = []
    for note in (note for profile in profiles for note in profile.notes):
        if note not in notes and not (timed.has_time and note.kind == "no-time"):
            notes.append(note)
    return replace(
        timed,
        format=" + ".join(dict.fromkeys(profile.format for profile in profiles)),
        pages=tuple(page for profile in profiles for page in profile.pages),
        files=tuple(name for profile in profiles for name in profile.files),
        devices=_devices(profiles),
        kernels=tuple(kernels),
        notes=tuple(notes),
        quantities=(),
    )


def _refuse_repeated(profiles: Sequence[Profile]) -> None:
    """Refuse a file that adds no counter, such as one from another process or rank."""
    known, has_time = set[str](), False
    for profile in profiles:
        metrics = {name for kernel in profile.kernels for name in kernel.metrics}
        if not metrics - known and (has_time or not profile.has_time):
            raise refusal(
                " and ".join(name for each in profiles for name in each.files),
                why=f"{profile.files[0]} adds no counter: it is not a further pass of the same run",
                hint="import each process or rank as a separate environment: one call for each",
            )
        known |= metrics
        has_time = has_time or profile.has_time


def _devices(profiles: Sequence[Profile]) -> tuple[Device, ...]:
    """Return each GPU once; a pass that records only the capability adds no named GPU twice."""
    known = max(
        (profile.devices for profile in profiles),
        key=lambda devices: sum(device.multiprocessors or 0 for device in devices),
    )
    capabilities = {device.compute_capability for device in known}
    others = (device for profile in profiles for device in profile.devices)
    added = (device for device in others if device.compute_capability not in capabilities)
    return tuple(dict.fromkeys((*known, *added)))


def _refuse_other_launches(timed: Profile, other: Profile) -> None:
    """Refuse two passes whose launches or launch order differ."""
    names = f"{timed.files[0]} and {other.files[0]}"
    hint = (
        "profile the same steps of the same program in both passes; import profiles of other "
        "launches separately: one call for each"
    )
    if timed.sequence and other.sequence:
        pairs = zip(_launch_shapes(timed), _launch_shapes(other), strict=False)
        place = next((n for n, (left, right) in enumerate(pairs) if left != right), None)
        if place is not None:
            left, right = _launch_shapes(timed)[place], _launch_shapes(other)[place]
            why = f"launch {place} is {_label(left)} in one and {_label(right)} in the other"
            raise refusal(names, why=why, hint=hint)
    ours, theirs = _calls(timed), _calls(other)
    if len(ours) != len(timed.kernels) or len(theirs) != len(other.kernels):
        why = "a kernel of one name and shape is listed twice, so passes cannot be matched"
        raise refusal(names, why=why, hint=hint)
    if ours != theirs:
        counts = f"{sum(ours.values())} launches of {len(ours)} kernels"
        why = f"{counts} in one, {sum(theirs.values())} of {len(theirs)} in the other"
        different = next(
            shape for shape in {**ours, **theirs} if ours.get(shape) != theirs.get(shape)
        )
        raise refusal(names, why=f"{why}; {different[0]} differs", hint=hint)


def _label(shape: Shape) -> str:
    name, grid, block = shape
    return f"{name} (grid {grid}, block {block})"


def _launch_shapes(profile: Profile) -> list[Shape]:
    return [_shape(profile.kernels[place]) for place in profile.sequence]


def _calls(profile: Profile) -> dict[Shape, int]:
    return {_shape(kernel): kernel.calls for kernel in profile.kernels}


def _shape(kernel: Kernel) -> Shape:
    return kernel.name, kernel.grid, kernel.block
