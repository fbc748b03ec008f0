"""The roofline of a cell: achieved and attainable FLOP/s of each arm and kernel.

Attainable = FLOP ÷ max(Σ FLOP of a precision ÷ its peak, bytes ÷ bandwidth), which for one
precision is min(peak, intensity × bandwidth) (Williams, Waterman and Patterson, Roofline, 2009).
Achieved = FLOP ÷ kernel time.

Counters disturb times and a trace has no counters, so they come from separate passes. They are
joined kernel by kernel as means per launch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from envcompare.analysis.model.profiling import Roof, Roofline, RooflinePoint
from envcompare.analysis.profiles.armprofiles import (
    Records,
    choose,
    has_kernels,
    is_kernel_trace,
    profile_of,
    usable,
)
from envcompare.gpu import device_of, roofs_of, tensor_pipes
from envcompare.gpu.kernelnames import classify, identity, ran_uncounted, shortened_name
from envcompare.run_folder.profiles import TRACE, Device, Dim, Kernel, ProfileRecord, Roofs

MOST_KERNELS: Final = 20  # per arm; the total includes all
TOTAL: Final = "all kernels"
_STEP: Final = "a step of the model"
_NS: Final = 1e9
_BYTES: Final = "dram_bytes"
_FLOPS: Final[tuple[str, ...]] = ("flops_fp64", "flops_fp32", "flops_fp16")
_TENSOR: Final = "flops_tensor"

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
        for name, value in _sums(kernel).items():
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
    records = [one for found in by_arm.values() for one in usable(found)]
    if not any(has_kernels(one) for one in records):
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
    known = [max(one) for one in floors if one is not None]
    yield replace(
        _point(arm, total, roofs, time_ns),
        is_total=True,
        kernel_class=None,
        # kernels run one after the other, so their floors add up
        floor_ns=sum(known) if len(known) == len(work) else None,
    )
    yield from each[:MOST_KERNELS]


def _point(arm: str, work: _Work, roofs: Roofs, time_ns: float) -> RooflinePoint:
    flops = sum(work.flops.values())
    precisions = tuple(sorted(work.flops))
    floors = _floors(work, roofs)
    floor = max(floors) if floors else None
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
        bound=_bound(floors) if work.bytes is not None and roofs.bytes_per_s else None,
        floor_ns=floor,
    )


def _bound(floors: tuple[float, float] | None) -> Literal["compute", "memory"] | None:
    if floors is None:
        return None
    return "compute" if floors[0] >= floors[1] else "memory"


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
    roofs = next((one for one in cpus if one.is_measured and "fp32" in one.flops_per_s), None)
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
    reasons = [one.reason for one in cpus if one.reason]
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
    counters = [one for one in usable(records) if any(map(_flops, profile_of(one).kernels))]
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
    counted = sorted((one for one in made if one), key=lambda kernel: -kernel.time_ns)
    return tuple(counted), _missing_counters(
        counted, kernels, has_bytes=bool(traffic), records=records
    )


def _sums(kernel: Kernel) -> dict[str, float]:
    """Return FLOPs by precision, and bytes, over all launches of a kernel."""
    sums = {name.removeprefix("flops_"): value for name, value in _flops(kernel).items()}
    if _BYTES in kernel.metrics:
        sums[_BYTES] = kernel.metrics[_BYTES]
    return sums


def _flops(kernel: Kernel) -> dict[str, float]:
    """Return FLOPs by quantity name; the sum over tensor types only if types are missing."""
    plain = {name: kernel.metrics[name] for name in _FLOPS if name in kernel.metrics}
    types = {n: v for n, v in kernel.metrics.items() if _is_tensor_type(n)}
    if not types and kernel.metrics.get(_TENSOR):
        types = {_TENSOR: kernel.metrics[_TENSOR]}
    return {**plain, **types}


def _is_tensor_type(name: str) -> bool:
    # integer operations are not FLOPs
    return name.startswith(f"{_TENSOR}_") and not name.startswith(f"{_TENSOR}_int")


def _tables(records: Iterable[ProfileRecord]) -> _Tables:
    shaped: defaultdict[_Key, _Counted] = defaultdict(_Counted)
    named: defaultdict[str, _Counted] = defaultdict(_Counted)
    for record in records:
        keys = {_key(kernel) for kernel in profile_of(record).kernels}
        # a second profile of the same launches would count them twice
        fresh = keys - shaped.keys()
        pipes = tensor_pipes(profile_of(record).devices)
        for kernel in profile_of(record).kernels:
            if _key(kernel) in fresh and not (_flops(kernel) and ran_uncounted(kernel, pipes)):
                shaped[_key(kernel)].take(kernel)
                named[identity(kernel.name)].take(kernel)
    return dict(shaped), dict(named)


def _key(kernel: Kernel) -> _Key:
    return identity(kernel.name), kernel.grid, kernel.block


def _find(tables: _Tables, kernel: Kernel) -> _Counted | None:
    """Return the counts of a kernel; by name only if a tool does not record shapes."""
    shaped, named = tables
    counted = shaped.get(_key(kernel))
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
    share = 1 - sum(one.time_ns for one in counted) / total if total else 0.0
    texts = []
    if share > 1e-6:
        texts.append(f"{100 * share:.2g} % of its kernel time is in kernels without counters")
    if not has_bytes:
        texts.append(_why(records, ("ncu-memory",), "device memory traffic was not counted"))
    return "; ".join(texts)


def _why(records: Records, kinds: tuple[str, ...], otherwise: str) -> str:
    """Return the sentence with the reason of the missing pass, if any."""
    missing = (one for one in records if one.kind in kinds and one.state == "missing")
    reasons = (one.lacks.problem.reason for one in missing if one.lacks)
    return next((f"{otherwise}: {reason}" for reason in reasons), otherwise)
