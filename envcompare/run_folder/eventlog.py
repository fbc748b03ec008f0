"""What the events of a run tell together: how long a cell took, and what still holds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from envcompare.run_folder.records import Event, EventKind


def elapsed_s(events: Iterable[Event], *, beginning: EventKind = "cell-started") -> float:
    """Return the seconds between the events of a cell, without the pause before a resumption.

    Those of a whole run are resumed by `run-resumed`.
    """
    pairs = itertools.pairwise(events)
    return sum(after.t - before.t for before, after in pairs if after.what != beginning)


def waited_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell waited for a quiet machine, those before a resumption too."""
    waits = (e.values.get("seconds") for e in events if e.what == "waited")
    return float(sum(seconds for seconds in waits if isinstance(seconds, int | float)))


def written_samples(events: Iterable[Event]) -> int:
    """Return how many samples a run held when it last ended; 0 where none was counted."""
    counts = (e.values.get("samples") for e in events if e.what == "run-ended")
    return max((count for count in counts if isinstance(count, int)), default=0)


def standing(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that a later resumption has not overtaken.

    Of a cell those since it was last started, of hosts and the run those since it was last resumed.
    """
    starts = {e.cell: i for i, e in enumerate(events) if e.what == "cell-started"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    return tuple(
        e for i, e in enumerate(events) if i >= (starts.get(e.cell, 0) if e.cell else begun)
    )
