"""`run --sessions N`: a run that is measured in several calls, as on several days."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from builders import CELL, design, run_record
from commandline import envcompare
from measuredruns import one_cell, run_folder
from runs import STEPS_ALONE
from summaries import markdown

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.cli import running
from envcompare.cli.planning import planned
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError
from envcompare.run_folder import (
    SESSION,
    measured_sessions,
    next_session,
    since_session,
)
from envcompare.run_folder.records import Event, EventKind
from envcompare.run_folder.results import RunFolder

DAY_S = 86_400.0
ADDS = """
class Adds:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        return float(sum(i * i for i in range(5000)) % 97)
"""


def session(number: int, *, day: int, is_measured: bool = True, ends: bool = True) -> list[Event]:
    """Return the events of a session."""
    what: EventKind = "run-started" if number == 1 else "run-resumed"
    events = [Event(t=day * DAY_S, what=what, values={SESSION: number})]
    if is_measured:
        events.append(Event(t=day * DAY_S + 1, what="cell-ended", cell=CELL, state="ok"))
    if ends:
        events.append(Event(t=day * DAY_S + 2, what="run-ended"))
    return events


@pytest.mark.parametrize(
    ("events", "number"),
    [
        ([], 1),
        (session(1, day=1), 2),
        (session(1, day=1, ends=False), 1),
        (session(1, day=1, is_measured=False), 1),
        ([*session(1, day=1), *session(2, day=2, ends=False)], 2),
        ([*session(1, day=1, ends=False), *session(1, day=2)], 2),
    ],
)
def test_a_session_that_was_broken_off_is_gone_on_with(events: list[Event], number: int) -> None:
    """Or one that measured nothing, since a host was not to be had."""
    assert next_session(events) == number


def test_the_events_of_a_session_are_those_of_all_its_parts() -> None:
    """An interruption begins no session of its own."""
    first, broken, rest = session(1, day=1), session(2, day=2, ends=False), session(2, day=3)
    assert since_session([*first, *broken, *rest]) == [*broken, *rest]
    assert measured_sessions([*first, *broken, *rest]) == {1: DAY_S, 2: 2 * DAY_S}
    unnumbered = [Event(t=1.0, what="run-started"), Event(t=2.0, what="run-ended")]
    assert since_session(unnumbered) == unnumbered


def test_each_session_has_its_part_of_the_budget_and_of_the_restarts() -> None:
    """Restarts are counted over the run, and each session has one at least."""
    flags = Settings(budget=300.0, restarts=4, rounds=10, sessions=3)
    _, plan, _ = planned(flags, Settings(), accept_many=False)
    parts = [plan.in_session(number).design for number in (1, 2, 3)]
    assert [part.budget_s for part in parts] == [100.0] * 3
    assert [part.restarts for part in parts] == [2, 3, 4]
    _, plan, _ = planned(Settings(sessions=7), Settings(), accept_many=False)
    assert [plan.in_session(number).design.min_restarts for number in range(1, 8)] == [*range(1, 8)]


@pytest.mark.parametrize(
    ("flags", "brief"),
    [
        (
            Settings(sessions=5, restarts=4, rounds=10),
            "--sessions 5 needs as many restarts, and --restarts plans 4",
        ),
        (Settings(sessions=0), "--sessions 0 is out of range"),
    ],
)
def test_more_sessions_than_restarts_are_refused(flags: Settings, brief: str) -> None:
    """A session without a restart would measure nothing."""
    with pytest.raises(ConfigError) as refused:
        planned(flags, Settings(), accept_many=False)
    assert refused.value.brief == brief


def comparison_of(out: Path, *sessions: list[Event], planned: int) -> RunComparison:
    """Return the analysis of a run that was measured in these sessions."""
    made = one_cell("a", 1.1, design={"sessions": planned})
    path = run_folder(out, made)
    kept = (path / "events.jsonl").read_text().splitlines(keepends=True)
    begun = [event for events in sessions for event in events]
    folder = RunFolder.open(path)
    (path / "events.jsonl").write_text("")
    for event in begun:
        folder.append_event(event)
    folder.close()
    with (path / "events.jsonl").open("a") as stream:
        stream.writelines(kept[1:])
    return compare_run(folder)


def test_the_report_says_over_how_many_sessions_and_days(tmp_path: Path) -> None:
    """Where the answer stands, and how many are left."""
    run = comparison_of(
        tmp_path, session(1, day=1), session(2, day=1), session(3, day=4), planned=3
    )
    assert (run.course.sessions, run.course.days) == (3, 2)
    assert run.settings.planned_sessions == 3
    assert "On this host, in 3 sessions on 2 days, docker is 9.9 % slower" in markdown(run)
    part = comparison_of(tmp_path / "part", session(1, day=1), planned=3)
    assert "On this host, in 1 of 3 planned sessions on 1 day, docker is" in markdown(part)


def test_a_run_of_one_session_is_said_to_be_one_run() -> None:
    """As every run was before."""
    assert design().sessions == 1


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a workload that imports nothing."""
    folder = tmp_path_factory.mktemp("sessions")
    (folder / "adds.py").write_text(ADDS)
    return folder


