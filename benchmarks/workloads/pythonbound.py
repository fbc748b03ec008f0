"""A workload that only the interpreter decides: no library computes, no kernel is asked."""

from __future__ import annotations

from typing import Any


class PythonBound:
    """Counts words and moves bodies, in plain Python."""

    batch = 1

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002 — as the worker calls it
        """Make words and bodies from the seed."""
        state, self.words = seed % 1_000_003 or 1, []
        for _ in range(4000):
            state = state * 48271 % 2147483647
            self.words.append(f"w{state % 997}")
        self.bodies = [[float(index), 0.5 * index, 1.0 + index % 3] for index in range(12)]

    def step(self) -> float:
        """Return a number that depends on all that was computed."""
        return self._count() + self._move()

    def finish(self) -> dict[str, Any] | None:
        """Report nothing."""
        return None

    def _count(self) -> float:
        seen: dict[str, int] = {}
        for word in self.words:
            seen[word] = seen.get(word, 0) + len(word)
        return float(sum(count for word, count in sorted(seen.items()) if word > "w5"))

    def _move(self) -> float:
        total = 0.0
        for _ in range(40):
            for one in self.bodies:
                pull = 0.0
                for other in self.bodies:
                    distance = one[0] - other[0]
                    pull += other[2] * distance / (1.0 + distance * distance)
                total += abs(pull) * one[1]
        return total
