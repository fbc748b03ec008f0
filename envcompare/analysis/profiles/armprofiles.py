"""Choose among the profiles of an arm, merge those of its ranks, and build its tables.

Activities follow the summary of nvprof, operators the table of torch.profiler. Over the ranks sums
are added; busy times, rates and shares are kept for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final, TypeVar, get_args

from msgspec.structs import replace

from envcompare.analysis.model.profiling import (
    ActivityRow,
    ActivityTable,
    ArmProfiles,
    OperatorRow,
    OperatorTable,
    PassState,
    QuantityRow,
)
from envcompare.gpu import gpu_models, has_gpu_work
from envcompare.gpu.kernels import builds, classify, is_tensor_core, shortened_name
from envcompare.run_folder.profiles import (
    RUN_KERNELS_ALONE,
    ApiCall,
    Copy,
    Kernel,
    Note,
    Operator,
    PassName,
    Profile,
    ProfileRecord,
    Quantity,
    Tool,
    hidden_graphs,
)

MOST_ROWS: Final = 25  # per table and type; the rest is summed
_KINDS: Final[tuple[PassName, ...]] = get_args(PassName)
_TOOLS: Final[tuple[Tool, ...]] = get_args(Tool)
Records = Sequence[ProfileRecord]
RANK: Final = "rank"
LEFT_OUT: Final = "left_out"
"""Values of the note `distributed`: the ranks as text, and ranks that other arms lack."""
_ENDS: Final[Mapping[str, Callable[[list[float]], float]]] = {"min_ns": min, "max_ns": max}
_MOST_DIGITS: Final = 10  # of a rank number
_Called = TypeVar("_Called", Kernel, Copy, ApiCall, Operator)
_Ranks = Mapping[int, ProfileRecord]


def profile_of(record: ProfileRecord) -> Profile:
    """Return the profile of a record that has one, with the steps of the record as fallback."""
    assert record.profile is not None
    return replace(record.profile, steps=record.profile.steps or record.steps)


def source_of(record: ProfileRecord) -> str:
    """Return pass and tool, such as "nsys 2024.5" or "imported, nvprof 9.2"."""
    profile = profile_of(record)
    tool = f"{profile.tool} {profile.version}".strip()
    if record.kind in {"imported", "ncu-memory", "ncu-flops"}:
        return f"{record.kind}, {tool}"
    return tool


def usable(records: Iterable[ProfileRecord]) -> tuple[ProfileRecord, ...]:
    """Return the records with a profile, least disturbed times first."""
    kept = [record for record in records if record.state == "ok" and record.profile is not None]
    return tuple(sorted(kept, key=_rank))


def is_trace(record: ProfileRecord) -> bool:
    """Return whether kernels or copies of a profile have reliable times."""
    profile = record.profile
    if profile is None or not profile.has_time or hidden_graphs(profile):
        return False
    timed = bool(profile.kernels) and all(kernel.total_ns is not None for kernel in profile.kernels)
    return timed or (not profile.kernels and bool(profile.copies))


def is_of_program(record: ProfileRecord) -> bool:
    """Return whether the times are those of the running program; ncu runs kernels alone."""
    return is_trace(record) and profile_of(record).tool not in RUN_KERNELS_ALONE


def has_kernels(record: ProfileRecord) -> bool:
    """Return whether a profile has kernels, and hides none."""
    profile = record.profile
    return profile is not None and bool(profile.kernels) and not hidden_graphs(profile)


def is_kernel_trace(record: ProfileRecord) -> bool:
    """Return whether a profile has kernels with reliable times."""
    return is_trace(record) and has_kernels(record)


def choose(records: Records, fits: Callable[[ProfileRecord], bool]) -> ProfileRecord | None:
    """Return the best profile of an arm that fits; None if there is none."""
    return next((profile for profile in usable(records) if fits(profile)), None)


def choose_pair(
    before: Records, after: Records, fits: Callable[[ProfileRecord], bool]
) -> tuple[ProfileRecord, ProfileRecord] | None:
    """Return a profile of each arm, of the same pass and tool if possible, else the best.

    Profiles of other ranks of a distributed program are no pair.
    """
    firsts = [profile for profile in usable(before) if fits(profile)]
    seconds = [profile for profile in usable(after) if fits(profile)]
    pairs = [pair for pair in product(firsts, seconds) if not are_other_ranks(*map(ranks_of, pair))]
    alike = (pair for pair in pairs if _rank(pair[0]) == _rank(pair[1]))
    return next(alike, pairs[0] if pairs else None)


def ranks_of(record: ProfileRecord) -> tuple[str, str]:
    """Return the ranks of a distributed program and their number; empty if it records none."""
    values = _distributed(profile_of(record)).values
    return str(values.get(RANK, "")), str(values.get("world_size", ""))


def are_other_ranks(ours: tuple[str, str], theirs: tuple[str, str]) -> bool:
    """Return whether two results of `ranks_of` are known to be of different ranks."""
    return bool(ours[0] and theirs[0] and ours[0] != theirs[0])


def ranks_of_passes(records: Records) -> dict[tuple[str, Tool | None], tuple[str, str]]:
    """Return the ranks of the best profile of each pass and tool."""
    best_last = reversed(usable(records))
    return {(record.kind, profile_of(record).tool): ranks_of(record) for record in best_last}


def passes_of_other_ranks(
    records: Records, reference: Records
) -> frozenset[tuple[str, Tool | None]]:
    """Return pass and tool of profiles that are of other ranks than the reference's."""
    ours, theirs = ranks_of_passes(records), ranks_of_passes(reference)
    both = ours.keys() & theirs.keys()
    return frozenset(key for key in both if are_other_ranks(ours[key], theirs[key]))


