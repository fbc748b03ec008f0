"""Short names of cells and what their times are of."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

from envcompare.analysis.model.comparison import (
    CellSummary,
    Comparison,
    Estimate,
    RunComparison,
)
from envcompare.run_folder.records import CONTROL_SUFFIX, Scalar
from envcompare.text import visible_line

_LONGEST: Final = 180
_TAIL: Final = 60  # names of templates often differ at their end alone
_METHOD: Final = (
    "A plain command is timed as a whole process, from just before it is started inside the "
    "environment to its exit. Every round starts it once in each arm, in random order and one at a "
    "time; the first round is a warm-up. The start of the environment is in real alone. Net time "
    "is not defined for it, since how long its threads and children wait is not known."
)
PLURALS: Final = {"step": "steps", "process": "processes"}


def cell_labels(comparison: RunComparison) -> dict[str, str]:
    """Name each cell by its workload, and by host and parameters where those differ."""
    cells: dict[str, CellSummary | Comparison] = {one.cell: one for one in comparison.comparisons}
    cells.update({one.id: one for one in comparison.cells})
    many_hosts = len({cell.host for cell in cells.values()}) > 1
    varied = _varied_parameters(list(cells.values()))
    labels = {}
    for key, cell in cells.items():
        words = [cell.workload]
        words += [f"{name}={value}" for name, value in sorted(cell.parameters.items())
                  if (cell.workload, name) in varied]  # fmt: skip
        words += [f"on {cell.host}"] * many_hosts
        labels[key] = " ".join(words)
    twice = {label for label, times in Counter(labels.values()).items() if times > 1}
    return {key: key if label in twice else label for key, label in labels.items()}


def row_anchor(cell: str, arm: str) -> str:
    """Return the id of a comparison's row on the page; it stays when the page is drawn again."""
    text = f"{cell}\0{arm}".encode(errors="backslashreplace")
    return f"c{hashlib.sha256(text).hexdigest()[:12]}"


def fold_anchor(cell: str, arm: str) -> str:
    """Return the id of the fold that explains a comparison."""
    return f"w{row_anchor(cell, arm)}"


def _varied_parameters(cells: list[CellSummary | Comparison]) -> set[tuple[str, str]]:
    seen: dict[tuple[str, str], set[Scalar]] = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            seen.setdefault((cell.workload, name), set()).add(value)
    return {key for key, values in seen.items() if len(values) > 1}


def compared_arms(run: RunComparison) -> tuple[str, ...]:
    """Return the arms that are compared with the reference, in the order of the run."""
    controls = {one.arm for one in run.comparisons if one.is_control}
    names = [one.arm for one in run.arms] + [
        one.arm for one in run.comparisons if one.outcome != "reference"
    ]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if name != run.reference_arm and name not in controls and not name.endswith(CONTROL_SUFFIX)
    )


def short_name(name: str) -> str:
    """Return the name of a kernel on one line, nothing hidden in it, its middle left out."""
    shown = visible_line(name)
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[: _LONGEST - _TAIL]} … {shown[-_TAIL:]}"


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


def _joined(run: RunComparison, step: str, process: str) -> str:
    return " or ".join([step] * has_steps(run) + [process] * has_programs(run))
