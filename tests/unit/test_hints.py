"""The hint of a failure in an arm names what mends it, and nothing that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
from benches import bench, measure
from commands import concluded, prepared
from faults import tried

from envcompare.measure.cell import Roster
from envcompare.measure.lockstep import Lockstep, Turns

NO_CPU = 8191  # of the machine that runs this
STEADY = """
import threading, time

class Steady:
    def load(self, data):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

    def setup(self, seed, device):
        pass

    def step(self):
        return 1.0
"""


def test_cpu_that_is_not_there_names_pin(tmp_path: Path) -> None:
    """The workload needs no mending."""
    failures = tried(tmp_path, "Steady", cpus=(NO_CPU,)).failures()
    assert f"cannot run on CPUs [{NO_CPU}]" in failures
    assert "give --pin CPUs that are allowed there" in failures
    assert "fix the workload" not in failures


def test_cpu_that_is_not_there_names_pin_for_a_command(tmp_path: Path) -> None:
    """The program is there, so that nothing is to be installed."""
    made, processes = prepared(tmp_path, "true")
    spec = msgspec.structs.replace(made.spec, cpus=(NO_CPU,))
    processes.context = replace(made, spec=spec)
    processes.measure()
    failures = concluded(made).failures()
    assert "give --pin CPUs that are allowed there" in failures
    assert "install it there" not in failures


def test_folder_that_is_not_there_names_command_dir(tmp_path: Path) -> None:
    """The command runs in a folder of the host."""
    made, processes = prepared(tmp_path, "true")
    processes.program = replace(processes.program, cwd=str(tmp_path / "nowhere"))
    processes.measure()
    assert "give --command-dir a folder" in concluded(made).failures()


def test_fork_that_is_unsafe_names_generation(tmp_path: Path) -> None:
    """The tool would have chosen rebuild itself."""
    (tmp_path / "threaded.py").write_text(STEADY)
    made = bench(tmp_path, f"{tmp_path}/threaded.py:Steady", budget_s=1.5)
    spec = msgspec.structs.replace(made.spec, generation="fork")
    failures = measure(replace(made, spec=spec)).failures()
    assert "2 threads live in the template" in failures
    assert "leave --generation out" in failures
    assert "fix the workload" not in failures


def test_workload_that_changed_during_an_interruption_asks_for_a_new_run(tmp_path: Path) -> None:
    """Both arms do the same work, only not what was measured before."""
    (tmp_path / "threaded.py").write_text(STEADY)
    made = bench(tmp_path, f"{tmp_path}/threaded.py:Steady", budget_s=1.5)
    Turns([Lockstep(made, Roster(made, before={"vm": {"code": "another"}}))]).measure()
    failures = concluded(made).failures()
    assert "vm changed since the run began: the code of the workload was another, now " in failures
    assert "start a new run" in failures
    assert "same device" not in failures
