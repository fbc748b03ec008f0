"""LeNet-5, after LeCun et al., "Gradient-Based Learning Applied to Document Recognition", 1998."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.training import Trained
from torch import nn  # noqa: TID251


class Lenet(Trained):
    """Trains LeNet-5 on random digits, with many kernels that are small."""

    BOTTLENECK: ClassVar[str] = "starting small kernels"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 64,
        "classes": 10,
        "channels_last": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "classes": (2, None),
    }

    def model(self) -> nn.Module:
        """Return the network, with tanh and mean pooling."""
        return nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, self.params["classes"]),
        )

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random images (batch, 1, 28, 28) and classes."""
        return torch.randn(self.batch, 1, 28, 28), self.labels()
