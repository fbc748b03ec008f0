"""The quantities of the arms of a cell: per step, per sample, and relative to the reference.

The roofline of a cell is the achieved and attainable FLOP/s of each arm and kernel. Attainable =
FLOP ÷ max(Σ FLOP of a precision ÷ its peak, bytes ÷ bandwidth), which for one precision is
min(peak, intensity × bandwidth) (Williams, Waterman and Patterson, Roofline, 2009). Achieved = FLOP
÷ kernel time.

Counters disturb times and a trace has no counters, so they come from separate passes. They are
joined kernel by kernel as means per launch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from envcompare.analysis.model.profiling import QuantityRow, Roof, Roofline, RooflinePoint
from envcompare.analysis.profiles.armprofiles import (
    Records,
    choose,
    has_kernels,
    is_kernel_trace,
    is_of_program,
    passes_of_other_ranks,
    profile_of,
    usable,
)
from envcompare.gpu import device_of, roofs_of, tensor_pipes
from envcompare.gpu.kernels import (
    UNCOUNTED_TENSORS,
    classify,
    identity,
    ran_uncounted,
    shortened_name,
)
from envcompare.run_folder.profiles import (
    TRACE,
    Device,
    Dim,
    Kernel,
    PassName,
    Profile,
    ProfileRecord,
    Quantity,
    Roofs,
    Rule,
    Tool,
)
from envcompare.text import counted

_PER_STEP: Final[tuple[Rule, ...]] = ("sum", "union", "difference")
# How well one program on one device repeats: counts exactly, counted traffic nearly, times less.
_TOLERANCES: Final[tuple[tuple[str, float], ...]] = (
    ("flops_model", 1e-9),
    ("flops_", 1e-3),
    ("launch_count", 1e-9),
    ("dram_", 0.02),
    ("l2_", 0.02),
    ("arithmetic_intensity", 0.02),
    ("occupancy", 0.02),
    ("warp_efficiency", 0.02),
    ("tensor_core_share", 0.02),
)
# Linux samples user and system time at each tick; below 1 s there are too few samples
_BY_TICKS: Final = frozenset({"user_ns", "sys_ns"})
_ENOUGH_NS: Final = 1e9
_BYTES_OF_COPIES: Final = 1e-9
_OTHERWISE: Final = 0.05
_LAUNCHES: Final = "launch_count"
Rows = tuple[QuantityRow, ...]
Key = tuple[str, str, Tool | None, int | None, int | None, int]
"""Name, pass, tool, GPU, rank, and a number for repetitions within one profile."""
_INTENSITY: Final = "arithmetic_intensity"
_FLOPS_DONE: Final[tuple[str, ...]] = ("flops_fp64", "flops_fp32", "flops_fp16")
_TENSOR: Final = "flops_tensor"
_FLOPS: Final = (*_FLOPS_DONE, _TENSOR)
_BYTES: Final = "dram_bytes"


def _tolerance(name: str) -> float:
    """Return how far the ratio of two equal values may be from 1."""
    if name.startswith(("memcpy_", "memset_")) and name.endswith("_bytes"):
        return _BYTES_OF_COPIES
    if name.endswith("_per_s"):
        return _OTHERWISE  # a rate varies like its time
    return next((most for start, most in _TOLERANCES if name.startswith(start)), _OTHERWISE)


def quantity_rows(
    by_arm: Mapping[str, Iterable[ProfileRecord]],
    timed: Mapping[str, Iterable[Quantity]],
    *,
    reference: str,
    partial: Container[tuple[str, str]] = (),
) -> dict[str, Rows]:
    """Return the rows of each arm, from its profiles and from `timed` readings of the timing pass.

    `partial` are the arms and records that lack launches of their steps. A quantity is compared
    with the same name, pass, tool and GPU in the reference. There is no ratio if the tool, page,
    averaging rule or ranks differ.
    """
    held = {arm: tuple(records) for arm, records in by_arm.items()}
    rows = {arm: _rows(records, partial) for arm, records in held.items()}
    covers: dict[str, dict[tuple[str, Tool], int | None]] = {
        arm: {
            (record.kind, profile_of(record).tool): profile_of(record).steps
            for record in usable(records)
            if is_of_program(record)  # a trace, which contains all copies
        }
        for arm, records in held.items()
    }
    for arm, quantities in timed.items():
        rows.setdefault(arm, {}).update(
            (_key(quantity, "timing", None), _row(quantity, "timing")) for quantity in quantities
        )
    rows = {
        arm: found | _absent_copies(found, rows, covered=covers.get(arm, {}))
        for arm, found in rows.items()
    }
    against = rows.get(reference, {})
    theirs = held.get(reference, ())
    others = {arm: passes_of_other_ranks(ours, theirs) for arm, ours in held.items()}
    return {
        arm: tuple(
            replace(row, agreement="reference")
            if arm == reference
            else _with_ratio(row, key, against, is_apart=key[1:3] in others.get(arm, ()))
            for key, row in found.items()
        )
        for arm, found in rows.items()
    }


def _absent_copies(
    rows: Mapping[Key, QuantityRow],
    others: Mapping[str, Mapping[Key, QuantityRow]],
    *,
    covered: Mapping[tuple[str, Tool], int | None],
) -> dict[Key, QuantityRow]:
    """Return 0 for copies and memsets of other arms, if a trace would contain them."""
    found = {}
    for key, row in ((key, row) for of in others.values() for key, row in of.items()):
        name, kind, tool, gpu, *_ = key
        is_copied = name.startswith(("memcpy_", "memset_")) and gpu is None
        is_known = row.value is not None and key not in rows
        if is_copied and is_known and tool is not None and (kind, tool) in covered:
            steps = covered[kind, tool]
            zero = replace(row, value=0.0, per_step=0.0 if steps else None, per_sample=None)
            found[key] = replace(zero, scope="none was traced", status="ok", reason="")
    return found


def _with_ratio(
    row: QuantityRow, key: Key, against: Mapping[Key, QuantityRow], *, is_apart: bool
) -> QuantityRow:
    """Return a row with its ratio, or with the reason it has none; of other ranks, it has none."""
    same = against.get(key)
    if same is not None:
        row = replace(row, reference_value=same.value, reference_per_step=same.per_step)
    if row.value is None:
        return row
    if row.rank is None and is_apart:
        return replace(row, unlike="ranks")
    if same is not None and same.value is not None:
        if row.rule != same.rule:
            return replace(row, unlike="rule")
        # pages average differently, but all of them count the launches
        if row.page != same.page and row.name != _LAUNCHES:
            return replace(row, unlike="page")
        return _compare(row, same)
    name, kind, tool, *where, _ = key
    is_known = any(
        other.value is not None
        for (of, pass_name, by, *there, _), other in against.items()
        if (of, pass_name, there) == (name, kind, where) and by != tool
    )
    return replace(row, unlike="tool") if is_known else row


def clashes(
    records: Iterable[ProfileRecord], partial: Container[tuple[str, str]]
) -> dict[Key, str]:
    """Return the contradictions between records of one arm, pass and tool, as sentences."""
    first: dict[Key, tuple[str, QuantityRow]] = {}
    clashing: dict[Key, str] = {}
    for record in usable(records):
        for key, row in _of_record(record, partial):
            if row.value is None:
                continue
            name, earlier = first.setdefault(key, (record.name, row))
            if not _agree(earlier, row):
                first_value = f"{name} has {earlier.value:.6g} {earlier.unit}"
                clashing.setdefault(key, f"{first_value}, but {record.name} has {row.value:.6g}")
    return clashing


def _rows(
    records: Iterable[ProfileRecord], partial: Container[tuple[str, str]]
) -> dict[Key, QuantityRow]:
    """Return the first value of each quantity; none if another record contradicts it."""
    rows: dict[Key, QuantityRow] = {}
    held = usable(records)
    for record in held:
        for key, row in _of_record(record, partial):
            if key not in rows or rows[key].value is None:
                rows[key] = row
    clashing = clashes(held, partial)
    if not clashing:
        return _with_intensity(rows, [profile_of(record) for record in held])
    refused = {
        key: replace(
            rows[key], status="refused", reason=reason, value=None, per_step=None, per_sample=None
        )
        for key, reason in clashing.items()
    }
    return rows | refused


def _of_record(
    record: ProfileRecord, partial: Container[tuple[str, str]]
) -> Iterable[tuple[Key, QuantityRow]]:
    """Yield the quantities of one record as rows; a partial record has no values per step."""
    profile = profile_of(record)
    # pages of Nsight Compute round and average differently
    page = " + ".join(sorted(set(profile.pages)))
    steps = None if (record.arm, record.name) in partial else profile.steps
    seen: Counter[Key] = Counter()
    for quantity in profile.quantities:
        first = _key(quantity, record.kind, profile.tool)
        key = _key(quantity, record.kind, profile.tool, place=seen[first])
        seen[first] += 1
        row = _row(quantity, record.kind, steps=steps, batch=record.batch)
        yield key, replace(row, page=page, tool=profile.tool)


def _agree(row: QuantityRow, other: QuantityRow) -> bool:
    """Return whether two records agree within the tolerance of the quantity."""
    compared = _compare(other, row)
    if compared.agreement == "unknown":
        return row.value == other.value or _is_coarse(row, other)
    return compared.agreement == "equal"


def _key(quantity: Quantity, kind: str, tool: Tool | None, *, place: int = 0) -> Key:
    return (quantity.name, kind, tool, quantity.gpu, quantity.rank, place)


def _with_intensity(
    rows: dict[Key, QuantityRow], profiles: list[Profile]
) -> dict[Key, QuantityRow]:
    """Replace missing intensities of two passes with their joint intensity."""
    lacking = [key for key in rows if key[0] == _INTENSITY and rows[key].value is None]
    joined = _joined_intensity(profiles) if lacking else None
    if joined is None:
        return rows
    key, *others = lacking
    kept = {one: row for one, row in rows.items() if one not in others}
    row = replace(_row(joined, rows[key].kind), tool=rows[key].tool)
    return kept | {key: row}


def _row(
    quantity: Quantity,
    kind: PassName | Literal["timing"],
    *,
    steps: int | None = None,
    batch: int | None = None,
) -> QuantityRow:
    value = quantity.value if quantity.status == "ok" else None
    per_step = None
    if value is not None and steps and quantity.rule in _PER_STEP:
        per_step = value / steps
    return QuantityRow(
        name=quantity.name,
        unit=quantity.unit,
        rule=quantity.rule,
        source=quantity.source,
        scope=quantity.scope,
        gpu=quantity.gpu,
        rank=quantity.rank,
        kind=kind,
        status=quantity.status,
        reason=quantity.reason,
        value=value,
        per_step=per_step,
        per_sample=per_step / batch if per_step is not None and batch else None,
        tolerance=_tolerance(quantity.name),
    )


def _compare(row: QuantityRow, other: QuantityRow) -> QuantityRow:
    if (row.per_step is None) != (other.per_step is None):
        return row
    value = row.value if row.per_step is None else row.per_step
    base = other.value if other.per_step is None else other.per_step
    if value is None or base is None or _is_coarse(row, other):
        return row
    if not base:
        return replace(row, agreement="equal" if not value else "differs")
    is_equal = abs(value / base - 1) <= row.tolerance
    return replace(row, ratio=value / base, agreement="equal" if is_equal else "differs")


def _is_coarse(row: QuantityRow, other: QuantityRow) -> bool:
    """Return whether two times are too short for tick counting."""
    longest = max(row.value or 0.0, other.value or 0.0)
    return row.name in _BY_TICKS and longest < _ENOUGH_NS


def _joined_intensity(profiles: Sequence[Profile]) -> Quantity | None:
    """Return FLOPs per byte of device memory over two profiles; None if they do not match.

    They match if one tool recorded the same launches of the same kernels and shapes. There is no
    value if tensor cores were used and not counted.
    """
    moved = next((profile for profile in profiles if _values(profile).get(_BYTES)), None)
    computed = next(
        (profile for profile in profiles if _values(profile).keys() & set(_FLOPS)), None
    )
    if moved is None or computed is None or moved is computed or moved.tool != computed.tool:
        return None
    launches = _launches_by_shape(moved)
    if launches != _launches_by_shape(computed):
        return None
    total = counted(sum(launches.values()), "launch", "launches")
    flops = {name: value for name, value in _values(computed).items() if name in _FLOPS}
    lacking = [name for name in _FLOPS if name not in flops]
    intensity = Quantity(
        name=_INTENSITY,
        value=sum(flops.values()) / _values(moved)[_BYTES],
        unit="FLOP/B",
        rule="ratio of sums",
        source=f"{moved.tool} {moved.version}".strip(),
        scope=f"device memory, two passes over {total}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )
    is_uncounted = any(
        ran_uncounted(kernel, tensor_pipes(profile.devices))
        for profile in (moved, computed)
        for kernel in profile.kernels
    )
    if "flops_tensor" in flops or not is_uncounted:
        return intensity
    return replace(intensity, value=None, status="missing", reason=UNCOUNTED_TENSORS)


def _values(profile: Profile) -> dict[str, float]:
    return {
        quantity.name: quantity.value
        for quantity in profile.quantities
        if quantity.value is not None
    }


def _launches_by_shape(profile: Profile) -> dict[tuple[str, Dim | None, Dim | None], int]:
    return {(kernel.name, kernel.grid, kernel.block): kernel.calls for kernel in profile.kernels}


_MOST_KERNELS: Final = 20  # per arm; the total includes all
TOTAL: Final = "all kernels"
_STEP: Final = "a step of the model"
_NS: Final = 1e9
_Key = tuple[str, Dim | None, Dim | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of all launches of a kernel; `flops` by precision, such as fp32 or tensor_bf16."""

    name: str
    calls: int
    time_ns: float
    flops: dict[str, float]
    bytes: float | None


