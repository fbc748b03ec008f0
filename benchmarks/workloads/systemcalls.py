"""A workload that only the way into the kernel decides: one small system call, again and again."""

from __future__ import annotations

import os


class SystemCalls:
    """Asks for the parent's process id, which the kernel answers at once and nothing caches."""

    batch = 1

    def setup(self, seed: int, device: str) -> None:
        """Hold nothing: every step is the same."""

    def step(self) -> float:
        """Return the same number in every arm."""
        ask, found = os.getppid, 0
        for _ in range(100_000):
            found |= ask()
        return float(found >= 0)
