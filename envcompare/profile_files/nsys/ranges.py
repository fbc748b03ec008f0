"""NVTX ranges of an nsys export: what was launched inside the marks, and in which range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from envcompare.profile_files.nsys.database import Export
from envcompare.profile_files.placing import THREAD_BITS
from envcompare.profile_files.rows import Rows, Table

MARK: Final = "envcompare"
"""The start/end range that the marked steps of a worker stand in."""

_RANGES: Final = "NVTX_EVENTS"
_PUSH_POP: Final = 59
_START_END: Final = 60
_IS_RANGE: Final = f"eventType IN ({_PUSH_POP}, {_START_END})"  # no mark, category or name
_FOREVER: Final = np.iinfo(np.int64).max

Mask = npt.NDArray[np.bool_]


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
    query = f"SELECT {own} FROM {_RANGES} WHERE {_IS_RANGE} ORDER BY rowid"  # noqa: S608 — constants
    written = export.query(query)
    optional = ("end", "globalTid", "textId")
    numbers = export.rows(_RANGES, ("start", "eventType"), optional, where=_IS_RANGE)
    for (start, kind, end, thread, number, row), (text,) in zip(numbers, written, strict=True):
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
