"""A cold `torch.compile`: the work before a model computes for the first time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from typing import Any, ClassVar, Iterator

import torch  # noqa: TID251  its home is workloads/
from harness.compiling import FOLDERS, find_compiler, import_inductor
from harness.facts.variables import scratch_folder
from harness.failures import HintedError
from harness.places import in_fork
from torch import nn  # noqa: TID251

# Nothing of a step is kept: what is in memory ends with its process, and its folder is removed. The
# folder of precompiled headers alone is shared by all processes of a user, so there are none.
_UNKEPT = {"fx_graph_cache": False, "cpp_cache_precompile_headers": False}


class Compile:
    """Compiles a small model on the CPU and runs it once, in a new process for each step.

    Each layer is wider than the one before, so each needs its own kernel. The time to import
    PyTorch's compiler and to test the instructions of g++ is excluded. The backend `aot_eager`
    traces like `inductor` and needs no C++ compiler.
    """

    BOTTLENECK: ClassVar[str] = "the C++ compiler, its processes and the small files they read"
    PARAMS: ClassVar[dict[str, Any]] = {
        "backend": "inductor",
        "batch": 16,
        "width": 64,
        "layers": 1,
        "backward": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "backend": ("inductor", "aot_eager"),
        "batch": (1, None),
        "width": (2, None),
        "layers": (1, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self._params = params
        self.batch = params["batch"]
        self._import_compiler()  # once a worker; it loads no data

    def _import_compiler(self) -> None:
        """Import PyTorch's compiler; raise LackingError if it has no C++ compiler."""
        import torch._dynamo.backends.debugging  # noqa: PLC0415, TID251  a second, wanted here alone

        import_inductor(**_UNKEPT)
        torch._functorch.config.enable_autograd_cache = False  # noqa: SLF001
        if self._params["backend"] == "inductor":
            with _private_cache():
                find_compiler()

    def setup(self, seed: int, device: str) -> None:
        """Keep the seed; each step draws model and batch of it in its own process."""
        if device != "cpu":
            raise HintedError("compile runs on the CPU alone", hint="give --device cpu")
        self._seed = seed

    def step(self) -> float:
        """Compile and compute once in a new process with an empty cache; return the loss."""
        with _private_cache():
            loss: float = in_fork(partial(_compute, self._params, self._seed))["loss"]
        return loss


def _compute(params: dict[str, Any], seed: int) -> dict[str, float]:
    """Compile a model by its first call, in a process that has compiled nothing."""
    torch.manual_seed(seed)
    widths = [params["width"] + 16 * number for number in range(params["layers"] + 1)]
    pairs = ((nn.Linear(*two), nn.GELU()) for two in zip(widths, widths[1:]))
    model = nn.Sequential(*(part for pair in pairs for part in pair))
    inputs = torch.randn(params["batch"], params["width"])
    loss = torch.compile(model, backend=params["backend"])(inputs).square().mean()
    if params["backward"]:
        loss.backward()
    return {"loss": float(loss.detach())}


@contextlib.contextmanager
def _private_cache() -> Iterator[None]:
    """Give this process and its children a new folder for compiled and temporary files.

    It is in the folder of the arm, which is removed after the run.
    """
    before = {name: os.environ.get(name) for name in FOLDERS}, tempfile.tempdir
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before[1]
            for name, value in before[0].items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
