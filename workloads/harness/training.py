"""The common part of the zoo: training a model on one random batch."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, ContextManager

import torch  # noqa: TID251  its home is workloads/

from harness import compiling, torchparts

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trained:
    """Trains a model; a step is one batch forward, backward and the optimizer.

    A workload gives `model` and `data`, and declares further parameters and ranges. The precision
    `tf32` rounds the factors of matrix products, on GPUs only; `bf16` and `fp16` are automatic
    mixed precision, the latter with scaled gradients. With `compile` the first step compiles the
    model by `torch.compile`, but not the loss and the optimizer.
    """

    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 1,
        "optimizer": "sgd",
        "lr": 0.01,
        "precision": "fp32",
        "compile": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "batch": (1, None),
        "optimizer": ("adadelta", "sgd", "adam"),
        "lr": (0, None),
        "precision": ("fp32", "tf32", "bf16", "fp16"),
    }

    def __init_subclass__(cls) -> None:
        """Add the parameters and ranges of base classes to those of a class."""
        above = cls.__mro__[1]
        cls.PARAMS = {**getattr(above, "PARAMS", {}), **cls.PARAMS}
        cls.RANGES = {**getattr(above, "RANGES", {}), **cls.RANGES}

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self.params = params
        self.batch = params["batch"]
        if params["compile"]:
            compiling.make_ready()

    def setup(self, seed: int, device: str) -> None:
        """Build model, optimizer and batch from the seed."""
        torch.manual_seed(seed)
        params = self.params
        self._device, self._precision = device, params["precision"]
        is_last = params.get("channels_last", False)
        memory = torch.channels_last if is_last else torch.preserve_format
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = self._precision == "tf32"
        self._model = self.model().to(device, memory_format=memory)
        self._computed = compiling.computed(self._model, device, compiled=params["compile"])
        self._inputs, self._targets = self.data()
        self._inputs = self._inputs.to(device, memory_format=memory)
        self._targets = self._targets.to(device)
        parameters = [one for one in self._model.parameters() if one.requires_grad]
        self._optimizer = torchparts.make_optimizer(
            params["optimizer"], parameters, lr=params["lr"]
        )
        is_scaled = self._precision == "fp16"
        self._scaler = torch.amp.GradScaler(device) if is_scaled else None

    def step(self) -> torch.Tensor:
        """Train on the batch and return its loss."""
        self._optimizer.zero_grad()
        with self._computing():
            loss = self.loss(self._computed(self._inputs), self._targets)
        if self._scaler is None:
            loss.backward()
            self._optimizer.step()
        else:
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return loss.detach()

    def model(self) -> torch.nn.Module:
        """Return the model with random weights."""
        raise NotImplementedError

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets of one batch."""
        raise NotImplementedError

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits (n, classes) of classes (n)."""
        return torch.nn.functional.cross_entropy(outputs, targets)

    def words(self) -> torch.Tensor:
        """Return the numbers of random words (batch, length)."""
        return torch.randint(self.params["vocabulary"], (self.batch, self.params["length"]))

    def labels(self) -> torch.Tensor:
        """Return random classes (batch)."""
        return torch.randint(self.params["classes"], (self.batch,))

    def _computing(self) -> ContextManager[Any]:
        if self._precision not in _AUTOCAST:
            return contextlib.nullcontext()
        computing: ContextManager[Any] = torch.autocast(
            self._device, dtype=_AUTOCAST[self._precision]
        )
        return computing


class TrainedOnImages(Trained):
    """Trains a model on random colour images of a size, in one of two orders of their numbers."""

    PARAMS: ClassVar[dict[str, Any]] = {"side": 64, "classes": 1000, "channels_last": False}
    RANGES: ClassVar[dict[str, Any]] = {"side": (32, None), "classes": (2, None)}

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random images (batch, 3, side, side) and their classes."""
        side = self.params["side"]
        return torch.randn(self.batch, 3, side, side), self.labels()
