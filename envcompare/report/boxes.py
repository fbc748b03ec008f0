"""The three boxes under the answer: is it real, why, and what to know before relying on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.fingerprint.remedies import SEPARATE
from envcompare.fingerprint.words import fact_name
from envcompare.records import FactDifference
from envcompare.report.decomposed import HREF, LINK, split_arms, split_sentences
from envcompare.report.guards import guard_cautions, mismatch_sentences
from envcompare.report.headlines import Headline, compared_differences
from envcompare.report.labels import cell_labels
from envcompare.report.numbers import listed, margin_percent
from envcompare.report.profilewords import (
    NOT_TIMED,
    WHY_HREF,
    WHY_LINK,
    betrayal_sentences,
    is_timed,
    missing_sentence,
    profile_cautions,
    why_sentences,
)
from envcompare.report.verdicts import (
    Verdict,
    control_sentence,
    is_control_failed,
    margin_sentence,
    stretch_line,
)
from envcompare.texts import counted

_MOST_ITEMS: Final = 2
_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One sentence of a box, with a link into the page."""

    text: str
    href: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A heading and its sentences."""

    heading: str
    items: tuple[Item, ...]


def boxes(run: RunComparison, found: tuple[Headline, ...]) -> tuple[Box, ...]:
    """Return the three boxes."""
    verdicts = tuple(one for headline in found for one in headline.verdicts)
    nothing = Item(text="No confounder, no failure and no failed control is known.")
    return (
        Box(heading="Is it real?", items=_is_it_real(run)),
        Box(heading="Why?", items=_why(run, verdicts)),
        Box(heading="Before you rely on it", items=_cautions(run, verdicts) or (nothing,)),
    )


def replication_sentence(run: RunComparison) -> str:
    """Say what the intervals are made of: generations in restarts, never single steps."""
    primaries = [one.primary for one in _compared(run) if one.primary is not None]
    if not primaries:
        return "There is no interval: no comparison was measured."
    processes = [one.rounds for one in primaries if one.unit == "process"]
    if len(processes) == len(primaries):
        return f"Intervals come from {_range(processes, 'round')} of whole processes a cell."
    primaries = [one for one in primaries if one.unit != "process"]
    generations = _range([one.generations for one in primaries], "generation")
    restarts = _range([one.restarts for one in primaries], "restart")
    beside = f"; of commands, from {_range(processes, 'round')} of processes" if processes else ""
    return (
        f"Intervals come from {generations} a cell (fresh starts of the workers, in {restarts}), "
        f"not from the steps inside them{beside}."
    )


def level_sentence(run: RunComparison) -> str:
    """Say how sure the intervals are, and what they were widened for."""
    primaries = [one.primary for one in _compared(run) if one.primary is not None]
    if not any(one.is_widened for one in primaries):
        return ""
    if run.screen:
        return _screen_sentence(run)
    text = "The intervals hold at 95 %, widened for looking at them while measuring"
    if run.planned_comparisons > 1:
        levels = {margin_percent(one.level) for one in primaries if one.is_widened}
        at = f" (each at {levels.pop()} by itself)" if len(levels) == 1 else ""
        text += f" and for all {run.planned_comparisons} planned comparisons together{at}"
    return f"{text}."


def _screen_sentence(run: RunComparison) -> str:
    """Say what screening promises: less than the default, of more comparisons."""
    return (
        f"This run screened {counted(run.planned_comparisons, 'comparison')} (--screen, Benjamini "
        "and Hochberg): of those called slower or faster about 5 % are false at most, and about "
        "5 % of their intervals miss the truth. The other intervals hold at 95 % each, widened for "
        "looking at them while measuring and not for their number."
    )


def _is_it_real(run: RunComparison) -> tuple[Item, ...]:
    if not is_timed(run):
        return (Item(text=NOT_TIMED),)
    labels = cell_labels(run)
    ordered = sorted(run.cells, key=lambda cell: not is_control_failed(cell, run))
    controls = [control_sentence(cell, label=labels[cell.id], run=run) for cell in ordered]
    items = [Item(text=replication_sentence(run))]
    items += [Item(text=text) for text in controls[:2]]
    if len(controls) > 2:
        more = f"{len(controls) - 2} more controls"
        items.append(Item(text="", href="#method", link=f"{more} under Method"))
    items += [
        Item(text=level_sentence(run)),
        Item(text=margin_sentence(run, name="The margin, drawn as a band,")),
    ]
    return tuple(item for item in items if item.text or item.href)


def _why(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Item, ...]:
    timed = _why_of_times(run, verdicts) if is_timed(run) else []
    return (*timed, *_why_of_profiles(run))


def _why_of_profiles(run: RunComparison) -> list[Item]:
    """Name the largest parts of a difference and the kernels that were replaced."""
    texts = why_sentences(run)[:_MOST_ITEMS] or (missing_sentence(run),)
    items = [Item(text=text) for text in texts]
    if run.profiles:
        items[-1] = replace(items[-1], href=WHY_HREF, link=WHY_LINK)
    return items


def _why_of_times(run: RunComparison, verdicts: tuple[Verdict, ...]) -> list[Item]:
    items = [Item(text=text) for text in split_sentences(run)[:_MOST_ITEMS]]
    if items:
        items[-1] = replace(items[-1], href=HREF, link=LINK)
    items.append(Item(text=_largest(verdicts, split=split_arms(run))))
    moved = {(one.cell_id, one.arm) for one in verdicts if one.amount}
    for one in _compared(run):
        line = stretch_line(one)
        if line and (one.cell, one.arm) in moved and len(items) < _MOST_REASONS:
            label = cell_labels(run)[one.cell]
            items.append(Item(text=f"{one.arm}, {label}: {line}."))
    varied = [(arm, _varied(run, arm)) for arm in dict.fromkeys(one.arm for one in verdicts)]
    items += _first(
        [
            Item(text=f"{arm} varies on purpose: {listed(names, most=4)}.")
            for arm, names in varied
            if names
        ],
        "more environments vary something on purpose",
    )
    return items


def _largest(verdicts: tuple[Verdict, ...], *, split: frozenset[str]) -> str:
    moved = [one for one in verdicts if one.amount]
    clean = [one for one in moved if not one.is_confounded]
    if not moved:
        is_open = any(one.outcome == "inconclusive" for one in verdicts)
        return (
            "No difference was decided; what is inconclusive has no cause to look for yet."
            if is_open
            else "No difference beyond the margin was found, so there is none to explain."
        )
    if not clean:
        found = "Every difference found has a known confounder"
        if all(one.arm in split for one in moved):
            return f"{found}; the parts above tell environment and software apart."
        return f"{found}; its cause cannot be told apart."
    most = max(clean, key=lambda one: abs(one.log_ratio or 0.0))
    return f"Largest difference without a known confounder: {most.arm}, {most.cell}, {most.text}."


def _cautions(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Item, ...]:
    return (
        *(Item(text=f"⚠ {text}") for text in mismatch_sentences(run)),
        *_confounders(run),
        *_failed_controls(run),
        *_guards(run),
        *_of_profiles(run),
        *_without_answer(verdicts),
        *_dropped(run),
    )


def _guards(run: RunComparison) -> list[Item]:
    found = [Item(text=text) for text in guard_cautions(run)]
    if len(found) <= _MOST_ITEMS:
        return found
    more = Item(text=f"{len(found) - _MOST_ITEMS} more cautions.", href="#method", link="Method")
    return [*found[:_MOST_ITEMS], more]


def _of_profiles(run: RunComparison) -> list[Item]:
    """Say what names of kernels betray beside confounders, and what to mind of the profiles."""
    texts = (*betrayal_sentences(run, beside=True), *profile_cautions(run))
    items = [Item(text=f"⚠ {text}") for text in texts]
    if len(items) <= _MOST_ITEMS:
        return items
    more = f"{len(items) - _MOST_ITEMS} more about the profiles."
    return [*items[:_MOST_ITEMS], Item(text=more, href=WHY_HREF, link=WHY_LINK)]


def _confounders(run: RunComparison) -> list[Item]:
    """Name what differs besides the environment, arm by arm, and how to tell it apart."""
    by_arm: dict[str, list[FactDifference]] = {}
    for one in compared_differences(run):
        if one.fact_class == "confounder" and not one.part_of:
            by_arm.setdefault(one.arm, []).append(one)
    items, split = [], split_arms(run)
    for arm, found in by_arm.items():
        names = list(dict.fromkeys(fact_name(one.key) for one in found))
        if arm in split:
            text = f"⚠ {arm}: {listed(names, most=4)} differ besides the environment; see"
            items.append(Item(text=text, href=HREF, link=LINK))
            continue
        # the names of kernels are long, and stand under Why with all they betray
        told = (one.evidence for one in found if not one.key.startswith("kernels."))
        seen = list(dict.fromkeys(text for text in told if text))
        remedies = list(dict.fromkeys(one.remedy for one in found if one.remedy))
        text = f"⚠ {arm}: {listed(names, most=4)} may be the cause as well as the environment."
        how = f"{SEPARATE}{'; or '.join(remedies[:_MOST_ITEMS])}." if remedies else ""
        items.append(Item(text=" ".join((text, *seen[:_MOST_ITEMS], how)).rstrip()))
    return _first(items, "more environments with confounders")


def _first(items: list[Item], rest: str) -> list[Item]:
    if len(items) <= _MOST_ITEMS:
        return items
    more = f"{len(items) - _MOST_ITEMS} {rest}."
    return [*items[:_MOST_ITEMS], Item(text=more, href="#environments", link="Environments")]


def _failed_controls(run: RunComparison) -> list[Item]:
    labels = cell_labels(run)
    failed = [labels[cell.id] for cell in run.cells if is_control_failed(cell, run)]
    if not failed:
        return []
    return [Item(text=f"The control failed in {listed(failed)}: nothing small is claimed there.")]


def _without_answer(verdicts: tuple[Verdict, ...]) -> list[Item]:
    items, total = [], counted(len(verdicts), "comparison")
    for outcome, word in (("failed", "failed"), ("not-run", "not run")):
        count = sum(one.outcome == outcome for one in verdicts)
        if count:
            text = f"{count} of {total} {word}; no mean holds them."
            items.append(Item(text=text, href="#failures", link="Failures"))
    undecided = sum(one.outcome == "inconclusive" for one in verdicts)
    if undecided:
        text = f"{undecided} of {total} inconclusive: that is not “no difference”."
        items.append(Item(text=text))
    return items


def _dropped(run: RunComparison) -> list[Item]:
    counts = (
        (sum(cell.dropped_rounds for cell in run.cells), "incomplete round"),
        (run.torn_lines, "torn line"),
    )
    parts = [counted(count, noun) for count, noun in counts if count]
    return (
        [Item(text=f"Left out: {listed(parts)}.", href="#method", link="Method")] if parts else []
    )


def _varied(run: RunComparison, arm: str) -> list[str]:
    found = (
        one
        for one in compared_differences(run)
        if one.arm == arm and one.fact_class == "varied" and not one.part_of
    )
    return list(dict.fromkeys(fact_name(one.key) for one in found))


def _compared(run: RunComparison) -> list[Comparison]:
    return [one for one in run.comparisons if not one.is_control and one.outcome != "reference"]


def _range(counts: list[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return counted(high, noun) if low == high else f"{low} to {counted(high, noun)}"
