"""What GPUs are: their chips and counters, their peaks, and what names of kernels tell.

The tables lie in `envcompare/data/`, each with its sources: `gpu_peaks.json` (data sheets, by row),
`ncu_metrics.json` (metrics that chips lack or count in parts, from NVIDIA's own lists) and
`nvprof_metrics.json` (NVIDIA's comparison of nvprof's metrics with those of Nsight Compute). A chip
such as `ga100` stands for a compute capability: all GPUs of one have the same metrics.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib import resources
from typing import Final

import msgspec

_PATHS: Final = re.compile(r"sm__ops_path_tensor_src_(?!.*(?:_op_|_sparsity_|_realtime))\w+")


class _Table(msgspec.Struct, frozen=True):
    chips: dict[str, str]
    lacking: dict[str, tuple[str, ...]]
    tensor_totals: dict[str, tuple[str, ...]]


class _Names(msgspec.Struct, frozen=True):
    ncu_name: dict[str, str]


def chip_of(compute_capability: str) -> str:
    """Return the chip whose metrics stand for a compute capability; empty where none is known."""
    return _table().chips.get(compute_capability, "")


def is_lacking(metric: str, chip: str) -> bool:
    """Say whether the chip is known not to have the metric (`dram__bytes_read`, no suffix)."""
    return chip in _table().lacking.get(metric, ())


def tensor_totals(chip: str) -> tuple[str, ...]:
    """Return the counters of tensor operations that together count each once; empty: not known."""
    return tuple(
        f"sm__ops_path_tensor_src_{part}.sum" for part in _table().tensor_totals.get(chip, ())
    )


def tensor_counters(chip: str, offered: Iterable[str]) -> tuple[str, ...]:
    """Return the chip's totals; without a table, those of the offered that are no part of another.

    What is offered has no suffix.
    """
    names = {name for name in offered if _PATHS.fullmatch(name)}
    parts = {name for name in names if any(name.startswith(f"{other}_dst_") for other in names)}
    return tensor_totals(chip) or tuple(f"{name}.sum" for name in sorted(names - parts))


def ncu_name(nvprof_metric: str) -> str:
    """Return the metric of Nsight Compute that NVIDIA names for one of nvprof; empty: none."""
    return _names().ncu_name.get(nvprof_metric, "")


@functools.cache
def _table() -> _Table:
    return msgspec.json.decode(_data("ncu_metrics.json"), type=_Table)


@functools.cache
def _names() -> _Names:
    return msgspec.json.decode(_data("nvprof_metrics.json"), type=_Names)


def _data(name: str) -> bytes:
    return (resources.files("envcompare") / "data" / name).read_bytes()
