"""A run as tables: comparisons, fingerprint differences, quantities; which columns they have.

Unknown values are missing (None), never 0. Texts contain no control characters.

The columns of tables and data frames are a public interface: they keep their name and meaning, and
new ones go at the end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, Literal, NamedTuple

from msgspec.structs import asdict

from envcompare.analysis.model import (
    TAIL_LEVEL,
    Comparison,
    Estimate,
    RunComparison,
    StepTimes,
    Tail,
)
from envcompare.analysis.model.profiling import QuantityRow
from envcompare.run_folder.records import Scalar
from envcompare.text import assigned, visible

Kind = Literal["text", "whole number", "number", "yes or no"]


class Column(NamedTuple):
    """The type and the meaning of a column's values."""

    kind: Kind
    meaning: str


_RUN: Final = {
    "run_id": Column("text", "The run, as its folder is called"),
    "created": Column("text", "When the run began (UTC)"),
    "tool_version": Column("text", "The envcompare that measured"),
}
_PLACE: Final = {
    "host": Column("text", "The machine"),
    "workload": Column("text", "What was run"),
    "cell": Column("text", "Host, workload and parameters in one"),
    "within": Column(
        "text", "The arm of `--envs` whose values are compared in the cell, where it has several"
    ),
    "parameters": Column(
        "text",
        "Parameters of the cell as `k=v,k=v`, sorted; empty where all are defaults",
    ),
    "parameters_json": Column(
        "text", "The same as a JSON object, which distinguishes numbers from text"
    ),
}
_ARM: Final = {
    "arm": Column("text", "The environment that is compared"),
    "environment": Column("text", "Its kind, such as vm, docker or singularity"),
    "stack": Column("text", "Its software: image, or host's own"),
    "reference_arm": Column("text", "What it is compared with"),
    "arm_parameters": Column(
        "text", "The value of a parameter that makes the arm with `--compare`, as `k=v`"
    ),
}
_MEASURED: Final = {
    **_RUN,
    **_PLACE,
    **_ARM,
    "is_control": Column(
        "yes or no", "The arm is the reference measured a second time: any difference is noise"
    ),
    "outcome": Column(
        "text",
        "slower, faster, equivalent, inconclusive, failed or not-run; it rests on the row that "
        "is primary",
    ),
    "is_confounded": Column(
        "yes or no",
        "More than the environment differs, and that may be the cause as well",
    ),
    "control_failed": Column("yes or no", "The control failed: only claims beyond it were kept"),
    "metric": Column(
        "text", "What was compared, or the quantity of an imported profile; empty without a value"
    ),
    "is_primary": Column("yes or no", "The verdict rests on this metric"),
    "is_widened": Column("yes or no", "Its interval pays for several comparisons and for looks"),
    "ratio": Column(
        "number",
        "Time in the arm ÷ time in the reference: above 1 is slower; of a quantity the arm's ÷ "
        "the reference's, of a step where both tell their steps",
    ),
    "ratio_low": Column("number", "Lower end of its interval"),
    "ratio_high": Column("number", "Upper end of its interval"),
    "log_ratio": Column("number", "Natural logarithm of the ratio"),
    "log_ratio_low": Column("number", "Lower end of its interval"),
    "log_ratio_high": Column("number", "Upper end of its interval"),
    "level": Column("number", "Level of the interval before it was widened for looking"),
    "margin": Column("number", "A ratio within 1 ± this is called equivalent"),
    "unit": Column(
        "text", "What the interval counts: round, restart or process; of groups host or restart"
    ),
    "restarts": Column("whole number", "Launches of the environments behind the estimate"),
    "generations": Column("whole number", "Fresh starts of the workers behind it"),
    "rounds": Column("whole number", "Passes through all arms behind it"),
    "steps": Column("whole number", "Measured steps of the arm, or whole processes"),
    "median_s": Column("number", "Median time of its steps in seconds"),
    "p05_s": Column("number", "5th percentile of its step times"),
    "p95_s": Column("number", "95th percentile of its step times"),
    "samples_per_s": Column("number", "Samples a second at the median"),
    "reference_steps": Column("whole number", "Measured steps of the reference"),
    "reference_median_s": Column("number", "Median time of its steps in seconds"),
    "reference_p05_s": Column("number", "5th percentile of its step times"),
    "reference_p95_s": Column("number", "95th percentile of its step times"),
    "stopped_by": Column("text", "What ended the measuring of the cell"),
}
_FAILED: Final = {
    "failure_phase": Column("text", "Where it failed"),
    "exit_code": Column("whole number", "What the failed process exited with"),
    "log": Column("text", "Its log, a file of the run folder"),
    "candidates": Column(
        "text",
        "Keys of the properties that differ besides the environment and may explain it, the "
        "likeliest first, with commas; empty where none does or it is not known",
    ),
}
_WHY: Final = {
    "why": Column(
        "text",
        "Why it is inconclusive, failed or was not run, as a code (see below)",
    ),
    "failure": Column("text", "What failed, as it was recorded while measuring"),
}
_ESTIMATE: Final = {
    "estimate_of": Column(
        "text",
        "typical (step), mean (of all steps), p90 (90th percentile of the steps) or process; step "
        "of the ladder, from the rung below; group-time or group-effect, of groups of hosts; else "
        "missing",
    ),
}
_PLACED: Final = {
    "rung": Column("text", "Of a step of the ladder: what the arm adds to `reference_arm`"),
    "group": Column(
        "text", "The group of hosts that is compared: its time, or what the arm costs there"
    ),
    "reference_group": Column("text", "The group of hosts that it is compared with"),
}
_TAIL: Final = {
    "slow_share": Column(
        "number", "Share of the arm's steps above 1.5 times their median, from 0 to 1"
    ),
    "reference_slow_share": Column("number", "The same of the reference"),
    "slow_share_difference": Column("number", "The arm's share less the reference's"),
    "slow_share_difference_low": Column("number", "Lower end of its interval, at 95 %"),
    "slow_share_difference_high": Column("number", "Upper end of its interval, at 95 %"),
}
COMPARISONS: Final = {**_MEASURED, **_FAILED, **_WHY, **_ESTIMATE, **_TAIL, **_PLACED}
"""A row for each comparison and metric; the reference's times are columns, not rows.

The last rows are the steps of the ladder and the statements about groups of hosts.
"""

