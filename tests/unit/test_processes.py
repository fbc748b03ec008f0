"""Plain commands measured with real processes: what is timed, what is kept, what is survived."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benches import Kept, Measured, bench

from envcompare.analysis.compare import compare_run
from envcompare.command import Command
from envcompare.errors import InterruptedRunError
from envcompare.measure.bench import Bench
from envcompare.measure.crew import Roster
from envcompare.measure.processes import ProcessPass
from envcompare.measure.worker import Worker
from envcompare.plan import derive_seed, shuffled
from envcompare.programs import Program
from envcompare.records import ProcessRun
from envcompare.report.page import render
from envcompare.report.summary import markdown
from envcompare.transport.local import LOCAL

LAUNCHER = Path(__file__).parents[2] / "workloads" / "measuring.py"
IN_DOCKER = '[ "$ENVCOMPARE_ENVIRONMENT" = docker ]'


def launch(path: Path, arm: str) -> Worker:
    """Start the launcher of an arm, a plain process that knows its arm by a variable."""
    environment = (("ENVCOMPARE_ENVIRONMENT", arm),)
    command = Command(argv=(sys.executable, str(LAUNCHER)), env=environment)
    return Worker(
        lambda: LOCAL.spawn(command),
        arm=arm,
        log=path / f"{arm}.log",
        log_name=f"{arm}.log",
        explain=lambda _code, _text: None,
    )


def prepared(folder: Path, *argv: str, **changes: Any) -> tuple[Bench, ProcessPass]:
    """Make a cell of a command ready."""
    fields = {name: changes.pop(name) for name in ("measures", "timeout_s") if name in changes}
    runs, codes = changes.pop("runs", []), changes.pop("codes", {})
    made = bench(folder / "run", "command", **{"budget_s": 60.0, **changes})
    made = replace(made, launch=lambda arm, _variables=(): launch(folder, arm))
    program = Program(argv=argv, cwd=str(folder), **fields)
    return made, ProcessPass(made, Roster(made), program, runs, codes)


def concluded(made: Bench) -> Measured:
    """Analyse what a pass left."""
    kept = made.recorder
    assert isinstance(kept, Kept)
    kept.folder.close()
    return Measured(
        comparison=compare_run(kept.folder), events=tuple(kept.events), folder=kept.folder
    )


def measured(folder: Path, *argv: str, **changes: Any) -> Measured:
    """Measure a command to the end."""
    made, processes = prepared(folder, *argv, **changes)
    processes.measure()
    return concluded(made)


def runs_of(found: Measured) -> list[ProcessRun]:
    """Return the processes that were kept."""
    return [one for one in found.folder.read_samples().samples if isinstance(one, ProcessRun)]


@pytest.fixture(scope="module")
def slow_docker(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Return a command that sleeps four times as long in docker, and prints two numbers."""
    script = (
        f"{IN_DOCKER} && sleep 0.2 && echo rate=7\r || sleep 0.05; echo loss=9; echo loss=2.5 >&2"
    )
    measures = (("loss", "loss=([0-9.]+)"), ("rate", "rate=([0-9]+)"), ("none", "none=(.*)"))
    folder = tmp_path_factory.mktemp("slow")
    return measured(folder, "sh", "-c", script, measures=measures, margin=0.05, target=0.5)