def _rank(record: ProfileRecord) -> tuple[int, int]:
    assert record.profile is not None
    return _KINDS.index(record.kind), _TOOLS.index(record.profile.tool)


def arm_profiles(arm: str, records: Records, rows: tuple[QuantityRow, ...]) -> ArmProfiles:
    """Return the tables of an arm; `rows` are its quantities."""
    trace = choose(records, is_trace) or choose(
        records, lambda record: bool(profile_of(record).api_calls)
    )
    operators = choose(records, lambda record: bool(profile_of(record).operators))
    profiles = [profile_of(profile) for profile in usable(records)]
    return ArmProfiles(
        arm=arm,
        passes=tuple(_pass_state(profile) for profile in records),
        gpus=tuple(sorted(gpu_models(profiles))),
        builds=builds(kernel_names(profiles)),
        quantities=rows,
        activities=_activity_table(trace) if trace else None,
        operators=_operator_table(operators) if operators else None,
    )


def kernel_names(profiles: Iterable[Profile]) -> frozenset[str]:
    """Return the names of the kernels in profiles that hide none of them."""
    visible = (profile for profile in profiles if not hidden_graphs(profile))
    return frozenset(kernel.name for profile in visible for kernel in profile.kernels)


def _pass_state(record: ProfileRecord) -> PassState:
    profile = record.profile
    return PassState(
        kind=record.kind,
        name=record.name,
        state=record.state,
        lacks=record.lacks,
        tool=f"{profile.tool} {profile.version}".strip() if profile else "",
        steps=(profile.steps if profile else None) or record.steps,
        has_time=profile.has_time if profile else True,
        has_gpu_work=None if profile is None else has_gpu_work(profile),
        notes=profile.notes if profile else (),
        raw=record.raw,
    )


def _activity_table(record: ProfileRecord) -> ActivityTable:
    """Return GPU activities and API calls, longest first, with the rest in one row."""
    profile = profile_of(record)
    # with hidden kernels, shares of the others would be meaningless
    is_whole = not hidden_graphs(profile)
    activities = [*_kernel_rows(profile.kernels), *_copy_rows(profile)] if is_whole else []
    calls = [
        _row("API calls", call.name, call.calls, call.total_ns, (call.min_ns, call.max_ns))
        for call in profile.api_calls
    ]
    return ActivityTable(
        source=source_of(record),
        kind=record.kind,
        steps=profile.steps,
        gpu_ns=sum(row.time_ns for row in activities),
        api_ns=sum(row.time_ns for row in calls),
        rows=(*_cut(activities), *_cut(calls)),
    )


def _kernel_rows(kernels: Iterable[Kernel]) -> Iterable[ActivityRow]:
    """Yield a row for each name, with all shapes summed, as in nvprof."""
    names: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        if kernel.total_ns is not None:
            names.setdefault(kernel.name, []).append(kernel)
    for name, same in names.items():
        ends = (
            _least(quantity.min_ns for quantity in same),
            _most(quantity.max_ns for quantity in same),
        )
        time_ns = sum(quantity.total_ns or 0.0 for quantity in same)
        row = _row("GPU activities", name, sum(quantity.calls for quantity in same), time_ns, ends)
        yield replace(row, kernel_class=classify(name), is_tensor_core=is_tensor_core(name))


def _copy_rows(profile: Profile) -> Iterable[ActivityRow]:
    for copy in profile.copies:
        is_set = copy.kind == "memset"
        name = "[CUDA memset]" if is_set else f"[CUDA memcpy {copy.kind}]"
        row = _row("GPU activities", name, copy.calls, copy.total_ns, (copy.min_ns, copy.max_ns))
        yield replace(
            row, kernel_class="memset" if is_set else "memcpy", total_bytes=copy.total_bytes
        )


