"""The sentiment classifier with a slowdown of one of several kinds, chosen by a variable."""

from __future__ import annotations

import os
import time
from typing import Any

from rnn import Rnn  # the workload beside the worker

VARIABLE = "ENVCOMPARE_SLOWED"
SHARE = 0.02  # of the CPU time of a step, that is spent once more
EVERY, TIMES = 50, 3.0  # one step in so many takes so many times as long
_CHUNK_BYTES = 1 << 18  # above the thresholds of glibc where --stabilise is off
_WAY = os.environ.get(VARIABLE, "")


class SlowedWays(Rnn):
    """A step, and what the variable asks for after it."""

    def setup(self, seed: int, device: str) -> None:
        """Build the model, and count steps from 0."""
        super().setup(seed, device)
        self._steps = 0

    def step(self) -> Any:  # noqa: ANN401  a loss
        """Train on the next batch, then lose time in the way that was chosen."""
        began_ns, began_wall_ns = time.thread_time_ns(), time.monotonic_ns()
        loss = super().step()
        used_ns = time.thread_time_ns() - began_ns
        self._steps += 1
        if _WAY == "python":
            _compute(began_ns + used_ns * (1 + SHARE))
        elif _WAY == "allocator":
            _allocate(began_ns + used_ns * (1 + SHARE))
        elif _WAY == "sleep":
            time.sleep(SHARE * (time.monotonic_ns() - began_wall_ns) / 1e9)
        elif _WAY == "tail" and self._steps % EVERY == 0:
            _compute(began_ns + used_ns * TIMES)
        return loss


def _compute(until_ns: float) -> None:
    """Keep the interpreter busy until the thread has used so much CPU time in all."""
    while time.thread_time_ns() < until_ns:
        pass


def _allocate(until_ns: float) -> None:
    """Make and drop buffers that the kernel fills with zeros."""
    while time.thread_time_ns() < until_ns:
        bytearray(_CHUNK_BYTES)
