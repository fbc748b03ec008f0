"""The sentences of several combined runs, for the terminal, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from envcompare.analysis.model.changes import RunSide
from envcompare.analysis.model.combined import CombinedEffect, CombinedPart, CombinedRuns, WhyOpen
from envcompare.report.blocks import Column, Heading, Items, Line, PlainBlock, Row, Table
from envcompare.report.numbers import (
    NOT_MEASURED,
    listed,
    margin_percent,
    signed_interval,
    signed_percent,
    unsigned_interval,
    unsigned_percent,
)
from envcompare.report.wording.methodwords import INCOMPLETE
from envcompare.report.wording.verdicts import SYMBOLS, margin_text, outcome_text
from envcompare.text import assigned, counted, flat

_LEAST_SPREAD: Final = 0.0005  # less is shown as 0.0 %
_HEADS: Final = ("environment", "workload", "run", "host", "change", "verdict of the run")
_WHY: Final[dict[WhyOpen, str]] = {
    "mean": "the mean of all steps may still differ by more than the margin",
    "outside-turns": "an arm worked outside its turns in one of the runs",
    "control-failed": "in one of the runs the reference differed from itself by as much",
    "other-metric": "the runs were judged on different times (net and wall)",
    "one-run": "fewer than two runs have an interval",
}


def worded(combined: CombinedRuns) -> CombinedRuns:
    """Return the combined runs with a sentence for each effect."""
    effects = (
        msgspec.structs.replace(one, sentence=flat(_sentence(combined, one)))
        for one in combined.effects
    )
    return msgspec.structs.replace(combined, effects=tuple(effects))


def combined_blocks(combined: CombinedRuns) -> tuple[PlainBlock, ...]:
    """Return the blocks for terminal and Markdown of combined runs that have their sentences."""
    return (
        Heading(text=f"{len(combined.runs)} runs combined"),
        *(Line(text=text, style="warning") for text in _warnings(combined)),
        *(
            Line(strong=f"{SYMBOLS[one.outcome]} {one.sentence}", style=one.outcome)
            for one in combined.effects
        ),
        Table(
            label="Runs",
            columns=tuple(Column(head=head) for head in _HEADS),
            rows=tuple(_row(effect, part) for effect in combined.effects for part in effect.parts),
        ),
        Items(items=tuple(_notes(combined)), style="note"),
    )


def _work(effect: CombinedEffect) -> str:
    within = f"in {effect.within}" if effect.within else ""
    return " ".join(filter(None, (effect.workload, within, *assigned(effect.parameters))))


def _sentence(combined: CombinedRuns, effect: CombinedEffect) -> str:
    where = f"in {_work(effect)}"
    if effect.log_ratio is None or effect.low is None or effect.high is None:
        return f"{effect.arm} {where} was not combined: {_WHY[effect.why_open]}."
    over = f"over {counted(effect.runs, 'run')} on {counted(effect.hosts, 'machine')}"
    ends = effect.low, effect.high
    figures = f"({signed_percent(effect.log_ratio)}, {signed_interval(*ends)}) {over}"
    size, sizes = unsigned_percent(effect.log_ratio), f"({unsigned_interval(*ends)}) {over}"
    match effect.outcome:
        case "slower":
            claim = f"is {size} slower than {effect.reference} {where} {sizes}"
        case "faster":
            claim = f"takes {size} less time than {effect.reference} {where} {sizes}"
        case "equivalent":
            within = f"within ±{margin_percent(combined.margin)}"
            claim = f"is equivalent to {effect.reference} {within} {where} {figures}"
        case _:
            why = f": {_WHY[effect.why_open]}" if effect.why_open else _few(effect)
            claim = f"against {effect.reference} is inconclusive {where} {figures}{why}"
    return f"{effect.arm} {claim}; {_scatter(effect)}."


def _few(effect: CombinedEffect) -> str:
    count, unit = (effect.hosts, "machines") if effect.unit == "host" else (effect.runs, "runs")
    return f", as two {unit} say little about others" if count == 2 else ""


def _scatter(effect: CombinedEffect) -> str:
    """State how far runs differ beyond their own intervals."""
    spread = effect.between_runs or 0.0
    if spread < _LEAST_SPREAD:
        return "the runs differ by no more than their own intervals explain"
    size = unsigned_percent(spread)
    return f"beyond their own intervals, the runs scatter by ±{size} (standard deviation)"


def _row(effect: CombinedEffect, part: CombinedPart) -> Row:
    ratio = NOT_MEASURED
    if part.log_ratio is not None:
        ratio = f"{signed_percent(part.log_ratio)} ({signed_interval(part.low, part.high)})"
    return Row(
        cells=(
            effect.arm,
            _work(effect),
            part.run_id,
            part.host,
            ratio,
            outcome_text(part.outcome),
        ),
        style=part.outcome,
    )


def _warnings(combined: CombinedRuns) -> Iterator[str]:
    if combined.mismatches:
        texts = [f"{one.first} → {one.other}: {one.mismatch.text}" for one in combined.mismatches]
        yield (
            "Combined despite a mismatch (--allow-mismatch), which may explain why runs differ: "
            f"{'; '.join(texts)}."
        )
    for run in combined.runs:
        if not run.is_complete:
            yield f"The run {run.run_id} is not complete: {INCOMPLETE}."
    if combined.left_out:
        yield f"In one run alone, and not combined: {listed(list(combined.left_out), most=6)}."


def _notes(combined: CombinedRuns) -> Iterator[str]:
    runs = [_run_text(run) for run in combined.runs]
    yield f"Runs: {listed(runs, most=20)}."
    yield from _machines(combined)
    margins = {run.margin for run in combined.runs}
    largest = ", the largest of the runs" if len(margins) > 1 else ""
    yield f"The margin is {margin_text(combined.margin)}{largest}."
    units = {one.unit for one in combined.effects if one.log_ratio is not None}
    if "host" in units:
        yield (
            "Each machine is pooled over its own runs. The interval is for machines like these and "
            "widens with the spread between them."
        )
    if "run" in units:
        yield (
            "Where all runs are of one machine, the interval is for other days on it and says "
            "nothing of other machines."
        )
    levels = {margin_percent(one.level) for one in combined.effects if one.level is not None}
    if len(levels) == 1 and len(combined.effects) > 1:
        yield (
            f"The intervals hold at 95 % for all {len(combined.effects)} statements together (each "
            f"at {levels.pop()} on its own)."
        )
    elif levels:
        yield "The interval holds at 95 %."
    versions = {run.tool_version for run in combined.runs}
    if len(versions) > 1:
        yield f"The runs are of envcompare {listed(sorted(versions), most=9)}."


def _run_text(run: RunSide) -> str:
    title = f"{run.title}, " if run.title else ""
    return f"{run.run_id} ({title}begun {run.created.partition('T')[0]})"


def _machines(combined: CombinedRuns) -> Iterator[str]:
    """Name each machine by its hosts; two names may mean one machine."""
    names: dict[str, dict[str, None]] = {}
    for effect in combined.effects:
        for part in effect.parts:
            names.setdefault(part.machine, {})[part.host] = None
    texts = [
        f"{listed(list(hosts), most=9)} ({combined.machines.get(machine) or 'not known'})"
        for machine, hosts in names.items()
    ]
    yield f"{counted(len(texts), 'machine')}, by processor: {listed(texts, most=20)}."
