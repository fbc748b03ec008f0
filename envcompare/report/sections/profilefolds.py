"""The profiles of each cell as the page shows them, all tables of one cell together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from envcompare.analysis.model import Outcome, RunComparison
from envcompare.analysis.model.profiling import (
    CellProfiles,
    OperatorRow,
    OperatorTable,
    PassState,
)
from envcompare.report import (
    Block,
    Column,
    Field,
    Fold,
    Heading,
    Items,
    Line,
    Link,
    Section,
    Span,
    Table,
    grid_of,
    linked,
    table_of,
)
from envcompare.report.sections import links
from envcompare.report.sections.profiletables import (
    differences_of,
    kernel_blocks,
    ledger_blocks,
    quantity_blocks,
    unmeasured,
)
from envcompare.report.wording import (
    NOT_MEASURED,
    bytes_text,
    cell_labels,
    fold_anchor,
    listed,
    number_text,
    short_name,
    time_text,
)
from envcompare.report.wording.profilewords import by_arms, ledger_sentence, note_sentences
from envcompare.report.wording.verdicts import EXPLAINED, outcome_badge
from envcompare.text import counted, one_line, sentence, visible

_MOST_ROWS: Final = 25  # of each table, if there are few tables
_LEAST_ROWS: Final = 4
_MOST_OPERATORS: Final = 10  # of several arms in one table
_ROWS_OF_PAGE: Final = 1200  # over all tables, which keeps a page with many cells small
_MOST_CELLS: Final = 24
_MOST_COMPARISONS: Final = 40  # without a fold of their own
_MOST_OPEN: Final = 3
_Missing = TypeVar("_Missing", bound="tuple[str, ...]")  # names, reason, and perhaps a hint
_Outcomes = Mapping[tuple[str, str], Outcome]  # by cell and arm


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledCell:
    """A cell with profiles, and the parts shown in this section."""

    profiles: CellProfiles
    label: str
    anchor: str
    compared: tuple[str, ...]  # arms with a ledger or kernels that no fold explains
    explained: tuple[str, ...]  # those that have a fold


def _shown_profiles(run: RunComparison) -> tuple[CellProfiles, ...]:
    """Return the profiles of all cells, or of those that moved most."""
    if len(run.profiles) <= _MOST_CELLS:
        return run.profiles
    moved: dict[str, float] = {}
    for comparison in run.comparisons:
        if comparison.deciding is not None and not comparison.is_control:
            moved[comparison.cell] = max(
                moved.get(comparison.cell, 0.0), abs(comparison.deciding.log_ratio)
            )
    ordered = sorted(run.profiles, key=lambda profiles: -moved.get(profiles.cell, 0.0))
    chosen = {profiles.cell for profiles in ordered[:_MOST_CELLS]}
    return tuple(profiles for profiles in run.profiles if profiles.cell in chosen)


def rows_each(run: RunComparison) -> int:
    """Return the number of rows for each table of kernels, activities or operators."""
    shown = _shown_profiles(run)
    tables = sum(2 * len(profiles.arms) + len(profiles.kernel_diffs) for profiles in shown)
    return max(_LEAST_ROWS, min(_MOST_ROWS, _ROWS_OF_PAGE // max(1, tables)))


def profiled_cells(
    run: RunComparison, *, explained: frozenset[tuple[str, str]] = frozenset()
) -> tuple[ProfiledCell, ...]:
    """Return the cells that have profiles, or reasons for missing ones.

    Folds elsewhere show the ledger and kernels of the cells and arms in `explained`. If there are
    any, keep only the first other comparisons, and the cells with anything left.
    """
    labels, outcomes = cell_labels(run), _outcomes(run)
    left, cells = _MOST_COMPARISONS if explained else None, []
    for number, profiles in enumerate(_shown_profiles(run), start=1):
        compared = _unexplained(profiles, outcomes)[:left]
        left = None if left is None else left - len(compared)
        has_passes = any(arm.passes for arm in profiles.arms)
        has_roofline = profiles.roofline is not None and bool(profiles.roofline.points)
        if explained and not (compared or has_passes or has_roofline):
            continue
        cells.append(
            ProfiledCell(
                profiles=profiles,
                label=labels.get(profiles.cell, profiles.cell),
                anchor=f"why-{number}",
                compared=compared,
                explained=tuple(
                    arm.arm for arm in profiles.arms if (profiles.cell, arm.arm) in explained
                ),
            )
        )
    return tuple(cells)


def left_out(run: RunComparison, cells: tuple[ProfiledCell, ...]) -> str:
    """State how many cells and ledgers do not fit here; empty if all fit."""
    more, outcomes = len(run.profiles) - _MOST_CELLS, _outcomes(run)
    ledgers = sum(len(_unexplained(profile, outcomes)) for profile in run.profiles)
    ledgers -= sum(len(cell.compared) for cell in cells)
    sentences = [
        f"The cells that moved most are shown; comparison.json holds {more} more."
        * (more > 0 and bool(cells)),
        f"Ledger and kernels of {counted(ledgers, 'more comparison')} are in comparison.json alone."
        * (ledgers > 0),
    ]
    return " ".join(filter(None, sentences))


def _outcomes(run: RunComparison) -> _Outcomes:
    return {(comparison.cell, comparison.arm): comparison.outcome for comparison in run.comparisons}


def _unexplained(profiles: CellProfiles, outcomes: _Outcomes) -> tuple[str, ...]:
    """Return the arms with a ledger or kernels that no other fold shows.

    The ledger of an equivalent arm would divide a difference that is not there; its kernels may
    differ.
    """
    diffs = {diff.arm for diff in profiles.kernel_diffs}
    arms = dict.fromkeys((*(ledger.arm for ledger in profiles.ledgers), *diffs))
    known = {arm: outcomes.get((profiles.cell, arm)) for arm in arms}
    return tuple(
        arm
        for arm, outcome in known.items()
        if outcome not in EXPLAINED and (outcome != "equivalent" or arm in diffs)
    )


def profile_blocks(
    run: RunComparison,
    cells: tuple[ProfiledCell, ...],
    files: tuple[str, ...],
    *,
    are_open: bool,
) -> tuple[Block, ...]:
    """Return a fold for each cell; with `are_open`, the first folds are open.

    A profile that no cell has, for the same reason, is named once above them.
    """
    most = rows_each(run)
    gaps = _shared([unmeasured(cell.profiles) for cell in cells])
    passes = _shared([missing_passes(cell.profiles) for cell in cells])
    items = tuple(f"Not measured, {names}: {reason}" for names, reason in gaps)
    fold = Fold(
        summary="Not measured, for the same reason in every cell",
        blocks=(Items(items=items, style="small"),),
    )
    folds = (
        _cell_fold(
            run,
            cell,
            files,
            most=most,
            gaps=gaps,
            passes=passes,
            is_open=are_open and place < _MOST_OPEN,
        )
        for place, cell in enumerate(cells)
    )
    lines = (_missing_line(*missing) for missing in passes)
    return (*lines, *folds, *((fold,) * bool(items)))


def _shared(by_cell: list[tuple[_Missing, ...]]) -> tuple[_Missing, ...]:
    """Return what all of several cells lack for the same reason."""
    if len(by_cell) < 2:
        return ()
    first, *others = by_cell
    return tuple(missing for missing in first if all(missing in other for other in others))


def _cell_fold(  # noqa: PLR0913 — the cell, and what the page knows of it
    run: RunComparison,
    cell: ProfiledCell,
    files: tuple[str, ...],
    *,
    most: int,
    gaps: tuple[tuple[str, str], ...],
    passes: tuple[tuple[str, str, str], ...],
    is_open: bool,
) -> Fold:
    profiles = cell.profiles
    missing = (one for one in missing_passes(profiles) if one not in passes)
    devices = ", ".join(dict.fromkeys(profiles.devices))
    summary = Line(strong=cell.label, text=f"on {devices}" if devices else "")
    differing = by_arms(
        (
            fact.arm,
            (fact.evidence or fact.sentence)
            + (f" To tell it apart: {fact.remedy}." if fact.remedy else ""),
        )
        for fact in profiles.betrayed
    )
    name, outcomes = f"Quantities of {cell.label}", _outcomes(run)
    blocks = quantity_blocks(profiles, label=name, said=gaps)
    is_untimed = any((profiles.cell, arm) not in outcomes for arm in cell.compared)
    quantities = Fold(summary=name, is_open=not cell.compared or is_untimed, blocks=blocks)
    return Fold(
        summary=summary,
        anchor=cell.anchor,
        is_open=is_open,
        blocks=(
            *(
                Line(strong="⚠ More than the environment differs.", text=text, style="warning")
                for text in differing
            ),
            *(Line(strong="⚠", text=text, style="warning") for text in profiles.cautions),
            *(_missing_line(*one) for one in missing),
            *_explained_line(cell),
            *(_comparison_fold(run, cell, arm, most=most) for arm in cell.compared),
            *((quantities,) * bool(blocks)),
            *_listings(profiles, cell.label, most=most),
            *_passes_fold(cell, files),
        ),
    )


def _explained_line(cell: ProfiledCell) -> tuple[Line, ...]:
    if not cell.explained:
        return ()
    places = linked(
        Link(text=visible(arm), href=f"#{fold_anchor(cell.profiles.cell, arm)}")
        for arm in cell.explained
    )
    text = "Ledger and kernels are shown with the comparison:"
    return (Line(text=text, after=(*places, Span(text="."))),)


def _comparison_fold(run: RunComparison, cell: ProfiledCell, arm: str, *, most: int) -> Fold:
    """Return ledger and kernels of one arm; open if there is no verdict to read first."""
    profiles, reference = cell.profiles, cell.profiles.reference
    outcome = _outcomes(run).get((profiles.cell, arm))
    ledger, diff = differences_of(profiles, arm)
    after: list[Span] = []
    if outcome:
        after.append(outcome_badge(outcome))
    blocks: list[Block] = []
    if ledger:
        after.append(Span(text=ledger_sentence(ledger, reference=reference), style="small"))
        blocks.append(Heading(text=f"Difference ledger: {arm} against {reference}"))
        blocks += ledger_blocks(ledger, reference=reference, label=cell.label)
    if diff:
        blocks.append(Heading(text=f"Kernels: {arm} against {reference}"))
        blocks += kernel_blocks(diff, reference=reference, label=cell.label, most=most)
    return Fold(
        summary=Line(strong=arm, text=f"against {reference}", after=tuple(after)),
        is_open=outcome is None,
        blocks=tuple(blocks),
    )


def missing_passes(profiles: CellProfiles) -> tuple[tuple[str, str, str], ...]:
    """Return each reason once, with the profiles that it explains and its hint."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for arm in profiles.arms:
        for state in arm.passes:
            if state.state == "missing":
                hint = one_line(state.lacks.problem.hint) if state.lacks else ""
                key = (_reason(state), hint)
                reasons.setdefault(key, {}).setdefault(arm.arm, []).append(state.name)
    return tuple((_grouped(by_arm), *key) for key, by_arm in reasons.items())


