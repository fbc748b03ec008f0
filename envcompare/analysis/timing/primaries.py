"""The interval each verdict of a run rests on: settled over all its comparisons together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import Design
from envcompare.stats.intervals import ALPHA, Evidence, Interval, gather, printed
from envcompare.stats.metrics import MetricName
from envcompare.stats.pairs import Units
from envcompare.stats.pooling import gather_pooled
from envcompare.stats.screening import screen

Key = tuple[str, str]  # cell, arm
RULES = frozenset({"target", "equivalent", "decided"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """The printed interval of one comparison, and how it came about."""

    interval: Interval
    is_pooled: bool = False  # its restart variance is that of all cells
    is_selected: bool = True  # by the screen; without one every comparison is


def primaries(cells: Iterable[CellData], design: Design, *, m: int) -> dict[Key, Primary]:
    """Return the primary of each measured arm under comparison; `m` comparisons were planned."""
    data = tuple(cells)
    groups = {
        (one.cell.id, arm.id): _units(one, arm.id)
        for one in data
        for arm in one.run.arms
        if not (arm.is_reference or arm.is_control or _did_other_work(one, arm.id))
    }
    alike = {(one.cell.id, arm.id): _kind(one, arm.id) for one in data for arm in one.run.arms}
    is_strict = design.preset == "strict"
    found = {key: gather(units, always_restarts=is_strict) for key, units in groups.items()}
    # what a rule stopped keeps the interval that the rule saw
    open_cells = {one.cell.id for one in data if one.stopped_by not in RULES}
    shared = {} if is_strict else _pooled(groups, alike)
    pooled = {key for key, one in shared.items() if key[0] in open_cells and one != found[key]}
    found |= {key: shared[key] for key in pooled}
    measured = {key: one for key, one in found.items() if one is not None}
    if not design.screen:
        return {
            key: Primary(interval=printed(one, alpha=ALPHA / m), is_pooled=key in pooled)
            for key, one in measured.items()
        }
    screened = screen(tuple(measured.values()), planned=m)
    return {
        key: Primary(interval=one.interval, is_pooled=key in pooled, is_selected=one.is_selected)
        for key, one in zip(measured, screened, strict=True)
    }


def _did_other_work(data: CellData, arm: str) -> bool:
    failure = data.failure(arm)
    return failure is not None and failure.phase == "checksum"


def _kind(data: CellData, arm: str) -> tuple[str, MetricName]:
    """Return what cells share that may be pooled; commands of the user's need not be alike."""
    return (f"{data.cell.id} {arm}" if data.is_program else arm), data.metric[0]


def _units(data: CellData, arm: str) -> Units:
    metric, _ = data.metric
    return data.estimate(arm, metric)[1]


def _pooled(
    groups: dict[Key, Units], alike: dict[Key, tuple[str, MetricName]]
) -> dict[Key, Evidence | None]:
    """Pool over the cells of an arm that were judged on the same metric."""
    found: dict[Key, Evidence | None] = {}
    for kind in dict.fromkeys(alike[key] for key in groups):
        keys = [key for key in groups if alike[key] == kind]
        found |= zip(keys, gather_pooled([groups[key] for key in keys]), strict=True)
    return found
