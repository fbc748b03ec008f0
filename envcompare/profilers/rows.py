"""Rows of whole numbers in little memory: 8 bytes a cell, whatever the file is made of."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

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


def first_duplicate(table: Table) -> tuple[int, int] | None:
    """Return the places of two rows that are equal in all but their place."""
    names = [name for name in table.dtype.names or () if name != "place"]
    if len(table) < 2:
        return None
    ordered = table[np.lexsort([table["place"], *(table[name] for name in names)])]
    same = np.ones(len(table) - 1, dtype=bool)
    for name in names:
        same &= ordered[name][1:] == ordered[name][:-1]
    found = np.flatnonzero(same)
    if not len(found):
        return None
    at = found[np.argmin(ordered["place"][found + 1])]
    return int(ordered["place"][at]), int(ordered["place"][at + 1])
