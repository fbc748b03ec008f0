"""Run folders that nobody measured: each thing that is planted is what the analysis finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from runfolders import TITLE, Arm, Failing, Shape, write

SHAPE = Shape(
    hosts=("one", "two"),
    arms=(
        Arm(id="slow", ratio=1.2),
        Arm(id="fast", ratio=0.8),
        Arm(id="same", environment="singularity"),
        Arm(id="loud", spread=0.1),
    ),
    steps=40,
    failing=Failing(cell="one/rnn/default", arm="slow"),
    not_run=("two", "same"),
    confounded="fast",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Return the analysis of a run that holds one of each."""
    return compare_run(write(tmp_path_factory.mktemp("runs"), SHAPE))


def outcomes(run: RunComparison, arm: str) -> dict[str, str]:
    """Return the outcome of an arm in each cell."""
    return {
        comparison.cell.removesuffix("/default"): comparison.outcome
        for comparison in run.comparisons
        if comparison.arm == arm
    }


def test_ratios_are_found_as_they_were_planted(made: RunComparison) -> None:
    """Two that differ, and one that cannot be told."""
    assert set(outcomes(made, "fast").values()) == {"faster"}
    assert set(outcomes(made, "loud").values()) == {"inconclusive"}
    assert outcomes(made, "slow") == {
        "one/cnn": "slower", "one/rnn": "failed", "two/cnn": "slower", "two/rnn": "slower",
    }  # fmt: skip


def test_failure_has_its_phase_exit_code_and_log(made: RunComparison) -> None:
    """As a real one has."""
    found = next(failure for failure in made.course.failures if failure.arm == "slow")
    assert (found.phase, found.exit_code) == ("setup", 137)
    assert found.log == "logs/one/one_rnn_default/slow.log"


def test_arm_that_was_not_run_is_so_on_its_host_alone(made: RunComparison) -> None:
    """All cells of one host, none of the other."""
    found = outcomes(made, "same")
    assert {found["two/cnn"], found["two/rnn"]} == {"not-run"}
    assert "not-run" not in {found["one/cnn"], found["one/rnn"]}


def test_confounder_is_the_library_that_one_arm_loads(made: RunComparison) -> None:
    """It marks that arm and no other."""
    assert {comparison.arm for comparison in made.comparisons if comparison.is_confounded} == {
        "fast"
    }
    found = {
        difference.key for difference in made.differences if difference.fact_class == "confounder"
    }
    assert found == {"loaded_libraries"}


def test_it_is_complete_and_says_that_it_is_synthetic(made: RunComparison) -> None:
    """Nobody may take it for a measurement."""
    assert made.title == TITLE
    assert "synthetic" in made.title
    assert made.course.is_complete
    working = 2 * 2 * 6 - 1 - 2
    assert sum(cell.steps for cell in made.cells) == working * 6 * 2 * 4 * 40


def test_cost_of_an_arm_shrinks_with_the_first_parameter(tmp_path: Path) -> None:
    """A sweep has something to show."""
    shape = Shape(arms=(Arm(id="slow", ratio=1.5),), parameters={"batch": (16, 64)}, steps=40)
    run = compare_run(write(tmp_path, shape))
    found = {
        comparison.parameters["batch"]: comparison.primary.log_ratio
        for comparison in run.comparisons
        if comparison.arm == "slow" and comparison.workload == "cnn" and comparison.primary
    }
    assert found[16] == pytest.approx(0.405, abs=0.02)
    assert found[64] == pytest.approx(0.405 / 4, abs=0.02)


def test_same_shape_gives_the_same_files(tmp_path: Path) -> None:
    """Whoever repeats a benchmark reads the same bytes; another seed gives others."""
    shape = Shape(restarts=2, rounds=2)
    first, second = (write(tmp_path / name, shape).path for name in ("a", "b"))
    other = write(tmp_path, Shape(seed=2, restarts=2, rounds=2)).path
    for name in ("run.json", "samples.jsonl", "events.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "samples.jsonl").read_bytes() != (other / "samples.jsonl").read_bytes()
