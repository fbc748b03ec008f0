"""The answer: headlines, a table, summary cards; and the overview of many comparisons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, Comparison, Outcome, RunComparison
from envcompare.fingerprint.facts import fact_name
from envcompare.fingerprint.sentences import SEPARATE
from envcompare.report.format.blocks import (
    Block,
    Column,
    Fold,
    Group,
    Heading,
    Items,
    Line,
    Link,
    Row,
    Section,
    Span,
    Table,
    Words,
)
from envcompare.report.format.marks import Axis
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    listed,
    margin_percent,
    paired_times,
    signed_percent,
)
from envcompare.report.sections.comparisons import ComparedRow, badges, change_line
from envcompare.report.sections.quantitytables import leading_tables
from envcompare.report.wording.headlines import (
    SPLIT_HREF,
    SPLIT_LINK,
    Headline,
    compared_differences,
    headlines,
    mean_log_ratio,
    split_arms,
    split_sentences,
)
from envcompare.report.wording.labels import cell_labels, compared_arms, fold_anchor, piece_word
from envcompare.report.wording.methodwords import (
    guard_cautions,
    level_sentence,
    mismatch_sentences,
    replication_sentence,
)
from envcompare.report.wording.profilewords import (
    NO_CONFOUNDER,
    ONE_COUNT,
    ONE_PROFILE,
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
    MOVED,
    SYMBOLS,
    WORDS,
    Verdict,
    clock_sentence,
    control_sentence,
    is_control_failed,
    margin_sentence,
)
from envcompare.run_folder.records import FactDifference
from envcompare.text import counted, one_line, visible

LEADS_IN_ANSWER: Final = 4  # of more environments, the first of them and a fold of the others
_FIRST_LEADS: Final = 2
ROWS_IN_ANSWER: Final = 8  # above, the answer has a row an environment and the overview is drawn
_FEW_ROWS: Final = 4  # whose remarks have room for three lines each
_ONE_LINE: Final = 48  # characters
_REFERENCE: Final = Span(text="● reference", style="badge reference")
_MOST_ITEMS: Final = 2
_MOST_CLOCKS: Final = 1
_MOST_BUILDS: Final = 4
_UNDECIDED: Final = "No difference was decided; what is inconclusive has no cause to look for yet."
_NOTHING: Final = "No difference beyond the margin was found, so there is none to explain."


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryCard:
    """A heading and its sentences."""

    heading: str
    items: tuple[Line, ...]


def _item(text: str, *, link: str = "", href: str = "") -> Line:
    """Return a sentence of a card, with a link into the page where there is one."""
    return Line(text=text, after=(Link(text=link, href=href),) if link else ())


def _with_link(items: list[Line], *, link: str, href: str) -> list[Line]:
    """Return the items with a link behind the last of them."""
    return [*items[:-1], replace(items[-1], after=(Link(text=link, href=href),))]


def summary_cards(run: RunComparison) -> tuple[SummaryCard, ...]:
    """Return the three cards."""
    verdicts = tuple(one for headline in headlines(run) for one in headline.verdicts)
    known = "No confounder, no failure and no failed control is known."
    nothing = _item(known if is_timed(run) else NO_CONFOUNDER)
    return (
        SummaryCard(heading="Is it real?", items=_is_it_real(run, verdicts)),
        SummaryCard(heading="Why?", items=_why(run, verdicts)),
        SummaryCard(heading="Before you rely on it", items=_cautions(run, verdicts) or (nothing,)),
    )


def _is_it_real(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Line, ...]:
    if not is_timed(run):
        return (_item(ONE_PROFILE if has_times(run) else ONE_COUNT),)
    items = (
        _item(replication_sentence(run)),
        *_controls(run, verdicts),
        _item(level_sentence(run)),
        _item(margin_sentence(run, name="The margin, drawn as a band,")),
    )
    return tuple(item for item in items if item.text)


def _controls(run: RunComparison, verdicts: tuple[Verdict, ...]) -> list[Line]:
    """Tell of the controls the worst, and that of the cell with the largest difference."""
    labels = cell_labels(run)
    cells = sorted(run.cells, key=lambda cell: (not is_control_failed(cell, run), -_width(cell)))
    told = {one.cell_id for one in _moved(verdicts)[:1]} | {cell.id for cell in cells[:1]}
    shown = [cell for cell in cells if cell.id in told or len(cells) <= _MOST_ITEMS]
    items = [_item(control_sentence(cell, label=labels[cell.id], run=run)) for cell in shown]
    if rest := len(cells) - len(shown):
        more = f"{counted(rest, 'more control')}, no worse"
        items = _with_link(items, link=more, href="#method")
    return items


def _moved(verdicts: tuple[Verdict, ...]) -> list[Verdict]:
    """Return what is slower or faster, the largest difference first."""
    moved = (one for one in verdicts if one.amount)
    return sorted(moved, key=lambda one: -abs(one.log_ratio or 0.0))


def _width(cell: CellSummary) -> float:
    """Return how wide the interval of a control is; one without an interval tells least."""
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
        split = _with_link(split, link=SPLIT_LINK, href=SPLIT_HREF)
    largest = _largest(verdicts, split=split_arms(run))
    return (*split, largest, *_why_of_profiles(run), *_clock(run, verdicts), *_on_purpose(run))


def _why_of_profiles(run: RunComparison) -> list[Line]:
    """Name the largest parts of a difference and the kernels that were replaced."""
    texts = why_sentences(run)[:_MOST_ITEMS] or (missing_sentence(run),)
    items = [_item(text) for text in texts]
    if run.profiles:
        items = _with_link(items, link=WHY_LINK, href=WHY_HREF)
    return items


def _clock(run: RunComparison, verdicts: tuple[Verdict, ...]) -> list[Line]:
    """Say of the largest differences what the clock saw beside the net time."""
    found = {(one.cell, one.arm): one for one in run.comparisons}
    lines = ((one, clock_sentence(found[one.cell_id, one.arm])) for one in _moved(verdicts))
    items = [_item(f"{one.arm}, {one.cell}. {line}") for one, line in lines if line]
    return items[:_MOST_CLOCKS]


def _on_purpose(run: RunComparison) -> list[Line]:
    """Name in one sentence what the environments vary on purpose."""
    varied = [(arm, _varied(run, arm)) for arm in compared_arms(run)]
    texts = [f"{arm} ({listed(names, most=3)})" for arm, names in varied if names]
    if not texts:
        return []
    text = f"Different on purpose: {listed(texts)}."
    return [_item(text, href="#environments", link="Environments")]


def _largest(verdicts: tuple[Verdict, ...], *, split: frozenset[str]) -> Line:
    moved = _moved(verdicts)
    clean = [one for one in moved if not one.is_confounded]
    if not moved:
        is_open = any(one.outcome == "inconclusive" for one in verdicts)
        return _item(_UNDECIDED if is_open else _NOTHING)
    if not clean:
        found = "Every difference found has a known confounder"
        if all(one.arm in split for one in moved):
            return _item(f"{found}; the parts above tell environment and software apart.")
        return _item(f"{found}; its cause cannot be told apart.")
    most = clean[0]
    return _item(
        f"Largest difference without a known confounder: {most.amount} {most.claim} in",
        href=f"#{fold_anchor(most.cell_id, most.arm)}",
        link=f"{most.arm}, {most.cell}",
    )


def _cautions(run: RunComparison, verdicts: tuple[Verdict, ...]) -> tuple[Line, ...]:
    return (
        *(_item(f"⚠ {text}") for text in mismatch_sentences(run)),
        *_confounders(run),
        *_failed_controls(run),
        *_guards(run),
        *_of_profiles(run),
        *_without_answer(verdicts),
        *_dropped(run),
    )


def _guards(run: RunComparison) -> list[Line]:
    found = [_item(text) for text in guard_cautions(run)]
    if len(found) <= _MOST_ITEMS:
        return found
    more = _item(f"{len(found) - _MOST_ITEMS} more cautions.", href="#method", link="Method")
    return [*found[:_MOST_ITEMS], more]


def _of_profiles(run: RunComparison) -> list[Line]:
    """Say what names of kernels show beside confounders, and what to mind of the profiles."""
    builds = build_sentences(run, beside=True) if is_timed(run) else ()
    texts = (*builds, *profile_cautions(run))
    items = [_item(f"⚠ {text}") for text in texts]
    if len(items) <= _MOST_ITEMS:
        return items
    more = f"{len(items) - _MOST_ITEMS} more about the profiles."
    return [*items[:_MOST_ITEMS], _item(more, href=WHY_HREF, link=WHY_LINK)]


def _confounders(run: RunComparison) -> list[Line]:
    """Name what differs besides the environment, arm by arm, and how to tell it apart."""
    by_arm: dict[str, list[FactDifference]] = {}
    for one in compared_differences(run):
        if one.fact_class == "confounder" and not one.part_of:
            by_arm.setdefault(one.arm, []).append(one)
    items, said, split = [], [], split_arms(run)
    for arm, found in by_arm.items():
        names = list(dict.fromkeys(fact_name(one.key) for one in found))
        if arm in split:
            text = f"⚠ {arm}: {listed(names, most=4)} differ besides the environment; see"
            items.append(_item(text, href=SPLIT_HREF, link=SPLIT_LINK))
            continue
        # the names of kernels are long, and stand under Why with all they show
        told = (one.evidence for one in found if not one.key.startswith("kernels."))
        seen = list(dict.fromkeys(text for text in told if text))
        remedies = list(dict.fromkeys(one.remedy for one in found if one.remedy))
        text = f"{listed(names, most=4)} may be the cause as well as the environment."
        how = f"{SEPARATE}{'; or '.join(remedies[:_MOST_ITEMS])}." if remedies else ""
        said.append((arm, " ".join((text, *seen[:_MOST_ITEMS], how)).rstrip()))
    items += [_item(f"⚠ {text}") for text in by_arms(said)]
    return _first(items, "more environments with confounders")


def _first(items: list[Line], rest: str) -> list[Line]:
    if len(items) <= _MOST_ITEMS:
        return items
    more = f"{len(items) - _MOST_ITEMS} {rest}."
    return [*items[:_MOST_ITEMS], _item(more, href="#environments", link="Environments")]


def _failed_controls(run: RunComparison) -> list[Line]:
    labels = cell_labels(run)
    failed = [labels[cell.id] for cell in run.cells if is_control_failed(cell, run)]
    if not failed:
        return []
    return [_item(f"The control failed in {listed(failed)}: nothing small is claimed there.")]


def _without_answer(verdicts: tuple[Verdict, ...]) -> list[Line]:
    items, total = [], counted(len(verdicts), "comparison")
    for outcome, word in (("failed", "failed"), ("not-run", "not run")):
        count = sum(one.outcome == outcome for one in verdicts)
        if count:
            text = f"{count} of {total} {word}: left out of every mean."
            items.append(_item(text, href="#failures", link="Failures"))
    undecided = sum(one.outcome == "inconclusive" for one in verdicts)
    if undecided:
        verb = "is" if undecided == 1 else "are"
        text = f"{undecided} of {total} {verb} inconclusive: that is not “no difference”."
        items.append(_item(text))
    return items


def _dropped(run: RunComparison) -> list[Line]:
    counts = (
        (sum(cell.dropped_rounds for cell in run.cells), "incomplete round"),
        (run.torn_lines, "lost or torn line"),
    )
    parts = [counted(count, noun) for count, noun in counts if count]
    return [_item(f"Left out: {listed(parts)}.", href="#method", link="Method")] if parts else []


def _varied(run: RunComparison, arm: str) -> list[str]:
    found = (
        one
        for one in compared_differences(run)
        if one.arm == arm and one.fact_class == "varied" and not one.part_of
    )
    return list(dict.fromkeys(fact_name(one.key) for one in found))


def answer_section(
    run: RunComparison,
    leads: tuple[Headline, ...],
    rows: tuple[ComparedRow, ...],
    axis: Axis,
    *,
    folds: Mapping[str, str],
) -> Section:
    """Return headlines, the table of the answer, and the cards below it."""
    first = len(leads) if len(leads) <= LEADS_IN_ANSWER else _FIRST_LEADS
    compared = tuple(row for row in rows if not row.is_control)
    tables: tuple[Block, ...] = ()
    if is_timed(run):
        is_many = len(compared) > ROWS_IN_ANSWER
        table = arms_table(run, leads, compared, axis) if is_many else (
            answer_table(run, compared, axis, folds=folds)
        )  # fmt: skip
        tables = (table,)
    further = Fold(
        summary=f"{len(leads) - first} more environments in sentences",
        style="leads",
        blocks=tuple(_lead(one, style="further") for one in leads[first:]),
    )
    cards = tuple(
        Group(blocks=(Heading(text=card.heading), Items(items=card.items)))
        for card in summary_cards(run)
    )
    return Section(
        anchor="answer",
        title="Answer",
        is_title_hidden=True,
        blocks=(
            *(_lead(one, style="lead") for one in leads[:first]),
            *tables,
            *leading_tables(run),
            *(further,) * (len(leads) > first),
            Group(style="three", blocks=cards),
        ),
    )


def _lead(headline: Headline, *, style: str) -> Line:
    caution = f"⚠ {headline.caution}" if headline.caution else ""
    parts = (("rest", headline.rest), ("caution", caution), ("candidates", headline.candidates))
    return Line(
        style=style,
        before=(_badge(headline),),
        strong=headline.lead,
        after=tuple(Span(text=text, style=name) for name, text in parts if text),
    )


def _badge(headline: Headline) -> Span:
    text = f"{headline.symbol} {headline.badge}"
    return Span(text=text, style=f"badge {headline.outcome}")


def answer_table(
    run: RunComparison, rows: tuple[ComparedRow, ...], axis: Axis, *, folds: Mapping[str, str]
) -> Table:
    """Return a row for each comparison, the reference above them."""
    piece, ends = piece_word(run), f"{run.reference_arm} → this"
    return Table(
        label="Answer table",
        caption=_answer_caption(run),
        is_caption_hidden=True,
        columns=(
            Column(head="Environment", kind="name", is_row_head=True),
            Column(head="Workload", kind="name"),
            Column(head="Verdict", kind="verdict"),
            Column(head=f"Change of\n{piece} time", kind="number"),
            Column(kind="interval", axis=axis),
            Column(head=f"Median {piece}\n{ends}", kind="figure"),
            Column(head=f"Engine start\n{ends}", kind="figure"),
        ),
        rows=(
            Row(
                cells=(
                    run.reference_arm,
                    Line(before=(_REFERENCE,), text=reference_state(run), style="state"),
                )
            ),
            *(_answer_row(run, row, folds=folds, is_cut=len(rows) > _FEW_ROWS) for row in rows),
        ),
    )


def _answer_caption(run: RunComparison) -> str:
    margin = margin_percent(run.margin)
    return f"Each environment against {run.reference_arm}, margin ±{margin}"


def _answer_row(
    run: RunComparison, row: ComparedRow, *, folds: Mapping[str, str], is_cut: bool
) -> Row:
    words = row.verdict
    elsewhere = "failures" if words.outcome in {"failed", "not-run"} else row.anchor
    remark = _cut(words) if is_cut else words.remark
    style = "line" if remark and len(remark) <= _ONE_LINE else ""
    return Row(
        attributes=(("data-answer", words.outcome),),
        cells=(
            words.arm,
            Line(text=words.cell, href=f"#{folds.get(row.anchor) or elsewhere}"),
            Line(before=badges(words), below=(remark,), style=style),
            change_line(words),
            Line(marks=(row.mark,) if row.mark else ()),
            row.steps,
            _engine_start(run, row.comparison),
        ),
    )


def _cut(words: Verdict) -> str:
    """Keep the answer on the first screen; the whole remark stands in All comparisons."""
    if len(words.remark) <= _ONE_LINE:
        return words.remark
    if len(words.brief) <= _ONE_LINE:
        return words.brief
    start = words.remark[: _ONE_LINE - 1]
    return f"{start.rpartition(' ')[0] or start}…"


def _engine_start(run: RunComparison, comparison: Comparison) -> str:
    """Return "28.5 → 307 ms": how long the engine takes before the workload is on."""
    starts = [start for start in run.startup if start.cell == comparison.cell]
    starts.sort(key=lambda start: start.page_cache != "cold")  # a warm start overrules a cold one
    medians = {
        start.arm: part.median_s
        for start in starts
        for part in start.parts
        if part.phase == "engine"
    }
    return paired_times(medians.get(run.reference_arm), medians.get(comparison.arm))


def reference_state(run: RunComparison) -> str:
    """Say in how many cells the reference was measured, and what became of it elsewhere."""
    measured = sum(
        any(steps.arm == run.reference_arm for steps in cell.step_times) for cell in run.cells
    )
    parts = [f"measured in {measured} of {counted(len(run.cells), 'cell')}"]
    parts += [
        f"{arm.state} on {arm.host}: {one_line(arm.reason)}"
        for arm in run.arms
        if arm.arm == run.reference_arm and arm.state != "ok"
    ]
    return "; ".join(parts)


def arms_table(
    run: RunComparison, leads: tuple[Headline, ...], rows: tuple[ComparedRow, ...], axis: Axis
) -> Table:
    """Return a row for each environment, where the comparisons are many."""
    return Table(
        label="Answer table",
        caption=_answer_caption(run),
        is_caption_hidden=True,
        columns=(
            Column(head="Environment", kind="name", is_row_head=True),
            Column(head="Verdict"),
            Column(head="Mean change", note=f"of {piece_word(run)} time", kind="number"),
            Column(kind="interval", axis=axis),
            Column(head="Comparisons"),
        ),
        rows=(
            Row(
                cells=(
                    run.reference_arm,
                    Line(before=(_REFERENCE,)),
                    "",
                    "",
                    reference_state(run),
                )
            ),
            *(_arm_row(headline, rows) for headline in leads),
        ),
    )


def _arm_row(headline: Headline, rows: tuple[ComparedRow, ...]) -> Row:
    """Return how many cells of an environment had which outcome, and all their marks."""
    counts = Counter(words.outcome for words in headline.verdicts)
    mean = mean_log_ratio(headline.verdicts)
    cells = {(words.cell_id, words.arm) for words in headline.verdicts}
    drawn = [row.mark for row in rows if (row.verdict.cell_id, row.verdict.arm) in cells]
    marks = {(one.outcome, one.x): one for one in drawn if one is not None}  # one at a place
    outcomes = (f"{counts[one]} {WORDS[one]}" for one in SYMBOLS if counts[one])
    return Row(
        cells=(
            headline.arm,
            Line(before=(_badge(headline),)),
            Line(strong=NOT_MEASURED if mean is None else signed_percent(mean)),
            Line(marks=tuple(marks.values()), is_overlaid=True),
            Line(text=", ".join(outcomes), below=(_confounded(headline),)),
        )
    )


def _confounded(headline: Headline) -> str:
    """Say how many comparisons are confounded, and the mean of the others."""
    count = sum(words.is_confounded for words in headline.verdicts)
    if not count:
        return ""
    mean = mean_log_ratio(tuple(one for one in headline.verdicts if not one.is_confounded))
    without = "" if mean is None else f"; without them {signed_percent(mean)} in the mean"
    return f"⚠ {count} confounded{without}"


def overview_section(run: RunComparison, rows: tuple[ComparedRow, ...]) -> Section | None:
    """Return the matrix of workloads and environments, None where the answer has every row."""
    compared = [row for row in rows if not row.is_control]
    if len(compared) <= ROWS_IN_ANSWER:
        return None
    groups: dict[tuple[str, str], list[ComparedRow]] = {}
    for row in compared:
        place = (row.comparison.workload, row.comparison.arm)
        groups.setdefault(place, []).append(row)
    is_by_host = all(
        len({row.comparison.host for row in group}) == len(group) for group in groups.values()
    )
    hosts = tuple(dict.fromkeys(row.comparison.host for row in compared)) if is_by_host else ()
    each = f"host, in the order of {', '.join(hosts)}" if len(hosts) > 1 else "cell"
    intro = (
        f"The mean of the cells against {run.reference_arm}, and one symbol for each {each}: "
        "◀ faster, ≈ equivalent, ▶ slower, ? inconclusive, ✕ failed, – not run, ⚠ confounded."
    )
    return Section(
        anchor="overview",
        title="Overview: workload × environment",
        link="Overview",
        blocks=(Line(text=intro), _matrix(groups, hosts)),
    )


def _matrix(groups: Mapping[tuple[str, str], list[ComparedRow]], hosts: tuple[str, ...]) -> Table:
    arms = tuple(dict.fromkeys(arm for _, arm in groups))
    return Table(
        label="Overview table",
        style="matrix",
        columns=(
            Column(head="Workload", kind="name", is_row_head=True),
            *(Column(head=visible(arm)) for arm in arms),
        ),
        rows=tuple(
            Row(
                cells=(
                    workload,
                    *(_matrix_cell(groups.get((workload, arm), []), hosts) for arm in arms),
                )
            )
            for workload in dict.fromkeys(workload for workload, _ in groups)
        ),
    )


def _matrix_cell(rows: list[ComparedRow], hosts: tuple[str, ...]) -> Words:
    """Return mean, outcome and symbols of one workload in one environment."""
    if not rows:
        return "– not planned"
    verdicts = tuple(row.verdict for row in rows)
    mean = mean_log_ratio(verdicts)
    outcome, word = _outcome_of(verdicts)
    return Line(
        strong=signed_percent(mean) if mean is not None else "",
        text=word,
        href=f"#{rows[0].anchor}",
        style=outcome or "",
        after=(Span(text=_symbols(rows, hosts), style="symbols"),),
    )


def _outcome_of(verdicts: tuple[Verdict, ...]) -> tuple[Outcome | None, str]:
    """Return what most of the cells are, the one way in which any moved first, and in how many."""
    counts = Counter(words.outcome for words in verdicts)
    moved = [outcome for outcome in MOVED if counts[outcome]]
    if len(moved) == len(MOVED):
        return None, "faster and slower"
    outcome = moved[0] if moved else counts.most_common(1)[0][0]
    word = WORDS[outcome]
    if counts[outcome] == len(verdicts):
        return outcome, word
    return outcome, f"{counts[outcome]} of {len(verdicts)} {word}"


def _symbols(rows: list[ComparedRow], hosts: tuple[str, ...]) -> str:
    """Return a symbol for each host in their order, a dot where nothing was planned on one."""
    symbols = [row.verdict.symbol + "⚠" * row.verdict.is_confounded for row in rows]
    if not hosts:
        return " ".join(symbols)
    by_host = dict(zip((row.comparison.host for row in rows), symbols, strict=True))
    return " ".join(by_host.get(host, "·") for host in hosts)
