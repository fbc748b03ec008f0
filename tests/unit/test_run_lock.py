"""One process at a time writes into a run folder; a second one is told which."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import envcompare
from imports import log
from runs import run_folder, running, unfinish

from envcompare.errors import RunFolderError
from envcompare.run_folder import LOCK_NAME, locked, owner_of

WORDS = ("--envs", "vm@host", "--no-quiet-gate", "--profile", "none", "--command")


@pytest.fixture
def going_on(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a run that is measuring, and goes on doing so."""
    with running(tmp_path, *WORDS, "sleep 0.3", "--budget", "300", "--target", "0.001") as process:
        yield process


def only_run(place: Path) -> Path:
    """Return the run folder of a place."""
    folder = run_folder(place)
    assert folder is not None
    return folder


def test_a_run_that_is_going_on_is_not_resumed(
    going_on: subprocess.Popen[str], tmp_path: Path
) -> None:
    """The error names process, machine and age, and the first one loses nothing."""
    folder = only_run(tmp_path)
    done = envcompare("run", "--resume", str(folder), cwd=tmp_path)
    assert done.returncode == 5
    assert "is being written to by another `envcompare run`" in done.stderr
    assert f"process {going_on.pid} on {os.uname().nodename} has held it for" in done.stderr
    assert f"envcompare status {folder}" in done.stderr
    going_on.send_signal(signal.SIGINT)
    assert going_on.wait() == 130
    events = (folder / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["what"] for line in events].count("run-resumed") == 0


@pytest.mark.usefixtures("going_on")
def test_nothing_is_imported_into_a_run_that_is_going_on(tmp_path: Path) -> None:
    """It does not wait for a run as it would for another import."""
    folder = only_run(tmp_path)
    file = log(tmp_path, "old.log", "kernel")
    done = envcompare(
        *("import", "nvprof", "--env", "old", "--into", str(folder), str(file)), cwd=tmp_path
    )
    assert done.returncode == 5
    assert "is being written to by another `envcompare run`" in done.stderr
    assert not list(folder.glob("profiles/**/*"))


def test_a_killed_run_holds_nothing(going_on: subprocess.Popen[str], tmp_path: Path) -> None:
    """What it wrote into the lock stays, and nobody believes it."""
    folder = only_run(tmp_path)
    owner = owner_of(folder)
    assert owner is not None
    assert (owner.command, owner.pid) == ("run", going_on.pid)
    going_on.kill()
    going_on.wait()
    assert (folder / LOCK_NAME).read_bytes()
    # a child between fork and exec holds what its parent held
    until = time.monotonic() + 10
    while owner_of(folder) is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert owner_of(folder) is None


def test_of_two_that_resume_a_run_one_wins(tmp_path: Path) -> None:
    """The other says so, and the run ends as if it had been alone."""
    done = envcompare(*("run", "--quick", *WORDS, "sleep 0.3", "--budget", "6"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path / "results")
    unfinish(folder)
    argv = [sys.executable, "-m", "envcompare", "run", "--resume", str(folder)]
    both = [
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = {process.returncode: said for process in both if (said := process.communicate()[1])}
    assert sorted(errors) == [0, 5], errors
    assert "is being written to by another `envcompare run`" in errors[5]
    lines = (folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line)["what"] for line in lines]
    assert (events.count("run-resumed"), events[-1]) == (1, "run-ended")


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    """Its target would be emptied."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / LOCK_NAME).symlink_to(kept)
    with pytest.raises(RunFolderError, match="cannot be written"):
        locked(tmp_path, by="run").__enter__()
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b'{"pid": "x"}', b"[" * 4000])
def test_a_lock_that_does_not_say_who_holds_it_is_one_all_the_same(
    tmp_path: Path, content: bytes
) -> None:
    """It may be cut off, or somebody else wrote it."""
    with locked(tmp_path, by="import"):
        (tmp_path / LOCK_NAME).write_bytes(content)
        with pytest.raises(RunFolderError) as caught:
            locked(tmp_path, by="run", limit_s=0).__enter__()
        owner = owner_of(tmp_path)
        assert owner is not None
        assert (owner.command, owner.place) == ("run", "another process")
    assert caught.value.brief.endswith("is being written to by another process")
