"""What ran on GPUs, row by row, as a trace tells it; and the sums that make a profile of it.

Kernels are grouped by name, grid and block. Launch order is that of the correlation ids, which
CUPTI counts up with each call of a process: on several streams the order of starts is a race.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.busy import span_ns, union_ns
from envcompare.profile_files.rows import Rows, Table
from envcompare.run_folder.profiles import Copy, Dim, Kernel, Quantity

SEQUENCE_MOST: Final = 100_000
Kind = Literal["HtoD", "DtoH", "DtoD", "HtoH", "PtoP", "unified", "memset", "other"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
ROW: Final = ("process", "correlation", "start", "end", "device", "context", "stream", "owner")
_ORDER: Final = ("group", "stream", "device", "end", "start", "correlation", "process")
Shape = tuple[str, Dim | None, Dim | None]


def _kernel_rows() -> Rows:
    return Rows(*ROW, "group")


def _copy_rows() -> Rows:
    return Rows(*ROW, "kind", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """All kernels, and all copies and memsets.

    An owner is the number of the operator that caused a row; -1 stands for what is not known.
    """

    kernels: Rows = field(default_factory=_kernel_rows)
    copies: Rows = field(default_factory=_copy_rows)
    shapes: dict[Shape, int] = field(default_factory=dict)

    def group(self, shape: Shape) -> int:
        """Return the number of a kernel with its grid and block."""
        return self.shapes.setdefault(shape, len(self.shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """What one GPU did between its first start and its last end."""

    device: int
    span_ns: int
    busy_ns: int
    kernel_busy_ns: int


def device_times(kernels: Table, others: Sequence[Table]) -> tuple[DeviceTimes, ...]:
    """Return span and busy time of each device that did anything, by its number."""
    tables = (kernels, *others)
    devices = np.unique(np.concatenate([table["device"] for table in tables]))
    found = []
    for device in devices.tolist():
        own = [table[table["device"] == device] for table in tables]
        starts = np.concatenate([table["start"] for table in own])
        ends = np.concatenate([table["end"] for table in own])
        found.append(
            DeviceTimes(
                device=device,
                span_ns=span_ns(starts, ends),
                busy_ns=union_ns(starts, ends),
                kernel_busy_ns=union_ns(own[0]["start"], own[0]["end"]),
            )
        )
    return tuple(found)


def in_launch_order(table: Table) -> Table:
    """Return the kernels as they were launched, process by process."""
    process, correlation = table["process"], table["correlation"]
    order = np.argsort(correlation, kind="stable")
    # The rest of the columns decides only between rows with one correlation id.
    is_told = (process[1:] == process[:-1]).all() and (np.diff(correlation[order]) > 0).all()
    if is_told:
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
    sums = _sums(inverse, table["end"] - table["start"], len(groups))
    named = _ops(inverse, ops, len(groups))
    kernels = []
    for at in by_first.tolist():
        name, grid, block = shapes[int(groups[at])]
        kernels.append(
            Kernel(
                name=name, grid=grid, block=block, first=int(firsts[at]), op=named[at],
                **_times(sums, at),
            )
        )  # fmt: skip
    places = np.argsort(by_first)[inverse[:SEQUENCE_MOST]]
    return tuple(kernels), tuple(places.tolist())


def copy_groups(table: Table) -> tuple[Copy, ...]:
    """Return copies by direction, memsets last; a size is known where each row has one."""
    kinds, inverse = np.unique(table["kind"], return_inverse=True)
    sums = _sums(inverse, table["end"] - table["start"], len(kinds))
    sizes = _sums(inverse, table["bytes"], len(kinds))
    return tuple(
        Copy(
            kind=KINDS[int(kind)],
            total_bytes=int(sizes.total[at]) if sizes.least[at] >= 0 else None,
            **_times(sums, at),
        )
        for at, kind in enumerate(kinds)
    )


def without_memsets(copies: Table, *, source: str, hidden: str = "") -> tuple[Quantity, ...]:
    """Return time and bytes of the memsets that a trace which records them does not hold: 0.

    Where something hides them they are missing, for the reason in `hidden`.
    """
    if (copies["kind"] == KINDS.index("memset")).any():
        return ()
    units: tuple[tuple[str, str], ...] = (("memset_ns", "ns"), ("memset_bytes", "B"))
    return tuple(
        Quantity(
            name=name,
            value=None if hidden else 0.0,
            unit=unit,
            rule="sum",
            source=source,
            scope="" if hidden else "0 memsets",
            status="missing" if hidden else "ok",
            reason=hidden,
        )
        for name, unit in units
    )


def value_groups(
    groups: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each number of `groups` with its calls, total, shortest and longest."""
    numbers, inverse = np.unique(groups, return_inverse=True)
    sums = _sums(inverse, values, len(numbers))
    for at, number in enumerate(numbers.tolist()):
        yield number, _times(sums, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    calls: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    least: npt.NDArray[np.int64]
    most: npt.NDArray[np.int64]


def _sums(groups: npt.NDArray[Any], values: npt.NDArray[np.int64], count: int) -> _Sums:
    total = np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    most = np.full(count, np.iinfo(np.int64).min)
    np.add.at(total, groups, values)
    np.minimum.at(least, groups, values)
    np.maximum.at(most, groups, values)
    return _Sums(calls=np.bincount(groups, minlength=count), total=total, least=least, most=most)


def _times(sums: _Sums, at: int) -> dict[str, Any]:
    return {
        "calls": int(sums.calls[at]),
        "total_ns": float(sums.total[at]),
        "min_ns": float(sums.least[at]),
        "max_ns": float(sums.most[at]),
    }


def _ops(groups: npt.NDArray[Any], ops: Sequence[str], count: int) -> list[str]:
    """Return the operator most launches of each group stand in; ties go by name."""
    named = [""] * count
    if not len(ops):
        return named
    counted: list[dict[str, int]] = [{} for _ in range(count)]
    for group, op in zip(groups.tolist(), ops, strict=True):
        counted[group][op] = counted[group].get(op, 0) + 1
    return [min(one, key=lambda op: (-one[op], op)) for one in counted]