class TestWholeMeasurement:
    """What comes of a command that runs well."""

    def test_slower_arm_is_found_by_wall_time(self, slow_docker: Measured) -> None:
        """The verdict rests on rounds of whole processes, and stops by the same rules."""
        found = slow_docker.docker
        assert (found.outcome, found.primary and found.primary.metric) == ("slower", "wall")
        assert found.primary is not None
        assert (found.primary.unit, found.primary.rounds) == ("process", found.primary.restarts)
        assert slow_docker.comparison.cells[0].stopped_by in {"target", "decided"}

    def test_every_round_starts_each_arm_once_in_seeded_order(self, slow_docker: Measured) -> None:
        """The order is that of the plan; no two processes overlap."""
        runs = runs_of(slow_docker)
        for number in {run.number for run in runs}:
            order = [run.arm for run in runs if run.number == number]
            seed = derive_seed(7, "process", runs[0].cell, number)
            assert tuple(order) == shuffled(("vm", "docker", "vm~control"), seed)
        ends = [run.t0_ns + run.wall_ns for run in runs]
        assert all(run.t0_ns >= end for run, end in zip(runs[1:], ends, strict=False))

    def test_first_round_is_a_warm_up(self, slow_docker: Measured) -> None:
        """Its processes are kept and left out."""
        runs = runs_of(slow_docker)
        assert {run.number for run in runs if run.warmup} == {0}
        counted = sum(not run.warmup for run in runs)
        assert slow_docker.comparison.cells[0].processes == counted

    def test_real_time_holds_the_launcher_as_well(self, slow_docker: Measured) -> None:
        """Engine start is in `real` alone."""
        assert all(run.real_ns > run.wall_ns for run in runs_of(slow_docker))
        metrics = {one.metric for one in slow_docker.docker.secondary}
        assert {"real", "cpu"} <= metrics
        assert "net" not in metrics

    def test_last_number_of_either_stream_is_picked(self, slow_docker: Measured) -> None:
        """A number printed in one arm alone is shown there; no verdict is made of it."""
        picked = {(one.name, one.arm): one for one in slow_docker.comparison.picked}
        assert picked["loss", "vm"].median == 2.5
        assert picked["loss", "docker"].log_ratio == 0
        assert picked["rate", "docker"].median == 7
        assert ("rate", "vm") not in picked

    def test_measure_that_never_matches_is_said(self, slow_docker: Measured) -> None:
        """A typing error in an expression must not look like a missing difference."""
        assert "the measure none found no number in the output of any arm" in slow_docker.cautions
        assert "the measure rate found no number in the output of vm" in slow_docker.cautions

    def test_report_speaks_of_processes(self, slow_docker: Measured) -> None:
        """Words, table of numbers and method are those of a command."""
        page = render(slow_docker.comparison)
        for text in ("Process time", "Numbers the commands printed", "timed as a whole process"):
            assert text in page
        assert "turns in short blocks" not in page
        assert "process, vm → this" in markdown(slow_docker.comparison)


def test_command_gets_an_empty_input_its_folder_and_the_interpreter(tmp_path: Path) -> None:
    """`python` is the arm's own, relative files are found, and nothing can be typed."""
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        f"assert os.path.samefile(sys.executable, {sys.executable!r}), sys.executable\n"
        "assert sys.stdin.read() == ''\n"
        "print('words=%d' % len(sys.argv))\n"
    )
    words = ("", " two  words ", "$HOME `id`", 'it\'s "quoted"', "line\nbreak")
    measures = (("words", r"words=(\d+)"),)
    found = measured(tmp_path, "python", "program.py", *words, measures=measures, budget_s=2.0)
    assert found.comparison.failures == ()
    assert {one.median for one in found.comparison.picked} == {6.0}


@pytest.mark.parametrize(
    ("action", "phase", "code", "text"),
    [
        ("echo it went wrong; exit 3", "step", 3, "ended with exit code 3"),
        ("kill -9 $$", "process", 137, "killed by SIGKILL"),
    ],
)
def test_process_that_fails_takes_its_arm_alone(
    tmp_path: Path, *, action: str, phase: str, code: int, text: str
) -> None:
    """The phase, the exit code and the last lines are kept; vm is measured on."""
    script = f"sleep 0.02; {IN_DOCKER} || exit 0; {action}"
    found = measured(tmp_path, "sh", "-c", script, budget_s=4.0)
    row = found.comparison.failures[0]
    assert (row.arm, row.phase, row.exit_code) == ("docker", phase, code)
    assert text in row.brief
    assert ("it went wrong" in row.details) == (phase == "step")
    assert found.docker.outcome == "failed"
    assert "vm" in {run.arm for run in runs_of(found) if run.status == "ok"}


def test_program_that_is_not_there_is_found_before_anything_runs(tmp_path: Path) -> None:
    """The error names program and code; nothing was measured."""
    found = measured(tmp_path, "no-such-program", "1")
    assert "vm: no-such-program is not found there (exit 127)" in found.failures()
    assert "install it there" in found.failures()
    assert runs_of(found) == []


def test_file_that_is_not_executable_is_named(tmp_path: Path) -> None:
    """126 and 127 have different remedies."""
    (tmp_path / "plain").write_text("text")
    assert "not executable there (exit 126)" in measured(tmp_path, "./plain").failures()


def test_process_beyond_its_own_limit_is_killed_and_fails_its_arm(tmp_path: Path) -> None:
    """A hung process ends with its children, the others go on."""
    script = f"{IN_DOCKER} && sleep 300; exit 0"
    found = measured(tmp_path, "sh", "-c", script, timeout_s=0.5, budget_s=6.0)
    assert "docker: the command did not end within its limit" in found.failures()
    assert found.docker.outcome == "failed"


def test_command_longer_than_the_budget_is_killed_and_named(tmp_path: Path) -> None:
    """No verdict is invented, and the next step is told."""
    made, processes = prepared(tmp_path, "sleep", "300", budget_s=1.5)
    processes.measure()
    found = concluded(made)
    assert "what was left of the budget of 1.5 s" in found.failures()
    assert "raise --budget" in found.failures()
    assert processes.is_timeout
    assert found.docker.primary is None


