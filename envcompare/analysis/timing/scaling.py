"""Analyse scaling: over ranks, over batches up to a knee, and over epochs to a goal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, Final, get_args

import msgspec

from envcompare.analysis.model import CellSummary
from envcompare.analysis.model.profiling import (
    ArmSizes,
    ArmTraining,
    BatchSweep,
    CellProfiles,
    CellTraining,
    EpochPoint,
    Limit,
    Scaling,
    SizeRate,
)
from envcompare.analysis.timing import CellData
from envcompare.run_folder.records import ArmRecord, CellRecord, Epoch, Event, Goal, Scalar
from envcompare.stats.acrosscells import knee
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.metrics import waited_ns, wall_ns

RANKS: Final = "ranks"
"""The workload parameter with the number of processes that share its work."""
LEVEL: Final = 0.95
_FEWEST: Final = 3  # restarts for an interval; two give next to no information
_NS: Final = 1e-9
_PERCENT: Final = 0.01
# quantities of torch.profiler, with the factor that converts each to seconds or a share
_QUANTITIES: Final = {
    "collective_s": ("collective_ns", _NS),
    "collective_exposed_s": ("collective_exposed_ns", _NS),
    "collective_share": ("collective_step_share", _PERCENT),
    "collective_exposed_share": ("collective_exposed_step_share", _PERCENT),
}
_BATCH: Final = "batch"
_Ways = Mapping[int, Sequence[Epoch]]
"""The epochs of each restart, in order."""


def scaling(
    data: Iterable[CellData], cells: Iterable[CellSummary], profiles: Iterable[CellProfiles]
) -> tuple[Scaling, ...]:
    """Return a row for each arm of each cell that sets `ranks`, without controls.

    The batch is per rank, so an efficiency of 1 means that added work costs no time.
    """
    ranked = [(one, cell) for one, cell in zip(data, cells, strict=True) if _ranks(one.cell)]
    alone = {_work_but_for(one.cell, RANKS): one for one, _ in ranked if _ranks(one.cell) == 1}
    seen = {(of.cell, arm.arm): _exchanged(of, arm.arm) for of in profiles for arm in of.arms}
    return tuple(
        row
        for one, cell in ranked
        for row in _rows(one, cell, alone.get(_work_but_for(one.cell, RANKS)), seen)
    )


def _whole_number(cell: CellRecord, name: str) -> int | None:
    """Return a parameter of a cell; None if it is missing or not a whole number."""
    value = cell.parameters.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _others(cell: CellRecord, name: str) -> dict[str, Scalar]:
    """Return the parameters of a cell except one."""
    return {other: value for other, value in cell.parameters.items() if other != name}


def _work_but_for(cell: CellRecord, name: str) -> tuple[str, str, str, str]:
    """Return the common key of cells that differ in only one parameter."""
    return cell.host, cell.workload, cell.within, str(sorted(_others(cell, name).items()))


def _ranks(cell: CellRecord) -> int | None:
    return _whole_number(cell, RANKS)


def _rows(
    data: CellData,
    summary: CellSummary,
    alone: CellData | None,
    seen: Mapping[tuple[str, str], Mapping[str, Any]],
) -> Iterator[Scaling]:
    controls = {arm.id for arm in data.run.arms if arm.is_control}
    ranks = _ranks(data.cell) or 1
    for times in summary.step_times:
        if times.arm in controls:
            continue
        speed_up = {} if alone is None else _speed_up(_gain(data, alone, times.arm))
        speed_up |= {"efficiency": speed_up["speed_up"] / ranks} if speed_up else {}
        yield Scaling(
            cell=data.cell.id,
            host=data.cell.host,
            workload=data.cell.workload,
            parameters=_others(data.cell, RANKS),
            arm=times.arm,
            ranks=ranks,
            hosts=data.cell.hosts[:ranks] if ranks > 1 else (),
            samples_per_s=times.samples_per_s,
            waited_share=_waited_share(data, times.arm),
            **speed_up,
            **seen.get((data.cell.id, times.arm), {}),
        )


def _speed_up(gain: Interval | None) -> dict[str, Any]:
    """Return the speed-up, with its ends if the logarithm has an interval."""
    if gain is None:
        return {}
    ends: dict[str, float | None] = {"speed_up": gain.mean}
    if gain.restarts >= _FEWEST:
        ends |= {"speed_up_low": gain.low, "speed_up_high": gain.high}
    known = {name: math.exp(end) for name, end in ends.items() if end is not None}
    return {**known, "restarts": gain.restarts}


def _gain(data: CellData, alone: CellData, arm: str) -> Interval | None:
    """Return the logarithm of the speed-up over the restarts that measured both."""
    if not data.batch or not alone.batch:
        return None
    more = math.log(data.batch / alone.batch)
    step, base = _by_restart(data, arm), _by_restart(alone, arm)
    return interval([more + base[at] - step[at] for at in step if at in base], level=LEVEL)


def _by_restart(data: CellData, arm: str) -> dict[int, float]:
    """Return the mean logarithm of the wall time of a typical step in each restart."""
    restarts = data.readings.by_restart(arm, "wall")
    return {restart: mean(values) for restart, values in restarts.items()}


def _waited_share(data: CellData, arm: str) -> float | None:
    """Return the share of all step time spent waiting for a CPU; None if unknown."""
    blocks = data.arm_blocks(arm)
    if data.metric[0] != "net" or not blocks:
        return None
    waits = (min(waited_ns(block) or 0.0, wall_ns(block)) for block in blocks)
    return sum(waits) / sum(map(wall_ns, blocks))


def _exchanged(profiles: CellProfiles, arm: str) -> dict[str, float]:
    """Return the collectives in an arm's profiles, per step if steps are known."""
    rows = [row for of in profiles.arms if of.arm == arm for row in of.quantities]
    known: dict[str, float] = {}
    for field, (name, unit) in _QUANTITIES.items():
        values = (row.value if row.per_step is None else row.per_step for row in rows
                  if row.name == name and row.kind == "torch")  # fmt: skip
        value = next((one for one in values if one is not None), None)
        if value is not None:
            known[field] = value * unit
    return known


