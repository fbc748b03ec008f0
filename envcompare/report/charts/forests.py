"""Forests of changes with intervals and the margin, and the ladder.

Left is faster. Shape and text repeat the verdict that the colour shows. Comparisons without a
measurement have a row too.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final, NamedTuple

import altair as alt

from envcompare.analysis.model.comparison import (
    Comparison,
    Estimate,
    LadderStep,
    Outcome,
    RunComparison,
)
from envcompare.report.blocks import (
    Axis,
    shared_axis,
)
from envcompare.report.charts.drawing import (
    LABEL_GAP,
    SIGNED,
    Chart,
    Declared,
    Palette,
    chart_name,
    down,
    label,
    layered,
    marks,
    padding,
    placed,
    row_texts,
    shown,
)
from envcompare.report.numbers import (
    margin_percent,
    signed_interval,
    signed_percent,
)
from envcompare.report.wording.labels import cell_labels, reference_name
from envcompare.report.wording.verdicts import WORDS
from envcompare.text import counted

_POINT: Final = {"strokeWidth": 1.6, "opacity": 1}
_SIZE: Final = 70
_STEP_SIZE: Final = 34  # of a step from the rung below, drawn under its rung
MOST_ROWS: Final = 60  # of a forest
_FOREST_WIDTH: Final = 360
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
_WHY: Final = 90  # characters of the reason why a rung was not measured
_ASIDE_SHAPES: Final = (  # both directions off the axis, with the symbols of the tables
    "M-.2,-1L-1.2,0L-.2,1M.8,-1L-.2,0L.8,1",
    "M.2,-1L1.2,0L.2,1M-.8,-1L.2,0L-.8,1",
)
_TITLE: Final = "← faster · change of time · slower →"
Row = dict[str, Any]


def forest_chart(run: RunComparison) -> Chart | None:
    """Return the comparisons in the order of the arms; if many, those that moved most."""
    arms = list(dict.fromkeys(comparison.arm for comparison in run.comparisons))
    compared = run.compared
    if not compared:
        return None
    ranked = sorted(
        compared,
        key=lambda comparison: -abs(comparison.deciding.log_ratio) if comparison.deciding else 1,
    )
    kept = {id(comparison) for comparison in ranked[:MOST_ROWS]}
    chosen = sorted(
        (comparison for comparison in compared if id(comparison) in kept),
        key=lambda comparison: arms.index(comparison.arm),
    )
    return Chart(
        name=chart_name("forest", run.run_id),
        title=f"Change of time against {shown(reference_name(run))}; left is faster",
        description=_forest_description(run, chosen, left_out=len(compared) - len(chosen)),
        declare=partial(_forest, run, chosen),
    )


def _forest(run: RunComparison, chosen: list[Comparison], palette: Palette) -> Declared:
    on, labels = shared_axis(chosen, margin=run.margin), cell_labels(run)
    records = [
        {
            "name": f"{label(one.arm, most=_LONGEST_ARM)}, "
            f"{label(labels.get(one.cell, one.cell), most=_LONGEST_CELL)}",
            **_forest_row(one, on, palette),
        }
        for one in chosen
    ]
    return _rows(records, on, palette, title=_TITLE)


def _rows(records: list[Row], on: Axis, palette: Palette, *, title: str) -> Declared:
    """Return the rows from top to bottom, each with name, mark and figures."""
    height = _LINE * len(records)
    records = [{**row, "y": _LINE * (place + 0.5)} for place, row in enumerate(records)]
    ticks = alt.Axis(labelExpr=SIGNED, tickCount=6)
    scale = alt.Scale(domain=list(on.percents), nice=False)
    x = partial(alt.X, scale=scale, title=title, axis=ticks)
    y = down("y", height)
    measured = [row for row in records if "at" in row]
    spans = [row for row in measured if row["low"] is not None]
    span = {"x": x("low:Q"), "x2": "high"}
    look = {"stroke": "colour", "fill": "fill", "shape": "shape", "description": "tip"}
    layers = (
        *ground(on, palette, {**span, "y": alt.value(0), "y2": alt.value(height)}),
        *_arrows(measured, y),
        marks(spans, "rule", {"strokeWidth": 1.8}, **span, y=y, color="colour"),
        marks(measured, "point", _POINT, x=x("at:Q"), y=y, size="size", **look),
        *_texts(records, y, palette),
    )
    names = padding(row["name"] for row in records)
    figures = padding(row.get("figures", "") for row in records)
    room = names | {"right": names["right"] + figures["left"]}
    return layered(layers, width=_FOREST_WIDTH, height=height, room=room)


def _texts(records: list[Row], y: alt.Y, palette: Palette) -> list[alt.Chart]:
    """Return names and figures of the rows; a reason replaces a missing mark."""
    made = []
    for colour, is_muted in ((palette.text, False), (palette.mute, True)):
        rows = [row for row in records if row.get("is_muted", False) is is_muted]
        figured = [row for row in rows if "why" not in row]
        made.append(row_texts(rows, y, colour, text="name"))
        made.append(row_texts(figured, y, colour, text="figures", x=_FOREST_WIDTH + 14))
    reasons = [row for row in records if "why" in row]
    x, left = alt.value(LABEL_GAP), {"align": "left", "baseline": "middle"}
    halo = {**left, "color": palette.back, "stroke": palette.back, "strokeWidth": 5}
    looks = (halo, {**left, "color": palette.mute})
    return [*made, *(marks(reasons, "text", look, x=x, y=y, text="why") for look in looks)]


def ground(on: Axis, palette: Palette, places: dict[str, Any]) -> tuple[alt.Chart, alt.Chart]:
    """Return the band of the margin, and the line at 0 in its middle."""
    low, high = on.band_percents
    return (
        marks([{"low": low, "high": high}], "rect", {"color": palette.band}, **places),
        marks([{"low": 0, "high": 0}], "rule", {"color": palette.zero}, **places),
    )


def _arrows(measured: list[dict[str, Any]], y: alt.Y) -> list[alt.Chart]:
    """Return an arrow at the left or right of each row whose interval leaves the axis."""
    look = {"size": 30, "strokeWidth": 1.4, "opacity": 1}
    made = []
    for side, at in enumerate((-_ASIDE, _FOREST_WIDTH + _ASIDE)):
        beyond, shape = [row for row in measured if row["beyond"][side]], _ASIDE_SHAPES[side]
        x = alt.value(at)
        made.append(marks(beyond, "point", {"shape": shape, **look}, x=x, y=y, stroke="colour"))
    return made


def _forest_row(comparison: Comparison, on: Axis, palette: Palette) -> Row:
    """Return the figures of a comparison, and its mark if something was measured."""
    figures = _figures(comparison)
    tip = f"{shown(comparison.arm)}, {shown(comparison.cell)}: {figures}"
    return {
        "figures": figures,
        **_mark(comparison.deciding, comparison.outcome, on, palette, tip=tip),
    }


def _mark(
    estimate: Estimate | None, outcome: Outcome, on: Axis, palette: Palette, *, tip: str
) -> Row:
    """Return the drawing of an estimate; empty without one."""
    if estimate is None:
        return {}
    colours = {"slower": palette.slow, "faster": palette.fast, "inconclusive": palette.open}
    colour = colours.get(outcome, palette.even)
    return {
        **placed(estimate, on),
        "beyond": on.beyond(estimate),
        "colour": colour,
        "fill": palette.back if outcome == "inconclusive" else colour,
        "shape": _SHAPES.get(outcome, "circle"),
        "size": _SIZE,
        "tip": tip,
    }


def _figures(comparison: Comparison | LadderStep) -> str:
    word = WORDS[comparison.outcome]
    if comparison.deciding is None or not comparison.deciding.has_size:
        return word
    interval = signed_interval(comparison.deciding.low, comparison.deciding.high)
    mixed = ", confounded" if comparison.is_confounded else ""
    return f"{signed_percent(comparison.deciding.log_ratio)} ({interval}) {word}{mixed}"


def _forest_description(run: RunComparison, chosen: list[Comparison], *, left_out: int) -> str:
    counts = Counter(WORDS[comparison.outcome] for comparison in chosen)
    counted_words = ", ".join(f"{count} {word}" for word, count in counts.items())
    rest = f" {counted(left_out, 'comparison')} that moved less left out." if left_out else ""
    return (
        f"{counted(len(chosen), 'comparison')} with intervals, the band is the margin of "
        f"±{margin_percent(run.margin)}: {counted_words}.{rest}"
    )


def ladder_axis(run: RunComparison) -> Axis:
    """Return the axis that the ladders of all cells share."""
    arms = {step.arm for step in run.ladder}
    compared = (one for one in run.comparisons if one.arm in arms)
    return shared_axis((*compared, *run.ladder), margin=run.margin)


def ladder_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return the ladder of each cell that has one."""
    cells = dict.fromkeys(step.cell for step in run.ladder)
    return tuple(ladder_chart(run, cell, on=ladder_axis(run)) for cell in cells)


