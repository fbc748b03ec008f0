"""The verdict of each arm in each cell, with what speaks against it.

The interval a verdict rests on is settled over all comparisons of a run together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from envcompare.analysis.model.comparison import (
    CellSummary,
    Comparison,
    Estimate,
    Leaning,
    Outcome,
    Reason,
)
from envcompare.analysis.timing.cells import CellData, plain_estimate, to_estimate
from envcompare.run_folder.records import ArmRecord, Design
from envcompare.stats.intervals import (
    ALPHA,
    Evidence,
    Interval,
    gather,
    generations_needed,
    interval,
    printed,
)
from envcompare.stats.metrics import MetricName
from envcompare.stats.multiplicity import gather_pooled, screen
from envcompare.stats.pairs import Units
from envcompare.stats.verdicts import verdict

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
    evidence = {key: gather(units, always_restarts=is_strict) for key, units in groups.items()}
    # what a rule stopped keeps the interval that the rule saw
    open_cells = {one.cell.id for one in data if one.stopped_by not in RULES}
    shared = {} if is_strict else _pooled(groups, alike)
    pooled = {key for key, one in shared.items() if key[0] in open_cells and one != evidence[key]}
    evidence |= {key: shared[key] for key in pooled}
    measured = {key: one for key, one in evidence.items() if one is not None}
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
    pooled: dict[Key, Evidence | None] = {}
    for kind in dict.fromkeys(alike[key] for key in groups):
        keys = [key for key in groups if alike[key] == kind]
        pooled |= zip(keys, gather_pooled([groups[key] for key in keys]), strict=True)
    return pooled


# Fewer launches cannot tell an environment from its luck. A plan may aim at more, to be narrower.
MIN_RESTARTS = 4
PLAIN_LEVEL = 0.95
_READ_AS_ZERO = 0.0005  # of a log ratio: changes are printed with one decimal of a percent
_SECONDARY: tuple[MetricName, ...] = ("net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real")


def judge(
    data: CellData, arm: ArmRecord, cell: CellSummary, *, primary: Primary | None
) -> Comparison:
    """Compare one arm with the reference in one cell; exactly one outcome.

    `primary` is the arm's, as settled over the whole run; the control has none of its own.
    """
    settled = _control(data, arm) if arm.is_control else primary
    if settled is None or _did_other_work(data, arm.id):
        return _without_result(data, arm, cell)
    return _with_result(data, arm, cell, settled)


def _control(data: CellData, arm: ArmRecord) -> Primary | None:
    metric, _ = data.metric
    _, groups = data.estimate(arm.id, metric)
    ratio = interval(groups, level=PLAIN_LEVEL, always_restarts=data.is_strict)
    return None if ratio is None else Primary(interval=ratio)


def _base(data: CellData, arm: ArmRecord) -> Comparison:
    return Comparison(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        arm=arm.id,
        environment=arm.environment,
        stack=arm.stack,
        is_control=arm.is_control,
        outcome="not-run",
        failure=data.failure(arm.id),
    )


def _without_result(data: CellData, arm: ArmRecord, cell: CellSummary) -> Comparison:
    outcome: Outcome = "failed"
    base = _base(data, arm)
    if base.failure is not None:
        outcome = "not-run" if base.failure.phase in {"environment", "plan"} else "failed"
        reason = Reason(kind="failed", brief=base.failure.brief)
    elif (lost := data.failure(data.reference.id)) is not None:
        reason = Reason(kind="reference-failed", arm=data.reference.id, brief=lost.brief)
    elif cell.state != "ok" and cell.reason:
        # of a cell that ended well its reason is what stopped it, and not why this is missing
        outcome, reason = "not-run", Reason(kind="cell-ended", brief=cell.reason)
    else:
        outcome, reason = "not-run", Reason(kind="no-complete-round")
    return msgspec.structs.replace(base, outcome=outcome, reason=reason)


def _with_result(data: CellData, arm: ArmRecord, cell: CellSummary, settled: Primary) -> Comparison:
    metric, _ = data.metric
    primary = msgspec.structs.replace(
        to_estimate(
            data, arm.id, metric=metric, ratio=settled.interval, is_widened=not arm.is_control
        ),
        is_pooled=settled.is_pooled,
    )
    outcome, reason, control_failed = _outcome(data, primary, cell.noise_floor)
    if outcome in {"slower", "faster"} and not settled.is_selected:
        outcome, reason = "inconclusive", Reason(kind="not-selected")
    is_open = outcome == "inconclusive" and not (control_failed and reason)
    more = _more_generations(data, settled.interval) if is_open else None
    if outcome == "inconclusive" and data.stopped_by == "target":
        reason = reason or Reason(kind="target-first")
    others = (
        plain_estimate(data, arm.id, metric=name, level=PLAIN_LEVEL)
        for name in _SECONDARY
        if name != metric
    )
    return msgspec.structs.replace(
        _base(data, arm),
        outcome=outcome,
        leaning=leaning(primary.log_ratio),
        primary=primary,
        secondary=tuple(other for other in others if other is not None),
        reason=reason,
        forecast_generations=more,
        forecast_s=None if more is None else more * _seconds_a_generation(cell),
        control_failed=control_failed and not arm.is_control,
    )


def _least_restarts(data: CellData) -> int:
    design = data.run.design
    return least_restarts(preset=design.preset, planned=design.min_restarts)


def least_restarts(*, preset: str, planned: int) -> int:
    """Return how many restarts a verdict needs; strict means the number it planned."""
    return planned if preset == "strict" else MIN_RESTARTS


def _more_generations(data: CellData, ratio: Interval) -> int | None:
    """Forecast what is missing, the restarts below the least number included; None: no telling."""
    per_restart = ratio.generations // ratio.restarts
    missing = max(0, _least_restarts(data) - ratio.restarts) * per_restart
    needed = generations_needed(ratio, margin=data.run.design.margin)
    if needed is None:
        return None
    return max(missing, needed - ratio.generations, 1)


def _outcome(
    data: CellData, primary: Estimate, floor: Estimate | None
) -> tuple[Outcome, Reason | None, bool]:
    least = _least_restarts(data)
    if primary.restarts < least:
        return "inconclusive", _too_few(data, primary, least), False
    margin = data.run.design.margin
    outcome: Outcome = verdict(primary.low, primary.high, margin=margin)
    end = failed_control_end(floor)
    if end is None:
        return outcome, None, False
    if outcome != "inconclusive" and claimed(outcome, primary.log_ratio, margin=margin) <= end:
        return "inconclusive", Reason(kind="control-failed", control_end=end), True
    return outcome, None, True


def claimed(outcome: Outcome, log_ratio: float, *, margin: float) -> float:
    """Return how large a difference is claimed, or denied by *equivalent*, as a log ratio."""
    return math.log1p(margin) if outcome == "equivalent" else abs(log_ratio)


def _too_few(data: CellData, primary: Estimate, least: int) -> Reason:
    planned = data.run.design.min_restarts
    return Reason(
        kind="too-few",
        unit="round" if primary.unit == "process" else "restart",
        counted=primary.restarts,
        needed=least,
        planned=planned if planned > least else None,
        missing=max(1, 2 - primary.restarts) if primary.low is None else None,
    )


def failed_control_end(floor: Estimate | None) -> float | None:
    """Return the far end of the control's 99 % interval where that excludes 0, else None."""
    if floor is None or floor.low is None or floor.high is None:
        return None
    if floor.restarts < MIN_RESTARTS or floor.low <= 0 <= floor.high:
        return None
    return max(abs(floor.low), abs(floor.high))


def leaning(log_ratio: float) -> Leaning:
    """Return to which side a log ratio lies; what reads as 0.0 % lies on none."""
    if abs(log_ratio) < _READ_AS_ZERO:
        return "none"
    return "slower" if log_ratio > 0 else "faster"


def _seconds_a_generation(cell: CellSummary) -> float:
    return cell.elapsed_s / max(1, cell.generations)
