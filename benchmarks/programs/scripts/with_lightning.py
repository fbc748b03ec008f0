"""A module of Lightning; called with the number of steps."""

import sys

import lightning
import torch
from torch import nn


class Net(lightning.LightningModule):
    """A perceptron on noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: list, _number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.randn(6400, 256), torch.randint(0, 10, (6400,)))
    trainer = lightning.Trainer(
        max_steps=int(sys.argv[1]),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
