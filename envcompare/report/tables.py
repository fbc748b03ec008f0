"""The rows of the answer, of the overview and of all comparisons."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model import Comparison, Estimate, Outcome, RunComparison
from envcompare.report.headlines import Headline, mean_log_ratio
from envcompare.report.labels import cell_labels
from envcompare.report.links import Link, link
from envcompare.report.marks import Axis, Mark, mark
from envcompare.report.numbers import (
    NOT_MEASURED,
    duration,
    signed_interval,
    signed_percent,
    three_digits,
)
from envcompare.report.programs import has_programs
from envcompare.report.summary import step_times, steps_of
from envcompare.report.verdicts import (
    SYMBOLS,
    WORDS,
    Verdict,
    find_estimate,
    verdict,
)
from envcompare.texts import counted

_CONTROL_TEXT: Final = "the reference against itself: smaller differences cannot be seen"
METRICS: Final[dict[str, str]] = {
    "net": "net",
    "wall": "on the clock (wall)",
    "stretch": "waiting (stretch)",
    "cpu": "CPU time",
    "gpu": "GPU time",
    "user": "user",
    "sys": "sys",
    "real": "real, with the engine's start",
}
_OF_PROCESSES: Final = ("user", "sys", "real")
_ORDER: Final[tuple[Outcome, ...]] = tuple(SYMBOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison as a row of a table."""

    anchor: str
    host: str
    verdict: Verdict
    is_control: bool
    mark: Mark | None
    metric: str  # "net" or "wall"
    steps: str
    rate: str
    start: str
    wall: tuple[str, str] | None  # number and interval
    parts: tuple[tuple[str, str] | None, ...]  # the same for each of the metrics shown
    text: str
    notes: tuple[str, ...]
    log: Link | None
    rank: int  # of the outcome, for sorting
    log_ratio: str  # for sorting


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One environment as a row of the answer, where the comparisons are many."""

    headline: Headline
    mean: str
    counts: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCell:
    """One workload in one environment, a symbol for each host and set of parameters."""

    outcome: Outcome | None
    number: str = ""
    word: str = ""
    symbols: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Workload × environment."""

    arms: tuple[str, ...]
    rows: tuple[tuple[str, tuple[OverviewCell, ...]], ...]


def shown_metrics(run: RunComparison) -> tuple[str, ...]:
    """Return the metrics that have a column; those of whole processes only where there are any."""
    hidden = () if has_programs(run) else _OF_PROCESSES
    return tuple(metric for metric in METRICS if metric not in hidden)


def comparison_rows(run: RunComparison, on: Axis, *, files: tuple[str, ...]) -> tuple[Row, ...]:
    """Return all comparisons in the order of the arms, the controls last."""
    labels = cell_labels(run)
    arms = list(dict.fromkeys(one.arm for one in run.comparisons))
    found = sorted(
        (one for one in run.comparisons if one.outcome != "reference"),
        key=lambda one: (one.is_control, arms.index(one.arm)),
    )
    return tuple(_row(run, one, label=labels[one.cell], on=on, files=files) for one in found)


def arm_row(headline: Headline, rows: tuple[Row, ...]) -> ArmRow:
    """Return the row of one environment: how many cells had which outcome, all their marks."""
    counts = Counter(one.outcome for one in headline.verdicts)
    mean = mean_log_ratio(headline.verdicts)
    marks = (row.mark for row in rows if row.verdict in headline.verdicts and not row.is_control)
    return ArmRow(
        headline=headline,
        mean=NOT_MEASURED if mean is None else signed_percent(mean),
        counts=", ".join(
            f"{counts[outcome]} {WORDS.get(outcome, outcome)}"
            for outcome in _ORDER
            if counts[outcome]
        ),
        marks=tuple(one for one in marks if one is not None),
    )


