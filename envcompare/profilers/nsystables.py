"""The tables of an nsys export that tell of the GPU: kernels, copies, memsets, API calls, devices.

Columns are named, since every release adds some; what a release does not have is optional here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from envcompare.profilers.activity import KINDS, Activity
from envcompare.profilers.nsysfile import Export
from envcompare.profilers.rows import Rows, Table, first_duplicate
from envcompare.profiles import Device

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPUS: Final = "TARGET_INFO_GPU"
_COPY_NAMES: Final = "ENUM_CUDA_MEMCPY_OPER"

_WHEN: Final = ("start", "end", "deviceId", "streamId")
_WHO: Final = ("contextId", "correlationId", "globalPid")
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# CUpti_ActivityMemcpyKind; arrays (A) lie in the memory of the device.
_DIRECTIONS: Final = {
    0: "other", 1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified", 12: "unified", 13: "unified",
}  # fmt: skip
_VERSIONED: Final = re.compile(r"_v\d+$")


def read_activity(export: Export) -> Activity:
    """Return kernels, copies and memsets; raises ProfileError for a row that cannot be."""
    found = Activity()
    if export.has(KERNELS):
        _kernels(export, found)
        refuse_duplicates(export, KERNELS, found.kernels.table())
    for table, kind in ((COPIES, None), (MEMSETS, "memset")):
        if export.has(table):
            before = len(found.copies)
            for row in _copies(export, table, kind):
                found.copies.add(*row)
            refuse_duplicates(export, table, found.copies.table()[before:])
    return found


def _kernels(export: Export, found: Activity) -> None:
    needed = (*_WHEN, "demangledName", *_SHAPE)
    for cells in export.rows(KERNELS, needed, _WHO):
        start, end, device, stream, name, gx, gy, gz, bx, by, bz, context, call, pid, row = cells
        if min(gx, gy, gz, bx, by, bz) < 1:
            raise export.refusal(KERNELS, "a grid or block below 1", row=row)
        shape = (
            export.text(KERNELS, "demangledName", name, row=row), (gx, gy, gz), (bx, by, bz),
        )  # fmt: skip
        group = found.group(shape)
        found.kernels.add(pid, call, start, end, device, context, stream, -1, group, row)


def _copies(export: Export, table: str, kind: str | None) -> Iterator[tuple[int, ...]]:
    """Yield rows of copies; a memset has no direction."""
    known = _copy_kinds(export)
    needed = (*_WHEN, "bytes", *(() if kind else ("copyKind",)))
    for cells in export.rows(table, needed, _WHO):
        start, end, device, stream, size = cells[:5]
        *direction, context, call, pid, row = cells[5:]
        if size < 0:
            raise export.refusal(table, f"{size} bytes", row=row)
        if direction and direction[0] not in known:
            why = f"copyKind {direction[0]} is none that CUDA has"
            raise export.refusal(table, why, row=row)
        name = kind or _DIRECTIONS.get(direction[0], "other")
        place = next(number for number, one in enumerate(KINDS) if one == name)
        yield (pid, call, start, end, device, context, stream, -1, place, size, row)


def _copy_kinds(export: Export) -> frozenset[int]:
    """Return the kinds the export lists; a lazy one leaves the list empty."""
    listed = [*export.pairs(_COPY_NAMES, "id", "name")]
    return frozenset(int(one) for one in listed if one.isdecimal()) or frozenset(_DIRECTIONS)


def graph_launches(export: Export) -> Table:
    """Return graphs traced as wholes: work whose kernels the export does not tell."""
    found = Rows("start", "end", "device", "correlation", "process")
    if export.has(GRAPHS):
        for cells in export.rows(GRAPHS, ("start", "end", "deviceId"), _WHO[1:]):
            found.add(*cells)
    return found.table()


def read_calls(export: Export) -> tuple[Table, list[str]]:
    """Return the API calls, and the names their `name` column counts."""
    found, names = Rows("thread", "start", "end", "correlation", "name"), dict[str, int]()
    if export.has(CALLS):
        needed, optional = ("start", "end", "nameId"), ("globalTid", "correlationId")
        for start, end, number, thread, call, row in export.rows(CALLS, needed, optional):
            text = _VERSIONED.sub("", export.text(CALLS, "nameId", number, row=row))
            found.add(thread, start, end, call, names.setdefault(text, len(names)), row)
    table = found.table()
    refuse_duplicates(export, CALLS, table)
    return table, list(names)


def refuse_duplicates(export: Export, table: str, rows: Table) -> None:
    """Raise ProfileError where two rows tell of the same event."""
    found = first_duplicate(rows)
    if found is not None:
        raise export.refusal(table, f"the same as row {found[0]}", row=found[1])


def read_devices(export: Export) -> dict[int, Device]:
    """Return the GPUs of the machine by number, used or not."""
    if not export.has(_GPUS) or not {"id", "name"} <= export.columns(_GPUS):
        return {}
    there = export.columns(_GPUS)
    wanted = ("id", "name", "chipName", "uuid", "smCount", "clockRate", "memoryBandwidth",
              "computeMajor", "computeMinor")  # fmt: skip
    cells = ", ".join(f'"{name}"' if name in there else "NULL" for name in wanted)
    found = {}
    for row in export.query(f'SELECT {cells} FROM "{_GPUS}"'):  # noqa: S608 — names of the schema
        cell = dict(zip(wanted, row, strict=True))
        if not isinstance(cell["id"], int) or cell["id"] in found:
            raise export.refusal(_GPUS, f"id {cell['id']!r} is no number of its own")
        found[cell["id"]] = _device(cell)
    return found


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