SAMPLES: Final = {
    "run_id": _RUN["run_id"],
    "host": _PLACE["host"],
    "workload": _PLACE["workload"],
    "cell": _PLACE["cell"],
    "arm": Column("text", "The environment that was measured; `~control` ends the control's name"),
    "restart": Column("whole number", "Launch of the environments, from 0"),
    "generation": Column("whole number", "Fresh start of the workers within it, from 0"),
    "round": Column(
        "whole number", "Pass through all arms within the generation, from 0; −1 warms up"
    ),
    "order": Column("whole number", "Place of the arm within its round, from 0"),
    "step": Column("whole number", "Place of the step within its block, from 0"),
    "is_warmup": Column("yes or no", "Left out of every estimate, since it warms up"),
    "is_dropped": Column("yes or no", "Left out, since a clock jumped or the process failed"),
    "wall_s": Column("number", "Time on the clock in seconds"),
    "cpu_s": Column("number", "CPU time in seconds"),
    "gpu_s": Column("number", "Time between CUDA events in seconds; missing without a GPU"),
}
"""A row for each timed step, or for each whole process of a plain command."""

DIFFERENCES: Final = {
    "run_id": _RUN["run_id"],
    "host": _PLACE["host"],
    "cell": Column("text", "The cell; missing if it applies to the whole host"),
    "arm": Column("text", "The environment that differs from the reference"),
    "reference_arm": _ARM["reference_arm"],
    "key": Column("text", "The property, such as `torch.version`"),
    "reference_value": Column("text", "Its value in the reference; non-text values as JSON"),
    "value": Column("text", "Its value in the environment, likewise"),
    "fact_class": Column(
        "text", "identity, host, varied, confounder or possible-influence: what it can explain"
    ),
    "is_felt": Column("yes or no", "The workload was seen to use it; missing where nothing tells"),
    "part_of": Column("text", "Key of the difference that it is a part of"),
}
"""A row for each property in which an environment differs from the reference."""

