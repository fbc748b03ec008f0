"""The tables of an nsys export that tell of the GPU: kernels, copies, memsets, API calls, devices.

Columns are named, since every release adds some; what a release does not have is optional here.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.activity import KINDS, ROW, Kind, Shape
from envcompare.profile_files.nsys.database import Export
from envcompare.profile_files.rows import Table, columns, first_duplicate, keys
from envcompare.run_folder.profiles import Device

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_GPUS: Final = "TARGET_INFO_GPU"
_COPY_NAMES: Final = "ENUM_CUDA_MEMCPY_OPER"

Numbers = npt.NDArray[np.int64]

_WHEN: Final = ("start", "end", "deviceId", "streamId")
_WHO: Final = ("contextId", "correlationId", "globalPid")
_SHAPE: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# CUpti_ActivityMemcpyKind; arrays (A) lie in the memory of the device.
_DIRECTIONS: Final[dict[int, Kind]] = {
    0: "other", 1: "HtoD", 2: "DtoH", 3: "HtoD", 4: "DtoH", 5: "DtoD", 6: "DtoD", 7: "DtoD",
    8: "DtoD", 9: "HtoH", 10: "PtoP", 11: "unified", 12: "unified", 13: "unified",
}  # fmt: skip
_NOTHING: Final = np.empty(0, dtype=np.int64)
_VERSIONED: Final = re.compile(r"_v\d+$")


def read_kernels(export: Export) -> tuple[Table, list[Shape]]:
    """Return the kernels, and the shapes their `group` column counts.

    Raises ProfileError for a row that cannot be.
    """
    if not export.has(KERNELS):
        return columns(dict.fromkeys((*ROW, "group", "place"), _NOTHING)), []
    found = export.numbers(KERNELS, (*_WHEN, "demangledName", *_SHAPE), _WHO)
    below = np.flatnonzero(np.min([found[name] for name in _SHAPE], axis=0) < 1)
    if len(below):
        row = int(found["place"][below[0]])
        raise export.refusal(KERNELS, "a grid or block below 1", row=row)
    numbers = keys([found[name] for name in ("demangledName", *_SHAPE)])
    _, firsts, groups = np.unique(numbers, return_index=True, return_inverse=True)
    shapes: list[Shape] = []
    for first in found[firsts]:
        name = _text(export, KERNELS, "demangledName", first)
        gx, gy, gz, bx, by, bz = (int(first[one]) for one in _SHAPE)
        shapes.append((name, (gx, gy, gz), (bx, by, bz)))
    table = columns({**_shared(found), "group": groups, "place": found["place"]})
    refuse_duplicates(export, KERNELS, table)
    return table, shapes


def read_copies(export: Export) -> Table:
    """Return copies and memsets; raises ProfileError for a row that cannot be."""
    parts = [columns(dict.fromkeys((*ROW, "kind", "bytes", "place"), _NOTHING))]
    for table in (COPIES, MEMSETS):
        if export.has(table):
            parts.append(_copies(export, table))
            refuse_duplicates(export, table, parts[-1])
    return np.concatenate(parts)


def _copies(export: Export, table: str) -> Table:
    own = (*_WHEN, "bytes", *(("copyKind",) if table == COPIES else ()))
    found = export.numbers(table, own, _WHO)
    for row in found[found["bytes"] < 0]:
        raise export.refusal(table, f"{row['bytes']} bytes", row=int(row["place"]))
    kinds = np.full(len(found), KINDS.index("memset"))
    if table == COPIES:
        known = _copy_kinds(export)
        numbers, firsts, inverse = np.unique(
            found["copyKind"], return_index=True, return_inverse=True
        )
        for number, first in zip(numbers.tolist(), firsts, strict=True):
            if number not in known:
                why = f"copyKind {number} is none that CUDA has"
                raise export.refusal(table, why, row=int(found["place"][first]))
        named = [KINDS.index(_DIRECTIONS.get(number, "other")) for number in numbers.tolist()]
        kinds = np.array(named)[inverse]
    cells = {**_shared(found), "kind": kinds, "bytes": found["bytes"]}
    return columns({**cells, "place": found["place"]})


def _shared(found: Table) -> dict[str, Numbers]:
    """Return the columns that kernels and copies have alike."""
    names = ("globalPid", "correlationId", "start", "end", "deviceId", "contextId", "streamId")
    cells = {ours: found[name] for ours, name in zip(ROW, names, strict=False)}
    return {**cells, "owner": np.full(len(found), -1)}


def _text(export: Export, table: str, column: str, row: np.void) -> str:
    return export.text(table, column, int(row[column]), row=int(row["place"]))


def _copy_kinds(export: Export) -> frozenset[int]:
    """Return the kinds the export lists; a lazy one leaves the list empty."""
    listed = [*export.pairs(_COPY_NAMES, "id", "name")]
    return frozenset(int(one) for one in listed if one.isdecimal()) or frozenset(_DIRECTIONS)


def graph_launches(export: Export) -> Table:
    """Return graphs traced as wholes: work whose kernels the export does not tell."""
    names = ("start", "end", "device", "correlation", "process", "place")
    if not export.has(GRAPHS):
        return columns(dict.fromkeys(names, _NOTHING))
    found = export.numbers(GRAPHS, ("start", "end", "deviceId"), _WHO[1:])
    return columns(dict(zip(names, (found[one] for one in found.dtype.names or ()), strict=True)))


def read_calls(export: Export) -> tuple[Table, list[str]]:
    """Return the API calls, and the names their `name` column counts."""
    ours = ("start", "end", "name", "thread", "correlation", "place")
    if not export.has(CALLS):
        return columns(dict.fromkeys(ours, _NOTHING)), []
    optional = ("globalTid", "correlationId")
    found = export.numbers(CALLS, ("start", "end", "nameId"), optional)
    cells = dict(zip(ours, (found[one] for one in found.dtype.names or ()), strict=True))
    _, firsts, inverse = np.unique(found["nameId"], return_index=True, return_inverse=True)
    names: dict[str, int] = {}
    texts = (_VERSIONED.sub("", _text(export, CALLS, "nameId", row)) for row in found[firsts])
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    table = columns({**cells, "name": numbers[inverse]})
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
