"""The tables of an nsys export: kernels, copies, memsets, API calls, NVTX ranges, devices.

Columns are named, since every release adds some; what a release does not have is optional here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.activity import KINDS, ROW, Shape
from envcompare.profile_files.columns import (
    THREAD_BITS,
    Numbers,
    Rows,
    Table,
    columns,
    first_duplicate,
    keys,
)
from envcompare.profile_files.nsys.database import Export
from envcompare.run_folder.profiles import CopyKind, Device

MARK: Final = "envcompare"
"""The start/end range that the marked steps of a worker stand in."""

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPUS: Final = "TARGET_INFO_GPU"
_COPY_NAMES: Final = "ENUM_CUDA_MEMCPY_OPER"

_WHEN: Final = ("start", "end", "deviceId", "streamId")
_WHO: Final = ("contextId", "correlationId", "globalPid")
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# CUpti_ActivityMemcpyKind; arrays (A) lie in the memory of the device.
_DIRECTIONS: Final[dict[int, CopyKind]] = {
    0: "other", 1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified", 12: "unified", 13: "unified",
}  # fmt: skip
_NOTHING: Final = np.empty(0, dtype=np.int64)
_RANGES: Final = "NVTX_EVENTS"
_PUSH_POP: Final = 59
_START_END: Final = 60
_IS_RANGE: Final = f"eventType IN ({_PUSH_POP}, {_START_END})"  # no mark, category or name
_FOREVER: Final = np.iinfo(np.int64).max
_VERSIONED: Final = re.compile(r"_v\d+$")


def read_kernels(export: Export) -> tuple[Table, list[Shape]]:
    """Return the kernels, and the shapes their `group` column counts.

    Raises ProfileError for a row that cannot be.
    """
    if not export.has(_KERNELS):
        return columns(dict.fromkeys((*ROW, "group", "place"), _NOTHING)), []
    rows = export.numbers(_KERNELS, (*_WHEN, "demangledName", *_SHAPE), _WHO)
    below = np.flatnonzero(np.min([rows[name] for name in _SHAPE], axis=0) < 1)
    if len(below):
        row = int(rows["place"][below[0]])
        raise export.refusal(_KERNELS, "a grid or block below 1", row=row)
    numbers = keys([rows[name] for name in ("demangledName", *_SHAPE)])
    _, firsts, groups = np.unique(numbers, return_index=True, return_inverse=True)
    shapes: list[Shape] = []
    for first in rows[firsts]:
        gx, gy, gz, bx, by, bz = (int(first[axis]) for axis in _SHAPE)
        name = _text(export, _KERNELS, "demangledName", first)
        shapes.append((name, (gx, gy, gz), (bx, by, bz)))
    table = columns({**_shared(rows), "group": groups, "place": rows["place"]})
    _refuse_duplicates(export, _KERNELS, table)
    return table, shapes


def read_copies(export: Export) -> Table:
    """Return copies and memsets; raises ProfileError for a row that cannot be."""
    parts = [columns(dict.fromkeys((*ROW, "kind", "bytes", "place"), _NOTHING))]
    for table in (_COPIES, _MEMSETS):
        if export.has(table):
            parts.append(_copies(export, table))
            _refuse_duplicates(export, table, parts[-1])
    return np.concatenate(parts)


def _copies(export: Export, table: str) -> Table:
    needed = (*_WHEN, "bytes", *(("copyKind",) if table == _COPIES else ()))
    rows = export.numbers(table, needed, _WHO)
    for row in rows[rows["bytes"] < 0]:
        raise export.refusal(table, f"{row['bytes']} bytes", row=int(row["place"]))
    kinds = np.full(len(rows), KINDS.index("memset"))
    if table == _COPIES:
        known = _copy_kinds(export)
        numbers, firsts, inverse = np.unique(
            rows["copyKind"], return_index=True, return_inverse=True
        )
        for number, first in zip(numbers.tolist(), firsts, strict=True):
            if number not in known:
                why = f"copyKind {number} is none that CUDA has"
                raise export.refusal(table, why, row=int(rows["place"][first]))
        named = [KINDS.index(_DIRECTIONS.get(number, "other")) for number in numbers.tolist()]
        kinds = np.array(named)[inverse]
    cells = {**_shared(rows), "kind": kinds, "bytes": rows["bytes"]}
    return columns({**cells, "place": rows["place"]})


def _shared(rows: Table) -> dict[str, Numbers]:
    """Return the columns that kernels and copies have alike."""
    names = ("globalPid", "correlationId", "start", "end", "deviceId", "contextId", "streamId")
    cells = {ours: rows[name] for ours, name in zip(ROW, names, strict=False)}
    return {**cells, "owner": np.full(len(rows), -1)}


def _text(export: Export, table: str, column: str, row: np.void) -> str:
    return export.text(table, column, int(row[column]), row=int(row["place"]))


def _copy_kinds(export: Export) -> frozenset[int]:
    """Return the kinds the export lists; a lazy one leaves the list empty."""
    listed = [*export.pairs(_COPY_NAMES, "id", "name")]
    return frozenset(int(number) for number in listed if number.isdecimal()) or frozenset(
        _DIRECTIONS
    )


def graph_launches(export: Export) -> Table:
    """Return graphs traced as wholes: work whose kernels the export does not tell."""
    names = ("start", "end", "device", "correlation", "process", "place")
    if not export.has(_GRAPHS):
        return columns(dict.fromkeys(names, _NOTHING))
    return _renamed(export.numbers(_GRAPHS, ("start", "end", "deviceId"), _WHO[1:]), names)


def read_calls(export: Export) -> tuple[Table, list[str]]:
    """Return the API calls, and the names their `name` column counts."""
    ours = ("start", "end", "name", "thread", "correlation", "place")
    if not export.has(_CALLS):
        return columns(dict.fromkeys(ours, _NOTHING)), []
    optional = ("globalTid", "correlationId")
    rows = export.numbers(_CALLS, ("start", "end", "nameId"), optional)
    _, firsts, inverse = np.unique(rows["nameId"], return_index=True, return_inverse=True)
    names: dict[str, int] = {}
    texts = (_VERSIONED.sub("", _text(export, _CALLS, "nameId", row)) for row in rows[firsts])
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    table = _renamed(rows, ours)
    table["name"] = numbers[inverse]
    _refuse_duplicates(export, _CALLS, table)
    return table, list(names)


def read_ranges(export: Export) -> tuple[Table, list[str]]:
    """Return push/pop and start/end ranges, and the texts their `text` column counts."""
    rows, texts = Rows("type", "thread", "start", "end", "text"), dict[str, int]()
    if export.has(_RANGES):
        for kind, thread, start, end, text, row in _ranges(export):
            last = _FOREVER if end < 0 else end
            rows.add(kind, thread, start, last, texts.setdefault(text, len(texts)), row)
    return rows.table(), list(texts)


def _ranges(export: Export) -> Iterator[tuple[int, int, int, int, str, int]]:
    cell = "CAST(text AS TEXT)" if "text" in export.columns(_RANGES) else "NULL"
    # Both walk the table in the order of its row numbers, neither holds it.
    query = f"SELECT {cell} FROM {_RANGES} WHERE {_IS_RANGE} ORDER BY rowid"  # noqa: S608 — constants
    written = export.query(query)
    optional = ("end", "globalTid", "textId")
    numbers = export.rows(_RANGES, ("start", "eventType"), optional, where=_IS_RANGE)
    for (start, kind, end, thread, number, row), (text,) in zip(numbers, written, strict=True):
        if not text and number >= 0:
            yield kind, thread, start, end, export.text(_RANGES, "textId", number, row=row), row
        else:
            yield kind, thread, start, end, str(text or ""), row


def marks(ranges: Table, texts: Sequence[str]) -> Table:
    """Return the start/end ranges named `envcompare`."""
    if MARK not in texts:
        return ranges[:0]
    marked: Table = ranges[(ranges["type"] == _START_END) & (ranges["text"] == texts.index(MARK))]
    return marked


def inside(marked: Table, *, threads: Numbers, times: Numbers) -> npt.NDArray[np.bool_]:
    """Return which moments of which threads stand in a mark of the same process."""
    is_inside = np.zeros(len(times), dtype=bool)
    for mark in marked:
        is_same_process = (threads >> THREAD_BITS) == (mark["thread"] >> THREAD_BITS)
        is_inside |= is_same_process & (times >= mark["start"]) & (times <= mark["end"])
    return is_inside


def _renamed(rows: Table, names: Sequence[str]) -> Table:
    """Return a copy of a table whose columns have these names."""
    kept = rows.dtype.names or ()
    return columns({ours: rows[name] for ours, name in zip(names, kept, strict=True)})


def _refuse_duplicates(export: Export, table: str, rows: Table) -> None:
    """Raise ProfileError where two rows tell of the same event."""
    pair = first_duplicate(rows)
    if pair is not None:
        raise export.refusal(table, f"the same as row {pair[0]}", row=pair[1])


def read_devices(export: Export) -> dict[int, Device]:
    """Return the GPUs of the machine by number, used or not."""
    if not export.has(_GPUS) or not {"id", "name"} <= export.columns(_GPUS):
        return {}
    there = export.columns(_GPUS)
    wanted = ("id", "name", "chipName", "uuid", "smCount", "clockRate", "memoryBandwidth",
              "computeMajor", "computeMinor")  # fmt: skip
    cells = ", ".join(f'"{name}"' if name in there else "NULL" for name in wanted)
    devices = {}
    for row in export.query(f'SELECT {cells} FROM "{_GPUS}"'):  # noqa: S608 — names of the schema
        cell = dict(zip(wanted, row, strict=True))
        if not isinstance(cell["id"], int) or cell["id"] in devices:
            raise export.refusal(_GPUS, f"id {cell['id']!r} is no number of its own")
        devices[cell["id"]] = _device(cell)
    return devices


def _device(cell: dict[str, object]) -> Device:
    major, minor = (_count(cell[name]) for name in ("computeMajor", "computeMinor"))
    clock, bandwidth = (_count(cell[name]) for name in ("clockRate", "memoryBandwidth"))
    return Device(
        name=str(cell["name"] or ""),
        chip=str(cell["chipName"] or ""),
        uuid=str(cell["uuid"] or ""),
        compute_capability="" if major is None else f"{major}.{minor or 0}",
        multiprocessors=_count(cell["smCount"]),
        clock_hz=None if clock is None else float(clock),
        memory_bytes_per_s=None if bandwidth is None else float(bandwidth),
    )


def _count(cell: object) -> int | None:
    """Return a number above 0; nsys writes 0 for what it could not ask."""
    return cell if isinstance(cell, int) and cell > 0 else None
