"""VGG16: configuration D of Simonyan and Zisserman, "Very Deep Convolutional Networks", 2015."""

from __future__ import annotations

from typing import Any, ClassVar

from harness.training import TrainedOnImages
from torch import nn  # noqa: TID251

# Filters of each convolution between two pools.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class Vgg16(TrainedOnImages):
    """Trains VGG16 on random images: 3 x 3 convolutions, one after the other."""

    BOTTLENECK: ClassVar[str] = "convolutions"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 1,
        "hidden": 512,
        "swap_relu_pool": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "hidden": (1, None),
    }

    def model(self) -> nn.Module:
        """Return the network; with `swap_relu_pool` the pool of a stage comes before its last ReLU.

        The result is the same, and ReLU then works on a quarter of the numbers.
        """
        parts: list[nn.Module] = []
        hidden = self.params["hidden"]  # 4096 in the paper
        before = 3
        for filters in STAGES:
            for width in filters:
                parts += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
                before = width
            parts.insert(len(parts) - self.params["swap_relu_pool"], nn.MaxPool2d(2))
        return nn.Sequential(
            *parts,
            nn.AdaptiveAvgPool2d(7),
            nn.Flatten(),
            nn.Linear(512 * 49, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, self.params["classes"]),
        )
