"""The summary cards below the answer: is it real, why, and what to know before relying on it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

from envcompare.analysis.model import (
    CellSummary,
    RunComparison,
)
from envcompare.fingerprint import fact
from envcompare.fingerprint.sentences import SEPARATE
from envcompare.report import Line, Link
from envcompare.report.wording import (
    ONE_PROFILE,
    cell_labels,
    compared_arms,
    fold_anchor,
    has_lines,
    listed,
)
from envcompare.report.wording.causewords import (
    as_run_sentence,
    ladder_sentences,
    split_sentences,
    thread_lines,
)
from envcompare.report.wording.headlines import (
    Headline,
    compared_differences,
    headlines,
    split_arms,
)
from envcompare.report.wording.methodwords import (
    guard_cautions,
    host_sentences,
    level_sentence,
    mismatch_sentences,
    replication_sentence,
)
from envcompare.report.wording.profilewords import (
    HINTS,
    NO_CONFOUNDER,
    ONE_COUNT,
    WHY_HREF,
    WHY_LINK,
    build_sentences,
    by_arms,
    has_times,
    is_timed,
    missing_sentence,
    profile_cautions,
    why_sentences,
)
from envcompare.report.wording.verdicts import (
    EXPLAINED,
    FIRST_CONTROLS,
    Verdict,
    clock_sentence,
    control_sentence,
    is_control_failed,
    margin_sentence,
)
from envcompare.run_folder.records import FactDifference
from envcompare.text import counted

_MOST_ITEMS: Final = 2
_MOST_CLOCKS: Final = 1
_MOST_BUILDS: Final = 4
_UNDECIDED: Final = "No comparison is slower or faster, so there is no cause to look for yet."
_NOTHING: Final = "No comparison is slower or faster."
_SPLIT_HREF: Final = "#split"
_SPLIT_LINK: Final = "Environment or software?"


class _Card(NamedTuple):
    """A heading and the sentences below it."""

    heading: str
    items: tuple[Line, ...]


class _SummaryCards(NamedTuple):
    """The cards in the order of the page."""

    certainty: _Card
    cause: _Card
    cautions: _Card


def _item(text: str, *, link: str = "", href: str = "") -> Line:
    """Return a sentence of a card, with an optional link into the page."""
    return Line(text=text, after=(Link(text=link, href=href),) if link else ())


def _with_link(items: list[Line], *, link: str, href: str) -> list[Line]:
    return [*items[:-1], replace(items[-1], after=(Link(text=link, href=href),))]


def summary_cards(run: RunComparison, leads: tuple[Headline, ...] | None = None) -> _SummaryCards:
    """Return the three cards with their sentences; `leads` are the headlines, if known."""
    leads = headlines(run) if leads is None else leads
    verdicts = tuple(verdict for headline in leads for verdict in headline.verdicts)
    known = "No confounder, no failure and no failed control is known."
    is_proven = run.proof is not None and run.proof.outcome in {"cause", "contributes"}
    if has_lines(run) and not is_proven:
        known = "The cause is not proven: lines may differ in more than was read."
    unknown = HINTS if build_sentences(run) else NO_CONFOUNDER
    nothing = _item(known if is_timed(run) else unknown)
    return _SummaryCards(
        certainty=_Card("Is it real?", _is_it_real(run, verdicts)),
        cause=_Card("Why?", _why(run, verdicts)),
        cautions=_Card("Before you rely on it", _cautions(run, verdicts) or (nothing,)),
    )


def _is_it_real(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Line, ...]:
    if not is_timed(run):
        return (_item(ONE_PROFILE if has_times(run) else ONE_COUNT),)
    labels = cell_labels(run)
    cells = sorted(run.cells, key=lambda cell: (not is_control_failed(cell, run), *_doubt(cell)))
    leading = {one.cell_id for one in _moved(verdicts)[:1]} | {cell.id for cell in cells[:1]}
    shown = [cell for cell in cells if cell.id in leading or len(cells) <= FIRST_CONTROLS]
    controls = [_item(control_sentence(cell, label=labels[cell.id], run=run)) for cell in shown]
    if rest := len(cells) - len(shown):
        is_ranked = all(math.isfinite(_width(cell)) for cell in cells)
        more = f"{counted(rest, 'more control')}{', no worse' * is_ranked}"
        controls = _with_link(controls, link=more, href="#method")
    items = (
        _item(replication_sentence(run)),
        *controls,
        _item(level_sentence(run)),
        _item(margin_sentence(run, name="The margin")),
    )
    return tuple(item for item in items if item.text)


def _moved(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    moved = (verdict for verdict in verdicts if verdict.amount)
    return sorted(moved, key=lambda verdict: -abs(verdict.log_ratio or 0.0))


def _doubt(cell: CellSummary) -> tuple[float, float]:
    """Return the sort key of controls: widest interval first, then largest change without one."""
    difference = abs(cell.noise_floor.log_ratio) if cell.noise_floor else 0.0
    return -_width(cell), -difference


def _width(cell: CellSummary) -> float:
    floor = cell.noise_floor
    if floor is None or floor.low is None or floor.high is None:
        return math.inf
    return floor.high - floor.low


def _why(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Line, ...]:
    if not is_timed(run):
        builds = build_sentences(run)[:_MOST_BUILDS]
        return (*_why_of_profiles(run), *(_item(text) for text in builds))
    split = [_item(text) for text in split_sentences(run)[:_MOST_ITEMS]]
    if split:
        split = _with_link(split, link=_SPLIT_LINK, href=_SPLIT_HREF)
    rungs = [_item(text) for text in ladder_sentences(run)[:_MOST_ITEMS]]
    if rungs:
        rungs = _with_link(rungs, link="Ladder", href="#ladder")
    largest = _largest(verdicts, split=split_arms(run), are_lines=has_lines(run))
    items = [_item(text) for text in thread_lines(run)]
    comparisons = {(comparison.cell, comparison.arm): comparison for comparison in run.comparisons}
    lines = ((one, clock_sentence(comparisons[one.cell_id, one.arm])) for one in _moved(verdicts))
    clock_items = [_item(f"{one.arm}, {one.cell}. {line}") for one, line in lines if line]
    return (
        *rungs,
        *split,
        largest,
        *_first(items, "more about threads.", link="Environments", href="#environments"),
        *_why_of_profiles(run),
        *clock_items[:_MOST_CLOCKS],
        *_on_purpose(run) * any(verdict.outcome in EXPLAINED for verdict in verdicts),
    )


def _why_of_profiles(run: RunComparison) -> list[Line]:
    """Name the largest parts of a difference and the kernels that were replaced."""
    texts = why_sentences(run)[:_MOST_ITEMS] or (missing_sentence(run),)
    items = [_item(text) for text in texts]
    if run.profiles:
        items = _with_link(items, link=WHY_LINK, href=WHY_HREF)
    return items


def _on_purpose(run: RunComparison) -> list[Line]:
    varied: dict[str, dict[str, None]] = {arm: {} for arm in compared_arms(run)}
    for difference in compared_differences(run):
        if difference.fact_class == "varied" and not difference.part_of:
            varied[difference.arm][fact(difference.key).name] = None
    texts = [f"{arm} ({listed(list(names), most=3)})" for arm, names in varied.items() if names]
    if not texts:
        return []
    text = f"Different by design: {listed(texts)}."
    return [_item(text, href="#environments", link="Environments")]


def _largest(verdicts: tuple[Verdict, ...], *, split: frozenset[str], are_lines: bool) -> Line:
    moved = _moved(verdicts)
    clean = [one for one in moved if not one.is_confounded]
    if not moved:
        is_open = any(verdict.outcome == "inconclusive" for verdict in verdicts)
        return _item(_UNDECIDED if is_open else _NOTHING)
    if not clean:
        opening = "Every difference found has a known confounder"
        if all(one.arm in split for one in moved):
            return _item(f"{opening}; the parts above tell environment and software apart.")
        return _item(f"{opening}; its cause cannot be determined.")
    most = clean[0]
    return _item(
        f"Largest difference{'' if are_lines else ' without a known confounder'}: {most.change} in",
        href=f"#{fold_anchor(most.cell_id, most.arm)}",
        link=f"{most.arm}, {most.cell}",
    )


def _cautions(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Line, ...]:
    cautions = [_item(text) for text in guard_cautions(run)]
    builds = build_sentences(run, with_confounders=False) if is_timed(run) else ()
    items = [_item(f"⚠ {text}") for text in (*builds, *profile_cautions(run))]
    return (
        *(_item(f"⚠ {text}") for text in (*mismatch_sentences(run), *host_sentences(run))),
        *_confounders(run),
        *_failed_controls(run),
        *_first(cautions, "more cautions.", link="Method", href="#method"),
        *(_item(text) for text in filter(None, (as_run_sentence(run),))),
        *_first(items, "more about the profiles.", link=WHY_LINK, href=WHY_HREF),
        *_without_answer(run, verdicts),
        *_dropped(run),
    )


def _confounders(run: RunComparison) -> list[Line]:
    """Name what differs besides the environment, arm by arm, and how to separate its effect."""
    by_arm: dict[str, list[FactDifference]] = {}
    for difference in compared_differences(run):
        if difference.fact_class == "confounder" and not difference.part_of:
            by_arm.setdefault(difference.arm, []).append(difference)
    items, said, split = [], [], split_arms(run)
    for arm, differences in by_arm.items():
        names = list(dict.fromkeys(fact(one.key).name for one in differences))
        if arm in split:
            text = f"⚠ {arm}: {listed(names, most=4)} differ too; see"
            items.append(_item(text, href=_SPLIT_HREF, link=_SPLIT_LINK))
            continue
        # kernel names are long; the Why section lists them in full
        texts = (one.evidence for one in differences if not one.key.startswith("kernels."))
        seen = list(dict.fromkeys(text for text in texts if text))
        remedies = list(dict.fromkeys(one.remedy for one in differences if one.remedy))
        text = f"{listed(names, most=4)} may be the cause as well as the environment."
        how = f"{SEPARATE}{'; or '.join(remedies[:_MOST_ITEMS])}." if remedies else ""
        said.append((arm, " ".join((text, *seen[:_MOST_ITEMS], how)).rstrip()))
    items += [_item(f"⚠ {text}") for text in by_arms(said)]
    rest = "more environments with confounders."
    return _first(items, rest, link="Environments", href="#environments")


def _first(items: list[Line], rest: str, *, link: str, href: str) -> list[Line]:
    """Return the first items, and the number of further items elsewhere."""
    more = len(items) - _MOST_ITEMS
    return [*items[:_MOST_ITEMS], *[_item(f"{more} {rest}", link=link, href=href)] * (more > 0)]


def _failed_controls(run: RunComparison) -> list[Line]:
    labels = cell_labels(run)
    failed = [labels[cell.id] for cell in run.cells if is_control_failed(cell, run)]
    if not failed:
        return []
    return [_item(f"The control failed in {listed(failed)}: nothing small is claimed there.")]


def _without_answer(run: RunComparison, verdicts: tuple[Verdict, ...]) -> list[Line]:
    items, total = [], counted(len(verdicts), "comparison")
    skipped = {
        (comparison.cell, comparison.arm)
        for comparison in run.comparisons
        if comparison.is_skipped_size
    }
    left = [verdict for verdict in verdicts if (verdict.cell_id, verdict.arm) not in skipped]
    if len(left) < len(verdicts):
        text = f"{len(verdicts) - len(left)} of {total} not run: the batch does not fit."
        items.append(_item(text, href="#batches", link="Batch sizes"))
    for outcome, word in (("failed", "failed"), ("not-run", "not run")):
        count = sum(one.outcome == outcome for one in left)
        if count:
            text = f"{count} of {total} {word}: left out of every mean."
            items.append(_item(text, href="#failures", link="Failures"))
    undecided = sum(verdict.outcome == "inconclusive" for verdict in verdicts)
    if undecided:
        verb = "is" if undecided == 1 else "are"
        text = f"{undecided} of {total} {verb} inconclusive: a difference may exist."
        items.append(_item(text))
    return items


def _dropped(run: RunComparison) -> list[Line]:
    counts = (
        (sum(cell.dropped_rounds for cell in run.cells), "incomplete round"),
        (run.course.torn_lines, "lost or torn line"),
    )
    parts = [counted(count, noun) for count, noun in counts if count]
    return [_item(f"Left out: {listed(parts)}.", href="#method", link="Method")] if parts else []
