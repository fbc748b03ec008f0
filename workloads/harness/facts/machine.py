"""The machine as a process sees it: processor, kernel and memory."""

from __future__ import annotations

import os
import re
from typing import Any

from harness.attempts import attempt, text_hash
from harness.facts.cgroups import read_text, within

_CPUS = "/sys/devices/system/cpu"
_HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage"
_DMI = "/sys/class/dmi/id"
_CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def machine() -> dict[str, Any]:
    """Return the facts of the machine; on one host they are the same in every environment."""
    return {**_kernel(), **_cpu(), "hypervisor": _hypervisor(), **_vulnerabilities(), **_memory()}


def _kernel() -> dict[str, Any]:
    system = os.uname()
    return {
        "arch": system.machine,
        "kernel.release": system.release,
        "kernel.version": system.version,
        "kernel.clocksource": read_text(_CLOCK),
        "os.release": attempt(os_release),
    }


def os_release(root: str = "") -> str | None:
    """Return the name of the distribution whose files are below a root."""
    for line in (read_text(within(root, "/etc/os-release")) or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"'")
    return None


def cpu_fields() -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    info = (read_text("/proc/cpuinfo") or "").split("\n\n")[0]
    return dict(re.findall(r"^([\w ]+?)\s*: (.*)$", info, re.MULTILINE))


def _cpu() -> dict[str, Any]:
    fields = cpu_fields()
    flags = fields.get("flags") or fields.get("Features")  # the word on x86, the word on ARM
    return {
        "cpu.model": fields.get("model name"),
        "cpu.family": cpu_family(fields),
        "cpu.microcode": fields.get("microcode"),
        "cpu.flags_sha256": flags and text_hash(" ".join(sorted(flags.split()))),
        "cpu.count": os.cpu_count(),
        "cpu.affinity": attempt(lambda: sorted(os.sched_getaffinity(0))),
        "cpu.governor": read_text(f"{_CPUS}/cpu0/cpufreq/scaling_governor"),
        "cpu.boost": attempt(_boost),
        "smt.active": attempt(lambda: bool(int(read_text(f"{_CPUS}/smt/active") or ""))),
        "numa.nodes": attempt(_numa_nodes),
    }


def cpu_family(fields: dict[str, str]) -> str | None:
    """Return "vendor, family 25, model 1, stepping 1", or on ARM "0x41, part 0xd40, variant 0x1".

    A cloud's name of a processor, such as "AMD EPYC", is that of several generations.
    """
    names: tuple[str, ...] = ("vendor_id", "cpu family", "model", "stepping")
    if names[1] not in fields:
        names = ("CPU implementer", "CPU part", "CPU variant")
    if not all(name in fields for name in names):
        return None
    words = (f"{name.split()[-1]} {fields[name]}" for name in names[1:])
    return ", ".join((fields[names[0]], *words))


def _hypervisor() -> str | None:
    """Return the machine type of a hypervisor, or that there is none; known only on x86."""
    flags = cpu_fields().get("flags")
    if flags is None:
        return None
    if "hypervisor" not in flags.split():
        return "none"
    names = (read_text(f"{_DMI}/{name}") for name in ("sys_vendor", "product_name"))
    vendor, product = (name.strip() if name else "" for name in names)
    named = product if product.startswith(vendor) else f"{vendor} {product}".strip()
    return named or "one that gives no name"


def _boost() -> bool | None:
    """Return whether the clock may rise above its nominal rate; Intel's driver says the inverse."""
    no_turbo = read_text(f"{_CPUS}/intel_pstate/no_turbo")
    if no_turbo is not None:
        return no_turbo == "0"
    boost = read_text(f"{_CPUS}/cpufreq/boost")
    return None if boost is None else boost == "1"


def _numa_nodes() -> int | None:
    nodes = [name for name in os.listdir("/sys/devices/system/node") if name[4:].isdigit()]
    return len(nodes) or None


def _vulnerabilities() -> dict[str, Any]:
    """Return how the kernel mitigates each flaw of the processor it knows."""
    folder = f"{_CPUS}/vulnerabilities"
    names = attempt(lambda: sorted(os.listdir(folder))) or []
    return {f"vulnerabilities.{name}": read_text(f"{folder}/{name}") for name in names}


def _memory() -> dict[str, Any]:
    total = re.search(r"MemTotal:\s+(\d+) kB", read_text("/proc/meminfo") or "")
    return {
        "memory.total_bytes": int(total[1]) * 1024 if total else None,
        "thp": _chosen(f"{_HUGE_PAGES}/enabled"),
        "thp.defrag": _chosen(f"{_HUGE_PAGES}/defrag"),
        "shm.bytes": attempt(shared_memory_bytes),
    }


def _chosen(path: str) -> str | None:
    """Return the word in brackets, which is the one of several that holds."""
    found = re.search(r"\[([\w+]+)\]", read_text(path) or "")
    return found[1] if found else None


def shared_memory_bytes(root: str = "") -> int:
    """Return the size of the shared memory below a root."""
    disk = os.statvfs(f"{root}/dev/shm")  # noqa: S108  its size is asked for
    return disk.f_frsize * disk.f_blocks
