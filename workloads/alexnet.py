"""AlexNet as in Krizhevsky, "One weird trick for parallelizing ...", 2014."""

from __future__ import annotations

from typing import Any, ClassVar

from harness.training import TrainedOnImages
from torch import nn  # noqa: TID251


class Alexnet(TrainedOnImages):
    """Trains AlexNet on random images: three linear layers have most of its weights."""

    BOTTLENECK: ClassVar[str] = "reading and writing weights"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 8,
        "hidden": 2048,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "side": (63, None),
        "hidden": (1, None),
    }

    def model(self) -> nn.Module:
        """Return the network; `hidden` is 4096 there."""
        hidden = self.params["hidden"]
        return nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(256 * 36, hidden),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, self.params["classes"]),
        )
