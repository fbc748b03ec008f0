"""ResNet-50 of He et al., 2016, with the stride in the 3 x 3 convolutions as torchvision has it."""

from __future__ import annotations

from typing import Any, ClassVar

from harness.training import TrainedOnImages
from resnet18 import Residual, network, normed
from torch import nn  # noqa: TID251

STAGES = (3, 4, 6, 3)  # blocks of each


def bottleneck(before: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 convolutions."""
    layers = nn.Sequential(
        normed(before, width, 1),
        nn.ReLU(),
        normed(width, width, 3, stride=stride),
        nn.ReLU(),
        normed(width, 4 * width, 1),
    )
    return Residual(layers, before, 4 * width, stride), 4 * width


class Resnet50(TrainedOnImages):
    """Trains ResNet-50 on random images: 1 x 1 convolutions and batch normalisation."""

    BOTTLENECK: ClassVar[str] = "convolutions"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 2,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "batch": (2, None),
    }

    def model(self) -> nn.Module:
        """Return the network."""
        return network(bottleneck, STAGES, classes=self.params["classes"])
