"""Phases and operators of marked steps, with a table for each comparison."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import (
    ArmPhases,
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
    time_text,
)
from envcompare.report.wording.causewords import (
    basis_sentence,
    difference_text,
    part_name,
    phases_sentence,
    unmarked_sentence,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.verdicts import estimate_line
from envcompare.text import visible

_TITLE: Final = "Phases and operators"
_MOST_FOLDS: Final = 20
_MOST_NAMES: Final = 6
Place = tuple[str, str]
"""Cell and arm."""


def _phases_of(run: RunComparison, place: Place) -> ArmPhases | None:
    """Return the phases of an arm in a cell; None without marks."""
    cell, arm = place
    return next(
        (one for found in run.phases if found.cell == cell for one in found.arms if one.arm == arm),
        None,
    )


def phase_blocks(run: RunComparison, place: Place, *, label: str) -> Iterator[Block]:
    """Yield the results of the marked rounds for one comparison, or why there are none."""
    phases = _phases_of(run, place)
    if phases:
        yield Heading(text=_TITLE)
        yield Line(text=phases_sentence(phases))
        yield phase_table(phases, label=label)
        yield Line(text=basis_sentence(phases), style="small")
    else:
        unmarked = (one for one in run.phases if one.cell == place[0] and one.reason)
        yield from texts(*map(unmarked_sentence, unmarked), style="small")


def phase_table(phases: ArmPhases, *, label: str) -> Table:
    """Return the step, its phases, the operators that differ, and the rest in one row."""
    return table_of(
        f"{_TITLE}, {label}",
        (one for one in phases.parts if one.kind != "operator" or one.is_distinguishable),
        ("Part of a step", "name", part_name),
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
    below = () if None in ends else (" to ".join(map(difference_text, ends)),)
    return Line(text=difference_text(part.difference_s), below=below)


def phase_folds(run: RunComparison, *, explained: Container[Place]) -> Iterator[Block]:
    """Yield the results of the marks for comparisons without a fold of causes.

    An equivalent arm may differ in a phase or an operator, and then gets a table. For the others,
    each sentence appears once.
    """
    labels = cell_labels(run)
    compared = {(one.cell, one.arm) for one in run.comparisons if not one.is_control}
    rest = {
        f"{visible(labels[cell.cell])} · {visible(arm.arm)}": arm
        for cell in run.phases
        for arm in cell.arms
        if (cell.cell, arm.arm) in compared and (cell.cell, arm.arm) not in explained
    }
    if rest:
        yield Heading(text=f"{_TITLE} of other comparisons")
    differing = {
        name: arm
        for name, arm in rest.items()
        if any(part.is_distinguishable for part in arm.parts)
    }
    for name, arm in list(differing.items())[:_MOST_FOLDS]:
        yield Fold(
            summary=Line(strong=name, text=phases_sentence(arm)),
            style="fold print",
            blocks=(
                phase_table(arm, label=name),
                Line(text=basis_sentence(arm), style="small"),
            ),
        )
    if len(differing) > _MOST_FOLDS:
        yield Line(
            text=f"comparison.json holds {len(differing) - _MOST_FOLDS} more.", style="small"
        )
    places: dict[str, list[str]] = {}
    for name, arm in rest.items():
        if name not in differing:
            places.setdefault(phases_sentence(arm), []).append(name)
    for text, names in places.items():
        yield Line(text=f"{listed(names, most=_MOST_NAMES)}: {text}")
