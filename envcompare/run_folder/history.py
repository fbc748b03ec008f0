"""The durations in the events of a run, and which events and samples are still valid."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from envcompare.run_folder.records import (
    Block,
    Design,
    Event,
    EventKind,
    MarkedBlock,
    OfRestart,
    Sample,
)

EXPECTED_SPREAD = "expected_spread"
"""In a `calibrated` event: the standard deviation that a restart is expected to add."""

STEPS, STEP_S = "steps_per_block", "step_s"
"""In a `calibrated` event: the steps of a block, and their duration. An arm's name follows if its
own differ."""

STOPS = "stops"
"""In a `calibrated` event: arms are stopped between their turns."""

RUN_IN_S = "run-in s"
"""In a `calibrated` event: the least duration of the untimed steps that begin a turn."""

SETTLED = "settled"
"""In a `calibrated` event: turns need no other look at what a pause before them changes."""

CALIBRATION = "calibration"
"""In a `calibrated` event: its number in the cell; blocks of a lower one do not count."""

LEFT_S = "left_s"
"""In a `turn` event: the seconds left in the cell's budget."""

SESSION = "session"
"""In an event that starts or resumes a run: the number of its session, from 1."""

_ASIDES: tuple[EventKind, ...] = ("note", "caution")  # they do not mark the start of work


def duration_s(events: Iterable[Event]) -> float:
    """Return the seconds between the events of a run.

    Pauses before resumptions and time in a scheduler's queue are left out.
    """
    begun = (event for event in events if event.what != "submitted")
    return _sum_between_s(begun, after_pause="run-resumed")


def elapsed_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell has used, without pauses before resumptions.

    After its turn in a restart, and once it is decided, others are served. That time does not
    count, even if a note on the cell comes before its next turn.
    """
    own = _without_asides(events)
    return _sum_between_s(own, after_pause="cell-started", left_out=("turn", "stopped"))


def _without_asides(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events without the notes between two turns."""
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
    """Return the seconds between two events of one part, despite changes of the system time."""
    if before.clock_s is None or after.clock_s is None:
        return after.t - before.t
    return max(0.0, after.clock_s - before.clock_s)


def waited_s(events: Iterable[Event]) -> float:
    """Return the seconds that a cell waited for a quiet machine, over all resumptions."""
    waits = (e.values.get("seconds") for e in events if e.what == "waited")
    return float(sum(seconds for seconds in waits if isinstance(seconds, int | float)))


def last_calibration(events: Iterable[Event]) -> dict[str, float]:
    """Return the numbers of a cell's last calibration, and the spread that it expects."""
    noted: dict[str, float] = {}
    for event in events:
        if event.what != "calibrated":
            continue
        if STEPS in event.values:
            noted = {name: value for name, value in noted.items() if name == EXPECTED_SPREAD}
        noted |= {k: v for k, v in event.values.items() if isinstance(v, int | float)}
    return noted


def since_retry(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events of a cell since its last retry."""
    ended = [i for i, e in enumerate(events) if e.what == "cell-ended" and e.state != "unreachable"]
    earlier = [i for i in ended if i < len(events) - 1]
    return events[earlier[-1] + 1 :] if earlier else events


def own_left_s(events: Sequence[Event], *, whole_s: float) -> float:
    """Return the rest of a cell's share: the value at its last turn, minus the time since."""
    turns = [i for i, e in enumerate(events) if e.what == "turn" and "restart" in e.values]
    if not turns:
        return max(0.0, whole_s - elapsed_s(events))
    noted_s = events[turns[-1]].values.get(LEFT_S)
    if not isinstance(noted_s, int | float):
        return whole_s
    return max(0.0, noted_s - elapsed_s(events[turns[-1] :]))


def since_session(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events since the last session started; all events of a run without sessions."""
    begins = [i for i, e in enumerate(events) if SESSION in e.values]
    if not begins:
        return events
    last = events[begins[-1]].values[SESSION]
    return events[next(i for i in begins if events[i].values[SESSION] == last) :]


def next_session(events: Sequence[Event]) -> int:
    """Return the session to measure next, which repeats one that was interrupted or empty."""
    numbers = [e.values[SESSION] for e in events if SESSION in e.values]
    begun = int(str(numbers[-1])) if numbers else 0
    session = since_session(events)
    has_ended = any(e.what == "run-ended" for e in session)
    return begun + 1 if has_ended and _has_measured(session) else max(1, begun)


def measured_sessions(events: Sequence[Event]) -> dict[int, float]:
    """Return the start of each session that measured a cell, in UTC seconds since 1970."""
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
    """Return the number of samples when the run last ended; 0 without a count."""
    counts = (e.values.get("samples") for e in events if e.what == "run-ended")
    return max((count for count in counts if isinstance(count, int)), default=0)


def standing(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the events that no later resumption has replaced.

    For a cell, those since its last start; for the run, those since its last resumption; for a
    host, those since its retry at the end of the run.
    """
    starts = {e.cell: i for i, e in enumerate(events) if e.what == "cell-started"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    retried = {e.host: i for i, e in enumerate(events) if e.what == "host-retried"}
    return tuple(
        e
        for i, e in enumerate(events)
        if i >= (starts.get(e.cell, 0) if e.cell else max(begun, retried.get(e.host, 0)))
    )


def standing_samples(
    samples: Iterable[Sample], design: Design, events: Iterable[Event] = ()
) -> tuple[Sample, ...]:
    """Return the samples without rounds and interrupted restarts that were repeated.

    Rounds are repeated if the turns before were too short. Only designs of a fixed size repeat
    restarts. A restart belongs to the last part of the run that has
    samples of it. Within one part, as after an arm fails, the restart begins again at the first
    repeated block.
    """
    samples = tuple(samples)
    last = _calibrations(samples, events)
    samples = tuple(
        one
        for one in samples
        if not isinstance(one, Block | MarkedBlock) or one.calibration >= last.get(one.cell, 0)
    )
    if design.restarts is None:
        return samples
    parts: dict[tuple[str, int], int] = {}
    for sample in samples:
        if isinstance(sample, OfRestart):
            restart = (sample.cell, sample.restart)
            parts[restart] = max(parts.get(restart, 0), sample.part)
    return _without_overtaken(
        sample
        for sample in samples
        if not isinstance(sample, OfRestart) or sample.part == parts[sample.cell, sample.restart]
    )


def _calibrations(samples: Iterable[Sample], events: Iterable[Event]) -> dict[str, int]:
    """Return the number of the last calibration of each cell, which no block may have yet."""
    last: dict[str, int] = {}
    for event in events:
        if event.what == "calibrated" and isinstance(event.values.get(CALIBRATION), int):
            last[event.cell] = max(int(event.values[CALIBRATION] or 0), last.get(event.cell, 0))
    for one in samples:
        if isinstance(one, Block):
            last[one.cell] = max(one.calibration, last.get(one.cell, 0))
    return last


def _without_overtaken(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    kept: dict[int, Sample] = {}
    places: dict[tuple[str, int], set[int]] = {}  # indices of a restart's samples
    blocks: dict[tuple[str, int], set[tuple[str, int]]] = {}  # arm and round, by restart
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
