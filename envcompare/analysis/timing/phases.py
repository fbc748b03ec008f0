"""Compare the phases and operators of marked steps, paired by round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, get_args

from envcompare.analysis.model.profiling import (
    ArmPhases,
    CellPhases,
    LoneOperator,
    PartDifference,
    PartKind,
)
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import MarkedBlock, StepPhase
from envcompare.stats.intervals import level_together
from envcompare.stats.pairs import Round
from envcompare.stats.parts import (
    LEAST_SHARE,
    Pairing,
    Times,
    added,
    usual_ns,
    usual_share,
)

REST: Final = "(all others)"
"""The operators of a phase that a worker summed; they are not compared individually."""
_Place = tuple[StepPhase, str]
_NS: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A phase, an operator, or several, with their times."""

    kind: PartKind
    times: Times
    phase: StepPhase | None = None
    operator: str = ""


def cell_phases(data: CellData, blocks: Iterable[MarkedBlock]) -> CellPhases | None:
    """Return the results of a cell's marked blocks; None if none were requested."""
    reference = data.reference.id
    noted = (event.text for event in data.events if event.what == "not-marked")
    marked = tuple(blocks)
    if not marked:
        reason = next(noted, None)
        return (
            None
            if reason is None
            else CellPhases(cell=data.cell.id, reference=reference, reason=reason)
        )
    operators = _operators(marked)
    arms = (arm.id for arm in data.run.arms if not arm.is_reference)
    pairings = (
        Pairing(
            arm=arm,
            reference=reference,
            prior=data.expected,
            is_strict=data.is_strict,
        )
        for arm in arms
    )
    compared = tuple(filter(None, (_compared(operators, pairing) for pairing in pairings)))
    return CellPhases(cell=data.cell.id, reference=reference, arms=compared)


def _operators(blocks: Iterable[MarkedBlock]) -> dict[_Place, Times]:
    """Return the ns per step of each operator in its phase, by arm and round."""
    operators: dict[_Place, dict[str, dict[Round, float]]] = {}
    for block in blocks:
        number = (block.restart, block.generation, block.round)
        for phase, times in block.phases.items():
            for name, ns in times.items():
                of_arm = operators.setdefault((phase, name), {}).setdefault(block.arm, {})
                of_arm[number] = ns / block.k
    return dict(operators)


def _compared(operators: dict[_Place, Times], pairing: Pairing) -> ArmPhases | None:
    """Return the parts of an arm; None without a marked round with the reference."""
    whole = added(operators.values())
    tested = [
        part
        for part in (*_phases(operators), *_named(operators))
        if usual_share(part.times, whole, pairing.reference) >= LEAST_SHARE
    ]
    level = level_together(len(tested))
    step = _estimated(_Part(kind="step", times=whole), whole, pairing, level)
    interval = pairing.interval(whole, level=level)
    if step is None or interval is None:
        return None
    estimated = [(part, _estimated(part, whole, pairing, level)) for part in tested]
    differing = {
        (one.phase, one.operator)
        for _, one in estimated
        if one and one.kind == "operator" and one.is_distinguishable
    }
    remaining = added(times for place, times in operators.items() if place not in differing)
    others = _estimated(_Part(kind="others", times=remaining), whole, pairing, level)
    known = [one for _, one in estimated if one]
    in_order = sorted(known, key=lambda part: (part.kind != "phase", -abs(part.difference_s)))
    both = whole[pairing.arm].keys() & whole[pairing.reference].keys()
    return ArmPhases(
        arm=pairing.arm,
        rounds=len(both),
        restarts=interval.restarts,
        level=level,
        tested=len(tested),
        parts=(step, *in_order, *((others,) if others else ())),
        most_log_ratio=_most(estimated),
        lone=tuple(sorted(_lone(operators, whole, pairing), key=lambda part: -part.share)),
    )


def _phases(operators: dict[_Place, Times]) -> Iterator[_Part]:
    for phase in get_args(StepPhase):
        times = added(found for (of, _), found in operators.items() if of == phase)
        yield _Part(kind="phase", times=times, phase=phase)


def _named(operators: dict[_Place, Times]) -> Iterator[_Part]:
    for (phase, name), times in operators.items():
        if name != REST:
            yield _Part(kind="operator", times=times, phase=phase, operator=name)


def _estimated(part: _Part, whole: Times, pairing: Pairing, level: float) -> PartDifference | None:
    ratio = pairing.interval(part.times, level=level)
    if ratio is None:
        return None
    reference_s = usual_ns(part.times, pairing.reference) * _NS

    def difference_s(log_ratio: float | None) -> float | None:
        return None if log_ratio is None else reference_s * math.expm1(log_ratio)

    return PartDifference(
        kind=part.kind,
        phase=part.phase,
        operator=part.operator,
        share=usual_share(part.times, whole, pairing.reference),
        reference_s=reference_s,
        log_ratio=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        difference_s=reference_s * math.expm1(ratio.mean),
        difference_low_s=difference_s(ratio.low),
        difference_high_s=difference_s(ratio.high),
        is_distinguishable=abs(ratio.mean) > ratio.half_width,
    )


def _lone(operators: dict[_Place, Times], whole: Times, pairing: Pairing) -> Iterator[LoneOperator]:
    """Yield the operators that only one of the two arms runs."""
    for (phase, name), times in operators.items():
        running = [arm for arm in (pairing.arm, pairing.reference) if usual_ns(times, arm) > 0]
        if name == REST or len(running) != 1:
            continue
        share = usual_share(times, whole, running[0])
        if share >= LEAST_SHARE:
            time_s = usual_ns(times, running[0]) * _NS
            yield LoneOperator(
                phase=phase, operator=name, arm=running[0], share=share, time_s=time_s
            )


def _most(estimated: Iterable[tuple[_Part, PartDifference | None]]) -> float | None:
    """Return the largest possible difference of the operators without a detected one.

    None if it is unknown for any of them.
    """
    operators = [difference for part, difference in estimated if part.kind == "operator"]
    most = 0.0
    for difference in operators:
        if difference is None or difference.low is None or difference.high is None:
            return None
        if not difference.is_distinguishable:
            most = max(most, abs(difference.low), abs(difference.high))
    return most or None
