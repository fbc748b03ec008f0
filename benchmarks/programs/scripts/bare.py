"""Steps of an optimizer that do as little as they can; prints the nanoseconds of one."""

import sys
import time

import torch

optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
count = int(sys.argv[1])
for number in range(3 * count):
    if number == count:
        began_ns = time.perf_counter_ns()
    if number == 2 * count:
        ended_ns = time.perf_counter_ns()
    optimizer.step()
print((ended_ns - began_ns) / count)
