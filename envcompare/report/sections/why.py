"""Why: a fold for each comparison that is slower, faster or inconclusive, with its causes.

Phases and operators of marked steps are here too, with a table for each comparison.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    CellSummary,
    Comparison,
    Decomposition,
    Estimate,
    RunComparison,
    StepTimes,
)
from envcompare.analysis.model.profiling import (
    ArmPhases,
    CellProfiles,
    KernelDiff,
    Ledger,
    PartDifference,
)
from envcompare.fingerprint.sentences import SEPARATE
from envcompare.report import (
    Axis,
    Block,
    Column,
    Drawing,
    Fold,
    Group,
    Heading,
    Items,
    Line,
    Link,
    Section,
    Span,
    Table,
    Words,
    grid_of,
    linked,
    mark,
    table_of,
    texts,
)
from envcompare.report.charts import Chart, ChartBudget
from envcompare.report.charts.times import KEY, step_chart, time_chart
from envcompare.report.sections import raw_files_line
from envcompare.report.sections.comparisons import ComparedRow, badges
from envcompare.report.sections.profilefolds import (
    ProfiledCell,
    left_out,
    profile_blocks,
    profiled_cells,
    rows_each,
)
from envcompare.report.sections.profiletables import differences_of, kernel_blocks, ledger_blocks
from envcompare.report.wording import (
    NOT_MEASURED,
    NS,
    PLURALS,
    TimeScale,
    cell_labels,
    fold_anchor,
    listed,
    margin_percent,
    piece_of,
    time_text,
)
from envcompare.report.wording.causewords import (
    basis_sentence,
    candidates_text,
    difference_text,
    part_name,
    phases_sentence,
    split_sentence,
    unmarked_sentence,
)
from envcompare.report.wording.linewords import line_causes
from envcompare.report.wording.profilewords import (
    NOT_PROFILED,
    has_times,
    is_timed,
    ledger_sentence,
)
from envcompare.report.wording.verdicts import (
    EXPLAINED,
    MOVED,
    clock_sentence,
    confounder_sentence,
    estimate_cell,
    estimate_line,
)
from envcompare.text import counted, one_line, sentence, visible

_TITLE: Final = "Phases and operators"
_MOST_FOLDS: Final = 20
_MOST_NAMES: Final = 6
Place = tuple[str, str]
"""Cell and arm."""


def _phase_blocks(run: RunComparison, place: Place, *, label: str) -> Iterator[Block]:
    """Yield the results of the marked rounds for one comparison, or why there are none."""
    cell, arm = place
    marked = (one for phases in run.views.phases if phases.cell == cell for one in phases.arms)
    phases = next((one for one in marked if one.arm == arm), None)
    if phases:
        yield Heading(text=_TITLE)
        yield Line(text=phases_sentence(phases))
        yield phase_table(phases, label=label)
        yield Line(text=basis_sentence(phases), style="small")
    else:
        unmarked = (phase for phase in run.views.phases if phase.cell == cell and phase.reason)
        yield from texts(*map(unmarked_sentence, unmarked), style="small")


def phase_table(phases: ArmPhases, *, label: str) -> Table:
    """Return the step, its phases, the operators that differ, and the rest in one row."""
    return table_of(
        f"{_TITLE}, {label}",
        (
            difference
            for difference in phases.parts
            if difference.kind != "operator" or difference.is_distinguishable
        ),
        ("Part of a step", "name", part_name),
        ("Phase", "text", lambda part: part.phase or ""),
        ("Share", "number", lambda part: f"{100 * part.share:.1f} %"),
        ("Time in the reference", "number", lambda part: time_text(part.reference_s * NS)),
        (
            "Change",
            "number",
            lambda part: estimate_line(
                part.log_ratio, part.low, part.high, is_strong=part.is_distinguishable
            ),
        ),
        ("Change a step", "number", _difference),
    )


def _difference(part: PartDifference) -> Words:
    ends = (part.difference_low_s, part.difference_high_s)
    below = () if None in ends else (" to ".join(map(difference_text, ends)),)
    return Line(text=difference_text(part.difference_s), below=below)


def _phase_folds(run: RunComparison, *, explained: Container[Place]) -> Iterator[Block]:
    """Yield the results of the marks for comparisons without a fold of causes.

    An equivalent arm may differ in a phase or an operator, and then gets a table. For the others,
    each sentence appears once.
    """
    labels = cell_labels(run)
    compared = {
        (comparison.cell, comparison.arm)
        for comparison in run.comparisons
        if not comparison.is_control
    }
    rest = {
        f"{visible(labels[cell.cell])} · {visible(arm.arm)}": arm
        for cell in run.views.phases
        for arm in cell.arms
        if (cell.cell, arm.arm) in compared and (cell.cell, arm.arm) not in explained
    }
    if rest:
        yield Heading(text=f"{_TITLE} of other comparisons")
    differing = {
        name: arm
        for name, arm in rest.items()
        if any(part.is_distinguishable for part in arm.parts)
    }
    for name, arm in list(differing.items())[:_MOST_FOLDS]:
        yield Fold(
            summary=Line(strong=name, text=phases_sentence(arm)),
            style="fold print",
            blocks=(
                phase_table(arm, label=name),
                Line(text=basis_sentence(arm), style="small"),
            ),
        )
    if len(differing) > _MOST_FOLDS:
        yield Line(
            text=f"comparison.json holds {len(differing) - _MOST_FOLDS} more.", style="small"
        )
    places: dict[str, list[str]] = {}
    for name, arm in rest.items():
        if name not in differing:
            places.setdefault(phases_sentence(arm), []).append(name)
    for text, names in places.items():
        yield Line(text=f"{listed(names, most=_MOST_NAMES)}: {text}")


MOST_FOLDS: Final = 40
_MOST_OPEN: Final = 3
_MOST_REMEDIES: Final = 3
_MOST_LINKS: Final = 6
_QUANTILES: Final = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99}
_LONGEST: Final = "longest"
_SPLIT: Final = (
    "Each container was measured with its image and with the host's own files. On one path the "
    "environment changes first, on the other the software. The two parts of a path multiply to the "
    "whole. The intervals hold at 95 % each, not widened."
)
_INTRO: Final = (
    "Comparisons that are slower, faster or inconclusive, the largest decided difference first."
)
_NO_FOLD: Final = "No comparison is slower, faster or inconclusive."
_FEWER_CHARTS: Final = "To keep the page small, only the first comparisons have charts."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What all folds of a page share: its axis, its charts, its files."""

    axis: Axis
    charts: ChartBudget
    files: tuple[str, ...]


