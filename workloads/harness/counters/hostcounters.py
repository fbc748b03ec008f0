"""The cost of k steps on the host: faults, switches, calls, and counters of the processor."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from typing import Any, Callable

from harness.blockclock import used
from harness.counters import rapl
from harness.counters.perfevents import (
    HARDWARE,
    RAW,
    SOFTWARE,
    TASK_CLOCK,
    TRACEPOINT,
    Counted,
    Counters,
    Event,
)
from harness.facts.cgroups import group_of, memory_peak_bytes, read_text, throttled_ns
from harness.facts.machine import cpu_fields
from harness.torchparts import device_in_use, wait_for_device

# Numbers of perf_sw_ids and perf_hw_id (linux/perf_event.h).
SOFTWARE_EVENTS = (
    Event("page_faults", SOFTWARE, 2, in_user_space=True),
    Event("context_switches", SOFTWARE, 3),
    Event("cpu_migrations", SOFTWARE, 4),
    TASK_CLOCK,
)
HARDWARE_EVENTS = tuple(
    Event(name, HARDWARE, number, in_user_space=True)
    for number, name in enumerate(
        ("cycles", "instructions", "cache_references", "cache_misses", "branches", "branch_misses")
    )
)
# FP_ARITH_INST_RETIRED from Broadwell on: umask → lanes. A fused multiply-add counts twice.
INTEL_EVENT = 0xC7
INTEL_LANES = {
    "cpu_flops_fp64": {0x01: 1, 0x04: 2, 0x10: 4, 0x40: 8},
    "cpu_flops_fp32": {0x02: 1, 0x08: 4, 0x20: 8, 0x80: 16},
}
INTEL_MODELS = (61, 71, 79, 86, 78, 94, 142, 158, 165, 166)  # those without AVX-512
AMD_EVENT = 0x03  # FpRetSseAvxOps of Zen to Zen 4, in FLOP; the first Zen tells precisions apart
CPU_FLOPS = ("cpu_flops_fp64", "cpu_flops_fp32", "cpu_flops")
NOT_KNOWN = "how this processor counts FLOPs is not known"
TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
CALLS_ID = "events/raw_syscalls/sys_enter/id"
NO_TRACEFS = "the kernel's tracefs cannot be read: it is mounted for root alone, or not at all"
NO_TRACEFS_HINT = "run as root of the host with /sys/kernel/tracing mounted"
NO_IO = "/proc/self/io cannot be read"
NO_GROUP = "the process does not have its own control group"


def count(step: Callable[[], Any], k: int) -> dict[str, Any]:
    """Run k steps; return each counter with its value, or with the reason why it has none.

    All threads of this process are counted, and those they start.
    """
    flops, weights = _flops_events()
    calls = _calls_event()
    events = [*([calls] if calls else []), *SOFTWARE_EVENTS, *HARDWARE_EVENTS, *flops]
    device = device_in_use()
    wait_for_device(device)
    with contextlib.closing(Counters(events)) as counters:
        # What reads the one must not be counted by the other: outwards in the same order.
        quota_ns, energy, before = throttled_ns(group_of("cpu")), rapl.read(), _plain()
        counters.start()
        for _ in range(k):
            step()
        wait_for_device(device)  # as the timing does: waiting for a GPU is a part of the cost
        counters.stop()
        after = _plain()
        before["throttled_ns"], after["throttled_ns"] = quota_ns, throttled_ns(group_of("cpu"))
        counted = {**_differences(before, after), **_with_flops(counters.read(), weights)}
    counted["cpu_energy_j"] = _energy(energy, rapl.read())
    if calls is None:
        counted["system_calls"] = Counted(None, reason=NO_TRACEFS, hint=NO_TRACEFS_HINT)
    counted["max_rss_bytes"] = Counted(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, scope="peak of the process"
    )
    peak = memory_peak_bytes()
    counted["cgroup_peak_bytes"] = Counted(
        peak,
        scope="peak of its control group, page cache included",
        reason="" if peak else NO_GROUP,
    )
    hints = dict.fromkeys(one.hint for one in counted.values() if one.hint)
    found = {name: one._asdict() for name, one in counted.items()}
    return {"counters": found, "hint": "; ".join(hints)}


def _energy(before: rapl.Reading, after: rapl.Reading) -> Counted:
    taken = rapl.joules(before, after)
    if taken is None:
        return Counted(None, reason=after.reason or rapl.ABSENT, hint=after.hint)
    return Counted(taken, scope="whole processors, whatever else runs included")


def _plain() -> dict[str, int | None]:
    """Return the values of /proc/self/io and rusage, which need no perf event."""
    calls = _calls()
    return {
        **used(),
        "read_calls": calls.get("syscr"),
        "write_calls": calls.get("syscw"),
    }


def _calls() -> dict[str, int]:
    """Return the fields of /proc/self/io in one read, since the read itself is counted."""
    try:
        file = os.open("/proc/self/io", os.O_RDONLY)
    except OSError:
        return {}
    try:
        text = os.read(file, 4096).decode()
    except OSError:
        return {}
    finally:
        os.close(file)
    return {name: int(value) for name, value in re.findall(r"^(\w+): (\d+)$", text, re.MULTILINE)}


def _differences(before: dict[str, int | None], after: dict[str, int | None]) -> dict[str, Counted]:
    reasons = {"read_calls": NO_IO, "write_calls": NO_IO, "throttled_ns": NO_GROUP}
    found = {}
    for name, end in after.items():
        start = before[name]
        if start is None or end is None:
            found[name] = Counted(None, reason=reasons.get(name, ""))
        else:
            # the look at the counter before the steps was counted by itself, after it was seen
            found[name] = Counted(end - start - (name == "read_calls"))
    return found


def _calls_event() -> Event | None:
    """Return the tracepoint that every system call passes, where its number can be read."""
    numbers = (read_text(f"{folder}/{CALLS_ID}") for folder in TRACEFS)
    number = next((one for one in numbers if one), None)
    return Event("system_calls", TRACEPOINT, int(number)) if number else None


Weights = dict[str, dict[str, int]]


def _flops_events() -> tuple[list[Event], Weights]:
    """Return what counts FLOPs on this processor, and how the counts add up to each of its sums."""
    fields = cpu_fields()
    family, model = (int(fields.get(name, -1)) for name in ("cpu family", "model"))
    has_avx512 = "avx512f" in fields.get("flags", "").split()
    vendor = fields.get("vendor_id")
    if vendor == "GenuineIntel" and family == 6 and (has_avx512 or model in INTEL_MODELS):
        return _intel()
    if vendor == "AuthenticAMD" and family in {23, 25}:
        umask = 0xFF if family == 23 and model < 0x30 else 0x0F
        event = Event("cpu_flops", RAW, umask << 8 | AMD_EVENT, in_user_space=True)
        return [event], {"cpu_flops": {"cpu_flops": 1}}
    return [], {}


def _intel() -> tuple[list[Event], Weights]:
    weights = {
        total: {f"fp_arith_{umask:02x}": lanes for umask, lanes in parts.items()}
        for total, parts in INTEL_LANES.items()
    }
    masks = [umask for parts in INTEL_LANES.values() for umask in parts]
    return [
        Event(f"fp_arith_{umask:02x}", RAW, umask << 8 | INTEL_EVENT, in_user_space=True)
        for umask in masks
    ], weights


def _with_flops(found: dict[str, Counted], weights: Weights) -> dict[str, Counted]:
    """Return the counters with sums of FLOPs in the place of their parts."""
    parts = {name for names in weights.values() for name in names}
    plain = {name: one for name, one in found.items() if name not in parts}
    if not weights:
        return {**plain, "cpu_flops": Counted(None, reason=NOT_KNOWN)}
    for total, names in weights.items():
        plain[total] = _sum([(found[name], factor) for name, factor in names.items()])
    return plain


def _sum(parts: list[tuple[Counted, int]]) -> Counted:
    """Return the weighted sum, or no value if a part was not counted."""
    lacking = next((one for one, _ in parts if one.value is None), None)
    if lacking is not None:
        return lacking
    total = sum((one.value or 0) * factor for one, factor in parts)
    scopes = dict.fromkeys(one.scope for one, _ in parts if one.scope)
    is_whole = all(one.has_kernel for one, _ in parts)
    return Counted(total, scope=", ".join(scopes), has_kernel=is_whole)
