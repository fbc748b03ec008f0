"""Kernels that exchange data between GPUs: their share, and what of them is not hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profilers.activity import Shape
from envcompare.profilers.busy import Times, exposed_ns
from envcompare.profilers.rows import Table
from envcompare.profiles import Quantity

# ncclKernel_* to NCCL 2.18, ncclDevKernel_* since, nccl…Kernel_* before both; multimem_* are
# PyTorch's symmetric memory, cross_device_reduce_* vLLM's own.
_NAMES: Final = re.compile(
    r"\bnccl(?:Dev)?Kernel|^(?:void )?nccl\w*|\bmultimem_|\bcross_device_reduce"
)


def is_collective(name: str) -> bool:
    """Return whether a kernel exchanges data between GPUs, by its name."""
    return _NAMES.search(name) is not None


def collective_quantities(
    kernels: Table, shapes: Sequence[Shape], *, source: str
) -> tuple[Quantity, ...]:
    """Return share and exposed time; nothing where no kernel is a collective one."""
    numbers = [number for number, shape in enumerate(shapes) if is_collective(shape[0])]
    is_own = np.isin(kernels["group"], numbers)
    if not is_own.any():
        return ()
    lasted = kernels["end"] - kernels["start"]
    total = int(lasted.sum())
    share = Quantity(
        name="nccl_share",
        value=100.0 * int(lasted[is_own].sum()) / total if total else 0.0,
        unit="%",
        rule="ratio of sums",
        source=source,
        scope=f"{int(is_own.sum())} of {len(kernels)} kernels, told by their names",
    )
    return (share, *_exposed(kernels, is_own, source))


def _exposed(kernels: Table, is_own: npt.NDArray[np.bool_], source: str) -> Iterator[Quantity]:
    devices = np.unique(kernels["device"]).tolist()

    def times(rows: Table) -> tuple[Times, Times]:
        return rows["start"], rows["end"]

    for device in devices:
        here = kernels["device"] == device
        value = exposed_ns(times(kernels[here & is_own]), times(kernels[here & ~is_own]))
        yield Quantity(
            name="nccl_exposed_ns",
            value=float(value),
            unit="ns",
            rule="difference",
            source=source,
            scope=f"GPU {device}: no other kernel runs",
        )
