"""Each page about a benchmark follows from the raw data that is kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import allocations_page
import building
import causes
import distribution
import estimator
import explanations
import false_positives
import fanout
import faults_page
import felt
import first_run
import live
import operators
import overhead
import power
import profile_readers
import pytest
import rights
import same_cpu
import stabilising
import steps
import turn_length

import precision
import report
import simulation
from bookkeeping import DOCS, RESULTS, Places
from envcompare.stats.verdicts import verdict

WRITERS: dict[str, Callable[[Places], object]] = {
    "allocations": allocations_page.write_page,
    "building": building.write_page,
    "causes": causes.write_page,
    "distribution": distribution.write_page,
    "estimator": estimator.write_page,
    "explanations": explanations.write_page,
    "faults": faults_page.write_page,
    "false-positives": false_positives.write_page,
    "fanout": fanout.write_page,
    "felt": felt.write_page,
    "first-run": first_run.write_page,
    "live": live.write_page,
    "operators": operators.write_page,
    "overhead": overhead.write_page,
    "power": power.write_page,
    "precision": precision.write_page,
    "profile-readers": profile_readers.write_page,
    "report": report.write_page,
    "rights": rights.write_page,
    "same-cpu": same_cpu.write_page,
    "simulation": simulation.write_page,
    "stabilising": stabilising.write_page,
    "steps": steps.write_page,
    "turn-length": turn_length.write_page,
}


def test_every_page_has_a_writer_here() -> None:
    """A further page cannot be forgotten."""
    assert {path.stem for path in DOCS.glob("*.md")} == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_page_is_the_one_that_the_kept_data_gives(tmp_path: Path, name: str) -> None:
    """A figure on a page is one that was measured, and its sentences are those of today."""
    places = Places.below(tmp_path)
    shutil.copytree(RESULTS, places.results)
    WRITERS[name](places)
    written, published = (folder / f"{name}.md" for folder in (places.docs, DOCS))
    assert written.read_text(encoding="utf-8") == published.read_text(encoding="utf-8")


def test_first_runs_are_those_of_the_demo() -> None:
    """The benchmark says what `script/demo` shows; the script adds a title."""
    said = (DOCS.parents[1] / "script" / "demo").read_text(encoding="utf-8")
    command = said.partition("exec envcompare run ")[2].replace("\\\n", " ").split()
    assert set(first_run.DEMO) <= set(command)
    assert {"--hosts", "lab-h1", "--ssh-config", ".lab/ssh_config"} <= set(command)


def test_a_fault_of_an_allocation_is_told_until_a_later_trial_survives(tmp_path: Path) -> None:
    """The raw data keep both."""
    places = Places.below(tmp_path)
    fault = allocations_page.Record(
        name="cancelled", says="job cancelled", seed=7, nodes=2, at_s=3.5,
        doing="queued", exit_code=3, kept=0, left=1, is_finished=False,
        problem="left behind: job 12", conditions={},
    )  # fmt: skip
    allocations_page.append_record(places, fault)
    page = allocations_page.write_page(places)
    assert "| job cancelled | 1 | 0 | 1 | 0 | 0 (0) |" in page
    assert "- job cancelled, seed 7: left behind: job 12" in page
    broken = replace(fault, name="time-limit", says="time limit", is_finished=None)
    allocations_page.append_record(places, broken)
    assert "| time limit | 1 | 0 | 1 | 0 |" in allocations_page.write_page(places)
    survived = replace(fault, left=0, is_finished=True, problem="")
    allocations_page.append_record(places, survived)
    page = allocations_page.write_page(places)
    assert "| waiting for its nodes | 1 | 1 | 3.5 to 3.5 | 3 |" in page
    assert "1 earlier trial was not survived; a later one stands in the table." in page
    assert allocations_page.read_records(places) == (fault, broken, survived)


def test_a_fault_of_an_allocation_that_hit_nothing_does_not_count(tmp_path: Path) -> None:
    """The run was over before: that it is whole proves nothing."""
    places = Places.below(tmp_path)
    hit = allocations_page.Record(
        name="client-killed", says="client killed", seed=0, nodes=1, at_s=3.5,
        doing="measuring", exit_code=137, kept=5, left=0, is_finished=True, problem="",
        conditions={},
    )  # fmt: skip
    allocations_page.append_record(places, hit)
    allocations_page.append_record(places, replace(hit, seed=1, doing=allocations_page.OVER))
    page = allocations_page.write_page(places)
    assert "| client killed | 1 | 1 | 0, not checked before `--resume` | 1 |" in page
    assert "1 further fault hit nothing: the run was over by then." in page


def test_trials_that_stand_in_no_table_are_told_by_what_became_of_them() -> None:
    """One that was survived and inflicted again is not one that was not."""
    first = faults_page.Record(
        name="killed", says="killed", seed=1, number=0, problem="", lost=0, left=0, next_s=1.0,
        conditions={"commit": "0123456789", "is_dirty": False},
    )  # fmt: skip
    dirty = {"commit": "abcdef0123", "is_dirty": True}
    second = replace(first, problem="left behind", conditions=dirty)
    third = replace(first, problem="it hung")
    commits = "`abcdef0` with uncommitted changes, `0123456`"
    assert faults_page.tell_repeats([first, second, third, replace(first)]) == [
        f"2 earlier trials were not survived (commits {commits}); later ones stand in the table.",
        "",
        "1 earlier trial was survived (commit `0123456`); a later one stands in the table.",
        "",
    ]
    assert faults_page.tell_repeats([first]) == []


def test_the_readme_tells_how_many_first_runs_decided() -> None:
    """As the page that the runs are counted on."""
    page = (
        Path(first_run.__file__).resolve().parents[1] / "docs" / "benchmarks" / "first-run.md"
    ).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:up to|above) 2 \| (\d+) \| (\d+) \|", page, re.MULTILINE)
    runs, decided = (sum(int(row[place]) for row in rows) for place in (0, 1))
    readme = " ".join((DOCS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"all were decided in [{decided} of {runs} such runs](docs/benchmarks/first-run.md)"
        in readme
    )


def test_the_readme_tells_how_many_equal_containers_were_equivalent() -> None:
    """Of the runs with the present design."""
    trials = live._read(Places(), "trial-*.json.gz")
    found = [one for one in live._found_in_turn(trials) if not live._is_earlier(trials[one.run])]
    outcomes = [verdict(one.printed.low, one.printed.high, margin=live.MARGIN) for one in found]
    text = " ".join((DOCS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    equal = outcomes.count("equivalent")
    assert f"Of the last {len(found)}, {equal} ended *equivalent*" in text
