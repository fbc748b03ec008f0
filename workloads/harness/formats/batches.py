"""Training data in memory, handed out in shuffled batches of equal size without end."""

from __future__ import annotations

from typing import Iterator

import torch  # noqa: TID251  its home is workloads/

from harness.failures import DataError


class Batches:
    """Inputs and labels, the first `subset` of them or all for 0, in batches of one size."""

    def __init__(
        self, data: tuple[torch.Tensor, torch.Tensor], size: int, *, subset: int = 0
    ) -> None:
        count = len(data[1])
        if subset > count:
            raise _too_few(f"subset {subset} is more than the {count} samples of the data")
        count = subset or count
        if size > count:
            raise _too_few(f"batch {size} is more than the {count} samples in use")
        self._inputs, self._labels = data[0][:count], data[1][:count]
        self._size = size
        self.per_epoch = count // size

    def start(self, seed: int, device: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return the batches on the device, every epoch in a new order drawn from the seed.

        What is left at the end of an epoch is no whole batch and is passed over, since steps of
        unequal size could not be compared.
        """
        return self._draw(seed, self._inputs.to(device), self._labels.to(device))

    def _draw(
        self, seed: int, inputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            order = torch.randperm(len(labels), generator=generator).to(labels.device)
            for start in range(0, self.per_epoch * self._size, self._size):
                chosen = order[start : start + self._size]
                yield inputs[chosen], labels[chosen]


def _too_few(what: str) -> DataError:
    return DataError(what, hint="choose a smaller one with --set, or give more data")