QUANTITIES: Final = {
    **_RUN,
    **_PLACE,
    **_ARM,
    "is_timed": Column("yes or no", "False if the arm has only imported profiles"),
    "metric": Column("text", "Name of the quantity"),
    "ratio": Column("number", "The arm's ÷ the reference's, of a step where both tell their steps"),
    "status": Column("text", "ok, missing or refused"),
    "reason": Column("text", "Why it has no value, or what to know of it"),
    "value": Column("number", "A quantity of an imported profile, of the whole file"),
    "value_per_step": Column("number", "The same of a step; empty for rates"),
    "value_per_sample": Column("number", "The same of a sample, where the batch is known"),
    "value_unit": Column("text", "Its unit; empty for a count"),
    "value_rule": Column(
        "text", "How it was formed: sum, ratio of sums, time-weighted, maximum, union or difference"
    ),
    "value_scope": Column("text", "Which launches or steps it covers"),
    "value_source": Column("text", "The tool that reported it, with its version"),
    "value_pass": Column("text", "The pass it comes from, such as `imported`"),
    "value_agreement": Column(
        "text",
        "reference; otherwise equal (within repeatability), differs or unknown",
    ),
    "reference_value": Column("number", "The same quantity of the reference"),
    "reference_value_per_step": Column("number", "The same of a step"),
    "value_unlike": Column(
        "text",
        "In what the reference's is of another kind, so that there is no ratio: tool, page, rule "
        "or ranks",
    ),
    "value_page": Column("text", "The page of Nsight Compute: raw, details or summary"),
}
"""A row for each quantity of an arm, from profiles or from GPU readings during timing."""

SCALING: Final = {
    "run_id": _RUN["run_id"],
    "host": _PLACE["host"],
    "workload": _PLACE["workload"],
    "cell": _PLACE["cell"],
    "parameters": Column("text", "Its parameters without `ranks` as `k=v,k=v`, sorted"),
    "arm": Column("text", "The environment that was measured"),
    "ranks": Column("whole number", "Processes that share the work, each with its own batch"),
    "hosts": Column("text", "Over which they are spread; missing where all are on one"),
    "samples_per_s": Column("number", "Samples in a second, of all ranks"),
    "speed_up": Column("number", "The same ÷ that of one rank of the environment"),
    "speed_up_low": Column("number", "Lower end of its interval at 95 %, over the restarts"),
    "speed_up_high": Column("number", "Upper end of its interval"),
    "restarts": Column("whole number", "Launches of the environments that measured both"),
    "efficiency": Column("number", "The speed-up ÷ the ranks"),
    "waited_share": Column("number", "Of the time of one rank, waiting for a CPU others held"),
    "collective_s": Column("number", "Of a step of the first rank, in which any collective ran"),
    "collective_exposed_s": Column("number", "The same while nothing computed there"),
    "collective_share": Column("number", "Of the time of the steps that were profiled"),
    "collective_exposed_share": Column("number", "Likewise, of what is exposed"),
}
"""A row for each environment and number of ranks, for cells that set `ranks`."""

_OF_QUANTITY: Final = (
    "value", "value_per_step", "value_unit", "value_rule", "value_scope", "value_source",
    "value_pass", "value_agreement", "reference_value", "reference_value_per_step",
)  # fmt: skip
TABLE: Final = {
    **_MEASURED,
    "reason": Column(
        "text",
        "Why it failed, was not run or is inconclusive; of a quantity why it has no value or "
        "ratio, or what to know of it",
    ),
    **_FAILED,
    **{name: QUANTITIES[name] for name in _OF_QUANTITY},
    **_WHY,
    "value_unlike": QUANTITIES["value_unlike"],
    "value_page": QUANTITIES["value_page"],
    **_ESTIMATE,
    **_TAIL,
    **_PLACED,
}
"""The columns of the CSV and Parquet table; docs/schema/comparisons.md lists them."""


Row = dict[str, object]
_LARGEST_LOG: Final = 700.0  # e^700 is still a finite double, e^710 overflows
_LARGEST_WHOLE: Final = 2**63


def comparison_table(run: RunComparison) -> list[Row]:
    """Return the comparisons in the order of comparison.json, with the columns COMPARISONS.

    Steps of the ladder and groups of hosts follow; none of them is primary.
    """
    rows = chain(_comparison_rows(run), _step_rows(run), _group_rows(run))
    return [
        row | {f"ratio{end}": _ratio(row[f"log_ratio{end}"]) for end in ("", "_low", "_high")}
        for row in _typed(rows, COMPARISONS)
    ]


def quantity_table(run: RunComparison) -> list[Row]:
    """Return the quantities of all arms, reference included, with the columns QUANTITIES."""
    return _typed(_quantity_rows(run), QUANTITIES)