def _missing_line(names: str, reason: str, hint: str) -> Line:
    code = f"`{hint}`" if "`" not in hint else hint
    after = (Span(text=f"Try: {code}", style="small"),) if hint else ()
    return Line(text=f"Not measured, {names}: {sentence(reason)}", after=after)


def _reason(state: PassState) -> str:
    return one_line(state.lacks.problem.reason) if state.lacks else "no reason was recorded"


def _grouped(by_arm: dict[str, list[str]]) -> str:
    """Return "nsys and ncu-memory of vm and docker; nsys of singularity"."""
    arms: dict[str, list[str]] = {}
    for arm, names in by_arm.items():
        arms.setdefault(listed(names, most=6), []).append(arm)
    return "; ".join(f"{names} of {listed(of, most=6)}" for names, of in arms.items())


def _passes_fold(cell: ProfiledCell, files: tuple[str, ...]) -> Iterator[Fold]:
    """Yield the profiles that exist or left files; the reasons for missing ones are shown above."""
    taken: dict[tuple[str, tuple[Link, ...]], list[str]] = {}
    for arm in cell.profiles.arms:
        for state in arm.passes:
            raw = links(state.raw, files)
            if state.state == "ok" or raw:
                taken.setdefault((_pass_text(state), raw), []).append(arm.arm)
    items = tuple(
        Line(
            strong=listed(arms, most=len(arms)),
            text=text,
            after=(Span(text=" · "), *linked(raw)) if raw else (),
        )
        for (text, raw), arms in taken.items()
    )
    if items:
        name = f"Profiles of {cell.label} and their files"
        yield Fold(summary=name, blocks=(Items(items=items),))


