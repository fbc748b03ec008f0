"""The job of an allocation, from its folders to its end, with programs in the place of Slurm's.

The real ones are asked in tests/engines/test_allocations.py; here they hang, fail or come late.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import envcompare
from nightly import nightly_except
from programs import Programs, first_on_path

from envcompare.cli.planning import planned
from envcompare.config.scheduling import parse_allocation
from envcompare.config.settings import Settings
from envcompare.errors import (
    ConfigError,
    InterruptedRunError,
    Interruption,
    RunFolderError,
    TransportError,
    UnusableError,
)
from envcompare.hosts import allocation, keeper
from envcompare.run_folder.records import Event, event_now
from envcompare.run_folder.results import RunFolder
from envcompare.runner import walk
from envcompare.stack.storage import local_cache
from envcompare.transport import LOCAL
from envcompare.transport.hosts import SlurmJob

RUN, NAME = "20260102-030405-0a1b", "envcompare-20260102-030405-0a1b.1700000000.5"


class Slurm(Programs):
    """The programs of a cluster, and the jobs they list."""

    def listing(self, *lines: str) -> None:
        """Let `squeue` list these jobs, and `scancel` end them all."""
        (self.folder / "jobs").write_text("".join(f"{line}\n" for line in lines))
        self.program("squeue", "cat jobs")
        self.program("scancel", 'echo "$*" >>cancelled; : >jobs')

    @property
    def cancelled(self) -> str:
        """Return what `scancel` was asked for."""
        path = self.folder / "cancelled"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """Give a cluster without jobs, and this machine a cache of its own."""
    cluster = Slurm(first_on_path(tmp_path, monkeypatch))
    cluster.listing()
    return cluster


def requested(options: str = "", **changes: Any) -> allocation.Request:
    """Return the request of a run for one node."""
    asked = parse_allocation(f"slurm:time=00:09:30{options}", {}, now_s=0)
    assert asked is not None
    fields: dict[str, Any] = {"nodes": (), "jobs": (), "interruption": Interruption()}
    fields |= {"say": lambda _: None, "note_job": lambda _: None, **changes}
    return allocation.Request(allocation=asked, run_id=RUN, **fields)


def job(number: str = "7") -> SlurmJob:
    """Return a job of which nothing is said when it is lost."""
    return SlurmJob(id=number, on_loss=lambda _: None)


def test_pilot_goes_on_only_for_the_client_of_its_own_job(tmp_path: Path) -> None:
    """A job whose client was killed ends, though a later job of the same run is measured."""
    script = allocation._PILOT.format(patience=0, kept=shlex.quote(f"{tmp_path}/kept-"))
    argv, environ = ("sh", "-c", script), {**os.environ, "SLURM_JOB_ID": "6"}
    (tmp_path / "kept-7").touch()
    ended = subprocess.run(argv, env=environ, stderr=subprocess.PIPE, timeout=60, check=True)
    assert ended.stderr.startswith(b"the nodes did not answer in time")
    (tmp_path / "kept-6").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(argv, env=environ, timeout=1, check=False)


def test_job_has_the_state_that_squeue_lists_for_its_number(slurm: Slurm) -> None:
    """That of another number, or name where one is given, is none of its own."""
    slurm.listing(f"70|RUNNING|{NAME}", f"7|PENDING|{NAME}", "8|RUNNING|a | name")
    states = [job(number).state() for number in ("7", "8", "9")]
    named = [job("8").state(name=name) for name in ("a |", f"envcompare-{RUN}")]
    assert (states, named) == (["PENDING", "RUNNING", ""], ["RUNNING", ""])


def test_silence_of_slurm_is_no_end_of_a_job(slurm: Slurm) -> None:
    """An error says nothing of it."""
    slurm.program("squeue", "echo 'no controller' >&2; exit 1")
    with pytest.raises(TransportError, match="does not report the state of job 7"):
        job().state()
    assert allocation.state_of(job()) is None


def test_jobs_of_a_run_are_those_that_its_events_name() -> None:
    """Each of them once, also one that was submitted and never had a node."""
    events = (
        event_now("submitted", values={"job": "7"}),
        event_now("allocated", values={"job": "7", "node": "c1"}),
        event_now("submitted", values={"job": "8"}),
    )
    assert [each.id for each in allocation.jobs_of(events)] == ["7", "8"]


def test_folder_of_the_job_is_made_anew_and_follows_no_link(slurm: Slurm, tmp_path: Path) -> None:
    """Others may write to a folder that the user names, and an earlier job had the same one."""
    theirs, chosen = tmp_path / "theirs", tmp_path / "chosen"
    theirs.mkdir()
    chosen.mkdir()
    (theirs / "kept-7").touch()
    (chosen / f"envcompare-{RUN}").symlink_to(theirs)
    request = requested(f",script-dir={chosen}")
    allocation._claimed(request).kill()
    made = Path(request.script_dir)
    assert (made.is_symlink(), list(made.iterdir())) == (False, [])
    assert [path.name for path in theirs.iterdir()] == ["kept-7"]


@pytest.mark.parametrize("is_chosen", [False, True])
def test_run_in_the_queue_is_claimed_as_long_as_its_client_lives(
    slurm: Slurm, tmp_path: Path, *, is_chosen: bool
) -> None:
    """`clean` leaves the cache to a run that is live, and to no other."""
    request = requested(f",script-dir={tmp_path}" if is_chosen else "")
    claim = allocation._claimed(request)
    cache = str(tmp_path / "cache" / "envcompare")
    assert [each.state for each in keeper.survey(LOCAL, cache)] == ["live"]
    claim.kill()
    until = time.monotonic() + 30  # a process that was killed may still be listed
    while keeper.survey(LOCAL, cache)[0].state == "live" and time.monotonic() < until:
        time.sleep(0.1)
    assert [each.state for each in keeper.survey(LOCAL, cache)] == ["dead"]


def test_claim_of_a_run_in_the_queue_does_not_grow_old(slurm: Slurm) -> None:
    """A client on another host would else take it for dead after a week, and remove it."""
    request = requested()
    claim = allocation._claimed(request)
    owner = Path(request.claim) / ".owner"
    owner.write_text(owner.read_text().rpartition(" ")[0] + " another-node\n")
    os.utime(owner, (0, 0))
    states = [keeper.survey(LOCAL, str(local_cache()))[0].state]
    allocation.pause(request, 0)
    states += [keeper.survey(LOCAL, str(local_cache()))[0].state]
    claim.kill()
    assert states == ["dead", "elsewhere"]


def test_jobs_that_a_killed_client_left_are_cancelled(slurm: Slurm) -> None:
    """`--resume` asks for a new job, and `clean --run` removes the folder once the old is gone."""
    folder = Path(requested().leftovers)
    folder.mkdir(parents=True)
    slurm.listing(f"7|PENDING|{NAME}")
    allocation.forget(RUN, (job("6"), job("7")))
    assert (slurm.cancelled, folder.exists()) == ("7\n", False)


def test_job_that_the_run_did_not_ask_for_is_not_cancelled(slurm: Slurm) -> None:
    """It is that of the user around it, or has got its number since then."""
    slurm.listing("7|RUNNING|interactive")
    with pytest.raises(UnusableError, match="in job 7"):
        allocation.forget(RUN, (job("7"),))
    assert slurm.cancelled == ""


def test_job_of_a_client_that_lives_is_not_cancelled(slurm: Slurm) -> None:
    """A `clean --run` in another terminal must not end what is being measured."""
    slurm.listing(f"7|RUNNING|{NAME}")
    claim = allocation._claimed(requested())
    with pytest.raises(UnusableError, match=f"the run {RUN} is still running"):
        allocation.forget(RUN, (job("7"),))
    claim.kill()
    assert slurm.cancelled == ""


def test_nodes_are_taken_whatever_the_accounting_says(slurm: Slurm) -> None:
    """The state of squeue is enough; sacct asks a database that may be down."""
    slurm.program("sacct", "exit 1")
    slurm.listing(f"7|RUNNING|{NAME}")
    slurm.program("srun", "echo c1")
    assert allocation._await_nodes(job(), requested()) == ("c1",)


def test_stop_is_heard_in_the_queue(slurm: Slurm) -> None:
    """The job is taken back by whoever submitted it."""
    slurm.program("squeue", f"[ -e asked ] || echo '7|PENDING|{NAME}'; : >asked")
    request = requested()
    request.interruption.request()
    with pytest.raises(InterruptedRunError):
        allocation._await_nodes(job(), request)


def test_job_that_leaves_the_queue_without_nodes_was_not_granted(slurm: Slurm) -> None:
    """What Slurm does not list any more will not get nodes."""
    slurm.program("squeue", f"[ -e asked ] || echo '7|PENDING|{NAME}'; : >asked")
    with pytest.raises(UnusableError, match="job 7 ended before its nodes could be used"):
        allocation._await_nodes(job(), requested())


def test_job_is_listed_late_and_not_never(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm may not know it at once; a job that never comes is not waited for."""
    watch = allocation.Watch(job())
    found = [(watch.ask(), watch.is_gone)]
    monkeypatch.setattr(allocation, "_MISSING_S", 0.0)
    assert [*found, (watch.ask(), watch.is_gone)] == [("", False), ("", True)]


