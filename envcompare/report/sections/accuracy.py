"""Time to a goal: epochs and seconds of each environment, and accuracy beside time."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.sweeps import ArmTraining, CellTraining, EpochPoint
from envcompare.report.format.blocks import (
    Block,
    Fold,
    Heading,
    Line,
    Section,
    Table,
    grid_of,
    table_of,
    texts,
)
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    duration,
    ends_text,
    signed_interval,
    signed_percent,
    three_digits,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.run_folder.records import Goal
from envcompare.text import counted, one_line

_INTRO: Final = (
    "After the timing every environment trained a fresh model until it reached {goal} on data "
    "that it does not train on, for at most {epochs}; the environments took turns, an epoch each. "
    "Seconds are those of the training steps, without evaluation. {seeds} Intervals are at 95 % "
    "over restarts and are not widened; no verdict rests on them."
)
_SAME_WORK: Final = (
    "The arms of a restart have equal seeds, so that they should take equally many epochs, and "
    "what an environment can change is the time of an epoch."
)
_OTHER_WORK: Final = (
    "The arms of a restart have equal seeds, but not equal parameters, which may change how many "
    "epochs they take."
)


def goal_text(goal: Goal) -> str:
    """Return what is to be reached: "accuracy 0.95"."""
    return f"{goal.metric} {goal.value:g}"


def training_section(run: RunComparison) -> Section | None:
    """Return the way to the goal in each cell, None where there is no goal."""
    if run.until is None or not run.training:
        return None
    labels = cell_labels(run)
    is_same = all(arm.is_same_work for one in run.training for arm in one.arms)
    intro = _INTRO.format(
        goal=goal_text(run.until),
        epochs=counted(run.until.epochs, "epoch"),
        seeds=_SAME_WORK if is_same else _OTHER_WORK,
    )
    blocks: list[Block] = [Line(text=intro)]
    for training in run.training:
        label = labels.get(training.cell, training.cell)
        fold = Fold(
            summary=f"Epoch by epoch: {label}", blocks=(_epochs(run.until, training, label),)
        )
        blocks += [Heading(text=label), training_table(run, training), *_notes(training), fold]
    title = f"Time to {goal_text(run.until)}"
    return Section(anchor="goal", title=title, link="Time to goal", blocks=tuple(blocks))


def training_table(run: RunComparison, training: CellTraining) -> Table:
    """Return a row for each environment: epochs, seconds, and throughput beside them."""
    cell = next(one for one in run.cells if one.id == training.cell)
    rates = {times.arm: times.samples_per_s for times in cell.step_times}
    reference = run.reference_in(training.cell)
    goal = run.until

    def rate(arm: ArmTraining) -> str:
        known = rates.get(arm.arm)
        return NOT_MEASURED if known is None else three_digits(known)

    return table_of(
        f"Time to the goal in {cell_labels(run).get(cell.id, cell.id)}",
        training.arms,
        ("environment", "name", lambda arm: arm.arm),
        ("epochs", "text", lambda arm: _reached(arm, goal)),
        ("time to goal", "number", _seconds),
        (f"epoch, time against {reference}", "number", _ratio),
        ("samples/s", "number", rate),
    )


def _reached(arm: ArmTraining, goal: Goal | None) -> Line:
    """Return the epochs that it took, or that the goal was not reached."""
    if not arm.restarts:
        return Line(text=NOT_MEASURED, below=_in_brackets(arm.why_not))
    best = "" if arm.best is None else f", best {arm.best:.4g}"
    tried = counted(arm.restarts, "restart")
    if not arm.epochs:
        is_cut = goal is not None and arm.most_epochs < goal.epochs
        within = f"not reached within {counted(arm.most_epochs, 'epoch')}"
        text = within + ", when time was up" * is_cut
        return Line(text=text, below=(f"({tried}{best})", *_in_brackets(arm.why_not)))
    low, high = min(arm.epochs), max(arm.epochs)
    told = f"(in {arm.reached} of {tried}{best})"
    text = str(low) if low == high else f"{low} to {high}"
    return Line(text=text, below=(told, *_in_brackets(arm.why_not)))


def _in_brackets(reason: str) -> tuple[str, ...]:
    return (f"({one_line(reason)})",) if reason else ()


def _seconds(arm: ArmTraining) -> Line:
    if arm.training_s is None:
        return Line(text="–")
    ends = ends_text(arm.training_low_s, arm.training_high_s, duration)
    return Line(text=duration(arm.training_s), below=(f"({ends})",))


def _ratio(arm: ArmTraining) -> Line:
    if arm.log_ratio is None:
        return Line(text="–")
    interval = signed_interval(arm.ratio_low, arm.ratio_high)
    return Line(text=signed_percent(arm.log_ratio), below=(f"({interval})",))


def _notes(training: CellTraining) -> tuple[Line, ...]:
    """Say whether equal seeds led to equal values, where the work is equal too."""
    same, other = training.same_values, training.other_values
    net = "Epochs are compared without waits for a CPU that other processes held."
    arms = [arm for arm in training.arms if not arm.is_control]
    lacking = ", ".join(arm.arm for arm in arms if not arm.restarts)
    equal = [arm.arm for arm in arms if arm.restarts and arm.is_same_work]
    whose = "all environments" if len(equal) == len(arms) else ", ".join(equal)
    told = ""
    if other:
        told = (
            f"In {other} of {counted(same + other, 'epoch')} the environments had different values "
            "although their seeds are equal: their arithmetic differs, and so may their epochs."
        )
    elif same:
        told = f"In {same} of {counted(same, 'epoch')} {whose} had the same value, exactly."
    untrained = f"No restart came to its end in {lacking}." if lacking else ""
    is_net = training.is_net and any(arm.log_ratio is not None for arm in training.arms)
    return texts(told, untrained, net * is_net, style="small")


def _epochs(goal: Goal, training: CellTraining, label: str) -> Table:
    """Return the metric and the time of training by epoch, medians over restarts."""
    arms = [arm for arm in training.arms if not arm.is_control]
    points = {(point.epoch, arm.arm): point for arm in arms for point in arm.points}
    return grid_of(
        f"{goal.metric} and time by epoch of {label}",
        (("epoch", "number"), *((f"{arm.arm}, {goal.metric}", "number") for arm in arms)),
        (
            (str(epoch), *(_point(points.get((epoch, arm.arm))) for arm in arms))
            for epoch in range(1, max((arm.most_epochs for arm in arms), default=0) + 1)
        ),
    )


def _point(point: EpochPoint | None) -> Line:
    if point is None:
        return Line(text="–")
    value = NOT_MEASURED if point.value is None else f"{point.value:.4g}"
    return Line(text=value, below=(f"(after {duration(point.training_s)})",))
