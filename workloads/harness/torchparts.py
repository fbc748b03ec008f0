"""What the worker and its workloads need of PyTorch, said once; nothing here imports it by itself.

A user's workload need not use PyTorch at all: each function leaves it alone unless it is there.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import random
import sys
import time
from typing import Any, Iterable

from harness.failures import ProcessError

OPTIMIZERS = {"adadelta": "Adadelta", "sgd": "SGD", "adam": "Adam"}
# The operators whose schemas torchvision's Python files expect (torchvision/csrc/ops/nms.cpp).
VISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept_libraries: list[Any] = []


def loaded_torch() -> Any | None:  # noqa: ANN401  PyTorch has no types here
    """Return PyTorch where the workload has imported it."""
    return sys.modules.get("torch")


def choose_device(wanted: str) -> str:
    """Return `cpu` or `cuda`; `auto` takes the GPU where PyTorch sees one.

    `expected` is `auto` on a host with a GPU: a workload without PyTorch has the CPU, one with it
    has the GPU or fails, so that nothing runs on the CPU unnoticed.
    """
    if wanted not in {"auto", "cpu", "cuda", "expected"}:
        raise ValueError(f"no device {wanted!r}; there are auto, cpu, cuda, expected")
    torch = loaded_torch()
    if wanted != "cpu" and torch is not None and torch.cuda.is_available():
        return "cuda"
    if wanted == "cuda" or (wanted == "expected" and torch is not None):
        raise _no_cuda(torch, wanted)
    return "cpu"


def _no_cuda(torch: Any | None, wanted: str) -> ProcessError:  # noqa: ANN401
    """Return the error for what is missing: PyTorch, its CUDA, or a GPU."""
    if torch is None:
        reason, remedy = "the workload does not use PyTorch", "leave --device out"
    elif torch.version.cuda is None:
        reason, remedy = "this PyTorch is built without CUDA", "use one with CUDA"
    elif os.environ.get("CUDA_VISIBLE_DEVICES", "0") in {"", "-1", "NoDevFiles"}:
        reason, remedy = "CUDA_VISIBLE_DEVICES hides every GPU", "unset it"
    else:
        cause = _cause(torch)
        reason, remedy = "PyTorch sees no GPU here", "see what envcompare doctor says of the GPU"
        if cause:
            reason = f"{reason}: {cause} (it is built for CUDA {torch.version.cuda})"
        if "driver" in cause and "too old" in cause:
            remedy = "use a PyTorch that is built for an older CUDA, or install a newer driver"
    why = "device cuda was asked for" if wanted == "cuda" else "the host has an NVIDIA GPU"
    return ProcessError(f"{why} and {reason}", hint=f"{remedy}, or give --device cpu")


def _cause(torch: Any) -> str:  # noqa: ANN401
    """Return PyTorch's message on why it cannot start CUDA; empty if there is none."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
    return ""


def can_keep_off_gpu(wanted: str) -> bool:
    """Return whether this process can leave CUDA to its forks: PyTorch has it, but has not used it.

    A process that has started CUDA cannot be forked. So this does not ask PyTorch whether there is
    a GPU; `is_initialized` only reads a flag.
    """
    torch = loaded_torch()
    return (
        wanted != "cpu"
        and torch is not None
        and torch.version.cuda is not None
        and not torch.cuda.is_initialized()
    )


def is_gpu_in_use() -> bool:
    """Return whether PyTorch has started CUDA in this process."""
    torch = loaded_torch()
    return torch is not None and bool(torch.cuda.is_initialized())


def start_device(device: str) -> int | None:
    """Start CUDA in this process and return how long that took, in ns; None on a CPU.

    Done here and not by whatever touches the device first, so that it is counted where it belongs.
    """
    if device != "cuda":
        return None
    torch = sys.modules["torch"]
    start_ns = time.monotonic_ns()
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    taken_ns = time.monotonic_ns() - start_ns
    _prove(torch, device)
    return taken_ns


