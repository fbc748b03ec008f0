"""Drift inside a generation: found where it is, seldom where it is not, and said in the report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builders import blocks, run_record
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Drift, RunComparison
from envcompare.report.sections.cards import summary_cards
from envcompare.report.wording.methodwords import method_rules
from envcompare.run_folder.records import Block
from envcompare.run_folder.results import RunFolder
from envcompare.stats import DRIFT_LEVEL, trend

Draw = Callable[[np.random.Generator, int], np.ndarray]
NOISES: dict[str, Draw] = {
    "normal": lambda draws, size: draws.standard_normal(size),
    "heavy-tailed": lambda draws, size: draws.standard_t(2, size),
    "skewed": lambda draws, size: draws.lognormal(0.0, 1.0, size),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("generations", "rounds"), [(8, 3), (20, 6), (12, 2)])
def test_false_alarms_keep_to_their_level(noise: str, generations: int, rounds: int) -> None:
    """Of 800 cells with steady work at most 1.5 % are called a drift at 1 %."""
    draws = np.random.default_rng(11)
    alarms = 0
    for _ in range(800):
        found = trend([NOISES[noise](draws, rounds) for _ in range(generations)])
        assert found is not None
        alarms += found.p_value < DRIFT_LEVEL
    assert alarms <= 0.015 * 800


def test_drift_of_a_percent_a_round_is_found() -> None:
    """Its size is that of what was put in."""
    draws = np.random.default_rng(3)
    found = trend([0.01 * np.arange(4) + draws.normal(0, 0.003, 4) for _ in range(10)])
    assert found is not None
    assert found.p_value < 1e-4
    assert found.slope == pytest.approx(0.01, abs=0.001)
    assert found.over_generation == pytest.approx(3 * found.slope)


def test_level_of_a_generation_is_no_drift() -> None:
    """Generations that differ from each other, each steady in itself, show none."""
    found = trend([[float(level)] * 3 for level in range(8)])
    assert found is not None
    assert (found.slope, found.p_value) == (0.0, 1.0)


def test_too_little_is_not_tested() -> None:
    """Single rounds, and fewer than four generations, say nothing."""
    assert trend([[0.1]] * 20) is None
    assert trend([[0.1, 0.2]] * 3) is None


@given(
    st.lists(st.lists(st.floats(-1, 1), min_size=2, max_size=6), min_size=4, max_size=12),
    st.floats(-5, 5),
)
def test_drift_is_blind_to_the_level_and_turns_with_time(
    generations: list[list[float]], level: float
) -> None:
    """A constant changes nothing; played backwards the slope is its negative."""
    found = trend(generations)
    moved = trend([[value + level for value in rounds] for rounds in generations])
    backwards = trend([rounds[::-1] for rounds in generations])
    assert found is not None
    assert moved is not None
    assert backwards is not None
    assert moved.slope == pytest.approx(found.slope, abs=1e-9)
    assert backwards.slope == pytest.approx(-found.slope, abs=1e-12)
    assert 0 <= found.p_value <= 1


def compared(folder: Path, *, slopes: dict[str, float]) -> RunComparison:
    """Analyse a run in which each arm gets slower by its slope from round to round."""
    made = RunFolder.create(folder, run_record())
    for block in blocks(dict.fromkeys(slopes, 1.0), restarts=4, generations=3):
        made.append_sample(slowed(block, 1 + slopes[block.arm] * block.round))
    made.close()
    return compare_run(made)


def slowed(block: Block, factor: float) -> Block:
    """Return the block with each step longer by a factor."""
    return replace(block, wall_ns=tuple(round(ns * factor) for ns in block.wall_ns))


def detected(run: RunComparison) -> list[tuple[str, bool]]:
    """Return arm and kind of each drift that was found."""
    return [(drift.arm, drift.is_ratio) for drift in run.cells[0].drifts if drift.is_detected]


def everything(run: RunComparison) -> str:
    """Return the sentences of the cards and of the method."""
    items = [item.text for card in summary_cards(run) for item in card.items]
    return "\n".join((*items, *dict(method_rules(run)).values()))


def test_drift_of_one_arm_is_a_caution_beside_the_verdict(tmp_path: Path) -> None:
    """It is in the ratio, so the reader must know before relying on the number."""
    run = compared(tmp_path, slopes={"vm": 0.0, "docker": 0.02, "vm~control": 0.0})
    assert detected(run) == [("docker", False), ("docker", True)]
    found = next(drift for drift in run.cells[0].drifts if drift.is_detected and drift.is_ratio)
    assert isinstance(found, Drift)
    assert found.slope == pytest.approx(0.02, abs=0.003)
    cautions = " ".join(item.text for item in summary_cards(run).cautions.items)
    words = (
        r"against vm, docker gets (3\.[89]|4\.[0-2]) % slower from the first round of a generation"
    )
    assert re.search(words, cautions)


def test_drift_common_to_all_arms_stays_out_of_the_cautions(tmp_path: Path) -> None:
    """It cancels in the ratio; the method section says it."""
    run = compared(tmp_path, slopes={"vm": 0.02, "docker": 0.02, "vm~control": 0.02})
    assert {one for one in detected(run) if one[1]} == set()
    cautions = " ".join(item.text for item in summary_cards(run).cautions.items)
    assert "from the first round" not in cautions
    assert "blocks of docker, vm and vm~control get slower from the first round" in everything(run)


def test_steady_work_is_said_to_be_steady(tmp_path: Path) -> None:
    """The reader learns that it was looked for."""
    run = compared(tmp_path, slopes={"vm": 0.0, "docker": 0.0, "vm~control": 0.0})
    assert detected(run) == []
    assert "No drift inside a generation was found" in everything(run)
