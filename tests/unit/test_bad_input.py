"""What cannot be measured is named, with a next step, and gives no verdict."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from faults import tried
from summaries import printed

from envcompare.measure import generation, limits
from envcompare.measure.limits import block_limit_s, steps_a_block
from envcompare.report.sections.cards import summary_cards


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks last 20 ms, so that a test takes moments."""
    monkeypatch.setattr(generation, "BLOCK_S", 0.02)


@pytest.mark.parametrize("passes", [("startup",), ("lockstep",)])
def test_step_longer_than_the_budget_is_refused(tmp_path: Path, passes: tuple[str, ...]) -> None:
    """Both passes name the step, the budget, and the budget that would do."""
    found = tried(tmp_path, "TakesSeconds", budget_s=0.5, passes=passes)
    assert found.docker.outcome == "failed"
    assert "vm: one step took 0.7" in found.failures()
    assert "longer than the budget of 0.5 s | give --budget" in found.failures()
    assert found.docker.primary is None


def test_first_step_that_compiles_beyond_the_budget_is_refused_as_what_it_is(
    tmp_path: Path,
) -> None:
    """The budget that would do is that of some compilations, not of a hundred such steps."""
    found = tried(tmp_path, "CompilesFirst", budget_s=0.5)
    told = (
        r"the first step, which compiled the model, took .* of 0\.5 s \| give --budget \d or more"
    )
    assert re.search(told, found.failures())


def test_step_faster_than_the_clock_is_refused(tmp_path: Path) -> None:
    """The clock itself would be measured; the next step is to put more work into a step."""
    found = tried(tmp_path, "DoesNothing")
    assert (found.docker.outcome, found.docker.primary) == ("failed", None)
    assert "µs, up to 1 µs of it for reading the clocks" in found.failures()
    assert "put more work into a step" in found.failures()


def test_short_steps_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block never holds more than the most steps, and needs no caution for being short."""
    monkeypatch.setattr(limits, "MAX_STEPS", 20)
    monkeypatch.setattr(generation, "BLOCK_S", 1000.0)
    found = tried(tmp_path, "Steady")
    assert found.comparison.cells[0].steps_per_block == 20
    assert "a block lasts" not in found.cautions


@pytest.mark.parametrize("step_s", [0.0, 1e-9, 1e-4, 0.01, 10.0])
def test_steps_of_a_block_stay_within_bounds(step_s: float) -> None:
    """Whatever the calibration saw."""
    assert limits.MIN_STEPS <= steps_a_block(step_s) <= limits.MAX_STEPS


def test_other_numbers_in_each_arm_give_no_ratio(tmp_path: Path) -> None:
    """Arms whose first loss differs do not do the same work."""
    found = tried(tmp_path, "DrawsItsOwnNumbers", budget_s=6.0)
    assert (found.docker.outcome, found.docker.primary) == ("failed", None)
    assert "does not do the same work as the reference, its first loss differs" in found.failures()
    assert "seed what `load` and `setup` draw" in found.failures()
    assert "read no file that an earlier start left" in found.failures()
    assert "give both arms the same device, data" in found.failures()


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        ("IsKilled", "docker: the process of the worker was killed by signal 9"),
        ("ItsGenerationIsKilled", "docker: the process of the generation was killed"),
    ],
)
def test_worker_killed_in_a_block_is_named(tmp_path: Path, name: str, brief: str) -> None:
    """It is tried once more, in new processes, and then given up; half a round counts nothing."""
    found = tried(tmp_path, name, budget_s=100.0)  # of which a restart takes its share
    assert found.docker.outcome == "failed"
    assert brief in found.failures()
    assert len(found.comparison.course.failures) == 2
    assert found.comparison.cells[0].dropped_rounds == 2
    assert all(row.hint for row in found.comparison.course.failures)


def test_hung_worker_is_named_and_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for as long as a block may take, not for ever."""
    monkeypatch.setattr(limits, "MIN_BLOCK_LIMIT_S", 3.0)
    monkeypatch.setattr(generation, "QUOTA_BLOCK_S", 0.1)
    found = tried(tmp_path, "Hangs", budget_s=100.0)
    assert found.docker.outcome == "failed"
    assert "docker: no answer to `run` within 3 s | it hangs or waits" in found.failures()


def test_block_of_many_chosen_steps_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --steps a block may last far longer than one that was calibrated."""
    monkeypatch.setattr(limits, "MIN_BLOCK_LIMIT_S", 0.6)
    found = tried(tmp_path, "TakesMoments", budget_s=100.0, steps=60, restarts=1, rounds=1)
    assert found.failures() == ""
    assert found.comparison.cells[0].steps_per_block == 60


@pytest.mark.parametrize(("expected_s", "limit_s"), [(0.3, 60), (2.0, 60), (30.0, 600)])
def test_limit_of_a_block_follows_what_it_should_take(expected_s: float, limit_s: float) -> None:
    """A minute at least, twenty times what was expected."""
    assert block_limit_s(expected_s) == limit_s


def test_workload_that_writes_to_stdout_is_measured(tmp_path: Path) -> None:
    """Prints of Python, of the system and of C go to the log, never into the protocol."""
    found = tried(tmp_path, "WritesToStdout")
    assert found.comparison.course.failures == ()
    assert found.docker.primary is not None
    log = (tmp_path / "docker.log").read_text()
    assert all(text in log for text in ("printed", "written", "put by C"))


def test_one_cpu_for_all_arms_is_a_caution(tmp_path: Path) -> None:
    """The verdict stands; what disturbs it is said, with a next step."""
    cpu = min(os.sched_getaffinity(0))
    found = tried(tmp_path, "Steady", cpus=(cpu,))
    assert f"all arms run on the one CPU {cpu}" in found.cautions
    assert "give --pin two CPUs or more" in found.cautions


def test_budget_too_small_for_two_restarts_is_named(tmp_path: Path) -> None:
    """One restart gives no interval; the budget that would do is estimated, on every page."""
    found = tried(tmp_path, "Steady", budget_s=0.05)
    assert found.docker.outcome == "inconclusive"
    assert "the budget of 0.05 s had room for 1 restart, and 4 were planned" in found.cautions
    cautions = " ".join(item.text for item in summary_cards(found.comparison).cautions.items)
    assert found.comparison.cells[0].cautions[0] in cautions
    assert "had room for 1 restart" in printed(found.comparison)
    needed = float(found.cautions.partition("give --budget ")[2].split()[0])
    assert needed >= 1