def _pass_text(state: PassState) -> str:
    if state.state != "ok":
        return f"{state.name}: not measured: {_reason(state)}"
    steps = counted(state.steps, "step") if state.steps else "steps not known"
    untimed = "" if state.has_time else "its times are not used: counting slows kernels down"
    parts = (state.tool, steps, untimed, *note_sentences(state.notes))
    return f"{state.name}: {'; '.join(part for part in parts if part)}"


def _listings(profiles: CellProfiles, label: str, *, most: int) -> Iterator[Fold]:
    """Yield the longest GPU activities as in nvprof, and operators as in torch.profiler."""
    for arm in profiles.arms:
        if (of := arm.activities) is not None:
            # in the layout of nvprof's summary
            title = f"GPU activities and API calls of {arm.arm}"
            rows = [row for row in of.rows if row.type == "GPU activities"][:most]
            rows += [row for row in of.rows if row.type == "API calls"][:most]
            table = table_of(
                f"{title} in {label}",
                rows,
                ("Type", "word", lambda row: row.type),
                ("Time (%)", "figure", lambda row: _percent(row.percent)),
                ("Time", "figure", lambda row: time_text(row.time_ns)),
                ("Calls", "figure", lambda row: number_text(row.calls)),
                ("Avg", "figure", lambda row: time_text(row.average_ns)),
                ("Min", "figure", lambda row: time_text(row.min_ns)),
                ("Max", "figure", lambda row: time_text(row.max_ns)),
                ("Name", "kernel", lambda row: Line(codes=(short_name(row.name),))),
                caption=_note(of.source, of.steps, len(of.rows) - len(rows)),
                named=7,
            )
            yield Fold(summary=title, blocks=(table,))
    tables = {arm.arm: arm.operators for arm in profiles.arms if arm.operators is not None}
    title = f"Operators of {listed(list(tables), most=6)}"
    if len(tables) == 1:
        (operators,) = tables.values()
        table = _operator_table(operators, label=f"{title} in {label}", most=most)
        yield Fold(summary=title, blocks=(table,))
    elif tables:
        blocks = _operators_of_arms(tables, label=f"{title} in {label}", most=most)
        yield Fold(summary=title, blocks=blocks)