class _LadderRow(NamedTuple):
    """A row of the ladder: a rung against the reference, or its step from another rung."""

    name: str
    figures: str
    estimate: Estimate | None
    outcome: Outcome
    is_step: bool


def ladder_chart(run: RunComparison, cell: str, *, on: Axis) -> Chart:
    """Return the rungs of a cell from top to bottom, each above its step from the rung below."""
    steps = "; ".join(f"{row.name}: {row.figures}" for row in _ladder_rows(run, cell))
    where = shown(cell_labels(run).get(cell, cell))
    return Chart(
        name=chart_name("ladder", cell),
        title=f"The ladder in {where}, against {shown(run.reference_arm)}; left is faster",
        description=f"The band is the margin of ±{margin_percent(run.margin)}. {steps}.",
        declare=partial(_ladder, run, cell, on),
    )


def _ladder(run: RunComparison, cell: str, on: Axis, palette: Palette) -> Declared:
    records: list[Row] = []
    for row in _ladder_rows(run, cell):
        drawn = _mark(row.estimate, row.outcome, on, palette, tip=f"{row.name}: {row.figures}")
        figures = {"figures": row.figures} if drawn else {"why": label(row.figures, most=_WHY)}
        small = {"size": _STEP_SIZE, "is_muted": True} if row.is_step else {}
        records.append({"name": row.name, **figures, **drawn, **small})
    return _rows(records, on, palette, title=_TITLE)