@dataclass(slots=True)
class _Counted:
    """Counted launches, and sums over them."""

    kernels: int = 0
    calls: int = 0
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counted_kernels: Counter[str] = field(default_factory=Counter)  # by name of metric

    def take(self, kernel: Kernel) -> None:
        self.kernels += 1
        self.calls += kernel.calls
        sums = {name.removeprefix("flops_"): value for name, value in _flops(kernel).items()}
        if _BYTES in kernel.metrics:
            sums[_BYTES] = kernel.metrics[_BYTES]
        for name, value in sums.items():
            self.sums[name] += value
            self.counted_kernels[name] += 1

    def mean(self, name: str) -> float | None:
        """Return the mean per launch; None if a launch lacks it."""
        if not self.calls or self.counted_kernels[name] < self.kernels:
            return None
        return self.sums[name] / self.calls


_Tables = tuple[dict[_Key, _Counted], dict[str, _Counted]]
"""Counts by name and shape, and by name only."""


def roofline(
    by_arm: Mapping[str, Records],
    measured: Sequence[Roofs],
    *,
    host: str,
    steps_ns: Mapping[str, float],
) -> Roofline | str:
    """Return the roofline of a cell, or the reason there is none.

    Without a GPU it uses model FLOPs and `steps_ns`, the mean wall time of a step in ns.
    """
    records = [profile for found in by_arm.values() for profile in usable(found)]
    if not any(has_kernels(record) for record in records):
        return _on_cpu(by_arm, measured, steps_ns)
    device = device_of([one for record in records for one in profile_of(record).devices])
    if isinstance(device, str):
        return device
    roofs, caveat = roofs_of(device, measured, host=host)
    if roofs is None:
        return caveat
    points: list[RooflinePoint] = []
    missing: list[str] = []
    for arm, of_arm in by_arm.items():
        work, lacks = _kernel_work(of_arm)
        points += _points(arm, work, roofs)
        missing += [f"{arm}: {lacks}."] if lacks else []
    return _build(device, roofs, points, notes=(caveat,) * bool(caveat), missing=missing)


