"""What failed is gone back to where that is asked for: hosts once, and cells of a resumed run."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from runs import STEPS_ALONE

from envcompare.cli import app
from envcompare.cli.planning import planned
from envcompare.config.settings import Settings
from envcompare.console import Display
from envcompare.errors import TransportError
from envcompare.hosts import HostSession, opening
from envcompare.run_folder import standing
from envcompare.run_folder.records import Event, Failure, event_now
from envcompare.run_folder.results import RunFolder
from envcompare.runner import Job, walk
from envcompare.runner.cellrun import CellRun
from envcompare.runner.walk import _retried_hosts
from envcompare.transport import LOCAL
from envcompare.transport.hosts import HostSpec

WORK = """
import os


class Adds:
    PARAMS = {"n": 1}
    batch = 1

    def __init__(self, n):
        pass

    def setup(self, seed, device):
        if os.environ["ENVCOMPARE_ARM"].endswith("control"):
            raise OSError("it broke")

    def step(self):
        return float(sum(i * i for i in range(5000)) % 97)
"""
SHORT = ("--budget", "1", "--no-quiet-gate", "--profile", "none")
LEFT_OUT = Failure(phase="plan", brief="no data at `sif` in docker: it runs no SIF")
BROKEN = Failure(phase="process", brief="docker: it died")


def run(out: Path, *words: str, command: str = "true", hosts: str = "local,other") -> Result:
    """Measure a plain command as a process of this machine."""
    envs = ("--envs", "vm@host", "--host-python", sys.executable, "--hosts", hosts)
    argv = ["run", *envs, "--command", command, *SHORT, "--out", str(out), *words]
    return CliRunner().invoke(app, argv)


def only_run(out: Path) -> Path:
    """Return the only run folder in a folder."""
    (folder,) = out.iterdir()
    return folder


def run_of_mended_control(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Measure a command that fails in the control, mend it, and return the run."""
    monkeypatch.chdir(folder)
    work = folder / "work"
    work.write_text("#!/bin/sh\n[ -e mended ] || case $ENVCOMPARE_ARM in *control) exit 1; esac\n")
    work.chmod(0o755)
    first = run(folder / "out", command="./work", hosts="local")
    assert first.exit_code == 4, first.output
    (folder / "mended").touch()
    return only_run(folder / "out")


def unreachable_at_first(monkeypatch: pytest.MonkeyPatch, *, times: int) -> Counter[str]:
    """Let the host `other` be unreachable some times; return how often each host was opened."""
    monkeypatch.setattr(opening, "connect", lambda _host, **_: LOCAL)
    opened: Counter[str] = Counter()
    open_session = opening.open_session

    def opening_late(host: HostSpec, *rest: Any) -> HostSession:
        opened[host.label] += 1
        if host.label == "other" and opened["other"] <= times:
            raise TransportError("host 'other' cannot be reached", hint="check its network")
        return open_session(host, *rest)

    monkeypatch.setattr(walk, "open_session", opening_late)
    return opened


@pytest.mark.parametrize(
    ("times", "words", "exit_code", "tries"),
    [(1, ("--retry-failed",), 0, 2), (9, ("--retry-failed",), 3, 2), (1, (), 3, 1)],
    ids=["came late", "never came", "not asked for"],
)
def test_host_that_failed_is_tried_once_more_where_that_is_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    times: int,
    words: tuple[str, ...],
    exit_code: int,
    tries: int,
) -> None:
    """What failed before a host is measured counts no more, and a run comes to its end."""
    opened = unreachable_at_first(monkeypatch, times=times)
    done = run(tmp_path / "out", *words)
    assert done.exit_code == exit_code, done.output
    assert opened == {"local": 1, "other": tries}
    events = RunFolder.open(only_run(tmp_path / "out")).read_events().events
    ends = {event.cell: event.state for event in events if event.what == "cell-ended"}
    assert ends["local/true/default"] == "ok"
    assert (ends.get("other/true/default") == "ok") is (exit_code == 0)


