"""How much fits into memory: layers or samples of a batch, with a new process for each try."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.fitting import (
    FITS,
    be_killed_first,
    in_own_process,
    largest,
    limit_gpu,
    limit_private,
)
from harness.loading import ParameterError, require
from torch import nn  # noqa: TID251

MOST = 1 << 16  # of layers or samples that are tried
# One import of PyTorch for all tries. No try shares a process with another, nor with what is timed.
_SEARCH = """
import json, sys
sys.path[:0] = [sys.argv[1]]
from capacity import search
print(json.dumps(search(*json.loads(sys.argv[2]))))
"""


class Capacity:
    """Finds how many layers or samples fit into `memory` MiB, then trains on a stack of `layers`.

    The search is not timed; `layers_that_fit` or `batch_that_fits` is what it found. The time of a
    step is that of `layers` layers, whatever fits, so that it is the same work in all arms.
    """

    BOTTLENECK: ClassVar[str] = "convolutions"
    PARAMS: ClassVar[dict[str, Any]] = {
        "find": "layers",
        "kind": "conv2d",
        "memory": 128,
        "devices": 1,
        "layers": 4,
        "batch": 16,
        "channels": 16,
        "side": 48,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "find": ("layers", "batch"),
        "kind": ("conv2d", "linear"),
        "memory": (16, None),
        "devices": (1, 64),
        "layers": (1, 65536),
        "batch": (1, 65536),
        "channels": (1, None),
        "side": (1, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        require("layers", params["layers"], least=params["devices"])
        self._params = params
        self.batch = params["batch"]

    def setup(self, seed: int, device: str) -> None:
        """Search in new processes, then build the model that is timed."""
        self._found = _search_apart(self._params, device)
        torch.manual_seed(seed)
        self._stack = Stack(self._params, device)
        self._inputs = self._stack.inputs()
        self._weights = torch.rand(self._inputs.shape[-1]).to(self._stack.places[-1])

    def step(self) -> torch.Tensor:
        """Pass forward and backward through the layers; return a number that depends on them."""
        outputs = self._stack.train(self._inputs)
        return (outputs.detach().square() * self._weights).mean()

    def finish(self) -> dict[str, Any]:
        """Return what fits, and how many processes tried."""
        name = "layers_that_fit" if self._params["find"] == "layers" else "batch_that_fits"
        return {name: self._found["fits"], "tries": self._found["tries"]}


class Stack:
    """Layers of one kind, spread evenly over the devices in their order."""

    def __init__(self, params: dict[str, Any], device: str) -> None:
        self._params = params
        devices, layers = params["devices"], params["layers"]
        self.places = [device] if devices == 1 else [f"{device}:{n}" for n in range(devices)]
        where = [self.places[n * devices // layers] for n in range(layers)]
        self.layers = [_layer(params).to(place) for place in where]
        self.where = where

    def inputs(self) -> torch.Tensor:
        """Return random numbers: (batch, channels, side, side), or (batch, side², channels)."""
        batch, channels, side = (self._params[name] for name in ("batch", "channels", "side"))
        is_image = self._params["kind"] == "conv2d"
        shape = (batch, channels, side, side) if is_image else (batch, side * side, channels)
        return torch.randn(shape).to(self.places[0]).requires_grad_()

    def train(self, inputs: torch.Tensor) -> torch.Tensor:
        """Pass forward, keeping what the pass backward needs, and backward; return the output."""
        outputs = inputs
        for layer, place in zip(self.layers, self.where):
            layer.zero_grad()
            outputs = layer(outputs.to(place))
        inputs.grad = None
        outputs.square().mean().backward()
        return outputs


def _layer(params: dict[str, Any]) -> nn.Module:
    channels = params["channels"]
    if params["kind"] == "linear":
        return nn.Linear(channels, channels)
    return nn.Conv2d(channels, channels, 3, padding=1)


def _search_apart(params: dict[str, Any], device: str) -> dict[str, int]:
    """Search in a fresh process, which has not started CUDA."""
    if device == "cpu" and params["devices"] > 1:
        raise ParameterError("several devices need a GPU each, and the workload runs on the CPU")
    if device == "cuda" and torch.cuda.device_count() < params["devices"]:
        there = torch.cuda.device_count()
        raise ParameterError(f"{params['devices']} devices need a GPU each, and there are {there}")
    here = os.path.dirname(os.path.abspath(__file__))
    argv = (sys.executable, "-c", _SEARCH, here, json.dumps([params, device]))
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}  # what is freed leaves no holes
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"the search ended with exit code {done.returncode}: {last}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def search(params: dict[str, Any], device: str) -> dict[str, int]:
    """Return the most that fits, found by doubling and bisection, and the number of tries.

    Raises RuntimeError where not even 1 fits, or where a try fails of something else than memory.
    """
    tries = 0

    def fits(count: int) -> bool:
        nonlocal tries
        tries += 1
        return in_own_process(lambda: _try({**params, params["find"]: count}, device)) == FITS

    least = params["devices"] if params["find"] == "layers" else 1
    if not fits(least):
        raise RuntimeError(f"not even {least} of {params['find']} fits into {params['memory']} MiB")
    return {"fits": largest(fits, least, MOST), "tries": tries}


def _try(params: dict[str, Any], device: str) -> None:
    """Train once within the limit; a failed allocation raises.

    The limit is that of private memory beyond what the process has, or of each GPU's allocator.
    """
    torch.set_num_threads(1)
    be_killed_first()
    limit = params["memory"] << 20
    if device == "cpu":
        limit_private(limit)
    for place in range(params["devices"] if device == "cuda" else 0):
        limit_gpu(limit, place)
    stack = Stack(params, device)
    stack.train(stack.inputs())
    if device == "cuda":
        torch.cuda.synchronize()
