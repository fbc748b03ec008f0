"""Sweeps: changes of time over one parameter, with intervals, the margin and a line per arm.

The charts show ratios because curves of times would hide a gap of a few percent.

Forests are here too. Left is faster. Shape and text repeat the verdict that the colour shows.
Comparisons without a measurement have a row too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import altair as alt

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    Estimate,
    LadderStep,
    Outcome,
    RunComparison,
)
from envcompare.report import Axis, shared_axis
from envcompare.report.charts import (
    LABEL_GAP,
    SIGNED,
    Chart,
    Declared,
    Key,
    Palette,
    Style,
    chart_name,
    down,
    label,
    layered,
    marks,
    padding,
    placed,
    row_texts,
    run_styles,
    shown,
    with_key,
)
from envcompare.report.wording import (
    NOT_MEASURED,
    cell_labels,
    compared_arms,
    listed,
    margin_percent,
    number_text,
    reference_name,
    signed_interval,
    signed_percent,
)
from envcompare.report.wording.verdicts import WORDS, estimate_text, verdict
from envcompare.run_folder.records import Scalar
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
    left_out = len(compared) - len(chosen)
    counts = Counter(WORDS[comparison.outcome] for comparison in chosen)
    counted_words = ", ".join(f"{count} {word}" for word, count in counts.items())
    rest = f" {counted(left_out, 'comparison')} that moved less left out." if left_out else ""
    return Chart(
        name=chart_name("forest", run.run_id),
        title=f"Change of time against {shown(reference_name(run))}; left is faster",
        description=(
            f"{counted(len(chosen), 'comparison')} with intervals, the band is the margin of "
            f"±{margin_percent(run.settings.margin)}: {counted_words}.{rest}"
        ),
        declare=partial(_forest, run, chosen),
    )


def _forest(run: RunComparison, chosen: list[Comparison], palette: Palette) -> Declared:
    on, labels = shared_axis(chosen, margin=run.settings.margin), cell_labels(run)
    records: list[Row] = []
    for one in chosen:
        arm, cell = label(one.arm, most=_LONGEST_ARM), labels.get(one.cell, one.cell)
        figures = _figures(one)
        tip = f"{shown(one.arm)}, {shown(one.cell)}: {figures}"
        drawn = _mark(one.deciding, one.outcome, on, palette, tip=tip)
        name = f"{arm}, {label(cell, most=_LONGEST_CELL)}"
        records.append({"name": name, "figures": figures, **drawn})
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
    arrows = []  # where an interval leaves the axis
    for side, at in enumerate((-_ASIDE, _FOREST_WIDTH + _ASIDE)):
        beyond = [row for row in measured if row["beyond"][side]]
        arrow = {"shape": _ASIDE_SHAPES[side], "size": 30, "strokeWidth": 1.4, "opacity": 1}
        arrows.append(marks(beyond, "point", arrow, x=alt.value(at), y=y, stroke="colour"))
    layers = (
        *_ground(on, palette, {**span, "y": alt.value(0), "y2": alt.value(height)}),
        *arrows,
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


def _ground(on: Axis, palette: Palette, places: dict[str, Any]) -> tuple[alt.Chart, alt.Chart]:
    """Return the band of the margin, and the line at 0 in its middle."""
    low, high = on.band_percents
    return (
        marks([{"low": low, "high": high}], "rect", {"color": palette.band}, **places),
        marks([{"low": 0, "high": 0}], "rule", {"color": palette.zero}, **places),
    )


def _mark(
    estimate: Estimate | None, outcome: Outcome, on: Axis, palette: Palette, *, tip: str
) -> Row:
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


def ladder_axis(run: RunComparison) -> Axis:
    """Return the axis that the ladders of all cells share."""
    arms = {step.arm for step in run.views.ladder}
    compared = (comparison for comparison in run.comparisons if comparison.arm in arms)
    return shared_axis((*compared, *run.views.ladder), margin=run.settings.margin)


def ladder_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return the ladder of each cell that has one."""
    cells = dict.fromkeys(step.cell for step in run.views.ladder)
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
        description=f"The band is the margin of ±{margin_percent(run.settings.margin)}. {steps}.",
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
    compared = {
        comparison.arm: comparison for comparison in run.comparisons if comparison.cell == cell
    }
    steps = [step for step in run.views.ladder if step.cell == cell]
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
    if step.arm == run.reference_arm:
        return _LadderRow(
            name, "what the others are compared with", None, "reference", is_step=False
        )
    if comparison is None or comparison.deciding is None:
        why = f"{WORDS[step.outcome]}: {shown(step.why_not)}"
        return _LadderRow(name, why, None, step.outcome, is_step=False)
    figures = _figures(comparison)
    return _LadderRow(name, figures, comparison.deciding, comparison.outcome, is_step=False)


