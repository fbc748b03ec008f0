"""Derive all quantities of a profile from its kernels, copies and times.

Sums are over launches, ratios are of sums, rates are weighted by kernel time. A missing quantity
has no value and a reason. If a file has no counter of a family (FLOPs in a memory pass), the family
is omitted, and the arithmetic intensity gives the reason.

CUDA cores: a thread's addition or multiplication counts 1, a fused multiply-add 2 (NVIDIA's table
of nvprof metrics; the roofline sections of Nsight Compute do the same). Tensor cores: 512 for each
pipe instruction on Volta (Yang, Kurth and Williams, doi 10.1002/cpe.5547); on later chips only
operation counters, since an instruction does far more. A sector is 32 bytes ("aligned 32 byte-chunk
of memory", Nsight Compute's documentation; the same as nvprof's `dram_read_transactions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from envcompare.gpu import (
    is_lacking,
    may_have,
    ncu_name,
    tensor_counters,
    tensor_pipes,
    tensor_totals,
)
from envcompare.gpu.kernels import (
    UNCOUNTED_TENSORS,
    is_tensor_core,
    is_tensor_pipe,
    ran_uncounted,
    reveals_cores,
    used_tensor_cores,
)
from envcompare.run_folder.profiles import (
    Copy,
    Kernel,
    Note,
    Profile,
    Quantity,
    Rule,
    graphs_of,
    hidden_graphs,
)
from envcompare.text import counted, counted_kernels

# NVIDIA's table maps this to a ratio of 0 to 32, but nvprof prints percent
_PER_CENT = {
    "warp_execution_efficiency": "smsp__thread_inst_executed_per_inst_executed.pct",
}
# nvprof prints a fraction of 0 to 1, Nsight Compute percent.
_FRACTIONS = frozenset({"achieved_occupancy"})
_OF_WHOLE_GRAPHS: Final = ("span_ns", "busy_ns", "launch_gap_ns")
_TIMES_OF_GPU: Final = (*_OF_WHOLE_GRAPHS, "kernel_busy_ns")
_WARP_THREADS: Final = 32
_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ACTIVE: Final = "smsp__thread_inst_executed_per_inst_executed"
_THREADS: Final = "smsp__thread_inst_executed.sum"
# HMMA.884 does 8 · 8 · 4 multiply-adds, of two operations each.
_VOLTA_FLOPS: Final = 512
_PATH: Final = re.compile(r"sm__ops_path_tensor_src_(\w+?)(?:_dst_\w+)?\.sum")
_ALL_FLOPS: Final = ("flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor")
"""The quantities that together hold every floating-point operation once."""
_CORES: Final = (
    "smsp__sass_thread_inst_executed_op_",
    "sm__sass_thread_inst_executed_op_",
    "flop_",
)
_TENSOR_OPS: Final = "sm__ops_path_tensor_"
_KINDS: Final = (("fp64", "d", "dp"), ("fp32", "f", "sp"), ("fp16", "h", "hp"))
_WEIGHTS: Final = (("add", 1), ("mul", 1), ("fma", 2))
_PACKED: Final = (("fadd2", 2), ("fmul2", 2), ("ffma2", 4))
_SECTOR_BYTES: Final = 32
_NS: Final = 1e9  # ns in a second
# Of the bytes: a few launches may move data in only one replay.
_MOST_UNRATED: Final = 0.01
_MOST_SILENT: Final = 0.01  # of the kernel time may have names without a hint
# Scaled units are printed with six decimals, so bytes and sectors agree only this closely.
_ROUNDING: Final = 1e-6


def launch_text(kernels: Sequence[Kernel]) -> str:
    """Return the number of launches and kernels, such as "9 launches of 2 kernels"."""
    launches = sum(kernel.calls for kernel in kernels)
    names = len({kernel.name for kernel in kernels})
    return " of ".join(
        (counted(launches, "launch", "launches"), counted_kernels(names, len(kernels)))
    )


@dataclass(frozen=True, slots=True)
class _Total:
    """A sum or mean over all kernels, or the reason why it is unknown."""

    value: float | None = None
    reason: str = ""
    is_partial: bool = False  # some kernels have it


def _sum_of(totals: Iterable[_Total]) -> _Total:
    """Return the sum of sums; unknown if one is unknown."""
    known = list(totals)
    lacking = next((total for total in known if total.value is None), None)
    return lacking or _Total(sum(total.value or 0.0 for total in known))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MetricSums:
    """A profile with its metrics, their sums and means."""

    profile: Profile
    names: frozenset[str]
    kernel_ns: float | None
    source: str
    scope: str

    @classmethod
    def of(cls, profile: Profile) -> _MetricSums:
        """Return the sums of a profile; nvprof metrics get the names of Nsight Compute."""
        if profile.tool == "nvprof":
            kernels = [
                replace(
                    kernel,
                    metrics={
                        _PER_CENT.get(name) or ncu_name(name) or name: (
                            100 * value if name in _FRACTIONS else value
                        )
                        for name, value in kernel.metrics.items()
                    },
                )
                for kernel in profile.kernels
            ]
            profile = replace(profile, kernels=tuple(kernels))
        times = [kernel.total_ns for kernel in profile.kernels]
        known = [time for time in times if time is not None]
        is_timed = profile.has_time and bool(times) and len(known) == len(times)
        return cls(
            profile=profile,
            names=frozenset(name for kernel in profile.kernels for name in kernel.metrics),
            kernel_ns=sum(known) if is_timed else None,
            source=f"{profile.tool} {profile.version}".strip(),
            scope=launch_text(profile.kernels),
        )

    @property
    def chip(self) -> str:
        """Return the chip if all GPUs of the profile share one; empty if unknown."""
        chips = {device.chip for device in self.profile.devices}
        return chips.pop() if len(chips) == 1 else ""

    @property
    def pipes(self) -> tuple[str, ...]:
        """Return the counters of all tensor pipes of the GPUs; empty if unknown."""
        return tensor_pipes(self.profile.devices)

    @property
    def why_no_time(self) -> str:
        if not self.profile.has_time:
            return "the collected counters change kernel times"
        return "the file does not record the time of every kernel"

    def has(self, starts: tuple[str, ...]) -> bool:
        return any(name.startswith(starts) for name in self.names)

    def total(self, metric: str) -> _Total:
        """Return the sum of a metric over all kernels; unknown if a kernel lacks it."""
        values = self._values(metric)
        return values if isinstance(values, _Total) else _Total(sum(values))

    def _values(self, metric: str) -> list[float] | _Total:
        """Return the metric of each kernel, or the reason if one lacks it."""
        kernels = self.profile.kernels
        values = [kernel.metrics[metric] for kernel in kernels if metric in kernel.metrics]
        if not values:
            return _Total(reason=f"{metric} was not collected")
        lacking = len(kernels) - len(values)
        if lacking:
            why = f"{metric} is missing for {lacking} of {len(kernels)} kernels"
            return _Total(reason=why, is_partial=True)
        return values

    def first_total(self, metrics: Iterable[str]) -> _Total:
        """Return the sum of the first metric that is complete, else the reason."""
        totals = [self.total(metric) for metric in metrics]
        known = next((total for total in totals if total.value is not None), None)
        partial = next((total for total in totals if total.is_partial), None)
        return known or partial or totals[0]

    def mean(self, metric: str) -> _Total:
        """Return the mean of a rate, weighted by kernel time."""
        values = self._values(metric)
        if isinstance(values, _Total) and not values.is_partial:
            return values
        if isinstance(values, list) and len(values) == 1:
            return _Total(values[0])
        if not self.kernel_ns:
            return _Total(reason=f"rates are weighted by time, and {self.why_no_time}")
        if isinstance(values, _Total):
            return values
        pairs = zip(values, self.profile.kernels, strict=True)
        weighted = sum(value * (kernel.total_ns or 0.0) for value, kernel in pairs)
        return _Total(weighted / self.kernel_ns)

    def quantity(  # noqa: PLR0913 — the parts of a quantity
        self, name: str, unit: str, rule: Rule, total: _Total, *, scope: str = "", reason: str = ""
    ) -> Quantity:
        """Return a total as a quantity; an unknown total is missing, with its own reason.

        `reason` is a caveat for a known value.
        """
        is_known = total.value is not None
        return Quantity(
            name=name,
            value=total.value,
            unit=unit,
            rule=rule,
            source=self.source,
            scope=scope or self.scope,
            status="ok" if is_known else "missing",
            reason=reason if is_known else total.reason,
        )


def with_quantities(profile: Profile) -> Profile:
    """Return the profile with all derived quantities; those set by its reader are kept."""
    reported = {quantity.name for quantity in profile.quantities}
    derived = [quantity for quantity in _derive(profile) if quantity.name not in reported]
    whole = replace(
        profile,
        kernels=tuple(_with_work(profile, kernel) for kernel in profile.kernels),
        quantities=(*profile.quantities, *derived),
    )
    note = hidden_graphs(profile)
    return _without_hidden(whole, note) if note else whole


def _without_hidden(profile: Profile, note: Note) -> Profile:
    """Return the profile without quantities that the hidden work of CUDA graphs would change.

    A graph traced as a whole has a start and an end, so the GPU busy time is known.
    """
    known = _OF_WHOLE_GRAPHS if note.kind == "whole-graphs" else ()
    reason = f"the kernels and copies of {graphs_of(note)} are hidden"
    return replace(
        profile,
        **{name: None for name in _TIMES_OF_GPU if name not in known},
        operators=tuple(
            replace(each, self_device_ns=None, device_ns=None) for each in profile.operators
        ),
        quantities=tuple(
            each
            if each.name in known
            else replace(each, value=None, status="missing", reason=reason)
            for each in profile.quantities
        ),
    )


def _with_work(profile: Profile, kernel: Kernel) -> Kernel:
    """Return a kernel with its derived traffic and operations added to its metrics."""
    if not kernel.metrics:
        return kernel
    sums = _MetricSums.of(replace(profile, kernels=(kernel,)))
    work = {
        quantity.name: quantity.value
        for quantity in (*_memory_quantities(sums), *_flop_quantities(sums))
        if quantity.value is not None and quantity.rule == "sum"
    }
    return replace(kernel, metrics={**kernel.metrics, **work})


def _derive(profile: Profile) -> list[Quantity]:
    sums = _MetricSums.of(profile)
    times = [
        *_times(sums),
        *(each for copy in profile.copies for each in _copy_quantities(sums, copy)),
    ]
    if not sums.names:
        return times + _tensor_share_by_names(sums)
    memory, flops = _memory_quantities(sums), _flop_quantities(sums)
    quantities = [*times, *memory, *flops, _intensity(sums, memory, flops)]
    # The achieved occupancy, not the theoretical one.
    if sums.has((_OCCUPANCY,)):
        share = sums.mean(_OCCUPANCY)
        quantities.append(sums.quantity("occupancy", "%", "time-weighted", share))
    if sums.has((_ACTIVE, _THREADS)):
        quantities.append(_warp_efficiency(sums))
    if any(map(is_tensor_pipe, sums.names)):
        quantities.append(_tensor_share(sums))
    return quantities


def _times(sums: _MetricSums) -> list[Quantity]:
    """Return times and launches; neither is known from operators of torch.profiler alone."""
    profile, times = sums.profile, list[Quantity]()
    if profile.kernels:
        launches = sum(kernel.calls for kernel in profile.kernels)
        times.append(sums.quantity("launch_count", "", "sum", _Total(launches)))
        lasted = _Total(sums.kernel_ns, sums.why_no_time)
        times.append(sums.quantity("kernel_time_ns", "ns", "sum", lasted))
    if profile.busy_ns is not None:
        times.append(sums.quantity("busy_ns", "ns", "union", _Total(profile.busy_ns)))
    if profile.launch_gap_ns is not None:
        gap = _Total(profile.launch_gap_ns)
        times.append(sums.quantity("launch_gap_ns", "ns", "difference", gap))
    return times


def _copy_quantities(sums: _MetricSums, copy: Copy) -> list[Quantity]:
    stem = "memset" if copy.kind == "memset" else f"memcpy_{copy.kind.lower()}"
    scope = counted(copy.calls, *(("memset",) if copy.kind == "memset" else ("copy", "copies")))
    why = f"{sums.profile.tool} does not record the bytes of copies in this file"
    size, is_sized = _Total(copy.total_bytes, why), copy.total_bytes is not None
    return [
        sums.quantity(f"{stem}_ns", "ns", "sum", _Total(copy.total_ns), scope=scope),
        sums.quantity(f"{stem}_bytes", "B", "sum", size, scope=scope if is_sized else ""),
    ]


def _intensity(sums: _MetricSums, memory: list[Quantity], flops: list[Quantity]) -> Quantity:
    """Return FLOPs per byte of device memory; the reason names uncounted operations."""
    traffic = next((row.value for row in memory if row.name == "dram_bytes"), None)
    known = {
        row.name: row.value for row in flops if row.name in _ALL_FLOPS and row.value is not None
    }
    ran = "flops_tensor" not in known and any(
        ran_uncounted(kernel, sums.pipes) for kernel in sums.profile.kernels
    )
    name, unit = "arithmetic_intensity", "FLOP/B"
    if not traffic or not known or ran:
        why = UNCOUNTED_TENSORS
        if traffic is None:
            why = "the bytes of device memory are not counted in this profile"
        elif not traffic:
            why = "no byte went to or from device memory"
        elif not known:
            why = "no FLOPs are counted in this profile"
        return sums.quantity(name, unit, "ratio of sums", _Total(reason=why))
    lacking = [name for name in _ALL_FLOPS if name not in known]
    return sums.quantity(
        name, unit, "ratio of sums", _Total(sum(known.values()) / traffic),
        scope=f"device memory, {sums.scope}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )  # fmt: skip


def _warp_efficiency(sums: _MetricSums) -> Quantity:
    threads = sums.total(_THREADS)
    warps = sums.total("smsp__inst_executed.sum")
    if threads.value is not None and warps.value:
        share = _Total(100 * threads.value / (_WARP_THREADS * warps.value))
        return sums.quantity("warp_efficiency", "%", "ratio of sums", share)
    share, ratio = sums.mean(f"{_ACTIVE}.pct"), sums.mean(f"{_ACTIVE}.ratio")
    if share.value is None and ratio.value is not None:
        share = _Total(100 * ratio.value / _WARP_THREADS)
    elif share.value is None and f"{_ACTIVE}.ratio" in sums.names:
        share = ratio
    return sums.quantity("warp_efficiency", "%", "time-weighted", share)


def _tensor_share(sums: _MetricSums) -> Quantity:
    """Return the share of kernel time in kernels whose counters show tensor-core use.

    If some pipe of a kernel was not counted, 0 in the others is inconclusive.
    """
    kernels = sums.profile.kernels
    used = [used_tensor_cores(kernel.metrics, sums.pipes) for kernel in kernels]
    unknown = sum(kernel.calls for kernel, use in zip(kernels, used, strict=True) if use is None)
    if not sums.kernel_ns:
        share = _Total(reason=sums.why_no_time)
    elif unknown:
        launches = counted(unknown, "launch", "launches")
        share = _Total(reason=f"not all tensor-core pipes were counted in {launches}")
    else:
        busy = sum(kernel.total_ns or 0.0 for kernel, use in zip(kernels, used, strict=True) if use)
        share = _Total(100 * busy / sums.kernel_ns)
    return sums.quantity("tensor_core_share", "%", "ratio of sums", share)


def _tensor_share_by_names(sums: _MetricSums) -> list[Quantity]:
    """Return the share of kernel time in kernels whose names suggest tensor cores."""
    if not sums.kernel_ns:
        return []
    kernels = sums.profile.kernels
    silent = sum(kernel.total_ns or 0.0 for kernel in kernels if not reveals_cores(kernel.name))
    named = sum(kernel.total_ns or 0.0 for kernel in kernels if is_tensor_core(kernel.name))
    share = _Total(100 * named / sums.kernel_ns)
    if silent > _MOST_SILENT * sums.kernel_ns:
        part = f"{100 * silent / sums.kernel_ns:.3g} %"
        share = _Total(reason=f"kernels with {part} of the time have names that give no hint")
    reason = "a guess from the names of kernels; ncu's counters show it"
    return [sums.quantity("tensor_core_share", "%", "ratio of sums", share, reason=reason)]


def _flop_quantities(sums: _MetricSums) -> list[Quantity]:
    """Return operations by precision, then tensor-core operations, in total and by type."""
    cores = [_of_cores(sums, *kind) for kind in _KINDS] if sums.has(_CORES) else []
    has_tensor_counters = any(
        is_tensor_pipe(name) or name.startswith(_TENSOR_OPS) for name in sums.names
    )
    return [*cores, *(_of_tensors(sums) if has_tensor_counters else [])]


def _of_cores(sums: _MetricSums, precision: str, letter: str, old: str) -> Quantity:
    name = f"flops_{precision}"
    if sums.profile.tool == "nvprof":
        total = sums.total(f"flop_count_{old}")
    else:
        total = _weighted(sums, [(f"{letter}{kind}", weight) for kind, weight in _WEIGHTS])
    if precision == "fp32":
        total = _with_packed(sums, total)
    is_flagged = precision == "fp16" and total.value
    flag = "packed half instructions may do twice what is counted" if is_flagged else ""
    return sums.quantity(name, "FLOP", "sum", total, reason=flag)


def _weighted(sums: _MetricSums, parts: list[tuple[str, int]]) -> _Total:
    """Return the weighted sum of instructions; unknown if one kind was not counted."""
    total = 0.0
    for kind, weight in parts:
        stem = f"sass_thread_inst_executed_op_{kind}_pred_on.sum"
        count = sums.first_total((f"smsp__{stem}", f"sm__{stem}"))
        if count.value is None:
            return count
        total += weight * count.value
    return _Total(total)


def _with_packed(sums: _MetricSums, plain: _Total) -> _Total:
    """Add Blackwell's packed FP32 instructions to the plain ones."""
    is_there = any(f"_op_{kind}_pred_on" in name for kind, _ in _PACKED for name in sums.names)
    counter = "smsp__sass_thread_inst_executed_op_ffma2_pred_on"
    if plain.value is None or not (is_there or may_have(counter, sums.profile.devices)):
        return plain
    packed = _weighted(sums, list(_PACKED))
    if packed.value is None:
        return _Total(reason=f"packed FP32 instructions are missing: {packed.reason}")
    return _Total(plain.value + packed.value)


