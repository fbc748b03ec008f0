"""All comparisons, one row each: the verdict, its interval, and every measured metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    Comparison,
    Estimate,
    Outcome,
    RunComparison,
    StepTimes,
    Tail,
)
from envcompare.fingerprint.sentences import describe
from envcompare.report import (
    Axis,
    Block,
    Column,
    Filter,
    Fold,
    Line,
    Link,
    Mark,
    Row,
    Section,
    Span,
    Table,
    Words,
    mark,
    table_of,
    texts,
)
from envcompare.report.sections import link
from envcompare.report.wording import (
    NOT_MEASURED,
    cell_labels,
    has_programs,
    listed,
    margin_percent,
    paired_times,
    piece_word,
    points_interval,
    reference_name,
    row_anchor,
    share_text,
    signed_interval,
    signed_percent,
    three_digits,
    work_labels,
)
from envcompare.report.wording.verdicts import (
    SYMBOLS,
    WORDS,
    Verdict,
    estimate_cell,
    estimate_line,
    find_estimate,
    outcome_badge,
    verdict,
)
from envcompare.stats.verdicts import least_steps
from envcompare.text import counted, shortened, visible

METRICS: Final[dict[str, str]] = {
    "net": "typical step (net)",
    "wall": "on the clock (wall)",
    "stretch": "waiting (stretch)",
    "cpu": "CPU time",
    "gpu": "GPU time",
    "user": "user",
    "sys": "sys",
    "real": "real, with the engine's start",
    "p99": "99th percentile of the times",
}
TYPICAL: Final = "(typical step)"
_CONTROL_TEXT: Final = "the reference against itself"
_PARTS: Final = (
    "The verdict rests on the change in bold. A slow step takes more than 1.5 times the median of "
    "its environment. Percentiles and slow steps need 100 steps of each environment; their "
    "intervals hold at 95 % each."
)
_TAIL: Final = STEP_PROBABILITIES.index(0.99)
_LEAST_COVERED: Final = 9  # steps; fewer cannot show slow ones
_OF_PROCESSES: Final = ("user", "sys", "real")
_ORDER: Final[tuple[Outcome, ...]] = tuple(SYMBOLS)


class _Figure(NamedTuple):
    """A change on one metric: its number and interval, and the log ratios that draw them."""

    number: str
    interval: str
    places: str  # the log ratio and, where there is an interval, its ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One comparison in words and figures, for several tables."""

    comparison: Comparison
    verdict: Verdict
    work: str  # the label of the cell without the host
    mark: Mark | None
    steps: str  # "41.3 → 44.8 ms"
    figures: Mapping[str, _Figure | None]  # by metric
    notes: tuple[str, ...]

    @property
    def anchor(self) -> str:
        """Return the id of this row in the table of all comparisons."""
        return row_anchor(self.comparison.cell, self.comparison.arm)

    @property
    def is_control(self) -> bool:
        """Say whether the reference is compared with itself."""
        return self.comparison.is_control

    @property
    def size(self) -> float:
        """Return the absolute log ratio."""
        return abs(self.verdict.log_ratio or 0.0)


def comparison_rows(run: RunComparison, axis: Axis) -> tuple[ComparedRow, ...]:
    """Return all comparisons in the order of the arms, with the controls last."""
    # what differs besides the environment, by host and arm: "cuDNN 9.1.0 → 9.5.1"
    texts_of: dict[tuple[str, str], list[str]] = {}
    for difference in run.differences:
        if difference.fact_class == "confounder" and not difference.part_of:
            text = shortened(describe(difference), most=80)
            texts_of.setdefault((difference.host, difference.arm), []).append(text)
    mixed = {key: listed(list(dict.fromkeys(words)), most=2) for key, words in texts_of.items()}
    labels, works = cell_labels(run), work_labels(run)
    arms = list(dict.fromkeys(one.arm for one in run.comparisons))
    ordered = sorted(
        (comparison for comparison in run.comparisons if comparison.outcome != "reference"),
        key=lambda comparison: (comparison.is_control, arms.index(comparison.arm)),
    )
    rows = []
    for comparison in ordered:
        words = verdict(comparison, label=labels[comparison.cell], margin=run.settings.margin)
        caution = mixed.get((comparison.host, comparison.arm), "") * words.is_confounded
        mixed_text = visible(f"⚠ {caution}") if caution else ""
        notes = (mixed_text, _replication(comparison.primary), *words.remarks)
        rows.append(
            ComparedRow(
                comparison=comparison,
                verdict=words,
                work=works[comparison.cell],
                mark=mark(comparison.deciding, comparison.outcome, on=axis),
                steps=step_times(run, words),
                figures={name: _figure(run, comparison, name) for name in METRICS},
                notes=tuple(note for note in notes if note),
            )
        )
    return tuple(rows)


