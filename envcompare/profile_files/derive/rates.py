"""Occupancy, active lanes of a warp, and how much of the time tensor cores were at work."""

from __future__ import annotations

from typing import Final

from envcompare.gpu.tensorcores import is_tensor_core
from envcompare.profile_files.derive.facts import Facts
from envcompare.run_folder.profiles import Quantity

_WARP_THREADS: Final = 32
_OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
_ACTIVE: Final = "smsp__thread_inst_executed_per_inst_executed"
_THREADS: Final = "smsp__thread_inst_executed.sum"
_PIPES: Final = ("sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tc.sum")


def rate_quantities(facts: Facts) -> list[Quantity]:
    """Return the rates of a profile; one without counters has the guess of tensor cores alone."""
    if not facts.names:
        return _tensor_share_by_names(facts)
    found = [_occupancy(facts)] if facts.has((_OCCUPANCY,)) else []
    found += [_warp_efficiency(facts)] if facts.has((_ACTIVE, _THREADS)) else []
    return found + ([_tensor_share(facts)] if facts.has(_PIPES) else [])


def _occupancy(facts: Facts) -> Quantity:
    """Return the share of warps that were active: measured, never what a launch would allow."""
    rate = facts.mean(_OCCUPANCY)
    if rate.value is None:
        return facts.missing("occupancy", "%", "time-weighted", rate.reason)
    return facts.ok("occupancy", rate.value, "%", "time-weighted")


def _warp_efficiency(facts: Facts) -> Quantity:
    threads = facts.total(_THREADS)
    warps = facts.total("smsp__inst_executed.sum")
    if threads.value is not None and warps.value:
        value = 100 * threads.value / (_WARP_THREADS * warps.value)
        return facts.ok("warp_efficiency", value, "%", "ratio of sums")
    percent, ratio = facts.mean(f"{_ACTIVE}.pct"), facts.mean(f"{_ACTIVE}.ratio")
    if percent.value is not None:
        return facts.ok("warp_efficiency", percent.value, "%", "time-weighted")
    if ratio.value is not None:
        value = 100 * ratio.value / _WARP_THREADS
        return facts.ok("warp_efficiency", value, "%", "time-weighted")
    reason = ratio.reason if f"{_ACTIVE}.ratio" in facts.names else percent.reason
    return facts.missing("warp_efficiency", "%", "time-weighted", reason)


def _tensor_share(facts: Facts) -> Quantity:
    """Return the share of kernel time in kernels that used the tensor pipe."""
    name, unit = "tensor_core_share", "%"
    pipes = [pipe for pipe in _PIPES if pipe in facts.names]
    if not facts.kernel_ns:
        return facts.missing(name, unit, "ratio of sums", facts.why_no_time)
    lacking = next((t for t in map(facts.total, pipes) if t.value is None), None)
    if lacking is not None:
        return facts.missing(name, unit, "ratio of sums", lacking.reason)
    busy = sum(
        kernel.total_ns or 0.0
        for kernel in facts.profile.kernels
        if any(kernel.metrics[pipe] > 0 for pipe in pipes)
    )
    return facts.ok(name, 100 * busy / facts.kernel_ns, unit, "ratio of sums")


def _tensor_share_by_names(facts: Facts) -> list[Quantity]:
    """Return the share of kernel time in kernels whose names speak of tensor cores."""
    if not facts.kernel_ns:
        return []
    kernels = facts.profile.kernels
    named = sum(one.total_ns or 0.0 for one in kernels if is_tensor_core(one.name))
    value = 100 * named / facts.kernel_ns
    reason = "a guess by the names of kernels; counters of ncu tell it"
    return [facts.ok("tensor_core_share", value, "%", "ratio of sums", reason=reason)]
