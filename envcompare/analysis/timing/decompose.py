"""Split differences: the 2 × 2 of environment and software, and the ladder of rungs; pure.

Four arms form a 2 × 2: a container and the plain process, each with its image's software and with
the host's own. A path from the plain process on the host's files to the container with its image
changes one thing at a time, so the log ratios of its two steps sum to the total.

A ladder compares each rung with the rung below, so that each difference is due to one change. It
uses the run's comparisons with another reference: the same rounds, estimator and widening. A step
from or to the reference equals the other arm's comparison.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np

from envcompare.analysis.model.comparison import (
    CellSummary,
    Comparison,
    Decomposition,
    Estimate,
    LadderStep,
    Outcome,
)
from envcompare.analysis.timing.cells import CellData
from envcompare.analysis.timing.judge import Key, Primary, judged_by, outside_turns
from envcompare.analysis.timing.surroundings import Surroundings
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintRecord
from envcompare.stats import Round
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.typical import contrast
from envcompare.stats.verdicts import AnyEvidence

LEVEL = 0.95
_Rounds = dict[Round, tuple[float, ...]]
"""Logarithms of the typical steps of all corners, by round."""
_TURNED: Final[dict[Outcome, Outcome]] = {"slower": "faster", "faster": "slower"}
_HOW = "engine.options"  # describes how a rung makes its change, so it is not a further one


class _Corners(NamedTuple):
    """The arms of one 2 × 2; all parts are relative to `base`, the plain process on the host."""

    base: str
    host_arm: str  # in the container, with the host's own files
    arm: str  # in the container, with its image
    base_image: str = ""  # the plain process with the image's software, if measured


def _all_corners(arms: Iterable[ArmRecord]) -> tuple[_Corners, ...]:
    """Return each 2 × 2 of the arms; the plain environment is that of the reference.

    An arm with a user's image gets a separate 2 × 2.
    """
    taking_part = tuple(arm for arm in arms if not arm.is_control)
    plain = next((arm.environment for arm in taking_part if arm.is_reference), "")
    on_host = {arm.environment: arm.id for arm in taking_part if arm.stack == "host"}
    built = {
        arm.environment: arm.id for arm in taking_part if arm.stack == "image" and not arm.reference
    }
    return tuple(
        _Corners(
            base=on_host[plain],
            host_arm=on_host[arm.environment],
            arm=arm.id,
            base_image="" if arm.reference else built.get(plain, ""),
        )
        for arm in taking_part
        if arm.stack == "image" and arm.environment != plain
        if arm.environment in on_host and plain in on_host
    )


def decompose(data: CellData) -> tuple[Decomposition, ...]:
    """Split every difference of a cell with measurements of all four arms."""
    parts = (_decomposition(data, corners) for corners in _all_corners(data.run.arms))
    return tuple(one for one in parts if one is not None)


def _decomposition(data: CellData, corners: _Corners) -> Decomposition | None:
    arms = tuple(filter(None, corners))
    if any(map(data.did_other_work, arms)):
        return None  # arms with different work have no ratio
    rounds = _complete(data, arms)
    place = {arm: number for number, arm in enumerate(arms)}

    def part(**signs: int) -> Estimate | None:
        weights = [0] * len(arms)
        for corner, sign in signs.items():
            weights[place[getattr(corners, corner)]] = sign
        return _estimate(data, rounds, arms, weights)

    total = part(arm=1, base=-1)
    environment = part(host_arm=1, base=-1)
    stack = part(arm=1, host_arm=-1)
    if total is None or environment is None or stack is None:
        return None
    has_both = bool(corners.base_image)
    return Decomposition(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        **corners._asdict(),
        total=total,
        environment=environment,
        stack=stack,
        environment_by_image=part(arm=1, base_image=-1) if has_both else None,
        stack_by_base=part(base_image=1, base=-1) if has_both else None,
        interaction=part(arm=1, host_arm=-1, base_image=-1, base=1) if has_both else None,
    )


def _complete(data: CellData, arms: tuple[str, ...]) -> _Rounds:
    """Return the rounds with a value of every arm, in which the parts add up."""
    known = data.readings.logarithms(data.metric[0])
    complete = data.readings.complete_rounds(arms, data.metric[0])
    return {number: tuple(known[arm][number] for arm in arms) for number in complete}


def _estimate(
    data: CellData, rounds: _Rounds, arms: Sequence[str], weights: Sequence[int]
) -> Estimate | None:
    """Return the estimate of a sum of arms whose signs sum to 0."""
    if not rounds:
        return None
    ratio = _interval(data, rounds, arms, weights)
    return data.to_estimate(ratio, data.metric[0], rounds=len(rounds), is_widened=False)


def _interval(
    data: CellData, rounds: _Rounds, arms: Sequence[str], weights: Sequence[int]
) -> Interval:
    logarithms = np.asarray(list(rounds.values()), dtype=float).T
    values = np.asarray(weights, dtype=float) @ logarithms
    groups: dict[int, list[float]] = {}
    for number, value in zip(rounds, values.tolist(), strict=True):
        groups.setdefault(number[0], []).append(value)
    if data.is_program:
        bounds = interval(values.tolist(), level=LEVEL)
        assert bounds is not None
        return bounds
    size = sum(abs(weight) for weight in weights) / 2  # two differences have twice the variance
    widest = max((data.spread(arm) for arm in arms), key=lambda spread: spread.variance)
    spread = dataclasses.replace(widest, variance=widest.variance * size)
    return contrast(logarithms, weights).interval(
        level=LEVEL,
        spread=spread,
        groups=tuple(map(tuple, groups.values())),
        generations=len({number[:2] for number in rounds}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The inputs of the ladder."""

    settled: Mapping[Key, Primary]
    comparisons: Mapping[Key, Comparison]  # with the reference, by cell and arm
    prints: Mapping[tuple[str, str], FingerprintRecord]  # by cell and arm
    surroundings: Surroundings


