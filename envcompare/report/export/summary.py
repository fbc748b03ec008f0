"""The run in a few lines, for the terminal and as Markdown for a pull-request comment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from envcompare.analysis.model.comparison import FailureRow, Outcome, RunComparison
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.report.format.markdown import Columns, escape, flat, table
from envcompare.report.format.numbers import NOT_MEASURED, listed
from envcompare.report.sections.comparisons import step_times
from envcompare.report.sections.profiletables import (
    QuantityLine,
    fact_lines,
    partly_measured,
    quantity_lines,
)
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.report.wording.labels import cell_labels, piece_word
from envcompare.report.wording.methodwords import guard_cautions, mismatch_sentences
from envcompare.report.wording.profilewords import (
    build_sentences,
    is_timed,
    missing_sentence,
    profile_cautions,
    why_sentences,
)
from envcompare.report.wording.verdicts import Verdict, control_sentence, margin_sentence
from envcompare.text import cause_line, one_line, visible

Role = Literal["title", "warning", "headline", "detail", "head", "row", "note"]
INCOMPLETE: Final = "it was interrupted, has not ended, or lost a part of its samples"
_MOST_CAUTIONS: Final = 5
_MOST_QUANTITIES: Final = 20
_MOST_CELLS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalLine:
    """One line for the terminal: its role, the outcome that colours it, and its columns.

    Lines of the roles head and row have the same columns and make one table. The texts are
    plain: they hold no markup, and what looks like markup in them is none.
    """

    role: Role
    columns: tuple[str, ...]
    outcome: Outcome | None = None


def terminal_lines(run: RunComparison) -> tuple[TerminalLine, ...]:
    """Return what the terminal says of a run, in order."""
    leading = headlines(run)
    lines = [
        TerminalLine(role="title", columns=(title(run),)),
        *(TerminalLine(role="warning", columns=(text,)) for text in warnings(run)),
    ]
    for headline in leading:
        lines += _headline_lines(headline)
    rows = [verdict for one in leading for verdict in one.verdicts]
    if rows:
        lines.append(TerminalLine(role="head", columns=table_head(run)))
        lines += [
            TerminalLine(role="row", outcome=one.outcome, columns=_table_row(run, one))
            for one in rows
        ]
    for head, quantities in _quantity_tables(run):
        lines.append(TerminalLine(role="head", columns=head))
        lines += [TerminalLine(role="row", columns=row) for row in quantities]
    lines += [TerminalLine(role="note", columns=(text,)) for text in notes(run)]
    return tuple(lines)


def markdown(run: RunComparison) -> str:
    """Return the headlines, the table and the notes as Markdown."""
    leading = headlines(run)
    parts = [f"### {escape(title(run))}", *(f"> ⚠ {escape(text)}" for text in warnings(run))]
    parts += [_headline_markdown(one) for one in leading]
    rows = [_table_row(run, verdict) for one in leading for verdict in one.verdicts]
    if rows:
        head = table_head(run)
        parts.append(table(head, rows))
    parts += [table(head, quantities) for head, quantities in _quantity_tables(run)]
    parts.append("\n".join(f"- {escape(text)}" for text in notes(run)))
    return "\n\n".join(parts) + "\n"


def _quantity_tables(run: RunComparison) -> tuple[tuple[Columns, tuple[Columns, ...]], ...]:
    """Return head and rows of the quantities of each cell, where nothing was timed."""
    if is_timed(run):
        return ()
    labels = cell_labels(run)
    return tuple(
        ((flat(labels.get(one.cell, one.cell)), *(flat(arm.arm) for arm in one.arms)), rows)
        for one in run.profiles
        if (rows := _quantity_rows(one))
    )


def _quantity_rows(profiles: CellProfiles) -> tuple[Columns, ...]:
    """Return the first quantities, and how many stand in the report alone."""
    lines = quantity_lines(profiles)
    shown = (*fact_lines(profiles), *lines[:_MOST_QUANTITIES])
    rows = tuple(_quantity_row(line) for line in shown)
    if len(lines) <= _MOST_QUANTITIES:
        return rows
    more = f"and {len(lines) - _MOST_QUANTITIES} more in report.html"
    return (*rows, (more, *("" for _ in profiles.arms)))


def _quantity_row(line: QuantityLine) -> Columns:
    cells = (
        " ".join(part for part in (one.text, one.ratio, f"({one.note})" * bool(one.note)) if part)
        for one in line.cells
    )
    name = f"{line.name}, {line.per}" if line.per else line.name
    return tuple(flat(text) for text in (name, *cells))


def title(run: RunComparison) -> str:
    """Return the title the user gave, or one that names the run."""
    return flat(run.title) or flat(f"envcompare run {run.run_id}")


def warnings(run: RunComparison) -> tuple[str, ...]:
    """Say what makes the whole run less than it should be."""
    texts = []
    if not run.is_complete:
        texts.append(f"This run is not complete: {INCOMPLETE}. What there is of it is shown.")
    if not headlines(run) and not is_timed(run):
        texts.append(
            f"Profiles of {visible(run.reference_arm)} alone were imported: there is nothing to "
            "compare them with yet."
        )
    elif not headlines(run):
        texts.append("No environment was compared with the reference in this run.")
    return tuple(texts)


def table_head(run: RunComparison) -> tuple[str, ...]:
    """Return the heads of the short table."""
    return (
        "environment",
        "workload",
        "verdict",
        f"median {piece_word(run)}, {flat(run.reference_arm)} → this",
    )


def _table_row(run: RunComparison, verdict: Verdict) -> tuple[str, ...]:
    """Return one row of the short table."""
    text = f"{verdict.symbol} {verdict.text}"
    if not verdict.amount and verdict.figures:
        text += f" · {verdict.figures}"
    if verdict.is_confounded:
        text += " ⚠ confounded"
    return flat(verdict.arm), flat(verdict.cell), flat(text), step_times(run, verdict)


def notes(run: RunComparison) -> tuple[str, ...]:
    """Return margin, controls, cautions, what profiles say, and failures as sentences."""
    texts = _notes_of_times(run) if is_timed(run) else _unmeasured(run)
    texts += _notes_of_profiles(run)
    texts += _notes_of_failures(run)
    return tuple(flat(text, strip=False) for text in texts)


def _notes_of_failures(run: RunComparison) -> list[str]:
    """Tell each failure once with its cells, however often it was met."""
    labels = cell_labels(run)
    cells: dict[FailureRow, dict[str, None]] = {}
    for failure in run.failures:
        label = labels.get(failure.cell, failure.cell).removesuffix(f" on {failure.host}")
        alike = msgspec.structs.replace(failure, t=0.0, cell="")
        cells.setdefault(alike, {})[label] = None
    texts = []
    for failure, named in cells.items():
        where = "/".join(part for part in (failure.host, failure.arm) if part)
        names = listed([name for name in named if name], most=_MOST_CELLS)
        cell = f" in {names}" if names else ""
        code = "" if failure.exit_code is None else f", exit code {failure.exit_code}"
        texts.append(
            f"failed on {where}{cell} (phase {failure.phase}{code}): {one_line(failure.brief)}"
        )
        why = cause_line(failure.details, brief=failure.brief)
        texts += [f"  {word}: {one_line(text)}" for word, text in
                  (("why", why), ("try", failure.hint), ("log", failure.log)) if text]  # fmt: skip
    return texts


def _notes_of_times(run: RunComparison) -> list[str]:
    labels = cell_labels(run)
    texts = [margin_sentence(run), *mismatch_sentences(run)]
    texts += [control_sentence(cell, label=labels[cell.id], run=run) for cell in run.cells]
    return [*texts, *guard_cautions(run)[:_MOST_CAUTIONS]]


def _unmeasured(run: RunComparison) -> list[str]:
    """Say why the tables of quantities have gaps, each reason once."""
    gaps = dict.fromkeys(gap for one in run.profiles for gap in partly_measured(one))
    return [f"{NOT_MEASURED}, {names}: {reason}" for names, reason in gaps][:_MOST_CAUTIONS]


def _notes_of_profiles(run: RunComparison) -> list[str]:
    """Say where the time goes, what kernel names show, and what to mind of the profiles."""
    if not run.profiles:
        return []
    cautions = (*build_sentences(run), *profile_cautions(run))
    texts = [*why_sentences(run)[:_MOST_CAUTIONS]]
    if not texts and not any(one.ledgers for one in run.profiles):
        texts = [missing_sentence(run)]
    return texts + [f"⚠ {text}" for text in cautions[:_MOST_CAUTIONS]]


def _headline_lines(headline: Headline) -> list[TerminalLine]:
    texts = [f"⚠ {headline.caution}" if headline.caution else ""]
    details = [text for text in (headline.rest, *texts, headline.candidates) if text]
    return [
        TerminalLine(
            role="headline",
            outcome=headline.outcome,
            columns=(flat(f"{headline.symbol} {headline.lead}"),),
        ),
        *(TerminalLine(role="detail", columns=(flat(text),)) for text in details),
    ]


def _headline_markdown(headline: Headline) -> str:
    parts = [f"**{headline.symbol} {escape(headline.lead)}**", escape(headline.rest)]
    if headline.caution:
        parts.append(f"⚠ {escape(headline.caution)}")
    parts.append(escape(headline.candidates))
    return " ".join(part for part in parts if part)