def _explained(rows: Iterable[ComparedRow]) -> tuple[ComparedRow, ...]:
    """Return the rows that need an explanation: decided ones first, by size."""
    open_rows = (row for row in rows if row.verdict.outcome in EXPLAINED and not row.is_control)
    return tuple(sorted(open_rows, key=lambda row: (row.verdict.outcome not in MOVED, -row.size)))


def fold_anchors(rows: Iterable[ComparedRow]) -> dict[str, str]:
    """Return the id of each fold by the id of its row."""
    return {
        row.anchor: fold_anchor(row.comparison.cell, row.comparison.arm)
        for row in _explained(rows)[:MOST_FOLDS]
    }


def unexplained_cells(
    run: RunComparison, rows: tuple[ComparedRow, ...]
) -> tuple[ProfiledCell, ...]:
    """Return the cells with profiles, without those that a fold explains."""
    folded = _explained(rows)[:MOST_FOLDS]
    places = frozenset((row.comparison.cell, row.comparison.arm) for row in folded)
    return profiled_cells(run, explained=places)


def why_section(
    run: RunComparison,
    rows: tuple[ComparedRow, ...],
    cells: tuple[ProfiledCell, ...],
    sheet: Sheet,
) -> Section | None:
    """Return the folds, links to all other comparisons, and the profiles of each cell."""
    profiles = profile_blocks(run, cells, sheet.files, are_open=not is_timed(run))
    rest = left_out(run, cells)
    if not (is_timed(run) or profiles):
        return None
    timed: tuple[Block, ...] = ()
    if is_timed(run):
        folded = _explained(rows)[:MOST_FOLDS]
        places = {(row.comparison.cell, row.comparison.arm) for row in folded}
        phases = _phase_folds(run, explained=places)
        timed = (*comparison_blocks(run, rows, sheet), *phases, *_split_blocks(run))
        has_profiles = bool(profiles or rest)
        timed += (Heading(text="What the profiles of each cell say"),) * has_profiles
    what = "where the time goes" if is_timed(run) or has_times(run) else "what the profiles say"
    return Section(
        anchor="why",
        title=f"Why: {what}",
        link="Why",
        blocks=(*timed, *texts(rest), *profiles),
    )


