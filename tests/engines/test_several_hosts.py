"""Several real hosts in one command, one of which cannot be found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab
from runs import BASE, envcompare, resume

from envcompare.environments.oci import image_store
from envcompare.stack import image
from envcompare.text import Command
from envcompare.transport import LOCAL, run
from envcompare.transport.hosts import connect, parse_hosts

pytestmark = [pytest.mark.engine("hosts"), pytest.mark.alone]

HOSTS = "lab-h1,nowhere.invalid,lab-h2"
NAME = "envcompare-test-several:1"
REACHED = ("lab-h1", "lab-h2")
DERIVED = f"FROM {BASE}\nLABEL envcompare.test=several\n"


@pytest.mark.engine("docker")
def test_a_host_that_fails_takes_no_other_with_it(lab: Lab) -> None:
    """Each host has its lines, in the order of the hosts, and the exit code tells of the one."""
    make = Command(
        argv=("docker", "build", "--quiet", f"--tag={NAME}", "-"),
        env=(("DOCKER_BUILDKIT", "0"),),  # a client on PATH may lack buildx
    )
    assert run(LOCAL, make, stdin=DERIVED.encode()).succeeded
    built = image.find(image_store(LOCAL), NAME)
    assert built
    argv = (sys.executable, "-m", "envcompare", "build", "--hosts", HOSTS)
    argv = (*argv, "--envs", f"own=docker:{NAME}")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    finally:
        for transport in (LOCAL, *(connect(parse_hosts([host])[0]) for host in REACHED)):
            run(transport, Command(argv=("docker", "image", "rm", "-f", NAME)))
            transport.close()
    made = [line.partition(",")[0] for line in done.stdout.splitlines() if " own: " in line]
    assert made == [f"{host} own: {built.id}" for host in REACHED]
    assert "error: cannot find host 'nowhere.invalid'\n" in done.stderr
    for host in REACHED:
        assert f"  {host} own: sending {NAME}, " in done.stderr
    assert done.returncode == 3


def test_the_others_are_measured_and_not_measured_again(lab: Lab, tmp_path: Path) -> None:
    """The run ends with 3, and going on with it tries only the host that failed."""
    done = envcompare(
        tmp_path,
        *("--hosts", HOSTS, "--envs", "vm@host", "--no-quiet-gate", "--budget", "4"),
        *("--command", "sleep 0.01", "--command-dir", "/home/bench"),
    )
    assert done.exit_code == 3, done.stderr
    samples = done.lines("samples.jsonl")
    assert {sample["cell"] for sample in samples} == {f"{host}/sleep/default" for host in REACHED}
    failed = [line["host"] for line in done.lines("events.jsonl") if line["failure"]]
    assert failed == ["nowhere.invalid"]
    assert done.folder
    resume(done.folder, exit_code=3)
    assert done.lines("samples.jsonl") == samples


HELPED = """
from parts.work import step


class Helped:
    def setup(self, seed, device):
        pass

    def step(self):
        return step()
"""


@pytest.mark.engine("docker")
def test_files_beside_a_workload_are_there_in_every_arm_of_every_host(
    lab: Lab, tmp_path: Path
) -> None:
    """A package that it imports, in a container and without one."""
    parts = tmp_path / "own" / "parts"
    parts.mkdir(parents=True)
    (parts.parent / "helped.py").write_text(HELPED)
    (parts / "work.py").write_text("def step(): return float(sum(range(20000)) % 97)\n")
    done = envcompare(
        tmp_path / "runs",
        *("--hosts", ",".join(REACHED), "--envs", f"plain=docker:{BASE},vm@host", "--budget", "4"),
        *("--no-quiet-gate", "--no-startup", "--profile", "none"),
        *("--workload", f"{parts.parent}/helped.py:Helped"),
    )
    assert done.exit_code == 0, done.stderr
    measured = {
        (line["cell"].partition("/")[0], line["arm"]) for line in done.lines("samples.jsonl")
    }
    arms = ("plain", "vm-host", "plain~control")
    assert measured == {(host, arm) for host in REACHED for arm in arms}


@pytest.mark.nightly
def test_groups_of_hosts_are_compared_with_what_differs_first(lab: Lab, tmp_path: Path) -> None:
    """One machine in each group: a program that takes longer on the second, but not in namespaces.

    Those hide /etc/hostname from it. The sentence says that it is about two machines, and going on
    keeps them.
    """
    first, second = REACHED
    slow = f"case $(cat /etc/hostname) in {second}*) sleep 0.06;; *) sleep 0.02;; esac"
    done = envcompare(
        tmp_path,
        *("--hosts", f"metal={first},cloud={second}", "--envs", "vm@host,bubblewrap@host"),
        *("--no-quiet-gate", "--budget", "8"),
        *("--command", f"sh -c '{slow}'", "--command-dir", "/home/bench"),
    )
    assert done.exit_code == 0, done.stderr
    assert done.folder
    assert "Two groups of machines: metal and cloud" in done.stdout
    found = json.loads((done.folder / "comparison.json").read_text())
    assert [group["name"] for group in found["between_hosts"]["groups"]] == ["metal", "cloud"]
    plain, hidden, cost = found["between_hosts"]["group_estimates"]
    assert [one["arm"] for one in (plain, hidden)] == ["vm-host", "bubblewrap-host"]
    assert (plain["unit"], plain["outcome"]) == ("restart", "slower")
    assert (cost["arm"], cost["against"], cost["outcome"]) == (
        "bubblewrap-host", "vm-host", "faster",
    )  # fmt: skip
    page = (done.folder / "report.html").read_text()
    assert page.index('id="groups"') < page.index('id="answer"')
    assert f"each interval comes from restarts of {first} and {second}" in page
    resume(done.folder, exit_code=0)
