"""A real Slurm: nodes are asked for, measured, lost and given back, by a user without root."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from allocationfaults import CANCELLED, inflict
from cluster import (
    CELL,
    INTERRUPTED,
    LOGIN,
    LONG,
    NODES,
    PROCESSES,
    SHORT,
    UNUSABLE,
    Cluster,
    as_root,
    eventually,
    installed_there,
)
from lab import ROOT, docker_client

pytestmark = [pytest.mark.engine("slurm"), pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a user's folder on the cluster, with envcompare and its extra in a venv."""
    with installed_there(tmp_path_factory.mktemp("wheels")) as there:
        yield there


def test_cell_is_measured_on_both_nodes_and_they_are_given_back(cluster: Cluster) -> None:
    """Submit, queue, run: all arms of a node's cell share it, and its GPUs are those of the job."""
    allocation = "slurm:partition=main,gres=gpu:fake:1,time=00:10:00,nodes=2"
    output = cluster.measure("both", *SHORT, "--allocation", allocation)
    assert "requested 2 nodes with gres=gpu:fake:1 from Slurm: job" in output
    placed = {event["host"]: event["values"] for event in cluster.events("both", "allocated")}
    assert sorted(values["node"] for values in placed.values()) == list(NODES)
    ended = {(event["host"], event["state"]) for event in cluster.events("both", "cell-ended")}
    assert ended == {("slurm-1", "ok"), ("slurm-2", "ok")}
    assert cluster.left() == ""


@pytest.mark.nightly
def test_cancelled_job_ends_as_interrupted_and_resume_finishes(cluster: Cluster) -> None:
    """Nothing is left; the resumed run asks for the node that its cell was begun on."""
    out, allocation = "cancelled", "slurm:partition=single,time=00:10:00"
    process = cluster.measuring(out, *LONG, "--allocation", allocation)
    assert eventually(lambda: len(cluster.lines(out, "samples.jsonl")) > 6)
    cluster.run(f"scancel {cluster.events(out, 'allocated')[0]['values']['job']}")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == INTERRUPTED, output
    assert "the allocation has ended" in output
    assert cluster.left() == ""
    assert cluster.events(out, "cell-ended") == []
    cluster.run(f"envcompare run --resume {out}/*")
    nodes = [event["values"]["node"] for event in cluster.events(out, "allocated")]
    assert nodes == ["slurm-c1", "slurm-c1"]
    assert [event["state"] for event in cluster.events(out, "cell-ended")] == ["ok"]
    assert cluster.left() == ""


@pytest.mark.nightly
@pytest.mark.parametrize("name", [CANCELLED, "preempted"])
def test_run_is_whole_after(cluster: Cluster, name: str) -> None:
    """Nothing is left, and the resumed run finishes; `script/allocations` does it far oftener."""
    assert inflict(cluster, name, seed=0).problem == ""


def test_job_goes_with_a_client_that_is_killed(cluster: Cluster) -> None:
    """A client that can clean up nothing any more must not hold nodes until their time is over."""
    out, allocation = "killed", "slurm:time=00:10:00,nodes=2"
    process = cluster.measuring(out, *LONG, "--allocation", allocation)
    assert eventually(lambda: cluster.lines(out, "samples.jsonl") != [])
    as_root(LOGIN, "pkill -KILL -u bench -f '[e]nvcompare run'")
    process.communicate(timeout=30)
    assert eventually(lambda: cluster.run("squeue --noheader") == "")
    run_id = cluster.run(f"basename {out}/*").strip()
    assert eventually(lambda: cluster.left().split() == [run_id])
    cluster.run(f"envcompare clean --run {out}/*")
    assert cluster.left() == ""


def test_process_that_stays_on_a_node_is_seen(cluster: Cluster) -> None:
    """Whatever it is: by what the tests ask that nothing is left."""
    stays = ("exec", "-d", "-u", "bench", NODES[0], "tail", "-f", "/dev/null")
    subprocess.run([docker_client(), *stays], check=True)
    assert "tail -f /dev/null" in cluster.left()
    as_root(NODES[0], "pkill -KILL -u bench tail")
    assert eventually(lambda: cluster.left() == "")


@pytest.fixture
def taken(cluster: Cluster) -> Iterator[str]:
    """Give the job of another user of the login that has all nodes."""
    other = "sbatch --parsable --nodes=2 --exclusive --time=5 --output=/dev/null --wrap='sleep 300'"
    job = cluster.run(other).strip()
    assert eventually(lambda: cluster.run(f"squeue --noheader --job={job} --format=%t") == "R\n")
    yield job
    cluster.run(f"scancel {job}; :")
    assert eventually(lambda: cluster.left() == "")


