"""The rows of the answer, of the overview and of all comparisons."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from envcompare.analysis.model.comparison import (
    STEP_PROBABILITIES,
    Comparison,
    Estimate,
    Outcome,
    RunComparison,
    StepTimes,
)
from envcompare.fingerprint.sentences import describe
from envcompare.report.format.marks import Axis, Mark, mark
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    listed,
    paired_times,
    signed_interval,
    signed_percent,
    three_digits,
)
from envcompare.report.sections.links import Link, link
from envcompare.report.wording.headlines import Headline, mean_log_ratio
from envcompare.report.wording.labels import cell_labels, has_programs, row_anchor
from envcompare.report.wording.verdicts import SYMBOLS, WORDS, Verdict, find_estimate, verdict
from envcompare.text import counted, shortened, visible

_FEW_ROWS: Final = 4  # whose remarks have room for three lines each
_ONE_LINE: Final = 48  # characters
_CONTROL_TEXT: Final = "the reference against itself: what chance alone gives"
METRICS: Final[dict[str, str]] = {
    "net": "net",
    "wall": "on the clock (wall)",
    "stretch": "waiting (stretch)",
    "cpu": "CPU time",
    "gpu": "GPU time",
    "user": "user",
    "sys": "sys",
    "real": "real, with the engine's start",
    "p99": "99th percentile of the times",
}
_TAIL: Final = STEP_PROBABILITIES.index(0.99)
_OF_PROCESSES: Final = ("user", "sys", "real")
_ORDER: Final[tuple[Outcome, ...]] = tuple(SYMBOLS)


class Figure(NamedTuple):
    """A change on one metric: its number, its interval, and the log ratios to draw them from."""

    number: str
    interval: str
    places: str  # the log ratio and, where there is an interval, its ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison as a row of a table."""

    anchor: str
    host: str
    work: str  # the label of the cell without the host
    verdict: Verdict
    brief: str  # the verdict's remark, on one line where the answer has many rows
    is_control: bool
    mark: Mark | None
    metric: str  # "net" or "wall"
    steps: str
    rate: str
    start: str
    wall: Figure | None
    parts: tuple[Figure | None, ...]  # one for each of the metrics shown
    text: str
    notes: tuple[str, ...]
    log: Link | None
    rank: int  # of the outcome, for sorting
    log_ratio: str  # for sorting

    @property
    def is_line(self) -> bool:
        """Say whether the answer has room for the remark on one line."""
        return len(self.brief) <= _ONE_LINE


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One environment as a row of the answer, where the comparisons are many."""

    headline: Headline
    mean: str
    counts: str
    confounded: str  # how many are, and the mean of the others
    marks: tuple[Mark, ...]


def shown_metrics(run: RunComparison) -> tuple[str, ...]:
    """Return the metrics that have a column; those of whole processes only where there are any."""
    hidden = () if has_programs(run) else _OF_PROCESSES
    if not any(one.quantiles_s for cell in run.cells for one in cell.step_times):
        hidden = (*hidden, "p99")
    return tuple(metric for metric in METRICS if metric not in hidden)


def measured_metrics(run: RunComparison, rows: tuple[Row, ...]) -> tuple[tuple[int, str], ...]:
    """Return the metrics that any row has a figure of, each with its column among those shown."""
    return tuple(
        (column, METRICS[metric])
        for column, metric in enumerate(shown_metrics(run))
        if any(row.parts[column] for row in rows)
    )


def comparison_rows(run: RunComparison, on: Axis, *, files: tuple[str, ...]) -> tuple[Row, ...]:
    """Return all comparisons in the order of the arms, the controls last."""
    labels = cell_labels(run)
    arms = list(dict.fromkeys(one.arm for one in run.comparisons))
    found = sorted(
        (one for one in run.comparisons if one.outcome != "reference"),
        key=lambda one: (one.is_control, arms.index(one.arm)),
    )
    mixed, compared = _mixed(run), sum(not one.is_control for one in found)
    return tuple(
        _brief(
            _noted(
                _row(run, one, label=labels[one.cell], on=on, files=files),
                mixed.get((one.host, one.arm), ""),
            ),
            rows=compared,
        )
        for one in found
    )


def _brief(row: Row, *, rows: int) -> Row:
    """Keep the answer on the first screen; the whole remark stands in All comparisons."""
    if rows <= _FEW_ROWS or row.is_line:
        return row
    forecast, _, _ = row.brief.partition(" (ran ")  # which All comparisons tells
    start = row.brief[: _ONE_LINE - 1]
    cut = f"{start.rpartition(' ')[0] or start}…"
    return replace(row, brief=forecast if len(forecast) <= _ONE_LINE else cut)


def _mixed(run: RunComparison) -> dict[tuple[str, str], str]:
    """Return what differs besides the environment, by host and arm: "cuDNN 9.1.0 → 9.5.1"."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in run.differences:
        if one.fact_class == "confounder" and not one.part_of:
            found.setdefault((one.host, one.arm), []).append(shortened(describe(one), most=80))
    return {key: listed(list(dict.fromkeys(words)), most=2) for key, words in found.items()}


