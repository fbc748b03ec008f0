"""Find where a difference sits: the phases and operators of marked steps, paired by round.

The estimate of a part is that of a step (stats/typical.py), at 1 − 0.05 ÷ m for m parts that are
tested together. A part is tested where it holds 1 % of the steps of the reference; how much it
holds says nothing of how it differs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
from envcompare.stats.intervals import ALPHA, Interval
from envcompare.stats.pairs import Logarithms, Round, grouped
from envcompare.stats.typical import RoundEvidence, Spread, own_spread, spread

REST: Final = "(all others)"
"""The operators of a phase that a worker has added up; nothing is said of them alone."""
_Place = tuple[StepPhase, str]
_Times = Mapping[str, Mapping[Round, float]]
"""arm → round → ns a step."""
_NS: Final = 1e-9
_LEAST_SHARE: Final = 0.01  # of the steps of the reference
_WIDEST: Final = 1.0  # half-width of a log ratio; a wider interval, of a few restarts, is none


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A phase or an operator, or several, with their times."""

    kind: PartKind
    times: _Times
    phase: StepPhase | None = None
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairing:
    """Two arms of a cell, the restarts to leave out, and how far restarts are expected to vary."""

    arm: str
    reference: str
    left_out: Container[int]
    prior: Spread
    is_strict: bool  # always Student t on restarts

    def interval(self, times: _Times, *, level: float) -> Interval | None:
        """Return the log ratio of a part with its interval, None without a complete round.

        No look is taken at it while measuring, so that it pays for none.
        """
        values = _logarithms(times)
        groups = self._groups(values, self.arm)
        if not groups:
            return None
        others = (self._groups(values, name) for name in values if name != self.reference)
        pooled = spread(filter(None, others), self.prior)
        evidence = RoundEvidence(
            groups=groups,
            spread=own_spread(groups, pooled, self.prior),
            generations=len(groups),
            is_strict=self.is_strict,
            is_looked=False,
        )
        interval = evidence.interval(level=level)
        return (
            interval if interval.half_width <= _WIDEST else replace(interval, half_width=math.inf)
        )

    def _groups(self, values: Logarithms, arm: str) -> tuple[tuple[float, ...], ...]:
        return grouped(values, arm=arm, reference=self.reference, left_out=self.left_out)


def cell_phases(data: CellData, blocks: Iterable[MarkedBlock]) -> CellPhases | None:
    """Return what the marked blocks of a cell tell; None where none was asked for."""
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
    odd = {one.restart for one in data.readings.odd}
    pairings = (
        _Pairing(
            arm=arm,
            reference=reference,
            left_out=odd,
            prior=data.expected,
            is_strict=data.is_strict,
        )
        for arm in arms
    )
    compared = tuple(filter(None, (_compared(operators, pairing) for pairing in pairings)))
    return CellPhases(cell=data.cell.id, reference=reference, arms=compared)


def _operators(blocks: Iterable[MarkedBlock]) -> dict[_Place, _Times]:
    """Return the ns a step of each operator in its phase, by arm and round."""
    operators: dict[_Place, dict[str, dict[Round, float]]] = {}
    for block in blocks:
        number = (block.restart, block.generation, block.round)
        for phase, times in block.phases.items():
            for name, ns in times.items():
                of_arm = operators.setdefault((phase, name), {}).setdefault(block.arm, {})
                of_arm[number] = ns / block.k
    return dict(operators)


def _compared(operators: dict[_Place, _Times], pairing: _Pairing) -> ArmPhases | None:
    """Return the parts of an arm; None where it has no marked round with the reference."""
    whole = _added(operators.values())
    tested = [
        part
        for part in (*_phases(operators), *_named(operators))
        if _usual_share(part.times, whole, pairing.reference) >= _LEAST_SHARE
    ]
    level = 1 - ALPHA / max(1, len(tested))  # of all of them together (Bonferroni)
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
    remaining = _added(times for place, times in operators.items() if place not in differing)
    others = _estimated(_Part(kind="others", times=remaining), whole, pairing, level)
    known = [one for _, one in estimated if one]
    in_order = sorted(known, key=lambda part: (part.kind != "phase", -abs(part.difference_s)))
    both = whole[pairing.arm].keys() & whole[pairing.reference].keys()
    return ArmPhases(
        arm=pairing.arm,
        rounds=sum(number[0] not in pairing.left_out for number in both),
        restarts=interval.restarts,
        level=level,
        tested=len(tested),
        parts=(step, *in_order, *((others,) if others else ())),
        most_log_ratio=_most(estimated),
        lone=tuple(sorted(_lone(operators, whole, pairing), key=lambda part: -part.share)),
    )


