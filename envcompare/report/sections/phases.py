"""Where a difference sits: phases and operators of marked steps, a table for each comparison."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import (
    ArmPhases,
    CellPhases,
    LoneOperator,
    PartDifference,
)
from envcompare.report.blocks import (
    Block,
    Fold,
    Heading,
    Line,
    Table,
    Words,
    table_of,
    texts,
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
from envcompare.report.wording.verdicts import estimate_line
from envcompare.text import counted, sentence, visible

_TITLE: Final = "Phases and operators"
_MOST_FOLDS: Final = 20
Place = tuple[str, str]
"""Cell and arm."""
_OUTSIDE: Final = "outside of operators (Python, dispatch)"


def _phases_of(run: RunComparison, place: Place) -> ArmPhases | None:
    """Return the phases of an arm in a cell, None where nothing was marked there."""
    cell, arm = place
    return next(
        (one for found in run.phases if found.cell == cell for one in found.arms if one.arm == arm),
        None,
    )


def phase_blocks(run: RunComparison, place: Place, *, label: str) -> Iterator[Block]:
    """Yield what the marked rounds say of one comparison, or why there are none."""
    phases = _phases_of(run, place)
    if phases:
        yield Heading(text=_TITLE)
        yield Line(text=phases_sentence(phases))
        yield phase_table(phases, label=label)
        yield Line(text=_basis_sentence(phases), style="small")
    else:
        unmarked = (one for one in run.phases if one.cell == place[0] and one.reason)
        yield from texts(*map(_unmarked_sentence, unmarked), style="small")


def phase_table(phases: ArmPhases, *, label: str) -> Table:
    """Return the step, its phases, the operators that differ, and the others as one."""
    return table_of(
        f"{_TITLE}, {label}",
        (one for one in phases.parts if one.kind != "operator" or one.is_distinguishable),
        ("Part of a step", "name", _part_name),
        ("Phase", "text", lambda part: part.phase or ""),
        ("Share", "number", lambda part: f"{100 * part.share:.1f} %"),
        ("Time in the reference", "number", lambda part: time_text(part.reference_s * NS)),
        ("Change", "number", _change),
        ("Change a step", "number", _difference),
    )


def _change(part: PartDifference) -> Words:
    return estimate_line(part.log_ratio, part.low, part.high, is_strong=part.is_distinguishable)


def _difference(part: PartDifference) -> Words:
    ends = (part.difference_low_s, part.difference_high_s)
    below = () if None in ends else (" to ".join(map(_difference_text, ends)),)
    return Line(text=_difference_text(part.difference_s), below=below)


def phase_folds(run: RunComparison, *, explained: Container[Place]) -> Iterator[Block]:
    """Yield a fold for each comparison that has none of its own, as an equivalent one has not.

    Two arms may be equivalent by the step and differ in one operator.
    """
    labels = cell_labels(run)
    compared = {(one.cell, one.arm) for one in run.comparisons if not one.is_control}
    places = (
        (found.cell, one.arm)
        for found in run.phases
        for one in found.arms
        if (found.cell, one.arm) in compared
    )
    rest = [place for place in places if place not in explained]
    if rest:
        yield Heading(text=f"{_TITLE} of comparisons without a fold")
    for cell, arm in rest[:_MOST_FOLDS]:
        phases = _phases_of(run, (cell, arm))
        if phases is None:
            continue
        name = f"{visible(labels[cell])} · {visible(arm)}"
        yield Fold(
            summary=Line(strong=name, text=phases_sentence(phases)),
            style="fold print",
            blocks=(
                phase_table(phases, label=name),
                Line(text=_basis_sentence(phases), style="small"),
            ),
        )
    if len(rest) > _MOST_FOLDS:
        yield Line(text=f"{len(rest) - _MOST_FOLDS} more stand in comparison.json.", style="small")


def _part_name(part: PartDifference) -> str:
    """Return what a part of a step is called."""
    if part.kind == "step":
        return "whole marked step"
    if part.kind == "others":
        return "all others together"
    phase = part.phase or "other"
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
            f"{_part_name(one)} in {one.phase or 'other'} "
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
    name, phase = visible(operator.operator or _OUTSIDE), operator.phase
    return f"{name} in {phase} ({share_text(operator.share)} of the step in {operator.arm})"


def _basis_sentence(phases: ArmPhases) -> str:
    """Say what the intervals rest on."""
    return (
        f"From {counted(phases.rounds, 'marked round')} in "
        f"{counted(phases.restarts, 'restart')}, on which no verdict rests: the marks take time "
        f"themselves, alike in all arms. The {phases.tested} phases and operators that hold 1 % of "
        "the step or more are compared; the confidence level of 95 % holds for all these intervals "
        "together."
    )


def _unmarked_sentence(cell: CellPhases) -> str:
    """Say why phases and operators of a cell are not known."""
    return visible(f"Phases and operators were not measured: {sentence(cell.reason)}")


def _difference_text(seconds: float | None) -> str:
    """Return a difference of times with its sign and unit, such as "+12.3 µs"."""
    if seconds is None:
        return "–"
    sign = "−" if seconds < 0 else "+"
    return f"{sign}{time_text(abs(seconds) * NS)}"
