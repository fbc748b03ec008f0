"""The classifier with a true slowdown: after each step it computes on for a known share of it.

The share is the environment variable SLOWDOWN. What counts is the CPU time of the thread, so that
a step which a neighbour made wait is not slowed more.
"""

from __future__ import annotations

import os
import time
from typing import Any

from cnn import Cnn  # the workload beside the worker

SHARE = float(os.environ.get("SLOWDOWN", "0"))


def compute_until(cpu_ns: float) -> None:
    """Keep the CPU until the thread has used this much of it in all."""
    while time.thread_time_ns() < cpu_ns:
        pass


class Slowed(Cnn):
    """A step and SLOWDOWN more of its CPU time."""

    def step(self) -> Any:  # noqa: ANN401  a loss
        """Train on the next batch, then spend the share."""
        began_ns = time.thread_time_ns()
        loss = super().step()
        used_ns = time.thread_time_ns() - began_ns
        compute_until(began_ns + used_ns * (1 + SHARE))
        return loss
