"""One client at a time measures on a host, and nothing that others put there is harmed or hangs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import envcompare
from nightly import nightly_except
from runs import run_folder, running

from envcompare.errors import InterruptedRunError, Interruption, UnusableError
from envcompare.hosts import keeper
from envcompare.hosts.keeper import Asker, HostLock
from envcompare.run_folder.results import RunFolder
from envcompare.stack.storage import host_cache
from envcompare.transport import LOCAL
from envcompare.transport.hosts import HostSpec, parse_hosts

NAME = "envcompare-measuring.lock"
# A client of its own that holds this machine until it is killed.
CLIENT = """
import time
from envcompare.hosts import keeper
from envcompare.errors import Interruption
from envcompare.transport import LOCAL
asker = keeper.Asker(host="local", purpose="run", run_id="first")
lock = keeper.take(LOCAL, asker, wait_s=0, interruption=Interruption(), say=print)
print("locked" if lock.keeper else lock.why_not, flush=True)
time.sleep(300)
"""
WORDS = ("--envs", "vm@host", "--no-quiet-gate", "--profile", "none", "--command", "sleep 0.3")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder in which the lock of this machine lies meanwhile."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv("ENVCOMPARE_LOCK_FOLDER", str(folder))
    return folder


@pytest.fixture
def first() -> Iterator[subprocess.Popen[str]]:
    """Give a client that holds this machine."""
    argv = (sys.executable, "-c", CLIENT)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def taken(
    *, run_id: str = "second", wait_s: float = 0, interruption: Interruption | None = None
) -> HostLock:
    """Lock this machine."""
    return keeper.take(
        LOCAL,
        Asker(host="local", purpose="run", run_id=run_id),
        wait_s=wait_s,
        interruption=interruption or Interruption(),
        say=print,
    )


def test_a_second_client_is_told_who_holds_the_host(first: subprocess.Popen[str]) -> None:
    """Since when, from where, how to wait, and how to break it."""
    with pytest.raises(UnusableError) as caught:
        taken()
    error = caught.value
    holder = keeper.holder_of(LOCAL)
    assert holder is not None
    assert error.brief == "local is in use by another run"
    assert f"the run first, started by process {first.pid} on " in error.details
    assert "has held it for" in error.details
    assert "--wait" in error.hint
    assert "envcompare clean --hosts local --break-lock" in error.hint
    assert f"kill {holder.pid}" in error.hint


@pytest.mark.parametrize(
    ("spec", "address"),
    [
        (parse_hosts(["me@gpu02:2222"])[0], "me@gpu02:2222"),
        (replace(parse_hosts(["slurm-1"])[0], node="node17"), "node17"),
    ],
)
@pytest.mark.usefixtures("first")
def test_the_command_that_frees_a_host_reaches_it(spec: HostSpec, address: str) -> None:
    """It gives the address with user and port, not the name in the plan."""
    asker = Asker.of(spec, "run", "second")
    with pytest.raises(UnusableError, match=f"{spec.label} is in use") as caught:
        keeper.take(LOCAL, asker, wait_s=0, interruption=Interruption(), say=print)
    assert f"`envcompare clean --hosts {address} --break-lock`" in caught.value.hint


def test_a_client_that_is_killed_leaves_nothing(first: subprocess.Popen[str], place: Path) -> None:
    """The process that holds the lock ends with its client; only the empty file stays."""
    first.send_signal(signal.SIGKILL)
    lock = taken(wait_s=20)
    assert lock.keeper is not None
    lock.release()
    assert keeper.holder_of(LOCAL) is None
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [(NAME, b"")]


def test_waiting_ends_when_the_holder_does(
    first: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It says for whom it waits."""
    threading.Timer(3, first.kill).start()
    lock = taken(wait_s=60)
    assert lock.keeper is not None
    lock.release()
    assert "waiting for the host (0 s): the run first, started by" in capsys.readouterr().out


@pytest.mark.usefixtures("first")
def test_waiting_ends_with_the_patience_and_with_ctrl_c() -> None:
    """Neither hangs."""
    with pytest.raises(UnusableError):
        taken(wait_s=3)
    interruption = Interruption()
    threading.Timer(1, interruption.request).start()
    with pytest.raises(InterruptedRunError):
        taken(wait_s=600, interruption=interruption)