def batch_sweeps(data: Iterable[CellData], events: Iterable[Event]) -> tuple[BatchSweep, ...]:
    """Return each set of two or more cells that differ only in the parameter `batch`."""
    works: dict[object, list[CellData]] = {}
    for cell in data:
        size = _whole_number(cell.cell, _BATCH)
        if size is not None and size > 0:
            works.setdefault(_work_but_for(cell.cell, _BATCH), []).append(cell)
    fits = [event for event in events if event.what == "batch-fits"]
    return tuple(_sweep(cells, fits) for cells in works.values() if len(cells) > 1)


def _sweep(data: list[CellData], events: Iterable[Event]) -> BatchSweep:
    data = sorted(data, key=_size)
    first, ids = data[0], {cell.cell.id for cell in data}
    fits = {event.arm: event for event in events if event.cell in ids}
    arms = [arm.id for arm in first.run.arms if not arm.is_control]
    return BatchSweep(
        host=first.cell.host,
        workload=first.cell.workload,
        parameters=_others(first.cell, _BATCH),
        within=first.cell.within,
        sizes=tuple(map(_size, data)),
        cells=tuple(cell.cell.id for cell in data),
        is_searched=bool(fits),
        arms=tuple(_arm(data, arm, fits.get(arm)) for arm in arms),
    )


def _size(data: CellData) -> int:
    return int(str(data.cell.parameters[_BATCH]))


def _arm(data: list[CellData], arm: str, fit: Event | None) -> ArmSizes:
    rates = {_size(cell): logs for cell in data if (logs := _log_rates(cell, arm))}
    bend = knee(rates)
    values = fit.values if fit else {}
    limits: tuple[Limit, ...] = get_args(Limit)
    return ArmSizes(
        arm=arm,
        rates=tuple(_rate(cell, rates[_size(cell)]) for cell in data if _size(cell) in rates),
        best=bend.best if bend else None,
        knee_low=bend.low if bend else None,
        knee_high=bend.high if bend else None,
        knee_restarts=bend.restarts if bend else 0,
        largest=_whole(values, "largest"),
        beyond=_whole(values, "beyond"),
        limited_by=next((limit for limit in limits if limit == values.get("limited_by")), None),
        memory_mib=_whole(values, "memory_mib"),
        device=str(values.get("device", "")),
        reason=str(values.get("reason") or values.get("said") or ""),
    )


def _whole(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) else None


def _log_rates(data: CellData, arm: str) -> dict[int, float]:
    """Return the logarithm of samples per second by restart, from its median round.

    The batch of a step is the larger one of the parameter and the workload's report, since each of
    several ranks has a batch. Without either it is 1. Ranks use wall time: net time is known for
    one rank only, so other numbers of ranks would not compare.
    """
    rounds = data.readings.by_restart(arm, "wall" if _ranks(data.cell) else data.metric[0])
    samples = math.log(max(data.batch or 1, _size(data)) * 1e9)
    return {restart: samples - statistics.median(logs) for restart, logs in rounds.items()}


