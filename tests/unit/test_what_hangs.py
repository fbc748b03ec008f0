"""What hangs, dies or has no finite loss as it begins: who is blamed, and for how long."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from benches import Kept, Measured, bench, launch, measure

from envcompare import environments, transport
from envcompare.environments import Isolation, oci, run_inside, run_wrapped
from envcompare.environments.registry import environment
from envcompare.errors import (
    Interruption,
    OutputLimitError,
    StillRunningError,
    UnusableError,
    WorkloadError,
)
from envcompare.measure import limits
from envcompare.measure import worker as worker_module
from envcompare.measure.cell import Roster
from envcompare.measure.limits import begin_limit_s
from envcompare.measure.lockstep import Lockstep, Turns
from envcompare.measure.worker import Worker
from envcompare.text import Command
from envcompare.transport import LOCAL, copies, run
from envcompare.transport.hosts import InterruptibleTransport

SOURCE = """
import os, signal, time

ARM = os.environ["ENVCOMPARE_ENVIRONMENT"]


class Steady:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        time.sleep(0.01)
        return 1.0


class ReferenceDies(Steady):
    def setup(self, seed, device):
        if ARM == "vm":
            os.kill(os.getpid(), signal.SIGKILL)


class HangsInSetup(Steady):
    def setup(self, seed, device):
        if ARM == "docker":
            time.sleep(300)


class NoLoss(Steady):
    def step(self):
        super().step()
        return float("nan")
"""


def tried(folder: Path, name: str, *passes: str, budget_s: float = 1.0) -> Measured:
    """Measure a workload of SOURCE with real workers."""
    (folder / "own.py").write_text(SOURCE)
    made = bench(folder, f"{folder}/own.py:{name}", budget_s=budget_s, has_startup=False)
    return measure(made, passes=passes)


def test_arm_is_not_blamed_where_the_reference_gave_no_first_loss(tmp_path: Path) -> None:
    """There is nothing that its own could differ from."""
    found = tried(tmp_path, "ReferenceDies", "lockstep", budget_s=30.0)
    assert {row.arm for row in found.comparison.course.failures} == {"vm"}
    assert "first loss differs" not in found.failures()
    reason = found.docker.reason
    assert reason is not None
    assert (reason.kind, reason.arm) == ("reference-failed", "vm")


def test_loss_that_is_nowhere_finite_is_said_once(tmp_path: Path) -> None:
    """Then the same work cannot be checked, and the reader has to know."""
    found = tried(tmp_path, "NoLoss", "lockstep", budget_s=3.0)
    texts = [event.text for event in found.events if event.what == "caution"]
    assert sum("no arm has a finite first loss" in text for text in texts) == 1
    assert found.comparison.course.failures == ()


def test_hang_in_setup_is_not_tried_again_beyond_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the way out, and no pass launches the arm once more."""
    monkeypatch.setattr(limits, "MIN_BEGIN_LIMIT_S", 4.0)
    found = tried(tmp_path, "HangsInSetup", "startup", "lockstep")
    assert "docker: setup or the first step took longer than 4 s" in found.failures()
    assert "raise --budget" in found.failures()
    assert [row.arm for row in found.comparison.course.failures] == ["docker"]


def test_nothing_is_measured_beside_a_worker_that_cannot_be_ended(tmp_path: Path) -> None:
    """The cell ends with that reason; the other workers are killed all the same."""
    (tmp_path / "own.py").write_text(SOURCE)
    made = bench(tmp_path, f"{tmp_path}/own.py:ReferenceDies", budget_s=30.0)
    ended: list[str] = []

    def launched(arm: str, variables: tuple[tuple[str, str], ...] = ()) -> Worker:
        def end() -> None:
            ended.append(arm)
            if arm == "vm":
                raise StillRunningError("cannot confirm that everything has ended")

        return launch(tmp_path, arm, variables, end=end)

    own = replace(made, launch=launched)
    with pytest.raises(StillRunningError):
        Turns([Lockstep(own, Roster(own))]).measure()
    assert sorted(ended) == sorted(made.arms)
    assert isinstance(made.recorder, Kept)
    made.recorder.folder.close()
    assert [event.what for event in made.recorder.events if event.arm == "vm"][-1] == "arm-failed"


ALWAYS_THERE = """#!/bin/sh
case $1 in
  ps) echo 0123456789ab ;;
  rm) printf 'Error: 0123456789ab: \\033[31mdevice or resource busy\\n' >&2; exit 1 ;;
esac
"""


