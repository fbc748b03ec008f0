"""A vision transformer, as in Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.loading import require, require_multiple
from harness.training import TrainedOnImages
from torch import nn  # noqa: TID251


class Patches(nn.Module):
    """Classifies an image as a sentence of its patches."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        width, patch = params["width"], params["patch"]
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        count = (params["side"] // patch) ** 2
        self.places = nn.Parameter(0.02 * torch.randn(1, count + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, params["heads"], 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, params["layers"], enable_nested_tensor=False)
        self.last = nn.Linear(width, params["classes"])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of images (n, 3, side, side)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        words = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1) + self.places
        return self.last(self.layers(words)[:, 0])


class Vit(TrainedOnImages):
    """Trains a vision transformer on random images: attention and linear layers over patches."""

    BOTTLENECK: ClassVar[str] = "matrix products"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 2,
        "side": 96,
        "patch": 16,
        "width": 384,
        "heads": 6,
        "layers": 6,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "side": (1, None),
        "patch": (1, None),
        "width": (1, None),
        "heads": (1, None),
        "layers": (1, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        super().__init__(**params)
        require_multiple(params, "width", of="heads")
        require("patch", params["patch"], least=1, most=params["side"])

    def model(self) -> nn.Module:
        """Return the network."""
        return Patches(self.params)
