"""NVTX ranges of an nsys export: what was launched inside the marks, and in which range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profilers.nsysfile import Export
from envcompare.profilers.nsystables import THREAD_BITS
from envcompare.profilers.rows import Rows, Table

MARK: Final = "envcompare"
"""The start/end range that the marked steps of a worker stand in."""

_RANGES: Final = "NVTX_EVENTS"
_PUSH_POP: Final = 59
_START_END: Final = 60
_FOREVER: Final = np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]


def read_ranges(export: Export) -> tuple[Table, list[str]]:
    """Return push/pop and start/end ranges, and the texts their `text` column counts."""
    found, texts = Rows("type", "thread", "start", "end", "text"), dict[str, int]()
    if export.has(_RANGES):
        for kind, thread, start, end, text, row in _rows(export):
            last = _FOREVER if end < 0 else end
            found.add(kind, thread, start, last, texts.setdefault(text, len(texts)), row)
    return found.table(), list(texts)


def _rows(export: Export) -> Iterator[tuple[int, int, int, int, str, int]]:
    own = "CAST(text AS TEXT)" if "text" in export.columns(_RANGES) else "NULL"
    # Both walk the table in the order of its row numbers, neither holds it.
    written = export.query(f"SELECT {own} FROM {_RANGES} ORDER BY rowid")  # noqa: S608 — constants
    numbers = export.rows(_RANGES, ("start", "eventType"), ("end", "globalTid", "textId"))
    for (start, kind, end, thread, number, row), (text,) in zip(numbers, written, strict=True):
        if kind not in {_PUSH_POP, _START_END}:
            continue
        if not text and number >= 0:
            yield kind, thread, start, end, export.text(_RANGES, "textId", number, row=row), row
        else:
            yield kind, thread, start, end, str(text or ""), row


def marks(ranges: Table, texts: Sequence[str]) -> Table:
    """Return the start/end ranges named `envcompare`."""
    if MARK not in texts:
        return ranges[:0]
    is_mark = (ranges["type"] == _START_END) & (ranges["text"] == texts.index(MARK))
    marked: Table = ranges[is_mark]
    return marked


def inside(marked: Table, *, threads: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> Mask:
    """Return which moments of which threads stand in a mark of the same process."""
    found = np.zeros(len(times), dtype=bool)
    for mark in marked:
        own = (threads >> THREAD_BITS) == (mark["thread"] >> THREAD_BITS)
        found |= own & (times >= mark["start"]) & (times <= mark["end"])
    return found


def launching_calls(rows: Table, calls: Table) -> Places:
    """Return the place in `calls` of the call that launched each row, or -1.

    A call is found by process and correlation id; of several with one id the first counts.
    """
    if not len(calls) or not len(rows):
        return np.full(len(rows), -1)
    keys = _keys(rows, calls)
    asked, offered = keys[: len(rows)], keys[len(rows) :]
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
    correlations = np.concatenate((rows["correlation"], calls["correlation"]))
    _, process = np.unique(processes, return_inverse=True)
    values, correlation = np.unique(correlations, return_inverse=True)
    keys: Places = process.astype(np.int64) * len(values) + correlation
    return keys


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
