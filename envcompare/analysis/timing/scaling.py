"""What several ranks bring in each environment: speed-up, efficiency, time in collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import mean
from typing import Any, Final

from envcompare.analysis.model.comparison import CellSummary, Scaling
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.analysis.timing.cells import CellData, others, whole_number, work_but_for
from envcompare.run_folder.records import CellRecord
from envcompare.stats.intervals import Interval, interval

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
