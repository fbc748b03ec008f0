"""The quantities of a profile, from its kernels, copies and times: the one place that derives them.

Sums are over launches, ratios are of sums, rates are weighted by the time of the kernels. What a
file lacks is a quantity without a value and with the reason; a family of which the file counts
nothing (FLOPs in a pass over memory) gives none, and the arithmetic intensity says so.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from envcompare.gpu.kernelnames import UNCOUNTED_TENSORS, is_tensor_core, ran_uncounted
from envcompare.profile_files.derive.metricsums import MetricSums, sum_of
from envcompare.profile_files.derive.work import ALL_FLOPS, flop_quantities, memory_quantities
from envcompare.run_folder.profiles import Copy, Kernel, Profile, Quantity
from envcompare.text import counted

_WARP_THREADS: Final = 32
_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ACTIVE: Final = "smsp__thread_inst_executed_per_inst_executed"
_THREADS: Final = "smsp__thread_inst_executed.sum"
_PIPES: Final = ("sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tc.sum")


def with_quantities(profile: Profile) -> Profile:
    """Return the profile with all quantities that follow from it; what its reader said stays."""
    said = {quantity.name for quantity in profile.quantities}
    derived = [quantity for quantity in _derived(profile) if quantity.name not in said]
    return replace(
        profile,
        kernels=tuple(_counted(profile, kernel) for kernel in profile.kernels),
        quantities=(*profile.quantities, *derived),
    )


def _counted(profile: Profile, kernel: Kernel) -> Kernel:
    """Return a kernel with traffic and operations of its own beside the metrics of its tool."""
    if not kernel.metrics:
        return kernel
    sums = MetricSums.of(replace(profile, kernels=(kernel,)))
    work = {
        quantity.name: quantity.value
        for quantity in (*memory_quantities(sums), *flop_quantities(sums))
        if quantity.value is not None and quantity.rule == "sum"
    }
    return replace(kernel, metrics={**kernel.metrics, **work})


def _derived(profile: Profile) -> list[Quantity]:
    sums = MetricSums.of(profile)
    times = [*_times(sums), *(one for copy in profile.copies for one in _copied(sums, copy))]
    if not sums.names:
        return times + _tensor_share_by_names(sums)
    memory, flops = memory_quantities(sums), flop_quantities(sums)
    return [*times, *memory, *flops, _intensity(sums, memory, flops), *_rates(sums)]


def _times(sums: MetricSums) -> list[Quantity]:
    """Return times and launches; operators of torch.profiler alone tell neither."""
    profile, times = sums.profile, list[Quantity]()
    if profile.kernels:
        times.append(sums.ok("launch_count", sums.launches, "", "sum"))
        if sums.kernel_ns is None:
            times.append(sums.missing("kernel_time_ns", "ns", "sum", sums.why_no_time))
        else:
            times.append(sums.ok("kernel_time_ns", sums.kernel_ns, "ns", "sum"))
    if profile.busy_ns is not None:
        times.append(sums.ok("busy_ns", profile.busy_ns, "ns", "union"))
    if profile.launch_gap_ns is not None:
        times.append(sums.ok("launch_gap_ns", profile.launch_gap_ns, "ns", "difference"))
    return times


def _copied(sums: MetricSums, copy: Copy) -> list[Quantity]:
    stem = "memset" if copy.kind == "memset" else f"memcpy_{copy.kind.lower()}"
    scope = counted(copy.calls, *(("memset",) if copy.kind == "memset" else ("copy", "copies")))
    time = sums.ok(f"{stem}_ns", copy.total_ns, "ns", "sum", scope=scope)
    if copy.total_bytes is None:
        reason = f"{sums.profile.tool} does not tell the bytes of copies in this file"
        return [time, sums.missing(f"{stem}_bytes", "B", "sum", reason)]
    return [time, sums.ok(f"{stem}_bytes", copy.total_bytes, "B", "sum", scope=scope)]


def _intensity(sums: MetricSums, memory: list[Quantity], flops: list[Quantity]) -> Quantity:
    """Return FLOPs per byte of device memory, with what could not be counted said."""
    traffic = next((row.value for row in memory if row.name == "dram_bytes"), None)
    known = {
        row.name: row.value for row in flops if row.name in ALL_FLOPS and row.value is not None
    }
    ran = "flops_tensor" not in known and any(map(ran_uncounted, sums.profile.kernels))
    why = _why_no_intensity(traffic, has_flops=bool(known)) or (UNCOUNTED_TENSORS if ran else "")
    if why or not traffic:
        return sums.missing("arithmetic_intensity", "FLOP/B", "ratio of sums", why)
    lacking = [name for name in ALL_FLOPS if name not in known]
    return sums.ok(
        "arithmetic_intensity",
        sum(known.values()) / traffic,
        "FLOP/B",
        "ratio of sums",
        scope=f"device memory, {sums.scope}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )


def _why_no_intensity(traffic: float | None, *, has_flops: bool) -> str:
    if traffic is None:
        return "the bytes of device memory are not counted in this profile"
    if not traffic:
        return "no byte went to or from device memory"
    return "" if has_flops else "no FLOPs are counted in this profile"


def _rates(sums: MetricSums) -> list[Quantity]:
    """Return occupancy, active lanes of a warp, and how much of the time tensor cores ran."""
    rates = [_occupancy(sums)] if sums.has((_OCCUPANCY,)) else []
    rates += [_warp_efficiency(sums)] if sums.has((_ACTIVE, _THREADS)) else []
    return rates + ([_tensor_share(sums)] if sums.has(_PIPES) else [])


def _occupancy(sums: MetricSums) -> Quantity:
    """Return the share of warps that were active: measured, never what a launch would allow."""
    rate = sums.mean(_OCCUPANCY)
    if rate.value is None:
        return sums.missing("occupancy", "%", "time-weighted", rate.reason)
    return sums.ok("occupancy", rate.value, "%", "time-weighted")


def _warp_efficiency(sums: MetricSums) -> Quantity:
    threads = sums.total(_THREADS)
    warps = sums.total("smsp__inst_executed.sum")
    if threads.value is not None and warps.value:
        value = 100 * threads.value / (_WARP_THREADS * warps.value)
        return sums.ok("warp_efficiency", value, "%", "ratio of sums")
    percent, ratio = sums.mean(f"{_ACTIVE}.pct"), sums.mean(f"{_ACTIVE}.ratio")
    if percent.value is not None:
        return sums.ok("warp_efficiency", percent.value, "%", "time-weighted")
    if ratio.value is not None:
        value = 100 * ratio.value / _WARP_THREADS
        return sums.ok("warp_efficiency", value, "%", "time-weighted")
    reason = ratio.reason if f"{_ACTIVE}.ratio" in sums.names else percent.reason
    return sums.missing("warp_efficiency", "%", "time-weighted", reason)


def _tensor_share(sums: MetricSums) -> Quantity:
    """Return the share of kernel time in kernels that used the tensor pipe."""
    name, unit = "tensor_core_share", "%"
    pipes = [pipe for pipe in _PIPES if pipe in sums.names]
    if not sums.kernel_ns:
        return sums.missing(name, unit, "ratio of sums", sums.why_no_time)
    used = sum_of(map(sums.total, pipes))
    if used.value is None:
        return sums.missing(name, unit, "ratio of sums", used.reason)
    busy = sum(
        kernel.total_ns or 0.0
        for kernel in sums.profile.kernels
        if any(kernel.metrics[pipe] > 0 for pipe in pipes)
    )
    return sums.ok(name, 100 * busy / sums.kernel_ns, unit, "ratio of sums")


def _tensor_share_by_names(sums: MetricSums) -> list[Quantity]:
    """Return the share of kernel time in kernels whose names speak of tensor cores."""
    if not sums.kernel_ns:
        return []
    kernels = sums.profile.kernels
    named = sum(kernel.total_ns or 0.0 for kernel in kernels if is_tensor_core(kernel.name))
    value = 100 * named / sums.kernel_ns
    reason = "a guess by the names of kernels; counters of ncu tell it"
    return [sums.ok("tensor_core_share", value, "%", "ratio of sums", reason=reason)]
