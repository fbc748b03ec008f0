"""Read a report of Nsight Systems from its SQLite export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from envcompare.profile_files.activity import (
    Shape,
    api_calls,
    copy_groups,
    in_launch_order,
    kernel_groups,
    with_gpu_times,
    without_memsets,
)
from envcompare.profile_files.columns import Numbers, Table, innermost, launching_calls
from envcompare.profile_files.nsys.cudatables import (
    MARK,
    graph_launches,
    inside,
    marks,
    read_calls,
    read_copies,
    read_devices,
    read_kernels,
    read_ranges,
)
from envcompare.profile_files.nsys.database import HINT, Export, opened
from envcompare.profile_files.rawfiles import refusal
from envcompare.run_folder.profiles import Note, Profile, Quantity

_OWN_TABLES: Final = ("StringIds", "ANALYSIS_DETAILS")
_SCHEMA: Final = (3, 24)
"""The newest schema of an export that is known: of nsys 2026.1."""
_META: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """The rows that count, and what has to be said of the others."""

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
    """Read an SQLite export, or a report where nsys is on PATH to export it.

    Raises ProfileError for a file that is damaged, cut off or contradicts itself.
    """
    with opened(path) as export:
        _refuse_newer(export, path.name)
        if not all(export.is_table(table) for table in _OWN_TABLES):
            why = "it has no tables StringIds and ANALYSIS_DETAILS, so nsys did not export it"
            raise refusal(path.name, why=why, hint=HINT)
        return _profile(export, path.name)


def _meta(export: Export) -> dict[str, str]:
    return {
        key: text for table in _META for key, text in export.pairs(table, "name", "value").items()
    }


def _schema(export: Export) -> tuple[int, ...]:
    parts = _meta(export).get("EXPORT_SCHEMA_VERSION", "").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def _refuse_newer(export: Export, file: str) -> None:
    """Refuse a schema whose first number is new: there the meaning of columns may change."""
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
    trace = _marked(_trace(export))
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
        quantities=_no_memsets(trace, source=source),
        notes=(*trace.notes, *_notes(trace, export, launched)),
    )
    tables = (trace.kernels, trace.copies, trace.graphs)
    return with_gpu_times(profile, tables, read_devices(export), source=source)


def _no_memsets(trace: _Trace, *, source: str) -> tuple[Quantity, ...]:
    """Return 0 memsets where the export tells of GPU work and hides none in a CUDA graph."""
    if not len(trace.kernels) and not len(trace.copies):
        return ()
    hidden = "CUDA graphs were traced as wholes, which hides memsets" if len(trace.graphs) else ""
    return without_memsets(trace.copies, source=source, hidden=hidden)


def _trace(export: Export) -> _Trace:
    kernels, shapes = read_kernels(export)
    calls, names = read_calls(export)
    ranges, texts = read_ranges(export)
    return _Trace(
        kernels=in_launch_order(kernels),
        shapes=shapes,
        copies=read_copies(export),
        graphs=graph_launches(export),
        calls=calls,
        call_names=names,
        ranges=ranges,
        texts=texts,
    )


def _marked(trace: _Trace) -> _Trace:
    """Return what was launched between the marks; all of it where there are none."""
    marked = marks(trace.ranges, trace.texts)
    if not len(marked):
        return trace

    def within(rows: Table) -> tuple[Table, int]:
        places = launching_calls(rows, trace.calls)
        if not len(trace.calls):
            return rows[:0], len(rows)
        calls = trace.calls[places]
        is_inside = inside(marked, threads=calls["thread"], times=calls["start"])
        return rows[is_inside & (places >= 0)], int((places < 0).sum())

    kept = [within(rows) for rows in (trace.kernels, trace.copies, trace.graphs)]
    is_own = inside(marked, threads=trace.calls["thread"], times=trace.calls["start"])
    counts: dict[str, int | str] = {"kept": len(kept[0][0]), "kernels": len(trace.kernels)}
    notes = [Note(kind="marked-range", values={"range": MARK, **counts})]
    if lost := sum(count for _, count in kept):
        notes.append(Note(kind="work-without-call", values={"rows": lost}))
    (kernels, _), (copies, _), (graphs, _) = kept
    return replace(
        trace, kernels=kernels, copies=copies, graphs=graphs, calls=trace.calls[is_own],
        notes=tuple(notes),
    )  # fmt: skip


def _ops(trace: _Trace, launched: Numbers) -> list[str]:
    """Return for each kernel the innermost range of the thread that launched it."""
    ranges = trace.ranges
    if MARK in trace.texts:
        ranges = ranges[ranges["text"] != trace.texts.index(MARK)]
    if not len(ranges) or not len(trace.calls):
        return []
    calls = trace.calls[launched]
    places = innermost(ranges, threads=calls["thread"], times=calls["start"])
    return [
        trace.texts[int(ranges["text"][place])] if call >= 0 and place >= 0 else ""
        for call, place in zip(launched.tolist(), places, strict=True)
    ]


def _notes(trace: _Trace, export: Export, launched: Numbers) -> Iterator[Note]:
    """Yield what a reader of the numbers must know of the trace."""
    if _schema(export) > _SCHEMA:
        yield Note(kind="newer-schema", values={"newest": ".".join(map(str, _SCHEMA))})
    if not len(trace.kernels) and not len(trace.copies):
        yield Note(kind="calls-without-gpu" if len(trace.calls) else "no-cuda-data")
    lost = _launches_without_kernel(trace, launched)
    if lost and len(trace.kernels):
        yield Note(kind="launches-without-kernel", values={"launches": lost})
    if len(trace.graphs):
        yield Note(kind="whole-graphs", values={"graphs": len(trace.graphs)})
    elif _mode(export) == "graph" and any("GraphLaunch" in name for name in trace.call_names):
        yield Note(kind="untraced-graphs")


def _mode(export: Export) -> str:
    """Return how CUDA graphs were traced, as the capture's own record says."""
    capture = export.pairs("META_DATA_CAPTURE", "name", "value")
    return next(
        (text.lower() for key, text in capture.items() if "CUDA_GRAPH" in key and "MODE" in key), ""
    )


def _launches_without_kernel(trace: _Trace, launched: Numbers) -> int:
    launching = [
        number
        for number, name in enumerate(trace.call_names)
        if name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
    ]
    is_launch = np.isin(trace.calls["name"], launching)
    is_launch[launched[launched >= 0]] = False
    return int(is_launch.sum())