def comparison_blocks(
    run: RunComparison, rows: tuple[ComparedRow, ...], sheet: Sheet
) -> Iterator[Block]:
    """Yield a fold for each of the first comparisons, and sentences for the others."""
    compared = [row for row in rows if not row.is_control]
    chosen = _explained(compared)
    opened = [row.anchor for row in chosen if row.verdict.outcome in MOVED][:_MOST_OPEN]
    yield Line(text=_INTRO if chosen else _NO_FOLD)
    for row in chosen[:MOST_FOLDS]:
        yield _comparison_fold(run, row, sheet, is_open=row.anchor in opened)
    if sheet.charts.refused:
        yield Line(text=_FEWER_CHARTS, style="small")
    pointers = tuple(_pointers(run, compared, chosen[MOST_FOLDS:]))
    if pointers:
        yield Items(items=pointers, style="pointers")


def _comparison_fold(run: RunComparison, row: ComparedRow, sheet: Sheet, *, is_open: bool) -> Fold:
    comparison, words = row.comparison, row.verdict
    cell = next((one for one in run.cells if one.id == comparison.cell), None)
    place = (comparison.cell, comparison.arm)
    split = next(
        (
            decomposition
            for decomposition in run.views.decompositions
            if (decomposition.cell, decomposition.arm) == place
        ),
        None,
    )
    causes = " ".join(line_causes(run, (comparison,)))
    candidates = causes or candidates_text(run, (comparison,))
    reference = run.reference_in(comparison.cell)
    said = f"{words.arm} against {visible(reference)}: {words.text}."
    has_hosts = len({one.host for one in run.comparisons}) > 1
    name = [row.work, words.arm, *[comparison.host] * has_hosts]
    interval = f" ({words.interval})" if words.interval else ""
    figures = (Span(text=f"{words.number}{interval}", style="sum"),) * bool(words.number)
    return Fold(
        summary=Line(strong=" · ".join(name), after=(*badges(words), *figures)),
        anchor=fold_anchor(comparison.cell, comparison.arm),
        style="fold print",
        is_open=is_open,
        blocks=(
            *_confounded(run, comparison, is_split=split is not None),
            *texts(f"{said} {clock_sentence(comparison)}".rstrip(), candidates),
            *(_split_part_blocks(split, row, sheet.axis) if split else ()),
            *_phase_blocks(run, place, label=f"{words.arm} in {words.cell}"),
            *_profile_blocks(run, row, sheet),
            *(_spread_blocks(run, cell, row, sheet.charts) if cell else ()),
            raw_files_line(comparison, reference=reference, files=sheet.files, row=row.anchor),
        ),
    )


def _confounded(run: RunComparison, comparison: Comparison, *, is_split: bool) -> tuple[Line, ...]:
    """State what differs besides the environment, and how to separate its effect."""
    if not comparison.is_confounded:
        return ()
    facts = tuple(
        fact
        for fact in run.differences_by_arm.get((comparison.host, comparison.arm), ())
        if fact.fact_class == "confounder" and not fact.part_of
    )
    outcomes = frozenset({comparison.outcome})
    text = confounder_sentence(facts, outcomes=outcomes, is_split=is_split)
    text = text or "More than the environment differs; its cause cannot be determined."
    seen = dict.fromkeys(fact.evidence for fact in facts if fact.evidence)
    remedies = list(dict.fromkeys(fact.remedy for fact in facts if fact.remedy))[:_MOST_REMEDIES]
    how = f"{SEPARATE}{'; or '.join(remedies)}." if remedies and not is_split else ""
    whole = visible(" ".join(part for part in (text, *seen, how) if part))
    return (Line(strong="⚠ Comparison confounded.", text=whole, style="warning"),)


def _profile_blocks(run: RunComparison, row: ComparedRow, sheet: Sheet) -> Iterator[Block]:
    """Yield ledger, its chart and kernels, or the reasons for their absence."""
    cell, arm = row.comparison.cell, row.comparison.arm
    reference = visible(run.reference_in(cell))
    label, name = row.verdict.cell, f"{row.verdict.arm} in {row.verdict.cell}"
    profiles = next((profile for profile in run.profiles if profile.cell == cell), None)
    ledger, diff = differences_of(profiles, arm)
    if profiles and ledger:
        yield Heading(text="Difference ledger")
        yield Line(text=ledger_sentence(ledger, reference=run.reference_in(cell)))
        yield from ledger_blocks(ledger, reference=reference, label=label)
        chart = time_chart(run, profiles, ledger)
        yield from _drawn(chart, sheet.charts, label=f"Drawing of where the time goes, {name}")
    if diff:
        yield Heading(text="Kernels")
        yield from kernel_blocks(diff, reference=reference, label=label, most=rows_each(run))
    arms = (run.reference_in(cell), arm)
    yield from texts(_gap(profiles, ledger, diff, arms), style="small")