def _prove(torch: Any, device: str) -> None:  # noqa: ANN401
    """Run one kernel; raise ProcessError where this PyTorch has no code for the GPU.

    Code of a lower minor version of the same major one runs (CUDA C++ Programming Guide, Binary
    Compatibility); what a driver would compile first is not counted as code.
    """
    name, (major, minor) = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    # sm_90a and sm_100f: code for one GPU and for a family of them
    built = [arch[3:].rstrip("af") for arch in torch.cuda.get_arch_list() if arch[:3] == "sm_"]
    if built and not any(int(one[:-1]) == major and int(one[-1]) <= minor for one in built):
        raise ProcessError(
            f"this PyTorch has no code for {name}: its compute capability is {major}.{minor}, and "
            f"the wheels are built for {', '.join(f'{one[:-1]}.{one[-1]}' for one in built)}",
            hint="use a PyTorch that is built for it (see --variant), or give --device cpu",
        )
    try:
        total = float(torch.ones(256, device=device).sum())
    except RuntimeError as error:
        raise ProcessError(
            f"{name} cannot run a kernel of this PyTorch: {str(error).splitlines()[0]}",
            hint="see what envcompare doctor says of the GPU, or give --device cpu",
        ) from error
    if total != 256.0:
        raise ProcessError(
            f"{name} adds 256 ones to {total:g}",
            hint="the GPU or its memory is broken: run nvidia-smi -q and see its ECC errors",
        )


def compute_capability(device: str) -> str:
    """Return the compute capability of the GPU in use, such as 8.0; empty on a CPU."""
    if device != "cuda":
        return ""
    return "{}.{}".format(*sys.modules["torch"].cuda.get_device_capability())


def limit_threads(threads: int | None) -> None:
    """Set the number of PyTorch's threads; None leaves it as it is."""
    torch = loaded_torch()
    if torch is not None and threads is not None:
        torch.set_num_threads(threads)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, and of NumPy and PyTorch if they are loaded."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), loaded_torch()
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    if torch is not None:
        torch.manual_seed(seed)


def import_what_optimizers_need() -> None:
    """Make one optimizer step on one number, on one thread.

    The first optimizer of a process imports torch._dynamo (1 to 2 s); done before the fork, it is
    paid once and not in each generation.
    """
    torch = loaded_torch()
    if torch is None:
        return
    number = torch.nn.Parameter(torch.zeros(1))
    number.grad = torch.zeros(1)
    torch.optim.SGD([number], lr=0.1).step()


def make_optimizer(name: str, parameters: Iterable[Any], *, lr: float) -> Any:  # noqa: ANN401
    """Return the optimizer of a name in OPTIMIZERS."""
    torch = sys.modules["torch"]
    return getattr(torch.optim, OPTIMIZERS[name])(parameters, lr=lr)


def repair_torchvision() -> None:
    """Make torchvision importable if its compiled extension cannot be loaded.

    With a PyTorch of another build (torchvision for CUDA, PyTorch for the CPU) the import fails
    with "operator torchvision::nms does not exist". Data sets, transforms and models need only the
    schemas of the operators, which are defined here in that case and kept.
    """
    torch = sys.modules["torch"]
    if hasattr(torch.ops.torchvision, "nms") or _vision_extension_loads(torch):
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in VISION_SCHEMAS:
        library.define(schema)
    _kept_libraries.append(library)


def _vision_extension_loads(torch: Any) -> bool:  # noqa: ANN401
    spec = importlib.util.find_spec("torchvision")
    places = spec.submodule_search_locations if spec else None
    for path in glob.glob(os.path.join(places[0], "_C*.so")) if places else []:
        try:
            torch.ops.load_library(path)
        except (ImportError, OSError):
            continue
        return True
    return False


def start_memory_record(device: str) -> None:
    """Reset the peaks of the device memory."""
    if device == "cuda":
        sys.modules["torch"].cuda.reset_peak_memory_stats()


def memory_peaks(device: str) -> dict[str, int | None]:
    """Return the peaks of allocated and reserved device memory; None without a GPU."""
    allocated = reserved = None
    if device == "cuda":
        cuda = sys.modules["torch"].cuda
        allocated, reserved = int(cuda.max_memory_allocated()), int(cuda.max_memory_reserved())
    return {"cuda_allocated_peak_bytes": allocated, "cuda_reserved_peak_bytes": reserved}


def release_memory(device: str) -> None:
    """Free cached device memory, so that each generation starts alike."""
    if device == "cuda":
        sys.modules["torch"].cuda.empty_cache()


def device_in_use() -> str:
    """Return `cuda` if this process has started it, else `cpu`; this starts nothing."""
    torch = loaded_torch()
    is_started = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return "cuda" if is_started else "cpu"


def wait_for_device(device: str) -> None:
    """Wait until the device has done all its work."""
    if device == "cuda":
        sys.modules["torch"].cuda.synchronize()
