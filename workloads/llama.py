"""A language model like Llama (arXiv:2302.13971): RMSNorm, RoPE, SwiGLU, shared keys."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.loading import require_multiple
from harness.training import Trained
from torch import nn  # noqa: TID251

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Llama(Trained):
    """Reads a prompt, writes words one by one, or trains adapters (LoRA), with random weights."""

    BOTTLENECK: ClassVar[str] = "matrix products; of decode, reading weights"
    PARAMS: ClassVar[dict[str, Any]] = {
        "work": "prefill",
        "batch": 1,
        "length": 128,
        "vocabulary": 8000,
        "width": 512,
        "heads": 8,
        "key_heads": 2,
        "layers": 4,
        "inner": 1536,
        "rank": 8,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "work": ("prefill", "decode", "lora"),
        "length": (2, None),
        "vocabulary": (2, None),
        "width": (2, None),
        "heads": (1, None),
        "key_heads": (1, None),
        "layers": (1, None),
        "inner": (1, None),
        "rank": (1, None),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        super().__init__(**params)
        require_multiple(params, "width", of=2 * params["heads"])
        require_multiple(params, "heads", of="key_heads")

    def setup(self, seed: int, device: str) -> None:
        """Build the model and a prompt from the seed; for `decode` the prompt is read already."""
        super().setup(seed, device)
        if self.params["work"] == "decode":
            with torch.no_grad(), self._computing():
                self._model(self._inputs)
            for layer in self._model.layers:
                layer.keep()

    def step(self) -> torch.Tensor:
        """Return the loss of a prompt or of one further word, which is always the same place."""
        if self.params["work"] == "lora":
            return super().step()
        is_next = self.params["work"] == "decode"
        with torch.no_grad(), self._computing():
            words = self._inputs[:, -1:] if is_next else self._inputs
            targets = self._targets[:, -1:] if is_next else self._targets
            return self.loss(self._computed(words), targets)

    def model(self) -> nn.Module:
        """Return the network; with `lora` its adapters alone are trained."""
        model = Decoder(self.params)
        if self.params["work"] == "lora":
            model.requires_grad_(requires_grad=False)
            for layer in model.layers:
                layer.adapt(self.params["rank"])
        elif self.params["precision"] in HALVES:  # as it is served: no weight is cast in a step
            model.to(HALVES[self.params["precision"]])
        return model

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random words (batch, length), and those that follow each."""
        words = torch.randint(self.params["vocabulary"], (self.batch, self.params["length"] + 1))
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy of logits (n, length, vocabulary) of words (n, length)."""
        return nn.functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())


class Decoder(nn.Module):
    """Gives each word of a text the logits of the next one."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        width = params["width"]
        self.words = nn.Embedding(params["vocabulary"], width)
        self.layers = nn.ModuleList(Block(params) for _ in range(params["layers"]))
        self.norm = Norm(width)
        self.last = nn.Linear(width, params["vocabulary"], bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (n, length, vocabulary) of words (n, length)."""
        states = self.words(words)
        for layer in self.layers:
            states = layer(states)
        return self.last(self.norm(states))


class Block(nn.Module):
    """Attention to what came before, then two gated linear layers."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        width, self._heads, self._keys = params["width"], params["heads"], params["key_heads"]
        part = width // self._heads * self._keys
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, part, bias=False)
        self.values = nn.Linear(width, part, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        inner = params["inner"]
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norms = nn.ModuleList([Norm(width), Norm(width)])
        self._seen: tuple[torch.Tensor, torch.Tensor] | None = None
        self._kept: tuple[torch.Tensor, torch.Tensor] | None = None

    def adapt(self, rank: int) -> None:
        """Add to queries and values a product of two small matrices, which is trained."""
        self.queries = Adapted(self.queries, rank)
        self.values = Adapted(self.values, rank)

    def keep(self) -> None:
        """Keep keys and values of all words but the last, for words that follow them."""
        assert self._seen is not None
        self._kept = (self._seen[0][:, :, :-1], self._seen[1][:, :, :-1])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return states (n, length, width) of states."""
        states = states + self._attention(self.norms[0](states))
        inner = self.norms[1](states)
        return states + self.down(nn.functional.silu(self.gate(inner)) * self.up(inner))

    def _attention(self, states: torch.Tensor) -> torch.Tensor:
        before = 0 if self._kept is None else self._kept[0].shape[2]
        queries = rotated(self._split(self.queries(states), self._heads), before)
        keys = rotated(self._split(self.keys(states), self._keys), before)
        values = self._split(self.values(states), self._keys)
        if self._kept is None:
            self._seen = (keys, values)
        else:
            keys = torch.cat([self._kept[0], keys], 2)
            values = torch.cat([self._kept[1], values], 2)
        times = self._heads // self._keys
        keys, values = (one.repeat_interleave(times, 1) for one in (keys, values))
        found = nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=self._kept is None
        )
        return self.output(found.transpose(1, 2).flatten(2))

    @staticmethod
    def _split(states: torch.Tensor, heads: int) -> torch.Tensor:
        """Return (n, heads, length, width / heads)."""
        return states.unflatten(2, (heads, -1)).transpose(1, 2)


class Adapted(nn.Module):
    """A frozen layer plus a trained product of two small matrices."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the sum of both."""
        return self.layer(states) + self.up(self.down(states))


class Norm(nn.Module):
    """Scales each state to a mean square of 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states, scaled in single precision."""
        mean = states.float().square().mean(-1, keepdim=True)
        return (states.float() * torch.rsqrt(mean + 1e-5)).type_as(states) * self.weight


def rotated(states: torch.Tensor, before: int) -> torch.Tensor:
    """Return (n, heads, length, width) with pairs rotated by angles that grow with the place."""
    length, half = states.shape[2], states.shape[3] // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=states.device) / half)
    places = torch.arange(before, before + length, device=states.device)
    angles = torch.outer(places, speeds)
    cosine, sine = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    first, second = states[..., :half], states[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
