"""Several ranks in real environments: on one host, and over two that reach each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from runs import Done, envcompare

pytestmark = [pytest.mark.engine("hosts"), pytest.mark.alone]

HOSTS = os.environ.get("ENVCOMPARE_TEST_RANK_HOSTS", "lab-h1,lab-h2").split(",")
_SMALL = (*("--workloads", "ddp", "--set", "ddp.ranks=1,2", "--set", "ddp.batch=4"), "--no-startup")
_SHORT = ("--no-quiet-gate", "--restarts", "1", "--rounds", "3", "--budget", "60")


def rows(done: Done) -> dict[tuple[str, int], dict[str, Any]]:
    """Return what the run says of each environment and number of ranks."""
    assert done.exit_code == 0, done.stderr
    return {
        (one["arm"], one["ranks"]): one for one in done.read("comparison.json")["views"]["scaling"]
    }


@pytest.mark.nightly
@pytest.mark.engine("docker", "apptainer")
def test_each_environment_tells_speed_up_collectives_and_network(lab: Lab, tmp_path: Path) -> None:
    """Docker has the loopback device alone; the ranks reach each other all the same."""
    envs = ("vm", "docker", "singularity")
    done = envcompare(tmp_path, "--hosts", HOSTS[-1], "--envs", ",".join(envs), *_SMALL, *_SHORT)
    found = rows(done)
    for arm in envs:
        two = found[arm, 2]
        assert 0 < two["speed_up"] < 2.5
        assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
        assert 0 < two["collective_exposed_s"] <= two["collective_s"]
        assert 0 < two["collective_exposed_share"] <= two["collective_share"] < 1
    run = done.read("comparison.json")
    devices = {one["arm"]: one["facts"]["network.interfaces"] for one in run["arms"]}
    assert devices["docker"] == "lo"
    assert devices["vm"] == devices["singularity"] != "lo"
    metrics = {cell["id"].rpartition("=")[2]: cell["metric"] for cell in run["cells"]}
    assert metrics["2"] == "wall"


@pytest.mark.nightly
@pytest.mark.engine("docker")
def test_ranks_lie_on_two_hosts_and_leave_nothing_there(lab: Lab, tmp_path: Path) -> None:
    """The first host is measured; what computed along on the other has ended with the run."""
    done = envcompare(
        tmp_path,
        *("--hosts", ",".join(HOSTS), "--rendezvous", HOSTS[0], "--envs", "vm,docker"),
        *(*_SMALL, *_SHORT, "--profile", "none"),
    )
    found = rows(done)
    for arm in ("vm", "docker"):
        assert found[arm, 2]["hosts"] == HOSTS
        assert found[arm, 2]["speed_up"] > 0
        assert found[arm, 1]["hosts"] == []
    ended = [e["values"] for e in done.lines("events.jsonl") if e["what"] == "generation"]
    assert {one.get("hosts", "1") for one in ended} == {"1", "2"}
    run = done.read("comparison.json")
    assert {cell["host"] for cell in run["cells"]} == {HOSTS[0]}
    assert not [e for e in done.lines("events.jsonl") if e["what"] == "swept"]
