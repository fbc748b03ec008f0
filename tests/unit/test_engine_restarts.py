"""An engine that restarts is asked again, for a bounded time, where that is safe."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from benches import Kept, bench

from envcompare.environments import Isolation, run_inside
from envcompare.environments.docker import Docker
from envcompare.environments.oci import ENGINE, image_store
from envcompare.measure.cell import Roster
from envcompare.run_folder.records import Failure
from envcompare.stack import storage
from envcompare.text import Command
from envcompare.transport import LOCAL

GOING = {
    "socket gone": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the "
    "docker daemon running?",
    "new client": "failed to connect to the docker API at unix:///var/run/docker.sock",
    "going down": "Error response from daemon: daemon is shutting down",
    "cut": 'error during connect: Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.24/info": EOF',
    "waiting": 'time="2026-01-01" level=error msg="error waiting for container: unexpected EOF"',
    "containerd": 'docker: Error response from daemon: connection error: desc = "transport: Error '
    'while dialing dial unix /run/containerd/containerd.sock: connect: connection refused"',
}
STAYING = {
    "rights": "permission denied while trying to connect to the Docker daemon socket",
    "no image": "Unable to find image 'app:1' locally",
    "full": "Error response from daemon: write /var/lib/docker/x: no space left on device",
}
# It answers again at the third try.
CLIENT = """#!/bin/sh
echo "$1" >>{tries}
[ "$(wc -l <{tries})" -gt {failures} ] || {{ echo {said} >&2; exit {code}; }}
case $1 in run) echo done ;; ps) ;; *) echo answered ;; esac
"""


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Give the engines that have answered, of which Docker here is one; pauses are short."""
    known = {("docker", "local")}
    monkeypatch.setattr(storage, "_ANSWERED", known)
    monkeypatch.setattr(storage, "_FIRST_PAUSE_S", 0.01)
    return known


def client(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, *, failures: int = 2, code: int = 1
) -> Path:
    """Put a client first in PATH that fails some times; return what it was asked, line by line."""
    program, tries = folder / "docker", folder / "tries"
    text = CLIENT.format(tries=tries, failures=failures, said=shlex.quote(said), code=code)
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tries


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("said", [*GOING.values(), *STAYING.values()], ids=[*GOING, *STAYING])
def test_question_is_asked_again_while_the_engine_restarts(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the client says of it; other complaints are told at once, as waiting is in vain."""
    tries = client(tmp_path, monkeypatch, said)
    done = image_store(LOCAL).run("version")
    if said in GOING.values():
        assert (done.stdout, tries.read_text()) == ("answered\n", "version\n" * 3)
    else:
        assert (done.stderr, tries.read_text()) == (f"{said}\n", "version\n")


@pytest.mark.usefixtures("answered")
def test_engine_that_stays_away_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for it is bounded, and its last words are told."""
    monkeypatch.setattr(storage, "AWAY_S", 0.2)
    client(tmp_path, monkeypatch, GOING["going down"], failures=1000)
    assert image_store(LOCAL).run("version").stderr == f"{GOING['going down']}\n"


def test_engine_that_never_answered_is_asked_once(
    answered: set[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most likely nobody has started it, and doctor says so without a delay."""
    answered.clear()
    tries = client(tmp_path, monkeypatch, GOING["socket gone"])
    problem = Docker().check(LOCAL).problem
    assert problem is not None
    assert problem.brief == "the Docker daemon is not running"
    assert tries.read_text() == "version\n"


@pytest.mark.usefixtures("answered")
def test_container_is_started_again_after_what_is_left_of_it_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try may have made a container before the daemon went."""
    tries = client(tmp_path, monkeypatch, GOING["waiting"], failures=2, code=125)
    isolation = Isolation(run_id="20260101-000000-abcd", arm="docker", reference="app:1")
    done = run_inside(
        LOCAL, Command(argv=("true",)), where=Docker(), isolation=isolation, timeout_s=30.0
    )
    assert done.stdout == "done\n"
    assert tries.read_text().split() == ["run", "ps", "ps", "run", "ps"]


def test_worker_that_died_with_its_engine_is_launched_again(tmp_path: Path) -> None:
    """In the next restarts, and more often than one that died by itself."""
    problem = Docker().explain(125, GOING["waiting"])
    assert problem is not None
    assert problem.passes
    made = bench(tmp_path, "cnn", budget_s=600.0)
    assert isinstance(made.recorder, Kept)
    roster = Roster(made)
    brief = "docker: the Docker daemon is restarting"
    died = Failure(phase="environment", brief=brief, exit_code=125)
    for _ in range(3):
        roster.fail("docker", died)
    assert "docker" in roster.arms
    assert [event.what for event in made.recorder.events] == ["caution"] * 3
    roster.fail("docker", died)
    assert "docker" not in roster.arms
    made.recorder.folder.close()


def test_worker_that_lacks_something_is_not_launched_again(tmp_path: Path) -> None:
    """It lives and says so itself, and the next restart would say the same."""
    made = bench(tmp_path, "cnn", budget_s=600.0)
    assert isinstance(made.recorder, Kept)
    roster = Roster(made)
    roster.fail("docker", Failure(phase="environment", brief="docker: there is no g++"))
    assert "docker" not in roster.arms
    assert [event.what for event in made.recorder.events] == ["arm-failed"]
    made.recorder.folder.close()


def test_symptoms_that_pass_are_those_of_a_daemon() -> None:
    """No other one is waited for."""
    assert {one.brief for one in ENGINE.symptoms if one.passes} == {
        "no Docker daemon answers at {match}",
        "the Docker daemon is not running",
        "the Docker daemon is restarting",
    }
