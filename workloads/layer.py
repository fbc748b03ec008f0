"""One layer by itself, forward and backward."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness import compiling
from harness.loading import require, require_multiple
from torch import nn  # noqa: TID251

SEEN = 1024  # numbers of the output that the arms are compared by


class Layer:
    """Runs a layer of one kind on random numbers, forward and backward."""

    BOTTLENECK: ClassVar[str] = "depends on `kind`"
    PARAMS: ClassVar[dict[str, Any]] = {
        "kind": "conv2d",
        "batch": 16,
        "channels": 64,
        "side": 32,
        "kernel": 3,
        "heads": 4,
        "backward": True,
        "compile": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "kind": ("conv2d", "linear", "attention", "layernorm", "relu", "maxpool2d"),
        "batch": (1, None),
        "channels": (1, None),
        "side": (1, None),
        "kernel": (1, None),
        "heads": (1, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self.params = params
        self.batch = params["batch"]
        if params["compile"]:
            compiling.make_ready()
        if params["kind"] == "attention":
            require_multiple(params, "channels", of="heads")
        if params["kind"] in ("conv2d", "maxpool2d"):
            require("kernel", params["kernel"], least=1, most=params["side"])

    def setup(self, seed: int, device: str) -> None:
        """Draw weights and numbers from the seed.

        Layers of images get (batch, channels, side, side), those of words (batch, side, channels).
        """
        torch.manual_seed(seed)
        params = self.params
        kind, channels, side = params["kind"], params["channels"], params["side"]
        is_image = kind in ("conv2d", "relu", "maxpool2d")
        shape = (channels, side, side) if is_image else (side, channels)
        self._layer = self._make(kind).to(device)
        self._computed = compiling.computed(self._layer, device, compiled=params["compile"])
        self._inputs = torch.randn(self.batch, *shape).to(device)
        self._inputs.requires_grad_(params["backward"])
        with torch.no_grad():
            outputs = self._layer(self._inputs)
        self._gradient = torch.randn(outputs.shape).to(device)
        self._weights = torch.rand(min(SEEN, outputs.numel())).to(device)

    def step(self) -> torch.Tensor:
        """Return a number that depends on the first of what the layer gives, and is far from 0."""
        with torch.set_grad_enabled(self.params["backward"]):
            outputs = self._computed(self._inputs)
        if self.params["backward"]:
            self._layer.zero_grad()
            self._inputs.grad = None
            outputs.backward(self._gradient)
        seen = outputs.detach().flatten()[:SEEN]
        return (seen.square() * self._weights).mean()

    def _make(self, kind: str) -> nn.Module:
        channels, kernel = self.params["channels"], self.params["kernel"]
        if kind == "conv2d":
            return nn.Conv2d(channels, channels, kernel, padding=kernel // 2)
        if kind == "linear":
            return nn.Linear(channels, channels)
        if kind == "attention":
            return Attention(channels, self.params["heads"])
        if kind == "layernorm":
            return nn.LayerNorm(channels)
        return nn.ReLU() if kind == "relu" else nn.MaxPool2d(kernel)


class Attention(nn.Module):
    """Attention of each word to all words of its text."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return what came of words (batch, length, width), in the same shape."""
        return self.layer(words, words, words, need_weights=False)[0]
