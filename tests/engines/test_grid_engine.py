"""A real Grid Engine: a node is asked for, the run is measured in the job, and it is fetched."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from allocationfaults import CANCELLED, inflict
from cluster import (
    CELL,
    GRID_ENGINE,
    INTERRUPTED,
    LONG,
    PROCESSES,
    SHORT,
    UNUSABLE,
    Cluster,
    as_root,
    eventually,
    installed_on,
)

pytestmark = [pytest.mark.engine("gridengine"), pytest.mark.timeout(420)]

LOGIN, NODES, JOBS = GRID_ENGINE.login, GRID_ENGINE.nodes, GRID_ENGINE.jobs
_END_CLIENT = "pkill -{} -u bench -f '[e]nvcompare run'"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a user's folder on the cluster, with envcompare and its extra in a venv."""
    with installed_on(GRID_ENGINE, tmp_path_factory.mktemp("wheels")) as there:
        yield there


def are_measured(cluster: Cluster, out: str) -> bool:
    """Tell whether samples of the run in `out` have arrived."""
    return len(cluster.lines(out, "samples.jsonl")) > 6


def test_cell_is_measured_in_a_job_and_fetched(cluster: Cluster) -> None:
    """Submit, queue, run: what the job wrote is on the login node, and the node is given back."""
    allocation = "gridengine:queue=main,pe=smp,slots=2,resources=gpu=1,time=00:10:00"
    output = cluster.measure("whole", *SHORT, "--allocation", allocation)
    assert "asked Grid Engine for a node with resources=gpu=1: job" in output
    (placed,) = (event["values"] for event in cluster.events("whole", "allocated"))
    (asked,) = (event["values"] for event in cluster.events("whole", "submitted"))
    assert (placed["node"] in NODES, placed["job"]) == (True, asked["job"])
    ended = [(event["host"], event["state"]) for event in cluster.events("whole", "cell-ended")]
    assert ended == [("gridengine-1", "ok")]
    counted = [event["values"]["samples"] for event in cluster.events("whole", "run-ended")]
    assert counted == [len(cluster.lines("whole", "samples.jsonl"))]
    files = cluster.run("cd whole/* && find fingerprints logs report.html -type f")
    assert {name.split("/")[0] for name in files.split()} == {"fingerprints", "logs", "report.html"}
    assert cluster.left() == ""


def test_deleted_job_ends_as_interrupted_and_resume_finishes(cluster: Cluster) -> None:
    """What had arrived is kept; the resumed run asks for the node that its cell was begun on."""
    out = "deleted"
    process = cluster.measuring(out, *LONG, "--allocation", "gridengine:queue=single,time=00:10:00")
    assert eventually(lambda: are_measured(cluster, out))
    cluster.run(f"qdel {cluster.events(out, 'allocated')[0]['values']['job']}")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, output
    assert "the allocation has ended" in output
    assert cluster.left() == ""
    assert cluster.events(out, "cell-ended") == []
    kept = len(cluster.lines(out, "samples.jsonl"))
    cluster.run(f"envcompare run --resume {out}/*")
    nodes = [event["values"]["node"] for event in cluster.events(out, "allocated")]
    assert nodes == ["ge-c1", "ge-c1"]
    assert [event["state"] for event in cluster.events(out, "cell-ended")] == ["ok"]
    assert len(cluster.lines(out, "samples.jsonl")) > kept > 0
    assert cluster.left() == ""


def test_run_whose_job_is_deleted_at_any_time_is_whole(cluster: Cluster) -> None:
    """Nothing is left, and the resumed run finishes; `script/allocations` does it far oftener."""
    assert inflict(cluster, CANCELLED, seed=0).problem == ""


def test_client_that_is_stopped_keeps_what_was_measured(cluster: Cluster) -> None:
    """Ctrl-C reaches the client in the job, which ends after its block."""
    out = "stopped"
    process = cluster.measuring(out, *LONG, "--allocation", "gridengine:time=00:10:00")
    assert eventually(lambda: are_measured(cluster, out))
    as_root(LOGIN, _END_CLIENT.format("INT"))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, output
    assert "the allocation has ended" not in output
    assert [f"{out}/" in line for line in output.splitlines() if "--resume" in line] == [True]
    assert cluster.lines(out, "events.jsonl")[-1]["what"] == "interrupted"
    assert cluster.events(out, "cell-ended") == []
    assert cluster.left() == ""


