"""How long something was at work: the union of intervals, in whole nanoseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]


def union_ns(starts: Times, ends: Times) -> int:
    """Return the length of the union of [start, end), in any order and however they overlap."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    begin, reach = starts[order], np.maximum.accumulate(ends[order])
    # What an interval adds begins where everything before it has ended.
    covered_until = np.concatenate((begin[:1], reach[:-1]))
    added = reach - np.maximum(begin, covered_until)
    return int(np.maximum(added, 0).sum())


def span_ns(starts: Times, ends: Times) -> int:
    """Return the time from the first start to the last end."""
    return int(ends.max() - starts.min()) if len(starts) else 0


def exposed_ns(of: tuple[Times, Times], under: tuple[Times, Times]) -> int:
    """Return how long the first intervals run while none of the second does."""
    starts, ends = (np.concatenate(pair) for pair in zip(of, under, strict=True))
    return union_ns(starts, ends) - union_ns(*under)
