"""Start-up and memory: what an environment costs beside the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from envcompare.analysis.model.comparison import (
    MemorySummary,
    PickedValue,
    RunComparison,
    StartupPart,
    StartupSummary,
)
from envcompare.report.charts.bars import PHASES, Parts, total_s
from envcompare.report.format.marks import Segment, segments
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    NS,
    TimeScale,
    duration,
    margin_percent,
    signed_interval,
    signed_percent,
    size,
    three_digits,
)
from envcompare.report.wording.labels import cell_labels, compared_arms
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import counted

WHOLE: Final[dict[str, str]] = {"real": "real", "user": "user", "sys": "sys"}
_MOST_DIVIDED: Final = 60
"""Start-ups that are divided into parts: with more the page would be about little else."""
_MEMORY: Final[dict[str, str]] = {
    "max_rss_bytes": "peak RSS",
    "cgroup_peak_bytes": "cgroup peak",
    "cuda_allocated_peak_bytes": "CUDA allocated",
    "cuda_reserved_peak_bytes": "CUDA reserved",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupRow:
    """One part of the start-up over the arms: median, range and difference for each."""

    phase: str  # empty where the part is not in the bars
    name: str
    values: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupView:
    """The start-up pass of one cell: a column for each arm, a row for each part."""

    cell: str
    note: str
    arms: tuple[str, ...]
    bars: tuple[tuple[Segment, ...], ...]  # none where the parts are left out
    rows: tuple[StartupRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    """Peaks of memory of all cells and arms; no ratio is made of them."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]  # cell, arm, values

    @property
    def has_gaps(self) -> bool:
        """Say whether any value is missing."""
        return any(NOT_MEASURED in values for _, _, values in self.rows)


def startup_views(run: RunComparison) -> tuple[StartupView, ...]:
    """Return a table for each cell and page cache whose start-up was measured, in their order."""
    tables: dict[tuple[str, bool], list[StartupSummary]] = {}
    for one in run.startup:
        tables.setdefault((one.cell, one.page_cache == "cold"), []).append(one)
    labels = cell_labels(run)
    before = accumulate((len(found) for found in tables.values()), initial=0)
    return tuple(
        _startup_view(
            run,
            tuple(found),
            label=labels.get(cell, cell) + (", cold page cache" if cold else ""),
            is_divided=count < _MOST_DIVIDED,
        )
        for count, ((cell, cold), found) in zip(before, tables.items(), strict=False)
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
    run: RunComparison, found: tuple[StartupSummary, ...], *, label: str, is_divided: bool
) -> StartupView:
    by_arm: dict[str, Parts] = {one.arm: {part.phase: part for part in one.parts} for one in found}
    wanted = dict.fromkeys((run.reference_arm, *compared_arms(run), *by_arm))
    tables = [by_arm.get(arm, {}) for arm in wanted]
    longest = max((total_s(table) for table in tables), default=0.0)
    first, launches = found[0], min(one.launches for one in found)
    names = {**PHASES, **WHOLE} if is_divided else {"real": WHOLE["real"]}
    what = "Median and range" if launches > 1 else "Times"
    return StartupView(
        cell=label,
        note=(
            f"{what} of {counted(launches, 'launch', 'launches')}; "
            f"page cache {first.page_cache}{_cold_note(first)}; "
            f"training is {counted(first.train_steps, 'step')}.{_difference_note(run, found)}"
            f"{'' if is_divided else ' The parts stand in comparison.json.'}"
        ),
        arms=tuple(wanted),
        bars=tuple(_bar(table, longest) for table in tables) if is_divided else (),
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


def _cold_note(one: StartupSummary) -> str:
    return f" (cold: {one.cold_reason})" if one.cold_reason else ""


def _difference_note(run: RunComparison, found: tuple[StartupSummary, ...]) -> str:
    pairs = [part.pairs for one in found for part in one.parts if part.difference_low_s is not None]
    if not pairs:
        return ""
    return (
        f" With a sign: the mean difference to {run.reference_arm} over "
        f"{counted(min(pairs), 'pair')} and its 95 % interval (Student t), not widened."
    )


def _part(part: StartupPart | None) -> tuple[str, str, str]:
    if part is None:
        return NOT_MEASURED, "", ""
    scale = TimeScale.of(NS * part.high_s)
    spread = f"{scale.digits(part.low_s)} to {scale.digits(part.high_s)} {scale.unit}"
    is_range = part.low_s != part.high_s
    return duration(part.median_s), spread * is_range, _difference(part)


def _difference(part: StartupPart) -> str:
    """Return "+1.42 s (+1.31 to +1.53 s)" in one unit, empty without an interval."""
    if part.difference_s is None or part.difference_low_s is None or part.difference_high_s is None:
        return ""
    low, high = part.difference_low_s, part.difference_high_s
    scale = TimeScale.of(NS * max(abs(low), abs(high)))
    mean, *ends = (scale.signed_digits(one) for one in (part.difference_s, low, high))
    return f"{mean} {scale.unit} ({' to '.join(ends)} {scale.unit})"


def _peak(one: MemorySummary, name: str) -> str:
    return size(getattr(one, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedRow:
    """One number in one arm: its median and range, and its ratio to the reference."""

    cell: str
    name: str
    arm: str
    value: str
    span: str
    ratio: str
    interval: str


def picked_rows(run: RunComparison) -> tuple[PickedRow, ...]:
    """Return the numbers read from the output, the reference of each first."""
    labels = cell_labels(run)
    ordered = sorted(run.picked, key=lambda one: (one.cell, one.name, one.arm != run.reference_arm))
    return tuple(
        _picked_row(one, labels.get(one.cell, one.cell), run)
        for one in ordered
        if not one.arm.endswith(CONTROL_SUFFIX)
    )


def picked_level(values: Iterable[PickedValue]) -> str:
    """Return the level of the intervals of picked numbers."""
    return next((margin_percent(one.level) for one in values), "")


def _picked_row(one: PickedValue, label: str, run: RunComparison) -> PickedRow:
    span = "the same each time"
    if one.low != one.high:
        span = f"{three_digits(one.low)} to {three_digits(one.high)}"
    is_reference = one.arm == run.reference_arm
    return PickedRow(
        cell=label,
        name=one.name,
        arm=one.arm,
        value=three_digits(one.median),
        span=f"{span}, {counted(one.processes, 'process', 'processes')}",
        ratio=_ratio(one, is_reference=is_reference),
        interval="" if one.log_ratio is None else signed_interval(one.ratio_low, one.ratio_high),
    )


def _ratio(one: PickedValue, *, is_reference: bool) -> str:
    if is_reference:
        return "reference"
    return NOT_MEASURED if one.log_ratio is None else signed_percent(one.log_ratio)