def _build(
    device: Device,
    roofs: Roofs,
    points: Sequence[RooflinePoint],
    *,
    notes: tuple[str, ...],
    missing: Iterable[str],
) -> Roofline:
    used = {precision for point in points for precision in point.precisions}
    without = sorted(used - roofs.flops_per_s.keys())
    return Roofline(
        device=device.name,
        source=roofs.source,
        is_measured=roofs.is_measured,
        bytes_per_s=roofs.bytes_per_s,
        roofs=tuple(
            Roof(
                precision=precision,
                flops_per_s=peak,
                ridge=peak / roofs.bytes_per_s if roofs.bytes_per_s else None,
                is_used=precision in used,
            )
            for precision, peak in roofs.flops_per_s.items()
        ),
        points=tuple(points),
        missing=(*missing, *(f"There is no roof for {precision}." for precision in without)),
        notes=notes,
    )


def _points(arm: str, work: Sequence[_Work], roofs: Roofs) -> Iterable[RooflinePoint]:
    """Yield the total, then the longest kernels with FLOPs."""
    time_ns = sum(one.time_ns for one in work)
    if not any(one.flops for one in work):
        return
    each = [_point(arm, one, roofs, time_ns) for one in work if one.flops]
    flops: Counter[str] = Counter()
    for kernel in work:
        flops.update(kernel.flops)
    moved = [one.bytes for one in work if one.bytes is not None]
    total = _Work(
        name=TOTAL,
        calls=sum(one.calls for one in work),
        time_ns=time_ns,
        flops=dict(flops),
        bytes=sum(moved) if len(moved) == len(work) else None,
    )
    floors = [_floors(one, roofs) for one in work]
    known = [max(floor) for floor in floors if floor is not None]
    yield replace(
        _point(arm, total, roofs, time_ns),
        is_total=True,
        kernel_class=None,
        # kernels run one after the other, so their floors add up
        floor_ns=sum(known) if len(known) == len(work) else None,
    )
    yield from each[:_MOST_KERNELS]


