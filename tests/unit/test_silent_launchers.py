"""A launcher of plain commands that never answers: no retry beyond the budget, no false caution."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import concluded, launch, measured, prepared, runs_of

from envcompare.measure import startup as module
from envcompare.measure.worker import Worker
from envcompare.text import Command
from envcompare.transport import LOCAL


def test_launcher_that_hangs_ends_the_cell_with_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is launched once, named, and nothing is said of rounds that were not."""
    monkeypatch.setattr(module, "_GRACE_S", 0.2)
    made, processes = prepared(tmp_path, "true", budget_s=2.0)
    launched: list[str] = []

    def hanging(arm: str, _variables: object = ()) -> Worker:
        launched.append(arm)
        if len(launched) <= len(made.arms):  # these look around
            return launch(tmp_path, arm)
        return Worker(
            lambda: LOCAL.spawn(Command(argv=("sleep", "300"))),
            arm=arm,
            log=tmp_path / f"{arm}.log",
            log_name=f"{arm}.log",
            explain=lambda _code, _text: None,
        )

    processes.context = replace(made, launch=hanging)
    processes.measure()
    found = concluded(made)
    assert len(launched) == len(made.arms) + 1
    assert processes.stopped_by in {"budget", "failure"}
    assert "no answer to `command`" in found.failures()
    assert "the first round counts" not in found.cautions
    assert runs_of(found) == []


def test_expression_that_never_ends_costs_its_own_value_alone(tmp_path: Path) -> None:
    """It is given up for the whole cell; times and other numbers stand.

    The cell ends with its first interval: a budget would measure how busy this machine is.
    """
    measures = (("bad", "((?:a+)+)$b"), ("loss", r"loss=(\d+)"))
    script = "echo loss=3; echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    found = measured(tmp_path, "sh", "-c", script, measures=measures, budget_s=120.0, target=99.0)
    runs = runs_of(found)
    assert found.comparison.course.failures == ()
    assert found.cautions.count("bad is not measured: the expression took longer than 5 s") == 1
    assert {tuple(run.values.items()) for run in runs} == {(("loss", 3.0),)}
    assert max(run.wall_ns for run in runs) < 5e9