def test_container_that_stays_is_no_proof_of_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is asked for a bounded time, and what it says is told without its colours."""
    client = tmp_path / "docker"
    client.write_text(ALWAYS_THERE)
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StillRunningError) as caught:
        environment("docker").sweep(LOCAL, "20260101-000000-abcd", worker="0f")
    assert "device or resource busy" in caught.value.details
    assert "\033" not in caught.value.details
    assert "label=envcompare.worker=0f" in caught.value.hint


RESTARTED = """#!/bin/sh
[ "$1 $2" != 'image ls' ] || exit 0
[ "$1" = ps ] || exit 2
echo >>{tries}
[ "$(wc -l <{tries})" -gt 2 ] || {{ echo 'Cannot connect to the Docker daemon' >&2; exit 1; }}
"""


def test_sweep_outlasts_a_restart_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that answers a moment later costs no cell."""
    client = tmp_path / "docker"
    client.write_text(RESTARTED.format(tries=tmp_path / "tries"))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert environment("docker").sweep(LOCAL, "20260101-000000-abcd") == 0
    assert (tmp_path / "tries").read_text() == "\n" * 3


def test_sweep_that_hangs_says_what_it_wrote_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader learns more than that a shell did not end."""
    monkeypatch.setattr(environments, "SWEEP_S", 1.0)
    monkeypatch.setattr(oci, "_TRIES", 0)
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho 'waiting for the daemon' >&2; exec sleep 60\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StillRunningError) as caught:
        environment("docker").sweep(LOCAL, "20260101-000000-abcd")
    assert caught.value.brief == (
        "cannot confirm that everything the run started on local has ended"
    )
    assert "waiting for the daemon" in caught.value.details


HELLO = json.dumps(
    {"op": "hello", "ok": True, "protocol": 1, "pid": 1, "entry_ns": 0, "now_ns": 0}
    | {
        "import_ns": 0,
        "data_ns": 0,
        "generation": "fork",
        "device": "cpu",
        "batch": 1,
        "code_hash": "",
    }
)
FLOODS = {
    "endless line": ("cat /dev/zero", "it wrote a line of more than 1 MiB during `hello`"),
    "endless lines": (f"yes '{HELLO}'", "it wrote lines that nobody asked for during `hello`"),
}


def writing(folder: Path, script: str) -> Worker:
    """Return a worker that is a script of sh."""
    (folder / "docker.log").touch()
    return Worker(
        lambda: LOCAL.spawn(Command(argv=("sh", "-c", script))),
        arm="docker",
        log=folder / "docker.log",
        log_name="docker.log",
        explain=lambda _code, _text: None,
    )


def ask_often(worker: Worker) -> None:
    """Take answers more slowly than they come."""
    for _ in range(1000):
        worker.await_hello(limit_s=30.0)
        time.sleep(0.02)


@pytest.mark.parametrize(("script", "brief"), FLOODS.values(), ids=FLOODS)
def test_worker_that_writes_without_end_is_a_fault_of_its_arm(
    script: str, brief: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an image prints does not fill the memory of the client."""
    monkeypatch.setattr(worker_module, "LINE_LIMIT_BYTES", 1 << 20)
    worker = writing(tmp_path, script)
    with pytest.raises(WorkloadError) as caught:
        ask_often(worker)
    with pytest.raises(WorkloadError, match=brief.replace("hello", "facts")):
        worker.await_facts()
    worker.kill()
    assert caught.value.phase == "protocol"
    assert caught.value.brief == f"docker: {brief}"


def test_worker_that_is_gone_says_so_to_whoever_asks_again(tmp_path: Path) -> None:
    """Else the second question, as after Ctrl-C, waits for an answer until its own limit."""
    worker = writing(tmp_path, "exit 9")
    for question, op in ((worker.await_hello, "hello"), (worker.await_facts, "facts")):
        with pytest.raises(WorkloadError, match=f"ended during `{op}` with exit code 9"):
            question()
    worker.kill()


@pytest.mark.parametrize(("words", "least"), [("yes", 1 << 20), ("cat /dev/zero", 12 << 16)])
def test_log_without_end_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, least: int
) -> None:
    """What comes is written as it comes, no more than the limit, and of one line its beginning.

    A zero byte, which a terminal may obey, takes 12 bytes as ⟨U+0000⟩.
    """
    monkeypatch.setattr(worker_module, "LOG_LIMIT_BYTES", 1 << 20)
    worker = writing(tmp_path, f"{words} >&2")
    ends = time.monotonic() + 30.0
    while b"the log ends here" not in worker.log.read_bytes()[-100:] and time.monotonic() < ends:
        time.sleep(0.05)
    with pytest.raises(WorkloadError) as caught:
        worker.await_hello(limit_s=30.0)
    worker.kill()
    assert least < worker.log.stat().st_size < least + 200
    assert caught.value.brief == "docker: it wrote more than 1 MiB to its log during `hello`"
    assert "docker.log" in caught.value.hint


