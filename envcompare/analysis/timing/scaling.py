"""How throughput grows with ranks and with the batch: speed-up, exchanges, knee, what fits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from statistics import mean
from typing import Any, Final, get_args

from envcompare.analysis.model.comparison import CellSummary
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.analysis.model.sweeps import ArmSizes, BatchSweep, Limit, Scaling, SizeRate
from envcompare.analysis.timing.cells import CellData, others, whole_number, work_but_for
from envcompare.run_folder.records import CellRecord, Event
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.knees import knee

RANKS: Final = "ranks"
"""The parameter of a workload that says how many processes share its work."""
LEVEL: Final = 0.95
_FEWEST: Final = 3  # restarts of an interval: that of two says next to nothing
_NS: Final = 1e-9
_PERCENT: Final = 0.01
# quantities of torch.profiler, each with what one unit of it is
_QUANTITIES: Final = {
    "collective_s": ("collective_ns", _NS),
    "collective_exposed_s": ("collective_exposed_ns", _NS),
    "collective_share": ("collective_step_share", _PERCENT),
    "collective_exposed_share": ("collective_exposed_step_share", _PERCENT),
}
_BATCH = "batch"


def scaling(
    data: Iterable[CellData], cells: Iterable[CellSummary], profiles: Iterable[CellProfiles]
) -> tuple[Scaling, ...]:
    """Return a row for each arm of each cell that sets `ranks`, but for controls.

    The batch is that of a rank, so that an efficiency of 1 is work that grows at no cost.
    """
    ranked = [(one, cell) for one, cell in zip(data, cells, strict=True) if _ranks(one.cell)]
    alone = {_work(one.cell): one for one, _ in ranked if _ranks(one.cell) == 1}
    seen = {(of.cell, arm.arm): _exchanged(of, arm.arm) for of in profiles for arm in of.arms}
    return tuple(
        row for one, cell in ranked for row in _rows(one, cell, alone.get(_work(one.cell)), seen)
    )


def _ranks(cell: CellRecord) -> int | None:
    return whole_number(cell, RANKS)


def _work(cell: CellRecord) -> tuple[str, str, str, str]:
    return work_but_for(cell, RANKS)


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
            parameters=others(data.cell, RANKS),
            arm=times.arm,
            ranks=ranks,
            hosts=data.cell.hosts[:ranks] if ranks > 1 else (),
            samples_per_s=times.samples_per_s,
            **speed_up,
            **seen.get((data.cell.id, times.arm), {}),
        )


def _speed_up(gain: Interval | None) -> dict[str, Any]:
    """Return the speed-up with its ends, where an interval of logarithms has them."""
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


def _exchanged(profiles: CellProfiles, arm: str) -> dict[str, float]:
    """Return what the profiles of an arm say of its collectives, of a step where they have one."""
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
    """Return each set of two cells or more that differ in the parameter `batch` alone."""
    works: dict[object, list[CellData]] = {}
    for cell in data:
        size = whole_number(cell.cell, _BATCH)
        if size is not None and size > 0:
            works.setdefault(work_but_for(cell.cell, _BATCH), []).append(cell)
    fits = [event for event in events if event.what == "batch-fits"]
    return tuple(_sweep(cells, fits) for cells in works.values() if len(cells) > 1)


def _sweep(data: list[CellData], events: Iterable[Event]) -> BatchSweep:
    data = sorted(data, key=_size)
    first, ids = data[0], {one.cell.id for one in data}
    fits = {event.arm: event for event in events if event.cell in ids}
    arms = [arm.id for arm in first.run.arms if not arm.is_control]
    return BatchSweep(
        host=first.cell.host,
        workload=first.cell.workload,
        parameters=others(first.cell, _BATCH),
        within=first.cell.within,
        sizes=tuple(map(_size, data)),
        cells=tuple(one.cell.id for one in data),
        is_searched=bool(fits),
        arms=tuple(_arm(data, arm, fits.get(arm)) for arm in arms),
    )


def _size(data: CellData) -> int:
    return int(str(data.cell.parameters[_BATCH]))


def _arm(data: list[CellData], arm: str, fit: Event | None) -> ArmSizes:
    rates = {_size(one): logs for one in data if (logs := _log_rates(one, arm))}
    bend = knee(rates)
    values = fit.values if fit else {}
    limits: tuple[Limit, ...] = get_args(Limit)
    return ArmSizes(
        arm=arm,
        rates=tuple(_rate(one, rates[_size(one)]) for one in data if _size(one) in rates),
        best=bend.best if bend else None,
        knee_low=bend.low if bend else None,
        knee_high=bend.high if bend else None,
        knee_restarts=bend.restarts if bend else 0,
        largest=_whole(values, "largest"),
        beyond=_whole(values, "beyond"),
        limited_by=next((one for one in limits if one == values.get("limited_by")), None),
        memory_mib=_whole(values, "memory_mib"),
        device=str(values.get("device", "")),
        reason=str(values.get("reason") or values.get("said") or ""),
    )


def _whole(values: Mapping[str, object], name: str) -> int | None:
    value = values.get(name)
    return value if isinstance(value, int) else None


def _log_rates(data: CellData, arm: str) -> dict[int, float]:
    """Return the logarithm of samples a second by restart: of its median round.

    The batch of a step is what the workload said where that is more, as several ranks take one
    each; one that says nothing counts as a batch of 1.
    """
    rounds = data.readings.by_restart(arm, data.metric[0])
    samples = math.log(max(data.batch or 1, _size(data)) * 1e9)
    return {restart: samples - statistics.median(logs) for restart, logs in rounds.items()}


def _rate(data: CellData, logs: Mapping[int, float]) -> SizeRate:
    mean = interval(tuple(logs.values()), level=LEVEL)
    assert mean is not None
    return SizeRate(
        batch=_size(data),
        cell=data.cell.id,
        samples_per_s=math.exp(mean.mean),
        low=None if mean.low is None else math.exp(mean.low),
        high=None if mean.high is None else math.exp(mean.high),
        restarts=mean.restarts,
    )
