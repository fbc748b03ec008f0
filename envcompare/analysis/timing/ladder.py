"""The ladder: each rung against the rung below, so that a difference is that of one change; pure.

The comparisons are those of the run with another arm as the reference: the same rounds, estimator
and widening. A step that begins or ends at the reference is the comparison of the other arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from envcompare.analysis.model.comparison import (
    CellSummary,
    Comparison,
    Estimate,
    LadderStep,
    Outcome,
)
from envcompare.analysis.timing.cells import CellData, to_estimate
from envcompare.analysis.timing.judge import (
    Key,
    Primary,
    did_other_work,
    outcome_of,
)
from envcompare.analysis.timing.surroundings import Surroundings
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintRecord
from envcompare.stats.multiplicity import AnyEvidence

_TURNED: Final[dict[Outcome, Outcome]] = {"slower": "faster", "faster": "slower"}
_HOW = "engine.options"  # it says how the change of a rung is made, and is no further change


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is known of a run when its ladder is looked at."""

    settled: Mapping[Key, Primary]
    comparisons: Mapping[Key, Comparison]  # with the reference, by cell and arm
    prints: Mapping[tuple[str, str], FingerprintRecord]  # by cell and arm
    surroundings: Surroundings


def step_evidence(cells: Iterable[CellData]) -> dict[Key, AnyEvidence | None]:
    """Return what is known of each step that is not the comparison of an arm with the reference."""
    return {
        (data.cell.id, arm.id, below.id): data.against(below.id).evidence(arm.id, data.metric[0])
        for data in cells
        for arm, below in _steps(data)
        if not (arm.is_reference or below.is_reference)
    }


def _steps(data: CellData) -> tuple[tuple[ArmRecord, ArmRecord], ...]:
    """Return each measured rung with the nearest measured one below it."""
    measured = [
        arm
        for arm in data.run.arms
        if arm.rung and data.arm_blocks(arm.id) and not did_other_work(data, arm.id)
    ]
    return tuple(zip(measured[1:], measured, strict=False))


def ladder(
    data: CellData,
    summary: CellSummary,
    known: Judged,
) -> tuple[LadderStep, ...]:
    """Return every rung of the run in a cell, from the lowest up; those not measured as well."""
    below = {arm.id: lower for arm, lower in _steps(data)}
    rungs = (arm for arm in data.run.arms if arm.rung)
    return tuple(
        _measured(data, summary, (arm, below[arm.id]), known)
        if arm.id in below
        else _alone(data, arm)
        for arm in rungs
    )


def _alone(data: CellData, arm: ArmRecord) -> LadderStep:
    """Return a rung with nothing below it, or one that was not measured."""
    failure = data.failure(arm.id)
    if failure is not None:
        outcome: Outcome = "not-run" if failure.phase in {"environment", "plan"} else "failed"
        why = failure.details or failure.brief
    elif data.arm_blocks(arm.id):
        outcome, why = "reference", ""
    else:
        outcome, why = "not-run", "no round was measured"
    return _rung(data, arm, outcome, why_not=why)


def _measured(
    data: CellData,
    summary: CellSummary,
    step: tuple[ArmRecord, ArmRecord],
    known: Judged,
) -> LadderStep:
    arm, below = step
    same = _same(data.cell.id, arm, below, known.comparisons)
    primary = known.settled.get((data.cell.id, arm.id, below.id))
    if same is not None:
        outcome, estimate = same
    elif primary is not None:
        against = data.against(below.id)
        estimate = to_estimate(
            against, arm.id, metric=data.metric[0], ratio=primary.interval, is_widened=True
        )
        outcome, _, _ = outcome_of(against, estimate, summary.noise_floor, primary)
    else:
        return _rung(data, arm, "not-run", why_not="no round of both rungs was measured")
    differing = _differences(data, step, known, ratio=estimate.log_ratio)
    return replace(
        _rung(data, arm, outcome),
        below=below.id,
        step=estimate,
        changed=None if differing is None else tuple(each.key for each in differing),
        is_confounded=any(each.fact_class == "confounder" for each in differing or ()),
    )


def _same(
    cell: str, arm: ArmRecord, below: ArmRecord, comparisons: Mapping[Key, Comparison]
) -> tuple[Outcome, Estimate] | None:
    """Return the comparison with the reference that a step is, turned where it ends there."""
    if below.is_reference:
        comparison = comparisons.get((cell, arm.id))
        return (
            (comparison.outcome, comparison.deciding)
            if comparison and comparison.deciding
            else None
        )
    comparison = comparisons.get((cell, below.id)) if arm.is_reference else None
    if comparison is None or comparison.deciding is None:
        return None
    there = comparison.deciding
    low, high = (None if end is None else -end for end in (there.high, there.low))
    turned = replace(there, log_ratio=-there.log_ratio, low=low, high=high)
    return _TURNED.get(comparison.outcome, comparison.outcome), turned


def _rung(data: CellData, arm: ArmRecord, outcome: Outcome, *, why_not: str = "") -> LadderStep:
    return LadderStep(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        arm=arm.id,
        rung=arm.rung,
        outcome=outcome,
        why_not=why_not,
    )


def _differences(
    data: CellData, step: tuple[ArmRecord, ArmRecord], known: Judged, *, ratio: float
) -> tuple[FactDifference, ...] | None:
    """Return the facts in which a rung differs from the one below, but for what names the arms.

    Stops by a quota and the clocks of a GPU that were seen in the two are among them. None where
    the facts of one of them are not known.
    """
    (arm, below), cell = step, data.cell.id
    if not {(cell, arm.id), (cell, below.id)} <= known.prints.keys():
        return None
    context = known.surroundings.context(cell, (below.id, arm.id))
    prints = known.prints[cell, below.id], known.prints[cell, arm.id]
    clocks = known.surroundings.clocks(data, (below.id, arm.id), ratio)
    return tuple(
        one
        for one in (*compare_fingerprints(*prints, context), *clocks)
        if one.fact_class != "identity" and not one.part_of and one.key != _HOW
    )
