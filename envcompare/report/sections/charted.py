"""Charts with the tables of their numbers: rooflines and sweeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import CellProfiles, Roofline, RooflinePoint
from envcompare.report.charts.drawing import Chart, ChartBudget
from envcompare.report.charts.roofline import MOST_POINTS, point_name, roofline_chart
from envcompare.report.charts.sweeps import (
    Sweep,
    SweepPoint,
    estimate_of,
    missing_text,
    sweep_axis,
    sweep_chart,
    sweep_title,
    sweeps,
)
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    number_text,
    quantity_text,
    signed_interval,
    signed_percent,
    three_digits,
    time_text,
)
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.text import counted

MOST_DRAWN: Final = 8  # on a page; of more cells the tables alone
MOST_SWEEPS: Final = 12  # of a page; of more, those that moved most


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineView:
    """The chart of one cell, its sentences and the table of its points.

    Without a chart no point has a place on it; the table tells what was achieved all the same.
    """

    device: str
    source: str
    chart: Chart | None
    roofs: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def roofline_view(one: CellProfiles, *, label: str) -> RooflineView | None:
    """Return the roofline of a cell, None where no work was counted."""
    roofline = one.roofline
    if roofline is None or not roofline.points:
        return None
    return RooflineView(
        device=roofline.device,
        source=_source(roofline),
        chart=roofline_chart(one, where=label),
        roofs=tuple(
            (roof.precision, quantity_text(roof.flops_per_s, "FLOP/s"), _intensity(roof.ridge))
            for roof in roofline.roofs
        ),
        rows=tuple(_row(point) for point in roofline.points[:MOST_POINTS]),
        notes=(*roofline.missing, *roofline.notes, *_beyond(len(roofline.points))),
    )


def _source(roofline: Roofline) -> str:
    if not roofline.is_measured:
        return f"from the table: {roofline.source}"
    return f"measured: {roofline.source.removeprefix('measured ')}"


def why_no_roofline(one: CellProfiles) -> str:
    """Return why a cell has no roofline, empty where there is one."""
    if one.roofline is None:
        return one.roofline_reason
    return "" if one.roofline.points else " ".join(one.roofline.missing) or "no work was counted"


def _beyond(points: int) -> tuple[str, ...]:
    more = points - MOST_POINTS
    return (f"comparison.json holds {counted(more, 'more point')}.",) if more > 0 else ()


def drawn_rooflines(
    views: Iterable[tuple[str, RooflineView | None]], charts: ChartBudget
) -> dict[str, Markup]:
    """Return the charts by their anchors, empty beyond the first few."""
    found = [(anchor, view.chart) for anchor, view in views if view is not None and view.chart]
    return {
        anchor: charts.draw(chart) if place < MOST_DRAWN else Markup("")
        for place, (anchor, chart) in enumerate(found)
    }


def _row(point: RooflinePoint) -> tuple[str, ...]:
    share = point.time_share
    return (
        point.arm,
        point_name(point),
        point.precision,
        quantity_text(point.flops, "FLOP"),
        quantity_text(point.bytes, "B"),
        _intensity(point.intensity),
        time_text(point.time_ns),
        "" if share is None else f"{100 * share:.1f} % of all",
        quantity_text(point.flops_per_s, "FLOP/s"),
        quantity_text(point.attainable_flops_per_s, "FLOP/s"),
        f"bound by {point.bound}" if point.bound else "",
    )


def _intensity(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{three_digits(value)} FLOP/B"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCell:
    """One arm at one value: its change and interval, or why there is none."""

    number: str
    interval: str = ""
    said: str  # the outcome, or the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """One sweep: its chart, and a row for each value of its parameter."""

    title: str
    chart: Markup
    parameter: str
    arms: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SweepCell, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepsView:
    """The sweeps of a page, and what became of the others."""

    shown: tuple[SweepView, ...]
    rest: str


def sweeps_view(run: RunComparison, charts: ChartBudget) -> SweepsView | None:
    """Return the section, None where no parameter was swept."""
    found = sweeps(run)
    if not found:
        return None
    on, chosen = sweep_axis(run, found), _chosen(found)
    views = (_view(one, charts.draw(sweep_chart(run, one, on=on))) for one in chosen)
    return SweepsView(shown=tuple(views), rest=_rest(len(found) - len(chosen)))


def _chosen(found: tuple[Sweep, ...]) -> list[Sweep]:
    """Return those that moved most, in the order of the run."""
    ranked = sorted(range(len(found)), key=lambda place: (-_reach(found[place]), place))
    return [found[place] for place in sorted(ranked[:MOST_SWEEPS])]


def _reach(sweep: Sweep) -> float:
    made = (estimate_of(point) for point in sweep.points)
    return max((abs(one.log_ratio) for one in made if one is not None), default=0.0)


def _rest(count: int) -> str:
    if not count:
        return ""
    return (
        f"{counted(count, 'more sweep')} moved less. All comparisons holds the numbers, and "
        "--figures draws every sweep."
    )


def _view(sweep: Sweep, chart: Markup) -> SweepView:
    points = {(one.value, one.arm): one for one in sweep.points}
    return SweepView(
        title=sweep_title(sweep),
        chart=chart,
        parameter=sweep.parameter,
        arms=sweep.arms,
        rows=tuple(
            (number_text(value), tuple(_cell(points[value, arm]) for arm in sweep.arms))
            for value in sweep.values
        ),
    )


def _cell(point: SweepPoint) -> SweepCell:
    made, one = estimate_of(point), point.comparison
    if made is None or one is None:
        return SweepCell(number=NOT_MEASURED, said=missing_text(point))
    word = f"{SYMBOLS[one.outcome]} {WORDS[one.outcome]}"
    return SweepCell(
        number=signed_percent(made.log_ratio),
        interval=signed_interval(made.low, made.high),
        said=word,
    )
