"""Which metrics Nsight Compute is asked for, by GPU and version, in two passes.

Counters of SASS instructions patch the kernels and stretch their time by two orders of magnitude,
so they have a pass of their own, from which no time is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envcompare.gpu.chips import chip_of, is_lacking, tensor_totals

_MEMORY: Final = (
    "gpu__time_duration.sum",
    "dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "dram__sectors.sum", "dram__sectors_read.sum", "dram__sectors_write.sum",
    "lts__t_bytes.sum", "lts__t_sectors.sum", "lts__t_sectors_lookup_hit.sum",
    "lts__t_sector_hit_rate.pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum", "smsp__thread_inst_executed.sum",
)  # fmt: skip
_SASS: Final = tuple(
    f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"
    for kind in (
        "dadd", "dmul", "dfma", "fadd", "fmul", "ffma", "hadd", "hmul", "hfma",
        "fadd2", "fmul2", "ffma2",
    )
)  # fmt: skip
_TENSOR: Final = ("sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tc.sum")
_PATHS: Final = re.compile(r"sm__ops_path_tensor_src_(?!.*(?:_op_|_sparsity_|_realtime))\w+")
_OFFERED: Final = re.compile(r"^([a-z0-9]+__\w+)\s", re.MULTILINE)
_VERSION: Final = re.compile(r"(\d{4})\.(\d+)")

LAST_WITH_VOLTA: Final = (2025, 2)
"""The last version of Nsight Compute that profiles compute capability 7.0."""

FIRST_WITH_PATHS: Final = (2024, 1)
"""The first version seen to count tensor-core operations; 2022.3 does not know these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The exact names to ask for in each pass; an empty pass is not run, and `reason` says why."""

    memory: tuple[str, ...] = ()
    flops: tuple[str, ...] = ()
    reason: str = ""


def offered_metrics(text: str) -> frozenset[str]:
    """Return the names, without suffix, in what `ncu --query-metrics` printed."""
    return frozenset(_OFFERED.findall(text))


def choose(
    compute_capability: str, *, ncu_version: str, offered: frozenset[str] = frozenset()
) -> Passes:
    """Return the metrics of each pass for a GPU such as "8.0" and a version such as "2024.1.1".

    `offered` is what this version of ncu offers for the GPU, since a metric it does not know is an
    error; empty, the table that travels with the package stands for it.
    """
    reason = _why_not(compute_capability, ncu_version)
    if reason:
        return Passes(reason=reason)
    chip = chip_of(compute_capability)
    memory = tuple(name for name in _MEMORY if _is_there(name, chip, offered))
    asked = _SASS + _TENSOR + _paths(chip, offered, ncu_version)
    flops = tuple(name for name in asked if _is_there(name, chip, offered))
    return Passes(memory=memory, flops=flops, reason=_what_lacks(memory, flops, chip))


def _why_not(compute_capability: str, ncu_version: str) -> str:
    """Return why Nsight Compute cannot read the counters of this GPU; empty where it can."""
    major = _major(compute_capability)
    if major is None:
        return f"the compute capability of the GPU is not known (found {compute_capability!r})"
    if major < 7:
        return (
            f"Nsight Compute has not read counters of compute capability {compute_capability} "
            "(Pascal and older) since 2020.1; nvprof does"
        )
    if compute_capability == "7.0" and _release(ncu_version) > LAST_WITH_VOLTA:
        return (
            f"Nsight Compute {ncu_version} does not profile Volta (compute capability 7.0); "
            "versions up to 2025.2 do"
        )
    return ""


def _major(compute_capability: str) -> int | None:
    found = re.fullmatch(r"(\d+)\.\d+", compute_capability)
    return int(found[1]) if found else None


def _release(ncu_version: str) -> tuple[int, int]:
    found = _VERSION.search(ncu_version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_there(metric: str, chip: str, offered: frozenset[str]) -> bool:
    base = metric.split(".", maxsplit=1)[0]
    if offered:
        return base in offered
    # packed FP32 and the fifth generation's pipe are asked for only where they are known to be
    is_rare = base.endswith(("2_pred_on", "_pipe_tc"))
    return not is_lacking(base, chip) and (bool(chip) or not is_rare)


def _paths(chip: str, offered: frozenset[str], ncu_version: str) -> tuple[str, ...]:
    """Return the counters of tensor operations that count each operation once."""
    known = tensor_totals(chip)
    if not offered:
        return known if _release(ncu_version) >= FIRST_WITH_PATHS else ()
    if known:
        return known
    names = {name for name in offered if _PATHS.fullmatch(name)}
    parts = {name for name in names if any(name.startswith(f"{other}_dst_") for other in names)}
    return tuple(f"{name}.sum" for name in sorted(names - parts))


def _what_lacks(memory: tuple[str, ...], flops: tuple[str, ...], chip: str) -> str:
    told = []
    if "dram__bytes_read.sum" not in memory:
        told.append("this GPU does not tell reads of device memory from writes")
    if not any("_sass_" in name for name in flops):
        told.append("this version of ncu offers no instruction counters for this GPU")
    # on Volta the instructions of the tensor pipe tell the operations: 512 each
    if chip != "gv100" and not any(name.startswith("sm__ops_path_tensor") for name in flops):
        told.append("this version of ncu does not count tensor-core operations of this GPU")
    return "; ".join(told)
