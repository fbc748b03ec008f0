"""The simulation: what it says of the pipeline holds, and a small one repeats exactly."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import blocks, run_record
from record_streams import streams_of

from bookkeeping import RESULTS
from envcompare.config.settings import Preset
from envcompare.run_folder.results import RunFolder
from envcompare.stats.typical import RoundEvidence, Spread, prior_of
from replay import Cell, replay
from simulation import RAW, design, missed_goals, shares, tables
from streams import RECORDED, recorded, streams

SMALL = Path(__file__).parents[1] / "data" / "simulation-small.json"
CELLS = 16


def content(path: Path) -> Any:
    """Return the rows of a result."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def test_small_simulation_repeats_the_stored_rows() -> None:
    """A change of any rule or estimator shows; `--cells 16 --synthetic` writes the rows anew."""
    found = [one for one in streams() if one.name in {"normal", "heavy"}]
    names = {"lone", *(one.name for one in found)}
    stored = [row for row in content(SMALL) if row["stream"] in names]
    assert list(tables(found, cells=CELLS)) == stored


def test_committed_table_meets_its_goals() -> None:
    """Coverage, false positives and discoveries."""
    rows = content(RESULTS / RAW)
    assert {row["table"] for row in rows} == {"single", "family", "lone", "screen"}
    assert {one.name for one in streams()} == {row["stream"] for row in rows} - {"lone"}
    assert missed_goals(rows) == []


def test_a_missed_goal_is_named() -> None:
    """A row that covers too rarely is said, with its figure."""
    row = {"table": "single", "stream": "bad", "preset": "quick", "effect": 0.0, "cells": 100,
           "coverage": 0.9, "wrong_side": 0.1, "beyond": False}  # fmt: skip
    assert missed_goals([row]) == [
        "bad, quick, 0.0: coverage 90.0 %",
        "bad, quick, 0.0: wrong_side 10.0 %",
    ]
    assert missed_goals([{**row, "beyond": True}]) == []


@pytest.mark.parametrize(
    ("preset", "spread", "least"),
    [("quick", Spread(), 2), ("quick", prior_of(0.02), 2), ("strict", Spread(), 6)],
)
def test_cell_below_the_least_restarts_says_nothing(
    preset: Preset, spread: Spread, least: int
) -> None:
    """Its interval covers or not, and excludes nothing: the product gives no verdict either."""
    rounds = tuple(np.linspace(0.299, 0.301, 20).tolist())
    found = [
        Cell(
            evidence=RoundEvidence(groups=(rounds,) * count, spread=spread, generations=count),
            stopped_by="budget",
            seconds=1.0,
        )
        for count in (least - 1, least)
    ]
    row = shares(found, 0.05, design(preset))
    assert row["excludes_zero"] == 0.5


def test_replayed_cell_spends_its_budget_and_no_more() -> None:
    """Restarts are launched while one is worth it, and a round that has begun is finished."""
    plan = msgspec.structs.replace(design("quick"), target=1e-9, margin=1e-9)
    stream = next(one for one in streams() if one.name == "normal")
    cell = replay(stream, plan, np.random.default_rng(1))
    assert cell.stopped_by == "budget"
    assert len(cell.evidence.groups) >= plan.min_restarts
    assert plan.budget_s - stream.cost.launch_s < cell.seconds
    assert cell.seconds <= plan.budget_s + stream.cost.round_s


def test_recorded_stream_draws_what_was_recorded() -> None:
    """A restart is recorded stretches with either sign, beside what it adds to them all."""
    stored = json.loads(RECORDED.read_text(encoding="utf-8"))["streams"]
    for stream, one in zip(recorded(RECORDED), stored, strict=True):
        known = {round(b - a, 5) for rounds in one["restarts"] for a, b in pairwise(rounds)}
        drawn = next(stream.draw(np.random.default_rng(1)))
        steps = [{round(s * (b - a), 5) for a, b in pairwise(drawn)} for s in (-1, 1)]
        assert max(len(found & known) / len(found) for found in steps) > 0.4


def test_streams_are_recorded_from_a_run_folder(tmp_path: Path) -> None:
    """The reference against its control, restart by restart, with what it cost."""
    folder = RunFolder.create(tmp_path, run_record())
    for block in blocks({"vm": 1.0, "docker": 1.5, "vm~control": 1.0}):
        folder.append_sample(block)
    folder.close()
    (found,) = streams_of(folder.path)
    assert [len(rounds) for rounds in found["restarts"]] == [6] * 4
    assert max(abs(value) for rounds in found["restarts"] for value in rounds) < 0.1
