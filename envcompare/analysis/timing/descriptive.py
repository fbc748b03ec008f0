"""Descriptive results that no verdict uses: start-up, peaks of memory, and picked numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import numpy as np

from envcompare.analysis.model.comparison import (
    MemorySummary,
    PickedValue,
    ResultGap,
    StartupPart,
    StartupSummary,
)
from envcompare.analysis.timing.cells import CellData
from envcompare.run_folder.records import (
    Block,
    Event,
    Memory,
    ProcessRun,
    RunRecord,
    Sample,
    Startup,
)
from envcompare.run_folder.results import references_of
from envcompare.stats.intervals import interval
from envcompare.stats.pairs import Logarithms, Round, flat, paired

_Point = tuple[str, int, int, int]  # the name of a result, its restart, generation and steps

LEVEL = 0.95  # of each interval alone, not widened
_PARTS = (
    "engine", "import", "data", "build", "first_step", "train", "exit", "real", "user", "sys",
)  # fmt: skip


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
    return tuple(
        summary
        for cell, launches in cells.items()
        for summary in _of_cell(launches, references[cell], _cold_reason(run, refusals.get(cell)))
    )


def _cold_reason(run: RunRecord, refusal: str | None) -> str:
    if not run.design.cold_start:
        return "not asked for"
    return refusal or "the pass did not come so far"


def _of_cell(launches: list[Startup], reference: str, reason: str) -> Iterator[StartupSummary]:
    cold = [one for one in launches if one.page_cache == "cold"]
    warm = [one for one in launches if one.page_cache == "warm"]
    unknown = [one for one in launches if one.page_cache == "unknown"]
    for kind in (warm or unknown, cold):
        by_arm: dict[str, list[Startup]] = {}
        for launch in kind:
            by_arm.setdefault(launch.arm, []).append(launch)
        for arm, of_arm in by_arm.items():
            against = [] if arm == reference else by_arm.get(reference, [])
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
    times = {one.repetition: getattr(one, f"{phase}_ns") for one in launches}
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
            if isinstance(one, int | float) and _is_number(one) and name not in data.cell.parameters
        }
        for values in ended
    ]


def _is_number(value: float) -> bool:
    return not isinstance(value, bool) and math.isfinite(value)


def _logarithms(data: CellData, name: str) -> Logarithms:
    """Return the logarithm of a number above 0 by arm and round."""
    logs: dict[str, dict[Round, float]] = {}
    for run in data.measured:
        value = run.values.get(name, 0.0) if isinstance(run, ProcessRun) else 0.0
        if value > 0:
            logs.setdefault(run.arm, {})[run.restart, run.generation, run.round] = math.log(value)
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

    Only results that the control repeats exactly count; others vary without a cause.
    """
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


def _gap(data: CellData, arm: str, expected: dict[_Point, float]) -> ResultGap | None:
    found = _results(data, arm)
    gaps = [
        ResultGap(
            cell=data.cell.id,
            arm=arm,
            name=point[0],
            reference_value=value,
            value=found[point],
            relative=abs(found[point] - value) / max(abs(found[point]), abs(value)),
        )
        for point, value in expected.items()
        if point in found and found[point] != value
    ]
    return max(gaps, key=lambda gap: gap.relative, default=None)


def _results(data: CellData, arm: str) -> dict[_Point, float]:
    """Return an arm's losses and numbers by their point in the work."""
    results: dict[_Point, float | None] = {}
    steps: dict[tuple[int, int], int] = {}
    for one in (one for one in data.blocks if one.arm == arm):
        start = (one.restart, one.generation)
        if isinstance(one, Block):
            steps[start] = steps.get(start, 0) + one.k
            results |= {
                ("loss of the first step", *start, 0): one.checksum,
                ("loss", *start, steps[start]): one.loss,
            }
        else:
            results |= {(name, *start, 0): value for name, value in one.values.items()}
    if not data.is_program:
        for (start, count), numbers in zip(steps.items(), _numbers_of(data, arm), strict=False):
            results |= {(name, *start, count): value for name, value in numbers.items()}
    return {point: value for point, value in results.items() if value is not None}
