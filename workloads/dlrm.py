"""A recommender, as in Naumov et al., "Deep Learning Recommendation Model", 2019, made small."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.training import Trained
from torch import nn  # noqa: TID251


class Recommender(nn.Module):
    """Joins looked-up vectors of some tables with what layers make of dense numbers."""

    def __init__(self, params: dict[str, Any]) -> None:
        super().__init__()
        width, tables, self._dense = params["width"], params["tables"], params["dense"]
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(params["rows"], width, mode="sum", sparse=True) for _ in range(tables)
        )
        self.below = nn.Sequential(nn.Linear(self._dense, width), nn.ReLU())
        self.above = nn.Sequential(
            nn.Linear((tables + 1) * width, 64), nn.ReLU(), nn.Linear(64, params["classes"])
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits (n, classes) of dense numbers and rows (n, dense + tables x lookups)."""
        dense, rows = inputs[:, : self._dense], inputs[:, self._dense :].long()
        each = rows.chunk(len(self.tables), 1)
        found = [table(one) for table, one in zip(self.tables, each)]
        return self.above(torch.cat([self.below(dense), *found], 1))


class Dlrm(Trained):
    """Trains a recommender on random look-ups in tables that no cache holds."""

    BOTTLENECK: ClassVar[str] = "random access to memory"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 512,
        "tables": 8,
        "rows": 200_000,
        "lookups": 32,
        "width": 32,
        "dense": 13,
        "classes": 2,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "tables": (1, None),
        "rows": (1, 16_000_000),  # a row is drawn as a float, which is exact up to 2 ** 24
        "lookups": (1, None),
        "width": (1, None),
        "dense": (1, None),
        "classes": (2, None),
        "optimizer": ("sgd",),  # the gradients of tables are sparse
        "precision": ("fp32", "tf32"),
    }

    def model(self) -> nn.Module:
        """Return the network."""
        return Recommender(self.params)

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return dense numbers with rows (batch, dense + tables x lookups), and classes."""
        params = self.params
        shape = (self.batch, params["tables"] * params["lookups"])
        rows = torch.randint(params["rows"], shape).float()
        return torch.cat([torch.randn(self.batch, params["dense"]), rows], 1), self.labels()
