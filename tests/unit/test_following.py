"""A run inside a job of Grid Engine: what is fetched of it, and how its loss is seen.

The real one is asked in tests/engines/test_grid_engine.py; here its programs fail or fall silent.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import block, run_record
from commandline import envcompare
from programs import Programs, first_on_path

from envcompare.cli import measuring
from envcompare.cli.planning import planned
from envcompare.config.scheduling import AllocationTable, parse_allocation
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.errors import ConfigError, InterruptedRunError, TransportError, UnusableError
from envcompare.hosts import allocation, claims, granting, partitions
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import event_now
from envcompare.run_folder.results import RunFolder
from envcompare.runner import walk
from envcompare.runner.recording import Job
from envcompare.stack.storage import local_cache
from envcompare.transport.jobs import GridEngineJob
from envcompare.transport.local import LOCAL

RUN = "20260102-030405-0a1b"
ASKED = "gridengine:queue=main,pe=smp,slots=2,resources=gpu=1+mem_free=1G,time=01:30:00"
SETTINGS = Settings(envs="vm", allocation=ASKED)
JOB = GridEngineJob(id="7")
_LISTED = """<?xml version='1.0'?><job_info><queue_info><job_list state="running">
<JB_job_number>7</JB_job_number><JB_name>envcompare-20260102-030405-0a1b.5</JB_name>
<state>{}</state></job_list></queue_info></job_info>"""
_NODE = """<Queue-List><name>{}</name><slots_total>{}</slots_total>
<resource name="gpu" type="hc">2</resource><resource name="h_rt" type="qf">{}</resource>
</Queue-List>"""
_QUEUES = "".join((
    _NODE.format("main@c1", 2, "infinity"),
    _NODE.format("main@c2", 8, "infinity"),
    _NODE.format("short@c1", 2, "00:10:00"),
))  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Give a Grid Engine with two queues and no job."""
    programs = Programs(first_on_path(tmp_path, monkeypatch))
    (programs.folder / "queues").write_text(f"<job_info>{_QUEUES}</job_info>")
    (programs.folder / "jobs").write_text("<job_info></job_info>")
    programs.program("qstat", 'case "$1" in -f) cat queues ;; *) cat jobs ;; esac')
    programs.program(
        "qconf",
        """case "$1 $2" in
          "-sq main") echo "pe_list  make smp,[@fast=smp mpi]" ;;
          -sq*) echo "pe_list NONE" ;;
          "-sp smp") echo 'allocation_rule $pe_slots' ;;
          -sp*) echo 'allocation_rule $fill_up' ;;
          -sc*) printf '%s\\n' '#name shortcut' 'gpu g INT' 'mem_free mf MEMORY' ;;
        esac""",
    )
    programs.program("qdel", ": >deleted")
    return programs


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[granting.Mirror]:
    """Give a new run, and the folder that its job shares with this machine."""
    folder = RunFolder.create(tmp_path / "results", run_record(run_id=RUN))
    (tmp_path / "room").mkdir()
    yield granting.Mirror(folder=folder, room=tmp_path / "room")
    folder.close()


@pytest.fixture
def there(mirror: granting.Mirror) -> Iterator[RunFolder]:
    """Give the copy of the run folder as the client in the job has it."""
    mirror.begin(SETTINGS)
    copy = RunFolder(mirror.copy)
    yield copy
    copy.close()


def requested(text: str = ASKED, **changes: Any) -> allocation.Request:
    """Return the request of a run."""
    asked = parse_allocation(text, {}, now_s=0)
    assert asked is not None
    fields: dict[str, Any] = {"nodes": (), "jobs": (), "interruption": Interruption()}
    fields |= {"say": lambda _: None, "note_job": lambda _: None, **changes}
    return allocation.Request(allocation=asked, run_id=RUN, **fields)


