"""A text classifier of LSTM layers (Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.training import Trained
from torch import nn  # noqa: TID251


class Memory(nn.Module):
    """Classifies a sentence by the state after its last word."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(params["vocabulary"], params["width"])
        self.layers = nn.LSTM(params["width"], params["hidden"], params["layers"], batch_first=True)
        self.last = nn.Linear(params["hidden"], params["classes"])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of the numbers of words (n, length)."""
        return self.last(self.layers(self.words(words))[0][:, -1])


class Lstm(Trained):
    """Trains an LSTM to classify random sentences: one small product for each word."""

    BOTTLENECK: ClassVar[str] = "a chain of small matrix products"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 16,
        "length": 32,
        "vocabulary": 8000,
        "width": 128,
        "hidden": 256,
        "layers": 1,
        "classes": 2,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "length": (1, None),
        "vocabulary": (2, None),
        "width": (1, None),
        "hidden": (1, None),
        "layers": (1, None),
        "classes": (2, None),
        "precision": ("fp32", "tf32"),  # on CPUs oneDNN has no LSTM of another
        "compile": (False,),  # PyTorch's compiler leaves recurrent layers as they are
    }

    def model(self) -> nn.Module:
        """Return the network."""
        return Memory(self.params)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random words (batch, length) and classes."""
        return self.words(), self.labels()
