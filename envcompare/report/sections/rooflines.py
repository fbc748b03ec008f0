"""The roofline of a cell as the page shows it: its chart, its sentences and the table of points."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.profiling import CellProfiles, Roofline, RooflinePoint
from envcompare.report.charts.allowance import Allowance
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.roofline import MOST_POINTS, point_name, roofline_chart
from envcompare.report.format.numbers import NOT_MEASURED, three_digits
from envcompare.report.format.units import quantity_text, time_text
from envcompare.text import counted

MOST_DRAWN: Final = 8  # on a page; of more cells the tables alone


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
    views: Iterable[tuple[str, RooflineView | None]], charts: Allowance
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