def _point(arm: str, work: _Work, roofs: Roofs, time_ns: float) -> RooflinePoint:
    flops = sum(work.flops.values())
    precisions = tuple(sorted(work.flops))
    floors = _floors(work, roofs)
    floor = max(floors) if floors else None
    bound: Literal["compute", "memory"] | None = None
    if floors and work.bytes is not None and roofs.bytes_per_s:
        bound = "compute" if floors[0] >= floors[1] else "memory"
    return RooflinePoint(
        arm=arm,
        name=shortened_name(work.name),
        precision=precisions[0] if len(precisions) == 1 else "mixed",
        precisions=precisions,
        kernel_class=classify(work.name),
        calls=work.calls,
        flops=flops,
        bytes=work.bytes,
        time_ns=work.time_ns,
        time_share=work.time_ns / time_ns if time_ns else None,
        intensity=flops / work.bytes if work.bytes else None,
        flops_per_s=flops / work.time_ns * _NS,
        attainable_flops_per_s=flops / floor * _NS if floor else None,
        bound=bound,
        floor_ns=floor,
    )


def _floors(work: _Work, roofs: Roofs) -> tuple[float, float] | None:
    """Return the least time in ns for computing and for memory; None if a roof is missing.

    Unknown bytes give no bound.
    """
    if work.flops.keys() - roofs.flops_per_s.keys():
        return None
    computing = sum(
        value / roofs.flops_per_s[precision] * _NS for precision, value in work.flops.items()
    )
    if work.bytes is None or not roofs.bytes_per_s:
        return computing, 0.0
    return computing, work.bytes / roofs.bytes_per_s * _NS


