"""Which kernels compute on tensor cores, by counters, or guessed by their names without any."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from envcompare.run_folder.profiles import Kernel

UNCOUNTED_TENSORS: Final = "tensor cores were used, and their FLOPs are not counted"
"""Why FLOPs are not all that were executed, and a ratio of them would be too low."""

_LONGEST: Final = 4_096  # characters that are read; template names grow without bound
_TENSOR: Final = re.compile(
    r"h884|s884|h1688|s1688|c1688|i8816|16816|hmma|gmma|wmma|tensorop|dgrad_1x1_stride_2x2"
    r"|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group|xmma_implicit_gemm"
    r"|xmma_sparse_conv|xmma_warp_specialized_implicit_gemm|xmma_gemm|xmma_sparse_gemm|tf32f32"
    r"|bmm_.*e4m3|cutlass3x_sm(?:90|100)|flash_(?:fwd|bwd)|nvjet"
    r"|cijk_\w*_mi\d+x\d+|_xdl|mfma"  # the matrix cores of AMD
)
_PIPE: Final = re.compile(
    r"sm__(?:inst_executed_)?pipe_(?:tensor|tc)(?!\w*_(?:imma|int))|tensor_precision_fu_utilization"
)
_CUDA_CORES: Final = re.compile(r"ffma|simt|sgemm_\d|_dffma|fft")


@lru_cache(maxsize=20_000)
def is_tensor_core(name: str) -> bool:
    """Guess by its name whether a kernel computes on tensor cores; counters tell the truth.

    The list is PyProf's, with what came after it; a name that says FFMA or SIMT is none.
    """
    text = name[:_LONGEST].lower()
    return bool(_TENSOR.search(text)) and not _CUDA_CORES.search(text)


def ran_uncounted(kernel: Kernel) -> bool:
    """Say whether a kernel computed on tensor cores, and its operations there were not counted."""
    if "flops_tensor" in kernel.metrics:
        return False
    told = [value for name, value in kernel.metrics.items() if _PIPE.match(name)]
    return any(told) if told else is_tensor_core(kernel.name)
