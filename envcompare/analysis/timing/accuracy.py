"""Epochs and seconds to a goal: of each arm in a cell, and against the reference epoch by epoch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from envcompare.analysis.model.sweeps import ArmTraining, CellTraining, EpochPoint
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import ArmRecord, Epoch, Goal
from envcompare.stats.intervals import Interval, interval

_LEVEL = 0.95
_Ways = Mapping[int, Sequence[Epoch]]
"""restart → its epochs in their order."""


def cell_training(data: CellData, epochs: Iterable[Epoch]) -> CellTraining | None:
    """Return what the epochs of a cell say; None where it has none, or no goal."""
    goal, kept = data.run.design.until, tuple(epochs)
    ways = {arm.id: _ways(one for one in kept if one.arm == arm.id) for arm in data.run.arms}
    why_not = _why_not(data, ways)
    if goal is None or not (kept or why_not):
        return None
    reference, is_net = ways[data.reference.id], _is_net(data, kept)
    return CellTraining(
        cell=data.cell.id,
        is_net=is_net,
        arms=tuple(
            msgspec.structs.replace(
                _arm(arm, ways[arm.id], reference, goal, is_net=is_net),
                is_same_work=arm.parameters == data.reference.parameters,
                why_not=why_not.get(arm.id, ""),
            )
            for arm in data.run.arms
        ),
        **_agreement([ways[arm.id] for arm in data.run.arms if _is_alike(arm, data.reference)]),
    )


def _why_not(data: CellData, ways: Mapping[str, _Ways]) -> dict[str, str]:
    """Return why arms were trained no further; one that was trained again later has no reason."""
    failed = (event for event in data.guard_events if event.what == "training-failed")
    return {
        event.arm: event.failure.brief
        for event in failed
        if event.failure and (event in data.events or not ways.get(event.arm))
    }


def _is_alike(arm: ArmRecord, reference: ArmRecord) -> bool:
    """Tell whether an arm should have the values of the reference."""
    return not arm.is_control and arm.parameters == reference.parameters


def _is_net(data: CellData, epochs: Iterable[Epoch]) -> bool:
    """Tell whether times are compared without waits, as those of steps are."""
    return data.metric[0] == "net" and all(
        one.wait_ns is not None and one.wait_ns < one.wall_ns for one in epochs
    )


def _ways(epochs: Iterable[Epoch]) -> _Ways:
    """Return the restarts that came to an end; what an interruption cut off says too little."""
    restarts: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        restarts.setdefault(epoch.restart, []).append(epoch)
    return {
        restart: sorted(way, key=lambda epoch: epoch.epoch)
        for restart, way in restarts.items()
        if any(epoch.is_last for epoch in way)
    }


def _arm(arm: ArmRecord, ways: _Ways, reference: _Ways, goal: Goal, *, is_net: bool) -> ArmTraining:
    there = [way for way in ways.values() if _is_reached(way[-1], goal)]
    seconds = interval([math.log(_seconds(way)) for way in there], level=_LEVEL)
    ratio = None if arm.is_reference else _ratio(ways, reference, is_net=is_net)
    return ArmTraining(
        arm=arm.id,
        is_control=arm.is_control,
        restarts=len(ways),
        reached=len(there),
        epochs=tuple(way[-1].epoch for way in there),
        most_epochs=max((way[-1].epoch for way in ways.values()), default=0),
        best=max(
            (one.value for way in ways.values() for one in way if one.value is not None),
            default=None,
        ),
        training_s=math.exp(seconds.mean) if seconds else None,
        training_low_s=_exp(seconds.low) if seconds else None,
        training_high_s=_exp(seconds.high) if seconds else None,
        log_ratio=ratio.mean if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        points=tuple(_points(tuple(ways.values()))),
    )


def _is_reached(last: Epoch, goal: Goal) -> bool:
    return last.value is not None and last.value >= goal.value


def _seconds(way: Sequence[Epoch]) -> float:
    return max(1, sum(one.wall_ns for one in way)) / 1e9


def _exp(log: float | None) -> float | None:
    return None if log is None else math.exp(log)


def _ratio(ways: _Ways, reference: _Ways, *, is_net: bool) -> Interval | None:
    """Return the mean log ratio of the time of an epoch over restarts, paired by epoch."""

    def log_ns(epoch: Epoch) -> float:
        return math.log(max(1, epoch.wall_ns - (epoch.wait_ns or 0) * is_net))

    restarts = []
    for restart in sorted(ways.keys() & reference.keys()):
        pairs = zip(ways[restart], reference[restart], strict=False)
        restarts.append(statistics.fmean(log_ns(one) - log_ns(other) for one, other in pairs))
    return interval(restarts, level=_LEVEL)


def _points(ways: Sequence[Sequence[Epoch]]) -> Iterable[EpochPoint]:
    for epoch in range(1, max(map(len, ways), default=0) + 1):
        come = [way[:epoch] for way in ways if len(way) >= epoch]
        values = [way[-1].value for way in come]
        known = [value for value in values if value is not None]
        yield EpochPoint(
            epoch=epoch,
            training_s=statistics.median(map(_seconds, come)),
            value=statistics.median(known) if known else None,
            restarts=len(come),
        )


def _agreement(arms: Iterable[_Ways]) -> dict[str, int]:
    """Count the epochs in which all arms had the same value, and those in which they had not.

    Of an arm that was not trained nothing is known, and an epoch counts only where all others have
    a value.
    """
    trained = [
        {(one.restart, one.epoch): one.value for way in ways.values() for one in way}
        for ways in arms
        if ways
    ]
    if len(trained) < 2:
        return {"same_values": 0, "other_values": 0}
    common = set.intersection(*(set(values) for values in trained))
    several = [{values[place] for values in trained} for place in common]
    known = [values for values in several if None not in values]
    same = sum(len(values) == 1 for values in known)
    return {"same_values": same, "other_values": len(known) - same}
