"""Sections with a chart and a table of its numbers: ladder, sweeps, rooflines, start-up, memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model import (
    Comparison,
    LadderStep,
    MemorySummary,
    PickedValue,
    RunComparison,
    StartupPart,
    StartupSummary,
)
from envcompare.analysis.model.profiling import CellProfiles, Roofline, RooflinePoint
from envcompare.fingerprint import fact
from envcompare.report import (
    Block,
    Drawing,
    Field,
    Fold,
    Group,
    Heading,
    Line,
    Section,
    Segment,
    Span,
    Table,
    Words,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.charts import ChartBudget
from envcompare.report.charts.roofline import MOST_POINTS, point_name, roofline_chart
from envcompare.report.charts.sweeps import (
    Sweep,
    SweepPoint,
    ladder_axis,
    ladder_chart,
    missing_text,
    sweep_axis,
    sweep_chart,
    sweep_title,
    sweeps,
)
from envcompare.report.charts.times import PHASES, Parts, startup_groups, total_s
from envcompare.report.wording import (
    NOT_MEASURED,
    NS,
    ONE_RESTART,
    TimeScale,
    arms_in,
    cell_labels,
    compared_arms,
    distinct_numbers,
    duration,
    has_lines,
    has_programs,
    has_steps,
    margin_percent,
    number_text,
    quantity_text,
    reference_name,
    size,
    three_digits,
    time_text,
)
from envcompare.report.wording.verdicts import WORDS, estimate_line, outcome_text
from envcompare.run_folder.records import CONTROL_SUFFIX
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
    if not run.views.ladder:
        return None
    axis, labels = ladder_axis(run), cell_labels(run)
    groups = []
    for cell in dict.fromkeys(step.cell for step in run.views.ladder):
        label = labels.get(cell, cell)
        svg = charts.draw(ladder_chart(run, cell, on=axis))
        drawing = (Drawing(label=f"Chart of the ladder in {label}", svg=svg),) if svg else ()
        blocks = (_rungs(run, cell, label),)
        fold = Fold(summary=f"Numbers: {label}", is_open=not svg, blocks=blocks)
        groups.append(Group(blocks=(Heading(text=label), *drawing, fold)))
    return Section(anchor="ladder", title="Ladder", blocks=(Line(text=_LADDER), *groups))


def _rungs(run: RunComparison, cell: str, label: str) -> Table:
    """Return a row for each rung: against the reference, against the rung below, what differs."""
    compared = {
        comparison.arm: comparison for comparison in run.comparisons if comparison.cell == cell
    }
    return table_of(
        f"Rungs of the ladder in {label}",
        tuple(step for step in run.views.ladder if step.cell == cell),
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
    ranked = sorted(range(len(every)), key=lambda place: (-_reach(every[place]), place))
    chosen = [every[place] for place in sorted(ranked[:MOST_SWEEPS])]  # in the order of the run
    axis, rest = sweep_axis(run, every), len(every) - len(chosen)
    groups = []
    for sweep in chosen:
        title = sweep_title(sweep)
        svg = charts.draw(sweep_chart(run, sweep, on=axis))
        drawing = (Drawing(label=f"Chart of {title}", svg=svg),) if svg else ()
        fold = Fold(summary=f"Numbers: {title}", blocks=(_sweep_table(sweep),))
        groups.append(Group(blocks=(Heading(text=title), *drawing, fold)))
    intro = (
        f"Change of time against {reference_name(run)} by one parameter. Above the line is slower; "
        f"the band is the margin of ±{margin_percent(run.settings.margin)}; shaded: the intervals."
    )
    shown = Group(style="sweeps", blocks=tuple(groups))
    more = f"{counted(rest, 'more sweep')} moved less: see All comparisons, or --figures."
    below = texts(more * bool(rest), style="small")
    return Section(anchor="sweeps", title="Sweeps", blocks=(Line(text=intro), shown, *below))


def _reach(sweep: Sweep) -> float:
    estimates = (point.primary for point in sweep.points)
    return max(
        (abs(estimate.log_ratio) for estimate in estimates if estimate is not None), default=0.0
    )


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
            reason = profiles.roofline_reason
            if profiles.roofline is not None:
                reason = " ".join(profiles.roofline.missing) or "no work was counted"
            reason = sentence(reason)
            blocks += texts(f"{label}: not drawn: {reason}" if reason else "")
            continue
        budget = charts if drawn < _MOST_DRAWN or charts.why_none else None
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
    why = "" if svg else "Not drawn, to keep the page small; the numbers are below."
    if chart is None:
        why = "Not drawn: no point has a known intensity."
    elif charts and charts.why_none:
        why = f"Not drawn: {charts.why_none}."
    tables = (
        _points_table(roofline, label),
        table_of(
            f"Roofs of {label}",
            roofline.roofs,
            ("Roof", "text", lambda roof: roof.precision),
            ("FLOP/s", "number", lambda roof: quantity_text(roof.flops_per_s, "FLOP/s")),
            ("Ridge", "number", lambda roof: _intensity(roof.ridge)),
            style="fit",
        ),
    )
    more = len(roofline.points) - MOST_POINTS
    rest = f"comparison.json holds {counted(more, 'more point')}." if more > 0 else ""
    return (
        Heading(text=f"{label} on {roofline.device}"),
        Line(text=f"Roofs{'' if roofline.is_measured else ' from the table'}: {roofline.source}."),
        *((Drawing(label=f"Roofline chart of {label}", svg=svg),) if svg else ()),
        *texts(why, *roofline.missing, *roofline.notes, rest, style="small"),
        Fold(summary=f"Numbers of the roofline: {label}", is_open=not svg, blocks=tables),
    )


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
        (
            "Achieved",
            "figure",
            lambda point: Line(strong=quantity_text(point.flops_per_s, "FLOP/s")),
        ),
        ("Attainable", "figure", _attainable),
    )


def _point_time(point: RooflinePoint) -> Line:
    share = "" if point.time_share is None else f"{100 * point.time_share:.1f} % of all"
    return Line(text=time_text(point.time_ns), below=(share,))


def _attainable(point: RooflinePoint) -> Line:
    bound = f"bound by {point.bound}" if point.bound else ""
    return Line(text=quantity_text(point.attainable_flops_per_s, "FLOP/s"), below=(bound,))


def _intensity(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{three_digits(value)} FLOP/B"


_WHOLE: Final[dict[str, str]] = {"real": "real", "user": "user", "sys": "sys"}
_MOST_DIVIDED: Final = 60
"""The most start-ups that are split into parts; more would fill the page."""
_MOST_TABLES: Final = 60
_MEMORY: Final[dict[str, str]] = {
    "max_rss_bytes": "peak RSS",
    "cgroup_peak_bytes": "cgroup peak",
    "cuda_allocated_peak_bytes": "CUDA allocated",
    "cuda_reserved_peak_bytes": "CUDA reserved",
}
_STARTUP: Final = "From the call of the engine to the end of the process; no step time includes it."
_NO_COUNTER: Final = (
    "Not measured: there was no such counter, or the container had served another cell."
)
_NO_STARTUP: Final = "Not measured: it was switched off, or no launch came to its end."
_NO_STARTUP_OF_PROGRAMS: Final = (
    "The start of a program's environment is the difference between real and wall time."
)
_NO_STARTUP_OF_LINES: Final = "The start of a container is part of the time of its line."


def startup_section(run: RunComparison) -> Section:
    """Return a table for each cell and page cache with a measured start-up."""
    why = _NO_STARTUP if has_steps(run) else _NO_STARTUP_OF_PROGRAMS
    if has_lines(run):
        why = _NO_STARTUP_OF_LINES
    tables = startup_tables(run)
    shown = tables[:_MOST_TABLES]
    blocks: tuple[Block, ...] = tuple(
        block for label, table in shown for block in (Heading(text=label), table)
    )
    left_out = f"comparison.json holds the start-up of {len(tables) - _MOST_TABLES} more cells."
    blocks += texts(left_out * (len(tables) > _MOST_TABLES))
    return Section(
        anchor="startup",
        title="Start-up",
        blocks=(Line(text=_STARTUP), *(blocks or texts(why))),
    )


def startup_tables(run: RunComparison) -> tuple[tuple[str, Table], ...]:
    """Return the label and table of each cell and page cache, in the order of the run."""
    groups = startup_groups(run)
    labels = cell_labels(run)
    before = accumulate((len(group) for group in groups.values()), initial=0)
    tables = []
    for count, ((cell, is_cold), group) in zip(before, groups.items(), strict=False):
        label = labels.get(cell, cell) + (", cold page cache" if is_cold else "")
        is_divided = count < _MOST_DIVIDED
        tables.append((label, _startup_table(run, group, label=label, is_divided=is_divided)))
    return tuple(tables)


def _startup_table(
    run: RunComparison, group: Sequence[StartupSummary], *, label: str, is_divided: bool
) -> Table:
    """Return a column for each arm and a row for each part; only the total if not `is_divided`."""
    by_arm: dict[str, Parts] = {
        startup.arm: {part.phase: part for part in startup.parts} for startup in group
    }
    cell = next((cell for cell in run.cells if group and cell.id == group[0].cell), None)
    planned = arms_in(run, cell) if cell else (run.reference_arm, *compared_arms(run))
    arms = dict.fromkeys((*planned, *by_arm))
    parts = [by_arm.get(arm, {}) for arm in arms]
    longest = max(map(total_s, parts), default=0.0)
    names = {**PHASES, **_WHOLE} if is_divided else {"real": _WHOLE["real"]}
    rows: list[tuple[Words, ...]]
    rows = [("all parts, to scale", *(_bar(table, longest) for table in parts))] * is_divided
    rows += [
        (
            Line(text=name, phase=phase if phase in PHASES else ""),
            *(_part(part.get(phase)) for part in parts),
        )
        for phase, name in names.items()
        if any(phase in part for part in parts)
    ]
    return grid_of(
        f"Start-up of {label}",
        (("Part", "text"), *((arm, "number") for arm in arms)),
        rows,
        caption=_startup_note(run, group, is_divided=is_divided),
        style="fit",
    )


def _bar(parts: Parts, longest: float) -> Line:
    """Stack the phases into one bar; `longest` fills the width."""
    segments, start = [], 0.0
    for phase in PHASES:
        if phase in parts:
            width = 100 * parts[phase].median_s / longest if longest > 0 else 0.0
            segments.append(Segment(phase=phase, x=f"{start:.2f}", width=f"{width:.2f}"))
            start += width
    return Line(segments=tuple(segments))


def _startup_note(run: RunComparison, group: Sequence[StartupSummary], *, is_divided: bool) -> str:
    first, launches = group[0], min(startup.launches for startup in group)
    what = "Median and range" if launches > 1 else "Times"
    cold = f" (cold: {first.cold_reason})" if first.cold_reason else ""
    return (
        f"{what} of {counted(launches, 'launch', 'launches')}; page cache {first.page_cache}{cold};"
        f" training: {counted(first.train_steps, 'step')}.{_difference_note(run, group)}"
        f"{'' if is_divided else ' comparison.json holds the parts.'}"
    )


def _difference_note(run: RunComparison, group: Sequence[StartupSummary]) -> str:
    pairs = [
        part.pairs
        for startup in group
        for part in startup.parts
        if part.difference_low_s is not None
    ]
    if not pairs:
        return ""
    reference = reference_name(run, *(startup.cell for startup in group))
    over = f"over {counted(min(pairs), 'pair')}, with its 95 % interval"
    return f" Signed: mean difference to {reference} {over}."


def _part(part: StartupPart | None) -> Words:
    """Return the median of a part, with its difference from the reference or else its range."""
    if part is None:
        return NOT_MEASURED
    if difference := _difference(part):
        return Line(text=duration(part.median_s), below=(difference,))
    scale = TimeScale.of(NS * part.high_s)
    spread = f"{scale.digits(part.low_s)} to {scale.digits(part.high_s)} {scale.unit}"
    return Line(
        text=duration(part.median_s),
        after=(Span(text=spread, style="range"),) if part.low_s != part.high_s else (),
    )


def _difference(part: StartupPart) -> str:
    """Return "+1.42 s (+1.31 to +1.53 s)" in one unit, empty without an interval."""
    if part.difference_s is None or part.difference_low_s is None or part.difference_high_s is None:
        return ""
    low, high = part.difference_low_s, part.difference_high_s
    scale = TimeScale.of(NS * max(abs(low), abs(high)))
    mean, *ends = (scale.signed_digits(end) for end in (part.difference_s, low, high))
    return f"{mean} {scale.unit} ({' to '.join(ends)} {scale.unit})"


def memory_section(run: RunComparison, gpus: Sequence[str]) -> Section:
    """Return the peaks of memory, and the sentence about the GPUs of each host."""
    return Section(anchor="memory", title="Memory", blocks=(*_memory(run), *texts(*gpus)))


def _memory(run: RunComparison) -> tuple[Block, ...]:
    if not run.views.memory:
        what = (
            "generation ended" if has_steps(run) else "process used more memory than its launcher"
        )
        return texts(f"Not measured: no {what}.")
    table = _memory_table(run)
    has_gaps = any(NOT_MEASURED in row.cells for row in table.rows)
    gaps = _NO_COUNTER * has_gaps
    intro = (
        "The largest peak of any generation. That of a cgroup includes page cache: do not compare "
        f"it with {reference_name(run)}."
    )
    return (Line(text=intro), table, *texts(gaps, style="small"))


def _memory_table(run: RunComparison) -> Table:
    labels = cell_labels(run)

    def peak(name: str, head: str) -> Field[MemorySummary]:
        return head, "number", lambda memory: size(getattr(memory, name))

    return table_of(
        "Table of memory peaks",
        (memory for memory in run.views.memory if not memory.arm.endswith(CONTROL_SUFFIX)),
        ("Workload", "name", lambda memory: labels.get(memory.cell, memory.cell)),
        ("Environment", "name", lambda memory: memory.arm),
        *(
            peak(name, head)
            for name, head in _MEMORY.items()
            if name == "max_rss_bytes"
            or any(getattr(summary, name) is not None for summary in run.views.memory)
        ),
        style="fit",
    )


def picked_section(run: RunComparison) -> Section | None:
    """Return the numbers read from the output of commands; None if none were requested."""
    if not run.views.picked:
        return None
    level = next((margin_percent(value.level) for value in run.views.picked), "")
    of_processes = (
        "Last match in the output of each process: median, range, and change against "
        f"{reference_name(run)} in the same round with its {level} interval, not widened. "
    ) * has_programs(run)
    of_generations = (
        "What `finish` of a workload returned in each generation: median and range. "
    ) * has_steps(run)
    intro = (
        f"{of_processes}{of_generations}Which way is better is not known, so no verdict is given."
    )
    return Section(
        anchor="picked",
        title=_picked_title(run),
        link="Further numbers" if has_steps(run) else "Printed numbers",
        blocks=(Line(text=intro), _picked_table(run)),
    )


def _picked_title(run: RunComparison) -> str:
    printed, returned = "the commands printed", "the workloads returned"
    said = (*(printed,) * has_programs(run), *(returned,) * has_steps(run))
    return f"Numbers {' or '.join(said)}"


def _picked_table(run: RunComparison) -> Table:
    labels = cell_labels(run)
    ordered = sorted(
        run.views.picked,
        key=lambda picked: (picked.cell, picked.name, picked.arm not in run.all_references),
    )
    shown = [value for value in ordered if not value.arm.endswith(CONTROL_SUFFIX)]
    programs = {cell.id for cell in run.cells if cell.is_program}
    is_paired = any(value.log_ratio is not None for value in run.views.picked)
    return table_of(
        _picked_title(run),
        shown,
        ("Workload", "name", lambda picked: labels.get(picked.cell, picked.cell)),
        ("Number", "name", lambda picked: picked.name),
        ("Environment", "name", lambda picked: picked.arm),
        (
            "Median",
            "number",
            lambda picked: _picked_median(picked, shown, is_of_program=picked.cell in programs),
        ),
        *((("Change", "number", lambda picked: _picked_change(picked, run)),) * is_paired),
    )


def _picked_median(picked: PickedValue, shown: list[PickedValue], *, is_of_program: bool) -> Line:
    number = (picked.cell, picked.name)
    others = (value.median for value in shown if (value.cell, value.name) == number)
    spread = "the same each time"
    if picked.low != picked.high:
        spread = f"{three_digits(picked.low)} to {three_digits(picked.high)}"
    words = ("process", "processes") if is_of_program else ("generation",)
    count = counted(picked.processes, *words)
    return Line(text=distinct_numbers(picked.median, *others)[0], below=(f"{spread}, {count}",))


def _picked_change(picked: PickedValue, run: RunComparison) -> Words:
    if picked.arm == run.reference_in(picked.cell):
        return "reference"
    if picked.log_ratio is None:
        return NOT_MEASURED
    return estimate_line(picked.log_ratio, picked.ratio_low, picked.ratio_high)
