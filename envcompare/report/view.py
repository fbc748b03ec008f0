"""The page as plain data: every string the template prints stands ready here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.report.charts.drawing import ChartBudget
from envcompare.report.export.summary import warnings
from envcompare.report.format.marks import Axis, axis
from envcompare.report.format.numbers import listed, margin_percent
from envcompare.report.sections.answer import Overview, SummaryCard, overview, summary_cards
from envcompare.report.sections.charted import SweepsView, drawn_rooflines, sweeps_view
from envcompare.report.sections.comparisons import (
    METRICS,
    ArmRow,
    Row,
    arm_row,
    comparison_rows,
    measured_metrics,
    shown_metrics,
)
from envcompare.report.sections.environments import HostView, host_views
from envcompare.report.sections.links import FailureView, Link, failure_views, file_links
from envcompare.report.sections.method import MethodView, method_view
from envcompare.report.sections.profiled import ProfiledView, left_out, profiled_views, rows_each
from envcompare.report.sections.quantitytables import LeadingTable, leading_tables
from envcompare.report.sections.resources import (
    MemoryView,
    PickedRow,
    StartupView,
    memory_view,
    picked_level,
    picked_rows,
    startup_views,
)
from envcompare.report.sections.why import HEADS, Sheet, SplitRow, Why, split_rows, told_arms, why
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.report.wording.labels import compared_arms, piece_word
from envcompare.report.wording.profilewords import has_times, is_timed
from envcompare.report.wording.verdicts import SYMBOLS, WORDS
from envcompare.text import counted, one_line

LEADS_IN_ANSWER: Final = 4  # of more environments, the first of them and a fold of the others
_FIRST_LEADS: Final = 2
ROWS_IN_ANSWER: Final = 8  # above, the answer has a row an environment and the overview is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything the template prints."""

    title: str
    run_id: str
    meta: tuple[str, ...]
    warnings: tuple[str, ...]
    reference: str
    reference_state: str
    margin: str
    axis: Axis
    headlines: tuple[Headline, ...]
    first_leads: int  # headlines above the table; those of many environments stand in a fold
    rows: tuple[Row, ...]
    is_timed: bool
    has_times: bool  # any time, measured or of a profile
    leading: tuple[
        LeadingTable, ...
    ]  # of an import: what its profiles counted, on the first screen
    has_hosts: bool  # more than one, so that rows name theirs
    has_confounded: bool
    why: Why
    charts_refused: int
    profiled: tuple[ProfiledView, ...]
    profiled_rest: str
    has_raw_profiles: bool
    has_roofline: bool
    rooflines: Mapping[str, Markup]  # by the anchor of the cell; empty beyond the first few
    sweeps: SweepsView | None
    has_power: bool
    metrics: tuple[str, ...]
    switch: tuple[tuple[int, str], ...]  # the metrics that any row has, by their place in it
    unmeasured: tuple[str, ...]  # the other metrics
    piece: str  # "step", "process", or either
    picked: tuple[PickedRow, ...]
    picked_level: str
    arm_rows: tuple[ArmRow, ...]
    overview: Overview | None
    split: tuple[SplitRow, ...]
    split_heads: tuple[str, ...]
    cards: tuple[SummaryCard, ...]
    outcomes: tuple[tuple[Outcome, str], ...]
    startup: tuple[StartupView, ...]
    memory: MemoryView | None
    hosts: tuple[HostView, ...]
    failures: tuple[FailureView, ...]
    method: MethodView
    files: tuple[Link, ...]


