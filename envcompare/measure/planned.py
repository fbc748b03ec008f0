"""The restarts of a cell by number: which of them are whole, and which one is to run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from envcompare.run_folder.records import Block, Design, Sample


@dataclass(slots=True)
class PlannedRestarts:
    """What was measured of each restart.

    Where the user has fixed the size of the design, a restart that was broken off is measured anew
    under its number; else it keeps the rounds that it has, and the next one gets a new number.
    """

    design: Design
    _rounds: dict[int, Counter[str]] = field(default_factory=dict)  # by restart and arm

    @classmethod
    def of(cls, design: Design, samples: Iterable[Sample]) -> PlannedRestarts:
        """Return the restarts that the blocks among these samples are of."""
        restarts = cls(design)
        for sample in samples:
            if isinstance(sample, Block):
                restarts.add(sample)
        return restarts

    def add(self, block: Block) -> None:
        """Count a block; one that was dropped was measured too."""
        self._rounds.setdefault(block.restart, Counter())[block.arm] += not block.warmup

    def begin(self, restart: int) -> None:
        """Count a restart from its first round."""
        self._rounds[restart] = Counter()

    def next(self, arms: Iterable[str]) -> int:
        """Return the number of the next restart of these arms."""
        if self.design.restarts is None:
            return 1 + max(self._rounds, default=-1)
        numbers = range(self.design.restarts)
        return next((n for n in numbers if not self._is_whole(n, arms)), self.design.restarts)

    def are_done(self, arms: Iterable[str]) -> bool:
        """Tell whether the size of the design is fixed and all its restarts are whole."""
        return self.design.restarts is not None and self.next(arms) == self.design.restarts

    def _is_whole(self, restart: int, arms: Iterable[str]) -> bool:
        rounds = self._rounds.get(restart, Counter())
        return all(rounds[arm] >= (self.design.rounds or 1) for arm in arms)
