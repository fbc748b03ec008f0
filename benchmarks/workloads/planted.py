"""A training step in which one operator of a few percent can be made slower by a variable."""

from __future__ import annotations

import os

import torch
from torch import nn

VARIABLE = "ENVCOMPARE_PLANTED"
ELEMENTS = 140_000  # of the planted operator: about 4 % of a step
WIDTH, BATCH = 512, 64


class Planted:
    """Trains a small network; `erf` works on as many times its elements as the variable says."""

    batch = BATCH

    def setup(self, seed: int, device: str) -> None:
        """Build the model, its data and the elements from the seed."""
        torch.manual_seed(seed)
        self._model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, 10), nn.LogSoftmax(1),
        ).to(device)  # fmt: skip
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(20 * BATCH, WIDTH, device=device)
        self._labels = torch.randint(10, (20 * BATCH,), device=device)
        factor = float(os.environ.get(VARIABLE, "1"))
        self._elements = torch.linspace(-2, 2, round(factor * ELEMENTS), device=device)
        self._out = torch.empty_like(self._elements)

    def step(self) -> torch.Tensor:
        """Train on a batch and return its loss, which the planted operator has no part in."""
        rows = torch.randint(len(self._inputs), (BATCH,))
        inputs, labels = self._inputs[rows], self._labels[rows]
        self._optimizer.zero_grad()
        guesses = self._model(inputs)
        torch.erf(self._elements, out=self._out)
        loss = nn.functional.nll_loss(guesses, labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()
