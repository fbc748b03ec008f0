"""The sentiment classifier of the same study as the CNN: embedding, plain RNN, one logit, SGD."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness import torchparts
from harness.formats.batches import Batches
from harness.formats.texts import FIRST_WORD, PAD, Review, encode, read_reviews, vocabulary_of
from torch import nn  # noqa: TID251


class Rnn:
    """Trains the sentiment classifier; a step is one batch forward, backward and the optimizer."""

    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 64,
        "epochs": 1,
        "subset": 0,
        "optimizer": "sgd",
        "lr": 1e-3,
        "vocabulary": 200,
        "length": 100,
        "embedding": 20,
        "hidden": 40,
        "layers": 1,
        "evaluate": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "batch": (1, None),
        "epochs": (1, None),
        "subset": (0, None),
        "optimizer": ("adadelta", "sgd", "adam"),
        "lr": (0, None),
        "vocabulary": (1, None),
        "length": (1, None),
        "embedding": (1, None),
        "hidden": (1, None),
        "layers": (1, None),
    }
    DATA: ClassVar[str] = "harness.formats.reviews"
    METRICS: ClassVar[tuple[str, ...]] = ("accuracy",)

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self.params = params
        self.batch = params["batch"]

    def load(self, data: str | None) -> None:
        """Read the reviews, count the words of the training ones, and number them all."""
        params = self.params
        reviews = read_reviews(data, "train", at_most=params["subset"])
        self._vocabulary = vocabulary_of(reviews, params["vocabulary"])
        self._batches = Batches(self._tensors(reviews), self.batch, subset=params["subset"])
        self._data, self._test = data, None
        if params["evaluate"]:
            self._test = self._tensors(read_reviews(data, "test"))
        self.steps_per_epoch = self._batches.per_epoch

    def setup(self, seed: int, device: str) -> None:
        """Build the model and the optimizer from the seed."""
        torch.manual_seed(seed)
        params = self.params
        self._device = device
        words = FIRST_WORD + params["vocabulary"]
        self._model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(words, params["embedding"], padding_idx=PAD),
                "rnn": nn.RNN(
                    params["embedding"],
                    params["hidden"],
                    num_layers=params["layers"],
                    batch_first=True,
                ),
                "last": nn.Linear(params["hidden"], 1),
            }
        ).to(device)
        self._optimizer = torchparts.make_optimizer(
            params["optimizer"], self._model.parameters(), lr=params["lr"]
        )
        self._draw = self._batches.start(seed, device)

    def step(self) -> torch.Tensor:
        """Train on the next batch and return its loss."""
        words, sentiments = next(self._draw)
        self._optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(self._logits(words), sentiments)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def finish(self) -> dict[str, Any] | None:
        """Return the accuracy on the test set where `evaluate` is set."""
        return self.evaluate() if self.params["evaluate"] else None

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on the test set, which is read when it is first asked for."""
        if self._test is None:
            self._test = self._tensors(read_reviews(self._data, "test"))
        self._model.eval()
        right = 0
        with torch.no_grad():
            for words, sentiments in zip(*(part.split(500) for part in self._test)):
                guesses = self._logits(words.to(self._device)).cpu() > 0
                right += int((guesses == (sentiments > 0.5)).sum())
        self._model.train()
        return {"accuracy": right / len(self._test[1])}

    def _logits(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self._model["rnn"](self._model["embedding"](words))
        return self._model["last"](states[:, -1]).squeeze(1)

    def _tensors(self, reviews: list[Review]) -> tuple[torch.Tensor, torch.Tensor]:
        length = self.params["length"]
        numbers = [encode(words, self._vocabulary, length) for words, _ in reviews]
        sentiments = [float(sentiment) for _, sentiment in reviews]
        return torch.tensor(numbers), torch.tensor(sentiments)
