"""Summaries of the start-up pass and of memory peaks, by cell and arm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from envcompare.analysis.model.comparison import MemorySummary, StartupPart, StartupSummary
from envcompare.run_folder.records import Event, Memory, ProcessRun, RunRecord, Sample, Startup
from envcompare.stats.intervals import interval

LEVEL = 0.95  # of the differences of start-up, each by itself: not widened
_PHASES = (
    "engine", "import", "data", "build", "first_step", "train", "exit", "real", "user", "sys",
)  # fmt: skip


def startup_summaries(
    samples: Iterable[Sample], run: RunRecord, events: Iterable[Event]
) -> tuple[StartupSummary, ...]:
    """Return one summary for each cell, arm and state of the page cache, the warm ones first.

    First launches, of which nothing is known, count only where no other is there.
    """
    reference = next(arm.id for arm in run.arms if arm.is_reference)
    cells: dict[str, list[Startup]] = {}
    for sample in samples:
        if isinstance(sample, Startup) and sample.status == "ok":
            cells.setdefault(sample.cell, []).append(sample)
    refusals = {e.cell: e.text for e in events if e.values.get("cold") is False}
    return tuple(
        summary
        for cell, launches in cells.items()
        for summary in _of_cell(launches, reference, _cold_reason(run, refusals.get(cell)))
    )


def _cold_reason(run: RunRecord, refusal: str | None) -> str:
    if not run.design.cold_start:
        return "not asked for"
    return (refusal or "the pass did not come so far").removeprefix("cold start not measured: ")


def _of_cell(launches: list[Startup], reference: str, reason: str) -> Iterator[StartupSummary]:
    cold = [one for one in launches if one.page_cache == "cold"]
    warm = [one for one in launches if one.page_cache == "warm"]
    unknown = [one for one in launches if one.page_cache == "unknown"]
    for kind in (warm or unknown, cold):
        by_arm: dict[str, list[Startup]] = {}
        for launch in kind:
            by_arm.setdefault(launch.arm, []).append(launch)
        for arm, found in by_arm.items():
            against = [] if arm == reference else by_arm.get(reference, [])
            yield _startup(found, against, cold_reason="" if cold else reason)


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
        parts=tuple(_part(phase, launches, against) for phase in _PHASES),
        cold_reason=cold_reason,
    )


def _part(phase: str, launches: list[Startup], against: list[Startup]) -> StartupPart:
    own, others = _seconds(phase, launches), _seconds(phase, against)
    differences = [own[number] - others[number] for number in own if number in others]
    found = interval(tuple((one,) for one in differences), level=LEVEL)
    values = tuple(own.values())
    return StartupPart(
        phase=phase,  # type: ignore[arg-type]
        median_s=float(np.median(values)),
        low_s=min(values),
        high_s=max(values),
        difference_s=found.mean if found else None,
        difference_low_s=found.low if found else None,
        difference_high_s=found.high if found else None,
        pairs=len(differences),
    )


def _seconds(phase: str, launches: list[Startup]) -> dict[int, float]:
    """Return the seconds of a phase by repetition; arms of one repetition form a pair."""
    return {one.repetition: getattr(one, f"{phase}_ns") / 1e9 for one in launches}


def memory_summaries(samples: Iterable[Sample]) -> tuple[MemorySummary, ...]:
    """Return the largest peaks seen in any generation, for each cell and arm, in bytes."""
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
    """Return the peak of a process as that of a generation; None where it is not known."""
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