def _drawn(chart: Chart | None, charts: ChartBudget, *, label: str) -> tuple[Drawing, ...]:
    svg = charts.draw(chart)
    return (Drawing(label=label, svg=svg),) if svg else ()


def _gap(
    profiles: CellProfiles | None,
    ledger: Ledger | None,
    diff: KernelDiff | None,
    arms: tuple[str, ...],
) -> str:
    """State why there is no ledger or kernel comparison; empty if both exist."""
    missing = [what for what, known in (("where the time goes", ledger), ("kernels", diff))
               if not known]  # fmt: skip
    if not missing:
        return ""
    reasons = (
        one_line(state.lacks.problem.reason)
        for arm in (profiles.arms if profiles else ())
        if arm.arm in arms
        for state in arm.passes
        if state.state != "ok" and state.lacks
    )
    return visible(f"Not measured, {listed(missing)}: {sentence(next(reasons, NOT_PROFILED))}")


def _spread_blocks(
    run: RunComparison, cell: CellSummary, row: ComparedRow, charts: ChartBudget
) -> Iterator[Block]:
    """Yield the distribution of step times: drawn densities and a table of quantiles."""
    arms = (run.reference_in(cell.id), row.comparison.arm)
    piece = piece_of(cell)
    name = f"{row.verdict.arm} in {row.verdict.cell}"
    table = _spread_table(cell, arms, label=f"Quantiles of {piece} times, {name}")
    drawn = _drawn(step_chart(run, cell, arms), charts, label=f"Drawing of {piece} times, {name}")
    if table is None:
        return
    yield Heading(text=f"Distribution of {piece} times")
    if drawn:
        describes = f"No verdict rests on single {PLURALS[piece]}."
        yield Line(text=f"{KEY} {describes}", style="small")
    yield from drawn
    yield table


def _spread_table(cell: CellSummary, arms: tuple[str, ...], *, label: str) -> Table | None:
    times = {one.arm: one for one in cell.step_times if one.arm in arms}
    if not times:
        return None
    piece = piece_of(cell)
    known = {arm: _known(times[arm]) if arm in times else {} for arm in arms}
    heads = [head for head in (*_QUANTILES, _LONGEST) if any(head in of for of in known.values())]
    medians = (one.median_s for one in times.values())
    scale = TimeScale.of(NS * max(cell.step_edges_s[-1:] or medians))  # as the chart's axis
    return grid_of(
        label,
        (("Environment", "name"), *((head, "number") for head in (*heads, PLURALS[piece]))),
        (
            (
                visible(arm),
                *(scale.digits(known[arm].get(head)) for head in heads),
                str(times[arm].steps if arm in times else 0),
            )
            for arm in arms
        ),
        caption=f"Quantiles of {piece} times in {scale.unit}",
        style="even",
    )


def _known(times: StepTimes) -> dict[str, float]:
    at: dict[float, float] = {0.05: times.p05_s, 0.5: times.median_s, 0.95: times.p95_s}
    at.update(zip(STEP_PROBABILITIES, times.quantiles_s, strict=False))
    known = {head: at[share] for head, share in _QUANTILES.items() if share in at}
    return known | ({} if times.longest_s is None else {_LONGEST: times.longest_s})


def _pointers(
    run: RunComparison, rows: list[ComparedRow], rest: tuple[ComparedRow, ...]
) -> Iterator[Line]:
    if rest:
        yield _unfolded(run, rest)
    equal = [row for row in rows if row.verdict.outcome == "equivalent"]
    real = [row for row in equal if row.verdict.remark]
    others = [row for row in equal if not row.verdict.remark]
    within = f"equivalent within ±{margin_percent(run.settings.margin)}"
    if others:
        yield _listing(f"{counted(len(others), 'comparison')} {within}:", others)
    if real:
        text = f"{counted(len(real), 'comparison')} {within} with a real difference inside it:"
        yield _listing(text, real, is_figured=True)
    for outcome, word in (("failed", "failed"), ("not-run", "not run")):
        count = sum(
            row.verdict.outcome == outcome and not row.comparison.is_skipped_size for row in rows
        )
        if count:
            to_failures = Link(text="Failures", href="#failures")
            yield Line(text=f"{counted(count, 'comparison')} {word}:", after=(to_failures,))