def test_run_goes_on_only_with_the_nodes_that_it_was_begun_on() -> None:
    """A cell is of one machine; Slurm may name the nodes in another order."""
    settings = Settings(envs="vm", workloads="cnn", allocation="slurm:time=10:00:00,nodes=2")
    _, _, hosts = planned(settings, Settings(), accept_many=True)
    request = requested(nodes=("c2", "c1"))
    placed = allocation._placed(hosts, job(), ("c1", "c2"), request)
    assert [one.node for one in placed] == ["c2", "c1"]
    with pytest.raises(ConfigError, match="job 7 has other nodes than the run"):
        allocation._placed(hosts, job(), ("c1", "c3"), request)


@pytest.mark.parametrize(
    "wait",
    [
        lambda request: allocation._roll_call(job(), 1, request),
        lambda request: allocation._keep(job(), "c1", request),
    ],
    ids=["roll call", "keeper"],
)
def test_stop_is_heard_while_a_node_does_not_answer(
    slurm: Slurm, wait: Callable[[allocation.Request], object]
) -> None:
    """The question is killed; its answer is not waited for."""
    slurm.program("srun", "sleep 20; : >answered")
    request = requested()
    threading.Timer(0.5, request.interruption.request).start()
    with pytest.raises(InterruptedRunError):
        wait(request)
    assert not (slurm.folder / "answered").exists()