def _figure(run: RunComparison, comparison: Comparison, metric: str) -> _Figure | None:
    if metric == "p99":
        both = _steps_of_both(run, comparison.cell, comparison.arm)
        times = [steps.quantiles_s[_TAIL] for steps in both if steps and steps.quantiles_s]
        if len(times) < len(both) or min(times) <= 0:
            return None
        log_ratio = math.log(times[1] / times[0])
        return _Figure(signed_percent(log_ratio), signed_interval(None, None), f"{log_ratio:.4f}")
    estimate = find_estimate(comparison, metric)
    if estimate is None:
        return None
    ends = (estimate.log_ratio, estimate.low, estimate.high)
    return _Figure(
        number=signed_percent(estimate.log_ratio),
        interval=signed_interval(estimate.low, estimate.high),
        places=" ".join(f"{end:.4f}" for end in ends if end is not None),
    )


def _replication(primary: Estimate | None) -> str:
    if primary is None:
        return ""
    if primary.unit == "process":
        return f"{counted(primary.rounds, 'round')} of whole processes"
    rounds = counted(primary.rounds, "round")
    unit = ", unit restart" if primary.unit == "restart" else ""
    return f"{rounds} in {counted(primary.restarts, 'restart')}{unit}"


def step_times(run: RunComparison, words: Verdict) -> str:
    """Return "41.3 → 44.8 ms": the reference's mean step, and that time multiplied by the ratio.

    Of a verdict on the typical step it is that step. Without a ratio, return medians.
    """
    before, ratio = words.reference_step_s, words.log_ratio
    if before is None or ratio is None:
        return _median_times(run, words)
    return paired_times(before, before * math.exp(ratio))


def _median_times(run: RunComparison, words: Verdict) -> str:
    both = _steps_of_both(run, words.cell_id, words.arm)
    before, after = (None if steps is None else steps.median_s for steps in both)
    return paired_times(before, after)


def _steps_of_both(run: RunComparison, cell_id: str, arm: str) -> list[StepTimes | None]:
    """Return the step times of the reference and of an arm in a cell, each None without any."""
    cell = next((one for one in run.cells if one.id == cell_id), None)
    by_arm = {steps.arm: steps for steps in cell.step_times} if cell else {}
    return [by_arm.get(name) for name in (run.reference_in(cell_id), arm)]


def badges(words: Verdict) -> tuple[Span, ...]:
    """Return badges for the verdict and for confounders."""
    confounded = Span(text="⚠ confounded", style="badge confounded")
    return (outcome_badge(words.outcome), *(confounded,) * words.is_confounded)


