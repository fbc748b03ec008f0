"""Whether the blocks of a workload are slow is told by its calibration, not by a busy host."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import Kept, bench
from builders import blocks

from envcompare.measure import limits
from envcompare.measure.lockstep import Lockstep
from envcompare.measure.workers import Roster
from envcompare.run_folder.records import Block

SOURCE = """
import time


class Disturbed:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        time.sleep(0.03)
        return 1.0
"""
FEW, MANY = 3, 7


@pytest.fixture(autouse=True)
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call a block of two such steps slow, and give each kind its own number of rounds."""
    monkeypatch.setattr(limits, "SLOW_BLOCK_S", 0.05)
    for name in ("SLOW_FIRST_ROUNDS", "SLOW_MIN_ROUNDS", "SLOW_MAX_ROUNDS"):
        monkeypatch.setattr(limits, name, FEW)
    for name in ("FIRST_ROUNDS", "MIN_ROUNDS", "MAX_ROUNDS"):
        monkeypatch.setattr(limits, name, MANY)


def resumed(path: Path, *, step_s: float) -> tuple[int, float]:
    """Go on after a restart calibrated at `step_s`; return the rounds first run, and then tuned."""
    (path / "own.py").write_text(SOURCE)
    made = bench(path, f"{path}/own.py:Disturbed", budget_s=1.0)
    assert isinstance(made.recorder, Kept)
    earlier = list(blocks(dict.fromkeys(made.arms, 4.0), restarts=1))
    tuning = {"steps_per_block": 2, "step_s": step_s, "generations_per_restart": 1}
    lockstep = Lockstep(made, Roster(made), earlier, tuning)
    lockstep.measure()
    made.recorder.folder.close()
    samples = made.recorder.folder.read_samples().samples
    ran = {s.round for s in samples if isinstance(s, Block) and s.restart == 1 and not s.warmup}
    return len(ran), lockstep.tuning["rounds_per_generation"]


@pytest.mark.parametrize(("step_s", "expected"), [(0.01, MANY), (0.03, FEW)])
def test_resumed_cell_counts_rounds_by_the_calibrated_step(
    tmp_path: Path, step_s: float, expected: int
) -> None:
    """Blocks of 60 ms are slow only where their steps were so while nobody disturbed them."""
    assert resumed(tmp_path, step_s=step_s) == (expected, expected)