def step_evidence(cells: Iterable[CellData]) -> dict[Key, AnyEvidence | None]:
    """Return the evidence on each step that is not a comparison with the reference."""
    return {
        (data.cell.id, arm.id, below.id): data.against(below.id).evidence(arm.id, data.metric[0])
        for data in cells
        for arm, below in _steps(data)
        if not (arm.is_reference or below.is_reference)
    }


def _steps(data: CellData) -> tuple[tuple[ArmRecord, ArmRecord], ...]:
    """Return each measured rung with the nearest measured rung below."""
    measured = [
        arm
        for arm in data.run.arms
        if arm.rung and data.arm_blocks(arm.id) and not data.did_other_work(arm.id)
    ]
    return tuple(zip(measured[1:], measured, strict=False))


def ladder(
    around: Surroundings,
    cells: Iterable[tuple[CellData, CellSummary]],
    settled: Mapping[Key, Primary],
    *,
    comparisons: Iterable[Comparison],
) -> tuple[LadderStep, ...]:
    """Return every rung of each cell, from the lowest up, including unmeasured ones."""
    known = _Judged(
        settled=settled,
        comparisons={(one.cell, one.arm): one for one in comparisons},
        prints={(one.cell, one.arm): one for one in around.read.fingerprints},
        surroundings=around,
    )
    return tuple(step for data, summary in cells for step in _rungs(data, summary, known))


def _rungs(data: CellData, summary: CellSummary, known: _Judged) -> Iterator[LadderStep]:
    below = {arm.id: lower for arm, lower in _steps(data)}
    for arm in data.run.arms:
        if arm.id in below:
            yield _measured(data, summary, (arm, below[arm.id]), known)
        elif arm.rung:
            yield _alone(data, arm)


def _alone(data: CellData, arm: ArmRecord) -> LadderStep:
    """Return a rung without one below it, or an unmeasured rung."""
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
    known: _Judged,
) -> LadderStep:
    arm, below = step
    same = _same(data.cell.id, arm, below, known.comparisons)
    primary = known.settled.get((data.cell.id, arm.id, below.id))
    if same is not None:
        outcome, estimate = same
    elif primary is not None:
        against = data.against(below.id)
        judged = judged_by(against, arm, summary, settled=primary)
        outcome, estimate = judged.outcome, judged.deciding
        if outcome == "equivalent" and outside_turns(against, arm.id):
            outcome = "inconclusive"
    else:
        return _rung(data, arm, "not-run", why_not="no round of both rungs was measured")
    differing = _differences(data, step, known, ratio=estimate.log_ratio)
    return msgspec.structs.replace(
        _rung(data, arm, outcome),
        below=below.id,
        step=estimate,
        changed=None if differing is None else tuple(each.key for each in differing),
        is_confounded=any(each.fact_class == "confounder" for each in differing or ()),
    )


def _same(
    cell: str, arm: ArmRecord, below: ArmRecord, comparisons: Mapping[Key, Comparison]
) -> tuple[Outcome, Estimate] | None:
    """Return the comparison with the reference that equals a step, inverted if it ends there."""
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
    turned = msgspec.structs.replace(there, log_ratio=-there.log_ratio, low=low, high=high)
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
    data: CellData, step: tuple[ArmRecord, ArmRecord], known: _Judged, *, ratio: float
) -> tuple[FactDifference, ...] | None:
    """Return the facts in which a rung differs from the one below, except the arm's names.

    They include stops by a quota and the GPU clocks of both rungs. None if the facts of either rung
    are unknown.
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