def comparisons_section(
    run: RunComparison,
    rows: tuple[ComparedRow, ...],
    axis: Axis,
    *,
    folds: Mapping[str, str],
    files: tuple[str, ...],
) -> Section:
    """Return the filter, the table of all comparisons, and all metrics."""
    piece, reference = piece_word(run), reference_name(run)
    shown = {row.verdict.outcome for row in rows}
    intro = (
        f"Change of the mean {piece} time against {reference}, without waits for a CPU that others "
        "held unless the row says “of wall time”. The band is the margin of "
        f"±{margin_percent(run.settings.margin)}."
    )
    metrics = tuple(metric for metric in METRICS if any(row.figures[metric] for row in rows))
    choice = Filter(
        outcomes=tuple((outcome, WORDS[outcome]) for outcome in SYMBOLS if outcome in shown),
        metrics=tuple(METRICS[name] for name in metrics),
        has_confounded=any(row.verdict.is_confounded for row in rows),
    )
    table = _comparisons_table(run, rows, axis, folds=folds, files=files)
    hidden = () if has_programs(run) else _OF_PROCESSES
    if not any(times.quantiles_s for cell in run.cells for times in cell.step_times):
        hidden = (*hidden, "p99")
    possible = tuple(metric for metric in METRICS if metric not in hidden)
    missing = [METRICS[name] for name in possible if name not in metrics]
    tail = " The 99th percentile has no interval." * ("p99" in possible)
    unmeasured = f" Not measured: {', '.join(missing)}." * bool(missing)
    every = Fold(
        summary="Every metric of each comparison",
        blocks=(
            *texts(f"Clock and waiting are means of all steps.{tail}{unmeasured}"),
            _metrics_table(run, rows, metrics),
        ),
    )
    parts = _parts_folds(run, rows)
    blocks: tuple[Block, ...] = (Line(text=intro), choice, table, *parts, every)
    return Section(anchor="all", title="All comparisons", blocks=blocks)


def _comparisons_table(
    run: RunComparison,
    rows: tuple[ComparedRow, ...],
    axis: Axis,
    *,
    folds: Mapping[str, str],
    files: tuple[str, ...],
) -> Table:
    """Return a row for each comparison; the script can sort, filter and redraw the rows."""
    has_hosts = len({row.comparison.host for row in rows}) > 1
    piece = piece_word(run).capitalize()
    hosts = (Column(head="Host", kind="name", is_sorted=True),) * has_hosts
    return Table(
        label="Table of all comparisons",
        anchor="comparisons",
        attributes=(("data-low", str(axis.low)), ("data-high", str(axis.high))),
        columns=(
            Column(head="Workload", kind="name", is_sorted=True, is_row_head=True),
            *hosts,
            Column(head="Environment", kind="name", is_sorted=True),
            Column(head="Verdict", is_sorted=True),
            Column(head="Change", kind="number", is_sorted=True),
            Column(kind="interval", axis=axis),
            Column(head=f"{piece}\n{reference_name(run)} → this", kind="figure"),
            Column(head="Notes", kind="notes"),
        ),
        rows=tuple(
            _row(run, row, has_hosts=has_hosts, fold=folds.get(row.anchor, ""), files=files)
            for row in rows
        ),
    )


def _row(
    run: RunComparison, row: ComparedRow, *, has_hosts: bool, fold: str, files: tuple[str, ...]
) -> Row:
    words, comparison = row.verdict, row.comparison
    confounded = (("data-confounded", ""),) * words.is_confounded
    deciding = comparison.deciding
    of_wall = "of wall time" if deciding and deciding.metric == "wall" else ""
    key = "" if deciding is None else f"{deciding.log_ratio:.6f}"
    return Row(
        anchor=row.anchor,
        style="control" if row.is_control else "",
        attributes=(("data-outcome", words.outcome), *confounded),
        cells=(
            row.work if has_hosts else words.cell,
            *(comparison.host,) * has_hosts,
            _arm_cell(row),
            Line(
                before=badges(words),
                attributes=(("data-key", str(_ORDER.index(words.outcome))),),
            ),
            Line(
                strong=words.number,
                text="" if words.number else NOT_MEASURED,
                below=(words.interval, of_wall),
                attributes=(("data-change", ""), ("data-key", key)),
            ),
            Line(marks=(row.mark,) if row.mark else ()),
            Line(text=row.steps, below=(TYPICAL * words.is_typical, _rate(run, words))),
            _notes_cell(row, fold=fold, files=files),
        ),
    )


def _arm_cell(row: ComparedRow) -> Words:
    return Line(text=row.verdict.arm, below=("A/A control",) * row.is_control)


def _rate(run: RunComparison, words: Verdict) -> str:
    """Return samples per second at the times of the row; empty without a batch size."""
    both = _steps_of_both(run, words.cell_id, words.arm)
    rates = [steps.samples_per_s if steps else None for steps in both]
    first = both[0]
    if first is None or rates[0] is None or rates[1] is None:
        return ""
    if words.reference_step_s and words.log_ratio is not None:
        base = rates[0] * first.median_s / words.reference_step_s
        rates = [base, base * math.exp(-words.log_ratio)]
    return " → ".join(three_digits(rate) for rate in rates if rate is not None) + " samples/s"


