"""The numbers picked from the output of plain commands: medians, and ratios without a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from envcompare.analysis.model.comparison import PickedValue
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import Measured, ProcessRun
from envcompare.stats.intervals import interval
from envcompare.stats.pairs import pair, units

LEVEL = 0.95


def picked_values(data: CellData) -> tuple[PickedValue, ...]:
    """Return every number of every arm of a cell; an arm that printed none is left out."""
    runs = {arm.id: _runs(data, arm.id) for arm in data.run.arms}
    names = dict.fromkeys(name for found in runs.values() for run in found for name in run.values)
    return tuple(
        _picked(data, arm, name, values)
        for name in names
        for arm, found in runs.items()
        if (values := [run.values[name] for run in found if name in run.values])
    )


def _runs(data: CellData, arm: str) -> list[ProcessRun]:
    return [run for run in data.arm_blocks(arm) if isinstance(run, ProcessRun)]


def _picked(data: CellData, arm: str, name: str, values: Sequence[float]) -> PickedValue:
    def read(run: Measured) -> float | None:
        return run.values.get(name) if isinstance(run, ProcessRun) else None

    reference = data.reference.id
    pairs = pair(data.blocks, arm=arm, reference=reference, read=read) if arm != reference else {}
    found = interval(units(pairs), level=LEVEL)
    return PickedValue(
        cell=data.cell.id,
        arm=arm,
        name=name,
        processes=len(values),
        median=median(values),
        low=min(values),
        high=max(values),
        log_ratio=found.mean if found else None,
        ratio_low=found.low if found else None,
        ratio_high=found.high if found else None,
        level=LEVEL,
    )
