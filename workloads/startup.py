"""The time before a first step: Python starts, imports PyTorch and trains once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, ClassVar

from harness.loading import ParameterError

# Prints the loss, or a number of the seed: what the arms are compared by.
_IMPORT = """
import sys
name, seed = sys.argv[1:]
__import__(name)
print(1 + int(seed) % 1000)
"""
_FIRST_STEP = """
import sys
import torch
torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[2]))
device = sys.argv[1]
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(21632, 10)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss = torch.nn.functional.cross_entropy(
    model(torch.randn(64, 1, 28, 28).to(device)), torch.randint(10, (64,)).to(device)
)
loss.backward()
optimizer.step()
print(float(loss))
"""


class Startup:
    """Starts a new Python in each step, which imports a package or trains a network once.

    The start of the environment is not timed here: the report has it under start-up.
    """

    BOTTLENECK: ClassVar[str] = "starting Python and reading its files"
    PARAMS: ClassVar[dict[str, Any]] = {"until": "first-step", "package": "torch"}
    RANGES: ClassVar[dict[str, Any]] = {"until": ("import", "first-step")}

    def __init__(self, until: str, package: str) -> None:
        if until == "first-step" and package != "torch":
            raise ParameterError("another package than torch needs until=import")
        self._until, self._package = until, package

    def setup(self, seed: int, device: str) -> None:
        """Choose the program to start."""
        script = _IMPORT if self._until == "import" else _FIRST_STEP
        what = self._package if self._until == "import" else device
        self._argv = (sys.executable, "-c", script, what, str(seed))

    def step(self) -> float:
        """Start Python and wait for its end; return its output."""
        done = subprocess.run(self._argv, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"the new Python ended with exit code {done.returncode}: {last}")
        return float(done.stdout.split()[-1])
