"""Throughput by batch: the cells of a sweep over batches, the knee of each arm, and what fits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import get_args

from envcompare.analysis.model.throughput import ArmSizes, BatchSweep, Limit, SizeRate
from envcompare.analysis.timing.cells import CellData, others, whole_number, work_but_for
from envcompare.run_folder.records import Event
from envcompare.stats.intervals import interval
from envcompare.stats.knees import knee

_BATCH = "batch"
_LEVEL = 0.95


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
    mean = interval(tuple(logs.values()), level=_LEVEL)
    assert mean is not None
    return SizeRate(
        batch=_size(data),
        cell=data.cell.id,
        samples_per_s=math.exp(mean.mean),
        low=None if mean.low is None else math.exp(mean.low),
        high=None if mean.high is None else math.exp(mean.high),
        restarts=mean.restarts,
    )
