"""Sweeps in a run: comparisons of one workload on one host whose cells differ in one number."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, Comparison, RunComparison
from envcompare.report.wording.labels import compared_arms
from envcompare.run_folder.records import Scalar

Cell = CellSummary | Comparison
Fixed = tuple[tuple[str, str], ...]
_WIDE: Final = 3.0  # doublings
_SMALLEST, _LARGEST = 1e-100, 1e100  # beyond, an axis has no numbers to stand on


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One arm at one value of the parameter; None where the run has no such comparison."""

    value: float
    arm: str
    comparison: Comparison | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One parameter varied, all others equal."""

    host: str
    workload: str
    parameter: str
    fixed: Fixed  # the other parameters that vary in this workload
    values: tuple[float, ...]
    arms: tuple[str, ...]
    points: tuple[SweepPoint, ...]  # of every arm at every value

    @property
    def is_doubling(self) -> bool:
        """Say whether a logarithmic axis suits the values: powers of two, or a wide span."""
        if self.values[0] < _SMALLEST:
            return False
        steps = [math.log2(value) for value in self.values]
        return all(step.is_integer() for step in steps) or steps[-1] - steps[0] > _WIDE


def sweeps(run: RunComparison) -> tuple[Sweep, ...]:
    """Return every sweep of the run, in the order of its cells."""
    arms = compared_arms(run)
    found = {(one.cell, one.arm): one for one in run.comparisons}
    return tuple(
        Sweep(
            host=host,
            workload=workload,
            parameter=parameter,
            fixed=fixed,
            values=tuple(sorted(cells)),
            arms=arms,
            points=tuple(
                SweepPoint(value=value, arm=arm, comparison=found.get((cells[value], arm)))
                for arm in arms
                for value in sorted(cells)
            ),
        )
        for (host, workload, parameter, fixed), cells in _grouped(run).items()
        if len(cells) > 1 and arms
    )


def _grouped(run: RunComparison) -> dict[tuple[str, str, str, Fixed], dict[float, str]]:
    """Return the ids of cells by the value of one parameter, for all that the others are."""
    cells = _cells(run)
    varied = _varied(cells.values())
    groups: dict[tuple[str, str, str, Fixed], dict[float, str]] = {}
    for key, cell in cells.items():
        for name in varied[cell.workload]:
            number = _number(cell.parameters.get(name))
            if number is not None:
                others = tuple((other, _text(cell, other)) for other in varied[cell.workload]
                               if other != name)  # fmt: skip
                groups.setdefault((cell.host, cell.workload, name, others), {})[number] = key
    return groups


def _cells(run: RunComparison) -> dict[str, Cell]:
    found: dict[str, Cell] = {one.cell: one for one in run.comparisons}
    return found | {one.id: one for one in run.cells}


def _varied(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """Return the names of parameters that are not the same in all cells of each workload."""
    by_workload: dict[str, list[Cell]] = {}
    for cell in cells:
        by_workload.setdefault(cell.workload, []).append(cell)
    return {
        workload: [
            name
            for name in sorted({name for cell in found for name in cell.parameters})
            if len({_text(cell, name) for cell in found}) > 1
        ]
        for workload, found in by_workload.items()
    }


def _text(cell: Cell, name: str) -> str:
    return str(cell.parameters[name]) if name in cell.parameters else "not set"


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LARGEST <= value <= _LARGEST else None
