"""The words for each quantity a profile can hold, in the field's terms."""

from __future__ import annotations

import re
from typing import Final

_COUNTED: Final[dict[str, str]] = {
    "flops_fp64": "FLOP, FP64, CUDA cores",
    "flops_fp32": "FLOP, FP32, CUDA cores",
    "flops_fp16": "FLOP, FP16, CUDA cores",
    "flops_tensor": "FLOP, tensor cores",
    "flops_model": "FLOP of the model",
    "dram_read_bytes": "device memory, read",
    "dram_write_bytes": "device memory, written",
    "dram_bytes": "device memory, both ways",
    "dram_read_sectors": "device memory, read, 32 B transactions",
    "dram_write_sectors": "device memory, written, 32 B transactions",
    "dram_sectors": "device memory, 32 B transactions",
    "dram_read_bytes_per_s": "device memory throughput, read",
    "dram_write_bytes_per_s": "device memory throughput, written",
    "dram_bytes_per_s": "device memory throughput, both ways",
    "l2_bytes": "L2 cache",
    "l2_sectors": "L2 cache, 32 B transactions",
    "l2_hit_rate": "L2 hit rate",
    "arithmetic_intensity": "arithmetic intensity",
    "occupancy": "occupancy achieved",
    "estimated_occupancy": "occupancy, estimated from launch shapes",
    "warp_efficiency": "warp execution efficiency",
    "kernel_time_ns": "kernel time",
    "kernel_busy_ns": "GPU busy with kernels",
    "busy_ns": "GPU busy",
    "span_ns": "first start to last end on the GPU",
    "launch_count": "kernel launches",
    "launch_gap_ns": "GPU idle between launches",
    "nccl_share": "NCCL, share of kernel time",
    "rccl_share": "RCCL, share of kernel time",
    "collective_share": "collectives, share of kernel time",
    "collective_exposed_ns": "collectives, exposed",
    "nccl_exposed_ns": "NCCL, exposed",
    "tensor_core_share": "tensor-core kernels, share of kernel time",
    "memset_ns": "memset, time",
    "memset_bytes": "memset, bytes",
    "user_ns": "CPU time of the program",
    "sys_ns": "CPU time of the operating system",
    "task_clock_ns": "CPU time by the scheduler's clock",
    "throttled_ns": "stopped by a CPU quota",
    "system_calls": "system calls",
    "read_calls": "system calls that read",
    "write_calls": "system calls that write",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
    "page_faults": "page faults",
    "context_switches": "context switches",
    "voluntary_switches": "voluntary context switches",
    "involuntary_switches": "involuntary context switches",
    "cpu_migrations": "migrations between CPUs",
    "cycles": "CPU cycles",
    "instructions": "CPU instructions",
    "cache_references": "references to the CPU's last cache",
    "cache_misses": "misses of the CPU's last cache",
    "branches": "branch instructions",
    "branch_misses": "branches mispredicted",
    "cpu_flops": "FLOP, CPU",
    "cpu_flops_fp32": "FLOP, FP32, CPU",
    "cpu_flops_fp64": "FLOP, FP64, CPU",
    "cpu_energy_j": "energy of the CPU",
    "max_rss_bytes": "peak resident memory",
    "cgroup_peak_bytes": "peak memory of the control group",
}
_POWER: Final[dict[str, str]] = {
    "power_w": "power",
    "energy_per_step_j": "energy per step",
    "energy_per_sample_j": "energy per sample",
    "sm_clock_mhz": "clock of the multiprocessors",
    "memory_clock_mhz": "clock of the memory",
    "temperature_c": "temperature, highest",
    "throttled_share": "time with clocks held down",
    "gpu_utilization_share": "time with a kernel running",
}
_WORDS: Final = _COUNTED | _POWER
PEAKS: Final = frozenset({"max_rss_bytes", "cgroup_peak_bytes"})
"""What is printed in the binary units of memory; traffic has decimal ones, as bandwidths do."""
_WAYS: Final = {
    "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD", "htoh": "HtoH", "ptop": "PtoP",
    "unified": "unified memory", "other": "other",
}  # fmt: skip
_ENDS: Final = {"ns": "time", "bytes": "bytes"}
_TENSOR: Final = "flops_tensor_"
_USER: Final = "_user"
_NAMES: Final = re.compile(rf"\b(?:{'|'.join(name for name in _WORDS if '_' in name)})\b")


def is_power(name: str) -> bool:
    """Say whether a quantity is of the device's power, energy, clocks or heat."""
    return name in _POWER


def quantity_name(name: str) -> str:
    """Return a quantity in words; one that is not known by its name."""
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith(_TENSOR):
        return _of_tensors(name.removeprefix(_TENSOR))
    if name.startswith("memcpy_"):
        return _of_copies(name) or name
    whole = name.removesuffix(_USER)
    return f"{_WORDS[whole]}, in user space" if whole in _WORDS else name


def in_words(text: str) -> str:
    """Return a reason with each quantity it names in words, quoted since those hold commas."""
    return _NAMES.sub(lambda found: f"“{quantity_name(found[0])}”", text)


def _of_tensors(kind: str) -> str:
    counted = "operations" if kind.startswith("int") else "FLOP"
    return f"{counted}, {kind.upper().replace('_', '/')}, tensor cores"


def _of_copies(name: str) -> str:
    """Return "memcpy HtoD, bytes"; empty for what is no copy."""
    _, _, rest = name.partition("_")
    way, _, end = rest.partition("_")
    return f"memcpy {_WAYS[way]}, {_ENDS[end]}" if way in _WAYS and end in _ENDS else ""
