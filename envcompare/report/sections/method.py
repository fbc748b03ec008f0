"""How this run was measured, and what runs it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, RunComparison
from envcompare.command import shell_text
from envcompare.report.format.numbers import NOT_MEASURED, duration, margin_percent
from envcompare.report.wording.labels import cell_labels, has_steps, piece_words, program_sentences
from envcompare.report.wording.methodwords import (
    guard_sentences,
    level_sentence,
    replication_sentence,
)
from envcompare.report.wording.profilewords import ONE_PROFILE, is_timed
from envcompare.report.wording.verdicts import control_sentence, margin_sentence
from envcompare.stats.intervals import MIN_GENERATIONS, REBUILD_RESTARTS
from envcompare.text import counted, one_line, shortened

_STOPS: Final = {
    "target": "the interval was narrow enough",
    "equivalent": "the interval lay inside the margin",
    "decided": "the confidence sequence excluded 0",
    "budget": "the budget was spent",
    "failure": "a failure",
    "interrupted": "the run was interrupted",
    "unknown": "not recorded",
}


_IMPORTED: Final = (
    (
        "The profiles were made elsewhere and read here. Totals are sums over launches, ratios are "
        "made of sums, and rates are weighted by time."
    ),
    (
        "A change is said of a step where every profile says how many steps it covers (--steps), "
        "else of the whole profile: the profiles must then cover the same work."
    ),
    ONE_PROFILE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """What happened in one cell, as columns."""

    label: str
    columns: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodView:
    """The method section."""

    sentences: tuple[str, ...]
    controls: tuple[str, ...]
    heads: tuple[str, ...]
    cells: tuple[CellView, ...]
    facts: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]
    configuration: str
    has_steps: bool


def method_view(run: RunComparison) -> MethodView:
    """Return the method and what reproduces the run."""
    labels = cell_labels(run)
    return MethodView(
        sentences=_sentences(run),
        controls=tuple(control_sentence(one, label=labels[one.id], run=run) for one in run.cells)
        if is_timed(run)
        else (),
        heads=("state", "verdict on", "steps a block", "restarts", "generations", "rounds",
               "dropped", piece_words(run), "measured", "elapsed", "stopped by"),
        cells=tuple(_cell(one, labels[one.id]) for one in run.cells),
        facts=_facts(run),
        commands=tuple(filter(None, dict.fromkeys((shell_text(run.command_line), *run.imports)))),
        configuration=shortened(run.configuration, most=20_000),
        has_steps=has_steps(run),
    )  # fmt: skip


def _sentences(run: RunComparison) -> tuple[str, ...]:
    """Describe the design with the numbers of this run."""
    if not is_timed(run):
        return _IMPORTED
    found = (replication_sentence(run), level_sentence(run), margin_sentence(run), *_stopping(run))
    others = (_stabilising(run), _twice(run), *program_sentences(run), *guard_sentences(run))
    return tuple(text for text in (*found, *others) if text)


def _stabilising(run: RunComparison) -> str:
    """Say under which settings the work was measured."""
    if not run.stabilise:
        return "Allocator and hash seed were left as they are (--no-stabilise)."
    return (
        "Every arm ran with the same fixed allocator thresholds, and all workers of a restart with "
        "one hash seed (--stabilise). Freed memory then stays with the process, so that page "
        "faults, and what an environment makes of them, are rarer than without; --no-stabilise "
        "measures the work as it is, with wider intervals."
    )


def _twice(run: RunComparison) -> str:
    """Say what the control is used for besides being looked at."""
    has_control = any(one.is_control for one in run.comparisons)
    if not has_control or all(one.is_control for one in run.comparisons):
        return ""
    reference = run.reference_arm
    return (
        f"In each round the time of {reference} is the geometric mean of {reference} and its "
        "control, which narrows every other interval, by an eighth where all are equally noisy."
    )


def _stopping(run: RunComparison) -> tuple[str, ...]:
    """Say when a cell is done, and how its interval was made where that is not the usual way."""
    # a target below half the margin asks for precision, and equivalence alone ends nothing
    inside = "lies inside the margin, or " * (2 * run.target >= run.margin)
    stop = (
        f"Intervals are looked at {_looks(run)}. "
        "Measuring a cell stops once each of its intervals has a half-width of "
        f"{margin_percent(run.target)} or less, {inside}is decided: a confidence sequence, which "
        "holds however often it is looked at, excludes 0, and the interval printed is the union of "
        f"both. It stops after {duration(run.budget_s)} in any case."
    )
    strict = "The units are restarts alone (preset strict)." * (run.preset == "strict")
    is_pooled = any(one.primary is not None and one.primary.is_pooled for one in run.comparisons)
    pooled = (
        "Where the budget ended a cell, the variance between its restarts is the mean over all "
        "cells of its environment." * is_pooled
    )
    return stop, strict, pooled


def _looks(run: RunComparison) -> str:
    """Say when the intervals of a cell are looked at: rounds where there are no restarts."""
    if not has_steps(run):
        return f"after each round, from {max(run.min_restarts, MIN_GENERATIONS)} rounds on"
    rebuilt = max(run.min_restarts, REBUILD_RESTARTS)
    return (
        f"after each restart, from {counted(run.min_restarts, 'restart')} and {MIN_GENERATIONS} "
        f"generations on ({rebuilt} restarts where generations are rebuilt and not forked)"
    )


def _cell(cell: CellSummary, label: str) -> CellView:
    pieces = cell.processes or cell.steps
    counts = (cell.restarts, cell.generations, cell.rounds, cell.dropped_rounds, pieces)
    return CellView(
        label=label,
        columns=(
            cell.state,
            cell.metric,
            NOT_MEASURED if cell.steps_per_block is None else str(cell.steps_per_block),
            *(str(count) for count in counts),
            duration(cell.measured_s),
            duration(cell.elapsed_s),
            _STOPS[cell.stopped_by],
        ),
        reason="; ".join(
            one_line(text)
            for text in (_reason(cell), cell.metric_reason, _generation(cell), *cell.cautions)
            if text
        ),
    )


def _generation(cell: CellSummary) -> str:
    """Return how generations began and why so; empty where there were none."""
    if not cell.generation:
        return ""
    why = f": {cell.generation_reason}" if cell.generation_reason else ""
    return f"generations by {cell.generation}{why}"


def _reason(cell: CellSummary) -> str:
    """Return why a cell did not end well; what stopped one that did has a column."""
    return "" if cell.state == "ok" else cell.reason


def _facts(run: RunComparison) -> tuple[tuple[str, str], ...]:
    made = (
        ("run", run.run_id),
        ("created", run.created),
        ("envcompare", run.tool_version),
    )
    if not is_timed(run):
        return made
    return (
        *made,
        ("seed", str(run.seed)),
        ("preset", run.preset),
        ("threads", str(run.threads)),
        ("allocator and hash seed", "fixed" if run.stabilise else "as they are"),
        ("restarts planned", f"at least {run.min_restarts}"),
        ("budget a cell", duration(run.budget_s)),
        ("whole run", duration(run.duration_s)),
    )
