"""Short names of cells: no longer than it takes to tell them apart."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, Comparison, RunComparison
from envcompare.run_folder.records import CONTROL_SUFFIX, Scalar
from envcompare.text import visible_line

_LONGEST: Final = 180
_TAIL: Final = 60  # names of templates often differ at their end alone


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