def test_copy_goes_on_inside_the_job_and_the_original_keeps_what_it_asked_for(
    mirror: granting.Mirror,
) -> None:
    """The copy asks for nothing, and its client is the Python of this one."""
    mirror.folder.append_event(event_now("submitted", values={"job": "6"}))
    before = mirror.folder.read_run()
    script = mirror.begin(SETTINGS)
    assert 'allocation = "inside"' in RunFolder(mirror.copy).read_run().configuration
    assert mirror.folder.read_run() == before
    assert f"{sys.executable} -m envcompare run --resume {mirror.copy} --measure-only" in script
    mirror.fetch()
    assert [event.what for event in mirror.folder.read_events().events] == ["submitted"]


def test_whole_lines_and_their_files_are_fetched_once(
    mirror: granting.Mirror, there: RunFolder
) -> None:
    """A line that is half written comes with its other half, and nothing comes twice."""
    heard: list[bytes] = []
    mirror.folder.listener = heard.append
    there.append_sample(block())
    there.write_bytes("logs/a/b/vm.log", b"said")
    there.append_event(event_now("run-started"))
    with (mirror.copy / "events.jsonl").open("ab") as file:
        file.write(b'{"t": 1, "what": "run-')
    for _ in range(2):
        mirror.fetch()
    with (mirror.copy / "events.jsonl").open("ab") as file:
        file.write(b'ended", "schema": 2}\n')
    mirror.fetch()
    here = mirror.folder
    assert [event.what for event in here.read_events().events] == ["run-started", "run-ended"]
    assert (len(heard), here.count_samples()) == (2, 1)
    assert (here.path / "logs/a/b/vm.log").read_bytes() == b"said"


