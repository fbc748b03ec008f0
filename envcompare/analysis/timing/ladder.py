"""The ladder: each rung against the rung below, so that a difference is that of one change; pure.

The comparisons are those of the run with another arm as the reference: the same rounds, estimator
and widening.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from envcompare.analysis.model.comparison import CellSummary, LadderStep, Outcome
from envcompare.analysis.timing.cells import CellData, to_estimate
from envcompare.analysis.timing.judge import (
    AnyEvidence,
    Key,
    Primary,
    did_other_work,
    outcome_of,
)
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintRecord

_HOW = "engine.options"  # it says how the change of a rung is made, and is no further change


def step_evidence(cells: Iterable[CellData]) -> dict[Key, AnyEvidence | None]:
    """Return what is known of each step that is not the comparison of an arm with the reference."""
    return {
        (data.cell.id, arm.id, below.id): data.against(below.id).evidence(arm.id, data.metric[0])
        for data in cells
        for arm, below in _steps(data)
        if not below.is_reference
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
    settled: Mapping[Key, Primary],
    prints: Mapping[tuple[str, str], FingerprintRecord],
) -> tuple[LadderStep, ...]:
    """Return every rung of the run in a cell, from the lowest up; those not measured as well.

    `prints` are the fingerprints by cell and arm.
    """
    below = {arm.id: lower for arm, lower in _steps(data)}
    rungs = (arm for arm in data.run.arms if arm.rung)
    return tuple(
        _measured(data, summary, (arm, below[arm.id]), settled, prints)
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
        outcome, why = "not-run", "no round of it was measured"
    return _rung(data, arm, outcome, why_not=why)


def _measured(
    data: CellData,
    summary: CellSummary,
    step: tuple[ArmRecord, ArmRecord],
    settled: Mapping[Key, Primary],
    prints: Mapping[tuple[str, str], FingerprintRecord],
) -> LadderStep:
    arm, below = step
    key = (data.cell.id, arm.id) if below.is_reference else (data.cell.id, arm.id, below.id)
    primary = settled.get(key)
    if primary is None:
        return _rung(data, arm, "not-run", why_not="no round of both rungs was measured")
    against = data.against(below.id)
    estimate = to_estimate(
        against, arm.id, metric=data.metric[0], ratio=primary.interval, is_widened=True
    )
    outcome, _, _ = outcome_of(against, estimate, summary.noise_floor, primary)
    differing = _differences(data.cell.id, arm, below, prints)
    return replace(
        _rung(data, arm, outcome),
        below=below.id,
        step=estimate,
        changed=tuple(one.key for one in differing),
        is_confounded=any(one.fact_class == "confounder" for one in differing),
    )


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
    cell: str,
    arm: ArmRecord,
    below: ArmRecord,
    prints: Mapping[tuple[str, str], FingerprintRecord],
) -> tuple[FactDifference, ...]:
    """Return the facts in which a rung differs from the one below, but for what names the arms."""
    if not {(cell, arm.id), (cell, below.id)} <= prints.keys():
        return ()
    return tuple(
        one
        for one in compare_fingerprints(prints[cell, below.id], prints[cell, arm.id])
        if one.fact_class != "identity" and not one.part_of and one.key != _HOW
    )