def test_the_same_command_measures_the_next_session_until_there_is_none(place: Path) -> None:
    """Each call adds restarts to one run; other settings and a fourth call measure nothing."""
    words = (
        *("run", "--envs", "vm@host", "--host-python", sys.executable, "--wait", "300"),
        *("--workload", "adds.py:Adds", *STEPS_ALONE, "--sessions", "2", "--out", "out"),
    )
    first = envcompare(*words, "--budget", "8", cwd=place)
    assert first.returncode == 0, first.stderr
    assert "session 1 of 2, 1 cell with 4 s each" in first.stderr
    assert "next: session 2 of 2, with the same command" in first.stderr
    assert f"0 3 * * * cd {place} && " in first.stderr
    assert f"--working-directory={place} " in first.stderr
    other = envcompare(*words, "--budget", "10", cwd=place)
    assert other.returncode == 2
    assert "has sessions left to measure, with other settings" in other.stderr
    assert "budget: 8.0 there, 10.0 now" in other.stderr
    (run,) = (place / "out").iterdir()
    restarts = [restarts_of(run)]
    second = envcompare(*words, "--budget", "8", cwd=place)
    assert second.returncode == 0, second.stderr
    assert "session 2 of 2" in second.stderr
    assert "all 2 sessions of" in second.stderr
    restarts.append(restarts_of(run))
    assert restarts[0] < restarts[1]  # the first are kept, and others came
    before = (run / "events.jsonl").read_bytes()
    third = envcompare(*words, "--budget", "8", cwd=place)
    assert (third.returncode, third.stderr) == (0, "")
    assert "all 2 sessions of" in third.stdout
    events = envcompare(*words, "--budget", "8", "--events", "json", cwd=place)
    assert (events.returncode, events.stdout) == (0, "")
    assert "all 2 sessions of" in events.stderr
    assert (run / "events.jsonl").read_bytes() == before
    assert list((place / "out").iterdir()) == [run]


def test_no_command_with_a_masked_secret_is_printed_to_repeat(tmp_path: Path) -> None:
    """It would not run. A folder with a run that cannot be read is passed over."""
    (tmp_path / "adds.py").write_text(ADDS)
    RunFolder.create(tmp_path / "out", msgspec.structs.replace(run_record(), configuration="= 1"))
    done = envcompare(
        *("run", "--envs", "vm@host", "--host-python", sys.executable, "--wait", "300"),
        *("--workload", "adds.py:Adds", *STEPS_ALONE, "--sessions", "2", "--out", "out"),
        *("--budget", "8", "--title", "api_key=abcdefgh12345678"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "next: session 2 of 2, with the same command" in done.stderr
    assert "with cron:" not in done.stderr


def test_command_to_repeat_is_written_as_cron_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end at a %, and a folder may have a space in its name."""
    (tmp_path / "at 50 %").mkdir()
    monkeypatch.chdir(tmp_path / "at 50 %")
    words = ("envcompare", "run", "--title", "100 % more")
    folder = RunFolder.create(tmp_path / "out", run_record(command_line=words))
    said: list[str] = []
    job: Any = SimpleNamespace(
        folder=folder, display=SimpleNamespace(say=said.append), session=None
    )
    running._tell_sessions(job, 2)
    (line,) = (text for text in said if "with cron:" in text)
    assert rf" cd '{tmp_path}/at 50 \%' && " in line
    assert line.endswith(r" run --title '100 \% more'")


def test_command_to_repeat_starts_with_what_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `python -m envcompare` the first argument is a module, which is no program."""
    folder = RunFolder.create(tmp_path / "out", run_record(command_line=("envcompare", "run")))
    program = tmp_path / "__main__.py"
    program.touch(mode=0o644)
    monkeypatch.setattr(sys, "argv", [str(program), "run"])
    said: list[str] = []
    job: Any = SimpleNamespace(
        folder=folder, display=SimpleNamespace(say=said.append), session=None
    )
    running._tell_sessions(job, 2)
    assert said[-1].endswith(f" {sys.executable} -m envcompare run")
    program.chmod(0o755)
    running._tell_sessions(job, 2)
    assert said[-1].endswith(f" {program} run")


def restarts_of(run: Path) -> set[int]:
    """Return the numbers of the restarts that a run holds blocks of."""
    lines = (run / "samples.jsonl").read_text().splitlines()
    return {line["restart"] for line in map(json.loads, lines) if line["kind"] == "block"}
