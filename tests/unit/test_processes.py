"""Plain commands measured with real processes: what is timed, what is kept, what counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benches import ARMS, Measured
from commands import IN_DOCKER, measured, prepared, runs_of
from summaries import markdown

from envcompare.errors import InterruptedRunError
from envcompare.fingerprint.evidence import entries, entry_name
from envcompare.measure import Values, derive_seed, shuffled, startup
from envcompare.report.page import render
from envcompare.run_folder.records import ProcessRun
from envcompare.stats.intervals import MIN_PROCESSES
from envcompare.stats.metrics import Readings

# Ends when an interval is there and not when time is over, however much else the machine does.
SETTLED: dict[str, Any] = {"budget_s": 60.0, "margin": 0.95, "target": 0.9}


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
        picked = {(one.name, one.arm): one for one in slow_docker.comparison.views.picked}
        assert picked["loss", "vm"].median == 2.5
        assert picked["loss", "docker"].log_ratio == 0
        assert picked["rate", "docker"].median == 7
        assert ("rate", "vm") not in picked

    def test_measure_that_never_matches_is_said(self, slow_docker: Measured) -> None:
        """A typing error in an expression must not look like a missing difference."""
        assert "the measure none found no number in the output of any arm" in slow_docker.cautions
        assert "the measure rate found no number in the output of vm" in slow_docker.cautions

    def test_first_process_of_an_arm_tells_what_it_loads(self, slow_docker: Measured) -> None:
        """The programs it runs and their libraries, beside what the launcher found."""
        (found,) = (one for one in slow_docker.folder.read_fingerprints() if one.arm == "docker")
        programs, libraries = (
            {entry_name(entry) for entry in entries(found.facts[key])}
            for key in ("programs", "loaded_libraries")
        )
        assert found.taken == "step"
        assert "sleep" in programs
        assert "libc.so.6" in libraries
        assert found.facts["packages"]

    def test_report_speaks_of_processes(self, slow_docker: Measured) -> None:
        """Words, table of numbers and method are those of a command."""
        page = render(slow_docker.comparison)
        for text in (">Process<", "Numbers the commands printed", "timed from their start inside"):
            assert text in page
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
    found = measured(tmp_path, "python", "program.py", *words, measures=measures, **SETTLED)
    assert found.comparison.course.failures == ()
    assert {one.median for one in found.comparison.views.picked} == {6.0}


def test_first_round_counts_where_the_budget_holds_few_more(tmp_path: Path) -> None:
    """A long command cannot give one away; it is said."""
    found = measured(tmp_path, "sleep", "0.5", budget_s=4.0)
    assert "the first round counts" in found.cautions
    assert not any(run.warmup for run in runs_of(found))


def test_flood_of_output_is_searched_and_not_kept(tmp_path: Path) -> None:
    """The log of each process is bounded, its end is kept, and the number is found in the flood."""
    code = "print('loss: 3'); [print('x' * 999) for _ in range(4000)]; print('the end')"
    measures = (("loss", r"loss: (\d+)"),)
    found = measured(tmp_path, "python", "-c", code, measures=measures, **SETTLED)
    logs = (tmp_path / "vm.log").read_text()
    count = sum(run.arm == "vm" for run in runs_of(found))
    assert logs.count("bytes left out") == logs.count("the end") == count
    assert len(logs) < 100_000 * count
    assert all(run.values == {"loss": 3.0} for run in runs_of(found))


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
    before: dict[str, Values] = {arm: {"code": "another"} for arm in ARMS}
    found = measured(tmp_path, "true", before=before)
    changed = "vm changed since the run began: the code of the workload was another, now "
    assert changed in found.failures()


def test_memory_of_a_large_process_is_its_own(tmp_path: Path) -> None:
    """The peak is that of the program, not of what launched it."""
    code = "x = bytearray(100_000_000)"
    found = measured(tmp_path, "python", "-c", code, **SETTLED)
    peaks = [one.max_rss_bytes for one in found.comparison.views.memory]
    assert len(peaks) == 3
    assert all(peak is not None and 100_000_000 < peak < 200_000_000 for peak in peaks)


def test_peak_below_that_of_the_launcher_is_not_measured(tmp_path: Path) -> None:
    """The kernel hands the launcher's peak on to what it executes."""
    found = measured(tmp_path, "true", budget_s=1.0)
    assert {run.max_rss_bytes for run in runs_of(found)} == {None}


def test_each_process_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks of a thousand rounds must not take more and more of the budget."""
    added: list[ProcessRun] = []

    class Counting(Readings):
        def add(self, sample: ProcessRun) -> None:
            added.append(sample)
            super().add(sample)

    monkeypatch.setattr(startup, "Readings", Counting)
    found = measured(tmp_path, "true", **SETTLED)
    runs = [run for run in runs_of(found) if not run.warmup]
    assert len(runs) >= 3 * MIN_PROCESSES
    assert [run for run in added if not run.warmup] == runs
