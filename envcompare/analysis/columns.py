"""The columns of the frames and tables made from a run, with types and meanings.

They are a public interface: columns keep their name and meaning, and new ones go at the end.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

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
    "p05_s": Column("number", "5 % of its steps took at most so long"),
    "p95_s": Column("number", "95 % of its steps took at most so long"),
    "samples_per_s": Column("number", "Samples a second at the median"),
    "reference_steps": Column("whole number", "Measured steps of the reference"),
    "reference_median_s": Column("number", "Median time of its steps in seconds"),
    "reference_p05_s": Column("number", "5 % of its steps took at most so long"),
    "reference_p95_s": Column("number", "95 % of its steps took at most so long"),
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
        "Why it is inconclusive, failed or was not run: too-few, control-failed, not-selected, "
        "target-first, failed, reference-failed, cell-ended, no-complete-round, size-skipped "
        "or not-planned",
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
    "cell": Column("text", "The cell it is of; missing where it is the same in all of the host"),
    "arm": Column("text", "The environment that differs from the reference"),
    "reference_arm": _ARM["reference_arm"],
    "key": Column("text", "The property, such as `torch.version`"),
    "reference_value": Column("text", "Its value in the reference; what is no text as JSON"),
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
    "is_timed": Column("yes or no", "False where imported profiles are all there is of the arm"),
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
        "reference, or against it: equal within what the quantity repeats, differs, or unknown",
    ),
    "reference_value": Column("number", "The same quantity of the reference"),
    "reference_value_per_step": Column("number", "The same of a step"),
    "value_unlike": Column(
        "text",
        "In what the reference's is of another kind, so that there is no ratio: tool, page or rule",
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