def test_client_that_waits_in_the_queue_takes_its_job_back(cluster: Cluster) -> None:
    """Ctrl-C is heard while the node is another's, and no `clean` removes what the job needs."""
    other = "qsub -terse -q single -pe smp 2 -o /dev/null -e /dev/null -b y sleep 300"
    taken = cluster.run(other).strip()
    allocation = "gridengine:queue=single,time=00:10:00"
    process = cluster.measuring("queued", *SHORT, "--allocation", allocation)
    assert eventually(lambda: " qw " in cluster.run(JOBS))
    assert "is still running on local" in cluster.run("envcompare clean", code=UNUSABLE)
    as_root(LOGIN, _END_CLIENT.format("INT"))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, output
    assert [line.split()[0] for line in cluster.run(JOBS).splitlines()] == [taken]
    cluster.run(f"qdel {taken}")
    assert eventually(lambda: cluster.left() == "")


def test_job_of_a_client_that_was_killed_is_deleted(cluster: Cluster) -> None:
    """The run names its job, so that whoever removes it finds the job."""
    out = "killed"
    process = cluster.measuring(out, *LONG, "--allocation", "gridengine:time=00:10:00")
    assert eventually(lambda: are_measured(cluster, out))
    as_root(LOGIN, _END_CLIENT.format("KILL"))
    process.communicate(timeout=30)
    cluster.run(f"envcompare clean --run {out}/*")
    assert cluster.left() == ""


def test_node_of_the_job_around_is_measured_and_kept(cluster: Cluster) -> None:
    """`inside` uses a job that is another's to end."""
    words = ("envcompare", "run", *CELL, *SHORT, "--out", "in", "--allocation", "inside")
    script = f"cd {cluster.folder} && {shlex.join(words)}; hostname"
    output = cluster.run(f"qrsh -now no -V bash -c {shlex.quote(shlex.quote(script))}")
    assert output.splitlines()[-1] in NODES
    assert [event["state"] for event in cluster.events("in", "cell-ended")] == ["ok"]
    assert eventually(lambda: cluster.left() == "")


def test_doctor_says_what_the_cluster_offers(cluster: Cluster) -> None:
    """A user of the login node need not ask Grid Engine."""
    doctor = "envcompare doctor --envs vm,singularity --stacks host --host-python python3; :"
    before = set(as_root(LOGIN, PROCESSES).splitlines())
    said = cluster.run(doctor)
    assert set(as_root(LOGIN, PROCESSES).splitlines()) <= before  # no runtime was started
    assert re.search(r"container runtimes for jobs: singularity .*charliecloud", said)
    lines = [line for line in said.splitlines() if "Grid Engine queue" in line]
    assert sorted(line.split()[4] for line in lines) == ["main:", "single:"]
    assert all("parallel environments smp; a job lasts at most" in line for line in lines)


@pytest.mark.parametrize(
    ("allocation", "named", "code"),
    [
        ("gridengine:queue=gpus,time=00:10:00", "unknown queue `gpus`", 2),
        ("gridengine:pe=mpi,time=00:10:00", "does not have the parallel environment mpi", 2),
        ("gridengine:pe=smp,slots=3,time=00:10:00", "does not have a node with 3 slots", 2),
        ("gridengine:queue=single,time=00:20:00", "a job in single may last 00:10:00", 2),
        ("gridengine:resources=gpus=1,time=00:10:00", "unknown resource `gpus`", 2),
        ("gridengine:nodes=2,time=00:10:00", "several nodes of Grid Engine", 2),
        ("gridengine:time=00:00:20", "shorter than the plan", 2),
        (
            "gridengine:resources=gpu=3,time=00:10:00",
            "Grid Engine does not accept the job",
            UNUSABLE,
        ),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(
    cluster: Cluster, allocation: str, named: str, code: int
) -> None:
    """Nothing is submitted, and nothing is left."""
    output = cluster.measure("refused", "--quick", "--allocation", allocation, code=code)
    assert named in output
    assert cluster.events("refused", "submitted") == []
    assert cluster.left() == ""
