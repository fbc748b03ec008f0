"""Rows of whole numbers in little memory: 8 bytes a cell, whatever the file is made of."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

_KEYS_MOST: Final = 1 << 62
Table = npt.NDArray[np.void]
"""A structured array; `table["start"]` is a column of 64-bit integers."""


class Rows:
    """A table that grows row by row; its last column says where in the file a row stands."""

    def __init__(self, *names: str) -> None:
        self._names = (*names, "place")
        self._cells = array("q")

    def __len__(self) -> int:
        return len(self._cells) // len(self._names)

    def add(self, *cells: int) -> None:
        """Append a row; raises OverflowError for a number of more than 64 bits."""
        self._cells.extend(cells)

    def table(self) -> Table:
        """Return all rows as a structured array, which shares their memory: nothing may follow."""
        return np.asarray(self._cells).view([(name, np.int64) for name in self._names])


def columns(cells: Mapping[str, npt.NDArray[np.int64]]) -> Table:
    """Return a table of these columns, which are of one length."""
    length = len(next(iter(cells.values())))
    table: Table = np.empty(length, dtype=[(name, np.int64) for name in cells])
    for name, values in cells.items():
        table[name] = values
    return table


def keys(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return one number for each combination of these columns, ordered as the columns are."""
    numbers, count = np.zeros(len(parts[0]), dtype=np.int64), 1
    for part in parts if len(parts[0]) else ():
        low, high = int(part.min()), int(part.max())
        if count * (high - low + 1) > _KEYS_MOST:
            numbers, part = (  # noqa: PLW2901 — the same column in fewer numbers
                np.unique(one, return_inverse=True)[1].astype(np.int64) for one in (numbers, part)
            )
            count, low, high = len(numbers), 0, len(numbers) - 1
        numbers = numbers * (high - low + 1) + (part - low)
        count *= high - low + 1
    return numbers


def first_duplicate(table: Table) -> tuple[int, int] | None:
    """Return the places of two rows that are equal in all but their place.

    Only rows with the same start can be; they are few, and sorting by all columns takes time.
    """
    names = [name for name in table.dtype.names or () if name != "place"]
    if len(table) < 2:
        return None
    by_start = np.argsort(table["start"], kind="stable")
    starts = table["start"][by_start]
    same = np.concatenate(([False], starts[1:] == starts[:-1], [False]))
    few = table[by_start[same[1:] | same[:-1]]]
    if not len(few):
        return None
    ordered = few[np.lexsort([few["place"], *(few[name] for name in names)])]
    same = np.ones(len(ordered) - 1, dtype=bool)
    for name in names:
        same &= ordered[name][1:] == ordered[name][:-1]
    found = np.flatnonzero(same)
    if not len(found):
        return None
    at = found[np.argmin(ordered["place"][found + 1])]
    return int(ordered["place"][at]), int(ordered["place"][at + 1])