def test_client_that_waits_in_the_queue_takes_its_job_back(cluster: Cluster, taken: str) -> None:
    """Ctrl-C is heard while the nodes are another's, and no `clean` removes what it needs."""
    process = cluster.measuring("queued", *SHORT, "--allocation", "slurm:time=00:10:00")
    assert eventually(lambda: "PD" in cluster.run("squeue --noheader --format=%t"))
    assert "is still running on local" in cluster.run("envcompare clean", code=UNUSABLE)
    as_root(LOGIN, "pkill -INT -u bench -f '[e]nvcompare run'")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, output
    assert cluster.run("squeue --noheader --format=%A").split() == [taken]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_job_of_a_client_that_was_killed_in_the_queue_is_cancelled(
    cluster: Cluster, taken: str, *, is_resumed: bool
) -> None:
    """The run names its job before it has nodes, so that whoever goes on with it finds the job."""
    out = f"killed-in-queue-{is_resumed}"
    process = cluster.measuring(out, *SHORT, "--allocation", "slurm:time=00:10:00")
    assert eventually(lambda: cluster.events(out, "submitted") != [])
    as_root(LOGIN, "pkill -KILL -u bench -f '[e]nvcompare run'")
    process.communicate(timeout=30)
    (left,) = (event["values"]["job"] for event in cluster.events(out, "submitted"))
    assert set(cluster.run("squeue --noheader --format=%A").split()) == {taken, left}
    if is_resumed:
        cluster.run(f"scontrol hold {left}; scancel {taken}; envcompare run --resume {out}/*")
        assert [event["state"] for event in cluster.events(out, "cell-ended")] == ["ok"]
    else:
        cluster.run(f"envcompare clean --run {out}/*")
    assert left not in cluster.run("squeue --noheader --format=%A").split()


def test_nodes_of_the_job_around_are_measured_and_kept(cluster: Cluster) -> None:
    """`inside` uses a job that is another's to end."""
    words = shlex.join(
        ("envcompare", "run", *CELL, *SHORT, "--out", "in", "--allocation", "inside")
    )
    script = shlex.quote(f"{words} && srun --overlap uname -n")
    output = cluster.run(f"salloc --quiet --nodes=1 --time=5 bash -c {script}")
    assert output.splitlines()[-1] in NODES
    assert [event["state"] for event in cluster.events("in", "cell-ended")] == ["ok"]
    assert eventually(lambda: cluster.left() == "")


def test_steps_of_a_job_keep_the_contract_of_every_transport(cluster: Cluster) -> None:
    """The same tests as of the other transports, run on the login node where srun is.

    Slurm carries no socket, and hands on whole lines and what is left at the end, as the protocol
    of workers needs.
    """
    for folder in ("contract", "support"):
        source, goal = ROOT / "tests" / folder, f"{LOGIN}:{cluster.folder}/{folder}"
        subprocess.run([docker_client(), "cp", str(source), goal], check=True)
    as_root(LOGIN, f"chown -R bench:bench {cluster.folder}")
    cluster.run(
        "export PYTHONPATH=support PYTHONDONTWRITEBYTECODE=1; "
        "salloc --quiet --nodes=1 --time=5 python -m pytest -q -p no:cacheprovider "
        "contract/test_transports.py -k 'srun and not socket and not read_gives'"
    )


def test_doctor_says_what_the_cluster_offers(cluster: Cluster) -> None:
    """A user of the login node need not ask Slurm."""
    doctor = "envcompare doctor --envs vm,singularity --stacks host --host-python python3; :"
    before = set(as_root(LOGIN, PROCESSES).splitlines())
    said = cluster.run(doctor)
    assert set(as_root(LOGIN, PROCESSES).splitlines()) <= before  # no runtime was started
    assert re.search(r"container runtimes for jobs: singularity .*charliecloud", said)
    lines = [line for line in said.splitlines() if "Slurm partition" in line]
    assert sorted(line.split()[3] for line in lines) == ["main:", "single:", "urgent:"]
    assert all("up to gpu:fake:2 each" in line for line in lines)


@pytest.mark.parametrize(
    ("allocation", "named"),
    [
        ("slurm:partition=gpus,time=00:10:00", "unknown partition `gpus`"),
        ("slurm:gres=gpu:fake:3,time=00:10:00", "main does not have a node with gres=gpu:fake:3"),
        ("slurm:gres=gpu:a100:1,time=00:10:00", "main does not have a node with gres=gpu:a100:1"),
        ("slurm:partition=single,nodes=2,time=00:10:00", "single does not have 2 nodes"),
        ("slurm:partition=single,time=00:20:00", "is longer than the partition allows"),
        ("slurm:time=00:00:20", "shorter than the plan"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(
    cluster: Cluster, allocation: str, named: str
) -> None:
    """Nothing is submitted, and no run folder is made."""
    output = cluster.measure("refused", "--quick", "--allocation", allocation, code=2)
    assert named in output
    assert cluster.lines("refused", "events.jsonl") == []
    assert cluster.run("squeue --noheader") == ""
