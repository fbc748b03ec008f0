"""Read a report of Nsight Systems from its SQLite export.

Columns are selected by name, because every release adds some; a release may lack optional ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files import (
    KINDS,
    ROW,
    THREAD_BITS,
    Numbers,
    Rows,
    Shape,
    Table,
    api_calls,
    columns,
    copy_groups,
    first_duplicate,
    in_launch_order,
    innermost,
    kernel_groups,
    keys,
    launching_calls,
    untraced_graphs,
    with_gpu_times,
    without_memsets,
)
from envcompare.profile_files.nsys.database import HINT, Export, open_export
from envcompare.profile_files.rawfiles import refusal
from envcompare.run_folder.profiles import CopyKind, Device, Note, Profile
from envcompare.text import one_line

_STRINGS: Final = "StringIds"
_SCHEMA: Final = (3, 24)
"""The newest known export schema, of nsys 2026.1."""
_META: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MARK: Final = "envcompare"
"""The start/end range around the marked steps of a worker."""

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_SYSTEM: Final = "TARGET_INFO_SYSTEM_ENV"
_ENVIRONMENT: Final = "DeviceEnvironment"
# Of torchrun, Open MPI, MPICH and a step of Slurm: its batch script has SLURM_PROCID and
# SLURM_NTASKS too, of the whole job, and runs as one process (srun(1), sbatch(1)).
_RANKS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_NODE: Final = "graphNodeId"
_GPUS: Final = "TARGET_INFO_GPU"
_COPY_NAMES: Final = "ENUM_CUDA_MEMCPY_OPER"

_WHEN: Final = ("start", "end", "deviceId", "streamId")
_WHO: Final = ("contextId", "correlationId", "globalPid")
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# CUpti_ActivityMemcpyKind; arrays (A) are in device memory.
_DIRECTIONS: Final[dict[int, CopyKind]] = {
    0: "other", 1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified", 12: "unified", 13: "unified",
}  # fmt: skip
_DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"  # nsys 2022.4 exports none; severity 1 is information
_MOST_COMPLAINTS: Final = 20
_ABOUT_DRIVER: Final = "CUDA driver version"
_NOTHING: Final = np.empty(0, dtype=np.int64)
_RANGES: Final = "NVTX_EVENTS"
_PUSH_POP: Final = 59
_START_END: Final = 60
_IS_RANGE: Final = f"eventType IN ({_PUSH_POP}, {_START_END})"  # no mark, category or name
_FOREVER: Final = np.iinfo(np.int64).max
_VERSIONED: Final = re.compile(r"_v\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """The rows that count, with notes on the others."""

    kernels: Table
    shapes: Sequence[Shape]
    copies: Table
    graphs: Table
    calls: Table
    call_names: Sequence[str]
    ranges: Table
    texts: Sequence[str]
    notes: tuple[Note, ...] = ()


def read(path: Path) -> Profile:
    """Read an SQLite export, or a report if nsys is on PATH to export it.

    Raises ProfileError for a file that is damaged, truncated or inconsistent.
    """
    with open_export(path) as export:
        _refuse_newer(export, path.name)
        if not export.is_table(_STRINGS) or not export.is_of_nsys():
            why = "it lacks the tables of an nsys export: StringIds and a trace"
            raise refusal(path.name, why=why, hint=HINT)
        return _profile(export, path.name)


def complaints(path: Path) -> tuple[str, ...]:
    """Return the warnings nsys recorded during collection, each once; old versions have none.

    Raises ProfileError for a damaged file.
    """
    with open_export(path) as export:
        return _complaints(export)


def _complaints(export: Export) -> tuple[str, ...]:
    if not {"severity", "text"} <= export.columns(_DIAGNOSTICS):
        return ()
    query = (
        f"SELECT DISTINCT CAST(text AS TEXT) FROM {_DIAGNOSTICS} "  # noqa: S608 — a name of the schema
        f"WHERE severity > 1 LIMIT {_MOST_COMPLAINTS}"
    )
    return tuple(one_line(str(text)) for (text,) in export.query(query))


def _meta(export: Export) -> dict[str, str]:
    return {
        key: text for table in _META for key, text in export.pairs(table, "name", "value").items()
    }


def _schema(export: Export) -> tuple[int, ...]:
    parts = _meta(export).get("EXPORT_SCHEMA_VERSION", "").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def _refuse_newer(export: Export, file: str) -> None:
    """Refuse a new major schema version, in which columns may change meaning."""
    if _schema(export) < (_SCHEMA[0] + 1,):
        return
    meta = _meta(export)
    version = meta.get("EXPORT_PRODUCT_VERSION", "of a newer version")
    schema = meta["EXPORT_SCHEMA_VERSION"]
    why = f"nsys {version} wrote it with schema {schema}; envcompare reads schema {_SCHEMA[0]} only"
    hint = (
        "upgrade envcompare, or export the report with an nsys of 2026 or before that can read it"
    )
    raise refusal(file, why=why, hint=hint)


def _profile(export: Export, file: str) -> Profile:
    meta = _meta(export)
    version = meta.get("EXPORT_PRODUCT_VERSION", "")
    trace = _keep_marked(_trace(export))
    source = f"nsys {version}".strip()
    launched = launching_calls(trace.kernels, trace.calls)
    kernels, sequence = kernel_groups(trace.kernels, trace.shapes, _ops(trace, launched))
    profile = Profile(
        tool="nsys",
        version=version,
        format=f"SQLite schema {meta.get('EXPORT_SCHEMA_VERSION', 'without a number')}",
        files=(file,),
        kernels=kernels,
        sequence=sequence,
        copies=copy_groups(trace.copies),
        api_calls=api_calls(trace.calls, trace.call_names),
        quantities=without_memsets(trace.copies, source=source) if _has_work(trace) else (),
        notes=(*trace.notes, *_notes(trace, export, launched)),
    )
    tables = (trace.kernels, trace.copies, trace.graphs)
    return with_gpu_times(profile, tables, _read_devices(export), source=source)


def _has_work(trace: _Trace) -> bool:
    return any(map(len, (trace.kernels, trace.copies, trace.graphs)))


def _trace(export: Export) -> _Trace:
    kernels, shapes = _read_kernels(export)
    calls, names = _read_calls(export)
    ranges, texts = _read_ranges(export)
    return _Trace(
        kernels=in_launch_order(kernels),
        shapes=shapes,
        copies=_read_copies(export),
        graphs=_graph_launches(export),
        calls=calls,
        call_names=names,
        ranges=ranges,
        texts=texts,
    )


def _keep_marked(trace: _Trace) -> _Trace:
    """Return the work launched between the marks; everything if there are none."""
    marked = _marks(trace.ranges, trace.texts)
    if not len(marked):
        return trace

    def within(rows: Table) -> tuple[Table, int]:
        places = launching_calls(rows, trace.calls)
        if not len(trace.calls):
            return rows[:0], len(rows)
        calls = trace.calls[places]
        is_inside = _inside(marked, threads=calls["thread"], times=calls["start"])
        return rows[is_inside & (places >= 0)], int((places < 0).sum())

    kept = [within(rows) for rows in (trace.kernels, trace.copies, trace.graphs)]
    is_own = _inside(marked, threads=trace.calls["thread"], times=trace.calls["start"])
    counts: dict[str, int | str] = {"kept": len(kept[0][0]), "kernels": len(trace.kernels)}
    notes = [Note(kind="marked-range", values={"range": _MARK, **counts})]
    if lost := sum(count for _, count in kept):
        notes.append(Note(kind="work-without-call", values={"rows": lost}))
    (kernels, _), (copies, _), (graphs, _) = kept
    return replace(
        trace, kernels=kernels, copies=copies, graphs=graphs, calls=trace.calls[is_own],
        notes=tuple(notes),
    )  # fmt: skip


def _ops(trace: _Trace, launched: Numbers) -> list[str]:
    """Return for each kernel the innermost range on its launching thread."""
    ranges = trace.ranges
    if _MARK in trace.texts:
        ranges = ranges[ranges["text"] != trace.texts.index(_MARK)]
    if not len(ranges) or not len(trace.calls):
        return []
    calls = trace.calls[launched]
    places = innermost(ranges, threads=calls["thread"], times=calls["start"])
    return [
        trace.texts[int(ranges["text"][place])] if call >= 0 and place >= 0 else ""
        for call, place in zip(launched.tolist(), places, strict=True)
    ]


def _notes(trace: _Trace, export: Export, launched: Numbers) -> Iterator[Note]:
    if _schema(export) > _SCHEMA:
        yield Note(kind="newer-schema", values={"newest": ".".join(map(str, _SCHEMA))})
    for text in _complaints(export):
        if _ABOUT_DRIVER in text:
            yield Note(kind="text", values={"text": text})
    if not _has_work(trace):
        yield Note(kind="calls-without-gpu" if len(trace.calls) else "no-cuda-data")
    lost = _launches_without_kernel(trace, launched)
    if lost and len(trace.kernels):
        yield Note(kind="launches-without-kernel", values={"launches": lost})
    yield from _graph_notes(trace, export)
    yield from _rank_notes(export)


def _graph_notes(trace: _Trace, export: Export) -> Iterator[Note]:
    """Yield a note if CUDA graphs hide kernels, traced as a whole or not at all."""
    if len(trace.graphs):
        yield Note(kind="whole-graphs", values={"graphs": len(trace.graphs)})
    elif not _has_nodes(export):
        tables = (trace.kernels, trace.copies)
        if untraced := untraced_graphs(trace.calls, trace.call_names, tables):
            yield Note(kind="untraced-graphs", values={"graphs": untraced})


def _rank_notes(export: Export) -> Iterator[Note]:
    """Yield the rank of a distributed program, read from the recorded environment."""
    texts = export.pairs(_SYSTEM, "name", "value").get(_ENVIRONMENT, "").split("\0")
    variables = dict(text.split("=", 1) for text in texts if "=" in text)
    for rank, size in _RANKS:
        numbers = variables.get(rank, ""), variables.get(size, "")
        if all(map(str.isdecimal, numbers)):  # the launcher nearest to the program decides
            if int(numbers[1]) > 1:
                values = {"rank": numbers[0], "world_size": numbers[1], "backend": "not recorded"}
                yield Note(kind="distributed", values=values)
            return


def _has_nodes(export: Export) -> bool:
    """Return whether any kernel is recorded as a node of a CUDA graph."""
    if _NODE not in export.columns(_KERNELS):
        return False
    query = f'SELECT 1 FROM "{_KERNELS}" WHERE "{_NODE}" > 0 LIMIT 1'  # noqa: S608 — constants
    return next(export.query(query), None) is not None


def _launches_without_kernel(trace: _Trace, launched: Numbers) -> int:
    launching = [
        number
        for number, name in enumerate(trace.call_names)
        if name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
    ]
    is_launch = np.isin(trace.calls["name"], launching)
    is_launch[launched[launched >= 0]] = False
    return int(is_launch.sum())


def _read_kernels(export: Export) -> tuple[Table, list[Shape]]:
    """Return the kernels, and the shapes that their `group` column indexes.

    Raises ProfileError for an impossible row.
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


