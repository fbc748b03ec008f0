"""A data pipeline in plain Python: split, count, number and shuffle words."""

from __future__ import annotations

import collections
import random
import re
from typing import Any, ClassVar

WORD = re.compile(r"[a-z]+|[.,]")


class Python:
    """Splits generated texts into words and changes them, in the interpreter alone."""

    BOTTLENECK: ClassVar[str] = "the interpreter"
    PARAMS: ClassVar[dict[str, Any]] = {"batch": 64, "length": 200, "vocabulary": 2000}
    RANGES: ClassVar[dict[str, Any]] = {
        "batch": (1, None),
        "length": (1, None),
        "vocabulary": (1, None),
    }

    def __init__(self, batch: int, length: int, vocabulary: int) -> None:
        self.batch = batch
        self._length = length
        self._vocabulary = vocabulary

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002  no device is used
        """Make the texts from the seed."""
        self._drawn = random.Random(seed)
        words = [self._word() for _ in range(self._vocabulary)]
        self._texts = [
            " ".join(self._drawn.choices(words, k=self._length)) for _ in range(self.batch)
        ]

    def step(self) -> float:
        """Return a number that depends on all words of the batch."""
        counts: collections.Counter[str] = collections.Counter()
        split = [WORD.findall(text.lower()) for text in self._texts]
        for words in split:
            counts.update(words)
        numbers = {word: number for number, (word, _) in enumerate(counts.most_common())}
        total = 0
        for words in split:
            changed = [numbers[word] for word in words if len(word) > 1]
            changed = [0 if number % 7 == 3 else number for number in changed]
            changed.reverse()
            total += sum(place * number for place, number in enumerate(changed))
        return total / 1e9

    def _word(self) -> str:
        letters = self._drawn.choices("abcdefghijklmnopqrstuvwxyz", k=self._drawn.randint(1, 9))
        return "".join(letters)
