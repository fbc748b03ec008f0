"""The profiles of each cell as the page shows them, all tables of one cell together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envcompare.analysis.model import Outcome, RunComparison
from envcompare.analysis.profilemodel import ArmProfiles, CellProfiles, PassState
from envcompare.records import FactDifference
from envcompare.report.activities import Listing, activity_listing, operator_listing
from envcompare.report.kernels import KernelView, kernel_view
from envcompare.report.labels import cell_labels
from envcompare.report.ledgers import LedgerView, ledger_view
from envcompare.report.links import Link, link
from envcompare.report.numbers import listed
from envcompare.report.profilewords import by_arms
from envcompare.report.quantities import QuantityLine, power_lines, quantity_lines, unmeasured
from envcompare.report.rooflines import RooflineView, roofline_view
from envcompare.report.verdicts import SYMBOLS, WORDS
from envcompare.texts import counted, one_line

_MOST_ROWS: Final = 25  # of each table where the tables are few
_LEAST_ROWS: Final = 4
_ROWS_OF_PAGE: Final = 1500  # over all tables, so that many cells keep the page small
_MOST_CELLS: Final = 40
_FEW_CELLS: Final = 2  # all of them are open; of more those that moved, and no more than
_MOST_OPEN: Final = 3
_MOVED: Final[frozenset[Outcome]] = frozenset({"slower", "faster"})


class _Page(NamedTuple):
    """The files beside the page, and how many rows a table of it may have."""

    files: tuple[str, ...]
    most: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One arm against the reference: open where there is a difference to explain."""

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
    is_shown: bool = True  # its fold is open when the page is
    label: str
    reference: str
    arms: tuple[str, ...]
    devices: tuple[str, ...]
    cautions: tuple[str, ...]
    betrayed: tuple[str, ...]
    passes: tuple[PassRow, ...]
    missing: tuple[Missing, ...]
    comparisons: tuple[Against, ...]
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
    def has_moved(self) -> bool:
        """Say whether any arm was slower or faster."""
        return any(found.outcome in _MOVED for found in self.comparisons)

    @property
    def is_open(self) -> bool:
        """Say whether any comparison has something to explain, or there is none to make yet."""
        return not self.comparisons or any(found.is_open for found in self.comparisons)


def profiled_views(run: RunComparison, files: tuple[str, ...]) -> tuple[ProfiledView, ...]:
    """Return a view for each cell that has profiles, or reasons why it has none.

    Of many cells those that moved most are shown.
    """
    labels, shown = cell_labels(run), _shown(run)
    most = _rows_each(shown)
    outcomes = {(one.cell, one.arm): one.outcome for one in run.comparisons}
    views = [
        _view(
            one,
            _comparisons(one, outcomes, most=most),
            label=labels.get(one.cell, one.cell),
            anchor=f"why-{number}",
            page=_Page(files, most),
        )
        for number, one in enumerate(shown, start=1)
    ]
    if len(views) <= _FEW_CELLS:
        return tuple(views)
    opened = [one.anchor for one in views if one.has_moved][:_MOST_OPEN]
    return tuple(replace(one, is_shown=one.anchor in opened) for one in views)


def _comparisons(
    one: CellProfiles, outcomes: Mapping[tuple[str, str], Outcome], *, most: int
) -> tuple[Against, ...]:
    ledgers = {found.arm: found for found in one.ledgers}
    diffs = {found.arm: found for found in one.kernel_diffs}
    return tuple(
        _against(
            arm,
            outcomes.get((one.cell, arm)),
            ledger_view(ledgers[arm], reference=one.reference) if arm in ledgers else None,
            kernel_view(diffs[arm], reference=one.reference, most=most) if arm in diffs else None,
        )
        for arm in dict.fromkeys((*ledgers, *diffs))
    )


def _against(
    arm: str, outcome: Outcome | None, ledger: LedgerView | None, kernels: KernelView | None
) -> Against:
    return Against(
        arm=arm,
        outcome=outcome,
        word=f"{SYMBOLS[outcome]} {WORDS.get(outcome, outcome)}" if outcome else "",
        is_open=outcome is None or outcome in _MOVED,
        ledger=ledger,
        kernels=kernels,
    )


def left_out(run: RunComparison) -> str:
    """Say how many cells with profiles are not shown, empty where all are."""
    count = len(run.profiles) - _MOST_CELLS
    if count <= 0:
        return ""
    return f"Shown are the cells that moved most; comparison.json holds {count} more."


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


def _rows_each(shown: tuple[CellProfiles, ...]) -> int:
    tables = sum(2 * len(one.arms) + len(one.kernel_diffs) for one in shown)
    return max(_LEAST_ROWS, min(_MOST_ROWS, _ROWS_OF_PAGE // max(1, tables)))


def _view(
    one: CellProfiles, comparisons: tuple[Against, ...], *, label: str, anchor: str, page: _Page
) -> ProfiledView:
    rows = tuple(_pass(arm, found, page.files) for arm in one.arms for found in arm.passes)
    return ProfiledView(
        anchor=anchor,
        label=label,
        reference=one.reference,
        arms=tuple(arm.arm for arm in one.arms),
        devices=tuple(dict.fromkeys(one.devices)),
        cautions=one.cautions,
        betrayed=by_arms((found.arm, _betrayed(found)) for found in one.betrayed),
        passes=rows,
        missing=_missing(rows),
        comparisons=comparisons,
        quantities=quantity_lines(one),
        unmeasured=unmeasured(one),
        power=power_lines(one),
        power_unmeasured=unmeasured(one, of_power=True),
        listings=tuple(found for arm in one.arms for found in _listings(arm, page.most)),
        roofline=roofline_view(one),
        roofline_reason=one.roofline_reason,
    )


def _missing(rows: tuple[PassRow, ...]) -> tuple[Missing, ...]:
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


def _pass(arm: ArmProfiles, one: PassState, files: tuple[str, ...]) -> PassRow:
    steps = counted(one.steps, "step") if one.steps else "steps not known"
    untimed = "" if one.has_time else "its times are not used: counting slows kernels down"
    told = (one.tool, steps, untimed, *one.notes)
    missing = one_line(one.reason) or "no reason was recorded"
    return PassRow(
        arm=arm.arm,
        name=one.name,
        state=one.state,
        text="; ".join(text for text in told if text) if one.state == "ok" else missing,
        hint=one_line(one.hint),
        files=tuple(found for name in one.raw if (found := link(name, files)) is not None),
    )


def _betrayed(one: FactDifference) -> str:
    how = f" To tell it apart: {one.remedy}." if one.remedy else ""
    return f"{one.evidence or one.sentence}{how}"


def _listings(arm: ArmProfiles, most: int) -> tuple[Listing, ...]:
    found = []
    if arm.activities is not None:
        found.append(activity_listing(arm.activities, arm=arm.arm, most=most))
    if arm.operators is not None:
        found.append(operator_listing(arm.operators, arm=arm.arm, most=most))
    return tuple(found)
