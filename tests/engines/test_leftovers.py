"""What a client that was killed leaves on a host, and what removes it."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab import Lab
from runs import BASE, LIGHT, STEPS_ALONE, command, envcompare, run_folder

from envcompare.hosts import keeper
from envcompare.stack.storage import host_cache
from envcompare.text import Command
from envcompare.transport import Transport, run

pytestmark = [
    pytest.mark.engine("ssh"), pytest.mark.engine("docker"), pytest.mark.timeout(420),
]  # fmt: skip
# No signal but KILL ends it, and no thread of it sees the end of its input.
HANGS = f"""{LIGHT}
import collections, itertools, signal

class Hangs(Light):
    def setup(self, seed, device):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        collections.deque(itertools.repeat(None), maxlen=0)
"""
# The environments in which a process of a run computes, and the containers of a run that do.
SPINNING = r"""
for file in $(grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ); do
  read -r line <"${file%environ}stat" || continue
  case ${line##*) } in R*) tr '\000' '\n' <"$file" | sed -n 's/^ENVCOMPARE_ENVIRONMENT=//p' ;; esac
done 2>/dev/null
"""
# A worker that is stopped does not see the end of its input either.
STOP_WORKERS = r"""
for file in $(grep -lsF "ENVCOMPARE_RUN=$1" /proc/[0-9]*/environ); do
  pid=${file%/environ}
  ! tr '\000' '\n' <"$pid/cmdline" | grep -q "harness/worker.py$" || kill -STOP "${pid#/proc/}"
done 2>/dev/null
:
"""
RUNNING = "docker ps -q --filter label=envcompare.run=$1"
# In the place of an image's python3: hangs as soon as it is asked what it is.
SLOW_IMAGE = (
    "docker create --name $1 {base} true >/dev/null && "
    "printf '#!/bin/sh\\ntrap : TERM; while :; do :; done\\n' >/tmp/$1 && chmod 755 /tmp/$1 && "
    "docker cp /tmp/$1 $1:/usr/local/bin/python3 && docker commit $1 $1:1 >/dev/null; "
    "docker rm $1 >/dev/null; rm /tmp/$1"
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return a workload file with one that hangs in every arm."""
    path = tmp_path / "own.py"
    path.write_text(HANGS)
    return path


@pytest.fixture
def slow_image(host: Transport) -> Iterator[str]:
    """Give an image of the lab host whose Python never answers."""
    name = f"slow-{uuid.uuid4().hex[:12]}"
    script = SLOW_IMAGE.format(base=BASE)
    done = run(host, Command(argv=("sh", "-c", script, "sh", name)))
    assert done.succeeded, done.stderr
    yield f"{name}:1"
    run(host, Command(argv=("docker", "image", "rm", "-f", f"{name}:1")))


def clean(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `envcompare clean` to its end."""
    argv = [sys.executable, "-m", "envcompare", "clean", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def eventually_dead(host: Transport, folder: Path) -> None:
    """Wait until what holds a run on the host has seen the end of its client."""
    end = time.monotonic() + 90
    while (folder.name, "live") in {
        (one.run_id, one.state) for one in keeper.survey(host, host_cache(host))
    }:
        assert time.monotonic() < end
        time.sleep(0.2)


def killed(host: Transport, out: Path, is_time: Callable[[Path], bool], *words: str) -> Path:
    """Start a run, kill its client when it is time, and return the folder of the dead run."""
    process = subprocess.Popen(
        command(out, *words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 180
    try:
        while not ((folder := run_folder(out)) and is_time(folder)):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end
            time.sleep(0.2)
    finally:
        process.kill()
        process.communicate()
    eventually_dead(host, folder)
    return folder


@pytest.fixture
def killed_while_measuring(lab: Lab, host: Transport, own: Path, tmp_path: Path) -> Iterator[Path]:
    """Give the folder of a run that was killed while its arms hung and stood still in both."""

    def hangs_in_both(folder: Path) -> bool:
        events = folder / "events.jsonl"
        if not events.is_file() or '"what":"restart"' not in events.read_text():
            return False
        spinning = lab.as_root("sh", "-c", SPINNING, "sh", folder.name).split()
        if not {"vm", "docker"} <= set(spinning):
            return False
        lab.as_root("sh", "-c", STOP_WORKERS, "sh", folder.name)
        return True

    folder = killed(
        host,
        tmp_path / "killed",
        hangs_in_both,
        *("--hosts", lab.alias, "--workload", f"{own}:Hangs", "--generation", "rebuild"),
        *(*STEPS_ALONE, "--envs", f"vm@host,mine=docker:{BASE}"),
    )
    yield folder
    lab.remove(folder.name)


def test_clean_removes_what_one_killed_run_left(lab: Lab, killed_while_measuring: Path) -> None:
    """Containers, processes and the folder on the host; a second time there is nothing."""
    run_id = killed_while_measuring.name
    assert lab.left_of(run_id)
    done = clean("--run", str(killed_while_measuring))
    assert done.returncode == 0, done.stderr
    assert f"{lab.alias}: removed what was left of the run {run_id}: " in done.stdout
    for what in ("vm (", "docker (", "its folder"):
        assert what in done.stdout
    assert lab.left_of(run_id) == ""
    again = clean("--run", str(killed_while_measuring))
    assert (again.returncode, again.stderr) == (0, "")
    assert f"nothing is left of the run {run_id}" in again.stdout


def test_next_run_removes_what_a_killed_one_left_in_other_environments(
    lab: Lab, killed_while_measuring: Path, own: Path, tmp_path: Path
) -> None:
    """Docker has no arm in it, and is swept all the same."""
    run_id = killed_while_measuring.name
    done = envcompare(
        tmp_path / "next",
        *("--hosts", lab.alias, "--workload", f"{own}:Light", "--envs", "vm@host"),
        *("--budget", "3", *STEPS_ALONE),
    )
    assert lab.left_of(run_id) == ""
    assert done.exit_code == 0, done.stderr
    swept = [line["text"] for line in done.lines("events.jsonl") if line["what"] == "swept"]
    assert any(f"the run {run_id}: " in text and "docker (" in text for text in swept)


def test_what_a_killed_preparation_left_is_removed(
    lab: Lab, host: Transport, slow_image: str, own: Path, tmp_path: Path
) -> None:
    """The container that was asked for its Python hangs, and has no arm yet."""
    folder = killed(
        host,
        tmp_path / "killed",
        lambda folder: bool(lab.as_root("sh", "-c", RUNNING, "sh", folder.name)),
        *("--hosts", lab.alias, "--workload", f"{own}:Light", *STEPS_ALONE),
        *("--envs", f"vm@host,slow=docker:{slow_image}"),
    )
    done = clean("--run", str(folder))
    assert done.returncode == 0, done.stderr
    assert "docker (1)" in done.stdout
    assert lab.left_of(folder.name) == ""


def test_clean_spares_a_run_that_is_live(
    lab: Lab, host: Transport, own: Path, tmp_path: Path
) -> None:
    """Another client's run is never touched; the error names what holds it."""
    process = subprocess.Popen(
        command(
            tmp_path / "live",
            *("--hosts", lab.alias, "--workload", f"{own}:Hangs", *STEPS_ALONE),
            *("--envs", f"vm@host,mine=docker:{BASE}"),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 180
        while not ((folder := run_folder(tmp_path / "live")) and lab.left_of(folder.name)):
            assert time.monotonic() < end
            time.sleep(0.2)
        done = clean("--run", str(folder))
        assert done.returncode == 3
        assert f"{lab.alias} is in use by another run" in done.stderr
        assert f"the run {folder.name}, started by process {process.pid}" in done.stderr
        assert lab.left_of(folder.name)
    finally:
        process.kill()
        process.wait()
        eventually_dead(host, folder)
        clean("--run", str(folder))
