"""The part of the fingerprint that PyTorch and the GPU know; all None where it is not loaded."""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from typing import Any, Callable

from cgroups import read_text


def versions(threads: int) -> dict[str, Any]:
    """Return the versions and the build of PyTorch and its neighbours.

    `threads` is what each generation gets; the template itself has one until the fork.
    """
    torch: Any = sys.modules.get("torch")
    return {
        "torch.version": _attempt(lambda: str(torch.__version__)),
        "torch.git": _attempt(lambda: str(torch.version.git_version)),
        "torch.cuda": _attempt(lambda: torch.version.cuda),
        "torch.build_sha256": _attempt(lambda: _sha256(torch.__config__.show())),
        "torch.threads": None if torch is None else threads,
        "torch.interop_threads": _attempt(lambda: int(torch.get_num_interop_threads())),
        "torchvision.version": _attempt(lambda: str(sys.modules["torchvision"].__version__)),
        "numpy.version": _attempt(lambda: str(sys.modules["numpy"].__version__)),
    }


def settings() -> dict[str, Any]:
    """Return the switches that change what PyTorch computes and how."""
    torch: Any = sys.modules.get("torch")
    return {
        "torch.tf32_matmul": _attempt(lambda: torch.backends.cuda.matmul.allow_tf32),
        "torch.tf32_cudnn": _attempt(lambda: torch.backends.cudnn.allow_tf32),
        "torch.deterministic": _attempt(lambda: bool(torch.are_deterministic_algorithms_enabled())),
        "torch.cudnn_benchmark": _attempt(lambda: torch.backends.cudnn.benchmark),
    }


def gpu(device: str) -> dict[str, Any]:
    """Return what is known of the GPU in use; asking for it without one could start CUDA."""
    torch: Any = sys.modules.get("torch") if device == "cuda" else None
    card = _attempt(lambda: torch.cuda.get_device_properties(0))
    return {
        "torch.cudnn": _attempt(lambda: int(torch.backends.cudnn.version())),
        "gpu.name": _attempt(lambda: str(card.name)),
        "gpu.uuid": _attempt(lambda: f"GPU-{card.uuid}"),
        "gpu.memory_bytes": _attempt(lambda: int(card.total_memory)),
        "gpu.driver": _driver_version() if card is not None else None,
    }


def _driver_version() -> str | None:
    text = read_text("/proc/driver/nvidia/version") or ""
    match = re.search(r"Kernel Module\D+([\d.]+)", text)
    return match[1] if match else None


def _attempt(read: Callable[[], Any]) -> Any:  # noqa: ANN401  whatever is read
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except Exception:  # noqa: BLE001  each version lacks something else
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
