"""What the method section says of the rules that ended a cell."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import CELL, blocks, design, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import OwnWaiting, RunComparison
from envcompare.report.wording.methodwords import (
    guard_cautions,
    level_sentence,
    method_rules,
    replication_sentence,
)
from envcompare.run_folder import RUN_IN_S
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder
from tests.data.report.builders import changed

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def told(run: RunComparison) -> str:
    """Return the rule on stopping."""
    return dict(method_rules(run))["End of a cell"]


@pytest.mark.parametrize(("least", "looks"), [(2, "2, 4, 8"), (4, "4, 8, 16"), (6, "6, 8, 16")])
def test_looks_are_told_from_the_first_on(least: int, looks: str) -> None:
    """The least number of restarts, then doublings."""
    text = told(changed(EXAMPLE, min_restarts=least))
    assert f"checked after {looks} … restarts and at the end" in text


def test_rounds_that_were_held_on_one_cpu_are_told(tmp_path: Path) -> None:
    """One in which the arms had different ones, or moved, is none of them."""
    folder = RunFolder.create(tmp_path, run_record(design=design()))
    measured = list(blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}))
    cpus = {0: 0, 1: 0, 2: 1}
    for sample in measured:
        cpu = cpus.get(sample.round, 1 if sample.arm == "docker" else 0)
        held = msgspec.structs.replace(sample, cpu=cpu, is_held=sample.round > 0)
        folder.append_sample(held)
    folder.close()
    (cell,) = (run := compare_run(folder)).cells
    held = 2 * cell.generations
    assert cell.held_rounds == held < cell.rounds
    text = dict(method_rules(run))["CPU"]
    assert text.startswith(f"in {held} of {cell.rounds} rounds of cnn all arms ran on one CPU")
    assert "CPU" not in dict(method_rules(EXAMPLE))


@pytest.mark.parametrize(("noted", "expected"), [((0.0, 0.05), "50.0 ms"), ((0.05, 0.2), "200 ms")])
def test_untimed_steps_at_the_start_of_turns_are_named(
    tmp_path: Path, noted: tuple[float, ...], expected: str
) -> None:
    """Those of the last calibration, as the rounds before it do not count."""
    folder = RunFolder.create(tmp_path, run_record(design=design()))
    for seconds in noted:
        at = {"t": 1.0, "host": "local", "cell": CELL, "values": {RUN_IN_S: seconds}}
        folder.append_event(Event(what="calibrated", **at))
    folder.append_event(Event(what="cell-started", t=2.0, host="local", cell=CELL))  # resumed
    for sample in blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}):
        folder.append_sample(sample)
    folder.close()
    text = dict(method_rules(compare_run(folder)))["Untimed steps"]
    assert text.startswith(f"cnn: each turn began with about {expected} of them")
    assert "Untimed steps" not in dict(method_rules(EXAMPLE))


def test_first_look_at_a_command_is_told_in_rounds() -> None:
    """A plain command has no restarts."""
    cells = tuple(
        msgspec.structs.replace(cell, processes=30, is_program=True) for cell in EXAMPLE.cells
    )
    text = told(changed(EXAMPLE, cells=cells, min_restarts=4))
    assert "after each round, from 8 rounds on" in text
    assert "restarts and at the end" not in text


def of_units(**changes: object) -> RunComparison:
    """Return the example with each interval made otherwise."""
    found = tuple(
        msgspec.structs.replace(
            comparison, primary=msgspec.structs.replace(comparison.primary, **changes)
        )
        for comparison in EXAMPLE.comparisons
        if comparison.primary is not None
    )
    return msgspec.structs.replace(EXAMPLE, comparisons=found)


def test_rounds_and_restarts_are_named() -> None:
    """A reader learns what the intervals are made of, and never that it is steps."""
    text = replication_sentence(of_units(unit="round"))
    assert text == "Intervals come from 32 to 48 rounds a cell in 4 to 6 restarts."


def test_rounds_and_restarts_of_what_has_no_interval_are_not_counted() -> None:
    """One restart is none that an interval comes from."""
    run = of_units(unit="round")
    first, *others = run.comparisons
    assert first.primary is not None
    once = msgspec.structs.replace(first.primary, low=None, high=None, restarts=1, rounds=2)
    changed = msgspec.structs.replace(first, primary=once)
    text = replication_sentence(msgspec.structs.replace(run, comparisons=(changed, *others)))
    assert "from 2 " not in text
    assert "in 1 " not in text


def test_nothing_is_said_of_intervals_where_there_are_none() -> None:
    """One restart has no spread, and no level."""
    run = of_units(low=None, high=None)
    assert replication_sentence(run) == "There is no interval: too little was measured for one."
    assert level_sentence(run) == ""


def test_waiting_that_an_equivalent_arm_may_have_is_a_caution() -> None:
    """The verdict leaves it out; within the margin it says nothing."""
    for high, is_said in ((0.3, True), (0.01, False)):
        waiting = OwnWaiting(share=0.0, low=-high, high=high, is_counted=False)
        comparisons = tuple(
            msgspec.structs.replace(comparison, outcome="equivalent", own_waiting=waiting)
            for comparison in EXAMPLE.comparisons
            if comparison.arm == "docker"
        )
        run = msgspec.structs.replace(EXAMPLE, comparisons=comparisons)
        text = " ".join(guard_cautions(run))
        said = "docker: up to 30.0 % more waiting for a CPU cannot be excluded"
        assert (said in text) == is_said