def difference_table(run: RunComparison) -> list[Row]:
    """Return the fingerprint differences, with the columns DIFFERENCES.

    Differences with other evidence in some cells follow those of the whole host.
    """
    of_cells = (
        (cell, difference) for cell, found in run.cell_differences.items() for difference in found
    )
    every = chain(((None, difference) for difference in run.differences), of_cells)
    rows = (
        asdict(one)
        | {
            "run_id": run.run_id,
            "cell": cell,
            "reference_arm": run.reference_of(one.arm),
            "reference_value": _json_text(one.reference),
            "value": _json_text(one.value),
        }
        for cell, one in every
    )
    return _typed(rows, DIFFERENCES)


def scaling_table(run: RunComparison) -> list[Row]:
    """Return environments and numbers of ranks, with the columns SCALING."""
    rows = (
        asdict(scaling)
        | {
            "run_id": run.run_id,
            "parameters": ",".join(assigned(scaling.parameters)),
            "hosts": ",".join(scaling.hosts),
        }
        for scaling in run.views.scaling
    )
    return _typed(rows, SCALING)


def whole_table(run: RunComparison) -> list[Row]:
    """Return one tidy table of comparisons, and of quantities of untimed arms.

    The columns are TABLE.
    """
    cells = {visible(cell.id): cell.stopped_by for cell in run.cells}
    untimed = (
        row | {"margin": run.settings.margin, "stopped_by": cells.get(str(row["cell"]))}
        for row in quantity_table(run)
        if not row["is_timed"]
    )
    return _typed(chain(comparison_table(run), untimed), TABLE)


def _comparison_rows(run: RunComparison) -> Iterator[Row]:
    cells = {cell.id: cell for cell in run.cells}
    times = {(cell.id, one.arm): one for cell in run.cells for one in cell.step_times}
    for comparison in run.comparisons:
        cell, reference = cells.get(comparison.cell), run.reference_in(comparison.cell)
        row = _of_run(run) | _of_comparison(comparison)
        row |= {"stopped_by": cell and cell.stopped_by, "reference_arm": reference}
        if comparison.primary is None:
            yield row
            continue
        row |= _of_times(times.get((comparison.cell, comparison.arm)), "")
        row |= _of_times(times.get((comparison.cell, reference)), "reference_")
        row |= _of_tail(comparison.tail)
        for estimate in filter(None, (comparison.primary, comparison.mean, *comparison.secondary)):
            is_primary = estimate is comparison.deciding
            of = "typical" if estimate is comparison.primary else "mean"
            of = "process" if estimate.unit == "process" else of
            yield row | _of_estimate(estimate) | {"is_primary": is_primary, "estimate_of": of}
        if comparison.tail is not None and comparison.tail.p90_log_ratio is not None:
            yield row | _of_percentile(comparison.primary, comparison.tail)


def _step_rows(run: RunComparison) -> Iterator[Row]:
    """Yield each measured step of the ladder, with the rung below as the reference."""
    arms = {(summary.host, summary.arm): summary for summary in run.arms}
    cells = {cell.id: cell for cell in run.cells}
    for step in run.views.ladder:
        if step.step is None:
            continue
        arm, cell = arms.get((step.host, step.arm)), cells.get(step.cell)
        yield {
            **_of_run(run),
            **asdict(step),
            **_of_parameters(step.parameters),
            **_of_estimate(step.step),
            "environment": arm and arm.environment,
            "stack": arm and arm.stack,
            "stopped_by": cell and cell.stopped_by,
            "reference_arm": step.below,
            "is_control": False,
            "is_primary": False,
            "estimate_of": "step",
        }


def _group_rows(run: RunComparison) -> Iterator[Row]:
    """Yield the comparisons between groups of hosts, which belong to no single cell."""
    arms = {summary.arm: summary for summary in run.arms}
    for estimate in run.between_hosts.group_estimates:
        arm = arms.get(estimate.arm)
        yield {
            **_of_run(run),
            **asdict(estimate),
            **_of_parameters(estimate.parameters),
            "environment": arm and arm.environment,
            "stack": arm and arm.stack,
            "reference_arm": estimate.against,
            "log_ratio_low": estimate.low,
            "log_ratio_high": estimate.high,
            "failure": estimate.why_not,
            "control_failed": bool(estimate.failed_controls),
            "is_control": False,
            "is_primary": False,
            "is_widened": estimate.log_ratio is not None,
            "estimate_of": "group-effect" if estimate.against else "group-time",
        }


