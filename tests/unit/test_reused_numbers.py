"""Numbers of processes are given anew: who kills by number looks first whose it is."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envcompare.hosts import keeper
from envcompare.text import Command
from envcompare.transport import LOCAL, ssh


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that leads a group of its own, and is nobody's to kill."""
    process = subprocess.Popen(("sleep", "300"), start_new_session=True)
    yield process
    process.kill()
    process.wait()


def started(pid: int) -> int:
    """Return when a process started, in clock ticks since the boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def state(pid: int) -> str:
    """Return the state of a process, nothing where there is none."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else ""


def kill_group(pid: int, start: int) -> None:
    """Kill a group as is done on a host that is reached over SSH."""
    argv = ("sh", "-c", ssh._KILL_GROUP, "sh", str(pid), str(start))
    subprocess.run(argv, check=True)


def test_local_command_keeps_its_number_until_it_is_killed() -> None:
    """Its group is signalled by number, which nobody else can have before that."""
    process = LOCAL.spawn(Command(argv=("sh", "-c", "echo $PPID")))
    pid = int(process.stdout.readline())
    assert process.wait(10) == 0
    assert state(pid) == "Z"
    process.kill()
    assert state(pid) == ""
    assert process.wait(10) == 0


def test_local_command_that_was_reaped_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill may be repeated at any time."""
    process = LOCAL.spawn(Command(argv=("true",)))
    process.kill()
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _number: signalled.append(group))
    process.kill()
    assert signalled == []


def test_local_command_that_nobody_kills_is_reaped() -> None:
    """A run starts thousands of them."""
    process = LOCAL.spawn(Command(argv=("sh", "-c", "echo $PPID")))
    pid = int(process.stdout.readline())
    process.wait(10)
    del process
    assert state(pid) == ""


def test_group_of_a_host_is_killed_only_with_its_start(
    stranger: subprocess.Popen[bytes],
) -> None:
    """Another process that leads the number by now goes on."""
    kill_group(stranger.pid, started(stranger.pid) - 1)
    assert stranger.poll() is None
    kill_group(stranger.pid, started(stranger.pid))
    assert stranger.wait(10) == -signal.SIGKILL


def test_group_whose_leader_is_gone_is_left_alone(stranger: subprocess.Popen[bytes]) -> None:
    """There is nothing that would show whose it is."""
    start = started(stranger.pid)
    stranger.kill()
    stranger.wait()
    kill_group(stranger.pid, start)


def test_claim_of_a_lost_connection_ends_only_its_own_process(
    stranger: subprocess.Popen[bytes],
) -> None:
    """Its number may belong to another by the time the host answers again."""
    lost = keeper.Claim(run_id="run", pid=stranger.pid, start=started(stranger.pid) - 1)
    keeper.end_claim(LOCAL, lost)
    assert stranger.poll() is None
    keeper.end_claim(
        LOCAL, keeper.Claim(run_id="run", pid=stranger.pid, start=started(stranger.pid))
    )
    assert stranger.wait(10) == -signal.SIGKILL
