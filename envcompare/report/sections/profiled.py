"""The profiles of each cell as the page shows them, all tables of one cell together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.analysis.model.profiling import (
    ActivityRow,
    ActivityTable,
    ArmProfiles,
    CellProfiles,
    OperatorRow,
    OperatorTable,
    PassState,
)
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    bytes_text,
    listed,
    number_text,
    time_text,
)
from envcompare.report.sections.charted import RooflineView, roofline_view, why_no_roofline
from envcompare.report.sections.ledgertables import KernelView, LedgerView, kernel_view, ledger_view
from envcompare.report.sections.links import Link, link
from envcompare.report.sections.quantitytables import (
    QuantityLine,
    power_lines,
    quantity_lines,
    unmeasured,
)
from envcompare.report.wording.labels import cell_labels, fold_anchor, short_name
from envcompare.report.wording.profilenotes import note_sentences
from envcompare.report.wording.profilewords import by_arms
from envcompare.report.wording.verdicts import EXPLAINED, SYMBOLS, WORDS
from envcompare.run_folder.records import FactDifference
from envcompare.text import counted, one_line, visible

ACTIVITY_HEADS: Final = ("Time (%)", "Time", "Calls", "Avg", "Min", "Max")
_OPERATOR_HEADS: Final = ("Self CPU %", "Self CPU", "CPU total", "CPU time avg")
_DEVICE_HEADS: Final = ("Self CUDA", "Self CUDA %", "CUDA total")
_MOST_ROWS: Final = 25  # of each table where the tables are few
_LEAST_ROWS: Final = 4
_ROWS_OF_PAGE: Final = 1200  # over all tables, so that many cells keep the page small
_MOST_CELLS: Final = 24
_MOST_AGAINST: Final = 40  # comparisons in them that have no fold of their own
_MOST_OPEN: Final = 3  # where no fold of a comparison is open above them
Outcomes = Mapping[tuple[str, str], Outcome]  # by cell and arm


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One profile of one arm: what made it, or why it is missing and what mends that."""

    arm: str
    name: str
    state: str
    text: str
    hint: str
    files: tuple[Link, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """The profiles that are missing for one reason."""

    names: str
    reason: str
    hint: str


def pass_row(arm: ArmProfiles, one: PassState, files: tuple[str, ...]) -> PassRow:
    """Return one profile in words, with its raw files."""
    steps = counted(one.steps, "step") if one.steps else "steps not known"
    untimed = "" if one.has_time else "its times are not used: counting slows kernels down"
    told = (one.tool, steps, untimed, *note_sentences(one.notes))
    missing = one_line(one.lacks.problem.reason) if one.lacks else "no reason was recorded"
    return PassRow(
        arm=arm.arm,
        name=one.name,
        state=one.state,
        text="; ".join(text for text in told if text) if one.state == "ok" else missing,
        hint=one_line(one.lacks.problem.hint) if one.lacks else "",
        files=tuple(found for name in one.raw if (found := link(name, files)) is not None),
    )


def missing_rows(rows: tuple[PassRow, ...]) -> tuple[Missing, ...]:
    """Return each reason once, with the profiles that are missing for it."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if row.state == "missing":
            found.setdefault((row.text, row.hint), {}).setdefault(row.arm, []).append(row.name)
    return tuple(
        Missing(names=_grouped(by_arm), reason=reason, hint=hint)
        for (reason, hint), by_arm in found.items()
    )


def _grouped(by_arm: dict[str, list[str]]) -> str:
    """Return "nsys and ncu-memory of vm and docker; nsys of singularity"."""
    arms: dict[str, list[str]] = {}
    for arm, names in by_arm.items():
        arms.setdefault(listed(names, most=6), []).append(arm)
    return "; ".join(f"{names} of {listed(of, most=6)}" for names, of in arms.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRow:
    """One line: what it is, its numbers in the order of the heads."""

    name: str
    values: tuple[str, ...]
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The table of one arm, made for a fold."""

    title: str
    note: str
    heads: tuple[str, ...]
    rows: tuple[ListedRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The columns that not every table of operators has."""

    device: bool
    cpu_bytes: bool
    device_bytes: bool


def activity_listing(table: ActivityTable, *, arm: str, most: int) -> Listing:
    """Return the table of GPU activities and API calls, as nvprof's summary has it."""
    rows = [row for row in table.rows if row.type == "GPU activities"][:most]
    rows += [row for row in table.rows if row.type == "API calls"][:most]
    return Listing(
        title=f"GPU activities and API calls of {arm}",
        note=_note(table.source, table.steps, len(table.rows) - len(rows)),
        heads=ACTIVITY_HEADS,
        rows=tuple(_activity(row) for row in rows),
    )


def operator_listing(table: OperatorTable, *, arm: str, most: int) -> Listing:
    """Return the table of operators, as torch.profiler's has it."""
    rows = table.rows[:most]
    shown = _Columns(
        device=any(row.self_device_ns is not None for row in rows),
        cpu_bytes=any(row.self_cpu_bytes is not None for row in rows),
        device_bytes=any(row.self_device_bytes is not None for row in rows),
    )
    return Listing(
        title=f"Operators of {arm}",
        note=_note(table.source, table.steps, len(table.rows) - len(rows)),
        heads=(
            *_OPERATOR_HEADS,
            *_DEVICE_HEADS * shown.device,
            *("Self CPU Mem",) * shown.cpu_bytes,
            *("Self CUDA Mem",) * shown.device_bytes,
            "# of Calls",
        ),
        rows=tuple(_operator(row, shown) for row in rows),
    )


def _note(source: str, steps: int | None, left_out: int) -> str:
    what = f"{counted(steps, 'step')}" if steps else "the whole profile"
    rest = f"; {counted(left_out, 'more line')} in comparison.json" if left_out else ""
    return f"From {source}, {what}{rest}."


def _activity(row: ActivityRow) -> ListedRow:
    return ListedRow(
        type=row.type,
        name=short_name(row.name),
        values=(
            f"{row.percent:.2f} %",
            time_text(row.time_ns),
            number_text(row.calls),
            time_text(row.average_ns),
            time_text(row.min_ns),
            time_text(row.max_ns),
        ),
    )


def _operator(row: OperatorRow, shown: _Columns) -> ListedRow:
    average = None if row.cpu_ns is None or not row.calls else row.cpu_ns / row.calls
    device = (time_text(row.self_device_ns), _percent(row.self_device_percent))
    return ListedRow(
        name=short_name(row.name),
        values=(
            _percent(row.self_cpu_percent),
            time_text(row.self_cpu_ns),
            time_text(row.cpu_ns),
            time_text(average),
            *(*device, time_text(row.device_ns)) * shown.device,
            *(bytes_text(row.self_cpu_bytes),) * shown.cpu_bytes,
            *(bytes_text(row.self_device_bytes),) * shown.device_bytes,
            number_text(row.calls),
        ),
    )


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f} %"


class _Page(NamedTuple):
    """The files beside the page, how many rows a table may have, and what a fold explains."""

    files: tuple[str, ...]
    most: int
    told: frozenset[tuple[str, str]]  # cell and arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One arm against the reference: open where there is no verdict to read first."""

    arm: str
    outcome: Outcome | None  # None where nothing was timed
    word: str
    is_open: bool
    ledger: LedgerView | None
    kernels: KernelView | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledView:
    """Everything about the profiles of one cell."""

    anchor: str
    is_shown: bool = False  # its fold is open when the page is
    label: str
    reference: str
    arms: tuple[str, ...]
    devices: tuple[str, ...]
    cautions: tuple[str, ...]
    build_differences: tuple[str, ...]
    passes: tuple[PassRow, ...]
    missing: tuple[Missing, ...]
    comparisons: tuple[Against, ...]  # those that no fold of their own explains
    told: tuple[Link, ...]  # the folds of the others
    quantities: tuple[QuantityLine, ...]
    unmeasured: tuple[tuple[str, str], ...]  # names, and why
    power: tuple[QuantityLine, ...]
    power_unmeasured: tuple[tuple[str, str], ...]
    listings: tuple[Listing, ...]
    roofline: RooflineView | None
    roofline_reason: str

    @property
    def taken(self) -> tuple[PassRow, ...]:
        """Return the profiles there are, or that left files; `missing` tells each reason once."""
        return tuple(row for row in self.passes if row.state == "ok" or row.files)

    @property
    def is_open(self) -> bool:
        """Say whether there is no comparison here, or one that has no verdict."""
        return not self.comparisons or any(found.is_open for found in self.comparisons)


def profiled_views(
    run: RunComparison,
    files: tuple[str, ...],
    *,
    told: frozenset[tuple[str, str]] = frozenset(),
) -> tuple[ProfiledView, ...]:
    """Return a view for each cell that has profiles, or reasons why it has none.

    Of many cells those that moved most are shown. `told` are the cells and arms whose ledger and
    kernels stand in a fold of their own.
    """
    labels, shown = cell_labels(run), _shown(run)
    most = rows_each(run)
    outcomes = _outcomes(run)
    views = [
        _view(
            one,
            _comparisons(one, outcomes, most=most),
            label=labels.get(one.cell, one.cell),
            anchor=f"why-{number}",
            page=_Page(files, most, told),
        )
        for number, one in enumerate(shown, start=1)
    ]
    if told:
        return tuple(_short(views))
    return tuple(replace(one, is_shown=place < _MOST_OPEN) for place, one in enumerate(views))


def _short(views: list[ProfiledView]) -> list[ProfiledView]:
    """Keep the first comparisons of all cells together, and the cells that have anything left."""
    left, found = _MOST_AGAINST, []
    for one in views:
        kept = one.comparisons[:left]
        left -= len(kept)
        found.append(replace(one, comparisons=kept))
    return [one for one in found if one.comparisons or one.passes or one.roofline]


def _comparisons(one: CellProfiles, outcomes: Outcomes, *, most: int) -> tuple[Against, ...]:
    ledgers = {found.arm: found for found in one.ledgers}
    diffs = {found.arm: found for found in one.kernel_diffs}
    return tuple(
        _against(
            arm,
            outcomes.get((one.cell, arm)),
            ledger_view(ledgers[arm], reference=one.reference) if arm in ledgers else None,
            kernel_view(diffs[arm], reference=one.reference, most=most) if arm in diffs else None,
        )
        for arm in _beside(one, outcomes)
    )


def _against(
    arm: str, outcome: Outcome | None, ledger: LedgerView | None, kernels: KernelView | None
) -> Against:
    return Against(
        arm=arm,
        outcome=outcome,
        word=f"{SYMBOLS[outcome]} {WORDS[outcome]}" if outcome else "",
        is_open=outcome is None,
        ledger=ledger,
        kernels=kernels,
    )


def left_out(run: RunComparison, views: tuple[ProfiledView, ...]) -> str:
    """Say how many cells and ledgers have no room here, empty where all have."""
    cells, outcomes = len(run.profiles) - _MOST_CELLS, _outcomes(run)
    ledgers = sum(len(_beside(one, outcomes)) for one in run.profiles)
    ledgers -= sum(len(view.comparisons) for view in views)
    texts = [
        f"Shown are the cells that moved most; comparison.json holds {cells} more."
        * (cells > 0 and bool(views)),
        f"Ledger and kernels of {counted(ledgers, 'more comparison')} stand in comparison.json "
        "alone." * (ledgers > 0),
    ]
    return " ".join(filter(None, texts))


def _outcomes(run: RunComparison) -> Outcomes:
    return {(one.cell, one.arm): one.outcome for one in run.comparisons}


def _beside(one: CellProfiles, outcomes: Outcomes) -> list[str]:
    """Return the arms with a ledger or kernels to compare that are for no fold of their own."""
    arms = dict.fromkeys(
        (*(found.arm for found in one.ledgers), *(found.arm for found in one.kernel_diffs))
    )
    return [arm for arm in arms if outcomes.get((one.cell, arm)) not in EXPLAINED]


def _shown(run: RunComparison) -> tuple[CellProfiles, ...]:
    if len(run.profiles) <= _MOST_CELLS:
        return run.profiles
    moved: dict[str, float] = {}
    for one in run.comparisons:
        if one.primary is not None and not one.is_control:
            moved[one.cell] = max(moved.get(one.cell, 0.0), abs(one.primary.log_ratio))
    ordered = sorted(run.profiles, key=lambda one: -moved.get(one.cell, 0.0))
    chosen = {one.cell for one in ordered[:_MOST_CELLS]}
    return tuple(one for one in run.profiles if one.cell in chosen)


def rows_each(run: RunComparison) -> int:
    """Return how many rows each table of kernels, activities or operators may have."""
    shown = _shown(run)
    tables = sum(2 * len(one.arms) + len(one.kernel_diffs) for one in shown)
    return max(_LEAST_ROWS, min(_MOST_ROWS, _ROWS_OF_PAGE // max(1, tables)))


def _view(
    one: CellProfiles, comparisons: tuple[Against, ...], *, label: str, anchor: str, page: _Page
) -> ProfiledView:
    rows = tuple(pass_row(arm, found, page.files) for arm in one.arms for found in arm.passes)
    return ProfiledView(
        anchor=anchor,
        label=label,
        reference=one.reference,
        arms=tuple(arm.arm for arm in one.arms),
        devices=tuple(dict.fromkeys(one.devices)),
        cautions=one.cautions,
        build_differences=by_arms((found.arm, _build_sentence(found)) for found in one.betrayed),
        passes=rows,
        missing=missing_rows(rows),
        comparisons=comparisons,
        told=tuple(
            Link(text=visible(arm.arm), href=f"#{fold_anchor(one.cell, arm.arm)}")
            for arm in one.arms
            if (one.cell, arm.arm) in page.told
        ),
        quantities=quantity_lines(one),
        unmeasured=unmeasured(one),
        power=power_lines(one),
        power_unmeasured=unmeasured(one, of_power=True),
        listings=tuple(found for arm in one.arms for found in _listings(arm, page.most)),
        roofline=roofline_view(one, label=label),
        roofline_reason=why_no_roofline(one),
    )


def _build_sentence(one: FactDifference) -> str:
    how = f" To tell it apart: {one.remedy}." if one.remedy else ""
    return f"{one.evidence or one.sentence}{how}"


def _listings(arm: ArmProfiles, most: int) -> tuple[Listing, ...]:
    found = []
    if arm.activities is not None:
        found.append(activity_listing(arm.activities, arm=arm.arm, most=most))
    if arm.operators is not None:
        found.append(operator_listing(arm.operators, arm=arm.arm, most=most))
    return tuple(found)
