"""The simulation: what it says of the pipeline holds, and a small one repeats exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import CELL, blocks, run_record
from record_streams import streams_of

from bookkeeping import RESULTS
from envcompare.config.settings import Preset
from envcompare.run_folder.records import Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.intervals import Interval
from simulation import RAW, design, shares, tables
from simulation_page import missed_goals
from streams import RECORDED, recorded, streams

SMALL = Path(__file__).parents[1] / "data" / "simulation-small.json"
CELLS = 16


def content(path: Path) -> Any:
    """Return the rows of a result."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def test_small_simulation_repeats_the_stored_rows() -> None:
    """A change of any rule or estimator shows; `--cells 16 --synthetic` writes the rows anew."""
    found = [one for one in streams() if one.name in {"restarts", "heavy"}]
    stored = [row for row in content(SMALL) if row["stream"] in {one.name for one in found}]
    assert list(tables(found, cells=CELLS)) == stored


def test_committed_table_meets_its_goals() -> None:
    """Coverage, false positives, discoveries, and equivalence at the noise of a calm host."""
    rows = content(RESULTS / RAW)
    assert {row["table"] for row in rows} == {"single", "family", "screen"}
    assert {one.name for one in streams()} == {row["stream"] for row in rows}
    assert missed_goals(rows) == []


def test_a_missed_goal_is_named() -> None:
    """A row that covers too rarely is said, with its figure."""
    row = {"table": "single", "stream": "bad", "preset": "quick", "effect": 0.0,
           "coverage": 0.9, "wrong_side": 0.1, "calm": False, "equivalent": 1.0}  # fmt: skip
    assert missed_goals([row]) == [
        "bad, quick, 0.0: coverage 90.0 %",
        "bad, quick, 0.0: wrong_side 10.0 %",
    ]


@pytest.mark.parametrize(("preset", "least"), [("quick", 4), ("strict", 6)])
def test_cell_below_the_least_restarts_says_nothing(preset: Preset, least: int) -> None:
    """Its interval covers or not, and no verdict rests on it: the product gives none either."""
    fields = {"mean": 0.2, "half_width": 0.01, "unit": "generation", "generations": 12}
    found = [Interval(restarts=count, level=0.96, **fields) for count in (least - 1, least)]
    row = shares(found, 0.05, design(preset))
    assert (row["excludes_zero"], row["inconclusive"], row["coverage"]) == (0.5, 0.5, 0.0)


def test_recorded_stream_draws_what_was_recorded() -> None:
    """Every drawn value is a recorded one, with either sign."""
    stored = json.loads(RECORDED.read_text(encoding="utf-8"))["streams"]
    for stream, one in zip(recorded(RECORDED), stored, strict=True):
        known = {abs(value) for gens in one["restarts"] for rounds in gens for value in rounds}
        drawn = stream.draw(np.random.default_rng(1))
        assert {float(value) for value in np.abs(drawn).ravel()} <= known


def test_streams_are_recorded_from_a_run_folder(tmp_path: Path) -> None:
    """The reference against its control, restart by restart, with what it cost."""
    folder = RunFolder.create(tmp_path, run_record())
    for block in blocks({"vm": 1.0, "docker": 1.5, "vm~control": 1.0}):
        folder.append_sample(block)
    values = {"steps_per_block": 3, "step_s": 0.04}
    folder.append_event(Event(t=1.0, what="calibrated", cell=CELL, values=values))
    folder.close()
    (found,) = streams_of(folder.path)
    assert [[len(rounds) for rounds in gens] for gens in found["restarts"]] == [[3, 3]] * 4
    assert max(abs(v) for gens in found["restarts"] for rounds in gens for v in rounds) < 0.1
    assert found["cost"]["block_s"] == 0.12
