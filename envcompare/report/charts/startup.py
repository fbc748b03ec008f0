"""What starting takes in each arm: one bar, divided into the phases of the start-up."""

from __future__ import annotations

from functools import partial
from typing import Final

from envcompare.analysis.model.comparison import (
    RunComparison,
    StartupPart,
    StartupSummary,
)
from envcompare.report.charts.bars import Bar, Part, Segment, stacked
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.words import chart_name, label, shown
from envcompare.report.format.units import NS, TimeScale, duration
from envcompare.report.wording.labels import cell_labels, compared_arms

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

_COLOURS: Final = {  # places in the palette, the same as beside the rows of the table
    "engine": 1,
    "import": 0,
    "data": 2,
    "build": 3,
    "first_step": 4,
    "train": 6,
    "exit": 5,
}


def startup_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return a chart for each cell and page cache whose start-up was measured."""
    groups: dict[tuple[str, bool], list[StartupSummary]] = {}
    for one in run.startup:
        groups.setdefault((one.cell, one.page_cache == "cold"), []).append(one)
    charts = (startup_chart(run, tuple(found)) for found in groups.values())
    return tuple(chart for chart in charts if chart is not None)


def startup_chart(run: RunComparison, found: tuple[StartupSummary, ...]) -> Chart | None:
    """Return the chart of one cell and page cache, None where no phase took time."""
    tables: dict[str, Parts] = {one.arm: {part.phase: part for part in one.parts} for one in found}
    order = dict.fromkeys((run.reference_arm, *compared_arms(run), *tables))
    arms = {arm: tables[arm] for arm in order if arm in tables}
    phases = [name for name in PHASES if any(name in table for table in arms.values())]
    longest = max((total_s(table) for table in arms.values()), default=0.0)
    if longest <= 0:
        return None
    scale = TimeScale.of(NS * longest)
    bars = tuple(_bar(arm, table, phases, scale) for arm, table in arms.items())
    parts = tuple(Part(name=PHASES[name], place=_COLOURS[name]) for name in phases)
    first = found[0]
    where = shown(cell_labels(run).get(first.cell, first.cell))
    cold = ", cold page cache" if first.page_cache == "cold" else ""
    return Chart(
        name=chart_name("startup", first.cell, first.page_cache),
        title=f"Start-up by phase, {where}{cold}",
        description=_description(arms),
        declare=partial(
            stacked, bars=bars, parts=parts, title=f"start-up, median of launches ({scale.unit})"
        ),
    )


def _bar(arm: str, table: Parts, phases: list[str], scale: TimeScale) -> Bar:
    return Bar(
        name=label(arm),
        segments=tuple(_segment(arm, name, table.get(name), scale) for name in phases),
        total=duration(total_s(table)),
    )


def _segment(arm: str, name: str, part: StartupPart | None, scale: TimeScale) -> Segment:
    seconds = max(0.0, part.median_s) if part else 0.0
    return Segment(
        size=NS * seconds / scale.size_ns,
        text=scale.digits(seconds),
        tip=f"{PHASES[name]}, {shown(arm)}: {duration(seconds)}",
    )


def _description(arms: dict[str, Parts]) -> str:
    """Say the whole of each arm and its longest phase."""
    told = []
    for arm, table in arms.items():
        parts = [part for name, part in table.items() if name in PHASES]
        longest = max(parts, key=lambda part: part.median_s, default=None)
        most = f", of it {PHASES[longest.phase]} {duration(longest.median_s)}" if longest else ""
        told.append(f"{shown(arm)} {duration(total_s(table))}{most}")
    return f"Medians of phases, added up: {'; '.join(told)}."


def total_s(table: Parts) -> float:
    """Return how long the phases of a start-up take together."""
    return sum(part.median_s for phase, part in table.items() if phase in PHASES)
