"""Read a report of Nsight Systems from its SQLite export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from envcompare.profile_files.activity import (
    Shape,
    copy_groups,
    device_times,
    in_launch_order,
    kernel_groups,
    value_groups,
    without_memsets,
)
from envcompare.profile_files.nsys.database import HINT, Export, opened
from envcompare.profile_files.nsys.export import exported
from envcompare.profile_files.nsys.ranges import MARK, Mask, inside, marks, read_ranges
from envcompare.profile_files.nsys.tables import (
    graph_launches,
    read_calls,
    read_copies,
    read_devices,
    read_kernels,
)
from envcompare.profile_files.pergpu import over_devices, used_devices
from envcompare.profile_files.placing import Places, innermost, launching_calls
from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.rows import Table
from envcompare.run_folder.profiles import ApiCall, Profile, Quantity

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
    notes: tuple[str, ...] = ()


def read(path: Path) -> Profile:
    """Read an SQLite export, or a report where nsys is on PATH to export it.

    Raises ProfileError for a file that is damaged, cut off or contradicts itself.
    """
    with exported(path) as database, opened(database) as export:
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
    times = device_times(trace.kernels, (trace.copies, trace.graphs))
    source = f"nsys {version}".strip()
    whole = over_devices(times, source=source)
    launched = launching_calls(trace.kernels, trace.calls)
    kernels, sequence = kernel_groups(trace.kernels, trace.shapes, _ops(trace, launched))
    return Profile(
        tool="nsys",
        version=version,
        format=f"SQLite schema {meta.get('EXPORT_SCHEMA_VERSION', 'without a number')}",
        files=(file,),
        devices=used_devices(read_devices(export), [one.device for one in times]),
        span_ns=whole.span_ns,
        busy_ns=whole.busy_ns,
        kernel_busy_ns=whole.kernel_busy_ns,
        launch_gap_ns=whole.launch_gap_ns,
        kernels=kernels,
        sequence=sequence,
        copies=copy_groups(trace.copies),
        api_calls=_api_calls(trace),
        quantities=(*whole.quantities, *_no_memsets(trace, source=source)),
        notes=(*whole.notes, *trace.notes, *_notes(trace, export, launched)),
    )


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

    def within(rows: Table) -> tuple[Mask, int]:
        found = launching_calls(rows, trace.calls)
        calls = trace.calls[found] if len(trace.calls) else trace.calls
        if not len(calls):
            return np.zeros(len(rows), dtype=bool), len(rows)
        kept = inside(marked, threads=calls["thread"], times=calls["start"])
        return kept & (found >= 0), int((found < 0).sum())

    kept = [within(rows) for rows in (trace.kernels, trace.copies, trace.graphs)]
    own = inside(marked, threads=trace.calls["thread"], times=trace.calls["start"])
    lost = sum(count for _, count in kept)
    counted = f"{int(kept[0][0].sum())} of {len(trace.kernels)} kernels"
    notes = [
        f"only what was launched inside the NVTX range {MARK!r} counts: {counted}",
        *([f"{lost} rows of GPU work have no API call, so none of them counts"] if lost else []),
    ]
    return _Trace(
        kernels=trace.kernels[kept[0][0]],
        shapes=trace.shapes,
        copies=trace.copies[kept[1][0]],
        graphs=trace.graphs[kept[2][0]],
        calls=trace.calls[own],
        call_names=trace.call_names,
        ranges=trace.ranges,
        texts=trace.texts,
        notes=tuple(notes),
    )


def _ops(trace: _Trace, launched: Places) -> list[str]:
    """Return for each kernel the innermost range of the thread that launched it."""
    own = trace.ranges
    if MARK in trace.texts:
        own = own[own["text"] != trace.texts.index(MARK)]
    if not len(own) or not len(trace.calls):
        return []
    calls = trace.calls[launched]
    places = innermost(own, threads=calls["thread"], times=calls["start"])
    return [
        trace.texts[int(own["text"][place])] if call >= 0 and place >= 0 else ""
        for call, place in zip(launched.tolist(), places, strict=True)
    ]


def _api_calls(trace: _Trace) -> tuple[ApiCall, ...]:
    durations = trace.calls["end"] - trace.calls["start"]
    found = [
        ApiCall(name=trace.call_names[number], **times)
        for number, times in value_groups(trace.calls["name"], durations)
    ]
    return tuple(sorted(found, key=lambda call: (-call.total_ns, call.name)))


def _notes(trace: _Trace, export: Export, launched: Places) -> Iterator[str]:
    """Yield what a reader of the numbers must know of the trace."""
    if _schema(export) > _SCHEMA:
        newest = ".".join(map(str, _SCHEMA))
        yield f"its schema is newer than {newest}, the newest that was tried: check the sums"
    if not len(trace.kernels) and not len(trace.copies):
        calls = " beside API calls" if len(trace.calls) else ""
        yield f"no CUDA data{calls}: the export tells of no kernel, copy or memset that counts"
    lost = _launches_without_kernel(trace, launched)
    if lost and len(trace.kernels):
        yield f"{lost} launches have no kernel in the export: it was lost, or ran after its end"
    if len(trace.graphs):
        yield (
            f"{len(trace.graphs)} CUDA graphs were traced as wholes: their kernels are hidden; "
            "collect with --cuda-graph-trace=node"
        )
    elif _mode(export) == "graph" and any("GraphLaunch" in name for name in trace.call_names):
        yield "CUDA graphs were launched and not traced: collect with --cuda-graph-trace=node"


def _mode(export: Export) -> str:
    """Return how CUDA graphs were traced, as the capture's own record says."""
    capture = export.pairs("META_DATA_CAPTURE", "name", "value")
    return next(
        (text.lower() for key, text in capture.items() if "CUDA_GRAPH" in key and "MODE" in key), ""
    )


def _launches_without_kernel(trace: _Trace, launched: Places) -> int:
    launching = [
        number
        for number, name in enumerate(trace.call_names)
        if name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
    ]
    is_launch = np.isin(trace.calls["name"], launching)
    is_launch[launched[launched >= 0]] = False
    return int(is_launch.sum())
