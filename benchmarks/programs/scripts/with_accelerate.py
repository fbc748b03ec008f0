"""A loop of Accelerate with accumulated gradients; called with the number of steps."""

import sys

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
data = torch.utils.data.TensorDataset(torch.randn(6400, 256), torch.randint(0, 10, (6400,)))
model, optimizer, batches = accelerator.prepare(
    net,
    torch.optim.SGD(net.parameters(), lr=0.01),
    torch.utils.data.DataLoader(data, batch_size=64, shuffle=True),
)
left = 2 * int(sys.argv[1])
while left > 0:
    for inputs, labels in batches:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
        left -= 1
        if left == 0:
            break