def _on_cpu(
    by_arm: Mapping[str, Records], measured: Sequence[Roofs], steps_ns: Mapping[str, float]
) -> Roofline | str:
    """Compare model FLOPs with the roof of the CPU; memory traffic is unknown."""
    cpus = [one for one in measured if not one.uuid]
    roofs = next((cpu for cpu in cpus if cpu.is_measured and "fp32" in cpu.flops_per_s), None)
    if roofs is None:
        return _why_none(by_arm, cpus)
    points = [
        replace(_point(arm, work, roofs, work.time_ns), kernel_class=None, is_total=True)
        for arm, records in by_arm.items()
        if (work := _model(records, steps_ns.get(arm))) is not None
    ]
    if not points:
        return "the model FLOPs are unknown, or no step was timed"
    note = (
        "On a CPU: FLOPs of the model, taken as FP32, over the mean wall time of a step. Memory "
        "traffic is unknown, so only the compute roof applies."
    )
    device = Device(name=roofs.device)
    return replace(
        _build(device, roofs, points, notes=(note,), missing=()), level="the CPU's memory"
    )


def _why_none(by_arm: Mapping[str, Records], cpus: Iterable[Roofs]) -> str:
    """Return why there is neither a GPU trace nor a CPU roof."""
    reasons = [cpu.reason for cpu in cpus if cpu.reason]
    traces = [
        record.lacks.problem.reason
        for records in by_arm.values()
        for record in records
        if record.kind == TRACE and record.lacks
    ]
    why = (*reasons, *traces, "no profile has kernels, and no CPU roof was measured")
    return why[0]


def _model(records: Records, step_ns: float | None) -> _Work | None:
    for record in usable(records):
        profile = profile_of(record)
        for quantity in profile.quantities:
            if quantity.name == "flops_model" and quantity.value and profile.steps and step_ns:
                flops = quantity.value / profile.steps
                return _Work(
                    name=_STEP, calls=1, time_ns=step_ns, flops={"fp32": flops}, bytes=None
                )
    return None


