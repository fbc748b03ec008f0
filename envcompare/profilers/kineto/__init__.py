"""Read a trace of torch.profiler (Kineto), packed or not, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from envcompare.profilers.activity import (
    copy_groups,
    device_times,
    in_launch_order,
    kernel_groups,
    value_groups,
)
from envcompare.profilers.kineto.collectives import collective_quantities
from envcompare.profilers.kineto.events import Trace
from envcompare.profilers.kineto.operators import Caused, memory_owners, operator_sums, owners
from envcompare.profilers.kineto.rows import OCCUPANCY_PARTS, Found, read_rows
from envcompare.profilers.pergpu import over_devices, used_devices
from envcompare.profilers.rows import Table, first_duplicate
from envcompare.profiles import ApiCall, Device, Kernel, Profile, Quantity

_SOURCE: Final = "torch.profiler"


def read(path: Path) -> Profile:
    """Read a trace; raises ProfileError for one that is damaged, cut off or impossible."""
    trace = Trace(path)
    found = read_rows(trace)
    kernels = in_launch_order(found.activity.kernels.table())
    copies, calls = found.activity.copies.table(), found.calls.table()
    operators = found.operators.table()
    for table in (kernels, copies, calls, operators):
        _refuse_duplicates(trace, table)
    if found.counters:
        return _counted(trace, found)
    return _timed(trace, found, (kernels, copies, calls, operators))


def _timed(trace: Trace, found: Found, tables: tuple[Table, Table, Table, Table]) -> Profile:
    kernels, copies, calls, operators = tables
    shapes, names = tuple(found.activity.shapes), tuple(found.names)
    times = device_times(kernels, (copies,))
    whole = over_devices(times, source=_SOURCE)
    caused = [owners(rows, calls, operators) for rows in (kernels, copies)]
    ops = [names[int(operators["name"][at])] if at >= 0 else "" for at in caused[0].tolist()]
    groups, sequence = kernel_groups(kernels, shapes, ops)
    lengths = [rows["end"] - rows["start"] for rows in (kernels, copies)]
    memory = found.memory.table()
    sums = Caused(
        operators=operators, names=names, durations=np.concatenate(lengths),
        work=np.concatenate(caused), memory=memory, memory_owners=memory_owners(memory, operators),
    )  # fmt: skip
    return Profile(
        tool="kineto",
        format=_format(trace),
        files=(trace.name,),
        devices=used_devices(_devices(trace), [one.device for one in times]),
        span_ns=whole.span_ns,
        busy_ns=whole.busy_ns,
        kernel_busy_ns=whole.kernel_busy_ns,
        launch_gap_ns=whole.launch_gap_ns,
        kernels=groups,
        sequence=sequence,
        copies=copy_groups(copies),
        api_calls=_api_calls(calls, names),
        operators=operator_sums(sums),
        quantities=(
            *whole.quantities,
            *_occupancy(found),
            *collective_quantities(kernels, shapes, source=_SOURCE),
        ),
        steps=len(found.steps) or None,
        notes=(*whole.notes, *_notes(trace, has_gpu=bool(times))),
    )


def _counted(trace: Trace, found: Found) -> Profile:
    """Return the counters of a trace that collected some: its times are those of counting."""
    kernels = tuple(
        Kernel(name=name, calls=calls, total_ns=None, metrics=dict(sorted(sums.items())))
        for name, (calls, sums) in sorted(found.counters.items())
    )
    notes = ["counters were collected kernel by kernel, which changes every time: none is told"]
    if found.dropped:
        notes.append(f"no sums, and left out: {', '.join(sorted(found.dropped))}")
    if any(name.startswith("__") for name in found.counters):
        notes.append("some counters are of a whole range, not of one kernel")
    return Profile(
        tool="kineto",
        format=_format(trace),
        files=(trace.name,),
        devices=used_devices(_devices(trace), ()),
        kernels=kernels,
        steps=len(found.steps) or None,
        has_time=False,
        notes=(*notes, *_notes(trace, has_gpu=True)),
    )


def _refuse_duplicates(trace: Trace, table: Table) -> None:
    found = first_duplicate(table)
    if found is not None:
        raise trace.refusal(found[1], f"the same as event {found[0]}")


def _format(trace: Trace) -> str:
    schema = trace.head.get("schemaVersion")
    return "Chrome trace" if schema is None else f"Chrome trace, schema {schema}"


def _api_calls(calls: Table, names: tuple[str, ...]) -> tuple[ApiCall, ...]:
    found = [
        ApiCall(name=names[number], **times)
        for number, times in value_groups(calls["name"], calls["end"] - calls["start"])
    ]
    return tuple(sorted(found, key=lambda call: (-call.total_ns, call.name)))


def _occupancy(found: Found) -> Iterator[Quantity]:
    """Yield what Kineto computes from launch shapes; it measures nothing."""
    if found.occupancy_ns:
        yield Quantity(
            name="estimated_occupancy",
            value=found.occupancy_weighted / OCCUPANCY_PARTS / found.occupancy_ns,
            unit="%",
            rule="time-weighted",
            source=_SOURCE,
            scope="computed from grid, block and registers; not measured",
        )


def _devices(trace: Trace) -> dict[int, Device]:
    listed = trace.head.get("deviceProperties")
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return {number: _device(one) for one in entries if isinstance(number := one.get("id"), int)}


def _device(entry: dict[str, Any]) -> Device:
    count = entry.get("numSms")
    major, minor = entry.get("computeMajor"), entry.get("computeMinor")
    return Device(
        name=str(entry.get("name", "")),
        compute_capability="" if major is None else f"{major}.{minor}",
        multiprocessors=count if isinstance(count, int) else None,
    )


def _notes(trace: Trace, *, has_gpu: bool) -> Iterator[str]:
    if not has_gpu:
        yield "no CUDA data: the trace tells of no kernel, copy or memset"
    known = trace.head.get("distributedInfo")
    if isinstance(known, dict):
        rank, size, backend = (known.get(key, "?") for key in ("rank", "world_size", "backend"))
        yield f"of a distributed program: rank {rank} of {size}, backend {backend}"
