"""Work whose environment slows it in a known way, where the variable FELT says how far."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import random
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

SHARED = Path("/felt")  # a folder of the host, mounted where a case needs one
STEP_S = 0.002  # CPU time of a plain step
SLEEP_S, EVERY = 0.08, 500  # a sleep in one of so many steps: +8 %
LAUNCHES, SLOW = 4, 1.4  # one launch of so many takes so many times as long: +10 %
AHEAD = 2  # batches that each process of a loader works ahead, as PyTorch's do
_MESSAGE = bytes(1 << 20)


def burn(cpu_s: float) -> None:
    """Compute until this thread has had so much CPU time."""
    ends_s = time.thread_time() + cpu_s
    while time.thread_time() < ends_s:
        hashlib.sha256(_MESSAGE[:4096])


def amount() -> float:
    """Return what FELT says, 0 where it is not set."""
    return float(os.environ.get("FELT", "0"))


class Plain:
    """Takes the CPU for the same time in every step, and tells a sidecar where there is one."""

    batch = 1

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002 — as the worker calls it
        """Find the sidecar."""
        self.sidecar = None
        if amount():
            self.sidecar = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.sidecar.connect(str(SHARED / "sidecar"))

    def step(self) -> float:
        """Ask the sidecar for its work, and do that of a step."""
        if self.sidecar:
            self.sidecar.send(b"%g" % (STEP_S * amount()))
        burn(STEP_S)
        return 1.0


class Rare(Plain):
    """Sleeps in one of many steps, the first of which is drawn."""

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002
        """Draw where the sleeps begin, in each process by itself."""
        self.steps = itertools.count(random.SystemRandom().randrange(EVERY))

    def step(self) -> float:
        """Work, and sleep where it is time."""
        burn(STEP_S)
        if next(self.steps) % EVERY == 0 and amount():
            time.sleep(SLEEP_S)
        return 1.0


class Launch(Plain):
    """Takes longer in one launch of four, for as long as that lives."""

    def load(self, data: str | None) -> None:  # noqa: ARG002
        """Count the launches in a folder of the host."""
        self.takes_s = STEP_S
        for number in itertools.count() if amount() else ():
            try:
                (SHARED / f"launch-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            self.takes_s *= SLOW if number % LAUNCHES == 1 else 1
            break

    def setup(self, seed: int, device: str) -> None:
        """Need nothing more."""

    def step(self) -> float:
        """Work as this launch does."""
        burn(self.takes_s)
        return 1.0


class Threads(Plain):
    """Computes in several threads at once."""

    PARAMS: ClassVar[dict[str, Any]] = {"threads": 2}

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002
        """Start the threads."""
        self.pool = ThreadPoolExecutor(self.threads)

    def step(self) -> float:
        """Let each thread take the hash of 4 MiB, which it does at the same time as the others."""
        return float(len([*self.pool.map(_digest, range(self.threads))]))

    def finish(self) -> None:
        """End the threads."""
        self.pool.shutdown()


def _digest(_number: int) -> bytes:
    return hashlib.sha256(_MESSAGE * 4).digest()


class Chatty(Plain):
    """Prints a few hundred lines in each step."""

    def step(self) -> float:
        """Print, then work."""
        for number in range(300):
            sys.stderr.write(f"step {number}: {'all is well, ' * 8}\n")
        sys.stderr.flush()
        burn(STEP_S)
        return 1.0


class Files(Plain):
    """Opens and reads small files in a folder of the host."""

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002
        """Settle the order of the files."""
        names = sorted(path.name for path in SHARED.iterdir())
        self.names = random.Random(seed).sample(names, len(names))

    def step(self) -> float:
        """Read each file once."""
        return float(sum(len((SHARED / name).read_bytes()) for name in self.names))


class Loader(Plain):
    """Takes batches that processes make ahead, each in its turn, as PyTorch's DataLoader does.

    A batch costs its process FELT seconds of sleep or of CPU time, or so many files that it reads.
    """

    PARAMS: ClassVar[dict[str, Any]] = {"workers": 2, "work": "sleep"}

    def __init__(self, workers: int, work: str) -> None:
        self.workers = workers
        self.make = {"sleep": time.sleep, "compute": burn, "read": _read}[work]

    def setup(self, seed: int, device: str) -> None:  # noqa: ARG002
        """Start the processes, and order the first batches."""
        context = multiprocessing.get_context("fork")
        self.processes, lanes = [], []
        for _ in range(self.workers):
            orders, batches = context.SimpleQueue(), context.SimpleQueue()
            lanes.append((orders, batches))
            words = (self.make, orders, batches)
            self.processes.append(context.Process(target=_serve, args=words, daemon=True))
            self.processes[-1].start()
            for _ in range(AHEAD):
                orders.put(1)
        self.lanes = itertools.cycle(lanes)

    def step(self) -> float:
        """Wait for a batch, order the next one of its process, and work on it."""
        orders, batches = next(self.lanes)
        size = len(batches.get())
        orders.put(1)
        burn(2 * STEP_S)
        return float(size)

    def finish(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()


def _serve(make: Any, orders: Any, batches: Any) -> None:  # noqa: ANN401 — queues have no type
    while orders.get():
        make(amount())
        batches.put(_MESSAGE[: 1 << 16])


def _read(files: float) -> None:
    for path in sorted(SHARED.iterdir())[: round(files)]:
        path.read_bytes()
