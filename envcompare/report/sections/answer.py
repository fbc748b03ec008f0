"""The answer: headlines, table and cards; then the overviews of comparisons and of hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from envcompare.analysis.model import Comparison, Outcome, RunComparison
from envcompare.report import (
    Axis,
    Block,
    Column,
    Fold,
    Group,
    Heading,
    Items,
    Line,
    Row,
    Section,
    Span,
    Table,
    Words,
    grid_of,
    table_of,
)
from envcompare.report.sections.cards import summary_cards
from envcompare.report.sections.comparisons import TYPICAL, ComparedRow, badges
from envcompare.report.sections.profiletables import gpu_tables, leading_tables
from envcompare.report.wording import (
    NOT_MEASURED,
    hosts_work,
    margin_percent,
    paired_times,
    piece_word,
    reference_name,
    signed_interval,
    signed_percent,
    unsigned_percent,
)
from envcompare.report.wording.headlines import Headline, mean_log_ratio, odd_names
from envcompare.report.wording.methodwords import caution_of
from envcompare.report.wording.profilewords import is_timed
from envcompare.report.wording.verdicts import MOVED, SYMBOLS, WORDS, Verdict, outcome_badge
from envcompare.text import counted, one_line, visible

_LEADS_IN_ANSWER: Final = 4  # with more environments, a fold holds the rest
_FIRST_LEADS: Final = 2
_ROWS_IN_ANSWER: Final = 8  # with more, a row per environment and the overview
_FEW_ROWS: Final = 4  # with few rows, each remark has room for three lines
_ONE_LINE: Final = 48  # characters
_REFERENCE: Final = Span(text="● reference", style="badge reference")
_FEW_HOSTS: Final = 8  # up to this many hosts, the overview has a symbol for each
_MOST_HOSTS: Final = 100
_MOST_COLUMNS: Final = 8
# the order in which outcomes need attention
_ORDER: Final[tuple[Outcome, ...]] = (
    "failed",
    "not-run",
    "slower",
    "faster",
    "inconclusive",
    "equivalent",
)
_TOGETHER: Final = (
    "A statement over hosts takes the host as a random effect: its interval is for the mean of "
    "hosts like these."
)


def answer_section(
    run: RunComparison,
    leads: tuple[Headline, ...],
    rows: tuple[ComparedRow, ...],
    axis: Axis,
    *,
    folds: Mapping[str, str],
) -> Section:
    """Return headlines, the table of the answer, and the cards below it."""
    first = len(leads) if len(leads) <= _LEADS_IN_ANSWER else _FIRST_LEADS
    compared = tuple(row for row in rows if not row.is_control)
    tables: tuple[Block, ...] = ()
    if is_timed(run):
        is_many = len(compared) > _ROWS_IN_ANSWER
        table = _arms_table(run, leads, compared, axis) if is_many else (
            _answer_table(run, compared, axis, folds=folds)
        )  # fmt: skip
        tables = (table,)
    further = Fold(
        summary=f"{len(leads) - first} more environments in sentences",
        style="leads",
        blocks=tuple(_lead(headline, style="further") for headline in leads[first:]),
    )
    cards = tuple(
        Group(blocks=(Heading(text=card.heading), Items(items=card.items)))
        for card in summary_cards(run, leads)
    )
    return Section(
        anchor="answer",
        title="Answer",
        is_title_hidden=True,
        blocks=(
            *(_lead(headline, style="lead") for headline in leads[:first]),
            *tables,
            *gpu_tables(run),
            *leading_tables(run),
            *(further,) * (len(leads) > first),
            Group(style="three", blocks=cards),
        ),
    )


def _lead(headline: Headline, *, style: str) -> Line:
    caution = f"⚠ {headline.caution}" if headline.caution else ""
    causes = (("candidates", text) for text in (headline.candidates, *headline.causes))
    parts = (("rest", headline.rest), ("caution", caution), *causes)
    return Line(
        style=style,
        before=(_badge(headline),),
        strong=headline.text,
        after=tuple(Span(text=text, style=name) for name, text in parts if text),
    )


def _badge(headline: Headline) -> Span:
    text = f"{headline.symbol} {headline.badge}"
    return Span(text=text, style=f"badge {headline.outcome}")


def _answer_table(
    run: RunComparison, rows: tuple[ComparedRow, ...], axis: Axis, *, folds: Mapping[str, str]
) -> Table:
    """Return a row for each comparison, with the reference in the first row."""
    piece, ends = piece_word(run), f"{reference_name(run)} → this"
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
            Column(head=f"{piece.capitalize()}\n{ends}", kind="figure"),
            Column(head=f"Engine start\n{ends}", kind="figure"),
        ),
        rows=(
            *(
                Row(cells=(name, Line(before=(_REFERENCE,), text=state, style="state")))
                for name, state in _reference_states(run)
            ),
            *(_answer_row(run, row, folds=folds, is_cut=len(rows) > _FEW_ROWS) for row in rows),
        ),
    )


def _answer_caption(run: RunComparison) -> str:
    margin = margin_percent(run.settings.margin)
    return f"Each environment against {reference_name(run)}, margin ±{margin}"


def _answer_row(
    run: RunComparison, row: ComparedRow, *, folds: Mapping[str, str], is_cut: bool
) -> Row:
    words = row.verdict
    elsewhere = "failures" if words.outcome in {"failed", "not-run"} else row.anchor
    elsewhere = "batches" if row.comparison.is_skipped_size else elsewhere
    remark = _cut(words) if is_cut else words.remark
    style = "line" if remark and len(remark) <= _ONE_LINE else ""
    return Row(
        attributes=(("data-answer", words.outcome),),
        cells=(
            words.arm,
            Line(text=words.cell, href=f"#{folds.get(row.anchor) or elsewhere}"),
            Line(before=badges(words), below=(remark,), style=style),
            Line(strong=words.number, below=(words.interval,)) if words.number else NOT_MEASURED,
            Line(marks=(row.mark,) if row.mark else ()),
            Line(text=row.steps, below=(TYPICAL * words.is_typical,)),
            _engine_start(run, row.comparison),
        ),
    )


def _cut(words: Verdict) -> str:
    """Shorten a remark to fit the first screen; "All comparisons" has the whole remark."""
    if len(words.remark) <= _ONE_LINE:
        return words.remark
    if len(words.brief) <= _ONE_LINE:
        return words.brief
    start = words.remark[: _ONE_LINE - 1]
    return f"{start.rpartition(' ')[0] or start}…"


def _engine_start(run: RunComparison, comparison: Comparison) -> str:
    """Return "28.5 → 307 ms": the time the engine takes before the workload starts."""
    starts = [start for start in run.views.startup if start.cell == comparison.cell]
    starts.sort(key=lambda start: start.page_cache != "cold")  # a warm start overrules a cold one
    medians = {
        start.arm: part.median_s
        for start in starts
        for part in start.parts
        if part.phase == "engine"
    }
    return paired_times(medians.get(run.reference_in(comparison.cell)), medians.get(comparison.arm))


def _reference_states(run: RunComparison) -> Iterator[tuple[str, str]]:
    """Yield each reference, the number of cells that measured it, and its state in the others."""
    for name in run.all_references:
        cells = [cell for cell in run.cells if run.reference_in(cell.id) == name]
        measured = sum(any(steps.arm == name for steps in cell.step_times) for cell in cells)
        parts = [f"measured in {measured} of {counted(len(cells), 'cell')}"]
        parts += [
            f"{arm.state} on {arm.host}: {one_line(arm.reason)}"
            for arm in run.arms
            if arm.arm == name and arm.state != "ok"
        ]
        yield name, "; ".join(parts)


def _arms_table(
    run: RunComparison, leads: tuple[Headline, ...], rows: tuple[ComparedRow, ...], axis: Axis
) -> Table:
    """Return a row for each environment, for runs with many comparisons."""
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
            *(
                Row(cells=(name, Line(before=(_REFERENCE,)), "", "", state))
                for name, state in _reference_states(run)
            ),
            *(_arm_row(headline, rows) for headline in leads),
        ),
    )


def _arm_row(headline: Headline, rows: tuple[ComparedRow, ...]) -> Row:
    """Return the number of cells with each outcome for an environment, and all their marks."""
    counts = Counter(words.outcome for words in headline.verdicts)
    mean = mean_log_ratio(headline.verdicts)
    cells = {(words.cell_id, words.arm) for words in headline.verdicts}
    drawn = [row.mark for row in rows if (row.verdict.cell_id, row.verdict.arm) in cells]
    marks = {(mark.outcome, mark.x): mark for mark in drawn if mark is not None}  # one at a place
    outcomes = (f"{counts[symbol]} {WORDS[symbol]}" for symbol in SYMBOLS if counts[symbol])
    return Row(
        cells=(
            headline.arm,
            Line(before=(_badge(headline),)),
            Line(strong=signed_percent(mean)),
            Line(marks=tuple(marks.values()), is_overlaid=True),
            Line(text=", ".join(outcomes), below=(_confounded(headline),)),
        )
    )


def _confounded(headline: Headline) -> str:
    """Say how many comparisons are confounded, and the mean of the others."""
    count = sum(words.is_confounded for words in headline.verdicts)
    if not count:
        return ""
    mean = mean_log_ratio(
        tuple(verdict for verdict in headline.verdicts if not verdict.is_confounded)
    )
    without = "" if mean is None else f"; without them {signed_percent(mean)} in the mean"
    return f"⚠ {count} confounded{without}"


def overview_section(run: RunComparison, rows: tuple[ComparedRow, ...]) -> Section | None:
    """Return the matrix of workloads and environments; None if the answer shows every row."""
    compared = [row for row in rows if not row.is_control]
    if len(compared) <= _ROWS_IN_ANSWER:
        return None
    groups: dict[tuple[str, str], list[ComparedRow]] = {}
    for row in compared:
        place = (row.comparison.workload, row.comparison.arm)
        groups.setdefault(place, []).append(row)
    is_by_host = all(
        len({row.comparison.host for row in group}) == len(group) for group in groups.values()
    )
    every = tuple(dict.fromkeys(row.comparison.host for row in compared))
    has_symbols = len(every) <= _FEW_HOSTS
    hosts = every if is_by_host else ()
    each = f"host, in the order of {', '.join(hosts)}" if len(hosts) > 1 else "cell"
    symbols = f", and one symbol for each {each}" * has_symbols
    intro = (
        f"The mean of the cells against {reference_name(run)}{symbols}: "
        "◀ faster, ≈ equivalent, ▶ slower, ? inconclusive, ✕ failed, – not run, ⚠ confounded."
    )
    arms = dict.fromkeys(row.comparison.arm for row in compared)
    all_hosts = [row.comparison.host for row in compared]
    cautions = dict.fromkeys(filter(None, (caution_of(run, arm, all_hosts) for arm in arms)))
    return Section(
        anchor="overview",
        title="Overview: workload × environment",
        link="Overview",
        blocks=(
            Line(text=intro),
            *(Line(text=f"⚠ {text}", style="warning") for text in cautions),
            _matrix(groups, hosts, has_symbols=has_symbols),
            *_over_hosts_blocks(run),
            *_host_blocks(run, compared),
        ),
    )


def _matrix(
    groups: Mapping[tuple[str, str], list[ComparedRow]],
    hosts: tuple[str, ...],
    *,
    has_symbols: bool,
) -> Table:
    arms = tuple(dict.fromkeys(arm for _, arm in groups))
    return grid_of(
        "Overview table",
        (("Workload", "name"), *((visible(arm), "text") for arm in arms)),
        (
            (
                workload,
                *(
                    _matrix_cell(groups.get((workload, arm), []), hosts, has_symbols=has_symbols)
                    for arm in arms
                ),
            )
            for workload in dict.fromkeys(workload for workload, _ in groups)
        ),
        style="matrix",
    )


def _matrix_cell(rows: list[ComparedRow], hosts: tuple[str, ...], *, has_symbols: bool) -> Words:
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
        after=(Span(text=_symbols(rows, hosts), style="symbols"),) * has_symbols,
    )


def _outcome_of(verdicts: tuple[Verdict, ...]) -> tuple[Outcome | None, str]:
    """Return the most frequent outcome, preferring one that moved, and its number of cells."""
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
    """Return a symbol for each host in order, and a dot for a host without a planned comparison."""
    symbols = [row.verdict.symbol + "⚠" * row.verdict.is_confounded for row in rows]
    if not hosts:
        return " ".join(symbols)
    by_host = dict(zip((row.comparison.host for row in rows), symbols, strict=True))
    return " ".join(by_host.get(host, "·") for host in hosts)


def _over_hosts_blocks(run: RunComparison) -> tuple[Block, ...]:
    """Return the estimates over hosts; empty unless two hosts compared the same work."""
    if not run.between_hosts.estimates:
        return ()
    table = table_of(
        "Over hosts",
        run.between_hosts.estimates,
        ("Workload", "name", hosts_work),
        ("Environment", "name", lambda estimate: visible(estimate.arm)),
        ("Over hosts", "text", lambda estimate: Line(before=(outcome_badge(estimate.outcome),))),
        ("Mean change", "number", lambda estimate: signed_percent(estimate.log_ratio)),
        ("Interval", "text", lambda estimate: signed_interval(estimate.low, estimate.high)),
        ("Spread of hosts", "number", lambda estimate: f"±{unsigned_percent(estimate.tau)}"),
        (
            "Hosts",
            "number",
            lambda one: visible(f"{one.hosts} of {one.group}") if one.group else str(one.hosts),
        ),
        ("Far from the others", "text", odd_names),
    )
    return (Line(text=_TOGETHER), table)


def _host_blocks(run: RunComparison, rows: list[ComparedRow]) -> tuple[Block, ...]:
    """Return a table of the hosts if there are too many for the matrix."""
    by_host: dict[str, dict[tuple[str, str], ComparedRow]] = {}
    for row in rows:
        by_host.setdefault(row.comparison.host, {})[row.comparison.arm, row.work] = row
    if len(by_host) <= _FEW_HOSTS:
        return ()
    columns = tuple(dict.fromkeys(place for cells in by_host.values() for place in cells))
    odd = {host for estimate in run.between_hosts.estimates for host in estimate.odd_hosts}

    def urgency(host: str) -> tuple[bool, int, float]:
        of_host = by_host[host].values()
        first = min(_ORDER.index(row.verdict.outcome) for row in of_host)
        return host not in odd, first, -max(row.size for row in of_host)

    ordered = sorted(by_host, key=urgency)
    shown = columns[:_MOST_COLUMNS]
    table = grid_of(
        "Hosts",
        (
            Column(head="Host", kind="name", is_row_head=True),
            *(Column(head=arm, note=work, kind="text") for arm, work in shown),
        ),
        (
            (
                f"{visible(host)} (far from the others)" if host in odd else visible(host),
                *(_cell(by_host[host].get(place)) for place in shown),
            )
            for host in ordered[:_MOST_HOSTS]
        ),
        caption=_left_out(len(by_host), len(columns)),
        style="fit",
    )
    intro = "A row for each host: those far from the others first, then by verdict and size."
    return (Line(text=intro), table)


def _cell(row: ComparedRow | None) -> Words:
    if row is None:
        return "–"
    words = row.verdict
    text = signed_percent(words.log_ratio) if words.log_ratio is not None else words.claim
    mixed = " ⚠" * words.is_confounded
    return Line(text=f"{words.symbol} {text}{mixed}", href=f"#{row.anchor}", style=words.outcome)


def _left_out(hosts: int, columns: int) -> str:
    parts = [f"{hosts - _MOST_HOSTS} more hosts"] * (hosts > _MOST_HOSTS)
    parts += [f"{columns - _MOST_COLUMNS} more comparisons of each"] * (columns > _MOST_COLUMNS)
    return f"{' and '.join(parts)}: see All comparisons." if parts else ""
