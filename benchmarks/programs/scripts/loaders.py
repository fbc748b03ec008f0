"""A CNN whose images come from two processes; called with the number of steps."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """Images that cost some time to make."""

    def __len__(self) -> int:
        """Return the number of images."""
        return 32 * int(sys.argv[1])

    def __getitem__(self, index: int) -> tuple:
        """Return an image of noise and its label."""
        return torch.randn(1, 28, 28).sort().values, index % 10


if __name__ == "__main__":
    model = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Flatten(), nn.Linear(9216, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for inputs, labels in DataLoader(Noise(), batch_size=32, num_workers=2):
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
