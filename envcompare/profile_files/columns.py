"""The rows of a trace as columns of whole numbers, 8 bytes a cell, and how they belong together.

GPU work comes from the call that launched it, and a call stands in a range of its thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

THREAD_BITS: Final = 24
"""The upper bits of a thread's number are its process's, as in the global ids of nsys."""

_KEYS_MOST: Final = 1 << 62
Numbers = npt.NDArray[np.int64]
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


def columns(cells: Mapping[str, Numbers]) -> Table:
    """Return a table of these columns, which are of one length."""
    length = len(next(iter(cells.values())))
    table: Table = np.empty(length, dtype=[(name, np.int64) for name in cells])
    for name, values in cells.items():
        table[name] = values
    return table


def keys(parts: Sequence[Numbers]) -> Numbers:
    """Return one number for each combination of these columns, ordered as the columns are."""
    numbers, count = np.zeros(len(parts[0]), dtype=np.int64), 1
    for part in parts if len(parts[0]) else ():
        low, high = int(part.min()), int(part.max())
        if count * (high - low + 1) > _KEYS_MOST:
            numbers, part = (  # noqa: PLW2901 — the same column in fewer numbers
                np.unique(column, return_inverse=True)[1].astype(np.int64)
                for column in (numbers, part)
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
    equal = np.flatnonzero(same)
    if not len(equal):
        return None
    at = equal[np.argmin(ordered["place"][equal + 1])]
    return int(ordered["place"][at]), int(ordered["place"][at + 1])


def launching_calls(rows: Table, calls: Table) -> Numbers:
    """Return the place in `calls` of the call that launched each row, or -1.

    A call is found by process and correlation id; of several with one id the first counts.
    """
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1)
    both = _call_keys(rows, calls)
    asked, offered = both[: len(rows)], both[len(rows) :]
    order = np.lexsort((calls["start"], offered))
    at = np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)
    places = order[at]
    return np.where((offered[places] == asked) & (rows["correlation"] >= 0), places, -1)


def _call_keys(rows: Table, calls: Table) -> Numbers:
    """Return one number for each pair of process and correlation id, rows first."""
    processes = np.concatenate((rows["process"], calls["thread"])) >> THREAD_BITS
    if (rows["process"] < 0).all():
        # The first releases wrote no process beside a kernel.
        processes = np.zeros_like(processes)
    return keys([processes, np.concatenate((rows["correlation"], calls["correlation"]))])


def innermost(ranges: Table, *, threads: Numbers, times: Numbers) -> list[int]:
    """Return for each moment the place in `ranges` of the innermost one on its thread, or -1."""
    places = [-1] * len(times)
    order = np.lexsort((times, threads)).tolist()
    by_start = np.lexsort((-ranges["end"], ranges["start"], ranges["thread"]))
    columns = [ranges[name][by_start].tolist() for name in ("thread", "start", "end")]
    starts = list(zip(*columns, by_start.tolist(), strict=True))
    around: list[tuple[int, int, int, int]] = []
    upcoming = 0
    for place in order:
        moment = (int(threads[place]), int(times[place]))
        while upcoming < len(starts) and starts[upcoming][:2] <= moment:
            around.append(starts[upcoming])
            upcoming += 1
        # What ended early below a longer range is dropped when it comes to the top.
        while around and (around[-1][0] != moment[0] or around[-1][2] < moment[1]):
            around.pop()
        if around:
            places[place] = around[-1][3]
    return places