def test_log_that_earlier_restarts_filled_keeps_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All restarts of an arm write to one file, which is no longer than the limit either."""
    monkeypatch.setattr(worker_module, "LOG_LIMIT_BYTES", 2 << 20)
    log = tmp_path / "docker.log"
    log.write_bytes(b"x" * (3 << 20) + b"the last word")
    worker = writing(tmp_path, "echo new >&2; exit 3")
    with pytest.raises(WorkloadError, match="exit code 3") as caught:
        worker.await_hello(limit_s=30.0)
    worker.kill()
    assert caught.value.details == "new"
    content = log.read_bytes()
    assert content.startswith(b"... 2097165 bytes of earlier workers are left out\nxxx")
    assert content.endswith(b"xthe last wordnew\n")


@pytest.mark.parametrize("stream", ["1", "2"], ids=["stdout", "stderr"])
def test_command_that_prints_without_end_is_stopped(
    stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of time alone would let it fill the memory."""
    monkeypatch.setattr(transport, "_OUTPUT_LIMIT_BYTES", 1 << 20)
    command = Command(argv=("sh", "-c", f"cat /dev/zero >&{stream}"))
    with pytest.raises(OutputLimitError) as caught:
        run(LOCAL, command, timeout_s=30.0)
    assert caught.value.brief == "sh -c printed more than 1 MiB on local"


def test_file_that_a_host_sends_without_end_is_cut(tmp_path: Path) -> None:
    """It has the size that it was listed with, or it is not taken; the command is killed."""
    with (tmp_path / "file").open("wb") as file:
        sink = copies._LimitedSink(file, limit_bytes=1 << 20)
        with pytest.raises(OSError, match="sent more than"):
            run(LOCAL, Command(argv=("cat", "/dev/zero")), sink=sink, timeout_s=30.0)
    assert (tmp_path / "file").stat().st_size <= 1 << 20


@pytest.mark.parametrize(
    ("budget_s", "remaining_s", "limit_s"),
    [(5, 5, 60), (90, 80, 80), (600, 600, 300), (600, -1, 60), (40_000, 40_000, 4000)],
)
def test_wait_for_a_beginning_keeps_to_the_budget(
    budget_s: float, remaining_s: float, limit_s: float
) -> None:
    """A minute at least; a step that a large budget was given for still fits."""
    assert begin_limit_s(budget_s, remaining_s=remaining_s) == limit_s


# As an engine does: what it starts does not die with its client.
ESCAPES = 'setsid sh -c \'echo $$ >"$0.new"; mv "$0.new" "$0"; exec sleep 300\' "$1" & wait'


def is_alive(number: int) -> bool:
    """Say whether a process runs; one that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def test_what_the_user_kills_in_preparation_does_not_go_on_inside(tmp_path: Path) -> None:
    """A second Ctrl-C kills all that is started after it, but not what cleans up."""
    interruption, started = Interruption(), tmp_path / "started"

    def insist() -> None:
        ends = time.monotonic() + 60.0
        while not started.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        interruption.request()
        interruption.request()

    user = threading.Thread(target=insist)
    user.start()
    command = Command(argv=("sh", "-c", ESCAPES, "sh", str(started)))
    isolation = Isolation(
        run_id=f"prepare-{tmp_path.name}", arm="vm", reference="", uid=os.getuid(), gid=os.getgid()
    )
    where = environment("vm")
    result = run_inside(
        InterruptibleTransport(LOCAL, interruption),
        command,
        where=where,
        isolation=isolation,
        timeout_s=60.0,
    )
    user.join()
    number = int(started.read_text())
    was_alive = is_alive(number)
    where.sweep(LOCAL, isolation.run_id)
    assert result.exit_code == 137
    assert not was_alive


def not_ended() -> None:
    """Fail as a sweep does."""
    raise StillRunningError("cannot confirm the end", details="busy")


def test_failed_sweep_does_not_hide_what_stopped_a_command() -> None:
    """A timeout is told beside what goes on; an interruption stays one."""
    sleeping = Command(argv=("sleep", "60"))
    with pytest.raises(StillRunningError) as caught:
        run_wrapped(LOCAL, sleeping, end=not_ended, timeout_s=0.2)
    assert caught.value.details == "sleep 60 did not end within 0.2 s on local; busy"
    with pytest.raises(UnusableError, match="cannot start 'true") as refused:
        run_wrapped(LOCAL, Command(argv=("true", "\0")), end=not_ended, timeout_s=1.0)
    assert not isinstance(refused.value, StillRunningError)