def test_first_round_counts_where_the_budget_holds_few_more(tmp_path: Path) -> None:
    """A long command cannot give one away; it is said."""
    found = measured(tmp_path, "sleep", "0.5", budget_s=4.0)
    assert "the first round counts" in found.cautions
    assert not any(run.warmup for run in runs_of(found))


def test_processes_left_behind_are_killed_and_said(
    tmp_path: Path, is_gone: Callable[[Path], bool]
) -> None:
    """What a command leaves would disturb the next one."""
    script = "sleep 300 & echo $! > left; exit 0"
    found = measured(tmp_path, "sh", "-c", script, budget_s=1.0)
    assert "leaves processes running" in found.cautions
    assert is_gone(tmp_path / "left")


def test_flood_of_output_is_searched_and_not_kept(tmp_path: Path) -> None:
    """The log of each process is bounded, its end is kept, and the number is found in the flood."""
    code = "print('loss: 3'); [print('x' * 999) for _ in range(20000)]; print('the end')"
    measures = (("loss", r"loss: (\d+)"),)
    found = measured(tmp_path, "python", "-c", code, measures=measures, budget_s=4.0)
    logs = (tmp_path / "vm.log").read_text()
    count = sum(run.arm == "vm" for run in runs_of(found))
    assert logs.count("bytes left out") == logs.count("the end") == count
    assert len(logs) < 100_000 * count
    assert all(run.values == {"loss": 3.0} for run in runs_of(found))


def test_lost_connection_ends_the_program(tmp_path: Path, is_gone: Callable[[Path], bool]) -> None:
    """The end of the launcher's input kills the program and its children."""
    worker = launch(tmp_path, "vm")
    request = {"argv": ["sh", "-c", "echo $$ > pid; sleep 300; true"], "cwd": str(tmp_path)}
    asking = threading.Thread(target=_ask, args=(worker, request), daemon=True)
    asking.start()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    worker._close_stdin()
    assert is_gone(tmp_path / "pid")
    worker.kill()


def _ask(worker: Worker, request: dict[str, object]) -> None:
    fields = {**request, "patterns": {}, "limit_s": 300}
    with pytest.raises(Exception, match="ended during"):
        worker.ask_once("command", fields, kind=dict, limit_s=60)


def test_interrupted_cell_goes_on_with_the_next_round(tmp_path: Path) -> None:
    """What was measured counts, the first new round warms up again."""
    made, processes = prepared(tmp_path, "true", budget_s=2.0)
    made.interruption.request()
    with pytest.raises(InterruptedRunError):
        processes.measure()
    before = [
        ProcessRun(
            cell=made.cell, arm=arm, number=number, order=0, t0_ns=1, wall_ns=2_000_000,
            user_ns=1, sys_ns=1, real_ns=3_000_000, exit_code=0,
        )
        for number in range(5)
        for arm in made.arms
    ]  # fmt: skip
    again = tmp_path / "again"
    again.mkdir()
    found = runs_of(measured(again, "true", margin=0.95, target=0.9, runs=before))
    assert min(run.number for run in found) == 5
    assert {run.number for run in found if run.warmup} == {5}


def test_file_that_changed_during_an_interruption_is_refused(tmp_path: Path) -> None:
    """Two halves of one number must be of one program."""
    codes = {"vm": "another", "docker": "another", "vm~control": "another"}
    found = measured(tmp_path, "true", codes=codes)
    assert "changed since the run was interrupted" in found.failures()


def test_memory_of_a_large_process_is_its_own(tmp_path: Path) -> None:
    """The peak is that of the program, not of what launched it."""
    code = "x = bytearray(200_000_000)"
    found = measured(tmp_path, "python", "-c", code, budget_s=2.0)
    peaks = [one.max_rss_bytes for one in found.comparison.memory]
    assert len(peaks) == 3
    assert all(peak is not None and 200_000_000 < peak < 400_000_000 for peak in peaks)


def test_peak_below_that_of_the_launcher_is_not_measured(tmp_path: Path) -> None:
    """The kernel hands the launcher's peak on to what it executes."""
    found = measured(tmp_path, "true", budget_s=1.0)
    assert {run.max_rss_bytes for run in runs_of(found)} == {None}


@pytest.fixture
def is_gone() -> Callable[[Path], bool]:
    """Give a function that tells whether the process whose number a file holds is gone, 10 s on."""

    def ask(path: Path) -> bool:
        pid, until = int(path.read_text()), time.monotonic() + 10
        while time.monotonic() < until:
            try:
                os.kill(pid, 0)
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                return True
            if state == "Z":
                return True
            time.sleep(0.02)
        return False

    return ask
