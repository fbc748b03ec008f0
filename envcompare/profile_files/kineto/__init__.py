"""Read a trace of torch.profiler (Kineto), packed or not, event by event."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from envcompare.profile_files.activity import (
    copy_groups,
    device_times,
    in_launch_order,
    kernel_groups,
    value_groups,
    without_memsets,
)
from envcompare.profile_files.derive import with_quantities
from envcompare.profile_files.kineto.collectives import collective_quantities
from envcompare.profile_files.kineto.events import Trace
from envcompare.profile_files.kineto.operators import Caused, memory_owners, operator_sums, owners
from envcompare.profile_files.kineto.rows import OCCUPANCY_PARTS, Found, read_rows
from envcompare.profile_files.pergpu import over_devices, used_devices
from envcompare.profile_files.rows import Table, first_duplicate
from envcompare.run_folder.profiles import ApiCall, Device, Kernel, Profile, Quantity
from envcompare.text import counted

_SOURCE: Final = "torch.profiler"
_AMD: Final = ("AMD", "Radeon", "gfx")
_RANGE: Final = re.compile(r"__.*|\d+")  # what is named after no kernel
_BY_KERNELS: Final = "ROCm sets memory with kernels; the trace does not record their bytes"
_OF_LAUNCHES: Final = ("launch_count", "kernel_time_ns")


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
        return _counted(trace, found, kernels)
    return _timed(trace, found, (kernels, copies, calls, operators))


def _timed(trace: Trace, found: Found, tables: tuple[Table, Table, Table, Table]) -> Profile:
    kernels, copies, calls, operators = tables
    shapes, names = tuple(found.activity.shapes), tuple(found.names)
    times = device_times(kernels, (copies,))
    whole = over_devices(times, source=_SOURCE)
    caused = [owners(rows, calls, operators) for rows in (kernels, copies)]
    ops = [names[int(operators["name"][at])] if at >= 0 else "" for at in caused[0].tolist()]
    groups, sequence = kernel_groups(kernels, shapes, ops)
    is_rocm = _is_rocm(trace, {names[number] for number in np.unique(calls["name"]).tolist()})
    hidden = _BY_KERNELS if is_rocm else ""
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
            *collective_quantities(kernels, shapes, source=_SOURCE, is_rocm=is_rocm),
            *(without_memsets(copies, source=_SOURCE, hidden=hidden) if times else ()),
        ),
        steps=len(found.steps) or None,
        notes=(*whole.notes, *_notes(trace, has_gpu=bool(times))),
    )


def _counted(trace: Trace, found: Found, launched: Table) -> Profile:
    """Return the counters of a trace that collected some: its times are those of counting.

    A range of the profiler is no launch: kernels are those of the trace. Where it has none, ranges
    that are named after kernels stand for these.
    """
    ranges = tuple(
        Kernel(name=name, calls=calls, total_ns=None, metrics=dict(sorted(sums.items())))
        for name, (calls, sums) in sorted(found.counters.items())
    )
    named = tuple(one for one in ranges if not _RANGE.fullmatch(one.name))
    groups, sequence = kernel_groups(launched, tuple(found.activity.shapes))
    notes = ["counters were collected kernel by kernel, which changes every time: none is told"]
    if found.dropped:
        notes.append(f"no sums, and left out: {', '.join(sorted(found.dropped))}")
    if len(named) < len(ranges):
        notes.append("some counters are of a whole range, not of one kernel")
    return Profile(
        tool="kineto",
        format=_format(trace),
        files=(trace.name,),
        devices=used_devices(_devices(trace), ()),
        kernels=tuple(map(_untimed, groups)) or named,
        sequence=sequence,
        quantities=tuple(_sums(ranges, has_launches=bool(groups))),
        steps=len(found.steps) or None,
        has_time=False,
        notes=(*notes, *_notes(trace, has_gpu=True)),
    )


def _untimed(kernel: Kernel) -> Kernel:
    return replace(kernel, total_ns=None, min_ns=None, max_ns=None)


def _sums(ranges: tuple[Kernel, ...], *, has_launches: bool) -> Iterator[Quantity]:
    """Yield what the ranges counted together, and that they are no launches."""
    whole = Profile(tool="kineto", kernels=ranges, has_time=False)
    scope = counted(sum(one.calls for one in ranges), "range of the CUPTI profiler",
                    "ranges of the CUPTI profiler")  # fmt: skip
    for one in with_quantities(whole).quantities:
        if one.name not in _OF_LAUNCHES:
            yield replace(one, source=_SOURCE, scope=scope)
    if not has_launches:
        yield Quantity(
            name="launch_count", value=None, unit="", rule="sum", source=_SOURCE, scope=scope,
            status="missing", reason="ranges of the CUPTI profiler are no launches",
        )  # fmt: skip


def _is_rocm(trace: Trace, calls: Iterable[str]) -> bool:
    """Tell whether the trace is of AMD GPUs: by their names, or by the calls of HIP."""
    names = (device.name for device in _devices(trace).values())
    return any(name.startswith(_AMD) for name in names) or any(
        name.startswith("hip") for name in calls
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
    count, name = entry.get("numSms"), str(entry.get("name", ""))
    major, minor = entry.get("computeMajor"), entry.get("computeMinor")
    # what HIP writes there is no compute capability of CUDA
    is_told = major is not None and not name.startswith(_AMD)
    return Device(
        name=name,
        compute_capability=f"{major}.{minor}" if is_told else "",
        multiprocessors=count if isinstance(count, int) else None,
    )


def _notes(trace: Trace, *, has_gpu: bool) -> Iterator[str]:
    if not has_gpu:
        yield "no GPU data: the trace tells of no kernel, copy or memset"
    known = trace.head.get("distributedInfo")
    if isinstance(known, dict):
        rank, size, backend = (known.get(key, "?") for key in ("rank", "world_size", "backend"))
        yield f"of a distributed program: rank {rank} of {size}, backend {backend}"
