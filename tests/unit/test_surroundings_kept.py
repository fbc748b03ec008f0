"""When the controller asks for surroundings, and what stays of them when an arm fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from benches import Kept, bench, measure

from envcompare.errors import InterruptedRunError, Interruption
from envcompare.run_folder.records import FingerprintRecord, Sample

LATE = """
import os, signal, time

HERE = os.environ["ENVCOMPARE_ENVIRONMENT"]

class Late:
    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        time.sleep(0.002)
        if self.steps == 2:
            import sqlite3
        {trouble}
        return 1.0
"""
FAILS = 'assert HERE != "docker", "not here"'
DIES = 'HERE != "docker" or os.kill(os.getpid(), signal.SIGKILL)'


def surroundings(
    path: Path, *, trouble: str = "", passes: tuple[str, ...] = ("lockstep",)
) -> dict[str, FingerprintRecord]:
    """Measure a cell and return the fingerprint of each arm."""
    file = path / "late.py"
    file.write_text(LATE.format(trouble=trouble))
    made = bench(path / "run", f"{file}:Late", budget_s=4.0, has_startup="startup" in passes)
    return {one.arm: one for one in measure(made, passes=passes).folder.read_fingerprints()}


def has_sqlite(record: FingerprintRecord) -> bool:
    """Tell whether the library stands in the process map."""
    return "sqlite" in str(record.facts["loaded_libraries"])


def test_fingerprint_of_every_arm_is_taken_after_its_steps(tmp_path: Path) -> None:
    """What the second step loads is there, in all arms alike."""
    found = surroundings(tmp_path)
    assert set(found) == {"vm", "docker", "vm~control"}
    assert {one.taken for one in found.values()} == {"step"}
    assert all(has_sqlite(one) for one in found.values())


def test_arm_that_fails_in_its_first_step_keeps_what_was_around_it(tmp_path: Path) -> None:
    """It was asked before the step; the arms that went on were asked again."""
    found = surroundings(tmp_path, trouble=FAILS)
    assert (found["docker"].taken, found["vm"].taken) == ("start", "step")
    assert found["docker"].facts["python.version"] == found["vm"].facts["python.version"]


def test_arm_whose_process_dies_in_its_first_step_keeps_what_was_around_it(tmp_path: Path) -> None:
    """No process is left to ask: what was said at the start stays."""
    found = surroundings(tmp_path, trouble=DIES)
    assert found["docker"].taken == "start"
    assert found["docker"].facts["libc.sha256"]


def test_arm_that_fails_in_the_startup_pass_is_asked_afterwards(tmp_path: Path) -> None:
    """A worker that failed still answers, however early that was."""
    found = surroundings(tmp_path, trouble=FAILS, passes=("startup",))
    assert found["docker"].facts["packages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Kept):
    """Keeps what is measured, and asks at each sample to stop the run."""

    interruption: Interruption
    requests: int

    def sample(self, sample: Sample) -> None:
        """Keep one measurement, then press Ctrl-C."""
        Kept.sample(self, sample)
        for _ in range(self.requests):
            self.interruption.request()


@pytest.mark.parametrize(("requests", "taken"), [(1, "step"), (2, "start")])
def test_interrupted_run_asks_for_surroundings_unless_the_user_insists(
    tmp_path: Path, requests: int, taken: str
) -> None:
    """A resumed run needs them; the second Ctrl-C is to end everything at once."""
    file = tmp_path / "late.py"
    file.write_text(LATE.format(trouble=""))
    made = bench(tmp_path / "run", f"{file}:Late", budget_s=4.0)
    assert isinstance(made.recorder, Kept)
    folder, stop = made.recorder.folder, made.interruption
    made = replace(made, recorder=Stopping(folder, interruption=stop, requests=requests))
    with pytest.raises(InterruptedRunError):
        measure(made)
    folder.close()
    assert {one.taken for one in folder.read_fingerprints()} == {taken}