def _read_copies(export: Export) -> Table:
    """Return copies and memsets; raises ProfileError for an impossible row."""
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
                why = f"unknown copyKind {number}"
                raise export.refusal(table, why, row=int(rows["place"][first]))
        named = [KINDS.index(_DIRECTIONS.get(number, "other")) for number in numbers.tolist()]
        kinds = np.array(named)[inverse]
    cells = {**_shared(rows), "kind": kinds, "bytes": rows["bytes"]}
    return columns({**cells, "place": rows["place"]})


def _shared(rows: Table) -> dict[str, Numbers]:
    """Return the columns that kernels and copies share."""
    names = ("globalPid", "correlationId", "start", "end", "deviceId", "contextId", "streamId")
    cells = {ours: rows[name] for ours, name in zip(ROW, names, strict=False)}
    return {**cells, "owner": np.full(len(rows), -1)}


def _text(export: Export, table: str, column: str, row: np.void) -> str:
    return export.text(table, column, int(row[column]), row=int(row["place"]))


def _copy_kinds(export: Export) -> frozenset[int]:
    """Return the copy kinds listed in the export; a lazy export leaves the list empty."""
    listed = [*export.pairs(_COPY_NAMES, "id", "name")]
    return frozenset(int(number) for number in listed if number.isdecimal()) or frozenset(
        _DIRECTIONS
    )


