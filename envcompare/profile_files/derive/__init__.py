"""The quantities of a profile, from its kernels, copies and times: the one place that derives them.

Sums are over launches, ratios are of sums, rates are weighted by the time of the kernels. What a
file lacks is a quantity without a value and with the reason; a family of which the file counts
nothing (FLOPs in a pass over memory) gives none, and the arithmetic intensity says so.
"""

from __future__ import annotations

import msgspec

from envcompare.gpu.tensorcores import UNCOUNTED_TENSORS, ran_uncounted
from envcompare.profile_files.derive.facts import Facts
from envcompare.profile_files.derive.flops import ALL_FLOPS, flop_quantities
from envcompare.profile_files.derive.memory import memory_quantities
from envcompare.profile_files.derive.rates import rate_quantities
from envcompare.run_folder.profiles import Copy, Kernel, Profile, Quantity
from envcompare.text import counted


def with_quantities(profile: Profile) -> Profile:
    """Return the profile with all quantities that follow from it; what its reader said stays."""
    said = {one.name for one in profile.quantities}
    derived = [one for one in _derived(profile) if one.name not in said]
    return msgspec.structs.replace(
        profile,
        kernels=tuple(_counted(profile, kernel) for kernel in profile.kernels),
        quantities=(*profile.quantities, *derived),
    )


def _counted(profile: Profile, kernel: Kernel) -> Kernel:
    """Return a kernel with traffic and operations of its own beside the metrics of its tool."""
    if not kernel.metrics:
        return kernel
    facts = Facts.of(msgspec.structs.replace(profile, kernels=(kernel,)))
    found = (*memory_quantities(facts), *flop_quantities(facts))
    sums = {one.name: one.value for one in found if one.value is not None and one.rule == "sum"}
    return msgspec.structs.replace(kernel, metrics={**kernel.metrics, **sums})


def _derived(profile: Profile) -> list[Quantity]:
    facts = Facts.of(profile)
    found = [*_times(facts), *(one for copy in profile.copies for one in _copied(facts, copy))]
    if facts.names:
        memory, flops = memory_quantities(facts), flop_quantities(facts)
        found += [*memory, *flops, _intensity(facts, memory, flops)]
    return [*found, *rate_quantities(facts)]


def _times(facts: Facts) -> list[Quantity]:
    """Return times and launches; operators of torch.profiler alone tell neither."""
    profile, found = facts.profile, []
    if profile.kernels:
        found.append(facts.ok("launch_count", facts.launches, "", "sum"))
        if facts.kernel_ns is None:
            found.append(facts.missing("kernel_time_ns", "ns", "sum", facts.why_no_time))
        else:
            found.append(facts.ok("kernel_time_ns", facts.kernel_ns, "ns", "sum"))
    if profile.busy_ns is not None:
        found.append(facts.ok("busy_ns", profile.busy_ns, "ns", "union"))
    if profile.launch_gap_ns is not None:
        found.append(facts.ok("launch_gap_ns", profile.launch_gap_ns, "ns", "difference"))
    return found


def _copied(facts: Facts, copy: Copy) -> list[Quantity]:
    stem = "memset" if copy.kind == "memset" else f"memcpy_{copy.kind.lower()}"
    scope = counted(copy.calls, *(("memset",) if copy.kind == "memset" else ("copy", "copies")))
    time = facts.ok(f"{stem}_ns", copy.total_ns, "ns", "sum", scope=scope)
    if copy.total_bytes is None:
        reason = f"{facts.profile.tool} does not tell the bytes of copies in this file"
        return [time, facts.missing(f"{stem}_bytes", "B", "sum", reason)]
    return [time, facts.ok(f"{stem}_bytes", copy.total_bytes, "B", "sum", scope=scope)]


def _intensity(facts: Facts, memory: list[Quantity], flops: list[Quantity]) -> Quantity:
    """Return FLOPs per byte of device memory, with what could not be counted said."""
    traffic = next((one for one in memory if one.name == "dram_bytes"), None)
    parts = [
        one for one in flops if one.unit == "FLOP" and not one.name.startswith("flops_tensor_")
    ]
    counted = [one.value for one in parts if one.value is not None]
    have = {one.name for one in parts if one.value is not None}
    ran = [] if "flops_tensor" in have else list(filter(ran_uncounted, facts.profile.kernels))
    why = _why_no_intensity(traffic, counted) or (UNCOUNTED_TENSORS if ran else "")
    if why or traffic is None or not traffic.value:
        return facts.missing("arithmetic_intensity", "FLOP/B", "ratio of sums", why)
    lacking = [name for name in ALL_FLOPS if name not in have]
    return facts.ok(
        "arithmetic_intensity",
        sum(counted) / traffic.value,
        "FLOP/B",
        "ratio of sums",
        scope=f"device memory, {facts.scope}",
        reason=f"without {', '.join(lacking)}, which are not counted" if lacking else "",
    )


def _why_no_intensity(traffic: Quantity | None, counted: list[float]) -> str:
    if traffic is None or traffic.value is None:
        return "the bytes of device memory are not counted in this profile"
    if not traffic.value:
        return "no byte went to or from device memory"
    return "" if counted else "no FLOPs are counted in this profile"