def _of_run(run: RunComparison) -> Row:
    names = ("run_id", "created", "tool_version", "reference_arm")
    return {name: getattr(run, name) for name in names} | {"margin": run.settings.margin}


def _of_comparison(comparison: Comparison) -> Row:
    failure = comparison.failure
    return asdict(comparison) | {
        **_of_parameters(comparison.parameters),
        "arm_parameters": ",".join(assigned(comparison.arm_parameters)),
        "candidates": ",".join(comparison.candidates or ()),
        "failure_phase": failure and failure.phase,
        "exit_code": failure and failure.exit_code,
        "log": failure and failure.log,
        "why": comparison.reason and comparison.reason.kind,
        "failure": comparison.reason and comparison.reason.brief,
    }


def _of_parameters(parameters: Mapping[str, Scalar]) -> Row:
    return {
        "parameters": ",".join(assigned(parameters)),
        "parameters_json": json.dumps(parameters, sort_keys=True) if parameters else "",
    }


def _of_times(times: StepTimes | None, prefix: str) -> Row:
    values = asdict(times).items() if times else ()
    return {f"{prefix}{name}": value for name, value in values if name != "arm"}


def _of_estimate(estimate: Estimate) -> Row:
    return asdict(estimate) | {"log_ratio_low": estimate.low, "log_ratio_high": estimate.high}


def _of_tail(tail: Tail | None) -> Row:
    if tail is None:
        return {}
    return {
        "slow_share": tail.share,
        "reference_slow_share": tail.reference_share,
        "slow_share_difference": tail.share - tail.reference_share,
        "slow_share_difference_low": tail.difference_low,
        "slow_share_difference_high": tail.difference_high,
    }


def _of_percentile(primary: Estimate, tail: Tail) -> Row:
    """Return the 90th percentiles of the steps that the primary estimate uses."""
    return _of_estimate(primary) | {
        "log_ratio": tail.p90_log_ratio,
        "log_ratio_low": tail.p90_low,
        "log_ratio_high": tail.p90_high,
        "level": TAIL_LEVEL,
        "unit": "round",
        "is_widened": False,
        "is_primary": False,
        "estimate_of": "p90",
    }


def _ratio(log_ratio: object) -> float | None:
    if isinstance(log_ratio, float) and abs(log_ratio) <= _LARGEST_LOG:
        return math.exp(log_ratio)
    return None


def _quantity_rows(run: RunComparison) -> Iterator[Row]:
    cells = {cell.id: cell for cell in run.cells}
    arms = {(summary.host, summary.arm): summary for summary in run.arms}
    for profiles in run.profiles:
        cell = cells.get(profiles.cell)
        for of_arm in profiles.arms:
            arm = arms.get((profiles.host, of_arm.arm))
            if cell is None or arm is None:
                continue
            place = {
                **_of_run(run),
                **_of_parameters(cell.parameters),
                "arm_parameters": ",".join(assigned(arm.parameters)),
                "within": cell.within,
                "reference_arm": run.reference_in(cell.id),
                "host": arm.host,
                "workload": cell.workload,
                "cell": cell.id,
                "arm": arm.arm,
                "environment": arm.environment,
                "stack": arm.stack,
                "is_timed": arm.is_timed,
            }
            yield from (place | _of_quantity(row) for row in of_arm.quantities)


def _of_quantity(row: QuantityRow) -> Row:
    values = asdict(row)
    return {f"value_{name}": value for name, value in values.items()} | {
        **values,
        "metric": row.name,
        "value_pass": row.kind,
        "reference_value_per_step": row.reference_per_step,
    }


def _json_text(value: object) -> str | None:
    """Return a text unchanged, another value as JSON, or None if unknown."""
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _typed(rows: Iterable[Row], columns: Mapping[str, Column]) -> list[Row]:
    """Return rows with exactly these columns, without values that readers cannot parse."""
    kinds = [(name, _CLEANED[column.kind]) for name, column in columns.items()]
    return [{name: cleaned(row.get(name)) for name, cleaned in kinds} for row in rows]


def _whole_number(value: object) -> int | None:
    if isinstance(value, int | float) and -_LARGEST_WHOLE <= value < _LARGEST_WHOLE:
        return int(value)
    return None


_CLEANED: Final[dict[Kind, Callable[[object], object]]] = {
    "text": lambda value: None if value is None else visible(str(value)) or None,
    "whole number": _whole_number,
    "number": lambda value: (
        float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    ),
    "yes or no": lambda value: None if value is None else bool(value),
}
