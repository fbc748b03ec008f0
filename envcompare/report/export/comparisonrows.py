"""The tidy table of a run: a row for each comparison and metric, and what its columns mean.

A comparison without a value has one row, whose numbers are not there: None, never 0. An arm of
which there are imported profiles alone has a row for each quantity they tell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from envcompare.analysis.model.comparison import (
    ArmSummary,
    CellSummary,
    Comparison,
    Estimate,
    RunComparison,
    StepTimes,
)
from envcompare.analysis.model.profiling import QuantityRow
from envcompare.report.sections.quantitytables import why_no_ratio
from envcompare.run_folder.records import Scalar
from envcompare.text import visible

Value = str | int | float | bool | None
Kind = Literal["text", "whole number", "number", "yes or no"]
_LARGEST_LOG: Final = 700.0  # e^700 is a number still, e^710 is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a row is made of; without a value there is no estimate, and there are no times.

    The arm and the cell are those of `place`, which is the comparison where the row is of one.
    """

    run: RunComparison
    place: Comparison | UntimedArm
    comparison: Comparison | None = None
    cell: CellSummary | None = None
    estimate: Estimate | None = None
    times: StepTimes | None = None
    reference: StepTimes | None = None
    quantity: QuantityRow | None = None
    against: QuantityRow | None = None  # the same of the reference


@dataclass(frozen=True, slots=True, kw_only=True)
class UntimedArm:
    """An arm in a cell that has imported profiles alone, named as a comparison names its own."""

    host: str
    workload: str
    cell: str
    parameters: Mapping[str, Scalar]
    arm: str
    environment: str
    stack: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its name, the kind of its values, what it means, and how it is read."""

    name: str
    kind: Kind
    meaning: str
    read: Callable[[Source], Value]


def rows(run: RunComparison) -> Iterator[tuple[Value, ...]]:
    """Yield the rows in the order of comparison.json, each with a value for every column."""
    for source in (*_sources(run), *_of_quantities(run)):
        yield tuple(_told(column.read(source)) for column in COLUMNS)


def _sources(run: RunComparison) -> Iterator[Source]:
    cells = {cell.id: cell for cell in run.cells}
    times = {(cell.id, one.arm): one for cell in run.cells for one in cell.step_times}
    for one in run.comparisons:
        cell = cells.get(one.cell)
        if one.primary is None:
            yield Source(run=run, place=one, comparison=one, cell=cell)
            continue
        for estimate in (one.primary, *one.secondary):
            yield Source(
                run=run,
                place=one,
                comparison=one,
                cell=cell,
                estimate=estimate,
                times=times.get((one.cell, one.arm)),
                reference=times.get((one.cell, run.reference_arm)),
            )


def _of_quantities(run: RunComparison) -> Iterator[Source]:
    """Yield the quantities of the arms that were not timed, the reference's own as well."""
    cells = {cell.id: cell for cell in run.cells}
    untimed = {(one.host, one.arm): one for one in run.arms if not one.is_timed}
    for profiles in run.profiles:
        of = {arm.arm: arm.quantities for arm in profiles.arms}
        base = {_key(row): row for row in reversed(of.get(profiles.reference, ()))}
        for arm, rows in of.items():
            known, cell = untimed.get((profiles.host, arm)), cells.get(profiles.cell)
            if known is None or cell is None:
                continue
            is_reference = arm == profiles.reference
            for row in rows:
                yield Source(
                    run=run,
                    place=_untimed(known, cell),
                    cell=cell,
                    quantity=row,
                    against=None if is_reference else base.get(_key(row)),
                )


def _key(row: QuantityRow) -> tuple[str, str, str, int | None]:
    """Return what a quantity shares with that of the reference: name, pass, tool and GPU."""
    return (row.name, row.kind, row.tool or "", row.gpu)


def _untimed(arm: ArmSummary, cell: CellSummary) -> UntimedArm:
    return UntimedArm(
        host=arm.host,
        workload=cell.workload,
        cell=cell.id,
        parameters=cell.parameters,
        arm=arm.arm,
        environment=arm.environment,
        stack=arm.stack,
    )