def _row(
    kind: str, name: str, calls: int, time_ns: float, ends: tuple[float | None, float | None]
) -> ActivityRow:
    return ActivityRow(
        type="API calls" if kind == "API calls" else "GPU activities",
        name=shortened_name(name),
        percent=0.0,
        time_ns=time_ns,
        calls=calls,
        average_ns=time_ns / calls if calls else 0.0,
        min_ns=ends[0],
        max_ns=ends[1],
    )


def _cut(rows: Sequence[ActivityRow]) -> tuple[ActivityRow, ...]:
    """Return the longest rows with their shares, and the rest in one row."""
    total = sum(row.time_ns for row in rows)
    ordered = sorted(rows, key=lambda row: -row.time_ns)
    shared = [replace(row, percent=100 * row.time_ns / total if total else 0.0) for row in ordered]
    if len(shared) <= MOST_ROWS + 1:
        return tuple(shared)
    rest = shared[MOST_ROWS:]
    calls, time_ns = sum(row.calls for row in rest), sum(row.time_ns for row in rest)
    ends = _least(row.min_ns for row in rest), _most(row.max_ns for row in rest)
    line = replace(
        _row(rest[0].type, f"{len(rest)} more", calls, time_ns, ends),
        percent=sum(row.percent for row in rest),
        is_rest=True,
    )
    return (*shared[:MOST_ROWS], line)


def _operator_table(record: ProfileRecord) -> OperatorTable:
    """Return the operators of a profile, longest self time first."""
    profile = profile_of(record)
    cpu = sum(one.self_cpu_ns for one in profile.operators)
    device = _sum(one.self_device_ns for one in profile.operators)
    ordered = sorted(
        profile.operators,
        key=lambda operator: (operator.self_device_ns or 0.0, operator.self_cpu_ns),
        reverse=True,
    )
    cut = ordered[MOST_ROWS:] if len(ordered) > MOST_ROWS + 1 else []
    groups = [[one] for one in ordered[: len(ordered) - len(cut)]] + [cut] * bool(cut)
    return OperatorTable(
        source=source_of(record),
        kind=record.kind,
        steps=profile.steps,
        self_cpu_ns=cpu,
        self_device_ns=device,
        rows=tuple(_operator_row(group, cpu, device) for group in groups),
    )


