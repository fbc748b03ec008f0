"""Read a report of Nsight Systems from its SQLite export, checked to be complete.

A report is first exported by nsys, if nsys is on PATH. Columns are selected by name, because every
release adds some; a release may lack optional ones.
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
from envcompare.profile_files.nsysexport import AGAIN, Export, open_export
from envcompare.profile_files.rawfiles import refusal
from envcompare.run_folder.profiles import CopyKind, Device, Note, Profile
from envcompare.text import one_line

_SCHEMA: Final = (3, 24)  # the newest known export schema, of nsys 2026.1
_MARK: Final = "envcompare"  # the start/end range around the marked steps of a worker

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
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
# Which GPU of the machine each process has under which number; old exports have no such table.
_NUMBERED: Final = "TARGET_INFO_CUDA_DEVICE"
_PROCESS_BITS: Final = 24

_WHEN: Final = ("start", "end", "deviceId", "streamId")
_WHO: Final = ("contextId", "correlationId", "globalPid")
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# CUpti_ActivityMemcpyKind; arrays (A) are in device memory.
_DIRECTIONS: Final[dict[int, CopyKind]] = {
    0: "other", 1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified", 12: "unified", 13: "unified",
}  # fmt: skip
# nsys 2022.4 exports no diagnostics. Severity 1 is information, not a warning.
_DIAGNOSTICS: Final = "DIAGNOSTIC_EVENT"
_MOST_COMPLAINTS: Final = 20
_RANGES: Final = "NVTX_EVENTS"
_START_END: Final = 60
# 59 is a push/pop range. The table also has marks, categories and names, which are no ranges.
_IS_RANGE: Final = f"eventType IN (59, {_START_END})"
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
        meta = {
            key: text
            for table in ("META_DATA_EXPORT", "EXPORT_META_DATA")
            for key, text in export.pairs(table, "name", "value").items()
        }
        version = meta.get("EXPORT_PRODUCT_VERSION", "")
        schema = meta.get("EXPORT_SCHEMA_VERSION", "")
        numbers = tuple(int(part) for part in schema.split(".")[:2] if part.isdecimal())
        # a new major version may change the meaning of columns
        if numbers >= (_SCHEMA[0] + 1,):
            raise refusal(
                path.name,
                why=f"nsys {version or 'of a newer version'} wrote it with schema {schema}; "
                f"envcompare reads schema {_SCHEMA[0]} only",
                hint="upgrade envcompare, or export the report with an nsys of 2026 or before that "
                "can read it",
            )
        if not export.is_of_nsys:
            why = "it lacks the tables of an nsys export: StringIds and a trace"
            raise refusal(path.name, why=why, hint=AGAIN)
        trace = _keep_marked(_read_trace(export))
        source = f"nsys {version}".strip()
        launched = launching_calls(trace.kernels, trace.calls)
        kernels, sequence = kernel_groups(trace.kernels, trace.shapes, _ops(trace, launched))
        newer = Note(kind="newer-schema", values={"newest": ".".join(map(str, _SCHEMA))})
        tables = (trace.kernels, trace.copies, trace.graphs)
        profile = Profile(
            tool="nsys",
            version=version,
            format=f"SQLite schema {schema or 'without a number'}",
            files=(path.name,),
            kernels=kernels,
            sequence=sequence,
            copies=copy_groups(trace.copies),
            api_calls=api_calls(trace.calls, trace.call_names),
            quantities=(
                without_memsets(trace.copies, source=source) if any(map(len, tables)) else ()
            ),
            notes=(
                *trace.notes,
                *(newer,) * (numbers > _SCHEMA),
                *_notes(trace, export, launched),
            ),
        )
        return with_gpu_times(profile, tables, _read_devices(export), source=source)


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


def _read_trace(export: Export) -> _Trace:
    kernels, shapes = _read_kernels(export)
    calls, names = _read_calls(export)
    ranges, texts = _read_ranges(export)
    copies = [
        _read_copies(export, table)
        for table in (_COPIES, "CUPTI_ACTIVITY_KIND_MEMSET")
        if export.has(table)
    ]
    copied = np.concatenate([_empty(*ROW, "kind", "bytes", "place"), *copies])
    graphs = _read_graphs(export)
    _number_gpus(export, (kernels, copied, graphs))
    return _Trace(
        kernels=in_launch_order(kernels),
        shapes=shapes,
        copies=copied,
        graphs=graphs,
        calls=calls,
        call_names=names,
        ranges=ranges,
        texts=texts,
    )


def _empty(*names: str) -> Table:
    return columns(dict.fromkeys(names, np.empty(0, dtype=np.int64)))


def _keep_marked(trace: _Trace) -> _Trace:
    """Return the work launched between the marks; everything if there are none."""
    if _MARK not in trace.texts:
        return trace
    is_mark = trace.ranges["text"] == trace.texts.index(_MARK)
    marked = trace.ranges[is_mark & (trace.ranges["type"] == _START_END)]
    if not len(marked):
        return trace

    def within(rows: Table) -> tuple[Table, int]:
        places = launching_calls(rows, trace.calls)
        if not len(trace.calls):
            # Indexing an empty table with -1 would raise IndexError.
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
    for text in _complaints(export):
        if "CUDA driver version" in text:
            yield Note(kind="text", values={"text": text})
    if not any(map(len, (trace.kernels, trace.copies, trace.graphs))):
        yield Note(kind="calls-without-gpu" if len(trace.calls) else "no-cuda-data")
    lost = _launches_without_kernel(trace, launched)
    if lost and len(trace.kernels):
        yield Note(kind="launches-without-kernel", values={"launches": lost})
    if len(trace.graphs):
        yield Note(kind="whole-graphs", values={"graphs": len(trace.graphs)})
    elif not export.has_any(_KERNELS, _NODE):  # a kernel that is a node of a graph
        tables = (trace.kernels, trace.copies)
        if untraced := untraced_graphs(trace.calls, trace.call_names, tables):
            yield Note(kind="untraced-graphs", values={"graphs": untraced})
    yield from _rank_notes(export)


def _rank_notes(export: Export) -> Iterator[Note]:
    """Yield the rank of a distributed program, read from the recorded environment."""
    system = export.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    texts = system.get("DeviceEnvironment", "").split("\0")
    variables = dict(text.split("=", 1) for text in texts if "=" in text)
    for rank, size in _RANKS:
        numbers = variables.get(rank, ""), variables.get(size, "")
        # The launcher nearest to the program decides, since torchrun may run inside a step of
        # Slurm.
        if all(map(str.isdecimal, numbers)):
            if int(numbers[1]) > 1:
                values = {"rank": numbers[0], "world_size": numbers[1], "backend": "not recorded"}
                yield Note(kind="distributed", values=values)
            return


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
    """Return the kernels, and the shapes that their `group` column indexes."""
    if not export.has(_KERNELS):
        return _empty(*ROW, "group", "place"), []
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
        name = export.text(_KERNELS, "demangledName", first)
        shapes.append((name, (gx, gy, gz), (bx, by, bz)))
    table = columns({**_shared(rows), "group": groups, "place": rows["place"]})
    _refuse_duplicates(export, _KERNELS, table)
    return table, shapes


def _read_copies(export: Export, table: str) -> Table:
    needed = (*_WHEN, "bytes", *(("copyKind",) if table == _COPIES else ()))
    rows = export.numbers(table, needed, _WHO)
    for row in rows[rows["bytes"] < 0]:
        raise export.refusal(table, f"{row['bytes']} bytes", row=int(row["place"]))
    kinds = np.full(len(rows), KINDS.index("memset"))
    if table == _COPIES:
        listed = export.pairs("ENUM_CUDA_MEMCPY_OPER", "id", "name")
        # a lazy export leaves the list empty
        known = {int(number) for number in listed if number.isdecimal()} or _DIRECTIONS.keys()
        numbers, firsts, inverse = np.unique(
            rows["copyKind"], return_index=True, return_inverse=True
        )
        for number, first in zip(numbers.tolist(), firsts, strict=True):
            if number not in known:
                why = f"unknown copyKind {number}"
                raise export.refusal(table, why, row=int(rows["place"][first]))
        named = [KINDS.index(_DIRECTIONS.get(number, "other")) for number in numbers.tolist()]
        kinds = np.array(named)[inverse]
    cells = {**_shared(rows), "kind": kinds, "bytes": rows["bytes"], "place": rows["place"]}
    copies = columns(cells)
    _refuse_duplicates(export, table, copies)
    return copies


def _shared(rows: Table) -> dict[str, Numbers]:
    """Return the columns that kernels and copies share."""
    names = ("globalPid", "correlationId", "start", "end", "deviceId", "contextId", "streamId")
    cells = {ours: rows[name] for ours, name in zip(ROW, names, strict=False)}
    return {**cells, "owner": np.full(len(rows), -1)}


def _read_graphs(export: Export) -> Table:
    """Return graphs traced as a whole, without their kernels."""
    names = ("start", "end", "device", "correlation", "process", "place")
    if not export.has(_GRAPHS):
        return _empty(*names)
    rows = export.numbers(_GRAPHS, ("start", "end", "deviceId"), _WHO[1:])
    return rows.view([(name, np.int64) for name in names])


def _number_gpus(export: Export, tables: Sequence[Table]) -> None:
    """Replace the number that a GPU has in its process by the one it has on the machine.

    In a process, CUDA numbers the GPUs that are visible to it, from 0.
    """
    names = ("pid", "cudaId", "gpuId")
    if not set(names) <= export.columns(_NUMBERED):
        return
    rows = export.numbers(_NUMBERED, names)
    renumbered = np.unique(rows[list(names)][rows["cudaId"] != rows["gpuId"]]).tolist()
    for table in tables if renumbered else ():
        processes = table["process"] >> THREAD_BITS & (1 << _PROCESS_BITS) - 1
        visible = table["device"].copy()
        for process, number, gpu in renumbered:
            table["device"][(processes == process) & (visible == number)] = gpu


def _read_calls(export: Export) -> tuple[Table, list[str]]:
    """Return the API calls, and the names that their `name` column indexes."""
    ours = ("start", "end", "name", "thread", "correlation", "place")
    if not export.has(_CALLS):
        return _empty(*ours), []
    optional = ("globalTid", "correlationId")
    rows = export.numbers(_CALLS, ("start", "end", "nameId"), optional)
    _, firsts, inverse = np.unique(rows["nameId"], return_index=True, return_inverse=True)
    names: dict[str, int] = {}
    texts = (_VERSIONED.sub("", export.text(_CALLS, "nameId", row)) for row in rows[firsts])
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    table = rows.view([(name, np.int64) for name in ours])
    table["name"] = numbers[inverse]
    _refuse_duplicates(export, _CALLS, table)
    return table, list(names)


def _read_ranges(export: Export) -> tuple[Table, list[str]]:
    """Return push/pop and start/end ranges, and the texts that their `text` column indexes."""
    ranges, texts = Rows("type", "thread", "start", "end", "text"), dict[str, int]()
    if not export.has(_RANGES):
        return ranges.table(), []
    cell = "CAST(text AS TEXT)" if "text" in export.columns(_RANGES) else "NULL"
    # Both queries stream the table in row order.
    query = f"SELECT {cell} FROM {_RANGES} WHERE {_IS_RANGE} ORDER BY rowid"  # noqa: S608 — constants
    written = export.query(query)
    optional = ("end", "globalTid", "textId")
    numbers = export.rows(_RANGES, ("start", "eventType"), optional, where=_IS_RANGE)
    for (start, kind, end, thread, number, row), (inline,) in zip(numbers, written, strict=True):
        text = str(inline or "")
        if not text and number >= 0:
            text = export.string(_RANGES, "textId", number, row=row)
        # a range without an end lasts until the end of the trace
        last = np.iinfo(np.int64).max if end < 0 else end
        ranges.add(kind, thread, start, last, texts.setdefault(text, len(texts)), row)
    return ranges.table(), list(texts)


def _inside(marked: Table, *, threads: Numbers, times: Numbers) -> npt.NDArray[np.bool_]:
    """Return which times, on these threads, are inside a mark of the same process."""
    is_inside = np.zeros(len(times), dtype=bool)
    for mark in marked:
        is_same_process = (threads >> THREAD_BITS) == (mark["thread"] >> THREAD_BITS)
        is_inside |= is_same_process & (times >= mark["start"]) & (times <= mark["end"])
    return is_inside


def _refuse_duplicates(export: Export, table: str, rows: Table) -> None:
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
        # nsys writes 0 for an unknown value
        counts = {key: n for key, n in cell.items() if isinstance(n, int) and n > 0}
        clock, bandwidth = counts.get("clockRate"), counts.get("memoryBandwidth")
        major, minor = counts.get("computeMajor"), counts.get("computeMinor", 0)
        devices[cell["id"]] = Device(
            name=str(cell["name"] or ""),
            chip=str(cell["chipName"] or ""),
            uuid=str(cell["uuid"] or ""),
            compute_capability="" if major is None else f"{major}.{minor}",
            multiprocessors=counts.get("smCount"),
            clock_hz=None if clock is None else float(clock),
            memory_bytes_per_s=None if bandwidth is None else float(bandwidth),
        )
    return devices