def _of_tensors(sums: _MetricSums) -> list[Quantity]:
    if sums.chip == "gv100":
        return _on_volta(sums)
    collected = {name.removesuffix(".sum") for name in sums.names if name.endswith(".sum")}
    names = tensor_counters(sums.chip, collected)
    by_type: dict[str, list[str]] = {}
    for name in names:
        path = _PATH.fullmatch(name)
        if path:
            # Turing's counter for FP32 results has this name, although Turing only has FP16.
            kind = "fp16" if path[1] == "fp16_bf16_tf32" else path[1]
            by_type.setdefault(kind, []).append(name)
    totals = {kind: _sum_of(map(sums.total, members)) for kind, members in by_type.items()}
    units = {kind: "OP" if kind.startswith("int") else "FLOP" for kind in totals}
    each = [
        sums.quantity(f"flops_tensor_{kind}", units[kind], "sum", total)
        for kind, total in totals.items()
        if total.value is not None
    ]
    floats = [total for kind, total in totals.items() if units[kind] == "FLOP"]
    return [sums.quantity("flops_tensor", "FLOP", "sum", _all_types(sums, floats)), *each]


def _on_volta(sums: _MetricSums) -> list[Quantity]:
    """Return the operations of Volta's tensor cores, which only take FP16."""
    count = sums.total("sm__inst_executed_pipe_tensor.sum")
    if count.value is not None:
        count = _Total(_VOLTA_FLOPS * count.value)
    else:
        paths = _sum_of(map(sums.total, tensor_totals("gv100")))
        count = paths if paths.value is not None else count
    names = ("flops_tensor", "flops_tensor_fp16") if count.value else ("flops_tensor",)
    return [sums.quantity(name, "FLOP", "sum", count) for name in names]


