"""The intervals of a whole run: as the rule saw them, each cell for itself, or screened."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import blocks, design, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.wording.methodwords import level_sentence
from envcompare.report.wording.verdicts import reasons_text
from envcompare.run_folder.records import CellRecord, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import Readings, look
from envcompare.stats.verdicts import EQUAL_LEVEL


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
        for sample in blocks({"vm": 1.0, "docker": ratio}, generations=4, noise=noise):
            made.append_sample(msgspec.structs.replace(sample, cell=cell.id))
        made.append_event(Event(t=1.0, what="stopped", host="local", cell=cell.id, text=stopped_by))
    made.close()
    return compare_run(made)


@pytest.mark.parametrize("rule", ["target", "equivalent", "decided", "budget"])
def test_cell_keeps_the_interval_that_the_rule_saw(tmp_path: Path, rule: str) -> None:
    """Stopping and analysis cannot disagree; but for a look after which nothing could go on."""
    found = blocks({"vm": 1.0, "docker": 1.0}, generations=4, noise=0.002)
    seen = look(
        Readings(found),
        ("docker",),
        reference="vm",
        design=design(),
        m=8,
        is_out_of_budget=rule == "budget",
    )["docker"]
    made = run(tmp_path, [1.0] * 8, stopped_by=rule)
    first = made.comparisons[0].deciding
    assert seen is not None
    assert first is not None
    assert (first.low, first.high) == (seen.low, seen.high)


def test_interval_and_error_of_equivalent_arms_are_those_of_one_sided_tests(
    tmp_path: Path,
) -> None:
    """The page says at which level, and of all together only where nothing else was found."""
    made = run(tmp_path / "a", [1.0] * 3)
    assert {one.outcome for one in made.compared} == {"equivalent"}
    assert {one.deciding.level for one in made.compared if one.deciding} == {EQUAL_LEVEL}
    assert level_sentence(made).endswith(
        "For equivalent environments the intervals hold at 90 %: the risk of calling all 3 "
        "equivalent when one is not is at most 5 %."
    )
    mixed = run(tmp_path / "b", [1.0, 1.0, 1.2])
    assert level_sentence(mixed).endswith(
        "For an equivalent environment the interval holds at 90 %: the risk of calling it "
        "equivalent when it is not is at most 5 %."
    )


def test_cells_speak_for_themselves_however_many_there_are(tmp_path: Path) -> None:
    """A calm cell keeps its spread beside rough ones."""
    alone = run(tmp_path / "a", [1.0]).cells[0].restart_spread
    among = run(tmp_path / "b", [1.0] * 9).cells[0].restart_spread
    assert alone is not None
    assert alone == among


def test_screen_selects_what_differs_and_leaves_the_rest_open_or_equal(tmp_path: Path) -> None:
    """Only the selected are called slower, and the report says what that promises."""
    made = run(tmp_path, [1.2, 1.2, *[1.0] * 8], screen=True)
    outcomes = [comparison.outcome for comparison in made.comparisons if not comparison.is_control]
    assert outcomes[:2] == ["slower", "slower"]
    assert "slower" not in outcomes[2:]
    levels = [
        comparison.primary.level
        for comparison in made.comparisons
        if comparison.primary and not comparison.is_control
    ]
    assert levels[0] == pytest.approx(1 - 0.8 * 0.05 * 2 / 10)
    assert levels[-1] == pytest.approx(1 - 0.8 * 0.05)
    assert "Benjamini and Hochberg" in level_sentence(made)


def test_target_that_is_too_wide_to_decide_is_named(tmp_path: Path) -> None:
    """More time alone would not help there."""
    made = run(tmp_path, [1.0], stopped_by="target", target=0.2, margin=0.0001)
    assert made.comparisons[0].outcome == "inconclusive"
    assert "--target" in reasons_text((made.comparisons[0].reason,))


def test_strict_gives_no_verdict_on_fewer_restarts_than_it_planned(tmp_path: Path) -> None:
    """Two are enough for the other presets."""
    strict = run(tmp_path, [1.2], preset="strict", min_restarts=6)
    assert strict.comparisons[0].outcome == "inconclusive"
    assert "4 of at least 6 restarts" in reasons_text((strict.comparisons[0].reason,))
