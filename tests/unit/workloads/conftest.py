"""Workers for the tests, and a user's workload to give them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parents[2] / "workloads")]

from conversation import Conversation, Start  # noqa: E402  found on the path just above

TOY = """
import os, random, signal, subprocess, sys, threading, time

print("printed at import")


class Toy:
    PARAMS = {"batch": 4, "fails_in": "", "fails_at": 0, "sleep_s": 0.0, "name": "", "fast": True}

    def __init__(self, **params):
        self.params = params
        self.batch = params["batch"]
        self.steps = 0
        self.fail("init")

    def fail(self, where):
        if self.params["fails_in"] == where:
            raise ValueError(f"failed in {where}\\nand more")

    def load(self, data):
        self.fail("load")
        if self.params["name"] == "starts a thread":
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    def setup(self, seed, device):
        print("printed in setup")
        subprocess.run(["echo", "printed by a child"], check=True)
        self.typed = sys.stdin.read()
        self.fail("setup")
        self.draws = random.Random(seed)

    def step(self):
        self.steps += 1
        if self.steps == self.params["fails_at"]:
            self.fail("step")
            if self.params["fails_in"] == "exit":
                sys.exit("left")
            if self.params["fails_in"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        if self.steps > 1:
            time.sleep(self.params["sleep_s"])
        return float(self.params["name"]) if self.params["name"] == "nan" else self.draws.random()

    def finish(self):
        self.fail("finish")
        return {"steps": self.steps, "typed": self.typed}
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start workers; none outlives the test."""
    running: list[Conversation] = []

    def begin(python: str = sys.executable) -> Conversation:
        running.append(Conversation(python, tmp_path / f"stderr-{len(running)}"))
        return running[-1]

    yield begin
    for one in running:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdin, one.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def toy(tmp_path: Path) -> str:
    """Give the name of a user's workload that needs nothing but the standard library."""
    path = tmp_path / "toy.py"
    path.write_text(TOY)
    return f"{path}:Toy"


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    """Give a function that says whether a process is still there, 10 s on."""

    def ask(pid: int) -> bool:
        limit_s = time.monotonic() + 10
        while time.monotonic() < limit_s:
            try:
                os.kill(pid, 0)
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                return False
            if state == "Z":
                return False
            time.sleep(0.02)
        return True

    return ask
