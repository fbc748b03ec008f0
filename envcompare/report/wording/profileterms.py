"""The field's terms for the contents of profiles: names of quantities, and remarks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from envcompare.run_folder.profiles import HELPERS_WINDOW, Note, NoteKind, helper_of
from envcompare.text import counted

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
    "collective_ns": "collectives, time",
    "collective_exposed_ns": "collectives, exposed",
    "collective_step_share": "collectives, share of a step",
    "collective_exposed_step_share": "collectives exposed, share of a step",
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
    "power_against_counter_share": "energy by power samples, of that by the counter",
    "sm_clock_mhz": "clock of the multiprocessors",
    "memory_clock_mhz": "clock of the memory",
    "temperature_c": "temperature, highest",
    "throttled_share": "time with clocks held down",
    "gpu_utilization_share": "time with a kernel running",
}
_WORDS: Final = _COUNTED | _POWER
PEAKS: Final = frozenset({"max_rss_bytes", "cgroup_peak_bytes"})
"""Quantities printed in binary units like memory; traffic has decimal ones like bandwidths."""
_WAYS: Final = {
    "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD", "htoh": "HtoH", "ptop": "PtoP",
    "unified": "unified memory", "other": "other",
}  # fmt: skip
_ENDS: Final = {"ns": "time", "bytes": "bytes"}
_TENSOR: Final = "flops_tensor_"
_USER: Final = "_user"
_NAMES: Final = re.compile(rf"\b(?:{'|'.join(name for name in _WORDS if '_' in name)})\b")


def is_power(name: str) -> bool:
    """Say whether a quantity describes power, energy, clocks or temperature."""
    return name in _POWER


def quantity_name(name: str) -> str:
    """Return a quantity in words; an unknown quantity keeps its name."""
    if name in _WORDS:
        return _WORDS[name]
    if name.startswith(_TENSOR):
        return _of_tensors(name.removeprefix(_TENSOR))
    if name == HELPERS_WINDOW:
        return "time in which helper programs were measured"
    if program := helper_of(name):
        return f"CPU time of {program}, outside the workload"
    if name.startswith("memcpy_"):
        return _of_copies(name) or name
    whole = name.removesuffix(_USER)
    return f"{_WORDS[whole]}, in user space" if whole in _WORDS else name


def in_words(text: str) -> str:
    """Return a reason with its quantities in words, quoted because they contain commas."""
    return _NAMES.sub(lambda match: f"“{quantity_name(match[0])}”", text)


def _of_tensors(kind: str) -> str:
    counted = "operations" if kind.startswith("int") else "FLOP"
    return f"{counted}, {kind.upper().replace('_', '/')}, tensor cores"


def _of_copies(name: str) -> str:
    """Return "memcpy HtoD, bytes"; empty if the quantity is not a copy."""
    _, _, rest = name.partition("_")
    way, _, end = rest.partition("_")
    return f"memcpy {_WAYS[way]}, {_ENDS[end]}" if way in _WAYS and end in _ENDS else ""


_NOUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "gpus": ("GPU",),
    "graphs": ("CUDA graph",),
    "launches": ("launch", "launches"),
    "processes": ("process", "processes"),
    "rows": ("row",),
}
"""Quantities that are counts, with what they count."""
_SENTENCES: Final[Mapping[NoteKind, str]] = {
    # Kineto
    "no-gpu-events": "no GPU data: the trace contains no kernel, copy or memset",
    "distributed": "from a distributed program: rank {rank} of {world_size}, backend {backend}",
    "times-of-counting": (
        "counters were collected kernel by kernel, which changes every time: no time is used"
    ),
    "metrics-without-sums": "left out because they have no sums: {metrics}",
    "counters-of-ranges": "some counters are of a whole range, not of one kernel",
    # Nsight Systems, and all traces
    "several-gpus": "{gpus} were used: span, busy time and gaps are given for each GPU",
    "marked-range": (
        "only what was launched inside the NVTX range {range} counts: {kept} of {kernels} kernels"
    ),
    "work-without-call": "{rows} of GPU work have no API call, so none of them counts",
    "newer-schema": "its schema is newer than {newest}, the newest that was tried: check the sums",
    "no-cuda-data": "no CUDA data: the export contains no kernel, copy or memset that counts",
    "calls-without-gpu": (
        "no CUDA data except API calls: the export contains no kernel, copy or memset that counts"
    ),
    "launches-without-kernel": (
        "{launches} have no kernel in the export: it was lost, or ran after its end"
    ),
    "whole-graphs": (
        "{graphs} were traced as a whole: their kernels are hidden; trace their nodes with "
        "`nsys profile --cuda-graph-trace=node`"
    ),
    "untraced-graphs": (
        "{graphs} were launched and not traced: their kernels are hidden; trace their nodes with "
        "`nsys profile --cuda-graph-trace=node`"
    ),
    "unknown-launches": (
        "left out: {launches} named [Unknown], where the tool did not record which kernel ran"
    ),
    "nameless-launches": (
        "the tool did not record which kernel ran in {launches} without a name; all sums hold them"
    ),
    # Nsight Compute
    "metric-missing": "{metric} is missing in {launches}",
    "impossible-metrics": (
        "left out because the value is impossible and no quantity uses it: {metrics}"
    ),
    "no-time": "no time is used: counting SASS instructions changes it, in one case 146-fold",
    "unpatched-time": (
        "instructions were counted as well: the time is gpu__time_duration, which the memory "
        "counters of the same pass show to be of a replay that counted none"
    ),
    "controls-unknown": (
        "the file does not record cache and clock control: by default ncu empties the caches "
        "before each pass, so bytes of device memory are an upper bound, and locks the clock"
    ),
    "controls-off": (
        "caches and clocks were left to the program (--cache-control none, --clock-control none)"
    ),
    "launches-not-in-file": "{launches} are not in the file: filtered out, or lost",
    "uneven-rate": (
        "{metric} is left out: its launches differ, and the file does not record their times"
    ),
    # nvprof
    "cut-names": "some names end in $: nvprof cut them to the width of the terminal",
    "rounded-counts": (
        "large counts are rounded to five digits, as nvprof prints them in text; CSV is exact"
    ),
    "no-api-calls": (
        "no API calls, as --print-gpu-summary prints: if the log was cut off, only what took less "
        "than {percent} % of the GPU's time could be missing"
    ),
    "processes": "{processes} are added up",
    "events-left-out": "events are left out; only metrics are read",
    "unread-table": "not compared: {table}",
    "unread-rows": "not compared: {table} ({names})",
    "uneven-metric": (
        "line {line}: {metric} is left out of one kernel: its average does not fit its minimum and "
        "maximum"
    ),
    "metric-of-some": (
        "{metric} is left out of a kernel: one process or GPU counted it and another did not"
    ),
    "unended-line": "the last line has no line ending; its row passes every check and was read",
    # reported by a tool
    "text": "{text}",
    # reported by PyTorch in the worker
    "flops-of-operator": "{operator}: {flops} FLOP",
}


def note_sentences(notes: Iterable[Note]) -> tuple[str, ...]:
    """Return what notes say, a sentence for each."""
    return tuple(map(_sentence, notes))


def _sentence(note: Note) -> str:
    # an edited record may lack a value or hold another type
    values: dict[str, int | float | str] = defaultdict(lambda: "?")
    for name, value in note.values.items():
        is_count = name in _NOUNS and isinstance(value, int)
        text = f"{value:.2g}" if isinstance(value, float) else value
        values[name] = counted(int(value), *_NOUNS[name]) if is_count else text
    return _SENTENCES[note.kind].format_map(values)