def _operators_of_arms(
    tables: Mapping[str, OperatorTable], *, label: str, most: int
) -> tuple[Block, ...]:
    """Return the operators of several arms in one table, ordered by self time."""
    rows = {arm: {row.name: row for row in table.rows} for arm, table in tables.items()}
    names = sorted(
        dict.fromkeys(name for by_name in rows.values() for name in by_name),
        key=lambda name: -max(_own_ns(by_name.get(name)) for by_name in rows.values()),
    )
    fields = [
        (head, read, text)
        for head, read, text in _OPERATOR_COLUMNS
        if head in _COMPARED and any(read(row) for of in rows.values() for row in of.values())
    ]
    columns = [
        (by_name, Column(head=head, kind="figure", group=arm), read, text)
        for arm, by_name in rows.items()
        for head, read, text in fields
    ]
    sources = (_note(one.source, one.steps, 0) for one in tables.values())
    table = grid_of(
        label,
        (Column(head="Name", kind="kernel", is_row_head=True), *(column[1] for column in columns)),
        (
            (
                Line(codes=(short_name(name),)),
                *(
                    text(read(by_name[name])) if name in by_name else "–"
                    for by_name, _, read, text in columns
                ),
            )
            for name in names[: min(most, _MOST_OPERATORS)]
        ),
        caption=listed(list(dict.fromkeys(sources))),
    )
    more = len(names) - min(most, _MOST_OPERATORS)
    rest = f" and {counted(more, 'more operator')}" * (more > 0)
    note = f"comparison.json has totals, averages and memory{rest}."
    return table, Line(text=note, style="small")


