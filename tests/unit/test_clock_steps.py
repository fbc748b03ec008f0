"""A clock that is set in the middle of a run changes no budget, wait or age."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from nightly import nightly_except

from envcompare.run_folder import duration_s, elapsed_s
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder

HOUR_S = 3600.0
BUDGET_S = 6.0


# libfaketime breaks time.sleep of Python 3.11, whose absolute waits it takes for relative ones.
CLIENT = """
import sys, time

real, clock = time.time, sys.argv.pop(1)


def time_of_day():
    with open(clock) as file:
        return real() + float(file.read() or 0)


time.time = time_of_day
from envcompare.cli import main
main()
"""


def envcompare(clock: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command with a time of day that a file sets, for the client alone."""
    argv = (sys.executable, "-c", CLIENT, str(clock), "run", *words)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_time_of_day_does_not_count_as_time_that_was_spent(step_s: float) -> None:
    """Events of one part are compared by a clock that nobody sets."""
    events = (
        Event(t=1000.0, clock_s=50.0, what="cell-started"),
        Event(t=1001.0 + step_s, clock_s=51.0, what="restart"),
        Event(t=1003.0 + step_s, clock_s=53.0, what="interrupted"),
        Event(t=9000.0, clock_s=2.0, what="cell-started"),  # after a boot
        Event(t=9001.0, clock_s=3.0, what="cell-ended"),
    )
    assert elapsed_s(events) == 4.0


def test_time_in_which_others_are_served_is_not_a_cells_own() -> None:
    """Neither while others are made ready, whatever is noted of it, nor once it is decided."""
    events = (
        Event(t=0.0, what="cell-started"),
        Event(t=0.0, what="turn"),
        Event(t=100.0, what="calibrated"),
        Event(t=100.0, what="turn"),
        Event(t=190.0, what="restart"),
        Event(t=200.0, what="turn"),
        Event(t=210.0, what="caution"),
        Event(t=220.0, what="note"),
        Event(t=290.0, what="restart"),
        Event(t=295.0, what="stopped"),
        Event(t=400.0, what="profiled"),
        Event(t=500.0, what="profiled"),
        Event(t=900.0, what="cell-ended"),
    )
    assert elapsed_s(events) == 15.0
    assert duration_s(events) == 900.0


def test_time_in_the_queue_of_a_scheduler_is_no_part_of_a_run() -> None:
    """Neither before it begins nor before it goes on."""
    events = (
        Event(t=0.0, what="submitted"),
        Event(t=900.0, what="run-started"),
        Event(t=910.0, what="interrupted"),
        Event(t=2000.0, what="submitted"),
        Event(t=5000.0, what="run-resumed"),
        Event(t=5005.0, what="run-ended"),
    )
    assert duration_s(events) == 15.0


def test_events_of_an_older_run_have_their_times_alone() -> None:
    """They are compared as they were."""
    events = (Event(t=1.0, what="cell-started"), Event(t=3.5, what="cell-ended"))
    assert elapsed_s(events) == 2.5


@pytest.mark.parametrize(
    "steps", nightly_except(((-HOUR_S, HOUR_S),), ((HOUR_S, -HOUR_S), (-HOUR_S, HOUR_S)))
)
def test_run_and_its_resumption_survive_clocks_that_are_set(
    steps: tuple[float, float], tmp_path: Path
) -> None:
    """The clock is set while a cell is measured, and is another again when it is resumed."""
    clock, out = tmp_path / "clock", tmp_path / "out"
    clock.write_text("0")
    words = ("--envs", "vm@host", "--host-python", sys.executable, "--command", "sleep 0.05")
    short = ("--budget", str(BUDGET_S), "--target", "0.0001", "--no-quiet-gate")
    first = envcompare(clock, *words, *short, "--profile", "none", "--out", str(out))
    until = time.monotonic() + 60
    while not list(out.glob("*/samples.jsonl")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1.0)
    clock.write_text(str(steps[0]))
    time.sleep(0.5)
    first.send_signal(2)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == 130, said
    clock.write_text(str(steps[1]))
    (folder,) = out.iterdir()
    began = time.monotonic()
    again = envcompare(clock, "--resume", str(folder))
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert time.monotonic() - began < 60
    events = RunFolder.open(folder).read_events().events
    assert [event.state for event in events if event.what == "cell-ended"] == ["ok"]
    assert abs(events[0].t - events[-1].t) > HOUR_S / 2
    assert BUDGET_S / 2 < elapsed_s(e for e in events if e.cell) < 4 * BUDGET_S
