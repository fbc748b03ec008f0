"""Kernels that exchange data between GPUs: their shares, and what of them is not hidden."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.activity import Shape
from envcompare.profile_files.busy import Times, exposed_ns
from envcompare.profile_files.rows import Table
from envcompare.run_folder.profiles import Quantity

# ncclKernel_* to NCCL 2.18, ncclDevKernel_* since, nccl…Kernel_* before both; RCCL, its
# counterpart for AMD GPUs, has the same names.
_NCCL: Final = re.compile(r"\bnccl(?:Dev)?Kernel|^(?:void )?nccl\w*")
# multimem_* and *_shot_* are PyTorch's symmetric memory, cross_device_reduce_* vLLM's own.
_OTHERS: Final = re.compile(
    r"\bmultimem_|\bcross_device_reduce|\bnvshmem|\b(?:inter|intra)node::"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)


def _is_nccl(name: str) -> bool:
    return _NCCL.search(name) is not None


def _is_collective(name: str) -> bool:
    """Tell by its function, not by its template, whether a kernel exchanges data between GPUs."""
    return _is_nccl(name) or _OTHERS.search(name.partition("<")[0]) is not None


def collective_quantities(
    kernels: Table, shapes: Sequence[Shape], *, source: str, is_rocm: bool
) -> tuple[Quantity, ...]:
    """Return shares and exposed time; nothing where no kernel is a collective one.

    The share of NCCL is of its own kernels; on AMD GPUs they are RCCL's.
    """
    names = [shape[0] for shape in shapes]
    is_own = _of_names(kernels, names, _is_collective)
    if not is_own.any():
        return ()
    library = "rccl_share" if is_rocm else "nccl_share"
    return (
        _share(kernels, is_own, name="collective_share", source=source),
        _share(kernels, _of_names(kernels, names, _is_nccl), name=library, source=source),
        *_exposed(kernels, is_own, source),
    )


def _of_names(
    kernels: Table, names: Sequence[str], fits: Callable[[str], bool]
) -> npt.NDArray[np.bool_]:
    return np.isin(kernels["group"], [at for at, name in enumerate(names) if fits(name)])


def _share(kernels: Table, is_own: npt.NDArray[np.bool_], *, name: str, source: str) -> Quantity:
    lasted = kernels["end"] - kernels["start"]
    total = int(lasted.sum())
    return Quantity(
        name=name,
        value=100.0 * int(lasted[is_own].sum()) / total if total else 0.0,
        unit="%",
        rule="ratio of sums",
        source=source,
        scope=f"{int(is_own.sum())} of {len(kernels)} kernels, told by their names",
    )


def _exposed(kernels: Table, is_own: npt.NDArray[np.bool_], source: str) -> Iterator[Quantity]:
    devices = np.unique(kernels["device"]).tolist()

    def times(rows: Table) -> tuple[Times, Times]:
        return rows["start"], rows["end"]

    for device in devices:
        here = kernels["device"] == device
        value = exposed_ns(times(kernels[here & is_own]), times(kernels[here & ~is_own]))
        yield Quantity(
            name="collective_exposed_ns",
            value=float(value),
            unit="ns",
            rule="difference",
            source=source,
            scope=f"GPU {device}: no other kernel runs",
            gpu=device,
        )