def page(run: RunComparison, files: tuple[str, ...]) -> Page:
    """Turn a comparison into the data of its page; `files` are those that lie beside it."""
    found, shared = headlines(run), axis(run.comparisons, margin=run.margin)
    rows = comparison_rows(run, shared, files=files)
    profiled = profiled_views(run, files, told=told_arms(rows))
    charts = ChartBudget()
    swept = sweeps_view(run, charts)
    roofs = drawn_rooflines(((one.anchor, one.roofline) for one in profiled), charts)
    folds = why(run, rows, Sheet(axis=shared, charts=charts, files=files, most_rows=rows_each(run)))
    metrics = tuple(METRICS[name] for name in shown_metrics(run))
    switch = measured_metrics(run, rows)
    is_wide = sum(not row.is_control for row in rows) > ROWS_IN_ANSWER
    shown = {row.verdict.outcome for row in rows}
    return Page(
        title=one_line(run.title) or _default_title(run),
        run_id=run.run_id,
        meta=_meta(run),
        warnings=warnings(run),
        reference=run.reference_arm,
        reference_state=_reference_state(run),
        margin=f"±{margin_percent(run.margin)}",
        axis=shared,
        headlines=found,
        first_leads=len(found) if len(found) <= LEADS_IN_ANSWER else _FIRST_LEADS,
        rows=rows,
        is_timed=is_timed(run),
        has_times=is_timed(run) or has_times(run),
        leading=leading_tables(run),
        has_hosts=len({row.host for row in rows}) > 1,
        has_confounded=any(row.verdict.is_confounded for row in rows),
        why=folds,
        charts_refused=charts.refused,
        profiled=profiled,
        profiled_rest=left_out(run, profiled),
        has_raw_profiles=any(row.files for one in profiled for row in one.passes),
        has_roofline=any(one.roofline or one.roofline_reason for one in profiled),
        rooflines=roofs,
        sweeps=swept,
        has_power=any(one.power or one.power_unmeasured for one in profiled),
        metrics=metrics,
        switch=switch,
        unmeasured=tuple(name for name in metrics if name not in {one for _, one in switch}),
        piece=piece_word(run),
        picked=picked_rows(run),
        picked_level=picked_level(run.picked),
        arm_rows=tuple(arm_row(one, rows) for one in found) if is_wide else (),
        overview=overview(rows, run) if is_wide else None,
        split=split_rows(run),
        split_heads=HEADS,
        cards=summary_cards(run, found),
        outcomes=tuple((one, WORDS[one]) for one in SYMBOLS if one in shown),
        startup=startup_views(run),
        memory=memory_view(run),
        hosts=host_views(run),
        failures=failure_views(run, files),
        method=method_view(run),
        files=file_links(files),
    )


def _default_title(run: RunComparison) -> str:
    arms = listed((run.reference_arm, *compared_arms(run)), most=5)
    if not is_timed(run):
        return f"What do the profiles of {arms} say?"
    return f"How fast is the same work in {arms}?"


def _meta(run: RunComparison) -> tuple[str, ...]:
    if not is_timed(run):
        profiles = sum(len(arm.passes) for one in run.profiles for arm in one.arms)
        told = (f"{counted(profiles, 'profile')} imported", f"envcompare {run.tool_version}")
        return _moment(run.created), *told
    hosts = list(dict.fromkeys(one.host for one in run.cells))
    workloads = {one.workload for one in run.cells}
    environments = counted(1 + len(compared_arms(run)), "environment")
    where = f"{counted(len(hosts), 'host')} ({listed(hosts)})"
    return (
        _moment(run.created),
        f"{environments} × {counted(len(workloads), 'workload')} on {where}",
        f"{_pieces(run)} measured",
        f"envcompare {run.tool_version}",
    )


def _pieces(run: RunComparison) -> str:
    steps = sum(one.steps for one in run.cells)
    processes = sum(one.processes for one in run.cells)
    parts = [counted(steps, "step")] * bool(steps or not processes)
    parts += [counted(processes, "process", "processes")] * bool(processes)
    return " and ".join(parts)


def _moment(created: str) -> str:
    try:
        return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        return created


def _reference_state(run: RunComparison) -> str:
    """Say in how many cells the reference was measured, and what became of it elsewhere."""
    measured = sum(
        any(steps.arm == run.reference_arm for steps in cell.step_times) for cell in run.cells
    )
    parts = [f"measured in {measured} of {counted(len(run.cells), 'cell')}"]
    parts += [
        f"{one.state} on {one.host}: {one_line(one.reason)}"
        for one in run.arms
        if one.arm == run.reference_arm and one.state != "ok"
    ]
    return "; ".join(parts)
