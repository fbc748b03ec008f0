"""Launches of kernels as one profiler lists them, and the kernels they add up to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from envcompare.profile_files.ncu.metrics import (
    CYCLES,
    TIME,
    adding,
    changes_time,
    is_unpatched_time,
)
from envcompare.run_folder.profiles import Dim, Kernel

MOST_IN_SEQUENCE: Final = 100_000
NO_TIME: Final = "no time is taken: counting SASS instructions changes it, 146 times in one case"
UNPATCHED_TIME: Final = (
    "instructions were counted as well: the time is gpu__time_duration, which the counters of "
    "memory beside it say to be of a pass without that"
)
CONTROLS_UNTOLD: Final = (
    "the file does not tell cache and clock control: by default ncu empties the caches before each "
    "pass, so bytes of device memory are an upper bound, and locks the clock"
)
_DIM: Final = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
Shape = tuple[str, Dim | None, Dim | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch: which kernel, in which shape, and its metrics in base units.

    `is_patched` where something else tells that instructions were counted, which changes time;
    `odd` are metrics of no quantity whose value cannot be, such as a count below 0.
    """

    line: int | None
    name: str
    grid: Dim | None = None
    block: Dim | None = None
    op: str = ""
    is_patched: bool = False
    values: Mapping[str, float] = field(default_factory=dict)
    odd: Mapping[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """Return what launches of one kernel have in common."""
        return (self.name, self.grid, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The kernels of a list of launches, in the order they were first launched."""

    kernels: tuple[Kernel, ...]
    sequence: tuple[int, ...]
    has_time: bool
    notes: tuple[str, ...]


def dim(text: str) -> Dim | None:
    """Return `(128, 1, 1)` as three numbers; None for one number, which is their product."""
    found = _DIM.fullmatch(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def counted(launches: Sequence[Launch]) -> Counted:
    """Add launches up: sums are added, rates averaged with the time of each launch as weight.

    Where counters were collected that change time, and nothing says that the duration is of
    another pass, kernels have no time, and a rate is kept only where all launches agree. A metric
    that one launch lacks is left out of its kernel.
    """
    patched = [one for one in launches if one.is_patched or any(map(changes_time, one.values))]
    has_time = all(is_unpatched_time(one.values) for one in patched)
    groups: dict[Shape, list[int]] = {}
    for place, launch in enumerate(launches):
        groups.setdefault(launch.shape, []).append(place)
    lacking: dict[str, int] = {}
    kernels = tuple(
        _kernel([launches[place] for place in places], places[0], lacking, has_time=has_time)
        for places in groups.values()
    )
    places = {shape: place for place, shape in enumerate(groups)}
    sequence = tuple(places[launch.shape] for launch in launches[:MOST_IN_SEQUENCE])
    odd = {name: value for launch in launches for name, value in launch.odd.items()}
    notes = (
        *_lacking_notes({name: count for name, count in lacking.items() if name not in odd}),
        *odd_notes(odd),
        *time_notes(is_patched=bool(patched), has_time=has_time),
    )
    return Counted(kernels=kernels, sequence=sequence, has_time=has_time, notes=notes)


def _kernel(
    launches: Sequence[Launch], first: int, lacking: dict[str, int], *, has_time: bool
) -> Kernel:
    times = [_time(launch.values) for launch in launches] if has_time else []
    known = [one for one in times if one is not None]
    is_timed = len(known) == len(launches)
    ops = {launch.op for launch in launches}
    return Kernel(
        name=launches[0].name,
        calls=len(launches),
        total_ns=sum(known) if is_timed else None,
        min_ns=min(known) if is_timed else None,
        max_ns=max(known) if is_timed else None,
        grid=launches[0].grid,
        block=launches[0].block,
        first=first,
        op=ops.pop() if len(ops) == 1 else "",
        metrics=_metrics(launches, known if is_timed else [], lacking),
    )


def _metrics(
    launches: Sequence[Launch], times: Sequence[float], lacking: dict[str, int]
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for launch in launches for name in launch.values):
        values = [launch.values[name] for launch in launches if name in launch.values]
        if len(values) < len(launches):
            lacking[name] = lacking.get(name, 0) + len(launches) - len(values)
        elif adding(name) == "sum":
            found[name] = sum(values)
        elif adding(name) == "rate":
            mean = _weighted(values, times)
            found |= {} if mean is None else {name: mean}
    found.pop(TIME, None)
    return found


def _weighted(values: Sequence[float], times: Sequence[float]) -> float | None:
    """Return the mean weighted by time; without times only what all launches agree on."""
    if len(set(values)) == 1:
        return values[0]
    total = sum(times)
    if not total:
        return None
    return sum(value * time for value, time in zip(values, times, strict=True)) / total


def _time(values: Mapping[str, float]) -> float | None:
    """Return the duration in ns; reports of 2020 tell it as cycles and their frequency."""
    if TIME in values:
        return values[TIME]
    for name in CYCLES:
        frequency = values.get(f"{name}.per_second")
        if name in values and frequency:
            return values[name] / frequency * 1e9
    return None


def _lacking_notes(lacking: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{name} is missing in {count} launches" for name, count in lacking.items())


def odd_notes(odd: Mapping[str, float]) -> tuple[str, ...]:
    """Return which metrics are left out since their value cannot be, each with one value."""
    if not odd:
        return ()
    told = ", ".join(f"{name} ({value:g})" for name, value in odd.items())
    return (f"left out because the value is impossible and no quantity uses it: {told}",)


def time_notes(*, is_patched: bool, has_time: bool) -> tuple[str, ...]:
    """Return what to know of times in a file that also counted instructions."""
    if not has_time:
        return (NO_TIME,)
    return (UNPATCHED_TIME,) if is_patched else ()
