"""The operation `facts`: what a worker finds around itself once steps have run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversation import Start

LATE = """
import os, signal

class Late:
    PARAMS = {"in_step": 1, "ends_in": ""}

    def __init__(self, in_step, ends_in):
        self.in_step, self.ends_in = in_step, ends_in

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        if self.steps == self.in_step:
            import sqlite3
            os.environ["MALLOC_ARENA_MAX"] = "3"
            if self.ends_in == "error":
                raise ValueError("too late")
            if self.ends_in == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return 1.0
"""


@pytest.fixture
def late(tmp_path: Path) -> str:
    """Give the name of a workload that imports a library in one of its steps."""
    path = tmp_path / "late.py"
    path.write_text(LATE)
    return f"{path}:Late"


def _peak_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmHWM:") + 1]) * 1024


def has_sqlite(found: dict[str, Any]) -> bool:
    """Tell whether the library stands in the process map."""
    return any("sqlite" in entry for entry in found["loaded_libraries"])


@pytest.mark.parametrize("place", ["fork", "rebuild"])
def test_library_that_a_step_loads_is_found_after_it(start: Start, late: str, place: str) -> None:
    """The process that has run the steps answers, and goes on with them afterwards."""
    worker = start()
    hello = worker.ask("hello", workload=late, generation=place, params={"in_step": 3})
    assert not has_sqlite(hello["fingerprint"])
    worker.ask("gen", seed=1, pad=0)
    first = worker.ask("facts")
    assert (first["ok"], first["steps"], has_sqlite(first["fingerprint"])) == (True, 1, False)
    worker.ask("run", k=2)
    found = worker.ask("facts")
    assert (found["steps"], has_sqlite(found["fingerprint"])) == (3, True)
    assert found["fingerprint"]["env.MALLOC_ARENA_MAX"] == "3"
    names = [entry.split()[0] for entry in found["fingerprint"]["loaded_libraries"]]
    assert names == [entry.split()[0] for entry in found["fingerprint"]["loaded_paths"]]
    assert worker.ask("run", k=2)["ok"]
    assert worker.ask("end")["steps"] == 5


def test_peak_of_a_generation_is_that_of_its_steps(start: Start, late: str) -> None:
    """What reading the surroundings takes, some MB, is not the workload's."""
    worker = start()
    worker.ask("hello", workload=late, generation="fork", fingerprint=False)
    pid = worker.ask("gen", seed=1, pad=0)["pid"]
    before = _peak_bytes(pid)
    worker.ask("facts")
    after = _peak_bytes(pid)
    # nearer to the first of the two peaks: the kernel counts pages in batches (proc_pid_status(5))
    assert worker.ask("end")["max_rss_bytes"] < (before + after) / 2


@pytest.mark.parametrize("place", ["fork", "rebuild"])
def test_worker_whose_first_step_fails_still_says_what_is_around_it(
    start: Start, late: str, place: str
) -> None:
    """After the failure no generation is alive: the worker itself answers."""
    worker = start()
    worker.ask("hello", workload=late, generation=place, params={"ends_in": "error"})
    assert worker.ask("gen", seed=1, pad=0)["error"]["phase"] == "step"
    found = worker.ask("facts")
    assert (found["ok"], found["steps"]) == (True, 0)
    assert found["fingerprint"]["python.version"]
    assert worker.ask("gen", seed=1, pad=0)["error"]["phase"] == "step"


def test_killed_generation_leaves_a_worker_that_answers(start: Start, late: str) -> None:
    """The child is dead; the template knows its surroundings."""
    worker = start()
    worker.ask("hello", workload=late, generation="fork", params={"ends_in": "kill"})
    assert worker.ask("gen", seed=1, pad=0)["error"]["phase"] == "process"
    assert worker.ask("facts")["fingerprint"]["libc.sha256"]


def test_worker_whose_workload_cannot_be_imported_answers(start: Start, tmp_path: Path) -> None:
    """The surroundings may say why: they can be asked for after a `hello` that failed."""
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module_here\n")
    worker = start()
    assert worker.ask("hello", workload=f"{path}:Toy")["error"]["phase"] == "import"
    found = worker.ask("facts")
    assert (found["steps"], found["fingerprint"]["mount.data"]) == (0, None)
    assert found["fingerprint"]["packages"]


def test_mount_of_the_data_is_known_where_there_is_data(
    start: Start, toy: str, tmp_path: Path
) -> None:
    """The folder of the job, and the one that HOME names, lie on known file systems."""
    worker = start()
    found = worker.ask("hello", workload=toy, data=str(tmp_path))["fingerprint"]
    for name in ("data", "python", "scratch"):
        kind, _, options = found[f"mount.{name}"].partition(" ")
        assert kind
        assert {"ro", "rw"} & set(options.split(","))
