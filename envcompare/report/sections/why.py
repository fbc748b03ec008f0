"""Why: a fold for each comparison that is slower, faster or inconclusive, with its causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import Comparison, RunComparison
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, KernelDiff, Ledger
from envcompare.fingerprint.remedies import SEPARATE
from envcompare.report.charts.allowance import Allowance
from envcompare.report.charts.ledgers import time_chart
from envcompare.report.charts.marks import Axis
from envcompare.report.charts.steps import KEY, step_chart
from envcompare.report.format.numbers import listed, margin_percent
from envcompare.report.sections.decomposed import SplitView, split_view
from envcompare.report.sections.headlines import candidates_text
from envcompare.report.sections.kernels import KernelView, kernel_view
from envcompare.report.sections.ledgers import LedgerView, ledger_view
from envcompare.report.sections.profilewords import NOT_PROFILED
from envcompare.report.sections.rawfiles import FileGroup, raw_files
from envcompare.report.sections.steptimes import Spread, spread_of
from envcompare.report.sections.tables import Row
from envcompare.report.wording.labels import fold_anchor
from envcompare.report.wording.programs import PLURALS, piece_of
from envcompare.report.wording.verdicts import EXPLAINED, MOVED, confounder_sentence, stretch_line
from envcompare.text import counted, one_line, sentence, visible

MOST_FOLDS: Final = 40
_MOST_OPEN: Final = 3
_MOST_REMEDIES: Final = 3
_MOST_LINKS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One comparison and what is known of its cause."""

    anchor: str
    row: Row
    is_open: bool
    clock: str  # what the clock saw beside the net time
    confounded: str  # what differs besides the environment, and what would tell it apart
    candidates: str  # of a decided difference: what else may explain it
    split: SplitView | None
    ledger: LedgerView | None
    time_chart: Markup
    kernels: KernelView | None
    gap: str  # why ledger or kernels are not known
    reference: str
    piece: str  # "step" or "process"
    pieces: str
    spread: Spread | None
    spread_chart: Markup
    spread_key: str
    files: tuple[FileGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """A sentence about comparisons that have no fold, with links to their rows."""

    text: str
    links: tuple[tuple[str, str], ...] = ()  # href and text
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The folds, the largest difference first, and where everything else stands."""

    folds: tuple[Fold, ...] = ()
    pointers: tuple[Pointer, ...] = ()

    @property
    def anchors(self) -> dict[str, str]:
        """Return the id of each fold by that of its row."""
        return {one.row.anchor: one.anchor for one in self.folds}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """The page that the folds stand on: its axis, its charts, the files beside it."""

    axis: Axis
    charts: Allowance
    files: tuple[str, ...]
    most_rows: int  # of a table of kernels


def why(run: RunComparison, rows: tuple[Row, ...], on: Sheet) -> Why:
    """Return a fold for each comparison that was decided or is open, and sentences for the rest."""
    found = {(one.cell, one.arm): one for one in run.comparisons}
    compared = [row for row in rows if not row.is_control]
    chosen = explained(compared)
    opened = [row.anchor for row in chosen if row.verdict.outcome in MOVED][:_MOST_OPEN]
    folds = tuple(
        _fold(
            run,
            row,
            found[row.verdict.cell_id, row.verdict.arm],
            on,
            is_open=row.anchor in opened,
        )
        for row in chosen[:MOST_FOLDS]
    )
    return Why(folds=folds, pointers=tuple(_pointers(run, compared, chosen[MOST_FOLDS:])))


def explained(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that have something to explain: what was decided first, the largest first."""
    return sorted(
        (row for row in rows if row.verdict.outcome in EXPLAINED and not row.is_control),
        key=lambda row: (row.verdict.outcome not in MOVED, -abs(row.verdict.log_ratio or 0.0)),
    )


def told_arms(rows: Iterable[Row]) -> frozenset[tuple[str, str]]:
    """Return cell and arm of each comparison that has a fold of its own."""
    return frozenset((row.verdict.cell_id, row.verdict.arm) for row in explained(rows)[:MOST_FOLDS])


def _fold(run: RunComparison, row: Row, one: Comparison, on: Sheet, *, is_open: bool) -> Fold:
    cell = next((found for found in run.cells if found.id == one.cell), None)
    profiles = next((found for found in run.profiles if found.cell == one.cell), None)
    ledger, diff = _of_arm(profiles, one.arm)
    piece = piece_of(cell) if cell else "step"
    arms = (run.reference_arm, one.arm)
    split = next((found for found in run.decompositions
                  if (found.cell, found.arm) == (one.cell, one.arm)), None)  # fmt: skip
    return Fold(
        anchor=fold_anchor(one.cell, one.arm),
        row=row,
        is_open=is_open,
        clock=_clock(one),
        confounded=_confounded(run, one, is_split=split is not None),
        candidates=candidates_text(run, (one,)),
        split=split_view(split, label=row.verdict.cell, on=on.axis) if split else None,
        ledger=ledger_view(ledger, reference=run.reference_arm) if ledger else None,
        time_chart=on.charts.draw(
            time_chart(run, profiles, ledger) if profiles and ledger else None
        ),
        kernels=kernel_view(diff, reference=run.reference_arm, most=on.most_rows) if diff else None,
        gap=_gap(profiles, ledger, diff, arms),
        reference=visible(run.reference_arm),
        piece=piece,
        pieces=PLURALS[piece],
        spread=spread_of(cell, arms) if cell else None,
        spread_chart=on.charts.draw(step_chart(run, cell, arms) if cell else None),
        spread_key=KEY,
        files=raw_files(one, reference=run.reference_arm, files=on.files),
    )


def _clock(one: Comparison) -> str:
    line = stretch_line(one)
    return f"{line[:1].upper()}{line[1:]}." if line else ""


def _of_arm(profiles: CellProfiles | None, arm: str) -> tuple[Ledger | None, KernelDiff | None]:
    if profiles is None:
        return None, None
    ledger = next((one for one in profiles.ledgers if one.arm == arm), None)
    return ledger, next((one for one in profiles.kernel_diffs if one.arm == arm), None)


def _confounded(run: RunComparison, one: Comparison, *, is_split: bool) -> str:
    """Say what differs besides the environment here, and how to tell its part from the rest."""
    if not one.is_confounded:
        return ""
    found = tuple(
        found
        for found in run.differences
        if (found.host, found.arm, found.fact_class) == (one.host, one.arm, "confounder")
        and not found.part_of
    )
    text = confounder_sentence(found, outcomes=frozenset({one.outcome}), is_split=is_split)
    text = text or "More than the environment differs; its cause cannot be told apart."
    seen = dict.fromkeys(fact.evidence for fact in found if fact.evidence)
    remedies = list(dict.fromkeys(fact.remedy for fact in found if fact.remedy))[:_MOST_REMEDIES]
    how = f"{SEPARATE}{'; or '.join(remedies)}." if remedies and not is_split else ""
    return visible(" ".join(part for part in (text, *seen, how) if part))


def _gap(
    profiles: CellProfiles | None,
    ledger: Ledger | None,
    diff: KernelDiff | None,
    arms: tuple[str, ...],
) -> str:
    """Say why there is no ledger or no kernels to compare, empty where both are there."""
    missing = [
        what for what, found in (("where the time goes", ledger), ("kernels", diff)) if not found
    ]
    if not missing:
        return ""
    reasons = [text for arm in (profiles.arms if profiles else ()) if arm.arm in arms
               for text in _reasons(arm)]  # fmt: skip
    reason = next(iter(dict.fromkeys(reasons)), NOT_PROFILED)
    return visible(f"Not measured, {listed(missing)}: {sentence(reason)}")


def _reasons(arm: ArmProfiles) -> list[str]:
    return [one_line(one.reason) for one in arm.passes if one.state != "ok" and one.reason]


def _pointers(run: RunComparison, rows: list[Row], rest: list[Row]) -> list[Pointer]:
    """Tell of the comparisons without a fold where they stand."""
    found = []
    if rest:
        found.append(_unfolded(run, rest))
    equal = [row for row in rows if row.verdict.outcome == "equivalent"]
    real = [row for row in equal if row.verdict.remark]
    within = f"equivalent within ±{margin_percent(run.margin)}"
    if equal and len(real) < len(equal):
        others = [row for row in equal if not row.verdict.remark]
        found.append(_listing(f"{counted(len(others), 'comparison')} {within}:", others))
    if real:
        text = f"{counted(len(real), 'comparison')} {within} with a real difference inside it:"
        found.append(_listing(text, real, is_figured=True))
    for outcome, word in (("failed", "failed"), ("not-run", "not run")):
        count = sum(row.verdict.outcome == outcome for row in rows)
        if count:
            text = f"{counted(count, 'comparison')} {word}:"
            found.append(Pointer(text=text, links=(("#failures", "Failures"),)))
    return found


def _unfolded(run: RunComparison, rest: list[Row]) -> Pointer:
    """Say where what is beyond the folds stands, ledgers too where there are any."""
    word = "comparison that is" if len(rest) == 1 else "comparisons that are"
    ledgers = {(one.cell, ledger.arm) for one in run.profiles for ledger in one.ledgers}
    has_ledger = any((row.verdict.cell_id, row.verdict.arm) in ledgers for row in rest)
    return Pointer(
        text=f"Without a fold, {len(rest)} more {word} slower, faster or inconclusive:",
        links=(("#all", "All comparisons"),),
        more="their ledgers and kernels stand in comparison.json alone" * has_ledger,
    )


def _listing(text: str, rows: list[Row], *, is_figured: bool = False) -> Pointer:
    ordered = sorted(rows, key=lambda row: -abs(row.verdict.log_ratio or 0.0))
    links = tuple(
        (f"#{row.anchor}", f"{row.verdict.arm}, {row.verdict.cell}{_number(row) * is_figured}")
        for row in ordered[:_MOST_LINKS]
    )
    more = len(rows) - len(links)
    return Pointer(text=text, links=links, more=f"{more} more" if more else "")


def _number(row: Row) -> str:
    return f" ({row.verdict.number}, {row.verdict.interval})"
