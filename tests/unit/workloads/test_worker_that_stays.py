"""A worker that has imported ahead: it serves cell after cell, each from a fork of its own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversation import Start

sys.path.append(str(Path(__file__).parents[3] / "workloads"))

from harness.tasks import offspring

SOURCE = """
import os, time

print("imported in", os.getpid(), flush=True)


class Own:
    batch = 1
    PARAMS = {"dies": False, "sleep_s": 0.0}

    def __init__(self, dies, sleep_s):
        self.dies, self.sleep_s = dies, sleep_s

    def load(self, data):
        if self.dies:
            os.abort()

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        time.sleep(self.sleep_s)
        return float(self.steps)

    def finish(self):
        return {"steps": self.steps}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Return a workload that says in which process it was imported."""
    path = tmp_path / "own.py"
    path.write_text(SOURCE)
    return f"{path}:Own"


def serve_cell(worker: Any, workload: str, **params: Any) -> dict[str, Any]:
    """Take a worker through one cell; return what it said at the beginning."""
    hello: dict[str, Any] = worker.ask("hello", workload=workload, params=params)
    worker.ask("gen", seed=1, pad=0)
    worker.ask("run", k=2)
    assert worker.ask("end")["result"] == {"steps": 3}
    assert worker.ask("quit")["ok"]
    return hello


def test_worker_serves_several_cells_and_imports_once(start: Start, own: str) -> None:
    """Each cell has a process of its own, and what one did is not seen by the next."""
    worker = start()
    imported = worker.ask("import", workload=own, threads=1)
    assert (imported["ok"], imported["protocol"], imported["stays"]) == (True, 1, True)
    assert imported["pid"] == worker.process.pid
    pids = {serve_cell(worker, own)["pid"] for _ in range(3)}
    assert len(pids) == 3
    assert worker.process.pid not in pids
    assert worker.ask("quit")["ok"]
    assert worker.rest() == b""
    assert worker.process.returncode == 0
    assert worker.printed().count("imported in") == 1


def test_cell_that_dies_is_reported_and_the_next_is_served(start: Start, own: str) -> None:
    """Its process is gone with it, and nothing else."""
    worker = start()
    worker.ask("import", workload=own)
    reply = worker.ask("hello", workload=own, params={"dies": True})
    assert (reply["ok"], reply["error"]["phase"]) == (False, "process")
    assert "killed by signal 6 (SIGABRT)" in reply["error"]["brief"]
    serve_cell(worker, own)


def test_cell_that_cannot_be_made_leaves_the_worker_to_others(start: Start, own: str) -> None:
    """What cannot be imported ahead is the fault of the cell that runs it alone."""
    worker = start()
    assert worker.ask("import", workload="nothing")["stays"]
    reply = worker.ask("hello", workload="nothing")
    assert (reply["ok"], reply["error"]["phase"]) == (False, "import")
    assert worker.ask("quit")["ok"]
    serve_cell(worker, own)


STARTS = {
    "2 threads live in the template": (
        "import threading\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    ),
    "the template has started a process that lives": (
        "import subprocess\nother = subprocess.Popen(['sleep', '60'])\n"
    ),
    # its parent has ended
    "the template has started a process that lives ": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'sleep 60 >/dev/null 2>&1 &'])\n"
    ),
}


@pytest.mark.parametrize("why", STARTS)
def test_worker_that_a_fork_would_not_be_like_serves_one_cell_by_itself(
    start: Start, tmp_path: Path, is_alive: Callable[[int], bool], why: str
) -> None:
    """A fork would lose the thread, and could not stop the process; the worker ends with it."""
    path = tmp_path / "own.py"
    path.write_text(SOURCE + STARTS[why])
    worker = start()
    imported = worker.ask("import", workload=f"{path}:Own")
    assert (imported["stays"], imported["why_not"]) == (False, why.strip())
    others = offspring(worker.process.pid)
    assert len(others) == ("process" in why)
    hello = serve_cell(worker, f"{path}:Own")
    assert (hello["pid"], hello["generation"]) == (worker.process.pid, "rebuild")
    assert worker.rest() == b""
    assert not any(map(is_alive, others))


@pytest.mark.parametrize("line", ["import", "hello"])
def test_import_comes_first_and_once(start: Start, own: str, line: str) -> None:
    """Said again, or after hello, it is refused and the worker goes on."""
    worker = start()
    worker.ask(line, workload=own)
    reply = worker.ask("import", workload=own)
    assert (reply["ok"], reply["error"]["phase"]) == (False, "protocol")
    assert worker.ask("facts")["ok"]


@pytest.mark.parametrize("moment", ["between cells", "in a cell", "in a step"])
def test_no_process_is_left_when_the_input_ends(
    start: Start, own: str, is_alive: Callable[[int], bool], moment: str
) -> None:
    """The worker, the process of its cell and that of the generation all end."""
    worker = start()
    pids = [worker.process.pid]
    worker.ask("import", workload=own)
    if moment != "between cells":
        pids.append(worker.ask("hello", workload=own, params={"sleep_s": 300.0})["pid"])
    if moment == "in a step":
        worker.say('{"op":"gen","seed":1,"pad":0}\n')
        time.sleep(0.3)
    worker.hang_up()
    limit = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_alive, pids))


def test_generation_ends_when_the_worker_is_killed(
    start: Start, own: str, is_alive: Callable[[int], bool]
) -> None:
    """Its socket tells it, over the process of the cell."""
    worker = start()
    worker.ask("import", workload=own)
    cell = worker.ask("hello", workload=own)["pid"]
    generation = worker.ask("gen", seed=1, pad=0)["pid"]
    os.kill(worker.process.pid, signal.SIGKILL)
    limit = time.monotonic() + 20
    while (is_alive(cell) or is_alive(generation)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not is_alive(cell)
    assert not is_alive(generation)
