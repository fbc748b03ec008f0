"""The program that searches for the largest batch: what ends the search, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conversation import WORKER

IMITATED = Path(__file__).parents[2] / "support" / "imitatedtorch"
PROGRAM = WORKER.parent / "fitting.py"
HOLDS = '''
import os, signal

class Holds:
    """Holds a MiB for each sample."""

    PARAMS = {"batch": 1, "most": 1000, "dies": 0}

    def __init__(self, batch, most, dies):
        self.batch, self._most, self._dies = batch, most, dies

    def setup(self, seed, device):
        if self.batch > self._most:
            raise ValueError(f"{self.batch} samples are more than there are")
        self._held = b"\\1" * (self.batch << 20)

    def step(self):
        if self.batch == self._dies:
            os.kill(os.getpid(), signal.SIGSEGV)
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
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=240)
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


def test_a_try_that_a_signal_ends_does_not_fit(tmp_path: Path) -> None:
    """The search goes on between it and the last that does."""
    said = found(tmp_path / "holds.py", sizes=[1, 2, 4, 8], params={"dies": 8})
    assert (said["largest"], said["beyond"], said["limited_by"]) == (7, 8, "workload")
    assert "a try was ended by SIGSEGV\n" in said["stderr"]


def test_all_arms_share_the_memory_of_the_host(tmp_path: Path) -> None:
    """A size is measurable where the host has what it takes for each of them."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_mib = next(int(line.split()[1]) >> 10 for line in lines if "MemAvailable" in line)
    arms = free_mib // 60  # each with a batch of 64 takes more than that
    said = found(tmp_path / "holds.py", sizes=[1, 64], beside=arms)
    assert (said["largest"] >= 64, said["measurable"]) == (True, 1)


def test_several_ranks_are_not_searched_for_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first of them would be seen."""
    monkeypatch.setenv("PYTHONPATH", str(IMITATED))
    monkeypatch.setenv("IMITATED_CUDA", str(tmp_path / "calls"))
    path = tmp_path / "ranks.py"
    path.write_text("import torch\n" + HOLDS + "    processes = 2\n")
    said = found(tmp_path / "holds.py", workload=f"{path}:Holds", device="cuda")
    assert (said["device"], said["largest"], said["limited_by"]) == ("cuda", 0, "workload")
    assert "a search on a GPU sees the first rank alone: set ranks=1" in said["stderr"]


def test_nothing_fits(tmp_path: Path) -> None:
    """Not even the first size."""
    said = found(tmp_path / "holds.py", sizes=[128, 256])
    assert (said["largest"], said["measurable"], said["beyond"]) == (0, 0, 128)


@pytest.mark.nightly
def test_twice_the_memory_holds_twice_the_batch(torch_interpreter: str, tmp_path: Path) -> None:
    """Of a layer that PyTorch trains: activations have the most of it, but for some 30 MB."""
    largest = [
        found(
            tmp_path / "holds.py",
            torch_interpreter,
            workload="layer",
            sizes=[1 << power for power in range(14)],
            memory_mib={"cpu": mib, "cuda": 0},
        )["largest"]
        for mib in (256, 512)
    ]
    assert largest[1] == pytest.approx(2 * largest[0], rel=0.25)
