"""Where GPU work comes from: the call that launched it, and the range that call stands in."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.rows import Table, keys

THREAD_BITS: Final = 24
"""The upper bits of a thread's number are its process's, as in the global ids of nsys."""

Places = npt.NDArray[np.int64]


def launching_calls(rows: Table, calls: Table) -> Places:
    """Return the place in `calls` of the call that launched each row, or -1.

    A call is found by process and correlation id; of several with one id the first counts.
    """
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1)
    both = _keys(rows, calls)
    asked, offered = both[: len(rows)], both[len(rows) :]
    order = np.lexsort((calls["start"], offered))
    at = np.minimum(np.searchsorted(offered[order], asked), len(order) - 1)
    found = order[at]
    return np.where((offered[found] == asked) & (rows["correlation"] >= 0), found, -1)


def _keys(rows: Table, calls: Table) -> Places:
    """Return one number for each pair of process and correlation id, rows first."""
    processes = np.concatenate((rows["process"], calls["thread"])) >> THREAD_BITS
    if (rows["process"] < 0).all():
        # The first releases wrote no process beside a kernel.
        processes = np.zeros_like(processes)
    return keys([processes, np.concatenate((rows["correlation"], calls["correlation"]))])


def innermost(
    ranges: Table, *, threads: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> list[int]:
    """Return for each moment the place in `ranges` of the innermost one on its thread, or -1."""
    found = [-1] * len(times)
    order = np.lexsort((times, threads)).tolist()
    by_start = np.lexsort((-ranges["end"], ranges["start"], ranges["thread"]))
    columns = [ranges[name][by_start].tolist() for name in ("thread", "start", "end")]
    starts = list(zip(*columns, by_start.tolist(), strict=True))
    open_ones: list[tuple[int, int, int, int]] = []
    upcoming = 0
    for place in order:
        moment = (int(threads[place]), int(times[place]))
        while upcoming < len(starts) and starts[upcoming][:2] <= moment:
            open_ones.append(starts[upcoming])
            upcoming += 1
        # What ended early below a longer range is dropped when it comes to the top.
        while open_ones and (open_ones[-1][0] != moment[0] or open_ones[-1][2] < moment[1]):
            open_ones.pop()
        if open_ones:
            found[place] = open_ones[-1][3]
    return found
