"""What is recorded of faults of allocations, on a cluster that is none.

A real one is hurt in tests/engines/test_allocations.py and by `script/allocations`.
"""

from __future__ import annotations

import subprocess
from typing import Any

import allocationfaults
import pytest
from allocationfaults import CANCELLED, Fault, Trial, inflict
from cluster import SLURM


class EndlessJob:
    """A cluster whose only job never ends."""

    scheduler = SLURM

    def run(self, script: str) -> str:
        """List the job, whatever was done before."""
        return "job 7\n" if SLURM.jobs in script else ""

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