def _noted(row: Row, mixed: str) -> Row:
    if not mixed or not row.verdict.is_confounded:
        return row
    return replace(row, notes=(visible(f"⚠ {mixed}"), *row.notes))


def arm_row(headline: Headline, rows: tuple[Row, ...]) -> ArmRow:
    """Return the row of one environment: how many cells had which outcome, all their marks."""
    counts = Counter(one.outcome for one in headline.verdicts)
    mean = mean_log_ratio(headline.verdicts)
    own = {(one.cell_id, one.arm) for one in headline.verdicts}
    found = (row for row in rows if (row.verdict.cell_id, row.verdict.arm) in own)
    drawn = (row.mark for row in found if not row.is_control)
    marks = {(one.outcome, one.x): one for one in drawn if one is not None}  # one at a place
    return ArmRow(
        headline=headline,
        mean=NOT_MEASURED if mean is None else signed_percent(mean),
        counts=", ".join(
            f"{counts[outcome]} {WORDS[outcome]}" for outcome in _ORDER if counts[outcome]
        ),
        confounded=_confounded(headline),
        marks=tuple(marks.values()),
    )


def _confounded(headline: Headline) -> str:
    count = sum(one.is_confounded for one in headline.verdicts)
    if not count:
        return ""
    mean = mean_log_ratio(tuple(one for one in headline.verdicts if not one.is_confounded))
    without = "" if mean is None else f"; without them {signed_percent(mean)} in the mean"
    return f"⚠ {count} confounded{without}"


def _row(
    run: RunComparison, one: Comparison, *, label: str, on: Axis, files: tuple[str, ...]
) -> Row:
    primary, words = one.primary, verdict(one, label=label, margin=run.margin)
    return Row(
        anchor=row_anchor(one.cell, one.arm),
        host=one.host,
        work=label.removesuffix(f" on {one.host}"),
        verdict=words,
        brief=words.remark,
        is_control=one.is_control,
        mark=mark(primary, one.outcome, on=on),
        metric=primary.metric if primary else "",
        steps=step_times(run, words),
        rate=_rate(run, words),
        start=_engine_start(run, one),
        wall=_figure(run, one, "wall"),
        parts=tuple(_figure(run, one, metric) for metric in shown_metrics(run)),
        text=_CONTROL_TEXT if one.is_control else words.text,
        notes=_notes(one, words),
        log=link(one.failure.log if one.failure else "", files),
        rank=_ORDER.index(one.outcome),
        log_ratio="" if primary is None else f"{primary.log_ratio:.6f}",
    )


def _notes(one: Comparison, words: Verdict) -> tuple[str, ...]:
    """Return what stands small under the sentence of a row."""
    found = (_replication(one.primary), *words.remarks)
    return tuple(note for note in found if note)


def _figure(run: RunComparison, one: Comparison, metric: str) -> Figure | None:
    if metric == "p99":
        return _tail(run, one)
    found = find_estimate(one, metric)
    if found is None:
        return None
    places = (place for place in (found.log_ratio, found.low, found.high) if place is not None)
    return Figure(
        number=signed_percent(found.log_ratio),
        interval=signed_interval(found.low, found.high),
        places=" ".join(f"{place:.4f}" for place in places),
    )


def _tail(run: RunComparison, one: Comparison) -> Figure | None:
    """Return the change of the 99th percentile of all times: a description, no interval."""
    found = [steps_of(run, one.cell, arm) for arm in (run.reference_arm, one.arm)]
    times = [steps.quantiles_s[_TAIL] for steps in found if steps and steps.quantiles_s]
    if len(times) < len(found) or min(times) <= 0:
        return None
    log_ratio = math.log(times[1] / times[0])
    return Figure(signed_percent(log_ratio), signed_interval(None, None), f"{log_ratio:.4f}")


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
    return " → ".join(three_digits(rate) for rate in rates if rate is not None) + " samples/s"


def _engine_start(run: RunComparison, one: Comparison) -> str:
    """Return "28.5 → 307 ms": how long the engine takes before the workload is on."""
    starts = [found for found in run.startup if found.cell == one.cell]
    starts.sort(key=lambda found: found.page_cache != "cold")  # a warm start overrules a cold one
    medians = {
        found.arm: part.median_s
        for found in starts
        for part in found.parts
        if part.phase == "engine"
    }
    return paired_times(medians.get(run.reference_arm), medians.get(one.arm))


def step_times(run: RunComparison, one: Verdict) -> str:
    """Return "41.3 → 44.8 ms", the medians of the reference and of the arm."""
    found = (steps_of(run, one.cell_id, arm) for arm in (run.reference_arm, one.arm))
    before, after = (None if steps is None else steps.median_s for steps in found)
    return paired_times(before, after)


def steps_of(run: RunComparison, cell_id: str, arm: str) -> StepTimes | None:
    """Return the step times of an arm in a cell, None where it took none."""
    cell = next((one for one in run.cells if one.id == cell_id), None)
    steps = () if cell is None else cell.step_times
    return next((one for one in steps if one.arm == arm), None)
