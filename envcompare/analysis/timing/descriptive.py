"""Results that no verdict uses: start-up, peaks of memory, picked numbers, phases and operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, get_args

import numpy as np

from envcompare.analysis.model import (
    MemorySummary,
    PickedValue,
    ResultGap,
    StartupPart,
    StartupSummary,
)
from envcompare.analysis.model.profiling import (
    ArmPhases,
    CellPhases,
    LoneOperator,
    PartDifference,
    PartKind,
)
from envcompare.analysis.timing import CellData
from envcompare.run_folder.records import (
    Block,
    Event,
    MarkedBlock,
    Memory,
    ProcessRun,
    RunRecord,
    Sample,
    Startup,
    StepPhase,
)
from envcompare.run_folder.results import references_of
from envcompare.stats import (
    LEAST_SHARE,
    Logarithms,
    Pairing,
    Round,
    Times,
    added,
    flat,
    paired,
    usual_ns,
    usual_share,
)
from envcompare.stats.intervals import interval, level_together

_Point = tuple[str, int, int, int]  # the name of a result, its restart, generation and steps

LEVEL = 0.95  # of each interval alone, not widened
_PARTS = (
    "engine", "import", "data", "build", "first_step", "train", "exit", "real", "user", "sys",
)  # fmt: skip
REST: Final = "(all others)"
"""The operators of a phase that a worker summed; they are not compared individually."""
_Place = tuple[StepPhase, str]
_NS: Final = 1e-9


def startup_summaries(
    samples: Iterable[Sample], run: RunRecord, events: Iterable[Event]
) -> tuple[StartupSummary, ...]:
    """Return a summary for each cell, arm and page cache state, the warm ones first.

    First launches, of unknown state, count only if there are no others.
    """
    references = references_of(run)
    cells: dict[str, list[Startup]] = {}
    for sample in samples:
        if isinstance(sample, Startup) and sample.status == "ok" and sample.cell in references:
            cells.setdefault(sample.cell, []).append(sample)
    refusals = {
        e.cell: str(e.values.get("why", "")) for e in events if e.values.get("cold") is False
    }
    otherwise = "the pass did not come so far" if run.design.cold_start else "not asked for"
    refused = refusals if run.design.cold_start else {}
    return tuple(
        summary
        for cell, launches in cells.items()
        for summary in _of_cell(launches, references[cell], refused.get(cell) or otherwise)
    )


def _of_cell(launches: list[Startup], reference: str, reason: str) -> Iterator[StartupSummary]:
    cold = [startup for startup in launches if startup.page_cache == "cold"]
    has_warm = {startup.arm for startup in launches if startup.page_cache == "warm"}
    usual = [
        startup
        for startup in launches
        if startup.page_cache == ("warm" if startup.arm in has_warm else "unknown")
    ]
    for kind in (usual, cold):
        by_arm: dict[str, list[Startup]] = {}
        for launch in kind:
            by_arm.setdefault(launch.arm, []).append(launch)
        for arm, of_arm in by_arm.items():
            others = [] if arm == reference else by_arm.get(reference, [])
            against = [startup for startup in others if startup.page_cache == of_arm[0].page_cache]
            yield _startup(of_arm, against, cold_reason="" if cold else reason)


def _startup(
    launches: list[Startup], against: list[Startup], *, cold_reason: str
) -> StartupSummary:
    first = launches[0]
    return StartupSummary(
        cell=first.cell,
        arm=first.arm,
        launches=len(launches),
        train_steps=first.train_steps,
        page_cache=first.page_cache,
        parts=tuple(
            _part(phase, launches, against) for phase in _PARTS if _seconds(phase, launches)
        ),
        cold_reason=cold_reason,
    )


def _part(phase: str, launches: list[Startup], against: list[Startup]) -> StartupPart:
    seconds, others = _seconds(phase, launches), _seconds(phase, against)
    differences = [seconds[number] - others[number] for number in seconds if number in others]
    difference = interval(differences, level=LEVEL)
    values = tuple(seconds.values())
    return StartupPart(
        phase=phase,  # type: ignore[arg-type]  # one of _PARTS
        median_s=float(np.median(values)),
        low_s=min(values),
        high_s=max(values),
        difference_s=difference.mean if difference else None,
        difference_low_s=difference.low if difference else None,
        difference_high_s=difference.high if difference else None,
        pairs=len(differences),
    )


def _seconds(phase: str, launches: list[Startup]) -> dict[int, float]:
    """Return the seconds of a phase by repetition; arms of one repetition are paired."""
    times = {launch.repetition: getattr(launch, f"{phase}_ns") for launch in launches}
    return {number: time_ns / 1e9 for number, time_ns in times.items() if time_ns is not None}


def memory_summaries(samples: Iterable[Sample]) -> tuple[MemorySummary, ...]:
    """Return the largest memory peaks over all generations, for each cell and arm, in bytes."""
    groups: dict[tuple[str, str], list[Memory]] = {}
    for sample in samples:
        peaks = _memory(sample) if isinstance(sample, ProcessRun) else sample
        if isinstance(peaks, Memory):
            groups.setdefault((peaks.cell, peaks.arm), []).append(peaks)
    return tuple(
        MemorySummary(
            cell=cell,
            arm=arm,
            generations=len(found),
            max_rss_bytes=_peak(m.max_rss_bytes for m in found),
            cgroup_peak_bytes=_peak(m.cgroup_peak_bytes for m in found),
            cuda_allocated_peak_bytes=_peak(m.cuda_allocated_peak_bytes for m in found),
            cuda_reserved_peak_bytes=_peak(m.cuda_reserved_peak_bytes for m in found),
        )
        for (cell, arm), found in groups.items()
    )


def _memory(run: ProcessRun) -> Memory | None:
    """Return the peak of a process in the form of a generation; None if unknown."""
    if run.max_rss_bytes is None:
        return None
    return Memory(
        cell=run.cell,
        arm=run.arm,
        restart=run.restart,
        generation=0,
        max_rss_bytes=run.max_rss_bytes,
    )


def _peak(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def picked_values(data: CellData) -> tuple[PickedValue, ...]:
    """Return every number of every arm of a cell, without arms that printed none."""
    numbers_of = {arm.id: _numbers_of(data, arm.id) for arm in data.run.arms}
    names = dict.fromkeys(
        name for found in numbers_of.values() for numbers in found for name in numbers
    )
    return tuple(
        _picked(data, arm, name, values)
        for name in names
        for arm, found in numbers_of.items()
        if (values := [numbers[name] for numbers in found if name in numbers])
    )


def _numbers_of(data: CellData, arm: str) -> list[dict[str, float]]:
    """Return the numbers of each process of a command, or of each generation of a workload."""
    if data.is_program:
        return [run.values for run in data.arm_blocks(arm) if isinstance(run, ProcessRun)]
    ended = (e.values for e in data.events if e.what == "generation" and e.arm == arm)
    return [
        {
            name: float(one)
            for name, one in values.items()
            if isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
            if name not in data.cell.parameters
        }
        for values in ended
    ]


def _logarithms(data: CellData, name: str) -> Logarithms:
    """Return the logarithm of a number by arm and round, without arms where it is not above 0."""
    logs: dict[str, dict[Round, float]] = {}
    printed = [
        block for block in data.measured if isinstance(block, ProcessRun) and name in block.values
    ]
    left_out = {run.arm for run in printed if run.values[name] <= 0}
    for run in printed:
        if run.arm not in left_out:
            place = run.restart, run.generation, run.round
            logs.setdefault(run.arm, {})[place] = math.log(run.values[name])
    return logs


def _picked(data: CellData, arm: str, name: str, values: Sequence[float]) -> PickedValue:
    reference, logs = data.reference.id, _logarithms(data, name)
    pairs = paired(logs, arm=arm, reference=reference) if arm != reference else {}
    ratio = interval(flat(pairs), level=LEVEL)
    return PickedValue(
        cell=data.cell.id,
        arm=arm,
        name=name,
        processes=len(values),
        median=median(values),
        low=min(values),
        high=max(values),
        log_ratio=ratio.mean if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        level=LEVEL,
    )


def result_gaps(data: CellData) -> tuple[ResultGap, ...]:
    """Return the widest gap of each arm whose losses or numbers differ from the reference's.

    Only results that the control repeats exactly count; others vary without a cause. The numbers
    that lines print are compared, not expected to be equal.
    """
    if data.reference.stack == "line":
        return ()
    control = next((arm.id for arm in data.run.arms if arm.is_control), "")
    expected, repeated = _results(data, data.reference.id), _results(data, control)
    shared = {point for point in repeated if point in expected}
    unsteady = {point[0] for point in shared if repeated[point] != expected[point]}
    names = {point[0] for point in shared} - unsteady
    gaps = (
        _gap(data, arm.id, {point: one for point, one in expected.items() if point[0] in names})
        for arm in data.run.arms
        if arm.parameters == data.reference.parameters
    )
    return tuple(gap for gap in gaps if gap is not None)


def _gap(data: CellData, arm: str, expected: dict[_Point, float | None]) -> ResultGap | None:
    found = _results(data, arm)
    gaps = [
        ResultGap(
            cell=data.cell.id,
            arm=arm,
            name=point[0],
            reference_value=value,
            value=found[point],
            relative=None
            if (ours := found[point]) is None or value is None
            else abs(ours - value) / max(abs(ours), abs(value)),
        )
        for point, value in expected.items()
        if point in found and found[point] != value
    ]
    widest = (gap for gap in gaps if gap.relative is None)
    return next(widest, max(gaps, key=lambda gap: gap.relative or 0.0, default=None))


def _results(data: CellData, arm: str) -> dict[_Point, float | None]:
    """Return an arm's losses (None: not finite) and numbers by their point in the work."""
    results: dict[_Point, float | None] = {}
    steps: dict[tuple[int, int], int] = {}
    for one in (block for block in data.blocks if block.arm == arm):
        start = (one.restart, one.generation)
        if isinstance(one, Block):
            steps[start] = steps.get(start, 0) + one.run_in + one.k
            results |= {
                ("loss of the first step", *start, 0): one.checksum,
                ("loss", *start, steps[start]): one.loss,
            }
        else:
            results |= {(name, *start, 0): value for name, value in one.values.items()}
    if not data.is_program:
        for start, numbers in zip(_ended(data, arm), _numbers_of(data, arm), strict=True):
            if start in steps:  # a worker that fails has blocks, and no numbers
                results |= {(name, *start, steps[start]): one for name, one in numbers.items()}
    return results


def _ended(data: CellData, arm: str) -> list[tuple[int, int]]:
    """Return restart and generation of each of `_numbers_of`."""
    starts, restart = [], 0
    for event in data.events:
        if event.what == "restart" and isinstance(number := event.values.get("restart"), int):
            restart = number
        elif event.what == "generation" and event.arm == arm:
            starts.append((restart, 0))
    return starts


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
        Pairing(arm=arm, reference=reference, prior=data.expected, is_strict=data.is_strict)
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
        for part in _parts(operators)
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


def _parts(operators: dict[_Place, Times]) -> Iterator[_Part]:
    """Yield the phases, then their operators."""
    for phase in get_args(StepPhase):
        times = added(found for (of, _), found in operators.items() if of == phase)
        yield _Part(kind="phase", times=times, phase=phase)
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