@pytest.mark.parametrize(("failures", "is_tried"), [(1, True), (2, True), (3, False), (4, False)])
def test_host_that_failed_three_times_is_left_out_with_the_reason(
    failures: int, *, is_tried: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each try costs all the others."""
    given = Settings(envs="vm@host", hosts="gpu01", workloads="cnn")
    experiment, plan, hosts = planned(given, Settings(), accept_many=True)
    record = walk.run_record(plan, experiment, command_line=("envcompare", "run"))
    folder = RunFolder.create(tmp_path, record)
    job = Job(folder=folder, plan=plan, experiment=experiment, hosts=hosts, display=Display())
    for _ in range(failures):
        job.note("host-lost", host="gpu01", text="the connection to host 'gpu01' was lost")
    job.note("cell-ended", host="gpu01", cell=plan.cells[0].id, state="unreachable")
    assert [host.label for host in _retried_hosts(job)] == ["gpu01"] * is_tried
    folder.close()
    said = capsys.readouterr().err
    reason = f"gpu01 is not tried again: it failed {failures} times, last: the connection"
    assert (reason in said) is not is_tried


def test_failure_of_a_host_stands_until_it_is_tried_again() -> None:
    """That of another host stands in any case."""
    before = tuple(event_now("host-failed", host=host, failure=BROKEN) for host in ("a", "b"))
    events = (event_now("run-started"), *before, event_now("host-retried", host="a"))
    assert [event.host for event in standing(events) if event.failure] == ["b"]


@pytest.mark.parametrize(
    ("events", "has_failed"),
    [
        ((Event(t=1, what="cell-ended", state="ok"),), False),
        ((Event(t=1, what="arm-failed", arm="docker", failure=BROKEN),), False),
        (
            (
                Event(t=1, what="arm-failed", arm="docker", failure=BROKEN),
                Event(t=2, what="cell-ended", state="ok"),
            ),
            True,
        ),
        (
            (
                Event(t=1, what="cell-failed", failure=BROKEN),
                Event(t=2, what="cell-ended", state="unreachable"),
            ),
            False,
        ),
        (
            (
                Event(t=1, what="arm-failed", arm="docker", failure=LEFT_OUT),
                Event(t=2, what="cell-ended", state="ok"),
            ),
            False,
        ),
    ],
    ids=["well", "interrupted", "an arm", "unreachable", "planned"],
)
def test_cell_has_failed_where_it_ended_with_a_failure(
    events: tuple[Event, ...], *, has_failed: bool
) -> None:
    """An interrupted or unreachable one goes on within its budget."""
    assert walk._has_failed(events) is has_failed


def test_resumed_run_goes_back_to_a_cell_with_its_whole_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed has been mended meanwhile, and the run then ends well."""
    folder = run_of_mended_control(tmp_path, monkeypatch)
    words = ["run", "--resume", str(folder), "--retry-failed"]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("is_resumed", [False, True])
def test_cell_that_ended_is_not_measured_again_with_a_lost_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_resumed: bool
) -> None:
    """Only what the host had not reached is; a failed arm is gone back to once in a resumed run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(WORK)
    started: Counter[str] = Counter()

    def run_cells(job: Job, runs: list[CellRun], *, ended: set[str]) -> None:
        for cell in (each.cell for each in runs):
            started[cell.id] += 1
            job.note("cell-started", host=cell.host, cell=cell.id)
            if cell.id.endswith("n=2") and started[cell.id] == 1:
                raise TransportError("the connection to host 'local' was lost")
            job.note("arm-failed", host=cell.host, cell=cell.id, arm="vm", failure=BROKEN)
            job.end_cell(cell, "ok", "")
            ended.add(cell.id)

    monkeypatch.setattr(walk, "run_cells", run_cells)
    monkeypatch.setattr(walk, "sharing", lambda cells: [(cell,) for cell in cells])
    envs = ("--envs", "vm@host", "--host-python", sys.executable, "--hosts", "local")
    argv = ["run", *envs, "--workload", "work.py:Adds", *SHORT, *STEPS_ALONE, "--out", "out"]
    argv += ["--set", "work-Adds.n=1,2", "--host-patience", "0"]
    first = CliRunner().invoke(app, argv + ["--retry-failed"] * (not is_resumed))
    if is_resumed:
        started.clear()
        argv = ["run", "--resume", str(only_run(tmp_path / "out")), "--retry-failed"]
        first = CliRunner().invoke(app, argv)
    assert sorted(started.values()) == [1, 2], first.output


def test_retry_that_was_interrupted_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cell had ended before."""
    folder = run_of_mended_control(tmp_path, monkeypatch)
    (cell,) = {e.cell for e in RunFolder.open(folder).read_events().events if e.cell}
    added = (
        event_now("run-resumed"),
        event_now("cell-started", host="local", cell=cell),
        event_now("interrupted"),
    )
    with (folder / "events.jsonl").open("ab") as journal:
        journal.writelines(msgspec.json.encode(event) + b"\n" for event in added)
    again = CliRunner().invoke(app, ["run", "--resume", str(folder)])
    assert again.exit_code == 0, again.output
    events = RunFolder.open(folder).read_events().events
    assert [e.state for e in events if e.cell][-1] == "ok"


@pytest.mark.parametrize("has_other", [True, False])
def test_failed_arm_stays_failed_after_an_interruption_past_the_timing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_other: bool
) -> None:
    """Its failure is told again where nothing is measured any more, of other arms or of none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text(WORK)
    envs = ("--envs", "vm@host", "--host-python", sys.executable, "--hosts", "local")
    argv = ["run", *envs, "--workload", "work.py:Adds", *SHORT, *STEPS_ALONE, "--out", "out"]
    argv += ["--set", "work-Adds.n=1,2", "--compare", "parameter=n"] * has_other
    first = CliRunner().invoke(app, argv)
    assert first.exit_code == 4, first.output
    journal = only_run(tmp_path / "out") / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = max(i for i, line in enumerate(lines) if b'"what":"stopped"' in line)
    journal.write_bytes(b"".join(lines[: end + 1]))
    for _ in range(2):
        again = CliRunner().invoke(app, ["run", "--resume", str(journal.parent)])
        assert again.exit_code == 4, again.output
        events = RunFolder.open(journal.parent).read_events().events
        (failed,) = {e.arm for e in standing(events) if e.what == "arm-failed"}
        assert failed.endswith("control")
        assert any(e.what == "arm-ready" for e in standing(events))