def _phases(operators: dict[_Place, _Times]) -> Iterator[_Part]:
    for phase in get_args(StepPhase):
        times = _added(found for (of, _), found in operators.items() if of == phase)
        yield _Part(kind="phase", times=times, phase=phase)


def _named(operators: dict[_Place, _Times]) -> Iterator[_Part]:
    for (phase, name), times in operators.items():
        if name != REST:
            yield _Part(kind="operator", times=times, phase=phase, operator=name)


def _estimated(
    part: _Part, whole: _Times, pairing: _Pairing, level: float
) -> PartDifference | None:
    ratio = pairing.interval(part.times, level=level)
    if ratio is None:
        return None
    reference_s = _usual_ns(part.times, pairing.reference) * _NS

    def difference_s(log_ratio: float | None) -> float | None:
        return None if log_ratio is None else reference_s * math.expm1(log_ratio)

    return PartDifference(
        kind=part.kind,
        phase=part.phase,
        operator=part.operator,
        share=_usual_share(part.times, whole, pairing.reference),
        reference_s=reference_s,
        log_ratio=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        difference_s=reference_s * math.expm1(ratio.mean),
        difference_low_s=difference_s(ratio.low),
        difference_high_s=difference_s(ratio.high),
        is_distinguishable=abs(ratio.mean) > ratio.half_width,
    )


def _lone(
    operators: dict[_Place, _Times], whole: _Times, pairing: _Pairing
) -> Iterator[LoneOperator]:
    """Yield the operators that one of the two arms runs and the other never does."""
    for (phase, name), times in operators.items():
        running = [arm for arm in (pairing.arm, pairing.reference) if _usual_ns(times, arm) > 0]
        if name == REST or len(running) != 1:
            continue
        share = _usual_share(times, whole, running[0])
        if share >= _LEAST_SHARE:
            time_s = _usual_ns(times, running[0]) * _NS
            yield LoneOperator(
                phase=phase, operator=name, arm=running[0], share=share, time_s=time_s
            )


def _most(estimated: Iterable[tuple[_Part, PartDifference | None]]) -> float | None:
    """Return by how much the operators that were not seen to differ may differ at the most.

    None where that is not known of each of them.
    """
    operators = [difference for part, difference in estimated if part.kind == "operator"]
    most = 0.0
    for difference in operators:
        if difference is None or difference.low is None or difference.high is None:
            return None
        if not difference.is_distinguishable:
            most = max(most, abs(difference.low), abs(difference.high))
    return most or None


def _logarithms(times: _Times) -> Logarithms:
    """Return the logarithm of each time above 0, by arm and round."""
    return {
        arm: {number: math.log(ns) for number, ns in found.items() if ns > 0}
        for arm, found in times.items()
    }


def _added(parts: Iterable[_Times]) -> _Times:
    """Return the sum of parts, in each round that any of them has."""
    sums: dict[str, dict[Round, float]] = {}
    for times in parts:
        for arm, by_round in times.items():
            of_arm = sums.setdefault(arm, {})
            for number, ns in by_round.items():
                of_arm[number] = of_arm.get(number, 0.0) + ns
    return sums


def _usual_ns(times: _Times, arm: str) -> float:
    """Return the median over the rounds of an arm, 0 where it has none."""
    by_round = times.get(arm)
    return statistics.median(by_round.values()) if by_round else 0.0


def _usual_share(times: _Times, whole: _Times, arm: str) -> float:
    """Return the median share of a part in the whole of an arm; a round without it has none."""
    known, of_whole = times.get(arm, {}), whole.get(arm, {})
    shares = [known.get(number, 0.0) / ns for number, ns in of_whole.items() if ns > 0]
    return statistics.median(shares) if shares else 0.0
