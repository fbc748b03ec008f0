"""Stopping in steps: ask, then kill; what starts after a kill dies at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envcompare.errors import Interruption, handling_signals


class Running:
    """Something that runs until it is killed."""

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        """Note that it was killed."""
        self.is_killed = True


def wait_for(running: Running) -> bool:
    """Give a kill in a thread of its own a moment."""
    for _ in range(200):
        if running.is_killed:
            return True
        time.sleep(0.01)
    return False


def test_first_request_kills_nothing() -> None:
    """The block that runs is finished and saved."""
    interruption, running = Interruption(), Running()
    interruption.add(running)
    assert interruption.request() is False
    assert (interruption.is_requested, interruption.is_forced) == (True, False)
    assert not running.is_killed


def test_second_request_kills_what_runs_and_what_still_starts() -> None:
    """Nothing slips through between the kill and the end."""
    interruption, running, late = Interruption(), Running(), Running()
    interruption.add(running)
    interruption.request()
    assert interruption.request() is True
    interruption.add(late)
    assert wait_for(running)
    assert late.is_killed


def test_signal_becomes_a_request_and_the_handler_goes_away() -> None:
    """Inside the context Ctrl-C asks; outside it is what it was."""
    before = signal.getsignal(signal.SIGINT)
    interruption, said = Interruption(), list[str]()
    with handling_signals(interruption, said.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.is_requested
    assert signal.getsignal(signal.SIGINT) is before
    assert "again to kill at once" in said[0]


def test_third_signal_leaves_at_once() -> None:
    """A host that answers no more cannot keep the user waiting."""
    script = (
        "import os, signal\n"
        "from envcompare.errors import Interruption, handling_signals\n"
        "with handling_signals(Interruption(), print):\n"
        "    for _ in range(3): os.kill(os.getpid(), signal.SIGINT)\n"
        "    print('still here')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130
    assert "still here" not in done.stdout


def test_lost_terminal_is_the_first_request_however_often_it_is_said() -> None:
    """The run ends after its block and is saved; only the user asks for more."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
    interruption, said = Interruption(), list[str]()
    try:
        with handling_signals(interruption, said.append):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (interruption.is_requested, interruption.is_forced) == (True, False)
    assert len(said) == 1
    assert said[0].startswith("SIGHUP: ending after this block")


def test_lost_terminal_is_ignored_under_nohup() -> None:
    """Who asked for that wants the run to go on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interruption = Interruption()
        with handling_signals(interruption, lambda _text: None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.is_requested
    finally:
        signal.signal(signal.SIGHUP, before)


WHY = ("why", "a=true", "b=true", "--budget", "4", "--no-quiet-gate", "--out", "runs")


def interrupted_in(function: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command, and press Ctrl-C when it first calls a function."""
    script = (
        "import os, signal, sys\n"
        "import envcompare.cli, envcompare.cli.conclusion as conclusion\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in the background
        "def interrupt(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        f"conclusion.{function} = interrupt\n"
        f"sys.argv[1:] = {arguments!r}\n"
        "envcompare.cli.main()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize("function", ["compare_run", "show_summary"])
def test_interrupted_report_says_where_the_samples_are(function: str, tmp_path: Path) -> None:
    """The run's folder is named as it begins, and again by the command that draws its report."""
    done = interrupted_in(function, *WHY, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert done.returncode == 130
    begun, *_ = done.stderr.splitlines()
    assert begun.startswith(f"run runs/{folder.name}: 1 cell with 4 s each")
    told = done.stderr.splitlines()[-3:]
    assert told == [
        "error: interrupted while the report was drawn",
        f"  why: the samples are kept in runs/{folder.name}",
        f"  try: envcompare report runs/{folder.name}",
    ]
    assert (folder / "samples.jsonl").stat().st_size


def test_interrupted_command_says_so(tmp_path: Path) -> None:
    """No command ends without a word."""
    (tmp_path / "run.json").write_text("{}")
    done = interrupted_in("compare_run", "report", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 130
    assert "error: interrupted\n" in done.stderr
