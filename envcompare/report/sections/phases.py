"""Where a difference sits: phases and operators of marked steps, a table for each comparison."""

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
    time_text,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.partwords import (
    basis_sentence,
    difference_text,
    part_name,
    phases_sentence,
    unmarked_sentence,
)
from envcompare.report.wording.verdicts import estimate_line
from envcompare.text import visible

_TITLE: Final = "Phases and operators"
_MOST_FOLDS: Final = 20
Place = tuple[str, str]
"""Cell and arm."""


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
        yield Line(text=basis_sentence(phases), style="small")
    else:
        unmarked = (one for one in run.phases if one.cell == place[0] and one.reason)
        yield from texts(*map(unmarked_sentence, unmarked), style="small")


def phase_table(phases: ArmPhases, *, label: str) -> Table:
    """Return the step, its phases, the operators that differ, and the others as one."""
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
                Line(text=basis_sentence(phases), style="small"),
            ),
        )
    if len(rest) > _MOST_FOLDS:
        yield Line(text=f"{len(rest) - _MOST_FOLDS} more stand in comparison.json.", style="small")
