"""The intervals of a whole run: as the rule saw them, pooled where the budget ended, screened."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import blocks, design, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model.comparison import RunComparison
from envcompare.report.wording.methodwords import level_sentence, method_sentences
from envcompare.report.wording.verdicts import reasons_text
from envcompare.run_folder.records import CellRecord, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.intervals import printed_interval
from envcompare.stats.pairs import pair, units


def run(
    folder: Path, ratios: list[float], *, stopped_by: str = "budget", **changes: object
) -> RunComparison:
    """Analyse a run with a cell for each ratio of docker to vm."""
    cells = tuple(
        CellRecord(id=f"local/cnn/n={n}", host="local", workload="cnn", parameters={"n": n})
        for n in range(len(ratios))
    )
    made = RunFolder.create(folder, run_record(cells=cells, design=design(**changes)))
    for cell, ratio in zip(cells, ratios, strict=True):
        noise = 0.002 * (1 + cells.index(cell))
        for sample in blocks({"vm": 1.0, "docker": ratio}, noise=noise):
            made.append_sample(msgspec.structs.replace(sample, cell=cell.id))
        made.append_event(Event(t=1.0, what="stopped", host="local", cell=cell.id, text=stopped_by))
    made.close()
    return compare_run(made)


def pooled(found: RunComparison) -> set[bool]:
    """Tell which kinds of restart variance the arm's intervals rest on."""
    return {
        one.primary.is_pooled
        for one in found.comparisons
        if one.primary is not None and not one.is_control
    }


@pytest.mark.parametrize("rule", ["target", "equivalent", "decided"])
def test_cell_that_a_rule_stopped_keeps_the_interval_the_rule_saw(
    tmp_path: Path, rule: str
) -> None:
    """Stopping and analysis cannot disagree."""
    made = run(tmp_path, [1.0] * 8, stopped_by=rule)
    assert pooled(made) == {False}
    groups = units(
        pair(
            blocks({"vm": 1.0, "docker": 1.0}, noise=0.002),
            arm="docker",
            reference="vm",
            read=lambda block: float(sum(block.wall_ns) - 100_000),
        )
    )
    seen = printed_interval(groups, comparisons=8, is_strict=False)
    first = made.comparisons[0].primary
    assert seen is not None
    assert first is not None
    assert (first.low, first.high) == (seen.low, seen.high)


def test_cells_that_the_budget_ended_share_their_restart_variance_and_say_so(
    tmp_path: Path,
) -> None:
    """With eight cells the run says more of a launch than each of them alone."""
    made = run(tmp_path, [1.0] * 8)
    assert pooled(made) == {True}
    assert any("mean over all cells" in text for text in method_sentences(made))


@pytest.mark.parametrize(("cells", "preset"), [(7, "quick"), (8, "strict")])
def test_few_cells_and_strict_share_nothing(tmp_path: Path, cells: int, preset: str) -> None:
    """Below eight cells, and where restart means alone are asked for."""
    assert pooled(run(tmp_path, [1.0] * cells, preset=preset)) == {False}


def test_screen_selects_what_differs_and_leaves_the_rest_open_or_equal(tmp_path: Path) -> None:
    """Only the selected are called slower, and the report says what that promises."""
    made = run(tmp_path, [1.2, 1.2, *[1.0] * 8], screen=True)
    outcomes = [one.outcome for one in made.comparisons if not one.is_control]
    assert outcomes[:2] == ["slower", "slower"]
    assert "slower" not in outcomes[2:]
    levels = [one.primary.level for one in made.comparisons if one.primary and not one.is_control]
    assert levels[0] == pytest.approx(1 - 0.8 * 0.05 * 2 / 10)
    assert levels[-1] == pytest.approx(1 - 0.8 * 0.05)
    assert "Benjamini and Hochberg" in level_sentence(made)


def test_target_that_is_too_wide_to_decide_is_named(tmp_path: Path) -> None:
    """More time alone would not help there."""
    made = run(tmp_path, [1.0], stopped_by="target", target=0.2, margin=0.0001)
    assert made.comparisons[0].outcome == "inconclusive"
    assert "--target" in reasons_text((made.comparisons[0].reason,))


def test_strict_gives_no_verdict_on_fewer_restarts_than_it_planned(tmp_path: Path) -> None:
    """Four are enough for the other presets."""
    strict = run(tmp_path, [1.2], preset="strict", min_restarts=6)
    assert strict.comparisons[0].outcome == "inconclusive"
    assert "4 of at least 6 restarts" in reasons_text((strict.comparisons[0].reason,))