def overview(rows: tuple[Row, ...], run: RunComparison) -> Overview:
    """Return the matrix of workloads and environments."""
    compared = [row for row in rows if not row.is_control]
    workload_of = {one.cell: one.workload for one in run.comparisons}
    arms = tuple(dict.fromkeys(row.verdict.arm for row in compared))
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in compared:
        groups.setdefault((workload_of[row.verdict.cell_id], row.verdict.arm), []).append(row)
    workloads = dict.fromkeys(workload for workload, _ in groups)
    return Overview(
        arms=arms,
        rows=tuple(
            (workload, tuple(_overview_cell(groups.get((workload, arm), [])) for arm in arms))
            for workload in workloads
        ),
    )


def _row(
    run: RunComparison, one: Comparison, *, label: str, on: Axis, files: tuple[str, ...]
) -> Row:
    primary, words = one.primary, verdict(one, label=label, margin=run.margin)
    return Row(
        anchor=_anchor(one),
        host=one.host,
        verdict=words,
        is_control=one.is_control,
        mark=mark(primary, one.outcome, on=on),
        metric=primary.metric if primary else "",
        steps=step_times(run, words),
        rate=_rate(run, words),
        start=_engine_start(run, one),
        wall=_pair(one, "wall"),
        parts=tuple(_pair(one, metric) for metric in shown_metrics(run)),
        text=_CONTROL_TEXT if one.is_control else words.text,
        notes=_notes(one, words),
        log=link(one.failure.log if one.failure else "", files),
        rank=_ORDER.index(one.outcome),
        log_ratio="" if primary is None else f"{primary.log_ratio:.6f}",
    )


def _anchor(one: Comparison) -> str:
    """Return an id that stays when the page is drawn again."""
    text = f"{one.cell}\0{one.arm}".encode(errors="backslashreplace")
    return f"c{hashlib.sha256(text).hexdigest()[:12]}"


def _notes(one: Comparison, words: Verdict) -> tuple[str, ...]:
    """Return what stands small under the sentence of a row."""
    found = (_replication(one.primary), *words.remarks)
    return tuple(note for note in found if note)


def _pair(one: Comparison, metric: str) -> tuple[str, str] | None:
    found = find_estimate(one, metric)
    if found is None:
        return None
    return signed_percent(found.log_ratio), signed_interval(found.low, found.high)


def _replication(primary: Estimate | None) -> str:
    if primary is None:
        return ""
    if primary.unit == "process":
        return f"{counted(primary.rounds, 'round')} of whole processes"
    generations = counted(primary.generations, "generation")
    unit = ", unit restart" if primary.unit == "restart" else ""
    return f"{generations} in {counted(primary.restarts, 'restart')}{unit}"


def _rate(run: RunComparison, words: Verdict) -> str:
    arms = (run.reference_arm, words.arm)
    found = [steps_of(run, words.cell_id, arm) for arm in arms]
    rates = [one.samples_per_s if one else None for one in found]
    if None in rates:
        return ""
    return " → ".join(three_digits(rate) for rate in rates if rate is not None) + "/s"


def _engine_start(run: RunComparison, one: Comparison) -> str:
    for found in run.startup:
        if (found.cell, found.arm) == (one.cell, one.arm):
            times = [part.median_s for part in found.parts if part.phase == "engine"]
            return duration(times[0]) if times else NOT_MEASURED
    return NOT_MEASURED


def _overview_cell(rows: list[Row]) -> OverviewCell:
    if not rows:
        return OverviewCell(outcome=None)
    verdicts = tuple(row.verdict for row in rows)
    mean = mean_log_ratio(verdicts)
    outcomes = {one.outcome for one in verdicts}
    same = verdicts[0] if len(outcomes) == 1 else None
    return OverviewCell(
        outcome=same.outcome if same else None,
        number=signed_percent(mean) if mean is not None else "",
        word=same.word if same else "mixed",
        symbols=" ".join(one.symbol + "⚠" * one.is_confounded for one in verdicts),
        href=f"#{rows[0].anchor}",
    )
