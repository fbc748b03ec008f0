"""What the events of a run tell together: how long a cell took, and what still holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from envcompare.records import Event


def elapsed_s(events: tuple[Event, ...]) -> float:
    """Return the seconds between the events of a cell, without the pause before a resumption."""
    pairs = itertools.pairwise(events)
    return sum(after.t - before.t for before, after in pairs if after.what != "cell-started")


def waited_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell waited for a quiet machine, those before a resumption too."""
    waits = (e.values.get("seconds") for e in events if e.what == "waited")
    return float(sum(seconds for seconds in waits if isinstance(seconds, int | float)))


def standing(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that a later resumption has not overtaken.

    Of a cell those since it was last started, of hosts and the run those since it was last resumed.
    """
    starts = {e.cell: i for i, e in enumerate(events) if e.what == "cell-started"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    return tuple(
        e for i, e in enumerate(events) if i >= (starts.get(e.cell, 0) if e.cell else begun)
    )