def _rate(data: CellData, logs: Mapping[int, float]) -> SizeRate:
    mean = interval(tuple(logs.values()), level=LEVEL)
    assert mean is not None
    return SizeRate(
        batch=_size(data),
        cell=data.cell.id,
        samples_per_s=math.exp(mean.mean),
        low=_exp(mean.low),
        high=_exp(mean.high),
        restarts=mean.restarts,
    )


def cell_training(data: CellData, epochs: Iterable[Epoch]) -> CellTraining | None:
    """Return the results of a cell's epochs; None without epochs or a goal."""
    goal, kept = data.run.design.until, tuple(epochs)
    ways = {arm.id: _ways(epoch for epoch in kept if epoch.arm == arm.id) for arm in data.run.arms}
    why_not = _why_not(data, ways)
    if goal is None or not (kept or why_not):
        return None
    reference = ways[data.reference.id]
    # times are compared without waits, as for steps
    is_net = data.metric[0] == "net" and all(
        epoch.wait_ns is not None and epoch.wait_ns < epoch.wall_ns for epoch in kept
    )
    return CellTraining(
        cell=data.cell.id,
        is_net=is_net,
        arms=tuple(
            msgspec.structs.replace(
                _arm_training(arm, ways[arm.id], reference, goal, is_net=is_net),
                is_same_work=arm.parameters == data.reference.parameters,
                why_not=why_not.get(arm.id, ""),
            )
            for arm in data.run.arms
        ),
        # an arm with the parameters of the reference should have its values
        **_agreement(
            [
                ways[arm.id]
                for arm in data.run.arms
                if not arm.is_control and arm.parameters == data.reference.parameters
            ]
        ),
    )


def _why_not(data: CellData, ways: Mapping[str, _Ways]) -> dict[str, str]:
    """Return why arms stopped training; arms that trained again later have no reason."""
    failed = (event for event in data.guard_events if event.what == "training-failed")
    return {
        event.arm: event.failure.brief
        for event in failed
        if event.failure and (event in data.events or not ways.get(event.arm))
    }


def _ways(epochs: Iterable[Epoch]) -> _Ways:
    """Return the completed restarts; interrupted ones have too little information."""
    restarts: dict[int, list[Epoch]] = {}
    for epoch in epochs:
        restarts.setdefault(epoch.restart, []).append(epoch)
    return {
        restart: sorted(way, key=lambda epoch: epoch.epoch)
        for restart, way in restarts.items()
        if any(epoch.is_last for epoch in way)
    }


def _arm_training(
    arm: ArmRecord, ways: _Ways, reference: _Ways, goal: Goal, *, is_net: bool
) -> ArmTraining:
    there = [
        way for way in ways.values() if (last := way[-1].value) is not None and last >= goal.value
    ]
    seconds = interval([math.log(_seconds(way)) for way in there], level=LEVEL)
    ratio = None if arm.is_reference else _epoch_ratio(ways, reference, is_net=is_net)
    return ArmTraining(
        arm=arm.id,
        is_control=arm.is_control,
        restarts=len(ways),
        reached=len(there),
        epochs=tuple(way[-1].epoch for way in there),
        most_epochs=max((way[-1].epoch for way in ways.values()), default=0),
        best=max(
            (epoch.value for way in ways.values() for epoch in way if epoch.value is not None),
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


def _seconds(way: Sequence[Epoch]) -> float:
    return max(1, sum(epoch.wall_ns for epoch in way)) / 1e9


def _exp(log: float | None) -> float | None:
    return None if log is None else math.exp(log)


def _epoch_ratio(ways: _Ways, reference: _Ways, *, is_net: bool) -> Interval | None:
    """Return the mean log ratio of epoch times over restarts, paired by epoch."""

    def log_ns(epoch: Epoch) -> float:
        return math.log(max(1, epoch.wall_ns - (epoch.wait_ns or 0) * is_net))

    restarts = []
    for restart in sorted(ways.keys() & reference.keys()):
        pairs = zip(ways[restart], reference[restart], strict=False)
        restarts.append(statistics.fmean(log_ns(one) - log_ns(other) for one, other in pairs))
    return interval(restarts, level=LEVEL)


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
    """Count the epochs in which all arms had the same value, and those in which they did not.

    Untrained arms are ignored, and an epoch counts only if all others have a value.
    """
    trained = [
        {(epoch.restart, epoch.epoch): epoch.value for way in ways.values() for epoch in way}
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
