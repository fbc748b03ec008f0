"""Read a torch.profiler (Kineto) trace: kernels, copies, calls, operators and collectives.

Operator times are summed as in torch.profiler: self time and total time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from envcompare.gpu import unknown_model, vendor_of
from envcompare.profile_files import (
    Numbers,
    Table,
    api_calls,
    copy_groups,
    exposed_ns,
    first_duplicate,
    in_launch_order,
    innermost,
    kernel_groups,
    launching_calls,
    union_ns,
    untraced_graphs,
    with_gpu_times,
    without_memsets,
)
from envcompare.profile_files.derive import with_quantities
from envcompare.profile_files.kineto.events import OCCUPANCY_PARTS, EventRows, Trace, read_rows
from envcompare.run_folder.profiles import Device, Kernel, Note, Operator, Profile, Quantity
from envcompare.text import counted

_SOURCE: Final = "torch.profiler"
_RANGE: Final = re.compile(r"__.*|\d+")  # not named after a kernel
# An operator has a namespace. c10d operators pass a collective to the backend, and hooks that wait
# for one run in autograd operators, whose nodes, such as AddmmBackward0, have no namespace.
_COMPUTES: Final = re.compile(r"(?!c10d::|(?:torch::)?autograd::)[\w.]+::")
# ncclKernel_* up to NCCL 2.18, ncclDevKernel_* since, nccl…Kernel_* before both; RCCL, the AMD
# counterpart, uses the same names.
_NCCL: Final = re.compile(r"\bnccl(?:Dev)?Kernel|^(?:void )?nccl\w*")
# multimem_* and *_shot_* are PyTorch's symmetric memory, cross_device_reduce_* is vLLM.
_OTHERS: Final = re.compile(
    r"\bmultimem_|\bcross_device_reduce|\bnvshmem|\b(?:inter|intra)node::"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)


def read(path: Path) -> Profile:
    """Read a trace; raises ProfileError if it is damaged, cut off or contains impossible values."""
    trace = Trace(path)
    rows = read_rows(trace)
    kernels = in_launch_order(rows.kernels.table())
    copies, calls, operators = (
        table.table() for table in (rows.copies, rows.calls, rows.operators)
    )
    for table in (kernels, copies, calls, operators):
        if pair := first_duplicate(table):
            raise trace.refusal(pair[1], f"the same as event {pair[0]}")
    if rows.counters:
        return _counter_profile(trace, rows, kernels)
    names = tuple(rows.names)
    devices = _devices(trace)
    call_names = {names[number] for number in np.unique(calls["name"]).tolist()}
    is_rocm = any(vendor_of(device.name) == "AMD" for device in devices.values())
    is_rocm |= any(name.startswith("hip") for name in call_names)
    timed = _timed_profile(trace, rows, (kernels, copies, calls, operators))
    has_gpu = bool(len(kernels) or len(copies))
    hidden = "ROCm sets memory with kernels; the trace does not record their bytes" * is_rocm
    notes = list(_notes(trace, has_gpu=has_gpu))
    graphs = untraced_graphs(calls, names, (kernels, copies))
    # only if every recorded row has its own launching call
    if graphs and all((launching_calls(table, calls) >= 0).all() for table in (kernels, copies)):
        notes.append(Note(kind="untraced-graphs", values={"graphs": graphs}))
    quantities: list[Quantity] = []
    if rows.occupancy_ns:
        quantities.append(
            Quantity(
                name="estimated_occupancy",
                value=rows.occupancy_weighted / OCCUPANCY_PARTS / rows.occupancy_ns,
                unit="%",
                rule="time-weighted",
                source=_SOURCE,
                scope="computed from grid, block and registers; not measured",
            )
        )
    quantities += _collectives(kernels, rows, is_rocm=is_rocm)
    quantities += _host_collectives(rows, operators)
    quantities += without_memsets(copies, source=_SOURCE, hidden=hidden) if has_gpu else ()
    timed = replace(
        timed,
        step_busy_ns=_busy_of_steps(rows, calls, (kernels, copies)),
        quantities=tuple(quantities),
        notes=tuple(notes),
    )
    is_cuda = any(name.startswith("cuda") for name in call_names)
    vendor = "AMD" if is_rocm else "NVIDIA" if is_cuda else rows.vendor
    if has_gpu and vendor and not devices:
        devices = {0: unknown_model(vendor)}
    return with_gpu_times(timed, (kernels, copies), devices, source=_SOURCE)


def _timed_profile(
    trace: Trace, rows: EventRows, tables: tuple[Table, Table, Table, Table]
) -> Profile:
    """Return kernels, copies, calls and operators with their times."""
    kernels, copies, calls, operators = tables
    names = tuple(rows.names)
    caused = [_owners(table, calls, operators) for table in (kernels, copies)]
    ops = [names[int(operators["name"][at])] if at >= 0 else "" for at in caused[0].tolist()]
    groups, sequence = kernel_groups(kernels, tuple(rows.shapes), ops)
    return Profile(
        tool="kineto",
        format=_format(trace),
        files=(trace.name,),
        kernels=groups,
        sequence=sequence,
        copies=copy_groups(copies),
        api_calls=api_calls(calls, names),
        operators=_operator_sums(
            operators,
            names,
            work=np.concatenate(caused),
            durations=np.concatenate(
                [table["end"] - table["start"] for table in (kernels, copies)]
            ),
            memory=rows.memory.table(),
        ),
        steps=len(rows.steps) or None,
    )


def _counter_profile(trace: Trace, rows: EventRows, launched: Table) -> Profile:
    """Return the counters of a trace; its times are distorted by counting and dropped.

    A profiler range is not a launch, so kernels come from the trace. If it has none, ranges named
    after kernels are used instead.
    """
    ranges = tuple(
        Kernel(name=name, calls=calls, total_ns=None, metrics=dict(sorted(sums.items())))
        for name, (calls, sums) in sorted(rows.counters.items())
    )
    named = tuple(kernel for kernel in ranges if not _RANGE.fullmatch(kernel.name))
    groups, sequence = kernel_groups(launched, tuple(rows.shapes))
    untimed = (replace(kernel, total_ns=None, min_ns=None, max_ns=None) for kernel in groups)
    notes = [Note(kind="times-of-counting")]
    if rows.dropped:
        metrics = ", ".join(sorted(rows.dropped))
        notes.append(Note(kind="metrics-without-sums", values={"metrics": metrics}))
    if len(named) < len(ranges):
        notes.append(Note(kind="counters-of-ranges"))
    known = _devices(trace)
    return Profile(
        tool="kineto",
        format=_format(trace),
        files=(trace.name,),
        devices=tuple(known[number] for number in sorted(known)),
        kernels=tuple(untimed) or named,
        sequence=sequence,
        quantities=tuple(_sums(ranges, has_launches=bool(groups))),
        steps=len(rows.steps) or None,
        has_time=False,
        notes=(*notes, *_notes(trace, has_gpu=True)),
    )


def _sums(ranges: tuple[Kernel, ...], *, has_launches: bool) -> Iterator[Quantity]:
    """Yield the sums over all ranges, and that launches are unknown."""
    whole = Profile(tool="kineto", kernels=ranges, has_time=False)
    scope = counted(sum(kernel.calls for kernel in ranges), "range of the CUPTI profiler",
                    "ranges of the CUPTI profiler")  # fmt: skip
    for quantity in with_quantities(whole).quantities:
        if quantity.name not in {"launch_count", "kernel_time_ns"}:
            yield replace(quantity, source=_SOURCE, scope=scope)
    if not has_launches:
        yield Quantity(
            name="launch_count", value=None, unit="", rule="sum", source=_SOURCE, scope=scope,
            status="missing", reason="ranges of the CUPTI profiler are not launches",
        )  # fmt: skip


def _format(trace: Trace) -> str:
    schema = trace.head.get("schemaVersion")
    return "Chrome trace" if schema is None else f"Chrome trace, schema {schema}"


def _collectives(kernels: Table, rows: EventRows, *, is_rocm: bool) -> Iterator[Quantity]:
    """Yield shares and exposed time of collectives between GPUs, if there are any.

    NCCL's share counts its own kernels only; on AMD GPUs it is the share of RCCL.
    """
    names = [name for name, _, _ in rows.shapes]
    of_nccl = [at for at, name in enumerate(names) if _NCCL.search(name)]
    # the template of a kernel may name other kernels
    others = [at for at, name in enumerate(names) if _OTHERS.search(name.partition("<")[0])]
    is_exchange = np.isin(kernels["group"], [*of_nccl, *others])
    if not is_exchange.any():
        return
    yield _share(kernels, is_exchange, "collective_share")
    is_nccl = np.isin(kernels["group"], of_nccl)
    yield _share(kernels, is_nccl, "rccl_share" if is_rocm else "nccl_share")
    for device in np.unique(kernels["device"]).tolist():
        here = kernels["device"] == device
        exchange, computing = kernels[here & is_exchange], kernels[here & ~is_exchange]
        scope = f"GPU {device}: no other kernel runs"
        for quantity in _exchange_quantities(exchange, computing, rows.steps_ns, scope):
            yield replace(quantity, gpu=device)


def _host_collectives(rows: EventRows, operators: Table) -> Iterator[Quantity]:
    """Yield time and exposed time of collectives on the host, if there are any."""
    exchanges = rows.exchanges.table()
    if len(exchanges):
        scope = f"{counted(len(exchanges), 'collective')} on the host: no operator computes"
        # without the callers of computing operators, which may wait in between
        kept = [at for at, name in enumerate(rows.names) if _COMPUTES.match(name)]
        computing = operators[np.isin(operators["name"], kept)]
        yield from _exchange_quantities(exchanges, computing, rows.steps_ns, scope)


def _exchange_quantities(
    exchanges: Table, others: Table, steps_ns: int, scope: str
) -> Iterator[Quantity]:
    """Yield the total and exposed time of exchanges in ns, and their shares of the steps."""
    of, under = ((table["start"], table["end"]) for table in (exchanges, others))
    duration_ns, exposed = union_ns(*of), exposed_ns(of, under)
    where = scope.partition(":")[0]
    yield Quantity(
        name="collective_ns", value=float(duration_ns), unit="ns", rule="union", source=_SOURCE,
        scope=where,
    )  # fmt: skip
    yield Quantity(
        name="collective_exposed_ns", value=float(exposed), unit="ns", rule="difference",
        source=_SOURCE, scope=scope,
    )  # fmt: skip
    for name, part_ns in (("collective", duration_ns), ("collective_exposed", exposed)):
        if steps_ns:
            yield Quantity(
                name=f"{name}_step_share", value=100.0 * part_ns / steps_ns, unit="%",
                rule="ratio of sums", source=_SOURCE, scope=where,
            )  # fmt: skip


def _share(kernels: Table, is_counted: npt.NDArray[np.bool_], name: str) -> Quantity:
    duration_ns = kernels["end"] - kernels["start"]
    total = int(duration_ns.sum())
    return Quantity(
        name=name,
        value=100.0 * int(duration_ns[is_counted].sum()) / total if total else 0.0,
        unit="%",
        rule="ratio of sums",
        source=_SOURCE,
        scope=f"{int(is_counted.sum())} of {len(kernels)} kernels, by name",
    )


def _devices(trace: Trace) -> dict[int, Device]:
    listed = trace.head.get("deviceProperties", trace.head.get("computeProperties"))
    entries = (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    # XPUs are listed in the order of their numbers
    numbered = ((entry.get("id", place), entry) for place, entry in enumerate(entries))
    devices = {}
    for number, entry in numbered:
        if not isinstance(number, int):
            continue
        count, name = entry.get("numSms"), str(entry.get("name", ""))
        major, minor = (
            entry.get(f"compute{part}", entry.get(part.lower())) for part in ("Major", "Minor")
        )
        # HIP writes something other than a CUDA compute capability here
        is_cuda_capability = major is not None and vendor_of(name) == "NVIDIA"
        devices[number] = Device(
            name=name,
            compute_capability=f"{major}.{minor}" if is_cuda_capability else "",
            multiprocessors=count if isinstance(count, int) else None,
        )
    return devices


def _notes(trace: Trace, *, has_gpu: bool) -> Iterator[Note]:
    if not has_gpu:
        yield Note(kind="no-gpu-events")
    known = trace.head.get("distributedInfo")
    if isinstance(known, dict):
        values = {key: str(known.get(key, "?")) for key in ("rank", "world_size", "backend")}
        yield Note(kind="distributed", values=values)


def _busy_of_steps(rows: EventRows, calls: Table, tables: Sequence[Table]) -> tuple[float, ...]:
    """Return how long one GPU was busy with what each step launched, in ns, in their order.

    Nothing where several GPUs worked, or where the step of any row is not known.
    """
    steps = np.sort(rows.step_times.table()["start"])
    launches = [launching_calls(table, calls) for table in tables]
    devices = np.unique(np.concatenate([table["device"] for table in tables]))
    if len(steps) != len(rows.steps) or len(devices) != 1 or any((at < 0).any() for at in launches):
        return ()
    launched_at = np.concatenate([calls["start"][at] for at in launches])
    starts, ends = (np.concatenate([table[name] for table in tables]) for name in ("start", "end"))
    owners = np.searchsorted(steps, launched_at, side="right") - 1
    if set(owners.tolist()) != set(range(len(steps))):
        return ()
    return tuple(
        float(union_ns(starts[owners == step], ends[owners == step])) for step in range(len(steps))
    )


def _owners(rows: Table, calls: Table, operators: Table) -> Numbers:
    """Return the index in `operators` of the operator that caused each row, or -1.

    It is the innermost operator around the launching call; without a call, the operator with the
    external id of the row.
    """
    if not len(rows) or not len(operators):
        return np.full(len(rows), -1)
    callers = np.full(len(rows), -1)
    if len(calls):
        at = launching_calls(rows, calls)
        around = innermost(operators, threads=calls["thread"][at], times=calls["start"][at])
        callers = np.where(at >= 0, np.array(around, dtype=np.int64), -1)
    asked, offered = rows["owner"], operators["external"]
    order = np.argsort(offered, kind="stable")
    places = order[np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)]
    # Kineto writes 0 for an unknown operator.
    is_known = (offered[places] == asked) & (asked > 0)
    return np.where(callers >= 0, callers, np.where(is_known, places, -1))


def _operator_sums(
    operators: Table,
    names: Sequence[str],
    *,
    work: Numbers,
    durations: Numbers,
    memory: Table,
) -> tuple[Operator, ...]:
    """Return the operators by name, longest self time first.

    `work` holds the operator index, or -1, of each piece of GPU work, `durations` its length in ns.
    """
    if not len(operators):
        return ()
    order = _outermost_first(operators)
    parents = _parents(operators, order)
    kept_places = _without_repeats(operators, parents, order)
    is_kept = kept_places == np.arange(len(operators))
    parents = np.where(is_kept & (parents >= 0), kept_places[parents], -1)
    length = operators["end"] - operators["start"]
    device = _sum_by_place(_map_places(work, kept_places), durations, len(operators))
    owner = innermost(operators, threads=memory["thread"], times=memory["time"])
    held = _map_places(np.array(owner, dtype=np.int64), kept_places)
    child, parent = np.flatnonzero(parents >= 0), parents[parents >= 0]
    # rounding may extend a child past the end of its parent
    until = np.minimum(operators["end"][child], operators["end"][parent])
    inside = _sum_by_place(parent, until - operators["start"][child], len(operators))
    sums = np.stack([
        np.ones_like(length),
        length - inside,
        length,
        device,
        _with_children(device, parents, order),
        *(
            _sum_by_place(held[picked], memory["bytes"][picked], len(operators))
            for picked in (memory["is_device"] == 0, memory["is_device"] == 1)
        ),
    ])  # fmt: skip
    numbers, inverse = np.unique(operators["name"][is_kept], return_inverse=True)
    by_name = np.zeros((len(sums), len(numbers)), dtype=np.int64)
    for at, column in enumerate(sums[:, is_kept]):
        np.add.at(by_name[at], inverse, column)
    has_gpu, has_memory = len(work) > 0, len(memory) > 0
    rows = (
        Operator(
            name=names[number],
            calls=calls,
            self_cpu_ns=float(self_time),
            cpu_ns=float(total),
            self_device_ns=float(self_device) if has_gpu else None,
            device_ns=float(device_total) if has_gpu else None,
            self_cpu_bytes=host_bytes if has_memory else None,
            self_device_bytes=device_bytes if has_memory else None,
        )
        for number, (
            calls, self_time, total, self_device, device_total, host_bytes, device_bytes,
        ) in zip(numbers.tolist(), by_name.T.tolist(), strict=True)
    )  # fmt: skip
    longest = sorted(rows, key=lambda row: (-(row.self_device_ns or 0), -row.self_cpu_ns, row.name))
    return tuple(longest)


def _outermost_first(operators: Table) -> Numbers:
    """Return the order of operators by thread and start, each before those inside it."""
    return np.lexsort(
        [operators[name] for name in ("name", "external")]
        + [-operators["end"], operators["start"], operators["thread"]]
    )


def _parents(rows: Table, order: Numbers) -> Numbers:
    """Return the index of the enclosing operator on the same thread, or -1."""
    parents = np.full(len(rows), -1)
    threads, starts, ends = (rows[name].tolist() for name in ("thread", "start", "end"))
    around: list[int] = []
    for place in order.tolist():
        while around and (
            threads[around[-1]] != threads[place] or ends[around[-1]] <= starts[place]
        ):
            around.pop()
        if around:
            parents[place] = around[-1]
        around.append(place)
    return parents


def _without_repeats(rows: Table, parents: Numbers, order: Numbers) -> Numbers:
    """Return for each operator its index, or that of the operator it repeats.

    A dispatcher may call only an operator of the same name; torch.profiler shows one of the two.
    """
    children = np.bincount(parents[parents >= 0], minlength=len(rows))
    repeats = (parents >= 0) & (rows["name"] == rows["name"][parents]) & (children[parents] == 1)
    kept_places = np.arange(len(rows))
    for place in order[repeats[order]].tolist():
        kept_places[place] = kept_places[parents[place]]
    return kept_places


def _map_places(places: Numbers, kept_places: Numbers) -> Numbers:
    return np.where(places >= 0, kept_places[places], -1)


def _with_children(values: Numbers, parents: Numbers, order: Numbers) -> Numbers:
    sums = values.tolist()
    above = parents.tolist()
    for place in reversed(order.tolist()):
        if above[place] >= 0:
            sums[above[place]] += sums[place]
    return np.array(sums, dtype=np.int64)


def _sum_by_place(places: Numbers, values: Numbers, count: int) -> Numbers:
    sums = np.zeros(count, dtype=np.int64)
    known = places >= 0
    np.add.at(sums, places[known], values[known])
    return sums
