"""Which runs are live on a host, and what goes of those that are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from builders import run_record
from commandline import envcompare

from envcompare.environments.registry import ENVIRONMENTS
from envcompare.errors import UnusableError
from envcompare.hosts import keeper
from envcompare.run_folder.results import RunFolder
from envcompare.runner import upkeep
from envcompare.transport import LOCAL

# A client that claims a run, starts a plain process in it that outlives its input, and waits.
CLIENT = """
import sys, time
from envcompare.hosts import keeper
from envcompare.text import Command
from envcompare.environments import Isolation
from envcompare.environments.registry import environment
from envcompare.transport import LOCAL
cache, run_id = sys.argv[1:]
folder = f"{cache}/runs/{run_id}/local"
process = keeper.hold(LOCAL, folder)
keeper.note_use(LOCAL, folder, "vm")
spin = Command(argv=(sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"))
worker = LOCAL.spawn(environment("vm").wrap(spin, Isolation(run_id=run_id, arm="vm")))
worker.stdout.readline()
print("ready", flush=True)
time.sleep(300)
"""
RUN = "20260101-000000-abcd"


def client(cache: Path, run_id: str = RUN) -> subprocess.Popen[str]:
    """Start a client and wait until its worker is up."""
    argv = (sys.executable, "-c", CLIENT, str(cache), run_id)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a client as the kernel does where memory runs out."""
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def marked(run_id: str) -> list[str]:
    """Return the processes of this machine that carry the mark of a run."""
    script = 'grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ; true'
    argv = ("sh", "-c", script, "sh", run_id)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def states(cache: Path) -> dict[str, str]:
    """Return the runs of a cache and their states."""
    return {one.run_id: one.state for one in keeper.survey(LOCAL, str(cache))}


def eventually_dead(cache: Path, run_id: str = RUN) -> None:
    """Wait until what held a claim has seen the end of its client."""
    end = time.monotonic() + 60
    while states(cache)[run_id] != "dead":
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a client that is at its run."""
    process = client(tmp_path)
    yield process
    kill(process)
    keeper.remove(
        LOCAL,
        str(tmp_path),
        keeper.Claim(run_id=RUN, environments=("vm",)),
        environments=ENVIRONMENTS,
    )


def test_run_of_a_killed_client_goes_with_its_processes(
    live: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Its worker reads no input, and so outlives it."""
    kill(live)
    eventually_dead(tmp_path)
    assert marked(RUN)
    found = keeper.remove_dead(LOCAL, str(tmp_path), environments=ENVIRONMENTS)
    assert found.failed == ()
    (told,) = found.removed
    assert told.startswith(f"removed what was left of the run {RUN}: vm (")
    assert told.endswith(", its folder in the host's cache")
    assert (marked(RUN), list(tmp_path.glob("runs/*"))) == ([], [])


def test_only_the_temporary_folder_of_the_run_is_removed_by_its_link(tmp_path: Path) -> None:
    """One that leads elsewhere is not followed."""
    folder = _owner(tmp_path, RUN, "12").parent
    mine = tmp_path / "tmp" / "mine"
    mine.mkdir(parents=True)
    (folder / ".temporary").symlink_to(mine)
    keeper.remove(
        LOCAL, str(tmp_path), keeper.Claim(run_id=RUN, environments=()), environments=ENVIRONMENTS
    )
    assert (mine.exists(), folder.exists()) == (True, False)


@pytest.mark.usefixtures("live")
def test_run_of_a_live_client_stays(tmp_path: Path) -> None:
    """Whoever cleans up meanwhile."""
    (claim,) = keeper.survey(LOCAL, str(tmp_path))
    assert (claim.state, claim.environments, claim.is_live) == ("live", ("vm",), True)
    assert keeper.remove_dead(LOCAL, str(tmp_path), environments=ENVIRONMENTS) == keeper.Removal()
    assert marked(RUN)
    assert f"end process {claim.pid}" in keeper.refusal(claim, "gpu01").hint


@pytest.mark.usefixtures("live")
def test_dead_claim_of_a_run_that_lives_stays(tmp_path: Path) -> None:
    """A host may have two names in a run, and a sweep by its ID ends what it has under either."""
    dead = tmp_path / "runs" / RUN / "gpu01" / ".owner"
    dead.parent.mkdir()
    dead.write_text(f"12 34 0 {os.uname().nodename}\n")
    assert {one.state for one in keeper.survey(LOCAL, str(tmp_path))} == {"live", "dead"}
    assert keeper.remove_dead(LOCAL, str(tmp_path), environments=ENVIRONMENTS) == keeper.Removal()
    assert marked(RUN)
    assert dead.exists()


def test_lock_is_broken_with_the_live_claim_of_its_holder_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process of any other claim has ended, or is on another machine with the same home."""
    holder = keeper.Holder(
        pid=5, login="me", age_s=1.0, purpose="run", run_id=RUN, label="local", client="here",
        client_pid=4,
    )  # fmt: skip
    claims = (
        keeper.Claim(run_id=RUN, state="dead", pid=11),
        keeper.Claim(run_id=RUN, state="elsewhere", pid=12),
        keeper.Claim(run_id=RUN, state="live", pid=13),
        keeper.Claim(run_id="another", state="live", pid=14),
    )
    ended: list[int] = []
    monkeypatch.setattr(keeper, "holder_of", lambda _: holder)
    monkeypatch.setattr(keeper, "end", lambda *_: None)
    monkeypatch.setattr(keeper, "survey", lambda *_: claims)
    monkeypatch.setattr(keeper, "end_claim", lambda _, claim: ended.append(claim.pid))
    task: Any = SimpleNamespace(tell=lambda _: None)
    session: Any = SimpleNamespace(transport=LOCAL, cache="")
    upkeep._unlock(task, session)
    assert ended == [13]


def _owner(cache: Path, run_id: str, text: str) -> Path:
    owner = cache / "runs" / run_id / "local" / ".owner"
    owner.parent.mkdir(parents=True)
    owner.write_text(text)
    return owner


def test_number_that_was_given_anew_holds_no_claim(tmp_path: Path) -> None:
    """A process is known by its number and its start, and by the boot of its host."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    node = os.uname().nodename
    start = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19]
    _owner(tmp_path, "same", f"{os.getpid()} {start} {boot} {node}\n")
    _owner(tmp_path, "later", f"{os.getpid()} {int(start) + 1} {boot} {node}\n")
    _owner(tmp_path, "rebooted", f"{os.getpid()} {start} {'0' * 36} {node}\n")
    _owner(tmp_path, "torn", "12")
    expected = {"same": "live", "later": "dead", "rebooted": "dead", "torn": "dead"}
    assert states(tmp_path) == {**expected, "torn": "unknown"}


def test_what_cannot_be_judged_is_left_for_a_week(tmp_path: Path) -> None:
    """A host with the same home, and a folder in which no claim stands."""
    there = _owner(tmp_path, "there", "12 34 0 another-host\n")
    (tmp_path / "runs" / "bare").mkdir()
    assert states(tmp_path) == {"there": "elsewhere", "bare": "unknown"}
    long_ago = time.time() - 9 * 86400
    for path in (there, tmp_path / "runs" / "bare"):
        os.utime(path, (long_ago, long_ago))
    assert states(tmp_path) == {"there": "dead", "bare": "dead"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    """What a name in the cache leads to is not the cache's."""
    kept = tmp_path / "kept"
    _owner(kept, "other", "1 2 3 4\n")
    cache = tmp_path / "cache"
    (cache / "runs").mkdir(parents=True)
    (cache / "runs" / "link").symlink_to(kept / "runs" / "other")
    assert states(cache) == {}
    dead = _owner(cache, "dead", f"1 2 3 {os.uname().nodename}\n").parent
    (dead / "scratch").symlink_to(kept)
    keeper.remove_dead(LOCAL, str(cache), environments=ENVIRONMENTS)
    assert not dead.exists()
    assert (kept / "runs" / "other" / "local" / ".owner").exists()


@pytest.fixture
def no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have a cache of its own, and an engine that holds nothing."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def cleaned(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `envcompare clean`."""
    argv = [sys.executable, "-m", "envcompare", "clean", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("no_images")
def test_clean_removes_the_cache_only_when_no_run_is_live(tmp_path: Path) -> None:
    """Venv and data of a live run would go with it; what a dead one left goes first."""
    cache = tmp_path / "home" / "envcompare"
    process = client(cache)
    refused = cleaned()
    assert (refused.returncode, refused.stdout) == (3, "")
    assert f"the run {RUN} is still running on local" in refused.stderr
    assert (states(cache), bool(marked(RUN))) == ({RUN: "live"}, True)
    kill(process)
    eventually_dead(cache)
    done = cleaned()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"local: removed what was left of the run {RUN}: vm (" in done.stdout
    assert (marked(RUN), cache.exists()) == ([], False)


def test_every_environment_can_be_noted_in_a_claim(tmp_path: Path) -> None:
    """Those of the ladder have hyphens in their names."""
    folder = f"{tmp_path}/runs/{RUN}/local"
    process = keeper.hold(LOCAL, folder)
    try:
        for name in ENVIRONMENTS:
            keeper.note_use(LOCAL, folder, name)
        (claim,) = keeper.survey(LOCAL, str(tmp_path))
    finally:
        process.kill()
    assert set(claim.environments) == set(ENVIRONMENTS)


def test_a_run_can_be_cleaned_after_its_workload_file_is_gone(tmp_path: Path) -> None:
    """Only its hosts and environments are needed."""
    record = run_record()
    settings = 'envs = "vm"\nhosts = ["local"]\nworkload = ["/gone/train.py:Net"]\n'
    settings += 'compare = "parameter=lr"\nreference = "lr=1"\n'
    settings += "[set.train-Net]\nlr = [1, 2]\n"
    folder = RunFolder.create(tmp_path, msgspec.structs.replace(record, configuration=settings))
    done = cleaned("--run", str(folder.path))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("run_id", ["", ".", "..", "../..", "one/two", "-x", "a" * 101])
def test_an_id_that_no_run_has_removes_nothing(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes from run.json, which may be anybody's; `runs/` alone holds what all runs have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / "envcompare"
    (cache / "runs" / RUN / "local").mkdir(parents=True)
    with pytest.raises(ValueError, match="is no ID of a run"):
        keeper.remove(LOCAL, str(cache), keeper.Claim(run_id=run_id), environments=ENVIRONMENTS)
    folder = RunFolder.create(tmp_path / "out", run_record())
    record = msgspec.json.decode((folder.path / "run.json").read_bytes())
    (folder.path / "run.json").write_bytes(msgspec.json.encode({**record, "run_id": run_id}))
    for command in (("clean", "--run"), ("run", "--resume")):
        done = envcompare(*command, str(folder.path), cwd=tmp_path)
        assert done.returncode == 5, done.stderr
        assert "run.json holds no ID that a run can have" in done.stderr
    assert (cache / "runs" / RUN / "local").is_dir()


def test_clean_of_a_run_takes_no_other_option(tmp_path: Path) -> None:
    """The run says which hosts and environments it used."""
    done = cleaned("--run", str(tmp_path), "--hosts", "gpu01")
    assert done.returncode == 2
    assert "clean --run takes hosts and environments from the run" in done.stderr


def test_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Where a claim cannot be written nothing may be started."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableError) as caught:
        keeper.hold(LOCAL, f"{tmp_path}/file/runs/{RUN}")
    assert "Not a directory" in caught.value.details
