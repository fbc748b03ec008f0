"""Charts as a test reads them: the marks, texts and titles of a drawn SVG, and runs to draw."""

from __future__ import annotations

import math
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import msgspec
from msgspec.structs import replace
from profilepages import cell_profiles, ledger, profiled_run

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    CellSummary,
    Comparison,
    Estimate,
    Reason,
    RunComparison,
    RunCourse,
    RunSettings,
    StepTimes,
)
from envcompare.analysis.timing import BINS
from envcompare.report import charts
from envcompare.report.charts import Chart, drawn
from envcompare.run_folder.records import Failure
from tests.data.report.builders import changed

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnirts\x07\x00bell\ud800",
    'a.b[0]["c"] datum.value + 1',
    "signal('x'); &amp; <b>",
    "x" * 5000,
)
_TRANSLATED = re.compile(r"translate\(([-\d.]+),\s*([-\d.]+)\)")
_START = re.compile(r"M(-?[\d.]+),(-?[\d.]+)")


def kinds_of_charts() -> set[str]:
    """Return the kinds that the modules of charts can draw, from the names of their functions."""
    names = [f"{charts.__name__}.{module.name}" for module in pkgutil.iter_modules(charts.__path__)]
    matches = (
        re.fullmatch(r"([a-z]+)_charts?", function)
        for name in names
        for function, value in vars(import_module(name)).items()
        if getattr(value, "__module__", "") == name
    )
    return {match[1] for match in matches if match}


def kind_of(chart: Chart) -> str:
    """Return the kind of a chart, with which its name begins."""
    return chart.name.partition("-")[0].removesuffix("s")


def kept_ladder() -> RunComparison:
    """Return the comparison of the kept run of the ladder."""
    path = Path(__file__).parents[2] / "results" / "ladder" / "comparison.json"
    return msgspec.json.decode(path.read_bytes(), type=RunComparison)


def parsed(svg: str) -> Element:
    """Return the SVG as a tree, which fails where it is no XML."""
    return fromstring(svg)


def svg_of(chart: Chart | None) -> Element:
    """Return the chart as it stands in a page."""
    assert chart is not None
    return parsed(drawn(chart))


def texts_of(svg: Element) -> list[str]:
    """Return every text that is seen."""
    return [element.text or "" for element in svg.iter("text")]


def titled(svg: Element) -> list[tuple[Element, str]]:
    """Return the marks that say what they are, with what they say."""
    return [
        (element, title.text or "")
        for element in svg.iter()
        for title in element.findall("title")
        if element is not svg
    ]


def place_of(mark: Element) -> tuple[float, float]:
    """Return where a mark stands in the frame of the data."""
    moved = _TRANSLATED.search(mark.get("transform", ""))
    start = _START.match(mark.get("d", ""))
    found = moved or start
    assert found is not None, mark.attrib
    return float(found[1]), float(found[2])


def estimate(change: float, low: float | None, high: float | None) -> Estimate:
    """Return an estimate of 8 generations from changes in percent."""
    ends = [None if end is None else math.log1p(end / 100) for end in (change, low, high)]
    assert ends[0] is not None
    return Estimate(
        metric="net",
        log_ratio=ends[0],
        low=ends[1],
        high=ends[2],
        level=0.98,
        unit="round",
        restarts=4,
        generations=8,
        rounds=32,
        is_widened=True,
    )


def compared(arm: str, cell: CellSummary, primary: Estimate | None, **fields: Any) -> Comparison:
    """Return the comparison of an arm in a cell: failed without an estimate."""
    known: dict[str, Any] = {
        "outcome": "failed" if primary is None else "slower",
        "failure": None if primary else Failure(phase="setup", brief="out of memory", exit_code=1),
        "environment": "docker",
        "stack": "image",
    }
    return Comparison(
        cell=cell.id,
        host=cell.host,
        workload=cell.workload,
        parameters=cell.parameters,
        arm=arm,
        primary=primary,
        **{**known, **fields},
    )