def _kernel_work(records: Records) -> tuple[tuple[_Work, ...], str]:
    """Return the work of the kernels of an arm, longest first, and a sentence on what is missing.

    Kernels of the trace without counters are omitted and reported.
    """
    trace = choose(records, is_kernel_trace)
    if trace is None:
        return (), _why(records, (TRACE,), "no profile has kernel times")
    counters = [
        profile for profile in usable(records) if any(map(_flops, profile_of(profile).kernels))
    ]
    if not counters:
        return (), _why(records, ("ncu-flops",), "no profile has kernel FLOPs")
    traffic = [
        record
        for record in usable(records)
        if any(_BYTES in one.metrics for one in profile_of(record).kernels)
    ]
    flops, moved = _tables(counters), _tables(traffic)
    kernels = profile_of(trace).kernels
    made = [_work(kernel, _find(flops, kernel), _find(moved, kernel)) for kernel in kernels]
    counted = sorted((work for work in made if work), key=lambda kernel: -kernel.time_ns)
    return tuple(counted), _missing_counters(
        counted, kernels, has_bytes=bool(traffic), records=records
    )


def _flops(kernel: Kernel) -> dict[str, float]:
    """Return FLOPs by quantity name; the sum over tensor types only if types are missing."""
    plain = {name: kernel.metrics[name] for name in _FLOPS_DONE if name in kernel.metrics}
    types = {
        name: value
        for name, value in kernel.metrics.items()
        # integer operations are not FLOPs
        if name.startswith(f"{_TENSOR}_") and not name.startswith(f"{_TENSOR}_int")
    }
    if not types and kernel.metrics.get(_TENSOR):
        types = {_TENSOR: kernel.metrics[_TENSOR]}
    return {**plain, **types}


def _tables(records: Iterable[ProfileRecord]) -> _Tables:
    shaped: defaultdict[_Key, _Counted] = defaultdict(_Counted)
    named: defaultdict[str, _Counted] = defaultdict(_Counted)
    for record in records:
        keys = {_roof_key(kernel) for kernel in profile_of(record).kernels}
        # a second profile of the same launches would count them twice
        fresh = keys - shaped.keys()
        pipes = tensor_pipes(profile_of(record).devices)
        for kernel in profile_of(record).kernels:
            if _roof_key(kernel) in fresh and not (_flops(kernel) and ran_uncounted(kernel, pipes)):
                shaped[_roof_key(kernel)].take(kernel)
                named[identity(kernel.name)].take(kernel)
    return dict(shaped), dict(named)


def _roof_key(kernel: Kernel) -> _Key:
    return identity(kernel.name), kernel.grid, kernel.block


def _find(tables: _Tables, kernel: Kernel) -> _Counted | None:
    """Return the counts of a kernel; by name only if a tool does not record shapes."""
    shaped, named = tables
    counted = shaped.get(_roof_key(kernel))
    if counted is not None:
        return counted
    name = identity(kernel.name)
    shapes = [key for key in shaped if key[0] == name] if name in named else []
    is_shapeless = kernel.grid is None or any(key[1] is None for key in shapes)
    return named.get(name) if is_shapeless else None


def _work(kernel: Kernel, flops: _Counted | None, moved: _Counted | None) -> _Work | None:
    if flops is None or not kernel.total_ns:
        return None
    each = {name: flops.mean(name) for name in flops.sums if name != _BYTES}
    if None in each.values():
        return None
    bytes_each = moved.mean(_BYTES) if moved else None
    return _Work(
        name=kernel.name,
        calls=kernel.calls,
        time_ns=kernel.total_ns,
        flops={name: value * kernel.calls for name, value in each.items() if value},
        bytes=None if bytes_each is None else bytes_each * kernel.calls,
    )


def _missing_counters(
    counted: Sequence[_Work], kernels: Sequence[Kernel], *, has_bytes: bool, records: Records
) -> str:
    """Return which share of kernel time has no point, and whether bytes are missing."""
    total = sum(kernel.total_ns or 0.0 for kernel in kernels)
    share = 1 - sum(work.time_ns for work in counted) / total if total else 0.0
    texts = []
    if share > 1e-6:
        texts.append(f"{100 * share:.2g} % of its kernel time is in kernels without counters")
    if not has_bytes:
        texts.append(_why(records, ("ncu-memory",), "device memory traffic was not counted"))
    return "; ".join(texts)


def _why(records: Records, kinds: tuple[str, ...], otherwise: str) -> str:
    """Return the sentence with the reason of the missing pass, if any."""
    missing = (record for record in records if record.kind in kinds and record.state == "missing")
    reasons = (profile.lacks.problem.reason for profile in missing if profile.lacks)
    return next((f"{otherwise}: {reason}" for reason in reasons), otherwise)