def _all_types(sums: _MetricSums, floats: list[_Total]) -> _Total:
    """Return the sum over the types; known if each was counted or the pipe was unused."""
    if not sums.pipes:
        return _Total(reason="the counters that cover all operations of this GPU are unknown")
    whole = _sum_of(floats)
    if floats and whole.value is not None:
        return whole
    uses = (used_tensor_cores(kernel.metrics, sums.pipes) for kernel in sums.profile.kernels)
    if all(use is False for use in uses):
        return _Total(0.0)
    if not any(name.startswith(_TENSOR_OPS) for name in sums.names):
        return _Total(reason="tensor-pipe instructions give operations only on Volta")
    return whole if floats else _Total(reason="tensor-core operations were not collected")


def _memory_quantities(sums: _MetricSums) -> list[Quantity]:
    """Return the traffic of device memory and L2, each in bytes and in sectors."""
    quantities: list[Quantity] = []
    if sums.has(("dram__",)):
        read, written = _traffic(sums, "_read"), _traffic(sums, "_write")
        both = _traffic(sums, "")
        sizes, sectors = zip(read, written, strict=True)
        if both[0].value is None and None not in (read[0].value, written[0].value):
            both = (_sum_of(sizes), _Total(sum(part.value or 0.0 for part in sectors)))
        quantities += _pair(sums, "dram_read", read) + _pair(sums, "dram_write", written)
        quantities += _pair(sums, "dram", both)
        ways = ("",) if "dram__bytes.sum" in sums.names else ("_read", "_write")
        quantities += _speed(sums, "dram_read_bytes_per_s", ("_read",))
        quantities += _speed(sums, "dram_write_bytes_per_s", ("_write",))
        quantities += _speed(sums, "dram_bytes_per_s", ways)
    if sums.has(("lts__",)):
        traffic = _fill_missing(sums.total("lts__t_bytes.sum"), sums.total("lts__t_sectors.sum"))
        quantities += [*_pair(sums, "l2", traffic), _hit_rate(sums)]
    return quantities


