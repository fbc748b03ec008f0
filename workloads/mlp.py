"""A multilayer perceptron: linear layers of one width, and nothing else."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.training import Trained
from torch import nn  # noqa: TID251


class Mlp(Trained):
    """Trains linear layers on random vectors."""

    BOTTLENECK: ClassVar[str] = "matrix products"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 64,
        "inputs": 784,
        "width": 1024,
        "layers": 3,
        "classes": 10,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "inputs": (1, None),
        "width": (1, None),
        "layers": (1, None),
        "classes": (2, None),
    }

    def model(self) -> nn.Module:
        """Return the layers, with ReLU between them."""
        params = self.params
        widths = [params["inputs"]] + [params["width"]] * params["layers"]
        hidden = [
            part
            for before, after in zip(widths, widths[1:])
            for part in (nn.Linear(before, after), nn.ReLU())
        ]
        return nn.Sequential(*hidden, nn.Linear(widths[-1], params["classes"]))

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random vectors (batch, inputs) and classes."""
        return torch.randn(self.batch, self.params["inputs"]), self.labels()
