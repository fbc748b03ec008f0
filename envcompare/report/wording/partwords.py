"""Sentences about parts of a difference: phases, operators, software and rungs."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.comparison import Decomposition, RunComparison
from envcompare.analysis.model.profiling import (
    ArmPhases,
    CellPhases,
    LoneOperator,
    PartDifference,
)
from envcompare.report.numbers import (
    NS,
    listed,
    share_text,
    signed_interval,
    signed_percent,
    time_text,
    unsigned_percent,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import estimate_text, excludes_zero
from envcompare.text import counted, sentence, visible

_OUTSIDE: Final = "outside of operators (Python, dispatch)"


def part_name(part: PartDifference) -> str:
    """Return the name of a part of a step."""
    if part.kind == "step":
        return "whole marked step"
    if part.kind == "others":
        return "all others together"
    phase = part.phase or "other"
    return f"{phase} (phase)" if part.kind == "phase" else visible(part.operator or _OUTSIDE)


def phases_sentence(phases: ArmPhases) -> str:
    """Name the operators that differ, the largest contribution first, or state that none do."""
    differing = [one for one in phases.parts if one.kind == "operator" and one.is_distinguishable]
    sentences = []
    if phases.lone:
        lone = listed([_lone_text(one) for one in phases.lone])
        sentences.append(f"Run in one of the two environments only: {lone}.")
    if differing:
        names = [
            f"{part_name(one)} in {one.phase or 'other'} "
            f"{signed_percent(one.log_ratio)} ({signed_interval(one.low, one.high)})"
            for one in differing
        ]
        verb = "operator differs" if len(names) == 1 else "operators differ"
        sentences.append(f"{len(names)} {verb}: {listed(names)}.")
    elif phases.most_log_ratio is not None:
        most = unsigned_percent(phases.most_log_ratio)
        sentences.append(f"No operator differs by more than {most}.")
    elif not phases.lone:
        few = "Too few marked rounds to compare operators"
        sentences.append(f"{few}: give a longer --budget and a smaller --target.")
    return " ".join(sentences)


def _lone_text(operator: LoneOperator) -> str:
    name, phase = visible(operator.operator or _OUTSIDE), operator.phase
    return f"{name} in {phase} ({share_text(operator.share)} of the step in {operator.arm})"


def basis_sentence(phases: ArmPhases) -> str:
    """State what the intervals rest on."""
    return (
        f"From {counted(phases.rounds, 'marked round')} in "
        f"{counted(phases.restarts, 'restart')}, on which no verdict rests: the marks take time "
        f"themselves, alike in all arms. The {phases.tested} phases and operators that hold 1 % of "
        "the step or more are compared; the confidence level of 95 % holds for all these intervals "
        "together."
    )


def unmarked_sentence(cell: CellPhases) -> str:
    """State why phases and operators of a cell are unknown."""
    return visible(f"Phases and operators were not measured: {sentence(cell.reason)}")


def difference_text(seconds: float | None) -> str:
    """Return a difference of times with its sign and unit, such as "+12.3 µs"."""
    if seconds is None:
        return "–"
    sign = "−" if seconds < 0 else "+"
    return f"{sign}{time_text(abs(seconds) * NS)}"


def split_sentences(run: RunComparison) -> tuple[str, ...]:
    """Split each difference into environment and software, the largest first."""
    labels = cell_labels(run)
    ordered = sorted(run.decompositions, key=lambda split: -abs(split.total.log_ratio))
    return tuple(visible(split_sentence(split, label=labels[split.cell])) for split in ordered)


def split_sentence(split: Decomposition, *, label: str) -> str:
    """Split one difference into environment and software."""
    return (
        f"{split.arm} against {split.base} in {label}, {signed_percent(split.total.log_ratio)}: "
        f"environment {estimate_text(split.environment)}, software {estimate_text(split.stack)}"
        f"{_conclusion(split)}; not widened."
    )


def _conclusion(split: Decomposition) -> str:
    """Name the parts that are shown to exist; empty if a part has no interval."""
    parts = {"environment": split.environment, "software": split.stack}
    if any(part.low is None or part.high is None for part in parts.values()):
        return ""
    clear = [name for name, part in parts.items() if excludes_zero(part.low, part.high)]
    match clear:
        case [name]:
            return f" (of the two parts only the {name}'s excludes 0)"
        case [_, _]:
            return " (both parts exclude 0)"
        case _:
            return " (neither part excludes 0)"


def ladder_sentences(run: RunComparison) -> tuple[str, ...]:
    """Name the rungs that change the time, the largest first, for each cell with a ladder."""
    labels, largest = cell_labels(run), dict[str, float]()
    for step in run.ladder:
        is_decided = step.step is not None and step.outcome in {"slower", "faster"}
        change = abs(step.step.log_ratio) if step.step is not None and is_decided else 0.0
        largest[step.cell] = max(largest.get(step.cell, 0.0), change)
    cells = sorted(largest, key=lambda cell: -largest[cell])
    return tuple(
        visible(_ladder_sentence(run, cell, label=labels.get(cell, cell))) for cell in cells
    )


def _ladder_sentence(run: RunComparison, cell: str, *, label: str) -> str:
    steps = [step for step in run.ladder if step.cell == cell and step.step is not None]
    decided = [step for step in steps if step.outcome in {"slower", "faster"}]
    decided_steps = ", ".join(
        f"{step.rung.removeprefix('+ ')} {estimate_text(step.step)}"
        for step in decided
        if step.step is not None
    )
    equal, open_ = (
        sum(step.outcome == outcome for step in steps) for outcome in ("equivalent", "inconclusive")
    )
    rest = [f"{counted(equal, 'step')} equivalent"] * bool(equal)
    rest += [f"{counted(open_, 'step')} inconclusive"] * bool(open_)
    said = "; ".join((decided_steps, *rest) if decided_steps else rest) or "no step was measured"
    return f"Ladder, {label}, against the rung below: {said}."