def _ladder_rows(run: RunComparison, cell: str) -> tuple[_LadderRow, ...]:
    """Return the rows of a cell from top to bottom.

    A step from the reference is the same as the rung's comparison and has no separate row.
    """
    compared = {one.arm: one for one in run.comparisons if one.cell == cell}
    steps = [step for step in run.ladder if step.cell == cell]
    names = {step.arm: label(step.rung) for step in steps}
    rows: list[_LadderRow] = []
    for step in steps:
        rows.append(_whole(run, step, compared.get(step.arm), name=names[step.arm]))
        if step.step is not None and step.below != run.reference_arm:
            name = f"step from {names.get(step.below, label(step.below)).removeprefix('+ ')}"
            rows.append(_LadderRow(name, _figures(step), step.step, step.outcome, is_step=True))
    return tuple(rows)


def _whole(
    run: RunComparison, step: LadderStep, comparison: Comparison | None, *, name: str
) -> _LadderRow:
    """Return the row of a rung against the reference, or the reason for missing figures."""
    if step.arm == run.reference_arm:
        return _LadderRow(
            name, "what the others are compared with", None, "reference", is_step=False
        )
    if comparison is None or comparison.deciding is None:
        why = f"{WORDS[step.outcome]}: {shown(step.why_not)}"
        return _LadderRow(name, why, None, step.outcome, is_step=False)
    figures = _figures(comparison)
    return _LadderRow(name, figures, comparison.deciding, comparison.outcome, is_step=False)
