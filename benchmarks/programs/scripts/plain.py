"""A training loop of PyTorch without any library; called with the number of steps."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(sys.argv[1])):
    inputs, labels = torch.randn(64, 256), torch.randint(0, 10, (64,))
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
