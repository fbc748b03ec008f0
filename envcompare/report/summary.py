"""A summary of the run, for the terminal and as Markdown for a pull-request comment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from envcompare.analysis.model import FailureRow, RunComparison
from envcompare.report import Column, Heading, Items, Line, PlainBlock, Row, Table
from envcompare.report.sections.comparisons import TYPICAL, step_times
from envcompare.report.sections.environments import groups_blocks
from envcompare.report.sections.profiletables import (
    QuantityLine,
    fact_lines,
    gpu_tables,
    partly_measured,
    quantity_lines,
)
from envcompare.report.sections.proofs import proof_table
from envcompare.report.sections.scaling import scaling_blocks
from envcompare.report.wording import (
    NOT_MEASURED,
    cell_labels,
    compared_arms,
    listed,
    piece_word,
    reference_name,
)
from envcompare.report.wording.causewords import as_run_sentence, thread_lines
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.report.wording.methodwords import (
    INCOMPLETE,
    device_sentences,
    guard_cautions,
    host_sentences,
    mismatch_sentences,
)
from envcompare.report.wording.profilewords import (
    build_sentences,
    is_timed,
    missing_sentence,
    profile_cautions,
    why_sentences,
)
from envcompare.report.wording.verdicts import Verdict, control_sentence, margin_sentence
from envcompare.text import LONGEST_REASON, cause_line, flat, one_line, visible

_MOST_CAUTIONS: Final = 5
_MOST_QUANTITIES: Final = 20
_MOST_CELLS: Final = 6


def summary(run: RunComparison) -> tuple[PlainBlock, ...]:
    """Return the summary's blocks in order; their styles are outcomes and roles."""
    leading = headlines(run)
    devices = tuple(f"measured {text}" for text in device_sentences(run))
    proof = proof_table(run, is_drawn=False)
    return (
        Heading(text=flat(run.title).strip() or f"envcompare run {run.run_id}"),
        *([Items(items=devices, style="note")] if devices else []),
        *(Line(text=text, style="warning") for text in warnings(run)),
        *groups_blocks(run),
        *map(_headline, leading),
        *_verdict_tables(run, [verdict for headline in leading for verdict in headline.verdicts]),
        *([proof] if proof else []),
        *gpu_tables(run),
        *([] if is_timed(run) else _quantity_tables(run)),
        *scaling_blocks(run),
        Items(items=_notes(run), style="note"),
    )


def _headline(headline: Headline) -> Line:
    caution = f"⚠ {headline.caution}" if headline.caution else ""
    details = (headline.rest, caution, headline.candidates, *headline.causes)
    return Line(
        strong=f"{headline.symbol} {headline.text}",
        below=tuple(filter(None, details)),
        style=headline.outcome,
    )


def _verdict_tables(run: RunComparison, verdicts: list[Verdict]) -> Iterator[Table]:
    if not verdicts:
        return
    times = f"{piece_word(run)}, {reference_name(run)} → this"
    heads = ("environment", "workload", "verdict", times)
    yield Table(
        label="Verdicts",
        columns=tuple(Column(head=head) for head in heads),
        rows=tuple(
            Row(cells=(verdict.arm, verdict.cell, _verdict_text(verdict),
                       f"{step_times(run, verdict)} {TYPICAL * verdict.is_typical}".rstrip()),
                style=verdict.outcome)
            for verdict in verdicts
        ),
    )  # fmt: skip


def _verdict_text(verdict: Verdict) -> str:
    text = f"{verdict.symbol} {verdict.text}"
    if not verdict.amount and verdict.figures:
        text += f" · {verdict.figures}"
    return f"{text} ⚠ confounded" if verdict.is_confounded else text


def _quantity_tables(run: RunComparison) -> Iterator[Table]:
    """Yield the first quantities of each cell, and the number of those only in the report."""
    labels = cell_labels(run)
    for cell in run.profiles:
        lines = quantity_lines(cell)
        rows = [_quantity_row(line) for line in (*fact_lines(cell), *lines[:_MOST_QUANTITIES])]
        if len(lines) > _MOST_QUANTITIES:
            more = f"and {len(lines) - _MOST_QUANTITIES} more in report.html"
            rows.append(Row(cells=(more, *("" for _ in cell.arms))))
        if rows:
            label = labels.get(cell.cell, cell.cell)
            heads = (label, *(arm.arm for arm in cell.arms))
            columns = tuple(Column(head=head) for head in heads)
            yield Table(label=f"Quantities of {label}", columns=columns, rows=tuple(rows))


def _quantity_row(line: QuantityLine) -> Row:
    cells = (
        " ".join(
            part for part in (cell.text, cell.ratio, f"({cell.note})" * bool(cell.note)) if part
        )
        for cell in line.cells
    )
    return Row(cells=(f"{line.name}, {line.per}" if line.per else line.name, *cells))


def warnings(run: RunComparison) -> tuple[str, ...]:
    """Return the warnings that concern the whole run."""
    texts = []
    if not run.course.is_complete:
        texts.append(f"This run is not complete: {INCOMPLETE}.")
    is_alone = not compared_arms(run)
    if is_alone and not is_timed(run):
        texts.append(
            f"Profiles of {visible(run.reference_arm)} alone were imported: there is nothing to "
            "compare them with yet."
        )
    elif is_alone:
        texts.append("No environment was compared with the reference in this run.")
    return tuple(texts)


def _notes(run: RunComparison) -> tuple[str, ...]:
    """Return margin, controls, cautions, profiles and failures as sentences."""
    if is_timed(run):
        labels = cell_labels(run)
        texts = [margin_sentence(run), *mismatch_sentences(run)]
        texts += [f"⚠ {text}" for text in host_sentences(run)]
        texts += [control_sentence(cell, label=labels[cell.id], run=run) for cell in run.cells]
        texts += [*thread_lines(run)[:_MOST_CAUTIONS], *filter(None, (as_run_sentence(run),))]
        texts += guard_cautions(run)[:_MOST_CAUTIONS]
    else:
        gaps = dict.fromkeys(gap for profile in run.profiles for gap in partly_measured(profile))
        texts = [f"{NOT_MEASURED}, {names}: {reason}" for names, reason in gaps][:_MOST_CAUTIONS]
    return (*texts, *_notes_of_profiles(run), *_notes_of_failures(run))


def _notes_of_failures(run: RunComparison) -> list[str]:
    """Return each failure once, with all its cells."""
    labels = cell_labels(run)
    cells: dict[FailureRow, dict[str, None]] = {}
    for failure in run.course.failures:
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
            f"failed on {where}{cell} (phase {failure.phase}{code}): "
            f"{one_line(failure.brief, most=LONGEST_REASON)}"
        )
        why = cause_line(failure.details, brief=failure.brief)
        texts += [f"  {word}: {one_line(text, most=LONGEST_REASON)}" for word, text in
                  (("why", why), ("try", failure.hint), ("log", failure.log)) if text]  # fmt: skip
    return texts


def _notes_of_profiles(run: RunComparison) -> list[str]:
    """State where the time goes, what kernel names show, and the cautions about profiles."""
    if not run.profiles:
        return []
    cautions = (*build_sentences(run), *profile_cautions(run))
    texts = [*why_sentences(run)[:_MOST_CAUTIONS]]
    if not texts and not any(profile.ledgers for profile in run.profiles):
        texts = [missing_sentence(run)]
    return texts + [f"⚠ {text}" for text in cautions[:_MOST_CAUTIONS]]
