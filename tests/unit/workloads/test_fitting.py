"""The program that searches for the largest batch: what ends the search, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conversation import WORKER

PROGRAM = WORKER.parent / "fitting.py"
HOLDS = '''
class Holds:
    """Holds a MiB for each sample."""

    PARAMS = {"batch": 1, "most": 1000}

    def __init__(self, batch, most):
        self.batch, self._most = batch, most

    def setup(self, seed, device):
        if self.batch > self._most:
            raise ValueError(f"{self.batch} samples are more than there are")
        self._held = b"\\1" * (self.batch << 20)

    def step(self):
        print("a step")  # is no part of the answer
        return float(self._held[0])
'''


def found(path: Path, interpreter: str = sys.executable, **asked: Any) -> dict[str, Any]:
    """Return what the program says, with what stood on stderr."""
    path.write_text(HOLDS)
    usual = {
        "workload": f"{path}:Holds",
        "params": {},
        "data": None,
        "threads": 1,
        "cpus": None,
        "device": "cpu",
        "sizes": [1, 2, 4, 8, 16, 32, 64, 128],
        "memory_mib": {"cpu": 100, "cuda": 0},
        "beside": 3,
    }
    argv = (interpreter, "-B", PROGRAM, json.dumps({**usual, **asked}))
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    said: dict[str, Any] = json.loads(done.stdout)
    return {**said, "stderr": done.stderr}


def test_memory_ends_the_search(tmp_path: Path) -> None:
    """It is known to 1 in 32, and the largest size that is to be measured is one that was asked."""
    said = found(tmp_path / "holds.py")
    assert (said["limited_by"], said["measurable"], said["memory_mib"]) == ("memory", 64, 100)
    assert 90 <= said["largest"] <= 101
    assert 0 < said["beyond"] - said["largest"] <= 104 / 32


def test_the_last_size_ends_the_search(tmp_path: Path) -> None:
    """Nothing larger is tried."""
    said = found(tmp_path / "holds.py", sizes=[1, 2, 4])
    assert (said["largest"], said["beyond"], said["limited_by"]) == (4, None, "cap")
    assert said["tries"] == 3


def test_what_the_workload_does_not_take_ends_the_search(tmp_path: Path) -> None:
    """In its own words."""
    said = found(tmp_path / "holds.py", params={"most": 20})
    assert (said["largest"], said["beyond"], said["limited_by"]) == (20, 21, "workload")
    assert said["stderr"].endswith("ValueError: 21 samples are more than there are\n")


def test_nothing_fits(tmp_path: Path) -> None:
    """Not even the first size."""
    said = found(tmp_path / "holds.py", sizes=[128, 256])
    assert (said["largest"], said["measurable"], said["beyond"]) == (0, 0, 128)


@pytest.mark.timeout(180)
def test_twice_the_memory_holds_twice_the_batch(torch_interpreter: str, tmp_path: Path) -> None:
    """Of a network that PyTorch trains: activations have the most of it."""
    largest = [
        found(
            tmp_path / "holds.py",
            torch_interpreter,
            workload="layer",
            sizes=[1 << power for power in range(14)],
            memory_mib={"cpu": mib, "cuda": 0},
        )["largest"]
        for mib in (64, 128)
    ]
    assert largest[1] == pytest.approx(2 * largest[0], rel=0.25)