def _traffic(sums: _MetricSums, way: str) -> tuple[_Total, _Total]:
    """Return bytes and sectors in one direction, each derived from the other if missing."""
    name = f"dram__bytes{way}"
    if way and is_lacking(name, sums.chip):
        lacking = _Total(reason="this GPU counts reads and writes of device memory together")
        return lacking, lacking
    return _fill_missing(sums.total(f"{name}.sum"), sums.total(f"dram__sectors{way}.sum"))


def _fill_missing(size: _Total, sectors: _Total) -> tuple[_Total, _Total]:
    if size.value is None and sectors.value is not None:
        return _Total(sectors.value * _SECTOR_BYTES), sectors
    if sectors.value is None and size.value is not None:
        return size, _Total(size.value / _SECTOR_BYTES)
    return size, sectors


def _pair(sums: _MetricSums, stem: str, traffic: tuple[_Total, _Total]) -> list[Quantity]:
    size, sectors = traffic
    pair = [
        sums.quantity(f"{stem}_bytes", "B", "sum", size),
        sums.quantity(f"{stem}_sectors", "transactions of 32 B", "sum", sectors),
    ]
    if size.value is None or sectors.value is None:
        return pair
    expected = sectors.value * _SECTOR_BYTES
    if abs(size.value - expected) <= _ROUNDING * max(size.value, expected):
        return pair
    why = f"{size.value:,.0f} bytes contradict {sectors.value:,.0f} sectors of 32 bytes"
    return [replace(quantity, value=None, status="refused", reason=why) for quantity in pair]


