"""How plain commands end: badly, late, not at all, or with processes left behind them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import IN_DOCKER, concluded, launch, measured, prepared, runs_of

from envcompare.measure.worker import Worker


@pytest.mark.parametrize(
    ("action", "phase", "code", "text"),
    [
        ("echo it went wrong; exit 3", "step", 3, "ended with exit code 3"),
        ("kill -9 $$", "process", 137, "killed by SIGKILL"),
    ],
)
def test_process_that_fails_takes_its_arm_alone(
    tmp_path: Path, *, action: str, phase: str, code: int, text: str
) -> None:
    """The phase, the exit code and the last lines are kept; vm is measured on."""
    script = f"sleep 0.02; {IN_DOCKER} || exit 0; {action}"
    found = measured(tmp_path, "sh", "-c", script, budget_s=4.0)
    row = found.comparison.course.failures[0]
    assert (row.arm, row.phase, row.exit_code) == ("docker", phase, code)
    assert text in row.brief
    assert ("it went wrong" in row.details) == (phase == "step")
    assert found.docker.outcome == "failed"
    assert "vm" in {run.arm for run in runs_of(found) if run.status == "ok"}


def test_program_that_is_not_there_is_found_before_anything_runs(tmp_path: Path) -> None:
    """The error names program and code; nothing was measured."""
    found = measured(tmp_path, "no-such-program", "1")
    assert "vm: no-such-program is not found there (exit 127)" in found.failures()
    assert "install it there" in found.failures()
    assert runs_of(found) == []


def test_file_that_is_not_executable_is_named(tmp_path: Path) -> None:
    """126 and 127 have different remedies."""
    (tmp_path / "plain").write_text("text")
    assert "not executable there (exit 126)" in measured(tmp_path, "./plain").failures()


def test_process_beyond_its_own_limit_is_killed_and_fails_its_arm(tmp_path: Path) -> None:
    """A hung process ends with its children, the others go on."""
    script = f"{IN_DOCKER} && sleep 300; exit 0"
    found = measured(tmp_path, "sh", "-c", script, timeout_s=0.5, budget_s=6.0)
    assert "docker: the command did not end within its limit" in found.failures()
    assert found.docker.outcome == "failed"


def test_command_longer_than_the_budget_is_killed_and_named(tmp_path: Path) -> None:
    """No verdict is invented, and the next step is told."""
    made, processes = prepared(tmp_path, "sleep", "300", budget_s=1.5)
    processes.measure()
    found = concluded(made)
    assert "what was left of the budget of 1.5 s" in found.failures()
    assert "raise --budget" in found.failures()
    assert processes.is_timeout
    assert found.docker.primary is None


def test_processes_left_behind_are_killed_and_said(
    tmp_path: Path, is_gone: Callable[[Path], bool]
) -> None:
    """What a command leaves would disturb the next one."""
    script = "sleep 300 & echo $! > left; exit 0"
    found = measured(tmp_path, "sh", "-c", script, budget_s=1.0)
    assert "leaves processes running" in found.cautions
    assert is_gone(tmp_path / "left")


def test_process_that_ends_right_after_its_command_is_let_end(tmp_path: Path) -> None:
    """What tidies up behind a command, as multiprocessing does, is neither killed nor said."""
    script = "(sleep 0.03; echo tidied >> tail) & exit 0"
    found = measured(tmp_path, "sh", "-c", script, budget_s=1.0)
    assert "leaves processes running" not in found.cautions
    assert (tmp_path / "tail").read_text().count("tidied") == len(runs_of(found))


UNREAPED = """
import os, time

group, (read, write) = os.getpgrp(), os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)
    if os.fork() == 0:
        os.setpgid(0, group)
        os._exit(0)
    os.close(read)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    for number in (1, 2, write):
        os.close(number)
    time.sleep(1)
    os._exit(0)
os.close(write)
os.read(read, 1)
"""


def test_process_that_ended_and_was_not_reaped_is_not_said(tmp_path: Path) -> None:
    """In a container the first process may reap nothing; what has ended disturbs nobody."""
    found = measured(tmp_path, "python", "-c", UNREAPED, budget_s=1.0)
    assert found.comparison.course.failures == ()
    assert "leaves processes running" not in found.cautions


def test_lost_connection_ends_the_program(tmp_path: Path, is_gone: Callable[[Path], bool]) -> None:
    """The end of the launcher's input kills the program and its children."""
    worker = launch(tmp_path, "vm")
    request = {"argv": ["sh", "-c", "echo $$ > pid; sleep 300; true"], "cwd": str(tmp_path)}
    asking = threading.Thread(target=_ask, args=(worker, request), daemon=True)
    asking.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    worker._close_stdin()
    assert is_gone(tmp_path / "pid")
    asking.join(30)  # it sees the end of the launcher, and not that it was killed
    assert not asking.is_alive()
    worker.kill()


def _ask(worker: Worker, request: dict[str, object]) -> None:
    fields = {**request, "patterns": {}, "limit_s": 300}
    with pytest.raises(Exception, match="ended during"):
        worker.ask_once("command", fields, kind=dict, limit_s=60)


@pytest.fixture
def is_gone() -> Callable[[Path], bool]:
    """Give a function that tells whether the process whose number a file holds is gone, 10 s on."""

    def ask(path: Path) -> bool:
        pid, until = int(path.read_text()), time.monotonic() + 10
        while time.monotonic() < until:
            try:
                os.kill(pid, 0)
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                return True
            if state == "Z":
                return True
            time.sleep(0.02)
        return False

    return ask
