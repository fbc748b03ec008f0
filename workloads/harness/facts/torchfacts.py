"""The part of the fingerprint from PyTorch and the GPU; all None if PyTorch is not loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from harness.attempts import attempt, text_hash
from harness.facts.cgroups import read_text

MANAGED_KEYS = tuple(
    f"gpu.{name}"
    for name in (
        "power_limit_w", "ecc", "mig", "persistence", "compute_mode", "clock_sm_mhz_max",
        "clock_memory_mhz_max", "clock_sm_mhz_application",
    )
)  # fmt: skip


def versions(threads: int | None) -> dict[str, Any]:
    """Return the versions and the build of PyTorch and its neighbours.

    `threads` is what each generation gets, since the template itself has one until the fork; None
    asks PyTorch what this process has now.
    """
    torch: Any = sys.modules.get("torch")
    own = attempt(lambda: int(torch.get_num_threads()))
    return {
        "torch.version": attempt(lambda: str(torch.__version__)),
        "torch.git": attempt(lambda: str(torch.version.git_version)),
        "torch.cuda": attempt(lambda: torch.version.cuda),
        "torch.build_sha256": attempt(lambda: text_hash(build_of(torch.__config__.show()))),
        "torch.cpu_capability": attempt(lambda: str(torch.backends.cpu.get_cpu_capability())),
        "torch.threads": own if torch is None or threads is None else threads,
        "torch.interop_threads": attempt(lambda: int(torch.get_num_interop_threads())),
        "torchvision.version": attempt(lambda: str(sys.modules["torchvision"].__version__)),
        "numpy.version": attempt(lambda: str(sys.modules["numpy"].__version__)),
    }


def build_of(text: str) -> str:
    """Return how PyTorch was built, without the line on the instruction set in use."""
    return re.sub(r"^.*CPU capability usage:.*\n", "", text, flags=re.MULTILINE)


def settings() -> dict[str, Any]:
    """Return the switches that change what PyTorch computes and how."""
    torch: Any = sys.modules.get("torch")
    return {
        "torch.tf32_matmul": attempt(lambda: torch.backends.cuda.matmul.allow_tf32),
        "torch.tf32_cudnn": attempt(lambda: torch.backends.cudnn.allow_tf32),
        "torch.deterministic": attempt(lambda: bool(torch.are_deterministic_algorithms_enabled())),
        "torch.cudnn_benchmark": attempt(lambda: torch.backends.cudnn.benchmark),
        "torch.cudnn_deterministic": attempt(lambda: torch.backends.cudnn.deterministic),
        "torch.float32_precision": attempt(lambda: str(torch.get_float32_matmul_precision())),
    }


def compiler() -> dict[str, Any]:
    """Return the C++ compiler of torch.compile; None where the process has compiled nothing by it.

    What compiles is imported then, and not before.
    """
    builder: Any = sys.modules.get("torch._inductor.cpp_builder")
    is_used = "torch._inductor.codecache" in sys.modules
    name = attempt(builder.get_cpp_compiler) if builder is not None and is_used else None
    return {"compiler.name": name, "compiler.version": attempt(lambda: _version(name))}


def _version(program: Any) -> str:  # noqa: ANN401  PyTorch has no types here
    argv = (program, "--version")
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def gpu(device: str) -> dict[str, Any]:
    """Return what is known of the GPU in use; asking for it without one could start CUDA."""
    torch: Any = sys.modules.get("torch") if device == "cuda" else None
    card = attempt(lambda: torch.cuda.get_device_properties(torch.cuda.current_device()))
    # of a MIG instance the number is known to the driver by another word
    uuid = attempt(lambda: str(card.uuid))
    uuids = [] if uuid is None else [f"GPU-{uuid}", f"MIG-{uuid}"]
    found = {
        "gpu.name": attempt(lambda: str(card.name)),
        "gpu.uuid": None if uuid is None else uuids[0],
        "gpu.memory_bytes": attempt(lambda: int(card.total_memory)),
        "gpu.count": attempt(lambda: int(torch.cuda.device_count())) if torch else None,
    }
    managed = _managed(uuids) if card is not None else {}
    driver = managed.get("gpu.driver")
    if driver is None and card is not None:
        driver = driver_version(read_text("/proc/driver/nvidia/version") or "")
    return {**dict.fromkeys(MANAGED_KEYS), **found, **managed, "gpu.driver": driver}


def _managed(uuids: list[str]) -> dict[str, Any]:
    from harness.counters.nvml import gpu_settings  # noqa: PLC0415  ctypes is needed where there is a GPU alone

    return gpu_settings(uuids)


def driver_version(text: str) -> str | None:
    """Return the version that the driver's kernel module, closed or open, says of itself."""
    match = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return match[1] if match else None
