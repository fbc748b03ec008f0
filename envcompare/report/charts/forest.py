"""All comparisons of a run as intervals in the band of the margin; left is faster.

Shape and text tell the verdict beside its colour. What was not measured has a row as well.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import altair as alt

from envcompare.analysis.model.comparison import Comparison, Outcome, RunComparison
from envcompare.report.charts.drawing import Chart
from envcompare.report.charts.layers import (
    SIGNED,
    Declared,
    chart_name,
    down,
    label,
    layered,
    own_colour,
    padding,
    placed,
    row_texts,
    rows,
    shown,
)
from envcompare.report.charts.palette import Palette
from envcompare.report.format.marks import Axis, axis
from envcompare.report.format.numbers import margin_percent, signed_interval, signed_percent
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import WORDS
from envcompare.text import counted

MOST_ROWS: Final = 60
_WIDTH: Final = 360
_LINE: Final = 20.0
_SHAPES: Final[dict[Outcome, str]] = {
    "slower": "triangle-right",
    "faster": "triangle-left",
    "equivalent": "circle",
    "inconclusive": "diamond",
}
_ASIDE: Final = 5.0  # px from the edge to an arrow
_LONGEST_ARM: Final = 16
_LONGEST_CELL: Final = 26
_BEYOND: Final = (  # both ways off the axis, as the marks in the tables have them
    "M-.2,-1L-1.2,0L-.2,1M.8,-1L-.2,0L.8,1",
    "M.2,-1L1.2,0L.2,1M-.8,-1L.2,0L-.8,1",
)


def forest_chart(run: RunComparison) -> Chart | None:
    """Return the comparisons in the order of the arms; of many those that moved most."""
    arms = list(dict.fromkeys(comparison.arm for comparison in run.comparisons))
    compared = run.compared
    if not compared:
        return None
    ranked = sorted(
        compared,
        key=lambda comparison: -abs(comparison.primary.log_ratio) if comparison.primary else 1,
    )
    kept = {id(comparison) for comparison in ranked[:MOST_ROWS]}
    chosen = tuple(
        sorted(
            (comparison for comparison in compared if id(comparison) in kept),
            key=lambda comparison: arms.index(comparison.arm),
        )
    )
    return Chart(
        name=chart_name("forest", run.run_id),
        title=f"Change of time against {shown(run.reference_arm)}; left is faster",
        description=_description(run, chosen, left_out=len(compared) - len(chosen)),
        declare=partial(_declared, run, chosen),
    )


def _declared(run: RunComparison, chosen: tuple[Comparison, ...], palette: Palette) -> Declared:
    on, height = axis(chosen, margin=run.margin), _LINE * len(chosen)
    labels = cell_labels(run)
    left = [
        {"y": _LINE * (place + 0.5), "text": f"{label(one.arm, most=_LONGEST_ARM)}, "
         f"{label(labels.get(one.cell, one.cell), most=_LONGEST_CELL)}"}
        for place, one in enumerate(chosen)
    ]  # fmt: skip
    layers = [
        *_band(on, height, palette),
        *_intervals(chosen, on, height, palette),
        row_texts(left, height, colour=palette.text),
        _verdicts(chosen, height, palette),
    ]
    room = padding(str(row["text"]) for row in left)
    return layered(layers, width=_WIDTH, height=height, room=room)


def _x(field: str, on: Axis) -> alt.X:
    scale = alt.Scale(domain=list(on.percents), nice=False)
    ticks = alt.Axis(labelExpr=SIGNED, tickCount=6)
    return alt.X(
        f"{field}:Q", scale=scale, axis=ticks, title="← faster · change of time · slower →"
    )


def _band(on: Axis, height: float, palette: Palette) -> list[alt.Chart]:
    ends = dict(zip(("low", "high"), on.band_percents, strict=True))
    top, bottom = alt.value(0), alt.value(height)
    band: alt.Chart = rows([ends]).mark_rect(color=palette.band, aria=False)
    zero: alt.Chart = rows([{"at": 0}]).mark_rule(color=palette.zero, aria=False)
    return [
        band.encode(x=_x("low", on), x2=alt.X2("high:Q"), y=top, y2=bottom),
        zero.encode(x=_x("at", on), y=top, y2=bottom),
    ]


def _intervals(
    chosen: tuple[Comparison, ...], on: Axis, height: float, palette: Palette
) -> list[alt.Chart]:
    records = [
        _row(one, on, palette, y=_LINE * (place + 0.5))
        for place, one in enumerate(chosen)
        if one.primary is not None
    ]
    lines: alt.Chart = rows(row for row in records if row["low"] is not None).mark_rule(
        strokeWidth=1.8, aria=False
    )
    points: alt.Chart = rows(records).mark_point(size=70, strokeWidth=1.6, opacity=1)
    y = down("y", height)
    return [
        *_arrows(records, y),
        lines.encode(x=_x("low", on), x2=alt.X2("high:Q"), y=y, color=own_colour()),
        points.encode(
            x=_x("at", on),
            y=y,
            stroke=alt.Stroke("colour:N", scale=None),
            fill=alt.Fill("fill:N", scale=None),
            shape=alt.Shape("shape:N", scale=None),
            description=alt.Description("tip:N"),
        ),
    ]


def _arrows(records: list[dict[str, Any]], y: alt.Y) -> list[alt.Chart]:
    """Return an arrow beside each row whose interval leaves the axis, to the left and right."""
    made = []
    for side, (shape, x) in enumerate(zip(_BEYOND, (-_ASIDE, _WIDTH + _ASIDE), strict=True)):
        marks: alt.Chart = rows(row for row in records if row["beyond"][side]).mark_point(
            shape=shape, size=30, strokeWidth=1.4, opacity=1, aria=False
        )
        made.append(marks.encode(x=alt.value(x), y=y, stroke=alt.Stroke("colour:N", scale=None)))
    return made


def _row(comparison: Comparison, on: Axis, palette: Palette, *, y: float) -> dict[str, Any]:
    primary = comparison.primary
    assert primary is not None
    colour = _colour(comparison.outcome, palette)
    return {
        **placed(primary, on),
        "beyond": on.beyond(primary),
        "y": y,
        "colour": colour,
        "fill": palette.back if comparison.outcome == "inconclusive" else colour,
        "shape": _SHAPES.get(comparison.outcome, "circle"),
        "tip": f"{shown(comparison.arm)}, {shown(comparison.cell)}: {_figures(comparison)}",
    }


def _colour(outcome: Outcome, palette: Palette) -> str:
    colours = {"slower": palette.slow, "faster": palette.fast, "inconclusive": palette.open}
    return colours.get(outcome, palette.even)


def _verdicts(chosen: tuple[Comparison, ...], height: float, palette: Palette) -> alt.Chart:
    """Write the figures and the verdict of each row at its right."""
    labels = [
        {"y": _LINE * (place + 0.5), "text": _figures(one)} for place, one in enumerate(chosen)
    ]
    return row_texts(labels, height, colour=palette.text, x=_WIDTH + 14, align="left")


def _figures(comparison: Comparison) -> str:
    word = WORDS[comparison.outcome]
    if comparison.primary is None:
        return word
    interval = signed_interval(comparison.primary.low, comparison.primary.high)
    mixed = ", confounded" if comparison.is_confounded else ""
    return f"{signed_percent(comparison.primary.log_ratio)} ({interval}) {word}{mixed}"


def _description(run: RunComparison, chosen: tuple[Comparison, ...], *, left_out: int) -> str:
    counts: dict[str, int] = {}
    for comparison in chosen:
        word = WORDS[comparison.outcome]
        counts[word] = counts.get(word, 0) + 1
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    rest = f" {counted(left_out, 'comparison')} that moved less left out." if left_out else ""
    return (
        f"{counted(len(chosen), 'comparison')} with intervals, the band is the margin of "
        f"±{margin_percent(run.margin)}: {told}.{rest}"
    )
