"""How the metrics of Nsight Compute add up over launches, and what units they must have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from envcompare.profile_files.units import read_unit

Adding = Literal["sum", "rate"]
TIME: Final = "gpu__time_duration.sum"
CYCLES: Final = ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.max")

LABELS: Final = {
    "Duration": TIME,
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
}
"""Names that the details page writes in the place of a metric's own."""

_NAMES: Final = 20_000  # of metrics; a report holds up to 900, once for each launch
_RATE: Final = re.compile(r"\.(?:pct|ratio)$|\.pct_of_peak_sustained_|\.per_(?:second|cycle_)")
_MEMORY: Final = ("dram__", "lts__")
_RATED: Final = ".per_second"
_RATE_FACTOR: Final = (
    2.0  # passes of one short kernel differ; a patched one takes 100 times as long
)
_SASS: Final = re.compile(r"(?:^|_)sass_")
_USED: Final = re.compile(
    r"gpu__time_duration\.sum|sm__cycles_elapsed\.(?:avg|max)(?:\.per_second)?"
    r"|dram__(?:bytes|sectors)(?:_read|_write)?\.sum(?:\.per_second)?"
    r"|lts__t_(?:bytes|sectors|sectors_lookup_hit)\.sum|lts__t_sector_hit_rate\.pct"
    r"|smsp?__sass_thread_inst_executed_op_\w+\.sum"
    r"|sm__(?:inst_executed_pipe_t|ops_path_tensor_)\w+\.sum"
    r"|sm__warps_active\.avg\.pct_of_peak_sustained_active"
    r"|smsp__(?:thread_)?inst_executed\.sum"
    r"|smsp__thread_inst_executed_per_inst_executed\.(?:pct|ratio)"
)
_LEFT_OUT: Final = ("device__", "launch__", "profiler__", "derived__", "breakdown:")
_BASES: Final = (
    (re.compile(r"gpu__time_duration\.\w+"), "ns"),
    (re.compile(r"(?:dram|lts)_\w*_bytes\w*\.sum"), "B"),
    (re.compile(r"(?:dram|lts)_\w*_sectors\w*\.sum"), "sector"),
    (re.compile(r"sm__cycles_elapsed\.(?:avg|max)"), "cycle"),
    (re.compile(r"sm__cycles_elapsed\.(?:avg|max)\.per_second"), "cycle/s"),
    (re.compile(r".*\.pct(?:_of_peak_\w+)?"), "%"),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """What a printed number is multiplied by; where it cannot be used, why."""

    factor: float = 1.0
    reason: str = ""


@lru_cache(maxsize=_NAMES)
def adding(metric: str) -> Adding | None:
    """Return how a metric adds up over launches; None where it does not, or is not of a launch."""
    if metric.startswith(_LEFT_OUT):
        return None
    if _RATE.search(metric):
        return "rate"
    return "sum" if metric.endswith(".sum") or metric in CYCLES else None


def is_used(metric: str) -> bool:
    """Say whether quantities are derived from the metric, so that it must be understood."""
    return _USED.fullmatch(metric) is not None


def is_possible(value: float) -> bool:
    """Say whether a metric can have a value; ncu computes some as differences of two passes."""
    return 0 <= value < math.inf


@lru_cache(maxsize=_NAMES)
def changes_time(metric: str) -> bool:
    """Say whether counting the metric patches the kernel, which multiplies its time."""
    return _SASS.search(metric) is not None


def is_unpatched_time(values: Mapping[str, float]) -> bool:
    """Say whether the duration beside counters of instructions is of a pass that was not patched.

    ncu replays a kernel for counters of the hardware and patches other replays. In the samples of
    the full set that ship with Nsight Compute 2022.3 bytes of DRAM over the duration are exactly
    the rate its own counter tells. Cycles asked for with nothing but instructions were those of
    the patched replay, 146 times as many. So counters of L2 or DRAM must stand beside the duration,
    and agree with it where the file tells their rate.
    """
    time = values.get(TIME)
    memory = [name for name in values if name.startswith(_MEMORY)]
    if not time or not memory:
        return False
    rated = [name for name in memory if name + _RATED in values]
    return all(
        values[name] / _RATE_FACTOR <= values[name + _RATED] * time / 1e9
        and values[name + _RATED] * time / 1e9 <= values[name] * _RATE_FACTOR
        for name in rated
    )


@lru_cache(maxsize=_NAMES)
def scale(metric: str, unit: str) -> Scale:
    """Return by what a number of this metric is multiplied to be in its base unit."""
    read = read_unit(unit)
    if read is None:
        return Scale(reason=f"the unit {unit!r} of {metric} is not known")
    wanted = next((base for pattern, base in _BASES if pattern.fullmatch(metric)), read.base)
    if read.base != wanted:
        return Scale(reason=f"{metric} is in {unit or 'no unit'!r}, which is no unit of it")
    return Scale(factor=read.factor)