def test_event_never_arrives_before_the_samples_that_it_counts(
    mirror: granting.Mirror, there: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that goes on while it is fetched writes samples, then the event that counts them."""
    read = granting.Mirror._read

    def read_while_it_goes_on(self: granting.Mirror, name: str, begin: int) -> bytes:
        lines = read(self, name, begin)
        there.append_sample(block())
        there.append_event(event_now("run-ended", values={"samples": there.count_samples()}))
        return lines

    monkeypatch.setattr(granting.Mirror, "_read", read_while_it_goes_on)
    mirror.fetch()
    mirror.fetch()
    events = mirror.folder.read_events().events
    assert len(events) == 2
    assert mirror.folder.count_samples() >= max(int(str(e.values["samples"])) for e in events)


def running(mirror: granting.Mirror, client: str) -> subprocess.Popen[bytes]:
    """Start what a job does, with a script of sh in the place of the client there."""
    mirror.begin(SETTINGS)
    command = f"sh -c {shlex.quote(client)}"
    script = granting._SCRIPT.format(room=mirror.room, command=command)
    return subprocess.Popen(("bash", "-c", script.replace("-t 2", "-t 0.1")))


def test_exit_code_of_the_client_is_left_after_all_that_it_wrote(mirror: granting.Mirror) -> None:
    """It is what tells the end of a run from that of its job."""
    job = running(mirror, "echo said; exit 4")
    assert job.wait(30) == 0
    assert (mirror.read("exit"), list(mirror.said())) == ("4", ["said"])


def test_job_whose_client_here_falls_silent_is_stopped(mirror: granting.Mirror) -> None:
    """First as by Ctrl-C, and where that does not help by force."""
    job = running(mirror, "trap 'echo asked' TERM; while :; do sleep 0.1; done")
    assert job.wait(60) == 0
    assert (mirror.read("exit"), list(mirror.said())) == ("137", ["asked"])


def test_each_ctrl_c_reaches_the_client_in_the_job(mirror: granting.Mirror) -> None:
    """The first ends it after its block, the second at once."""
    counted = "n=0; trap 'n=$((n + 1))' TERM; echo ready; while [ $n -lt 2 ]; do sleep 0.1; done"
    job = running(mirror, counted)
    while not list(mirror.said()):
        assert job.poll() is None
        mirror.show(0)
        time.sleep(0.1)
    for stops in (1, 1, 1, 2, 2, 2):
        assert job.poll() is None or stops == 2
        mirror.show(stops)
        time.sleep(0.5)
    assert (job.wait(30), mirror.read("exit")) == (0, "0")


def follow(mirror: granting.Mirror, request: allocation.Request) -> int | None:
    """Follow a job that has begun."""
    return granting._follow(allocation.Watch(JOB), mirror, request)


def test_run_is_lost_with_a_job_that_left_no_exit_code(
    engine: Programs, mirror: granting.Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is not listed any more has not completed."""
    monkeypatch.setattr(granting, "_TURN_S", 0.05)
    monkeypatch.setattr(granting, "_LATE_S", 0.1)
    monkeypatch.setattr(allocation, "_MISSING_S", 0.1)
    mirror.begin(SETTINGS)
    said: list[str] = []
    request = requested(say=said.append)
    assert (follow(mirror, request), request.interruption.is_requested) == (None, True)
    assert "job 7 is not listed any more, and left no exit code" in said[0]


def test_run_is_lost_with_a_node_that_falls_silent(
    engine: Programs, mirror: granting.Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grid Engine goes on to list its job as running."""
    monkeypatch.setattr(granting, "_TURN_S", 0.01)
    (engine.folder / "jobs").write_text(_LISTED.format("r"))
    mirror.begin(SETTINGS)
    (mirror.room / "node").write_text("7")
    said: list[str] = []
    assert follow(mirror, requested(say=said.append)) is None
    assert "no sign of life" in said[0]


@pytest.mark.parametrize(
    ("code", "expected", "is_lost"),
    [
        ("0", 0, False),
        ("4", 4, False),
        ("130", 130, True),
        ("137", None, True),
        ("129", None, True),
    ],
)
def test_exit_code_of_the_client_is_that_of_the_run(
    mirror: granting.Mirror, code: str, expected: int | None, *, is_lost: bool
) -> None:
    """One that was killed ends the run as interrupted, whoever did it."""
    mirror.begin(SETTINGS)
    (mirror.room / "exit").write_text(code)
    request = requested()
    assert follow(mirror, request) == expected
    assert request.interruption.is_requested is is_lost


def test_end_that_the_user_asked_for_is_no_loss_of_the_allocation(
    mirror: granting.Mirror,
) -> None:
    """The client in the job ends as interrupted because it was told to."""
    mirror.begin(SETTINGS)
    (mirror.room / "exit").write_text("130")
    said: list[str] = []
    request = requested(say=said.append)
    request.interruption.request()
    assert (follow(mirror, request), said) == (130, [])


@pytest.mark.parametrize(
    ("code", "expected", "is_of_python"),
    [(2, 2, False), (5, 5, False), (70, 70, False), (1, 3, True), (127, 3, True)],
)
def test_error_of_the_client_in_the_job_is_that_of_the_run(
    code: int, expected: int, *, is_of_python: bool
) -> None:
    """What says that it was not started is a matter of the environment."""
    error = granting._ended_early(code, JOB)
    assert (error.exit_code, sys.executable in error.hint) == (expected, is_of_python)


def test_file_that_no_event_follows_arrives_with_the_exit_code(
    mirror: granting.Mirror, there: RunFolder
) -> None:
    """A log is still written to while its worker quits."""
    there.append_event(event_now("run-ended"))
    mirror.fetch()
    there.write_bytes("logs/a/b/vm.log", b"bye")
    (mirror.room / "exit").write_text("0")
    assert follow(mirror, requested()) == 0
    assert (mirror.folder.path / "logs/a/b/vm.log").read_bytes() == b"bye"


@pytest.mark.parametrize(("state", "named"), [("Eqw", "no such folder"), ("", "left no message")])
def test_job_that_does_not_begin_is_refused_with_its_reason(
    engine: Programs,
    mirror: granting.Mirror,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    named: str,
) -> None:
    """An error keeps a job in the queue for ever; one that is gone will not begin."""
    monkeypatch.setattr(granting, "_TURN_S", 0.05)
    monkeypatch.setattr(allocation, "_MISSING_S", 0.1)
    mirror.begin(SETTINGS)
    (engine.folder / "jobs").write_text(_LISTED.format(state) if state else "<job_info/>")
    reason = "error reason          1:      no such folder" if state else ""
    engine.program("qstat", f'case "$1" in -j) echo "{reason}" ;; *) cat jobs ;; esac')
    with pytest.raises(UnusableError, match="ended before anything was measured") as caught:
        granting._await_begin(allocation.Watch(JOB), mirror, requested())
    assert named in caught.value.details


def test_stop_is_heard_in_the_queue(engine: Programs, mirror: granting.Mirror) -> None:
    """The job is taken back by whoever submitted it."""
    mirror.begin(SETTINGS)
    request = requested()
    request.interruption.request()
    with pytest.raises(InterruptedRunError):
        granting._await_begin(allocation.Watch(JOB), mirror, request)


def test_job_has_the_state_that_qstat_lists_for_its_number(engine: Programs) -> None:
    """That of another number, or name where one is given, is none of its own."""
    (engine.folder / "jobs").write_text(_LISTED.format("hqw"))
    states = [JOB.state(), GridEngineJob(id="70").state()]
    named = [JOB.state(name=f"envcompare-{run}") for run in (RUN, "20250101")]
    assert (states, named) == (["hqw", ""], ["hqw", ""])


@pytest.mark.parametrize("script", ["echo 'no qmaster' >&2; exit 1", "echo '<job_info>'"])
def test_silence_of_grid_engine_is_no_end_of_a_job(engine: Programs, script: str) -> None:
    """An error, or an answer that is cut off, says nothing of it."""
    engine.program("qstat", script)
    with pytest.raises(TransportError, match="does not say what became of job 7"):
        JOB.state()
    assert allocation.state_of(JOB) is None


def test_queues_are_those_that_qstat_lists(engine: Programs) -> None:
    """Slots are those of a node, and exceptions of hosts are no parallel environments."""
    main, short = partitions.queues()
    assert (main.name, main.slots, main.environments) == ("main", (2, 8), ("make", "smp"))
    assert main.offer.startswith("2 nodes of up to 8 slots, free now gpu=2")
    assert (short.limit_s, short.environments) == (600.0, ())


@pytest.mark.parametrize("limits", [("00:10:00", "24:00:00"), ("24:00:00", "00:10:00")])
def test_limit_of_a_queue_is_the_longest_of_its_nodes(
    engine: Programs, limits: tuple[str, str]
) -> None:
    """Grid Engine chooses a node on which the job may last so long."""
    nodes = "".join(
        _NODE.format(f"main@c{number}", 2, limit) for number, limit in enumerate(limits)
    )
    (engine.folder / "queues").write_text(f"<job_info>{nodes}</job_info>")
    (main,) = partitions.queues()
    assert main.limit == "24:00:00"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("queue=mian,time=01:00:00", "unknown queue `mian`"),
        ("queue=short,time=01:00:00", "may last 00:10:00"),
        ("queue=short,pe=smp,time=00:01:00", "does not have the parallel environment smp"),
        ("pe=smp,slots=9,time=00:01:00", "a node with 9 slots"),
        ("pe=make,slots=2,time=00:01:00", "may give slots on several nodes"),
        ("resources=gpus=1,time=00:01:00", "unknown resource `gpus`"),
    ],
)
def test_what_no_queue_has_is_refused_by_name(engine: Programs, text: str, named: str) -> None:
    """Nothing is submitted that would wait for ever."""
    asked = requested(f"gridengine:{text}").allocation
    assert isinstance(asked.request, AllocationTable)
    with pytest.raises(ConfigError) as caught:
        partitions.check_queue(asked, asked.request)
    assert named in f"{caught.value.brief} {caught.value.details}"


def test_script_of_the_job_holds_what_was_asked_for(
    engine: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsl writes it; the queue is a word of `qsub`, and variables go by their names."""
    pytest.importorskip("parsl")
    monkeypatch.setattr(allocation, "_passed", lambda _: ["HOME", "PATH"])
    engine.program("qsub", 'echo "$*" >asked; for file; do :; done; cp "$file" script; echo 7')
    with allocation.submitted(requested(nodes=("c2",)), lambda _: "echo measured") as job:
        script = (engine.folder / "script").read_text()
    options = [line for line in script.splitlines() if line.startswith("#$")]
    assert job == JOB
    assert (engine.folder / "asked").read_text().startswith("-q main -terse /")
    assert {
        *("#$ -l h_rt=01:30:00", "#$ -l gpu=1", "#$ -l mem_free=1G", "#$ -l hostname=c2"),
        *("#$ -pe smp 2", "#$ -v HOME,PATH", "#$ -r n", "#$ -w e"),
    } <= set(options)
    assert "\necho measured\n" in script
    assert (engine.folder / "deleted").exists()
    assert not Path(requested().leftovers).exists()


def test_job_gets_the_variables_that_its_client_needs_and_no_others() -> None:
    """What the job is given is kept, and shown to others, by Grid Engine."""
    needed = {
        "PATH": "/usr/bin",
        "HOME": "/home/ann",
        "XDG_CACHE_HOME": "/data/ann",
        "PYTHONPATH": "/home/ann/lib",
        "PYTHONUNBUFFERED": "1",
        "LD_LIBRARY_PATH": "/opt/lib",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "ENVCOMPARE_LOCK_FOLDER": "/data/locks",
        "PIP_INDEX_URL": "https://packages.example/simple",
        "https_proxy": "http://proxy.example:3128",
    }
    others = {
        "API_TOKEN": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PIP_EXTRA_INDEX_URL": "https://ann:secret@packages.example/simple",
        "CUDA_VISIBLE_DEVICES": "0",
        "XDG_RUNTIME_DIR": "/run/user/1000",
        "BASH_FUNC_module%%": "() { :; }",
        "SSH_AUTH_SOCK": "/tmp/agent",
    }
    assert set(allocation._passed({**needed, **others})) == set(needed)


def test_claim_of_a_run_in_the_queue_does_not_grow_old(
    engine: Programs, mirror: granting.Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own client in the job would else take it for dead after a week, and remove it."""
    monkeypatch.setattr(granting, "_TURN_S", 0)
    request = requested()
    claim = claims.hold(LOCAL, request.claim)
    owner = Path(request.claim) / ".owner"
    owner.write_text(owner.read_text().rpartition(" ")[0] + " another-node\n")
    mirror.begin(SETTINGS)
    request.interruption.request()
    request.interruption.request()
    monkeypatch.setattr(granting, "_FORCED_S", -1)
    states = []
    try:
        for act in (
            lambda: allocation.pause(requested(), 0),
            lambda: follow(mirror, request),
        ):
            os.utime(owner, (0, 0))
            before = claims.survey(LOCAL, str(local_cache()))
            act()
            after = claims.survey(LOCAL, str(local_cache()))
            states += [(before[0].state, after[0].state)]
    finally:
        claim.kill()
    assert states == [("dead", "elsewhere")] * 2


def test_job_of_an_earlier_part_that_does_not_end_is_not_followed_by_another(
    engine: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come back to life, and both would use the same folders."""
    pytest.importorskip("parsl")
    monkeypatch.setattr(allocation, "_END_S", 0)
    (engine.folder / "jobs").write_text(_LISTED.format("dr"))
    engine.program("qsub", ": >submitted; echo 8")
    with (
        pytest.raises(UnusableError, match="its job 7 is there"),
        allocation.submitted(requested(jobs=(JOB,)), lambda _: ""),
    ):
        pass
    assert not (engine.folder / "submitted").exists()
    assert (engine.folder / "deleted").exists()


def job_of(mirror: granting.Mirror) -> Job:
    """Return what measures the run in its folder."""
    settings = Settings(envs="vm", workloads="cnn", allocation=ASKED)
    experiment, plan, hosts = planned(settings, Settings(), accept_many=False)
    display = Display(is_quiet=True)
    return Job(folder=mirror.folder, plan=plan, experiment=experiment, hosts=hosts, display=display)


def test_client_in_a_job_that_is_stopped_names_no_folder_to_resume(
    mirror: granting.Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy is deleted; the client that fetches the run names the one that stays."""
    monkeypatch.setattr(walk, "run", lambda _: 0)
    job = job_of(mirror)
    job.interruption.request()
    assert measuring._measured(job, is_concluded=False) == InterruptedRunError.exit_code


def test_each_job_of_a_run_has_a_room_of_its_own(
    mirror: granting.Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a job that was given up still writes reaches no later one."""
    rooms: list[Path] = []

    def measured(request: allocation.Request, mirror: granting.Mirror, _: Settings) -> int:
        rooms.append(mirror.room)
        return 0

    monkeypatch.setattr(granting, "measured", measured)
    request = requested()
    codes = [walk._fetch(job_of(mirror), request) for _ in range(2)]
    assert codes == [0, 0]
    assert {room.parent for room in rooms} == {Path(request.script_dir)}
    assert len(set(rooms)) == 2


def test_job_that_qsub_refuses_is_said_with_its_reason(engine: Programs) -> None:
    """Parsl's provider returns None and logs why."""
    pytest.importorskip("parsl")
    refusal = 'printf "Unable to run job: error: no suitable queues\\nExiting.\\n" >&2; exit 1'
    engine.program("qsub", refusal)
    with (
        pytest.raises(UnusableError, match="Grid Engine does not accept the job") as caught,
        allocation.submitted(requested(), lambda _: ""),
    ):
        pass
    assert caught.value.details == "Unable to run job: error: no suitable queues"
    assert not Path(requested().leftovers).exists()


def test_process_of_a_job_that_is_killed_waits_for_the_end_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job's processes are killed one by one: the first must not be recorded as a failure."""
    from envcompare.command import Command
    from envcompare.transport import jobs

    slept: list[float] = []
    monkeypatch.setattr(jobs.time, "sleep", slept.append)
    for script in ("kill -KILL $$", "exit 4"):
        process = jobs.JobTransport().spawn(Command(argv=("sh", "-c", script)))
        process.wait()
    assert slept.count(jobs._GRACE_S) == 1


def test_client_without_grid_engine_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login node of the cluster is where it is asked."""
    pytest.importorskip("parsl")
    monkeypatch.setenv("PATH", str(tmp_path))
    words = (
        "run",
        "--envs",
        "vm",
        "--workloads",
        "cnn",
        "--allocation",
        "gridengine:time=10:00:00",
    )
    done = envcompare(*words, cwd=tmp_path)
    assert (done.returncode, "Grid Engine does not answer" in done.stderr) == (3, True), done


def test_parts_of_a_run_are_found_by_what_its_events_name() -> None:
    """The scheduler stands beside the number."""
    events = (
        event_now("submitted", values={"job": "7", "scheduler": "gridengine"}),
        event_now("allocated", values={"job": "7", "scheduler": "gridengine", "node": "c1"}),
        event_now("submitted", values={"job": "8", "scheduler": "slurm"}),
    )
    jobs = allocation.jobs_of(events)
    assert [(job.scheduler, job.id) for job in jobs] == [("gridengine", "7"), ("slurm", "8")]
