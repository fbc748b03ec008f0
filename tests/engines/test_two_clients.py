"""Two clients and one real host: one measures, the other says who does, waits, or comes after."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Lab, login
from runs import command, envcompare, resume, run_folder, running

from envcompare.hosts import keeper
from envcompare.transport import Transport

pytestmark = [pytest.mark.engine("ssh"), pytest.mark.timeout(420)]

WORDS = (
    "--envs", "vm@host", "--no-quiet-gate", "--profile", "none", "--command", "sleep 0.3",
    "--wait",
)  # fmt: skip
LONG = ("240", "--budget", "200", "--target", "0.001")
AT_ONCE = ("0", "--budget", "4")


@pytest.fixture
def first(lab: Lab, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a run that measures on the lab host."""
    (tmp_path / "first").mkdir()
    with running(tmp_path / "first", *on(lab.alias), *WORDS, *LONG) as process:
        yield process


def on(address: str) -> tuple[str, ...]:
    """Return the words for a host, with a folder that the login has there."""
    login, at, _ = address.rpartition("@")
    return "--hosts", address, "--command-dir", f"/home/{login if at else 'bench'}"


def id_of(out: Path) -> str:
    """Return the ID of the only run that was kept there."""
    folder = run_folder(out)
    assert folder is not None
    return folder.name


def test_a_second_client_is_told_who_measures(
    lab: Lab, first: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Nothing is made for it; once the first is killed it may measure."""
    second = envcompare(tmp_path / "second", *on(lab.alias), *WORDS, *AT_ONCE)
    assert second.exit_code == 3
    assert f"error: {lab.alias} is in use by another run" in second.stderr
    who = f"the run {id_of(tmp_path / 'first')}, started by process {first.pid} on "
    assert who in second.stderr
    assert f"{os.uname().nodename} with the login bench, has held it for" in second.stderr
    assert second.folder is None
    first.kill()
    first.wait()
    again = envcompare(tmp_path / "second", *on(lab.alias), *WORDS, *AT_ONCE)
    assert again.exit_code == 0, again.stderr


@pytest.mark.usefixtures("first")
def test_another_login_sees_the_lock_of_the_first(lab: Lab, tmp_path: Path) -> None:
    """And cannot break it."""
    with login(lab.alias) as other:
        address = str(other.name)
        second = envcompare(tmp_path / "second", *on(address), *WORDS, *AT_ONCE)
        argv = [sys.executable, "-m", "envcompare", "clean", "--hosts", address, "--break-lock"]
        broken = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert second.exit_code == 3
    assert f"{lab.alias} is in use by another run" in second.stderr
    assert f"the run {id_of(tmp_path / 'first')}, started by" in second.stderr
    assert "with the login bench" in second.stderr
    assert broken.returncode == 3
    assert "this login cannot break the lock" in broken.stderr
    assert "log in there as bench or root: kill " in broken.stderr


def test_a_lock_of_another_login_is_taken_once_it_is_free(lab: Lab, tmp_path: Path) -> None:
    """The file belongs to whoever came first, and stays."""
    with login(lab.alias) as other:
        done = envcompare(tmp_path / "other", *on(str(other.name)), *WORDS, *AT_ONCE)
        assert done.exit_code == 0, done.stderr
        assert "cannot be locked" not in done.stderr
    again = envcompare(tmp_path / "again", *on(lab.alias), *WORDS, *AT_ONCE)
    assert again.exit_code == 0, again.stderr
    assert "cannot be locked" not in again.stderr


def test_a_client_that_waits_measures_after_the_first(
    lab: Lab, first: subprocess.Popen[str], tmp_path: Path
) -> None:
    """It says for whom it waits; a client that was killed frees the host."""
    argv = command(tmp_path / "second", *on(lab.alias), *WORDS, "120", "--budget", "4")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as p:
        time.sleep(6)
        assert p.poll() is None
        first.kill()
        _, said = p.communicate(timeout=120)
    assert p.returncode == 0, said
    assert f"waiting for the host (0 s): the run {id_of(tmp_path / 'first')}" in said


def test_a_run_goes_on_after_its_own_killed_part(lab: Lab, tmp_path: Path) -> None:
    """The lock of the dead client is gone, or is waited for."""
    (tmp_path / "first").mkdir()
    with running(tmp_path / "first", *on(lab.alias), *WORDS, "240", "--budget", "8") as p:
        p.kill()
        p.wait()
        folder = run_folder(tmp_path / "first")
        assert folder is not None
        resume(folder)


@pytest.mark.usefixtures("first")
def test_a_lock_is_broken_on_request(lab: Lab, host: Transport) -> None:
    """Nothing else of the host is touched."""
    argv = [sys.executable, "-m", "envcompare", "clean", "--hosts", lab.alias, "--break-lock"]
    holder = keeper.holder_of(host)
    assert holder is not None
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert f"{lab.alias}: ended process {holder.pid} there, the lock of the host" in done.stdout
    assert keeper.holder_of(host) is None