def test_a_lock_that_changes_hands_is_not_said_to_be_of_nobody(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a moment it is held by a program that does not say who it is, as a client's first is."""
    (place / NAME).touch()
    with subprocess.Popen(["flock", "-o", str(place / NAME), "sleep", "60"]) as other:
        time.sleep(0.5)
        threading.Timer(0.5, other.kill).start()
        lock = taken(wait_s=60)
    assert lock.keeper is not None
    lock.release()
    assert capsys.readouterr().out == ""


def test_two_names_of_one_host_do_not_lock_each_other_out() -> None:
    """A run measures them one after another."""
    lock = taken()
    other = Asker(host="other", purpose="run", run_id="second")
    shared = keeper.take(LOCAL, other, wait_s=0, interruption=Interruption(), say=print)
    lock.release()
    assert (shared.is_shared, shared.keeper, shared.why_not) == (True, None, "")


def test_a_process_with_the_arguments_of_this_client_is_another(place: Path) -> None:
    """Anybody on the host can read the arguments of a keeper and start a process with them."""
    lock = taken()
    words = Path(f"/proc/{lock.pid}/cmdline").read_text().split("\0")[:-1]
    lock.release()
    with subprocess.Popen(["flock", str(place / NAME), *words], stdin=subprocess.PIPE) as other:
        time.sleep(0.5)
        try:
            assert keeper.holder_of(LOCAL) is not None
            with pytest.raises(UnusableError, match="in use by another run"):
                taken()
        finally:
            other.communicate()


def test_what_was_begun_over_a_lost_connection_is_ended() -> None:
    """A client that connects again finds its former self, and no other."""
    lock = taken()
    other = Asker(host="local", purpose="run", run_id="another")
    keeper.end_lost(LOCAL, other)
    assert keeper.holder_of(LOCAL) is not None
    keeper.end_lost(LOCAL, Asker(host="local", purpose="run", run_id="second"))
    assert keeper.holder_of(LOCAL) is None
    lock.release()


def _link(file: Path) -> None:
    target = file.parent / "of-the-user"
    target.write_text("kept")
    file.symlink_to(target)


HOSTILE = {
    "is a link": _link,
    "is not a regular file": os.mkfifo,
    "not a regular file": Path.mkdir,
    "cannot be made": lambda file: shutil.rmtree(file.parent),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("why", HOSTILE)
def test_what_others_put_there_is_said_and_never_waited_for(why: str, place: Path) -> None:
    """A pipe would wait for a writer; the target of a link is not the lock's."""
    HOSTILE[why](place / NAME)
    lock = taken()
    assert lock.keeper is None
    assert lock.why_not.endswith(why), lock.why_not
    assert "no other client measures there" in lock.doubt
    kept = place / "of-the-user"
    assert not kept.exists() or kept.read_text() == "kept"


def test_a_lock_of_an_unknown_program_is_one_all_the_same(place: Path) -> None:
    """Nothing tells who it is."""
    (place / NAME).touch()
    with subprocess.Popen(["flock", str(place / NAME), "sleep", "60"]) as other:
        time.sleep(0.5)
        try:
            with pytest.raises(UnusableError) as caught:
                taken()
        finally:
            other.kill()
    assert caught.value.brief == "local is in use"
    assert (
        "another program, or a process that this login cannot see, has locked"
        in caught.value.details
    )
    assert f"sudo fuser -v {place / NAME}" in caught.value.hint


@pytest.mark.parametrize("programs", [("python3",), ()])
def test_a_host_without_flock_uses_its_python_or_says_so(
    programs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minimal images have no util-linux."""
    needed = ("sh", "stat", "date", "grep", "sed", "tr", "id", *programs)
    (tmp_path / "bin").mkdir()
    for name in needed:
        where = sys.executable if name == "python3" else shutil.which(name)
        assert where is not None
        (tmp_path / "bin" / name).symlink_to(Path(where).resolve())
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    lock = taken()
    try:
        assert (lock.keeper is not None) == bool(programs)
        assert lock.why_not == ("" if programs else "it has neither flock nor python3")
        if programs:
            with pytest.raises(UnusableError, match="in use by another run"):
                taken(run_id="third")
            assert "another program, or a process" in keeper.unknown_holder(LOCAL)
    finally:
        lock.release()
    assert not keeper.unknown_holder(LOCAL)


def test_a_python_that_fails_does_not_count_as_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits with 1, as flock does where another process holds the lock."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "stat", "date", "grep", "sed", "tr", "id"):
        (tmp_path / "bin" / name).symlink_to(Path(shutil.which(name) or name).resolve())
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert taken().why_not == "its program that locks files cannot be started"


def test_two_runs_at_once_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one ends with 3 before it makes anything, and `status` tells who measures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = (*WORDS, "--budget", "400", "--target", "0.001", "--wait", "0")
    (tmp_path / "one").mkdir()
    with running(tmp_path / "one", *words) as process:
        done = envcompare("run", "--quick", *WORDS, "--out", "two", cwd=tmp_path)
        assert done.returncode == 3
        assert "error: local is in use by another run" in done.stderr
        folder = run_folder(tmp_path / "one")
        assert folder is not None
        assert f"the run {folder.name}, started by process {process.pid} on" in done.stderr
        assert not (tmp_path / "two").exists()
        told = envcompare("status", cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        assert f"local: in use: the run {folder.name}, started by process" in told.stdout
        cleaned = envcompare("clean", "--break-lock", cwd=tmp_path)
        assert cleaned.returncode == 0, cleaned.stderr
        assert "the lock of the host: the run" in cleaned.stdout
        assert "the claim of that run: the next run" in cleaned.stdout
        (claim,) = keeper.survey(LOCAL, host_cache(LOCAL))
        assert (claim.run_id, claim.state) == (folder.name, "dead")
    told = envcompare("status", cwd=tmp_path)
    assert told.stdout.startswith("local: free, as far as this login can see")


def test_a_lock_of_another_program_is_told(place: Path, tmp_path: Path) -> None:
    """A run is refused then, so the host is not free; it is once the program has ended."""
    with (place / NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        told = envcompare("status", cwd=tmp_path).stdout
        assert told.startswith("local: in use: another program, or a process that this login")
        assert told.endswith(f" has locked {place / NAME}\n")
        told = envcompare("clean", "--break-lock", cwd=tmp_path).stdout
        assert told.startswith("local: not freed: another program, or a process that this login")
    assert envcompare("status", cwd=tmp_path).stdout.startswith("local: free, as far")


def test_a_client_that_is_refused_leaves_what_the_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the run folder has the same ID, by which a client sweeps what it leaves."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = (*WORDS, "--budget", "400", "--target", "0.001", "--wait", "0")
    (tmp_path / "one").mkdir()
    with running(tmp_path / "one", *words) as process:
        folder = run_folder(tmp_path / "one")
        assert folder is not None
        shutil.copytree(folder, tmp_path / "copy")
        there = tmp_path / "cache/envcompare/runs" / folder.name / "local"
        assert there.is_dir()
        events = (tmp_path / "copy" / "events.jsonl").read_bytes()
        done = envcompare("run", "--resume", "copy", cwd=tmp_path)
        assert done.returncode == 3, done.stderr
        assert (tmp_path / "copy" / "events.jsonl").read_bytes() == events
        assert "error: local is in use by another run" in done.stderr
        assert (there / ".owner").is_file()
        assert process.poll() is None


@pytest.mark.parametrize("is_removed", nightly_except((False,), (False, True)))
def test_a_run_whose_lock_was_broken_says_so(
    place: Path, tmp_path: Path, *, is_removed: bool
) -> None:
    """Of the cell that was measured then; it locks the host again for the next one.

    Whoever tidies /tmp may remove the file, and the next client locks another one.
    """
    words = (*WORDS, "--command", "sleep 0.31", "--budget", "15", "--target", "0.001")
    out = tmp_path / "out"
    out.mkdir()
    with running(out, *words) as process:
        holder = keeper.holder_of(LOCAL)
        assert holder is not None
        if is_removed:
            (place / NAME).unlink()
        else:
            keeper.end(LOCAL, holder)
        process.communicate()
    folder = run_folder(out)
    assert folder is not None
    events = RunFolder.open(folder).read_events().events
    broken = [event.cell for event in events if "lock of the host was broken" in event.text]
    ended = [event.cell for event in events if event.what == "cell-ended" and event.state == "ok"]
    assert (len(broken), len(ended)) == (1, 2)
    assert broken[0] in ended


@pytest.mark.parametrize("value", ["1e9", "nan", "soon"])
def test_waiting_for_no_time_that_there_is(value: str, tmp_path: Path) -> None:
    """Wrong usage ends with 2."""
    done = envcompare("plan", f"--wait={value}", cwd=tmp_path)
    assert done.returncode == 2
    assert "--wait" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [(("--wait",), "wait = 2592000.0"), (("--wait", "5"), "wait = 5.0"), ((), "wait = 0.0")],
)
def test_the_number_of_wait_may_be_left_out(
    words: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    """Alone it waits for as long as it takes."""
    done = envcompare("plan", *words, "--quick", "--envs", "vm", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
