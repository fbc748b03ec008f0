"""Workloads that cannot be measured as they are, and a cell of one of them with real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benches import Measured, bench, measure

SOURCE = """
import collections, ctypes, os, random, signal, sys, time, types

IN_DOCKER = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"


class Steady:
    batch = 1

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        self.act()
        return float(sum(i * i for i in range(3000)) % 97)

    def act(self):
        pass


class TakesSeconds(Steady):
    def act(self):
        time.sleep(0.7)


class TakesMoments(Steady):
    def act(self):
        time.sleep(0.02)


class DoesNothing(Steady):
    def step(self):
        return 1.0


class DrawsItsOwnNumbers(Steady):
    def step(self):
        return super().step() + random.SystemRandom().random()


class IsKilled(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class ItsGenerationIsKilled(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            time.sleep(300)


class WritesToStdout(Steady):
    def act(self):
        print("printed")
        os.write(1, b"written\\n")
        ctypes.CDLL(None).puts(b"put by C")
        ctypes.CDLL(None).fflush(None)


class ClockJumps(Steady):
    seconds = 3600

    def setup(self, seed, device):
        super().setup(seed, device)
        from harness import blockclock
        self.blocks = 0
        measure = blockclock.BlockClock.measure

        def counted(clock, *args, **fields):
            self.blocks += 1
            return measure(clock, *args, **fields)

        blockclock.BlockClock.measure = counted

    def act(self):
        if IN_DOCKER and self.blocks == 5:
            self.blocks += 1
            now = time.monotonic_ns
            time.monotonic_ns = lambda: now() + self.seconds * 10**9


class SavesAtTimes(ClockJumps):
    def act(self):
        if IN_DOCKER and self.blocks == 9:
            self.blocks += 1
            time.sleep(2.5)


class ClockGoesBack(ClockJumps):
    seconds = -3600


class CompilesLate(ClockJumps):
    def setup(self, seed, device):
        super().setup(seed, device)
        self.counts = collections.defaultdict(collections.Counter)
        sys.modules["torch._dynamo.utils"] = types.SimpleNamespace(counters=self.counts)

    def act(self):
        if IN_DOCKER and self.blocks == 5:
            self.blocks += 1
            self.counts["frames"]["total"] += 1
            time.sleep(0.5)


class CompilesFirst(CompilesLate):
    # what PyTorch counts: one miss of its cache in an arm, then hits
    def act(self):
        if self.steps > 1:
            return
        try:
            open(f"{__file__}.{os.environ['ENVCOMPARE_ENVIRONMENT']}", "x").close()
        except FileExistsError:
            self.counts["inductor"]["fxgraph_cache_hit"] += 1
        else:
            self.counts["inductor"]["fxgraph_cache_miss"] += 1
            time.sleep(0.7)


class WithoutSchedstat(Steady):
    def setup(self, seed, device):
        super().setup(seed, device)
        from harness import blockclock
        blockclock._wait_ns = lambda path: None
"""


def tried(folder: Path, name: str, **changes: Any) -> Measured:
    """Measure a workload of SOURCE with real workers."""
    path = folder / "own.py"
    path.write_text(SOURCE)
    passes = changes.pop("passes", ("lockstep",))
    made = bench(folder, f"{path}:{name}", **{"budget_s": 1.5, "target": 1e-4, **changes})
    return measure(made, passes=passes)
