"""Why: a fold for each comparison that is slower, faster or inconclusive, with its causes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from markupsafe import Markup

from envcompare.analysis.model.comparison import (
    STEP_PROBABILITIES,
    CellSummary,
    Comparison,
    Decomposition,
    Estimate,
    RunComparison,
    StepTimes,
)
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, KernelDiff, Ledger
from envcompare.fingerprint.sentences import SEPARATE
from envcompare.report.charts.bars import time_chart
from envcompare.report.charts.drawing import ChartBudget
from envcompare.report.charts.steps import KEY, step_chart
from envcompare.report.format.marks import Axis, Mark, mark
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    NS,
    TimeScale,
    listed,
    margin_percent,
    signed_interval,
    signed_percent,
)
from envcompare.report.sections.comparisons import Row
from envcompare.report.sections.ledgertables import KernelView, LedgerView, kernel_view, ledger_view
from envcompare.report.sections.links import Link, link
from envcompare.report.wording.headlines import candidates_text, split_sentence
from envcompare.report.wording.labels import PLURALS, cell_labels, fold_anchor, piece_of
from envcompare.report.wording.profilewords import NOT_PROFILED
from envcompare.report.wording.verdicts import EXPLAINED, MOVED, confounder_sentence, stretch_line
from envcompare.run_folder.disk import cell_name, distinct_name
from envcompare.text import counted, one_line, sentence, visible

HEADS: Final = ("whole", "environment", "software", "environment", "software", "interaction")
_PATHS: Final = ("", *("environment first",) * 2, *("software first",) * 2, "")
_MOST: Final = 12  # of one arm; all are listed with the files of the run
_SAMPLES: Final = "samples.jsonl"
FileGroup = tuple[str, tuple[Link, ...]]  # of what, and the files by their short names
_SHOWN: Final[dict[str, float]] = {
    "p5": 0.05,
    "p25": 0.25,
    "median": 0.5,
    "p75": 0.75,
    "p95": 0.95,
    "p99": 0.99,
}
_LONGEST: Final = "longest"
MOST_FOLDS: Final = 40
_MOST_OPEN: Final = 3
_MOST_REMEDIES: Final = 3
_MOST_LINKS: Final = 6


def raw_files(one: Comparison, *, reference: str, files: tuple[str, ...]) -> tuple[FileGroup, ...]:
    """Return links to what was written about both arms of a comparison in its cell."""
    groups = [("all samples", [_SAMPLES] * (_SAMPLES in files))]
    groups += [
        (visible(arm), [name for start in _starts(one, arm) for name in files
                        if name.startswith(start)][:_MOST])
        for arm in (reference, one.arm)
    ]  # fmt: skip
    return tuple((what, _links(names, files)) for what, names in groups if names)


def _links(names: list[str], files: tuple[str, ...]) -> tuple[Link, ...]:
    found = ((link(name, files), PurePosixPath(name)) for name in names)
    return tuple(replace(file, text=_short(path)) for file, path in found if file is not None)


def _short(path: PurePosixPath) -> str:
    """Return what a file is where its folder tells that, else its name."""
    return {"logs": "log", "fingerprints": "fingerprint"}.get(path.parts[0], path.name)


def _starts(one: Comparison, arm: str) -> tuple[str, ...]:
    """Return how the names of an arm's files begin, as the run folder lays them out."""
    host, name, cell = distinct_name(one.host), distinct_name(arm), cell_name(one.cell)
    work = cell_name(one.cell.removeprefix(f"{one.host}/"))
    return (
        f"logs/{host}/{cell}/{name}.log",
        f"fingerprints/{host}/{name}/{work}.json",
        f"profiles/{cell}/{name}/",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The quantiles of the times of two arms: a row for each, with how many times they are.

    Quantiles that neither arm has are left out, as an older analysis kept three alone.
    """

    unit: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], int], ...]  # arm, values, count


def spread_of(cell: CellSummary, arms: tuple[str, ...]) -> Spread | None:
    """Return the spread of these arms, None where no time of either was measured."""
    found = {one.arm: one for one in cell.step_times if one.arm in arms}
    if not found:
        return None
    known = {arm: _known(found[arm]) if arm in found else {} for arm in arms}
    heads = [head for head in (*_SHOWN, _LONGEST) if any(head in of for of in known.values())]
    medians = (one.median_s for one in found.values())
    scale = TimeScale.of(NS * max(cell.step_edges_s[-1:] or medians))  # as the axis of the chart
    return Spread(
        unit=scale.unit,
        heads=tuple(heads),
        rows=tuple(
            (
                visible(arm),
                tuple(scale.digits(known[arm].get(head)) for head in heads),
                found[arm].steps if arm in found else 0,
            )
            for arm in arms
        ),
    )


def _known(times: StepTimes) -> dict[str, float]:
    """Return what is known of the times of an arm, in seconds."""
    at: dict[float, float] = {0.05: times.p05_s, 0.5: times.median_s, 0.95: times.p95_s}
    at.update(zip(STEP_PROBABILITIES, times.quantiles_s, strict=False))
    known = {head: at[probability] for head, probability in _SHOWN.items() if probability in at}
    return known | ({} if times.longest_s is None else {_LONGEST: times.longest_s})


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
    charts: ChartBudget
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
    missing = (one.lacks for one in arm.passes if one.state != "ok" and one.lacks)
    return [one_line(lacks.problem.reason) for lacks in missing]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One difference and its parts; a part is its number, its interval, and which arms made it."""

    cell: str
    arm: str
    parts: tuple[tuple[str, str, str], ...]  # in the order of HEADS


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPart:
    """One part of a difference as a row: what it is, of which arms, how large, and its mark."""

    path: str  # empty for the whole
    name: str
    number: str
    interval: str
    arms: str
    mark: Mark | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """The 2 × 2 of one comparison."""

    sentence: str
    parts: tuple[SplitPart, ...]


def split_view(one: Decomposition, *, label: str, on: Axis) -> SplitView:
    """Return the parts of one difference, each drawn on the axis of the page."""
    rows = zip(_PATHS, HEADS, _parts(one), _estimates(one), strict=True)
    return SplitView(
        sentence=visible(split_sentence(one, label=label)),
        parts=tuple(
            SplitPart(
                path=path,
                name=name,
                number=number,
                interval=interval,
                arms=arms,
                mark=mark(estimate, "reference", on=on),
            )
            for path, name, (number, interval, arms), (estimate, _) in rows
        ),
    )


def split_rows(run: RunComparison) -> tuple[SplitRow, ...]:
    """Return a row for each 2 × 2."""
    labels = cell_labels(run)
    return tuple(
        SplitRow(cell=visible(labels[one.cell]), arm=visible(one.arm), parts=_parts(one))
        for one in run.decompositions
    )


def _parts(one: Decomposition) -> tuple[tuple[str, str, str], ...]:
    return tuple(_part(estimate, visible(arms)) for estimate, arms in _estimates(one))


def _estimates(one: Decomposition) -> tuple[tuple[Estimate | None, str], ...]:
    return (
        (one.total, f"{one.arm} ÷ {one.base}"),
        (one.environment, f"{one.host_arm} ÷ {one.base}"),
        (one.stack, f"{one.arm} ÷ {one.host_arm}"),
        (one.environment_by_image, f"{one.arm} ÷ {one.base_image}"),
        (one.stack_by_base, f"{one.base_image} ÷ {one.base}"),
        (one.interaction, "difference of the paths"),
    )


def _part(found: Estimate | None, arms: str) -> tuple[str, str, str]:
    if found is None:
        return NOT_MEASURED, "", ""
    return signed_percent(found.log_ratio), signed_interval(found.low, found.high), arms