def _told(value: Value) -> Value:
    """Return a value as both formats hold it: no empty text or hidden character, no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return visible(value) or None if isinstance(value, str) else value


def _of_run(name: str) -> Callable[[Source], Value]:
    return lambda source: getattr(source.run, name)


def _of_place(name: str) -> Callable[[Source], Value]:
    return lambda source: getattr(source.place, name)


def _of(part: str, name: str) -> Callable[[Source], Value]:
    """Return what reads a field of a part of the source that may not be there."""
    return lambda source: getattr(getattr(source, part), name, None)


def _ratio(name: str) -> Callable[[Source], Value]:
    def read(source: Source) -> Value:
        if source.quantity is not None and name == "log_ratio":
            return source.quantity.ratio
        found = getattr(source.estimate, name, None)
        return None if found is None or abs(found) > _LARGEST_LOG else math.exp(found)

    return read


def _metric(source: Source) -> Value:
    quantity, estimate = source.quantity, source.estimate
    return getattr(estimate, "metric", None) if quantity is None else quantity.name


def _reason(source: Source) -> Value:
    if source.quantity is None:
        return getattr(source.comparison, "reason", None)
    return "; ".join(filter(None, (source.quantity.reason, why_no_ratio(source.quantity))))


def _failure(name: str) -> Callable[[Source], Value]:
    return lambda source: getattr(getattr(source.comparison, "failure", None), name, None)


def _spelt(parameters: Mapping[str, Scalar]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(parameters.items()))


def _json(parameters: Mapping[str, Scalar]) -> str:
    return json.dumps(dict(parameters), sort_keys=True) if parameters else ""


def _is_primary(source: Source) -> Value:
    primary = getattr(source.comparison, "primary", None)
    return None if source.estimate is None else source.estimate is primary


def _text(name: str, meaning: str, read: Callable[[Source], Value]) -> Column:
    return Column(name=name, kind="text", meaning=meaning, read=read)


def _flag(name: str, meaning: str, read: Callable[[Source], Value]) -> Column:
    return Column(name=name, kind="yes or no", meaning=meaning, read=read)


def _count(name: str, meaning: str, read: Callable[[Source], Value]) -> Column:
    return Column(name=name, kind="whole number", meaning=meaning, read=read)


def _number(name: str, meaning: str, read: Callable[[Source], Value]) -> Column:
    return Column(name=name, kind="number", meaning=meaning, read=read)


COLUMNS: Final = (
    _text("run_id", "The run, as its folder is called", _of_run("run_id")),
    _text("created", "When the run began (UTC)", _of_run("created")),
    _text("tool_version", "The envcompare that measured", _of_run("tool_version")),
    _text("host", "The machine", _of_place("host")),
    _text("workload", "What was run", _of_place("workload")),
    _text("cell", "Host, workload and parameters in one", _of_place("cell")),
    _text(
        "parameters",
        "Parameters of the workload as `k=v,k=v`, sorted; empty where all are defaults",
        lambda source: _spelt(source.place.parameters),
    ),
    _text(
        "parameters_json",
        "The same as a JSON object, which tells numbers from text",
        lambda source: _json(source.place.parameters),
    ),
    _text("arm", "The environment that is compared", _of_place("arm")),
    _text("environment", "Its kind: vm, docker, singularity", _of_place("environment")),
    _text("stack", "Its software: image, or host's own", _of_place("stack")),
    _text("reference_arm", "What it is compared with", _of_run("reference_arm")),
    _flag(
        "is_control",
        "The arm is the reference measured a second time: any difference is noise",
        _of("comparison", "is_control"),
    ),
    _text(
        "outcome",
        "slower, faster, equivalent, inconclusive, failed or not-run; it rests on the row that "
        "is primary",
        _of("comparison", "outcome"),
    ),
    _flag(
        "is_confounded",
        "More than the environment differs, so the cause of a difference cannot be told apart",
        _of("comparison", "is_confounded"),
    ),
    _flag(
        "control_failed",
        "The control differs from the reference, so only claims beyond it were kept",
        _of("comparison", "control_failed"),
    ),
    _text(
        "metric",
        "What was compared, or the quantity of an imported profile; empty without a value",
        _metric,
    ),
    _flag("is_primary", "The verdict rests on this metric", _is_primary),
    _flag(
        "is_widened",
        "The interval pays for several comparisons and for looking while measuring",
        _of("estimate", "is_widened"),
    ),
    _number(
        "ratio",
        "Time in the arm ÷ time in the reference: above 1 is slower; of a quantity the arm's ÷ "
        "the reference's, of a step where both tell their steps",
        _ratio("log_ratio"),
    ),
    _number("ratio_low", "Lower end of its interval", _ratio("low")),
    _number("ratio_high", "Upper end of its interval", _ratio("high")),
    _number("log_ratio", "Natural logarithm of the ratio", _of("estimate", "log_ratio")),
    _number("log_ratio_low", "Lower end of its interval", _of("estimate", "low")),
    _number("log_ratio_high", "Upper end of its interval", _of("estimate", "high")),
    _number(
        "level", "Level of the interval before it was widened for looking", _of("estimate", "level")
    ),
    _number("margin", "A ratio within 1 ± this is called equivalent", _of_run("margin")),
    _text(
        "unit", "What the interval counts: restart, generation or process", _of("estimate", "unit")
    ),
    _count(
        "restarts", "Launches of the environments behind the estimate", _of("estimate", "restarts")
    ),
    _count("generations", "Fresh starts of the workers behind it", _of("estimate", "generations")),
    _count("rounds", "Passes through all arms behind it", _of("estimate", "rounds")),
    _count("steps", "Measured steps of the arm, or whole processes", _of("times", "steps")),
    _number("median_s", "Median time of its steps in seconds", _of("times", "median_s")),
    _number("p05_s", "5 % of its steps took at most so long", _of("times", "p05_s")),
    _number("p95_s", "95 % of its steps took at most so long", _of("times", "p95_s")),
    _number("samples_per_s", "Samples a second at the median", _of("times", "samples_per_s")),
    _count("reference_steps", "Measured steps of the reference", _of("reference", "steps")),
    _number(
        "reference_median_s", "Median time of its steps in seconds", _of("reference", "median_s")
    ),
    _number("reference_p05_s", "5 % of its steps took at most so long", _of("reference", "p05_s")),
    _number("reference_p95_s", "95 % of its steps took at most so long", _of("reference", "p95_s")),
    _text("stopped_by", "What ended the measuring of the cell", _of("cell", "stopped_by")),
    _text(
        "reason",
        "Why it failed, was not run or is inconclusive; of a quantity why it has no value or "
        "ratio, or what to know of it",
        _reason,
    ),
    _text("failure_phase", "Where it failed", _failure("phase")),
    _count("exit_code", "What the failed process exited with", _failure("exit_code")),
    _text("log", "Its log, a file of the run folder", _failure("log")),
    _text(
        "candidates",
        "Keys of the properties that differ besides the environment and may explain it, the "
        "likeliest first, with commas; empty where none does or it is not known",
        lambda source: ",".join(getattr(source.comparison, "candidates", None) or ()),
    ),
    _number(
        "value", "A quantity of an imported profile, of the whole file", _of("quantity", "value")
    ),
    _number("value_per_step", "The same of a step; empty for rates", _of("quantity", "per_step")),
    _text("value_unit", "Its unit; empty for a count", _of("quantity", "unit")),
    _text(
        "value_rule",
        "How it was formed: sum, ratio of sums, time-weighted, maximum, union or difference",
        _of("quantity", "rule"),
    ),
    _text("value_scope", "Which launches or steps it covers", _of("quantity", "scope")),
    _text("value_source", "The tool that told it, with its version", _of("quantity", "source")),
    _text("value_pass", "The pass it comes from, such as `imported`", _of("quantity", "kind")),
    _text(
        "value_agreement",
        "reference, or against it: equal within what the quantity repeats, differs, or unknown",
        _of("quantity", "agreement"),
    ),
    _number("reference_value", "The same quantity of the reference", _of("against", "value")),
    _number("reference_value_per_step", "The same of a step", _of("against", "per_step")),
)
"""The columns in their order; docs/schema/comparisons.md holds them written out."""