def _speed(sums: _MetricSums, name: str, ways: Sequence[str]) -> list[Quantity]:
    """Return Σ bytes ÷ Σ time, with kernel time or else the time bytes ÷ rate.

    Nothing without times and rates. Kernels that moved nothing have no rate and are ignored.
    """
    sizes = [_moved_bytes(kernel, ways) for kernel in sums.profile.kernels]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not sum(known):
        return []
    if sums.kernel_ns and sums.profile.tool != "nvprof":
        speed = _Total(_NS * sum(known) / sums.kernel_ns)
        return [sums.quantity(name, "B/s", "ratio of sums", speed)]
    timed = [
        (size, _seconds(kernel, ways))
        for size, kernel in zip(known, sums.profile.kernels, strict=True)
        if size
    ]
    seconds = [time for _, time in timed if time]
    if not seconds:
        return []
    rated = sum(size for size, time in timed if time)
    count = len(timed) - len(seconds)
    lacking = f"{count} of {len(timed)} kernels {'has' if count == 1 else 'have'} no rate"
    share = f"{100 - 100 * rated / sum(known):.3g} % of the bytes"
    why = f"{lacking}; {'it' if count == 1 else 'they'} moved {share}"
    if rated < (1 - _MOST_UNRATED) * sum(known):
        return [sums.quantity(name, "B/s", "time-weighted", _Total(reason=why))]
    reason = "each kernel is weighted with the mean rate of its launches"
    reason += f"; {why}" if len(seconds) < len(timed) else ""
    speed = _Total(rated / sum(seconds))
    return [sums.quantity(name, "B/s", "time-weighted", speed, reason=reason)]


