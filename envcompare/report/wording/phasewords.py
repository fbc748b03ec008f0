"""What is said of the phases and operators of a step: names, and what was found to differ."""

from __future__ import annotations

from typing import Final

from envcompare.analysis.model.phases import (
    ArmPhases,
    CellPhases,
    LoneOperator,
    PartDifference,
)
from envcompare.report.format.numbers import (
    NS,
    listed,
    share_text,
    signed_interval,
    signed_percent,
    time_text,
    unsigned_percent,
)
from envcompare.run_folder.records import StepPhase
from envcompare.text import counted, sentence, visible

PHASES: Final[dict[StepPhase, str]] = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
_OUTSIDE: Final = "outside of operators (Python, dispatch)"


def part_name(part: PartDifference) -> str:
    """Return what a part of a step is called."""
    if part.kind == "step":
        return "whole marked step"
    if part.kind == "others":
        return "all others together"
    phase = PHASES[part.phase or "other"]
    return f"{phase} (phase)" if part.kind == "phase" else visible(part.operator or _OUTSIDE)


def phases_sentence(phases: ArmPhases) -> str:
    """Say which operators differ, the largest contribution first, or that none was seen to."""
    differing = [one for one in phases.parts if one.kind == "operator" and one.is_distinguishable]
    sentences = []
    if phases.lone:
        lone = listed([_lone_text(one) for one in phases.lone])
        sentences.append(f"Run in one of the two environments only: {lone}.")
    if differing:
        names = [
            f"{part_name(one)} in {PHASES[one.phase or 'other']} "
            f"{signed_percent(one.log_ratio)} ({signed_interval(one.low, one.high)})"
            for one in differing
        ]
        verb = "operator differs" if len(names) == 1 else "operators differ"
        sentences.append(f"{len(names)} {verb}: {listed(names)}.")
    elif phases.most_log_ratio is not None:
        most = unsigned_percent(phases.most_log_ratio)
        sentences.append(f"No operator differs by more than {most}.")
    elif not phases.lone:
        sentences.append("Too few marked rounds to compare operators: give a longer --budget.")
    return " ".join(sentences)


def _lone_text(operator: LoneOperator) -> str:
    name, phase = visible(operator.operator or _OUTSIDE), PHASES[operator.phase]
    return f"{name} in {phase} ({share_text(operator.share)} of the step in {operator.arm})"


def basis_sentence(phases: ArmPhases) -> str:
    """Say what the intervals rest on."""
    return (
        f"From {counted(phases.rounds, 'marked round')} in "
        f"{counted(phases.restarts, 'restart')}, on which no verdict rests: the marks take time "
        f"themselves, alike in all arms. The {phases.tested} phases and operators that hold 1 % of "
        "the step or more are compared; the confidence level of 95 % holds for all these intervals "
        "together."
    )


def unmarked_sentence(cell: CellPhases) -> str:
    """Say why phases and operators of a cell are not known."""
    return visible(f"Phases and operators were not measured: {sentence(cell.reason)}")


def difference_text(seconds: float | None) -> str:
    """Return a difference of times with its sign and unit, such as "+12.3 µs"."""
    if seconds is None:
        return "–"
    sign = "−" if seconds < 0 else "+"
    return f"{sign}{time_text(abs(seconds) * NS)}"