def _graph_launches(export: Export) -> Table:
    """Return graphs traced as a whole, without their kernels."""
    names = ("start", "end", "device", "correlation", "process", "place")
    if not export.has(_GRAPHS):
        return columns(dict.fromkeys(names, _NOTHING))
    return _rename_columns(export.numbers(_GRAPHS, ("start", "end", "deviceId"), _WHO[1:]), names)


def _read_calls(export: Export) -> tuple[Table, list[str]]:
    """Return the API calls, and the names that their `name` column indexes."""
    ours = ("start", "end", "name", "thread", "correlation", "place")
    if not export.has(_CALLS):
        return columns(dict.fromkeys(ours, _NOTHING)), []
    optional = ("globalTid", "correlationId")
    rows = export.numbers(_CALLS, ("start", "end", "nameId"), optional)
    _, firsts, inverse = np.unique(rows["nameId"], return_index=True, return_inverse=True)
    names: dict[str, int] = {}
    texts = (_VERSIONED.sub("", _text(export, _CALLS, "nameId", row)) for row in rows[firsts])
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    table = _rename_columns(rows, ours)
    table["name"] = numbers[inverse]
    _refuse_duplicates(export, _CALLS, table)
    return table, list(names)


def _read_ranges(export: Export) -> tuple[Table, list[str]]:
    """Return push/pop and start/end ranges, and the texts that their `text` column indexes."""
    rows, texts = Rows("type", "thread", "start", "end", "text"), dict[str, int]()
    if export.has(_RANGES):
        for kind, thread, start, end, text, row in _ranges(export):
            last = _FOREVER if end < 0 else end
            rows.add(kind, thread, start, last, texts.setdefault(text, len(texts)), row)
    return rows.table(), list(texts)


