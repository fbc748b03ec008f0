"""Start-up and memory: what an environment costs beside the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model import MemorySummary, RunComparison, StartupPart, StartupSummary
from envcompare.report.headlines import compared_arms
from envcompare.report.labels import CONTROL_SUFFIX, cell_labels
from envcompare.report.marks import Segment, segments
from envcompare.report.numbers import NOT_MEASURED, counted, duration, duration_range, size

Parts = dict[str, StartupPart]
PHASES: Final[dict[str, str]] = {
    "engine": "engine",
    "import": "imports",
    "data": "data",
    "build": "model",
    "first_step": "first step",
    "train": "training",
    "exit": "exit",
}
WHOLE: Final[dict[str, str]] = {"real": "real", "user": "user", "sys": "sys"}
_MEMORY: Final[dict[str, str]] = {
    "max_rss_bytes": "peak RSS",
    "cgroup_peak_bytes": "cgroup peak",
    "cuda_allocated_peak_bytes": "CUDA allocated",
    "cuda_reserved_peak_bytes": "CUDA reserved",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRow:
    """One part of the start-up over the arms: a median and a range for each."""

    phase: str  # empty where the part is not in the bars
    name: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupView:
    """The start-up pass of one cell: a column for each arm, a row for each part."""

    cell: str
    note: str
    arms: tuple[str, ...]
    bars: tuple[tuple[Segment, ...], ...]
    rows: tuple[StartupRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """Peaks of memory of all cells and arms; no ratio is made of them."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]  # cell, arm, values


def startup_views(run: RunComparison) -> tuple[StartupView, ...]:
    """Return one table for each cell whose start-up was measured, in the order of the cells."""
    by_cell: dict[str, list[StartupSummary]] = {}
    for one in run.startup:
        by_cell.setdefault(one.cell, []).append(one)
    labels = cell_labels(run)
    return tuple(
        _startup_view(run, tuple(found), label=labels.get(cell, cell))
        for cell, found in by_cell.items()
    )


def memory_view(run: RunComparison) -> MemoryView | None:
    """Return the table of peaks, None where no memory was measured."""
    if not run.memory:
        return None
    labels = cell_labels(run)
    names = [
        name
        for name in _MEMORY
        if name == "max_rss_bytes" or any(getattr(one, name) is not None for one in run.memory)
    ]
    rows = [
        (labels.get(one.cell, one.cell), one.arm, tuple(_peak(one, name) for name in names))
        for one in run.memory
        if not one.arm.endswith(CONTROL_SUFFIX)
    ]
    return MemoryView(heads=tuple(_MEMORY[name] for name in names), rows=tuple(rows))


def _startup_view(
    run: RunComparison, found: tuple[StartupSummary, ...], *, label: str
) -> StartupView:
    by_arm: dict[str, Parts] = {one.arm: {part.phase: part for part in one.parts} for one in found}
    wanted = dict.fromkeys((run.reference_arm, *compared_arms(run), *by_arm))
    tables = [by_arm.get(arm, {}) for arm in wanted]
    longest = max((_total(table) for table in tables), default=0.0)
    first, launches = found[0], min(one.launches for one in found)
    names, what = {**PHASES, **WHOLE}, "Median and range" if launches > 1 else "Times"
    return StartupView(
        cell=label,
        note=(
            f"{what} of {counted(launches, 'launch', 'launches')}; "
            f"page cache {first.page_cache}; training is {counted(first.train_steps, 'step')}."
        ),
        arms=tuple(wanted),
        bars=tuple(_bar(table, longest) for table in tables),
        rows=tuple(
            StartupRow(
                phase=phase if phase in PHASES else "",
                name=name,
                values=tuple(_part(table.get(phase)) for table in tables),
            )
            for phase, name in names.items()
            if any(phase in table for table in tables)
        ),
    )


def _bar(table: Parts, longest: float) -> tuple[Segment, ...]:
    stacked = [(phase, table[phase].median_s) for phase in PHASES if phase in table]
    return segments(stacked, longest=longest)


def _part(part: StartupPart | None) -> tuple[str, str]:
    if part is None:
        return NOT_MEASURED, ""
    if part.low_s == part.high_s:
        return duration(part.median_s), ""
    return duration(part.median_s), duration_range(part.low_s, part.high_s)


def _total(table: Parts) -> float:
    return sum(part.median_s for phase, part in table.items() if phase in PHASES)


def _peak(one: MemorySummary, name: str) -> str:
    return size(getattr(one, name))