def _own_ns(row: OperatorRow | None) -> float:
    return 0.0 if row is None else max(row.self_cpu_ns, row.self_device_ns or 0.0)


def _operator_table(operators: OperatorTable, *, label: str, most: int) -> Table:
    """Return the operators of one arm in the layout of torch.profiler, without empty columns."""
    rows = operators.rows[:most]
    columns = [
        _operator_field(head, read, text)
        for head, read, text in _OPERATOR_COLUMNS
        if any(read(row) is not None for row in rows)
    ]
    return table_of(
        label,
        rows,
        *columns,
        ("Name", "kernel", lambda row: Line(codes=(short_name(row.name),))),
        caption=_note(operators.source, operators.steps, len(operators.rows) - len(rows)),
        named=len(columns),
    )


def _operator_field(
    head: str, read: Callable[[OperatorRow], float | None], text: Callable[[float | None], str]
) -> Field[OperatorRow]:
    return head, "figure", lambda row: text(read(row))


def _note(source: str, steps: int | None, left_out: int) -> str:
    what = f"{counted(steps, 'step')}" if steps else "the whole profile"
    rest = f"; {counted(left_out, 'more line')} in comparison.json" if left_out else ""
    return f"From {source}, {what}{rest}."


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f} %"


_OPERATOR_COLUMNS: Final[
    tuple[tuple[str, Callable[[OperatorRow], float | None], Callable[[float | None], str]], ...]
] = (
    ("Self CPU %", lambda row: row.self_cpu_percent, _percent),
    ("Self CPU", lambda row: row.self_cpu_ns, time_text),
    ("CPU total", lambda row: row.cpu_ns, time_text),
    (
        "CPU time avg",
        lambda row: None if row.cpu_ns is None or not row.calls else row.cpu_ns / row.calls,
        time_text,
    ),
    ("Self CUDA", lambda row: row.self_device_ns, time_text),
    ("Self CUDA %", lambda row: row.self_device_percent, _percent),
    ("CUDA total", lambda row: row.device_ns, time_text),
    ("Self CPU Mem", lambda row: row.self_cpu_bytes, bytes_text),
    ("Self CUDA Mem", lambda row: row.self_device_bytes, bytes_text),
    ("# of Calls", lambda row: row.calls, number_text),
)
_COMPARED: Final = ("Self CPU", "Self CUDA", "# of Calls")  # of several arms


def power_section(cells: Iterable[ProfiledCell]) -> Section | None:
    """Return power and clocks of the GPU; None if nothing was readable."""
    blocks: list[Block] = []
    for cell in cells:
        name = f"Power, energy and clocks of {cell.label}"
        if drawn := quantity_blocks(cell.profiles, label=name, of_power=True):
            blocks += [Heading(text=cell.label), *drawn]
    if not blocks:
        return None
    intro = Line(text="Sampled while the work ran; never part of its times.")
    return Section(
        anchor="power", title="Power, energy and clocks", link="Power", blocks=(intro, *blocks)
    )
