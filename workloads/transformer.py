"""A text classifier of encoder layers, as in Vaswani et al., "Attention Is All You Need", 2017."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.loading import require_multiple
from harness.training import Trained
from torch import nn  # noqa: TID251


class Encoder(nn.Module):
    """Classifies a sentence by the mean of the last layer over its words."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        width = params["width"]
        self.words = nn.Embedding(params["vocabulary"], width)
        self.places = nn.Parameter(0.02 * torch.randn(1, params["length"], width))
        layer = nn.TransformerEncoderLayer(width, params["heads"], 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, params["layers"], enable_nested_tensor=False)
        self.last = nn.Linear(width, params["classes"])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of the numbers of words (n, length)."""
        return self.last(self.layers(self.words(words) + self.places).mean(1))


class Transformer(Trained):
    """Trains an encoder with attention to classify random sentences."""

    BOTTLENECK: ClassVar[str] = "matrix products"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 4,
        "length": 64,
        "vocabulary": 8000,
        "width": 256,
        "heads": 4,
        "layers": 4,
        "classes": 2,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "length": (1, None),
        "vocabulary": (2, None),
        "width": (1, None),
        "heads": (1, None),
        "layers": (1, None),
        "classes": (2, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        super().__init__(**params)
        require_multiple(params, "width", of="heads")

    def model(self) -> nn.Module:
        """Return the network."""
        return Encoder(self.params)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random words (batch, length) and classes."""
        return self.words(), self.labels()