_DOT: Final = {"filled": True, "size": 46, "opacity": 1}
_EDGE: Final = {"size": 60, "strokeWidth": 2, "opacity": 1}
_Cell = CellSummary | Comparison
_Fixed = tuple[tuple[str, str], ...]
_WIDE: Final = 3.0  # doublings
_SMALLEST, _LARGEST = 1e-100, 1e100  # an axis cannot label numbers beyond
_Styles = dict[str, Style]
_MOST_ITEMS: Final = 12  # numbers and reasons in a description
_WIDTH: Final = 330
_HEIGHT: Final = 170
_BELOW: Final = 44.0
_LOST: Final = "M-.7,-.7L.7,.7M.7,-.7L-.7,.7"
_FOOT: Final = 9.0  # px from the lower edge to the first mark of missing values
_APART: Final = 12.0
_BEYOND: Final = (  # symbols of a sweep, down and up
    "M-1,-.2L0,.8L1,-.2M-1,-1.2L0,-.2L1,-1.2",
    "M-1,.2L0,-.8L1,.2M-1,1.2L0,.2L1,1.2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One arm at one value of the parameter; None if the run has no such comparison."""

    value: float
    arm: str
    comparison: Comparison | None

    @property
    def primary(self) -> Estimate | None:
        """Return the primary estimate."""
        return self.comparison.deciding if self.comparison else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One parameter that varies while all others are equal."""

    host: str
    workload: str
    parameter: str
    fixed: _Fixed  # the other varying parameters of this workload
    values: tuple[float, ...]
    arms: tuple[str, ...]
    points: tuple[SweepPoint, ...]  # every arm at every value

    @property
    def is_doubling(self) -> bool:
        """Say whether a logarithmic axis suits the values: powers of two, or a wide span."""
        if self.values[0] < _SMALLEST:
            return False
        steps = [math.log2(value) for value in self.values]
        return all(step.is_integer() for step in steps) or steps[-1] - steps[0] > _WIDE


def sweeps(run: RunComparison) -> tuple[Sweep, ...]:
    """Return every sweep of the run, in the order of its cells."""
    comparisons = {(comparison.cell, comparison.arm): comparison for comparison in run.comparisons}
    made: list[Sweep] = []
    for (host, workload, parameter, fixed), cells in _grouped(run).items():
        arms = tuple(
            arm
            for arm in compared_arms(run)
            if any((cell, arm) in comparisons for cell in cells.values())
        )
        if len(cells) > 1 and arms:
            points = tuple(
                SweepPoint(value=value, arm=arm, comparison=comparisons.get((cells[value], arm)))
                for arm in arms
                for value in sorted(cells)
            )
            made.append(
                Sweep(
                    host=host,
                    workload=workload,
                    parameter=parameter,
                    fixed=fixed,
                    values=tuple(sorted(cells)),
                    arms=arms,
                    points=points,
                )
            )
    return tuple(made)


def _grouped(run: RunComparison) -> dict[tuple[str, str, str, _Fixed], dict[float, str]]:
    """Return the ids of cells by the value of one parameter, for each setting of the others."""
    cells: dict[str, _Cell] = {comparison.cell: comparison for comparison in run.comparisons}
    cells |= {one.id: one for one in run.cells}
    varied = _varied(cells.values())
    groups: dict[tuple[str, str, str, _Fixed], dict[float, str]] = {}
    for key, cell in cells.items():
        for name in varied[cell.workload]:
            number = _number(cell.parameters.get(name))
            if number is not None:
                others = tuple((other, _text(cell, other)) for other in varied[cell.workload]
                               if other != name)  # fmt: skip
                within = (("in", cell.within),) * bool(cell.within)
                others = (*within, *others)
                groups.setdefault((cell.host, cell.workload, name, others), {})[number] = key
    return groups


def _varied(cells: Iterable[_Cell]) -> dict[str, list[str]]:
    """Return the names of parameters that vary among the cells of each workload."""
    by_workload: dict[str, list[_Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload, []).append(cell)
    return {
        workload: [
            name
            for name in sorted({name for cell in found for name in cell.parameters})
            if len({_text(cell, name) for cell in found}) > 1
        ]
        for workload, found in by_workload.items()
    }


def _text(cell: _Cell, name: str) -> str:
    return str(cell.parameters[name]) if name in cell.parameters else "not set"


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None


def sweep_charts(run: RunComparison) -> tuple[Chart, ...]:
    """Return a chart for each sweep, all with the same vertical axis."""
    all_sweeps = sweeps(run)
    on = sweep_axis(run, all_sweeps)
    return tuple(sweep_chart(run, sweep, on=on) for sweep in all_sweeps)


def sweep_axis(run: RunComparison, all_sweeps: Iterable[Sweep]) -> Axis:
    """Return the axis of changes that all sweeps share."""
    points = (point.comparison for sweep in all_sweeps for point in sweep.points)
    return shared_axis([point for point in points if point is not None], margin=run.settings.margin)


def sweep_title(sweep: Sweep) -> str:
    """Return "cnn by batch, width=64 on gpu01"."""
    fixed = "".join(f", {shown(name)}={shown(value)}" for name, value in sweep.fixed)
    return f"{shown(sweep.workload)} by {shown(sweep.parameter)}{fixed} on {shown(sweep.host)}"


def sweep_chart(run: RunComparison, sweep: Sweep, *, on: Axis) -> Chart:
    """Return the chart of one sweep."""
    fixed = [f"{name}={value}" for name, value in sweep.fixed]
    sentences = " ".join(_arm_sentence(sweep, arm) for arm in sweep.arms)
    lost = [
        f"{shown(point.arm)} at {number_text(point.value)}: {missing_text(point)}"
        for point in sweep.points
        if point.primary is None
    ]
    missing = f" Missing: {listed(lost, most=_MOST_ITEMS)}." if lost else ""
    margin = f"±{margin_percent(run.settings.margin)}"
    return Chart(
        name=chart_name("sweep", sweep.host, sweep.workload, sweep.parameter, *fixed),
        title=f"Change of time, {sweep_title(sweep)}",
        description=(
            f"Change of time against {shown(reference_name(run))} over {shown(sweep.parameter)}; "
            f"up is slower, the band is the margin of {margin}. {sentences}{missing}"
        ),
        declare=partial(_declared, run, sweep, on),
    )


def _declared(run: RunComparison, sweep: Sweep, on: Axis, palette: Palette) -> Declared:
    styles = run_styles(run)
    ticks = alt.Axis(labelExpr=SIGNED, tickCount=5, domain=False, titlePadding=12)
    scale = alt.Scale(domain=list(on.percents), nice=False)
    x = _x(sweep)
    y = partial(alt.Y, scale=scale, title="change of time; up is slower", axis=ticks)
    lines = _measured(sweep, on, styles, palette)
    edges = _edges(sweep, on, styles, palette)
    spans = [row for row in lines if row["high"] is not None]
    alone = [row for row in spans if row["is_alone"]]
    edge = [{"low": end} for end in on.band_percents]
    dotted = {"color": palette.mute, "strokeDash": [2, 4], "strokeWidth": 0.7}
    span, whole = {"y": y("low:Q"), "y2": "high"}, {"x": alt.value(0), "x2": alt.value(_WIDTH)}
    band, zero = _ground(on, palette, span | whole)
    series = {"x": x, "color": "colour", "detail": "piece"}
    at, said = {"x": x, "y": y("at:Q")}, {"shape": "shape", "description": "tip"}
    layers = [
        band,
        marks(edge, "rule", dotted, y=y("low:Q"), **whole),
        zero,
        marks(spans, "area", {"fillOpacity": 0.22}, **span, **series),
        marks(alone, "rule", **span, x=x, color="colour"),
        marks(lines, "line", {"strokeWidth": 1.8}, y=at["y"], strokeDash="dash", **series),
        marks(lines, "point", _DOT, **at, color="colour", **said),
    ]
    if edges:
        layers.append(marks(edges, "point", _EDGE, **at, stroke="colour", **said))
    drawing = layered(layers, width=_WIDTH, height=_HEIGHT)
    return with_key(drawing, _keys(sweep, on, styles, palette), width=_WIDTH, below=_BELOW)


def _x(sweep: Sweep) -> alt.X:
    low, high = sweep.values[0], sweep.values[-1]
    ticks = alt.Axis(values=list(sweep.values), format="~g", labelOverlap="greedy", grid=False)
    title = label(sweep.parameter, most=40)
    if sweep.is_doubling:
        room = (high / low) ** 0.06
        scale = alt.Scale(type="log", base=2, domain=[low / room, high * room], nice=False)
        return alt.X("x:Q", title=f"{title} (logarithmic)", scale=scale, axis=ticks)
    room = 0.06 * (high - low)
    scale = alt.Scale(domain=[low - room, high + room], nice=False, zero=False)
    return alt.X("x:Q", title=title, scale=scale, axis=ticks)


def _measured(sweep: Sweep, on: Axis, styles: _Styles, palette: Palette) -> list[dict[str, Any]]:
    """Return a row for each point with an estimate; points with an equal `piece` have no gap."""
    records: list[dict[str, Any]] = []
    groups = groupby(sweep.points, key=lambda point: (point.arm, point.primary is not None))
    for piece, ((arm, _), group) in enumerate(groups):
        style, points = styles[arm], list(group)
        records += [
            {
                "x": point.value,
                **placed(point.primary, on),
                "piece": piece,
                "is_alone": len(points) == 1,
                "colour": palette.of(style.place),
                "shape": style.shape,
                "dash": list(style.dash),
                "tip": f"{shown(arm)}, {_at(sweep, point)}: {_estimate(point)}",
            }
            for point in points
            if point.primary is not None
        ]
    return records


def _edges(sweep: Sweep, on: Axis, styles: _Styles, palette: Palette) -> list[dict[str, Any]]:
    """Return the marks at the edges; marks with the same value and edge are stacked.

    A ✕ at the bottom marks a missing estimate, and an arrow one that leaves the axis.
    """
    low, high = on.percents
    pixel = (high - low) / _HEIGHT
    seen: Counter[tuple[float, bool]] = Counter()
    records = []
    for point in sweep.points:
        for shape, is_above in _shapes(point, on):
            place = _FOOT + _APART * seen[point.value, is_above]
            seen[point.value, is_above] += 1
            records.append(
                {
                    "x": point.value,
                    "at": (high if is_above else low) + pixel * place,
                    "shape": shape,
                    "colour": palette.of(styles[point.arm].place),
                    "tip": f"{shown(point.arm)}, {_at(sweep, point)}"
                    f"{'' if shape == _LOST else ', beyond the axis'}: {_estimate(point)}",
                }
            )
    return records


def _shapes(point: SweepPoint, on: Axis) -> list[tuple[str, bool]]:
    """Return the marks of a point at the edges, and whether each is at the upper edge."""
    primary = point.primary
    if primary is None:
        return [(_LOST, False)]
    sides = zip(_BEYOND, on.beyond(primary), (False, True), strict=True)
    return [(shape, is_above) for shape, is_beyond, is_above in sides if is_beyond]


def _keys(sweep: Sweep, on: Axis, styles: _Styles, palette: Palette) -> list[Key]:
    keys = [
        Key(
            text=label(arm),
            colour=palette.of(styles[arm].place),
            shape=styles[arm].shape,
            dash=styles[arm].dash,
        )
        for arm in sweep.arms
    ]
    drawn = {shape for point in sweep.points for shape, _ in _shapes(point, on)}
    if _LOST in drawn:
        keys.append(Key(text=NOT_MEASURED, colour=palette.mute, shape=_LOST))
    if beyond := drawn.difference({_LOST}):
        arrow = max(beyond)
        keys.append(Key(text="beyond the axis", colour=palette.mute, shape=arrow, opacity=0.0))
    return keys


def missing_text(point: SweepPoint) -> str:
    """Return why a point has no estimate."""
    comparison = point.comparison
    if comparison is None:
        return "not run: the run holds no such comparison"
    said = verdict(comparison, label="", margin=0.0)
    return shown(said.text)


def _at(sweep: Sweep, point: SweepPoint) -> str:
    return f"{shown(sweep.parameter)}={number_text(point.value)}"


def _estimate(point: SweepPoint) -> str:
    primary = point.primary
    return missing_text(point) if primary is None else estimate_text(primary)


def _arm_sentence(sweep: Sweep, arm: str) -> str:
    changes = [
        f"{signed_percent(primary.log_ratio)} at {number_text(point.value)}"
        for point in sweep.points
        if point.arm == arm and (primary := point.primary) is not None
    ]
    return f"{shown(arm)}: {listed(changes, most=_MOST_ITEMS) if changes else 'not measured'}."
