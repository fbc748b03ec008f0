"""The MNIST classifier of an nvprof study: two convolutions, two linear layers, Adadelta.

The study is "Multi-Modal Multi Environment Performance Comparison on Google Cloud Platform", 2022.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness import compiling, torchparts
from harness.formats.batches import Batches
from harness.formats.images import read_digits
from harness.loading import require
from torch import nn  # noqa: TID251

SIDE, CLASSES = 28, 10
# Mean and deviation of the MNIST training pixels, as in PyTorch's own MNIST example.
MEAN, DEVIATION = 0.1307, 0.3081


class Cnn:
    """Trains the MNIST classifier; a step is one batch forward, backward and the optimizer."""

    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 64,
        "epochs": 1,
        "subset": 0,
        "optimizer": "adadelta",
        "lr": 1.0,
        "filters1": 32,
        "filters2": 64,
        "kernel": 3,
        "pool": 2,
        "hidden": 128,
        "dropout1": 0.25,
        "dropout2": 0.5,
        "evaluate": False,
        "compile": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "batch": (1, None),
        "epochs": (1, None),
        "subset": (0, None),
        "optimizer": ("adadelta", "sgd", "adam"),
        "lr": (0, None),
        "filters1": (1, None),
        "filters2": (1, None),
        "kernel": (1, 14),
        "pool": (1, None),
        "hidden": (1, None),
        "dropout1": (0, 1),
        "dropout2": (0, 1),
    }
    DATA: ClassVar[str] = "harness.formats.digits"
    METRICS: ClassVar[tuple[str, ...]] = ("accuracy",)

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self.params = params
        self.batch = params["batch"]
        if params["compile"]:
            compiling.make_ready()
        self._side = (SIDE - 2 * (params["kernel"] - 1)) // params["pool"]
        require("pool", params["pool"], least=1, most=SIDE - 2 * (params["kernel"] - 1))

    def load(self, data: str | None) -> None:
        """Read the digits; pixels stay bytes until a step takes them."""
        self._train = read_digits(data, train=True)
        self._data, self._test = data, None
        if self.params["evaluate"]:
            self._test = read_digits(data, train=False)
        self._batches = Batches(self._train, self.batch, subset=self.params["subset"])
        self.steps_per_epoch = self._batches.per_epoch

    def setup(self, seed: int, device: str) -> None:
        """Build the model and the optimizer from the seed."""
        torch.manual_seed(seed)
        self._device = device
        self._model = self._build().to(device)
        self._computed = compiling.computed(self._model, device, compiled=self.params["compile"])
        parameters = self._model.parameters()
        self._optimizer = torchparts.make_optimizer(
            self.params["optimizer"], parameters, lr=self.params["lr"]
        )
        self._draw = self._batches.start(seed, device)

    def step(self) -> torch.Tensor:
        """Train on the next batch and return its loss."""
        images, labels = next(self._draw)
        self._optimizer.zero_grad()
        loss = nn.functional.nll_loss(self._computed(_normal(images)), labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def finish(self) -> dict[str, Any] | None:
        """Return the accuracy on the test set where `evaluate` is set."""
        return self.evaluate() if self.params["evaluate"] else None

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the test set, which is read when it is first asked for."""
        if self._test is None:
            self._test = read_digits(self._data, train=False)
        self._model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in zip(*(part.split(500) for part in self._test)):
                guesses = self._model(_normal(images.to(self._device))).argmax(1)
                right += int((guesses.cpu() == labels).sum())
        self._model.train()
        return {"accuracy": right / len(self._test[1])}

    def _build(self) -> nn.Module:
        params = self.params
        return nn.Sequential(
            nn.Conv2d(1, params["filters1"], params["kernel"]),
            nn.ReLU(),
            nn.Conv2d(params["filters1"], params["filters2"], params["kernel"]),
            nn.ReLU(),
            nn.MaxPool2d(params["pool"]),
            nn.Dropout(params["dropout1"]),
            nn.Flatten(),
            nn.Linear(params["filters2"] * self._side**2, params["hidden"]),
            nn.ReLU(),
            nn.Dropout(params["dropout2"]),
            nn.Linear(params["hidden"], CLASSES),
            nn.LogSoftmax(1),
        )


def _normal(images: torch.Tensor) -> torch.Tensor:
    """Return bytes (n, 28, 28) as numbers (n, 1, 28, 28) of mean 0 and deviation 1."""
    return images.unsqueeze(1).float().div_(255).sub_(MEAN).div_(DEVIATION)
