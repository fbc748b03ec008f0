"""ResNet-18 of He et al., "Deep Residual Learning for Image Recognition", 2016."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, Sequence

import torch  # noqa: TID251  its home is workloads/
from harness.training import TrainedOnImages
from torch import nn  # noqa: TID251

Block = Callable[[int, int, int], "tuple[nn.Module, int]"]
"""Of channels before, width and stride, it gives the layers and the channels after them."""
STAGES = (2, 2, 2, 2)  # blocks of each


class Residual(nn.Module):
    """Adds what its layers make of an input to that input, brought to the same shape."""

    def __init__(self, layers: nn.Module, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.layers = layers
        is_same = stride == 1 and before == after
        self.way = nn.Identity() if is_same else normed(before, after, 1, stride=stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images (n, after, height / stride, width / stride)."""
        return nn.functional.relu(self.layers(images) + self.way(images))


def normed(before: int, after: int, kernel: int, *, stride: int = 1) -> nn.Module:
    """Return a convolution that keeps the size but for its stride, with batch normalisation."""
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


def network(block: Block, stages: Sequence[int], *, classes: int) -> nn.Module:
    """Return a residual network of four stages, each but the first of half the size."""
    parts = [normed(3, 64, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for number, blocks in enumerate(stages):
        for place in range(blocks):
            part, channels = block(channels, 64 << number, 2 if number and not place else 1)
            parts.append(part)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    return nn.Sequential(*parts, *head)


def basic(before: int, width: int, stride: int) -> tuple[nn.Module, int]:
    """Return a block of two 3 x 3 convolutions."""
    first = normed(before, width, 3, stride=stride)
    layers = nn.Sequential(first, nn.ReLU(), normed(width, width, 3))
    return Residual(layers, before, width, stride), width


class Resnet18(TrainedOnImages):
    """Trains ResNet-18 on random images: convolutions between many small kernels."""

    BOTTLENECK: ClassVar[str] = "convolutions"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 2,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "batch": (2, None),
    }

    def model(self) -> nn.Module:
        """Return the network."""
        return network(basic, STAGES, classes=self.params["classes"])
