"""What hangs, dies or has no finite loss as it begins: who is blamed, and for how long."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from benches import Kept, Measured, bench, launch, measure

from envcompare.environments.registry import environment
from envcompare.errors import StillRunningError
from envcompare.measure import limits
from envcompare.measure.crew import Roster
from envcompare.measure.limits import begin_limit_s
from envcompare.measure.lockstep import Lockstep
from envcompare.measure.worker import Worker
from envcompare.transport.local import LOCAL

SOURCE = """
import os, signal, time

ARM = os.environ["ENVCOMPARE_ENVIRONMENT"]


class Steady:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        time.sleep(0.01)
        return 1.0


class ReferenceDies(Steady):
    def setup(self, seed, device):
        if ARM == "vm":
            os.kill(os.getpid(), signal.SIGKILL)


class HangsInSetup(Steady):
    def setup(self, seed, device):
        if ARM == "docker":
            time.sleep(300)


class NoLoss(Steady):
    def step(self):
        super().step()
        return float("nan")
"""


def tried(folder: Path, name: str, *passes: str, budget_s: float = 1.0) -> Measured:
    """Measure a workload of SOURCE with real workers."""
    (folder / "own.py").write_text(SOURCE)
    made = bench(folder, f"{folder}/own.py:{name}", budget_s=budget_s, has_startup=False)
    return measure(made, passes=passes)


def test_arm_is_not_blamed_where_the_reference_gave_no_first_loss(tmp_path: Path) -> None:
    """There is nothing that its own could differ from."""
    found = tried(tmp_path, "ReferenceDies", "lockstep", budget_s=30.0)
    assert {row.arm for row in found.comparison.failures} == {"vm"}
    assert "first loss differs" not in found.failures()
    assert "the reference vm failed" in found.docker.reason


def test_loss_that_is_nowhere_finite_is_said_once(tmp_path: Path) -> None:
    """Then the same work cannot be checked, and the reader has to know."""
    found = tried(tmp_path, "NoLoss", "lockstep", budget_s=3.0)
    texts = [event.text for event in found.events if event.what == "caution"]
    assert sum("the first loss is no finite number in any arm" in text for text in texts) == 1
    assert found.comparison.failures == ()


def test_hang_in_setup_is_not_tried_again_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the way out, and no pass launches the arm once more."""
    monkeypatch.setattr(limits, "MIN_BEGIN_LIMIT_S", 4.0)
    found = tried(tmp_path, "HangsInSetup", "startup", "lockstep")
    assert "docker: setup or the first step took longer than 4 s" in found.failures()
    assert "raise --budget" in found.failures()
    assert [row.arm for row in found.comparison.failures] == ["docker"]


def test_nothing_is_measured_beside_a_worker_that_cannot_be_ended(tmp_path: Path) -> None:
    """The cell ends with that reason; the other workers are killed all the same."""
    (tmp_path / "own.py").write_text(SOURCE)
    made = bench(tmp_path, f"{tmp_path}/own.py:ReferenceDies", budget_s=30.0)
    ended: list[str] = []

    def launched(arm: str, variables: tuple[tuple[str, str], ...] = ()) -> Worker:
        def end() -> None:
            ended.append(arm)
            if arm == "vm":
                raise StillRunningError("cannot show that all has ended")

        return launch(tmp_path, arm, variables, end=end)

    own = replace(made, launch=launched)
    with pytest.raises(StillRunningError):
        Lockstep(own, Roster(own)).measure()
    assert sorted(ended) == sorted(made.arms)
    assert isinstance(made.recorder, Kept)
    made.recorder.folder.close()
    assert [one.what for one in made.recorder.events if one.arm == "vm"][-1] == "arm-failed"


ALWAYS_THERE = """#!/bin/sh
case $1 in
  ps) echo 0123456789ab ;;
  rm) printf 'Error: 0123456789ab: \\033[31mdevice or resource busy\\n' >&2; exit 1 ;;
esac
"""


def test_container_that_stays_is_no_proof_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is asked for a bounded time, and what it says is told without its colours."""
    client = tmp_path / "docker"
    client.write_text(ALWAYS_THERE)
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StillRunningError) as caught:
        environment("docker").sweep(LOCAL, "20260101-000000-abcd", worker="0f")
    assert "device or resource busy" in caught.value.details
    assert "\033" not in caught.value.details
    assert "label=envcompare.worker=0f" in caught.value.hint


@pytest.mark.parametrize(
    ("budget_s", "remaining_s", "limit_s"),
    [(5, 5, 60), (90, 80, 80), (600, 600, 300), (600, -1, 60), (40_000, 40_000, 4000)],
)
def test_wait_for_a_beginning_keeps_to_the_budget(
    budget_s: float, remaining_s: float, limit_s: float
) -> None:
    """A minute at least; a step that a large budget was given for still fits."""
    assert begin_limit_s(budget_s, remaining_s=remaining_s) == limit_s