def _ranges(export: Export) -> Iterator[tuple[int, int, int, int, str, int]]:
    cell = "CAST(text AS TEXT)" if "text" in export.columns(_RANGES) else "NULL"
    # Both queries stream the table in row order.
    query = f"SELECT {cell} FROM {_RANGES} WHERE {_IS_RANGE} ORDER BY rowid"  # noqa: S608 — constants
    written = export.query(query)
    optional = ("end", "globalTid", "textId")
    numbers = export.rows(_RANGES, ("start", "eventType"), optional, where=_IS_RANGE)
    for (start, kind, end, thread, number, row), (text,) in zip(numbers, written, strict=True):
        if not text and number >= 0:
            yield kind, thread, start, end, export.text(_RANGES, "textId", number, row=row), row
        else:
            yield kind, thread, start, end, str(text or ""), row


def _marks(ranges: Table, texts: Sequence[str]) -> Table:
    """Return the start/end ranges named `envcompare`."""
    if _MARK not in texts:
        return ranges[:0]
    marked: Table = ranges[(ranges["type"] == _START_END) & (ranges["text"] == texts.index(_MARK))]
    return marked


def _inside(marked: Table, *, threads: Numbers, times: Numbers) -> npt.NDArray[np.bool_]:
    """Return which times, on these threads, are inside a mark of the same process."""
    is_inside = np.zeros(len(times), dtype=bool)
    for mark in marked:
        is_same_process = (threads >> THREAD_BITS) == (mark["thread"] >> THREAD_BITS)
        is_inside |= is_same_process & (times >= mark["start"]) & (times <= mark["end"])
    return is_inside


def _rename_columns(rows: Table, names: Sequence[str]) -> Table:
    kept = rows.dtype.names or ()
    return columns({ours: rows[name] for ours, name in zip(names, kept, strict=True)})


def _refuse_duplicates(export: Export, table: str, rows: Table) -> None:
    """Raise ProfileError if two rows describe the same event."""
    pair = first_duplicate(rows)
    if pair is not None:
        raise export.refusal(table, f"the same as row {pair[0]}", row=pair[1])


def _read_devices(export: Export) -> dict[int, Device]:
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
            raise export.refusal(_GPUS, f"id {cell['id']!r} is not a unique number")
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
    """Return a number above 0; nsys writes 0 for an unknown value."""
    return cell if isinstance(cell, int) and cell > 0 else None
