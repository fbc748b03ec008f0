"""What is recorded of faults of allocations, on a cluster that is none.

A real one is hurt in tests/engines/test_allocations.py and by `script/allocations`.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import allocationfaults
import pytest
from allocationfaults import CANCELLED, Fault, Trial, inflict, lock_cluster
from cluster import JOBS
from commandline import envcompare
from faulttrials import Broken, check_whole
from runs import LIGHT, STEPS_ALONE


class EndlessJob:
    """A cluster whose only job never ends."""

    def run(self, script: str) -> str:
        """List the job, whatever was done before."""
        return "job 7\n" if JOBS in script else ""

    def left(self) -> str:
        """Return that job."""
        return "job 7\n"


def breaks(_trial: Trial) -> None:
    """Be a fault that no run survives."""
    raise AssertionError("the client has not ended after 150 s")


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give that cluster, and a fault that breaks every trial on it."""
    monkeypatch.setattr(allocationfaults, "as_root", lambda *_: "")
    monkeypatch.setattr(allocationfaults, "eventually", lambda claim, **_: claim())
    monkeypatch.setitem(allocationfaults.FAULTS, CANCELLED, Fault(hurt=breaks, says="cancelled"))
    return EndlessJob()


def test_trial_whose_job_does_not_end_is_recorded(no_cluster: Any) -> None:
    """With both problems: that of the run, and that what it left is still there."""
    record = inflict(no_cluster, CANCELLED, seed=3)
    assert record.problem == (
        "the client has not ended after 150 s | "
        "what is left could not be removed: a job does not end"
    )
    assert (record.is_removed, record.left) == (False, 1)


def test_trial_is_recorded_while_a_machine_is_down(
    no_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be removed there."""

    def is_down(*argv: str) -> str:
        raise subprocess.CalledProcessError(1, argv)

    monkeypatch.setattr(allocationfaults, "as_root", is_down)
    record = inflict(no_cluster, CANCELLED, seed=3)
    assert "returned non-zero exit status 1" in record.problem
    assert not record.is_removed


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a run of a fixed size that ended as planned."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "light.py").write_text(LIGHT)
    size = ("--quick", "--restarts", "2", "--rounds", "2", "--steps", "2", "--budget", "300")
    words = ("--envs", "vm", "--stacks", "host", "--workload", "light.py:Light", *STEPS_ALONE)
    done = envcompare("run", *words, *size, "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "out").iterdir()
    return run


@pytest.fixture
def run(planned: Path, tmp_path: Path) -> Path:
    """Give a copy of its folder."""
    return shutil.copytree(planned, tmp_path / planned.name)


def test_run_that_ended_as_planned_is_whole(run: Path) -> None:
    """Nothing was measured twice."""
    assert check_whole(run) == 0


def test_run_that_lacks_a_block_is_not_whole(run: Path) -> None:
    """Its last one, in a run that says that it is complete."""
    samples = run / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if json.loads(line)["kind"] == "block")
    samples.write_text("".join(lines[:last] + lines[last + 1 :]))
    with pytest.raises(Broken, match="1 blocks are lacking and 0 are too many"):
        check_whole(run)


def test_run_that_has_a_block_of_no_plan_is_not_whole(run: Path) -> None:
    """It may be that of a restart that was measured once more than it should be."""
    samples = run / "samples.jsonl"
    text = samples.read_text()
    block = next(each for each in map(json.loads, text.splitlines()) if each["kind"] == "block")
    more = {**block, "restart": 2, "t0_ns": block["t0_ns"] + 1}
    samples.write_text(text + json.dumps(more) + "\n")
    with pytest.raises(Broken, match="0 blocks are lacking and 1 are too many"):
        check_whole(run)


def test_run_whose_samples_arrived_twice_is_not_whole(run: Path) -> None:
    """A whole restart of them looks as if it had been measured anew."""
    samples = run / "samples.jsonl"
    samples.write_text(2 * samples.read_text())
    with pytest.raises(Broken, match="12 of 24 blocks are copies"):
        check_whole(run)


def test_run_whose_budget_was_spent_is_not_whole(run: Path) -> None:
    """Though its cell is ok."""
    comparison = json.loads((run / "comparison.json").read_text())
    comparison["cells"][0]["stopped_by"] = "budget"
    (run / "comparison.json").write_text(json.dumps(comparison))
    with pytest.raises(Broken, match="ended as"):
        check_whole(run)


class Losing:
    """A cluster whose run loses a sample when it is hurt."""

    def __init__(self) -> None:
        self.samples = [{"kind": "block", "round": number} for number in range(3)]

    def lines(self, _out: str, name: str) -> list[dict[str, Any]]:
        """Return what the file of samples holds, and no event."""
        return list(self.samples) if name == "samples.jsonl" else []

    def events(self, _out: str, _what: str) -> list[dict[str, Any]]:
        """Return none."""
        return []


def test_sample_that_is_lost_while_the_client_ends_is_missed() -> None:
    """It had arrived when the fault struck."""
    cluster: Any = Losing()
    trial = Trial(cluster=cluster, out="out", draw=random.Random(0))
    trial.strike(cluster.samples.pop)
    with pytest.raises(AssertionError, match="samples that had arrived were lost"):
        trial.require_arrived()


def test_second_call_on_a_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it makes or takes anything; who works there, and what to do, is said."""
    monkeypatch.setattr(allocationfaults, "LOCKS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["script/allocations", "1"])
    with ExitStack() as first:
        assert lock_cluster(first) == ""
        assert allocationfaults.main() == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("error: another script/allocations, process ")
    assert said[0].endswith(", works on the cluster")
    assert [line.partition(":")[0] for line in said[1:]] == ["  why", "  try"]


def test_two_calls_work_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock ends with the call that had it."""
    monkeypatch.setattr(allocationfaults, "LOCKS", tmp_path)
    for _ in range(2):
        with ExitStack() as stack:
            assert lock_cluster(stack) == ""
