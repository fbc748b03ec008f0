"""Why: a fold for each comparison that is not equivalent, and a way to all the others."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from msgspec.structs import replace
from profilepages import profiled_run

from envcompare.analysis.model import (
    STEP_PROBABILITIES,
    CellSummary,
    Comparison,
    RunComparison,
    StepTimes,
)
from envcompare.report import Line, Link, shared_axis
from envcompare.report.charts import ChartBudget
from envcompare.report.page import render
from envcompare.report.sections.comparisons import comparison_rows
from envcompare.report.sections.why import (
    MOST_FOLDS,
    Sheet,
    comparison_blocks,
    unexplained_cells,
)
from envcompare.report.wording import fold_anchor, row_anchor
from tests.data.report.builders import EQUAL, FASTER, OPEN, SLOWER, comparison, example, on, run_of

SMALL = comparison("equivalent", replace(EQUAL.primary, low=0.001))  # type: ignore[type-var]


def times(arm: str, median_s: float, **fields: Any) -> StepTimes:
    """Return the times of 400 steps, a tenth of the median to either side."""
    known: dict[str, Any] = {
        "steps": 400,
        "median_s": median_s,
        "p05_s": 0.95 * median_s,
        "p95_s": 1.05 * median_s,
        "quantiles_s": tuple(median_s * (0.9 + 0.2 * one) for one in STEP_PROBABILITIES),
        "longest_s": 1.5 * median_s,
        "counts": (10, 100, 180, 100, 9),
    }
    return StepTimes(arm=arm, **{**known, **fields})


def cell(one: Comparison, **fields: Any) -> CellSummary:
    """Return the cell of a comparison with times of both arms."""
    known: dict[str, Any] = {
        "state": "ok",
        "step_times": (times("vm", 0.04), times("docker", 0.044)),
        "step_edges_s": (0.035, 0.0375, 0.04, 0.0425, 0.045, 0.06),
    }
    known |= {"id": one.cell, "host": one.host, "workload": one.workload}
    return CellSummary(**{**known, **fields})


def fold(html: str, one: Comparison) -> str:
    """Return the text of the fold of a comparison."""
    part = html.split(f'<details id="{fold_anchor(one.cell, one.arm)}"')[1]
    end = part.split(f'href="#{row_anchor(one.cell, one.arm)}"')[0]
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", end).split()))


def why_of(run: RunComparison, charts: ChartBudget | None = None) -> list[Any]:
    """Return the blocks that explain the comparisons of a run."""
    shared = shared_axis(run.comparisons, margin=run.settings.margin)
    rows = comparison_rows(run, shared)
    sheet = Sheet(axis=shared, charts=charts or ChartBudget(), files=())
    return list(comparison_blocks(run, rows, sheet))


def folds_of(run: RunComparison, charts: ChartBudget | None = None) -> list[Any]:
    """Return the folds of the comparisons of a run."""
    return [block for block in why_of(run, charts) if block.form == "fold"]


def test_what_was_decided_comes_first_and_the_largest_at_the_top() -> None:
    """A wide interval around a large number is not the first thing to explain."""
    wide = replace(OPEN.primary, log_ratio=0.5, high=1.0)  # type: ignore[type-var]
    found = (on("a", replace(OPEN, primary=wide)), on("b", FASTER), on("c", SLOWER), on("d", EQUAL))
    folds = folds_of(run_of(*found))
    assert [one.summary.strong for one in folds] == ["c · docker", "b · docker", "a · docker"]
    assert [one.is_open for one in folds] == [True, True, False]


def test_every_comparison_without_a_fold_is_counted_and_reachable() -> None:
    """Equivalent ones have a link to their row, a real difference among them is said."""
    lost = comparison("failed")
    html = render(run_of(on("a", EQUAL), on("b", SMALL), on("c", lost)))
    part = html.split('<section id="why"')[1].split("</section>")[0]
    text = unescape(re.sub(r"</?span[^>]*>", "", part))
    assert "No comparison is slower, faster or inconclusive." in text
    assert "1 comparison equivalent within ±2 %:" in text
    assert "1 comparison equivalent within ±2 % with a real difference inside it:" in text
    assert "+0.1 to +0.8 %" in text
    for name, one in (("a", EQUAL), ("b", SMALL)):
        assert f'href="#{row_anchor(on(name, one).cell, one.arm)}"' in text
    assert '1 comparison failed: <a href="#failures">Failures</a>' in text


def test_the_smallest_of_many_stand_in_all_comparisons_alone() -> None:
    """The page stays small, and says how many it does not explain."""
    compared = (on(f"work{number:03}", SLOWER) for number in range(MOST_FOLDS + 5))
    run = run_of(*compared)
    assert len(folds_of(run)) == MOST_FOLDS
    (pointers,) = (block for block in why_of(run) if block.form == "items")
    assert pointers.items[0] == Line(
        text="Without a fold, 5 more comparisons that are slower, faster or inconclusive:",
        after=(Link(text="All comparisons", href="#all"),),
    )


def test_charts_are_drawn_up_to_their_number_and_tables_for_all() -> None:
    """Beyond the budget the quantiles stand there without a drawing, and that is counted."""
    found = (on("a", SLOWER), on("b", FASTER))
    run = run_of(*found, cells=tuple(cell(one) for one in found))
    charts = ChartBudget(left=1)
    folds = folds_of(run, charts)
    forms = [[block.form for block in one.blocks] for one in folds]
    assert [one.count("drawing") for one in forms] == [1, 0]
    assert all("table" in one for one in forms)
    assert (charts.left, charts.refused) == (0, 1)


def test_a_confounded_comparison_says_what_differs_and_what_would_separate_it() -> None:
    """The sentence of the headline, with the command to copy."""
    run = example()
    text = fold(render(run), run.comparisons[0])
    assert "Comparison confounded. Besides the environment, the build of Python differs." in text
    assert "envcompare run --hosts lab01 --envs vm,docker --stacks image,host measures" in text


def test_a_fold_gives_the_quantiles_that_its_drawing_shows() -> None:
    """Every number of the chart stands in a table as well."""
    html = render(run_of(SLOWER, cells=(cell(SLOWER),)))
    text = fold(html, SLOWER)
    assert "p5 p25 median p75 p95 p99 longest steps" in text
    assert "vm 36.4 38.0 40.0 42.0 43.6 43.9 60.0 400" in text
    assert '<svg class="chart"' in html


def test_quantiles_that_an_older_analysis_did_not_keep_have_no_column() -> None:
    """Three of them were always kept."""
    old = tuple(times(arm, 0.04, quantiles_s=(), longest_s=None, counts=()) for arm in ("vm",))
    text = fold(render(run_of(SLOWER, cells=(cell(SLOWER, step_times=old),))), SLOWER)
    assert "p5 median p95 steps vm 38.0 40.0 42.0 400" in text
    assert "docker not measured not measured not measured 0" in text


def test_whole_processes_are_not_called_steps() -> None:
    """A plain command is timed as a whole."""
    text = fold(
        render(run_of(SLOWER, cells=(cell(SLOWER, processes=400, is_program=True),))), SLOWER
    )
    assert "Distribution of process times" in text
    assert "steps" not in text


def test_the_raw_files_of_both_arms_are_linked_where_they_lie_beside_the_page() -> None:
    """Log, fingerprint, profiles and samples of the very comparison, and no others."""
    files = (
        "logs/gpu01/gpu01_cnn_default/docker.log",
        "logs/gpu01/gpu01_rnn_default/docker.log",
        "fingerprints/gpu01/vm/cnn_default.json",
        "profiles/gpu01_cnn_default/docker/nsys.json",
        "samples.jsonl",
    )
    html = render(run_of(SLOWER), files=files)
    text = fold(html, SLOWER)
    assert "Files: all samples: samples.jsonl · vm: fingerprint · docker: log , nsys.json" in text
    part = html.split('class="files"')[1].split("</p>")[0]
    assert re.findall(r'href="\./([^"]+)"', part) == [files[4], files[2], files[0], files[3]]


def test_a_ledger_that_is_missing_has_its_reason() -> None:
    """Nothing is left blank."""
    text = fold(render(run_of(SLOWER)), SLOWER)
    assert "Not measured, where the time goes and kernels: no profile was taken." in text


def test_ledger_and_kernels_stand_once_with_their_comparison() -> None:
    """The profiles of the cell point to the fold; those of equivalent arms stay there."""
    run = profiled_run()
    (first, _) = folds_of(run)
    headings = [block.text for block in first.blocks if block.form == "heading"]
    assert headings[:2] == ["Difference ledger", "Kernels"]
    rows = comparison_rows(run, shared_axis(run.comparisons, margin=run.settings.margin))
    (cell,) = unexplained_cells(run, rows)
    assert (cell.compared, cell.explained) == (("singularity",), ("docker",))
    assert f'<a href="#{first.anchor}">docker</a>.' in render(run)
