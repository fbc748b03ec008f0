"""Short names of cells, and the unit of work of their times."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, Comparison, RunComparison
from envcompare.analysis.model.machines import GroupEstimate, HostsEstimate
from envcompare.analysis.model.scaling import Scaling
from envcompare.run_folder.records import CONTROL_SUFFIX, PLACE_OF_DATA, Scalar
from envcompare.text import assigned, visible, visible_line

_LONGEST: Final = 180
_TAIL: Final = 60  # generated names often differ only at their end
PLURALS: Final = {"step": "steps", "process": "processes"}


def cell_labels(run: RunComparison) -> dict[str, str]:
    """Name each cell by its workload, and by host and parameters if those differ."""
    cells = _cells(run)
    has_hosts = len({cell.host for cell in cells.values()}) > 1
    words = _work_words(cells)
    labels = {
        key: " ".join((*words[key], *[f"on {cell.host}"] * has_hosts))
        for key, cell in cells.items()
    }
    return _distinct(labels)


def of_cells(
    run: RunComparison, sentences: Iterable[tuple[str, str]], *, among: int
) -> tuple[str, ...]:
    """Return each text once, after the name of its cell if there are several cells."""
    labels = cell_labels(run)
    texts = (text if among < 2 else f"{labels.get(cell, cell)}: {text}" for cell, text in sentences)
    return tuple(dict.fromkeys(map(visible, texts)))


def work_labels(run: RunComparison) -> dict[str, str]:
    """Name each cell without its host, for places that already name the host."""
    cells = _cells(run)
    whole, words = cell_labels(run), _work_words(cells)
    return {key: key if whole[key] == key else " ".join(words[key]) for key in cells}


def _cells(run: RunComparison) -> dict[str, CellSummary | Comparison]:
    cells: dict[str, CellSummary | Comparison] = {one.cell: one for one in run.comparisons}
    return cells | {one.id: one for one in run.cells}


def _work_words(cells: dict[str, CellSummary | Comparison]) -> dict[str, list[str]]:
    """Return the workload of each cell, its template, and the parameters that differ.

    The data location is always named.
    """
    varied = varied_parameters(cells.values())
    return {
        key: [
            cell.workload,
            *[f"in {cell.within}"] * bool(cell.within),
            *assigned(
                {
                    name: value
                    for name, value in cell.parameters.items()
                    if (cell.workload, name) in varied
                }
            ),
        ]
        for key, cell in cells.items()
    }


def _distinct(labels: dict[str, str]) -> dict[str, str]:
    twice = {label for label, times in Counter(labels.values()).items() if times > 1}
    return {key: key if label in twice else label for key, label in labels.items()}


def row_anchor(cell: str, arm: str) -> str:
    """Return the id of a comparison's row; it is stable when the page is drawn again."""
    text = f"{cell}\0{arm}".encode(errors="backslashreplace")
    return f"c{hashlib.sha256(text).hexdigest()[:12]}"


def fold_anchor(cell: str, arm: str) -> str:
    """Return the id of the fold that explains a comparison."""
    return f"w{row_anchor(cell, arm)}"


def varied_parameters(
    cells: Iterable[CellSummary | Comparison | Scaling],
) -> set[tuple[str, str]]:
    """Return workload and name of each parameter that varies, and always of the place of data."""
    seen: dict[tuple[str, str], set[Scalar]] = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            seen.setdefault((cell.workload, name), set()).add(value)
    return {key for key, values in seen.items() if len(values) > 1 or key[1] == PLACE_OF_DATA}


def compared_arms(run: RunComparison) -> tuple[str, ...]:
    """Return the arms that are compared with the reference, in the order of the run."""
    controls = {one.arm for one in run.comparisons if one.is_control}
    names = [one.arm for one in run.arms] + [
        one.arm for one in run.comparisons if one.outcome != "reference"
    ]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if name not in {*run.all_references, *controls} and not name.endswith(CONTROL_SUFFIX)
    )


def arms_in(run: RunComparison, cell: CellSummary) -> tuple[str, ...]:
    """Return the reference of a cell and the arms that are compared with it there."""
    there = {one.arm for one in run.comparisons if one.cell == cell.id}
    compared = (arm for arm in compared_arms(run) if arm in there or not cell.within)
    return (run.reference_in(cell.id), *compared)


def reference_name(run: RunComparison, *cells: str) -> str:
    """Return the reference of these cells or of all; "the reference" if there are several."""
    names = {run.reference_in(cell) for cell in cells} or set(run.all_references)
    return names.pop() if len(names) == 1 else "the reference"


def short_name(name: str) -> str:
    """Return a kernel name on one visible line, with its middle left out if long."""
    shown = visible_line(name)
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[: _LONGEST - _TAIL]} … {shown[-_TAIL:]}"


def has_programs(run: RunComparison) -> bool:
    """Tell whether any cell was planned to time a plain command."""
    return any(cell.is_program for cell in run.cells)


def has_steps(run: RunComparison) -> bool:
    """Tell whether any cell was planned to time steps of a workload."""
    return not run.cells or not all(cell.is_program for cell in run.cells)


def piece_of(cell: CellSummary) -> str:
    """Return the unit of a cell's times: a step or a process."""
    return "process" if cell.is_program else "step"


def piece_word(run: RunComparison, *, is_plural: bool = False) -> str:
    """Return the unit of this run's times: a step, a process, or either."""
    step, process = PLURALS.values() if is_plural else PLURALS
    return " or ".join([step] * has_steps(run) + [process] * has_programs(run))


def group_work(estimate: GroupEstimate) -> str:
    """Name the workload of an estimate with its parameters."""
    within = f"in {estimate.within}" if estimate.within else ""
    return visible(
        " ".join(filter(None, (estimate.workload, within, *assigned(estimate.parameters))))
    )


def hosts_work(estimate: HostsEstimate) -> str:
    """Name a workload with its parameters."""
    return visible(" ".join((estimate.workload, *assigned(estimate.parameters))))
