"""Plain commands in the report: words for whole processes, and the numbers they printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, Estimate, PickedValue, RunComparison
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    margin_percent,
    signed_interval,
    signed_percent,
    three_digits,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.text import counted

_METHOD: Final = (
    "A plain command is timed as a whole process, from just before it is started inside the "
    "environment to its exit. Every round starts it once in each arm, in random order and one at a "
    "time; the first round is a warm-up. The start of the environment is in real alone. Net time "
    "is not defined for it, since how long its threads and children wait is not known."
)
PLURALS: Final = {"step": "steps", "process": "processes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedRow:
    """One number in one arm: its median and range, and its ratio to the reference."""

    cell: str
    name: str
    arm: str
    value: str
    span: str
    ratio: str
    interval: str


def has_programs(run: RunComparison) -> bool:
    """Tell whether any cell timed, or was to time, a plain command."""
    return any(cell.is_program for cell in run.cells)


def has_steps(run: RunComparison) -> bool:
    """Tell whether any cell timed, or was to time, steps of a workload."""
    return not run.cells or not all(cell.is_program for cell in run.cells)


def piece_of(cell: CellSummary) -> str:
    """Return what the times of a cell are of: a step or a process."""
    return "process" if cell.is_program else "step"


def piece_word(run: RunComparison) -> str:
    """Return what the times of this run are of: a step, a process, or either."""
    return _joined(run, "step", "process")


def piece_words(run: RunComparison) -> str:
    """Return the plural of it."""
    return _joined(run, "steps", "processes")


def unit_word(primary: Estimate | None) -> str:
    """Return what an interval is made of, as a word to be counted."""
    return "round" if primary is not None and primary.unit == "process" else "generation"


def program_sentences(run: RunComparison) -> tuple[str, ...]:
    """Say for the method section how plain commands were timed."""
    return (_METHOD,) if has_programs(run) else ()


def picked_rows(run: RunComparison) -> tuple[PickedRow, ...]:
    """Return the numbers read from the output, the reference of each first."""
    labels = cell_labels(run)
    ordered = sorted(run.picked, key=lambda one: (one.cell, one.name, one.arm != run.reference_arm))
    return tuple(
        _picked_row(one, labels.get(one.cell, one.cell), run)
        for one in ordered
        if not one.arm.endswith(CONTROL_SUFFIX)
    )


def picked_level(values: Iterable[PickedValue]) -> str:
    """Return the level of the intervals of picked numbers."""
    return next((margin_percent(one.level) for one in values), "")


def _joined(run: RunComparison, step: str, process: str) -> str:
    return " or ".join([step] * has_steps(run) + [process] * has_programs(run))


def _picked_row(one: PickedValue, label: str, run: RunComparison) -> PickedRow:
    span = "the same each time"
    if one.low != one.high:
        span = f"{three_digits(one.low)} to {three_digits(one.high)}"
    is_reference = one.arm == run.reference_arm
    return PickedRow(
        cell=label,
        name=one.name,
        arm=one.arm,
        value=three_digits(one.median),
        span=f"{span}, {counted(one.processes, 'process', 'processes')}",
        ratio=_ratio(one, is_reference=is_reference),
        interval="" if one.log_ratio is None else signed_interval(one.ratio_low, one.ratio_high),
    )


def _ratio(one: PickedValue, *, is_reference: bool) -> str:
    if is_reference:
        return "reference"
    return NOT_MEASURED if one.log_ratio is None else signed_percent(one.log_ratio)