def test_folder_that_the_node_does_not_share_is_named(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has written its file, and it is not seen here."""
    monkeypatch.setattr(allocation, "_SHARED_S", 0.5)
    slurm.listing(f"7|RUNNING|{NAME}")
    slurm.program("srun", "echo kept; exec cat")
    with pytest.raises(UnusableError, match="is not shared between this machine and c1"):
        allocation._keep(job(), "c1", requested())


def test_folder_that_the_node_does_not_have_is_named(slurm: Slurm) -> None:
    """The step ends at once there, with a message of its shell."""
    slurm.listing(f"7|RUNNING|{NAME}")
    kept = requested().kept("7")
    slurm.program("srun", f"echo 'sh: 1: cannot create {kept}: Directory nonexistent' >&3")
    with pytest.raises(UnusableError, match="is not shared between this machine and c1") as raised:
        allocation._keep(job(), "c1", requested())
    assert "Directory nonexistent" in raised.value.details


@pytest.mark.parametrize("state", ["COMPLETING", ""])
def test_job_that_is_cancelled_after_its_nodes_answered_was_not_granted(
    slurm: Slurm, state: str
) -> None:
    """Slurm still lists it for a while; nothing is said of a folder that is not shared."""
    slurm.listing(*[f"7|{state}|{NAME}"] * bool(state))
    slurm.program("srun", "exit 1")
    with pytest.raises(UnusableError, match="job 7 ended before its nodes could be used"):
        allocation._keep(job(), "c1", requested())


def test_node_that_ends_without_a_word_is_lost_as_srun_says(slurm: Slurm) -> None:
    """The scheduler may still list the job as running."""
    slurm.listing(f"7|RUNNING|{NAME}")
    slurm.program("srun", "echo 'srun: error: Job 7 is expired' >&2; exit 1")
    with pytest.raises(TransportError) as raised:
        allocation._keep(job(), "c1", requested())
    assert "srun: error: Job 7 is expired" in raised.value.details


class Hangs:
    """A provider whose commands do not end in time."""

    def cancel(self, _jobs: list[str]) -> None:
        """Raise what Parsl lets through."""
        raise subprocess.TimeoutExpired("scancel 7", 60)


@pytest.mark.parametrize("is_listed", [False, True])
def test_scancel_that_hangs_keeps_nothing_else_from_being_done(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, *, is_listed: bool
) -> None:
    """The job may end by its keeper; where it does not, the user is told."""
    monkeypatch.setattr(allocation, "_END_S", 0)
    said: list[str] = []
    request = requested(say=said.append)
    allocation._claimed(request).kill()
    slurm.listing(*[f"7|RUNNING|{NAME}"] * is_listed)
    provider: Any = Hangs()
    allocation._give_back(job(), provider, request)
    told = ["job 7 may still hold its nodes; cancel it with: scancel 7"]
    assert (said, Path(request.leftovers).exists()) == (told * is_listed, is_listed)


def test_script_of_the_job_holds_what_was_asked_for(slurm: Slurm) -> None:
    """Parsl writes it, in whole minutes; a resumed run names the node that it was begun on."""
    pytest.importorskip("parsl")
    slurm.program("sacct", "exit 1")
    slurm.program("sbatch", 'cp "$1" script; echo "Submitted batch job 7"')
    options = ",partition=main,gres=gpu:a100:1,cpus=2,mem-gb=4,account=ours,qos=low,constraint=fast"
    request = requested(options, nodes=("c2",))
    with allocation.submitted(request, "echo measured") as given:
        script = (slurm.folder / "script").read_text()
    lines = [" ".join(line.split()) for line in script.splitlines() if line.startswith("#SBATCH")]
    assert given.id == "7"
    assert {
        *("#SBATCH --partition=main", "#SBATCH --gres=gpu:a100:1", "#SBATCH --cpus-per-task=2"),
        *("#SBATCH --mem=4g", "#SBATCH --account=ours", "#SBATCH --qos=low"),
        *("#SBATCH --constraint=fast", "#SBATCH --nodelist=c2", "#SBATCH --no-requeue"),
        *("#SBATCH --nodes=1", "#SBATCH --time=10"),
    } <= set(lines)
    assert "\necho measured\n" in script
    assert slurm.cancelled == "7\n"
    assert not Path(request.leftovers).exists()


def test_job_that_sbatch_refuses_is_said_with_its_reason(slurm: Slurm) -> None:
    """Nothing of it is left."""
    pytest.importorskip("parsl")
    slurm.program("sacct", "exit 1")
    slurm.program("sbatch", "echo 'sbatch: error: Invalid account' >&2; echo >&2; exit 1")
    with (
        pytest.raises(UnusableError, match="Slurm does not accept the job") as caught,
        allocation.submitted(requested(), "echo measured"),
    ):
        pass
    assert caught.value.details == "sbatch: error: Invalid account"
    assert not Path(requested().leftovers).exists()


def test_client_without_slurm_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login node of the cluster is where it is asked."""
    pytest.importorskip("parsl")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ("run", "--envs", "vm", "--workloads", "cnn", "--allocation", "slurm:time=10:00:00")
    done = envcompare(*words, cwd=tmp_path)
    told = "Slurm does not answer on this machine" in done.stderr
    assert (done.returncode, told) == (3, True), done


# Parsl leaves a program that it waits for no longer: its process is not that of other tests.
CLIENT = """
from envcompare.cli import main
from envcompare.hosts import allocation
allocation._COMMAND_S = 1
main()
"""


@pytest.mark.parametrize("program", nightly_except(("sbatch",), ("sacct", "sbatch")))
def test_slurm_that_does_not_answer_is_said_and_leaves_nothing(
    slurm: Slurm, tmp_path: Path, program: str
) -> None:
    """Parsl raises an error of Python's there."""
    pytest.importorskip("parsl")
    slurm.program("sinfo", "echo 'main*|infinite|(null)'")
    for name in ("sacct", "sbatch"):
        slurm.program(name, "exec sleep 5" if name == program else "exit 1")
    words = ("run", "--envs", "vm", "--workloads", "cnn", "--allocation", "slurm:time=10:00:00")
    argv = (sys.executable, "-c", CLIENT, *words)
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "error: Slurm does not answer" in done.stderr) == (3, True), done
    assert f"`{program}" in done.stderr
    assert list((tmp_path / "cache" / "envcompare" / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("placed", "nodes"),
    [
        ({"slurm-1": "c1", "slurm-2": "c2"}, ("c1", "c2")),
        ({"slurm-1": "c1"}, ()),  # the client was killed between the two
        ({}, ()),
    ],
)
def test_resumed_run_asks_for_nodes_that_are_known_of_all_hosts(
    placed: dict[str, str], nodes: tuple[str, ...]
) -> None:
    """A part of them would be refused for ever, and nothing was measured on them."""
    settings = Settings(envs="vm", workloads="cnn", allocation="slurm:time=10:00:00,nodes=2")
    _, _, hosts = planned(settings, Settings(), accept_many=True)
    events: tuple[Event, ...] = tuple(
        event_now("allocated", host=host, values={"node": node, "job": "7"})
        for host, node in placed.items()
    )
    assert walk._nodes_of(hosts, events) == nodes


@pytest.mark.parametrize("node", ["c1\n#SBATCH --output=/home/ann/.profile", "c1 c2", "", "-c1"])
def test_node_that_has_no_name_of_a_host_never_reaches_a_script(node: str) -> None:
    """It stands in an option of the job, one line of it."""
    settings = Settings(envs="vm", workloads="cnn", allocation="slurm:time=10:00:00")
    _, _, hosts = planned(settings, Settings(), accept_many=True)
    event = event_now("allocated", host="slurm-1", values={"node": node, "job": "7"})
    with pytest.raises(RunFolderError, match="name a node that cannot be one"):
        walk._nodes_of(hosts, (event,))


def test_resumption_checks_what_it_needs_as_a_new_run_does(tmp_path: Path) -> None:
    """Parsl may have gone since the run began: that is no fault of envcompare."""
    given = Settings(envs="vm", workloads="cnn", allocation="slurm:time=10:00:00")
    experiment, plan, _ = planned(given, Settings(), accept_many=True)
    record = walk.run_record(plan, experiment, command_line=("envcompare", "run"))
    folder = RunFolder.create(tmp_path, record)
    (tmp_path / "parsl.py").write_text("raise ImportError('not there')\n")
    done = envcompare("run", "--resume", str(folder.path), cwd=tmp_path)
    assert (done.returncode, "--allocation needs Parsl" in done.stderr) == (3, True), done.stderr
