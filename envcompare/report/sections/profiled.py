"""The profiles of each cell as the page shows them, all tables of one cell together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles
from envcompare.report.sections.activities import Listing, activity_listing, operator_listing
from envcompare.report.sections.kernels import KernelView, kernel_view
from envcompare.report.sections.ledgers import LedgerView, ledger_view
from envcompare.report.sections.links import Link
from envcompare.report.sections.passes import Missing, PassRow, missing_rows, pass_row
from envcompare.report.sections.profilewords import by_arms
from envcompare.report.sections.quantities import (
    QuantityLine,
    power_lines,
    quantity_lines,
    unmeasured,
)
from envcompare.report.sections.rooflines import RooflineView, roofline_view, why_no_roofline
from envcompare.report.wording.labels import cell_labels, fold_anchor
from envcompare.report.wording.verdicts import EXPLAINED, SYMBOLS, WORDS
from envcompare.run_folder.records import FactDifference
from envcompare.text import counted, visible

_MOST_ROWS: Final = 25  # of each table where the tables are few
_LEAST_ROWS: Final = 4
_ROWS_OF_PAGE: Final = 1200  # over all tables, so that many cells keep the page small
_MOST_CELLS: Final = 24
_MOST_AGAINST: Final = 40  # comparisons in them that have no fold of their own
_MOST_OPEN: Final = 3  # where no fold of a comparison is open above them


Outcomes = Mapping[tuple[str, str], Outcome]  # by cell and arm


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