def _notes_cell(row: ComparedRow, *, fold: str, files: tuple[str, ...]) -> Line:
    failure = row.comparison.failure
    log = link(failure.log, files) if failure else None
    to_fold = Link(text="Why", href=f"#{fold}", style="goto")
    is_plain = row.verdict.outcome == "equivalent" and not row.verdict.remark
    return Line(
        text=_CONTROL_TEXT if row.is_control else row.verdict.text * (not is_plain),
        below=("; ".join(row.notes),),
        last=(*(() if log is None else (Span(text="log: "), log)), *(to_fold,) * bool(fold)),
    )


def _parts_folds(run: RunComparison, rows: tuple[ComparedRow, ...]) -> tuple[Fold, ...]:
    """Return typical step, mean and tail side by side; empty if all comparisons are of programs."""
    measured = [row for row in rows if row.comparison.mean is not None]
    if not measured:
        return ()
    has_hosts = len({row.comparison.host for row in rows}) > 1

    def figure(comparison: Comparison, estimate: Estimate | None) -> Words:
        # in bold if the verdict rests on it
        return estimate_cell(estimate, is_strong=estimate is comparison.deciding)

    table = table_of(
        "Typical step, mean and tail of each comparison",
        measured,
        ("Workload", "name", lambda row: row.work if has_hosts else row.verdict.cell),
        *((("Host", "name", lambda row: row.comparison.host),) * has_hosts),
        ("Environment", "name", _arm_cell),
        ("Typical step", "number", lambda row: figure(row.comparison, row.comparison.primary)),
        ("Mean of all steps", "number", lambda row: figure(row.comparison, row.comparison.mean)),
        ("90th percentile", "number", lambda row: _percentile_cell(row.comparison.tail)),
        (
            f"Median on the clock\n{reference_name(run)} → this",
            "figure",
            lambda row: _median_times(run, row.verdict),
        ),
        (
            f"Slow steps\n{reference_name(run)} → this",
            "number",
            lambda row: _slow_cell(row, margin=run.settings.margin),
        ),
    )
    return (Fold(summary="Typical step, mean and tail", blocks=(Line(text=_PARTS), table)),)


def _percentile_cell(tail: Tail | None) -> Words:
    if tail is None or tail.p90_log_ratio is None:
        return NOT_MEASURED
    return estimate_line(tail.p90_log_ratio, tail.p90_low, tail.p90_high)


def _slow_cell(row: ComparedRow, *, margin: float) -> Words:
    tail, steps = row.comparison.tail, row.comparison.steps
    rare = f"rarer than 1 in {steps // 3}: not covered" if steps and steps >= _LEAST_COVERED else ""
    unseen = (rare,) if steps and steps < least_steps(margin) else ()
    if tail is None:
        return Line(text=NOT_MEASURED, below=unseen)
    return Line(
        text=f"{share_text(tail.reference_share)} → {share_text(tail.share)}",
        below=(points_interval(tail.difference_low, tail.difference_high), *unseen),
    )


def _metrics_table(
    run: RunComparison, rows: tuple[ComparedRow, ...], metrics: tuple[str, ...]
) -> Table:
    """Return every figure in the order of the rows; the script reads them from this table."""
    return Table(
        label=f"Parts of the {piece_word(run)} time",
        anchor="metrics",
        columns=(
            Column(head="Workload", kind="name", is_row_head=True),
            Column(head="Environment", kind="name"),
            *(Column(head=METRICS[name], kind="number") for name in metrics),
        ),
        rows=tuple(
            Row(
                style="control" if row.is_control else "",
                cells=(
                    row.verdict.cell,
                    row.verdict.arm,
                    *(_figure_cell(row.figures[name]) for name in metrics),
                ),
            )
            for row in rows
        ),
    )


def _figure_cell(figure: _Figure | None) -> Words:
    if figure is None:
        return NOT_MEASURED
    places = (("data-places", figure.places),)
    return Line(text=figure.number, below=(figure.interval,), attributes=places)