def run_of(
    cells: tuple[CellSummary, ...], comparisons: tuple[Comparison, ...], **fields: Any
) -> RunComparison:
    """Return a run of vm against others."""
    known: dict[str, Any] = {
        "run_id": "20260101-000000-abcd",
        "created": "2026-01-01T00:00:00Z",
        "tool_version": "0.1.0",
        "settings": RunSettings(
            preset="default",
            seed=7,
            margin=0.02,
            target=0.01,
            budget_s=600.0,
            min_restarts=4,
            threads=1,
            planned_comparisons=len(comparisons),
        ),
        "course": RunCourse(is_complete=True),
        "reference_arm": "vm",
        "arms": (),
    }
    return changed(RunComparison(cells=cells, comparisons=comparisons, **known), **fields)


def cell_of(workload: str = "cnn", host: str = "gpu01", **parameters: Any) -> CellSummary:
    """Return a cell with these parameters."""
    named = ",".join(f"{name}={value}" for name, value in sorted(parameters.items()))
    return CellSummary(
        id=f"{host}/{workload}/{named or 'default'}",
        host=host,
        workload=workload,
        parameters=parameters,
        state="ok",
    )


def spread_cell(medians_s: dict[str, float], *, beyond: int = 0) -> CellSummary:
    """Return a cell whose arms have 100 steps around their medians, and so many off the axis."""
    low, high = 0.9 * min(medians_s.values()), 1.2 * max(medians_s.values())
    edges = tuple(low + (high - low) * place / BINS for place in range(BINS + 1))
    times = []
    for arm, median in medians_s.items():
        counts = [0] * BINS
        middle = min(BINS - 1, int((median - low) / (high - low) * BINS))
        counts[middle] = 100 - beyond
        spread = [median * (1 + (one - 0.5) / 20) for one in STEP_PROBABILITIES]
        times.append(
            StepTimes(
                arm=arm,
                steps=100,
                median_s=median,
                p05_s=spread[1],
                p95_s=spread[-2],
                quantiles_s=tuple(spread),
                longest_s=2 * high if beyond else spread[-1],
                counts=tuple(counts),
            )
        )
    return msgspec.structs.replace(cell_of(), step_times=tuple(times), step_edges_s=edges)


def swept_run(
    changes: dict[str, dict[int, tuple[float, float, float] | None]], **fields: Any
) -> RunComparison:
    """Return a sweep of `batch`: changes of each arm in percent by batch, None where failed."""
    batches = sorted({batch for found in changes.values() for batch in found})
    cells = {batch: cell_of(batch=batch) for batch in batches}
    comparisons = [
        compared(arm, cells[batch], None if ends is None else estimate(*ends))
        for arm, found in changes.items()
        for batch, ends in found.items()
    ]
    return run_of(tuple(cells.values()), tuple(comparisons), **fields)


def spread_run(**medians_s: float) -> RunComparison:
    """Return a run of one cell whose arms take so long a step."""
    return run_of((spread_cell(medians_s),), ())


def swept() -> RunComparison:
    """Return a sweep in which docker gets slower and singularity fails once."""
    return swept_run({
        "docker": {1: (0.5, -1, 2), 4: (3.0, 2.5, 3.5), 16: (8.0, 7.5, 8.5)},
        "singularity": {1: (0.1, -1, 1), 4: None, 16: (-3.0, -4, -2)},
    })  # fmt: skip


def hostile_runs(name: str) -> list[RunComparison]:
    """Return runs in which everything the user names has this name."""
    spread = spread_run(**{"vm": 0.01, name: 0.011})
    cell = replace(spread.cells[0], id=name, workload=name, host=name, parameters={name: 1})
    other = replace(cell, id=f"{name}2", parameters={name: 2}, step_times=(), step_edges_s=())
    found = (
        compared(name, cell, estimate(8, 7, 9)),
        compared(name, other, None, reason=Reason(kind="failed", brief=name)),
    )
    timed = run_of((cell, other), found)
    profiles = cell_profiles(name, ledgers=(ledger(arm=name),))
    return [timed, replace(profiled_run(), profiles=(profiles,))]
