"""What the events and samples of a run say: how long it took, and what of them still stands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from envcompare.run_folder.records import Block, Design, Event, EventKind, OfRestart, Sample

EXPECTED_SPREAD = "expected_spread"
"""Of a `calibrated` event: the standard deviation of log ratios that a restart was to add."""

STOPS = "stops"
"""Of a `calibrated` event: arms are stopped between their turns."""

LEFT_S = "left_s"
"""Of a `turn` event: the seconds that were left of the budget of the cell."""

SESSION = "session"
"""Of an event with which a run begins or goes on: which of its sessions, from 1."""

_ASIDES: tuple[EventKind, ...] = ("note", "caution")  # no work begins with them


def duration_s(events: Iterable[Event]) -> float:
    """Return the seconds between the events of a run.

    Without the pauses before resumptions, and without the time in the queue of a scheduler.
    """
    begun = (event for event in events if event.what != "submitted")
    return _sum_between_s(begun, after_pause="run-resumed")


def elapsed_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell has had, without the pause before a resumption.

    After its turn in a restart, and once it is decided, others are served: what follows is not its
    own, even where something is noted of the cell before its next turn.
    """
    own = _without_asides(events)
    return _sum_between_s(own, after_pause="cell-started", left_out=("turn", "stopped"))


def _without_asides(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events but for the notes between two turns."""
    is_between = False
    for event in events:
        if not (is_between and event.what in _ASIDES):
            is_between = event.what == "turn"
            yield event


def _sum_between_s(
    events: Iterable[Event], *, after_pause: EventKind, left_out: tuple[EventKind, ...] = ()
) -> float:
    return sum(
        _between_s(before, after)
        for before, after in itertools.pairwise(events)
        if after.what != after_pause and before.what not in left_out
    )


def _between_s(before: Event, after: Event) -> float:
    """Return the seconds between two events of one part; the time of day may be set meanwhile."""
    if before.clock_s is None or after.clock_s is None:
        return after.t - before.t
    return max(0.0, after.clock_s - before.clock_s)


def waited_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell waited for a quiet machine, those before a resumption too."""
    waits = (e.values.get("seconds") for e in events if e.what == "waited")
    return float(sum(seconds for seconds in waits if isinstance(seconds, int | float)))


def since_retry(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of a cell without those of an earlier life, which had ended."""
    ended = [i for i, e in enumerate(events) if e.what == "cell-ended" and e.state != "unreachable"]
    earlier = [i for i in ended if i < len(events) - 1]
    return events[earlier[-1] + 1 :] if earlier else events


def own_left_s(events: Sequence[Event], *, whole_s: float) -> float:
    """Return what is left of a cell's share: what its last turn noted, less the time since."""
    turns = [i for i, e in enumerate(events) if e.what == "turn" and "restart" in e.values]
    if not turns:
        return max(0.0, whole_s - elapsed_s(events))
    noted_s = events[turns[-1]].values.get(LEFT_S)
    if not isinstance(noted_s, int | float):
        return whole_s
    return max(0.0, noted_s - elapsed_s(events[turns[-1] :]))


def since_session(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events since the last session began; all of a run without sessions."""
    begins = [i for i, e in enumerate(events) if SESSION in e.values]
    if not begins:
        return events
    last = events[begins[-1]].values[SESSION]
    return events[next(i for i in begins if events[i].values[SESSION] == last) :]


def next_session(events: Sequence[Event]) -> int:
    """Return the session to measure next; one that was broken off, or measured nothing, again."""
    numbers = [e.values[SESSION] for e in events if SESSION in e.values]
    begun = int(str(numbers[-1])) if numbers else 0
    session = since_session(events)
    has_ended = any(e.what == "run-ended" for e in session)
    return begun + 1 if has_ended and _has_measured(session) else max(1, begun)


def measured_sessions(events: Sequence[Event]) -> dict[int, float]:
    """Return when each session began that has measured a cell, in UTC seconds since 1970."""
    begins = [i for i, e in enumerate(events) if SESSION in e.values]
    parts = itertools.zip_longest(begins, begins[1:])
    sessions: dict[int, float] = {}
    for begin, end in parts:
        if _has_measured(events[begin:end]):
            sessions.setdefault(int(str(events[begin].values[SESSION])), events[begin].t)
    return sessions


def _has_measured(events: Iterable[Event]) -> bool:
    return any(e.what == "cell-ended" and e.state == "ok" for e in events)


def written_samples(events: Iterable[Event]) -> int:
    """Return how many samples a run held when it last ended; 0 where none was counted."""
    counts = (e.values.get("samples") for e in events if e.what == "run-ended")
    return max((count for count in counts if isinstance(count, int)), default=0)


def standing(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that a later resumption has not overtaken.

    Of a cell those since it was last started, of the run those since it was last resumed, and of a
    host those since it was tried once more at the end of the run.
    """
    starts = {e.cell: i for i, e in enumerate(events) if e.what == "cell-started"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    retried = {e.host: i for i, e in enumerate(events) if e.what == "host-retried"}
    return tuple(
        e
        for i, e in enumerate(events)
        if i >= (starts.get(e.cell, 0) if e.cell else max(begun, retried.get(e.host, 0)))
    )


def standing_samples(samples: Iterable[Sample], design: Design) -> tuple[Sample, ...]:
    """Return the samples without those of a restart that was broken off and measured anew.

    That happens in a design of a fixed size alone. Such a restart is of the last part of the run
    that has any of it. In one part, as where an arm fails, a block that comes a second time begins
    its restart anew.
    """
    if design.restarts is None:
        return tuple(samples)
    samples = tuple(samples)
    parts: dict[tuple[str, int], int] = {}
    for sample in samples:
        if isinstance(sample, OfRestart):
            restart = (sample.cell, sample.restart)
            parts[restart] = max(parts.get(restart, 0), sample.part)
    last = (
        sample
        for sample in samples
        if not isinstance(sample, OfRestart) or sample.part == parts[sample.cell, sample.restart]
    )
    return _without_overtaken(last)


def _without_overtaken(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    kept: dict[int, Sample] = {}
    places: dict[tuple[str, int], set[int]] = {}  # of what a restart has
    blocks: dict[tuple[str, int], set[tuple[str, int]]] = {}  # of a restart: arm and round
    for place, sample in enumerate(samples):
        kept[place] = sample
        if not isinstance(sample, OfRestart):
            continue
        restart = (sample.cell, sample.restart)
        if isinstance(sample, Block):
            block = (sample.arm, sample.round)
            if block in blocks.setdefault(restart, set()):
                for overtaken in places.pop(restart):
                    del kept[overtaken]
                blocks[restart].clear()
            blocks[restart].add(block)
        places.setdefault(restart, set()).add(place)
    return tuple(kept.values())