def _unfolded(run: RunComparison, rest: tuple[ComparedRow, ...]) -> Line:
    """State where to find the comparisons beyond the folds, and their ledgers."""
    word = "comparison that is" if len(rest) == 1 else "comparisons that are"
    ledgers = {(profile.cell, ledger.arm) for profile in run.profiles for ledger in profile.ledgers}
    has_ledger = any((row.comparison.cell, row.comparison.arm) in ledgers for row in rest)
    more = Span(text="; their ledgers and kernels are in comparison.json alone")
    return Line(
        text=f"Without a fold, {len(rest)} more {word} slower, faster or inconclusive:",
        after=(Link(text="All comparisons", href="#all"), *(more,) * has_ledger),
    )


def _listing(text: str, rows: list[ComparedRow], *, is_figured: bool = False) -> Line:
    ordered = sorted(rows, key=lambda row: -row.size)
    places = linked(
        (
            Link(
                text=f"{row.verdict.arm}, {row.verdict.cell}"
                + f" ({row.verdict.number}, {row.verdict.interval})" * is_figured,
                href=f"#{row.anchor}",
            )
            for row in ordered[:_MOST_LINKS]
        ),
        separator="; ",
    )
    more = len(rows) - _MOST_LINKS
    end = (Span(text=f"; {more} more"),) if more > 0 else ()
    return Line(text=text, after=(*places, *end))


def split_parts(split: Decomposition) -> tuple[tuple[str, str, Estimate | None, str], ...]:
    """Return the parts of a 2 × 2: path, name, estimate, and arms."""
    whole = f"{split.arm} ÷ {split.base}"
    first, second = "environment first", "software first"
    return (
        ("", "whole", split.total, whole),
        (first, "environment", split.environment, f"{split.host_arm} ÷ {split.base}"),
        (first, "software", split.stack, f"{split.arm} ÷ {split.host_arm}"),
        (second, "environment", split.environment_by_image, f"{split.arm} ÷ {split.base_image}"),
        (second, "software", split.stack_by_base, f"{split.base_image} ÷ {split.base}"),
        ("", "interaction", split.interaction, "difference of the paths"),
    )


def _split_part_blocks(split: Decomposition, row: ComparedRow, axis: Axis) -> tuple[Block, ...]:
    """Return the parts of one difference, each drawn on the axis of the page."""
    label = row.verdict.cell

    def cells(path: str, name: str, estimate: Estimate | None, arms: str) -> tuple[Words, ...]:
        drawn = mark(estimate, "reference", on=axis)
        shown = NOT_MEASURED if estimate is None else visible(arms)
        marks = Line(marks=(drawn,) if drawn else ())
        return Line(text=name, below=(path,)), shown, estimate_cell(estimate, is_strong=True), marks

    table = grid_of(
        f"Environment or software, {row.verdict.arm} in {label}",
        (
            Column(head="Part", is_row_head=True),
            Column(head="Of which arms"),
            Column(head="Change", kind="number"),
            Column(kind="interval", axis=axis),
        ),
        (cells(*part) for part in split_parts(split)),
        style="fit",
    )
    said = visible(split_sentence(split, label=label))
    return (Heading(text="Environment or software?"), Line(text=said), table)


def _split_blocks(run: RunComparison) -> tuple[Block, ...]:
    if not run.views.decompositions:
        return ()
    heading = Heading(text="Environment or software?")
    return (Group(anchor="split", blocks=(heading, Line(text=_SPLIT), split_table(run))),)


def split_table(run: RunComparison) -> Table:
    """Return a row for each 2 × 2, with its two paths side by side."""
    labels = cell_labels(run)
    heads = split_parts(run.views.decompositions[0])
    return grid_of(
        "Environment or software, cell by cell",
        (
            Column(head="Workload", kind="name", is_row_head=True),
            Column(head="Arm", kind="name"),
            *(Column(head=name, kind="number", group=path) for path, name, _, _ in heads),
        ),
        (
            (
                visible(labels[split.cell]),
                visible(split.arm),
                *(
                    estimate_cell(estimate, visible(arms), is_strong=True)
                    for _, _, estimate, arms in split_parts(split)
                ),
            )
            for split in run.views.decompositions
        ),
    )