def _moved_bytes(kernel: Kernel, ways: Sequence[str]) -> float | None:
    """Return the bytes of a kernel in these directions; None if one was not counted."""
    total = 0.0
    for way in ways:
        size = kernel.metrics.get(f"dram__bytes{way}.sum")
        sectors = kernel.metrics.get(f"dram__sectors{way}.sum")
        if size is None and sectors is None:
            return None
        total += size if size is not None else _SECTOR_BYTES * (sectors or 0.0)
    return total


def _seconds(kernel: Kernel, ways: Sequence[str]) -> float | None:
    """Return bytes ÷ rate of a kernel in s; from another direction if these have no rate."""
    for known in (ways, ("_read",), ("_write",)):
        size = _moved_bytes(kernel, known)
        rates = [kernel.metrics.get(f"dram__bytes{way}.sum.per_second") for way in known]
        rate = sum(rate or 0.0 for rate in rates)
        if size and rate and None not in rates:
            return size / rate
    return None


def _hit_rate(sums: _MetricSums) -> Quantity:
    """Return the share of L2 sectors that hit; a ratio of sums if both were counted."""
    hits, sectors = sums.total("lts__t_sectors_lookup_hit.sum"), sums.total("lts__t_sectors.sum")
    if hits.value is not None and sectors.value:
        rate = _Total(100 * hits.value / sectors.value)
        return sums.quantity("l2_hit_rate", "%", "ratio of sums", rate)
    rate = sums.mean("lts__t_sector_hit_rate.pct")
    return sums.quantity("l2_hit_rate", "%", "time-weighted", rate)
