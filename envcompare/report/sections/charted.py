"""Sections with a chart and a table of its numbers: the ladder, sweeps and rooflines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import Comparison, LadderStep, RunComparison
from envcompare.analysis.model.profiling import CellProfiles, Roofline, RooflinePoint
from envcompare.fingerprint import fact
from envcompare.report.blocks import (
    Block,
    Drawing,
    Field,
    Fold,
    Group,
    Heading,
    Line,
    Section,
    Table,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.charts.drawing import ChartBudget
from envcompare.report.charts.forests import ladder_axis, ladder_chart
from envcompare.report.charts.roofline import MOST_POINTS, point_name, roofline_chart
from envcompare.report.charts.sweeps import (
    Sweep,
    SweepPoint,
    missing_text,
    sweep_axis,
    sweep_chart,
    sweep_title,
    sweeps,
)
from envcompare.report.numbers import (
    NOT_MEASURED,
    ONE_RESTART,
    margin_percent,
    number_text,
    quantity_text,
    three_digits,
    time_text,
)
from envcompare.report.wording.labels import cell_labels, reference_name
from envcompare.report.wording.verdicts import WORDS, estimate_line, outcome_text
from envcompare.text import counted, sentence

_LADDER: Final = (
    "Each rung adds one thing to the rung below it, with the host's own files. Large marks: change "
    "of time against the reference; small marks: against the nearest rung below that was measured. "
    "The intervals hold for all of them together."
)
MOST_SWEEPS: Final = 12  # on one page; the sweeps that moved most are kept
_MOST_DRAWN: Final = 8  # rooflines on a page; further cells get only tables


def ladder_section(run: RunComparison, charts: ChartBudget) -> Section | None:
    """Return a chart and a table for each cell with a ladder; None without a ladder."""
    if not run.ladder:
        return None
    axis, labels = ladder_axis(run), cell_labels(run)
    groups = []
    for cell in dict.fromkeys(step.cell for step in run.ladder):
        label = labels.get(cell, cell)
        svg = charts.draw(ladder_chart(run, cell, on=axis))
        drawing = (Drawing(label=f"Chart of the ladder in {label}", svg=svg),) if svg else ()
        blocks = (_rungs(run, cell, label),)
        fold = Fold(summary=f"Numbers: {label}", is_open=not svg, blocks=blocks)
        groups.append(Group(blocks=(Heading(text=label), *drawing, fold)))
    return Section(anchor="ladder", title="Ladder", blocks=(Line(text=_LADDER), *groups))


def _rungs(run: RunComparison, cell: str, label: str) -> Table:
    """Return a row for each rung: against the reference, against the rung below, what differs."""
    compared = {one.arm: one for one in run.comparisons if one.cell == cell}
    return table_of(
        f"Rungs of the ladder in {label}",
        tuple(step for step in run.ladder if step.cell == cell),
        ("Rung", "name", lambda step: step.rung),
        ("Arm", "name", lambda step: step.arm),
        (
            f"Against {run.reference_arm}",
            "number",
            lambda step: (
                Line(text="–")
                if step.arm == run.reference_in(cell)
                else _rung_cell(compared.get(step.arm), step)
            ),
        ),
        ("Against the rung below", "number", lambda step: _rung_cell(step, step)),
        ("Differs from the rung below in", "text", _rung_changes),
    )


def _rung_cell(of: Comparison | LadderStep | None, step: LadderStep) -> Line:
    """Return change, interval and verdict."""
    if of is None or of.deciding is None:
        return Line(text="–" if step.outcome == "reference" else NOT_MEASURED)
    if not of.deciding.has_size:
        return Line(text=ONE_RESTART)
    below = f"from {step.below}" if of is step else ""
    estimate, word = of.deciding, outcome_text(of.outcome)
    return estimate_line(estimate.log_ratio, estimate.low, estimate.high, word, below)


def _rung_changes(step: LadderStep) -> Line:
    """Return the names of the facts that changed from the rung below, or the reason for none."""
    if step.why_not:
        return Line(text=sentence(f"{WORDS[step.outcome]}: {step.why_not}"))
    if step.changed is None:
        return Line(text="not known: a fingerprint is missing")
    names = (fact(key).name for key in step.changed)
    mixed = ("software differs as well: the step is not that of the rung alone",)
    nothing = "nothing else that was recorded" if step.below else ""
    return Line(text=", ".join(names) or nothing, below=mixed if step.is_confounded else ())


def sweeps_section(run: RunComparison, charts: ChartBudget) -> Section | None:
    """Return a chart and a table for each sweep; None if no parameter was swept."""
    every = sweeps(run)
    if not every:
        return None
    axis, chosen = sweep_axis(run, every), _moved_most(every)
    groups = []
    for sweep in chosen:
        title = sweep_title(sweep)
        svg = charts.draw(sweep_chart(run, sweep, on=axis))
        drawing = (Drawing(label=f"Chart of {title}", svg=svg),) if svg else ()
        fold = Fold(summary=f"Numbers: {title}", blocks=(_sweep_table(sweep),))
        groups.append(Group(blocks=(Heading(text=title), *drawing, fold)))
    intro = (
        f"Change of time against {reference_name(run)} by one parameter. Above the line is slower; "
        f"the band is the margin of ±{margin_percent(run.margin)}; shaded: the intervals."
    )
    shown = Group(style="sweeps", blocks=tuple(groups))
    rest = texts(_rest_of_sweeps(len(every) - len(chosen)), style="small")
    return Section(anchor="sweeps", title="Sweeps", blocks=(Line(text=intro), shown, *rest))


def _moved_most(every: tuple[Sweep, ...]) -> list[Sweep]:
    """Return the sweeps that moved most, in the order of the run."""
    ranked = sorted(range(len(every)), key=lambda place: (-_reach(every[place]), place))
    return [every[place] for place in sorted(ranked[:MOST_SWEEPS])]


def _reach(sweep: Sweep) -> float:
    estimates = (point.primary for point in sweep.points)
    return max((abs(one.log_ratio) for one in estimates if one is not None), default=0.0)


def _rest_of_sweeps(count: int) -> str:
    if not count:
        return ""
    return f"{counted(count, 'more sweep')} moved less: see All comparisons, or --figures."


def _sweep_table(sweep: Sweep) -> Table:
    """Return a row for each value of the parameter, with the change of each arm."""
    points = {(point.value, point.arm): point for point in sweep.points}
    return grid_of(
        f"Numbers of {sweep_title(sweep)}",
        ((sweep.parameter, "text"), *((arm, "number") for arm in sweep.arms)),
        (
            (number_text(at), *(_sweep_cell(points[at, arm]) for arm in sweep.arms))
            for at in sweep.values
        ),
    )


def _sweep_cell(point: SweepPoint) -> Line:
    """Return the change and interval of one arm at one value, or the reason for their absence."""
    estimate, comparison = point.primary, point.comparison
    if estimate is None or comparison is None:
        return Line(text=NOT_MEASURED, below=(missing_text(point),), style="said")
    if not estimate.has_size:
        return Line(text=ONE_RESTART)
    word = outcome_text(comparison.outcome)
    return estimate_line(estimate.log_ratio, estimate.low, estimate.high, word)


def roofline_section(
    run: RunComparison, shown: Sequence[CellProfiles], charts: ChartBudget
) -> Section | None:
    """Return the rooflines of these cells; None if there is neither a roofline nor a reason."""
    labels, drawn = cell_labels(run), 0
    blocks: list[Block] = []
    for profiles in shown:
        label = labels.get(profiles.cell, profiles.cell)
        if profiles.roofline is None or not profiles.roofline.points:
            reason = sentence(_why_no_roofline(profiles))
            blocks += texts(f"{label}: not drawn: {reason}" if reason else "")
            continue
        budget = charts if drawn < _MOST_DRAWN else None
        blocks += roofline_blocks(profiles, profiles.roofline, label=label, charts=budget)
        drawn += 1
    if not blocks:
        return None
    intro = (
        "What the device can do at most, and what each environment achieved: FLOP ÷ kernel time."
    )
    return Section(anchor="roofline", title="Roofline", blocks=(Line(text=intro), *blocks))


def roofline_blocks(
    profiles: CellProfiles, roofline: Roofline, *, label: str, charts: ChartBudget | None
) -> tuple[Block, ...]:
    """Return the chart, sentences and tables of one cell; the chart only within the budget.

    The table shows every achieved value even without a chart.
    """
    chart = roofline_chart(profiles, where=label)
    svg = charts.draw(chart) if charts else Markup("")
    if chart is None:
        why = "Not drawn: no point has a known intensity."
    else:
        why = "" if svg else "Not drawn, to keep the page small; the numbers are below."
    tables = (_points_table(roofline, label), _roofs_table(roofline, label))
    return (
        Heading(text=f"{label} on {roofline.device}"),
        Line(text=_roofs_source(roofline)),
        *((Drawing(label=f"Roofline chart of {label}", svg=svg),) if svg else ()),
        *texts(why, *_roofline_notes(roofline), style="small"),
        Fold(summary=f"Numbers of the roofline: {label}", is_open=chart is None, blocks=tables),
    )


def _roofs_source(roofline: Roofline) -> str:
    return f"Roofs{'' if roofline.is_measured else ' from the table'}: {roofline.source}."


def _roofline_notes(roofline: Roofline) -> tuple[str, ...]:
    more = len(roofline.points) - MOST_POINTS
    rest = f"comparison.json holds {counted(more, 'more point')}." if more > 0 else ""
    return (*roofline.missing, *roofline.notes, rest)


def _why_no_roofline(profiles: CellProfiles) -> str:
    """Return the reason why a cell has no points."""
    if profiles.roofline is None:
        return profiles.roofline_reason
    return " ".join(profiles.roofline.missing) or "no work was counted"


def _points_table(roofline: Roofline, label: str) -> Table:
    """Return a row for each point; the note below the chart says where traffic is unknown."""
    shown = roofline.points[:MOST_POINTS]
    traffic: tuple[Field[RooflinePoint], ...] = (
        ("Bytes", "figure", lambda point: quantity_text(point.bytes, "B")),
        ("Intensity", "figure", lambda point: _intensity(point.intensity)),
    )
    return table_of(
        f"Points of the roofline of {label}",
        shown,
        ("Environment", "name", lambda point: point.arm),
        ("Kernel", "kernel", lambda point: Line(codes=(point_name(point),))),
        ("Precision", "text", lambda point: point.precision),
        ("Work", "figure", lambda point: quantity_text(point.flops, "FLOP")),
        *traffic * any((point.bytes, point.intensity) != (None, None) for point in shown),
        ("Time", "figure", _point_time),
        ("Achieved", "figure", lambda point: Line(strong=_rate(point.flops_per_s))),
        ("Attainable", "figure", _attainable),
    )


def _point_time(point: RooflinePoint) -> Line:
    share = "" if point.time_share is None else f"{100 * point.time_share:.1f} % of all"
    return Line(text=time_text(point.time_ns), below=(share,))


def _attainable(point: RooflinePoint) -> Line:
    bound = f"bound by {point.bound}" if point.bound else ""
    return Line(text=_rate(point.attainable_flops_per_s), below=(bound,))


def _roofs_table(roofline: Roofline, label: str) -> Table:
    return table_of(
        f"Roofs of {label}",
        roofline.roofs,
        ("Roof", "text", lambda roof: roof.precision),
        ("FLOP/s", "number", lambda roof: _rate(roof.flops_per_s)),
        ("Ridge", "number", lambda roof: _intensity(roof.ridge)),
        style="fit",
    )


def _rate(flops_per_s: float | None) -> str:
    return quantity_text(flops_per_s, "FLOP/s")


def _intensity(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{three_digits(value)} FLOP/B"
