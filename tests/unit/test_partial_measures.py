"""What too few restarts or clock ticks leave: no ratio of a few rounds, no promise from one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from builders import CELL, blocks, design, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison
from envcompare.report.wording.verdicts import reasons_text, verdict
from envcompare.run_folder.records import Event, ProcessRun
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import MetricName, Readings


def docker(path: Path, *, restarts: int, min_restarts: int = 4) -> Comparison:
    """Return the comparison of docker after so many restarts of one generation."""
    plan = design(min_restarts=min_restarts)
    folder = RunFolder.create(path / "run", run_record(design=plan))
    for block in blocks({"vm": 1.0, "docker": 1.03}, restarts=restarts, generations=1):
        folder.append_sample(block)
    folder.append_event(
        Event(t=time.time(), what="cell-ended", host="local", cell=CELL, state="ok")
    )
    folder.close()
    return next(
        comparison for comparison in compare_run(folder).comparisons if comparison.arm == "docker"
    )


def test_one_restart_promises_no_decision(tmp_path: Path) -> None:
    """Without an interval nobody knows how many more would decide."""
    found = docker(tmp_path, restarts=1)
    text = verdict(found, label="cnn", margin=0.05).text
    assert (found.forecast_restarts, found.forecast_s) == (None, None)
    assert "1 of at least 2 restarts" in text
    assert "at least 1 more before there is an interval" in text
    assert "would decide" not in text


def test_restarts_that_count_are_told_from_those_planned(tmp_path: Path) -> None:
    """The verdict needs two, a preset may have aimed at more."""
    reason = docker(tmp_path, restarts=1, min_restarts=6).reason
    assert reason is not None
    text = reasons_text((reason,))
    assert "1 of at least 2 restarts that a verdict needs (6 were planned)" in text


def test_too_few_rounds_are_counted_as_such(tmp_path: Path) -> None:
    """Three restarts of three rounds give no interval, and the reader learns why."""
    found = docker(tmp_path, restarts=3)
    assert found.outcome == "inconclusive"
    assert found.reason is not None
    assert "9 of at least 12 rounds that a verdict needs" in reasons_text((found.reason,))


def process(arm: str, number: int, *, sys_ns: int) -> ProcessRun:
    """Return a process that used so much time inside the kernel."""
    return ProcessRun(
        cell=CELL, arm=arm, number=number, order=0, t0_ns=1, wall_ns=10**8,
        user_ns=10**7, sys_ns=sys_ns, real_ns=2 * 10**8, exit_code=0,
    )  # fmt: skip


@pytest.mark.parametrize("has_control", [True, False])
@pytest.mark.parametrize(("zero", "metric", "rounds"), [
    (True, "sys", 0), (True, "user", 6), (False, "sys", 6), (True, "wall", 6),
])  # fmt: skip
def test_time_below_a_tick_in_a_complete_round_gives_no_ratio(
    *, zero: bool, metric: MetricName, rounds: int, has_control: bool
) -> None:
    """The rounds that met a tick would be a choice of the slow ones; an open round counts not."""
    runs = [process(arm, n, sys_ns=4 * 10**6) for n in range(6) for arm in ("vm", "docker")]
    runs.append(process("vm", 6, sys_ns=0))
    if zero and has_control:
        runs += [process("vm~control", n, sys_ns=n % 2 * 8 * 10**6) for n in range(6)]
    elif zero:
        runs[3] = process("docker", 1, sys_ns=0)
    assert len(Readings(runs).estimate("docker", "vm", metric)) == rounds