def _operator_row(group: Sequence[Operator], cpu: float, device: float | None) -> OperatorRow:
    """Return one operator, or the rest in one row.

    Total times include other operators, so they cannot be summed.
    """
    single = group[0] if len(group) == 1 else None
    self_cpu = sum(operator.self_cpu_ns for operator in group)
    self_device = _sum(operator.self_device_ns for operator in group)
    return OperatorRow(
        name=single.name if single else f"{len(group)} more",
        calls=sum(operator.calls for operator in group),
        self_cpu_ns=self_cpu,
        self_cpu_percent=100 * self_cpu / cpu if cpu else 0.0,
        cpu_ns=single.cpu_ns if single else None,
        self_device_ns=self_device,
        self_device_percent=100 * self_device / device
        if self_device is not None and device
        else None,
        device_ns=single.device_ns if single else None,
        self_cpu_bytes=single.self_cpu_bytes if single else None,
        self_device_bytes=single.self_device_bytes if single else None,
        is_rest=single is None,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def over_ranks(records: Records) -> Records:
    """Return the records of a cell, with the ranks of one program merged.

    If the arms have different ranks, only the shared ranks are kept.
    """
    merged, single = [], list(records)
    for by_arm in _programs(records):
        shared = set.intersection(*map(set, by_arm.values()))
        for ranks in by_arm.values():
            if len(ranks) > 1:
                kept = {rank: ranks[rank] for rank in sorted(shared or ranks)}
                merged.append(_merge_ranks(kept, lacking=sorted(ranks.keys() - kept.keys())))
                single = [
                    profile for profile in single if all(profile is not of for of in ranks.values())
                ]
    return (*merged, *single)


def _programs(records: Iterable[ProfileRecord]) -> Iterable[dict[str, dict[int, ProfileRecord]]]:
    """Return the first trace of each rank by arm, for each pass of a tool and size of a program."""
    programs: dict[Hashable, dict[str, dict[int, ProfileRecord]]] = {}
    for record in usable(records):
        profile = profile_of(record)
        values = _distributed(profile).values
        rank, size = (str(values.get(name, "")) for name in (RANK, "world_size"))
        if rank.isdecimal() and size.isdecimal() and len(rank) < _MOST_DIGITS:
            by_arm = programs.setdefault((record.kind, profile.tool, size), {})
            by_arm.setdefault(record.arm, {}).setdefault(int(rank), record)
    return programs.values()


def _distributed(profile: Profile) -> Note:
    notes = (note for note in profile.notes if note.kind == "distributed")
    return next(notes, Note(kind="distributed"))


def _merge_ranks(ranks: _Ranks, *, lacking: list[int]) -> ProfileRecord:
    """Merge the records of some ranks; `lacking` are ranks that other arms lack."""
    records = tuple(ranks.values())
    profiles = tuple(map(profile_of, records))
    steps = {profile.steps for profile in profiles}
    notes = _notes(ranks, profiles, lacking=lacking)
    if len(records) == 1:
        return replace(records[0], profile=replace(profiles[0], notes=notes))
    merged = replace(
        profiles[0],
        files=tuple(name for profile in profiles for name in profile.files),
        devices=tuple(device for profile in profiles for device in profile.devices),
        span_ns=None, busy_ns=None, kernel_busy_ns=None, launch_gap_ns=None,
        kernels=_summed_by((p.kernels for p in profiles), lambda k: (k.name, k.grid, k.block)),
        sequence=(),
        copies=_summed_by((p.copies for p in profiles), lambda one: one.kind),
        api_calls=_summed_by((p.api_calls for p in profiles), lambda one: one.name),
        operators=_summed_by((p.operators for p in profiles), lambda one: one.name),
        quantities=(*_sums(profiles), *_of_each(ranks)),
        steps=steps.pop() if len(steps) == 1 else None,
        has_time=all(profile.has_time for profile in profiles),
        notes=notes,
    )  # fmt: skip
    return replace(
        records[0],
        raw=tuple(name for record in records for name in record.raw),
        sha256={name: digest for record in records for name, digest in record.sha256.items()},
        profile=merged,
    )


def _notes(ranks: _Ranks, profiles: tuple[Profile, ...], *, lacking: list[int]) -> tuple[Note, ...]:
    """Return the note on ranks, then all other notes once."""
    values = {RANK: _listed(ranks), LEFT_OUT: _listed(lacking)}
    notes = [Note(kind="distributed", values={**_distributed(profiles[0]).values, **values})]
    for note in (note for profile in profiles for note in profile.notes):
        if note.kind != "distributed" and note not in notes:
            notes.append(note)
    return tuple(notes)


def _listed(ranks: Iterable[int]) -> str:
    return " and ".join(", ".join(map(str, ranks)).rsplit(", ", 1))


def _summed_by(
    groups: Iterable[tuple[_Called, ...]], key: Callable[[_Called], Hashable]
) -> tuple[_Called, ...]:
    sums: dict[Hashable, _Called] = {}
    for called in (operator for group in groups for operator in group):
        name = key(called)
        sums[name] = _sum_over_ranks(sums[name], called) if name in sums else called
    return tuple(sums.values())


def _sum_over_ranks(one: _Called, other: _Called) -> _Called:
    """Return the sum of two items, with the smaller minimum and the larger maximum."""
    changes: dict[str, object] = {}
    for name in one.__struct_fields__:
        ours, theirs = getattr(one, name), getattr(other, name)
        if isinstance(ours, dict):
            changes[name] = {key: ours[key] + theirs[key] for key in ours.keys() & theirs.keys()}
        elif name in {"first", "grid", "block"} or isinstance(ours, str):
            changes[name] = ours
        elif ours is None or theirs is None:
            changes[name] = None
        else:
            changes[name] = _ENDS.get(name, sum)([ours, theirs])
    return replace(one, **changes)


def _sums(profiles: tuple[Profile, ...]) -> Iterator[Quantity]:
    """Yield the sums over all ranks; unknown if one of them is unknown."""
    found: dict[str, list[Quantity]] = {}
    for quantity in (one for profile in profiles for one in profile.quantities):
        if quantity.rule == "sum" and quantity.gpu is None:
            found.setdefault(quantity.name, []).append(quantity)
    for same in found.values():
        unknown = next((one for one in same if one.value is None), None)
        total = sum(one.value or 0.0 for one in same)
        scope = f"over {len(profiles)} ranks"
        yield unknown or replace(same[0], value=total, scope=scope)


def _of_each(ranks: _Ranks) -> Iterator[Quantity]:
    """Yield the quantities of each rank that cannot be summed, such as GPU busy time."""
    for rank, record in ranks.items():
        for quantity in profile_of(record).quantities:
            if quantity.rule != "sum" or quantity.gpu is not None:
                yield replace(quantity, rank=rank)
