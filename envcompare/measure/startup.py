"""The start-up pass: engine call → process entry → imports → data → first step → exit."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from envcompare.errors import WorkloadError
from envcompare.measure.bench import Bench, failure_of
from envcompare.measure.crew import Roster
from envcompare.measure.generation import BLOCK_LIMIT_S
from envcompare.measure.protocol import Hello
from envcompare.measure.worker import Worker
from envcompare.plan import derive_seed, shuffled
from envcompare.records import Startup

SHARE = 0.2  # of the budget of a cell
MAX_REPETITIONS = 5


@dataclass(slots=True)
class StartupPass:
    """Launch every arm alone, in random order, as often as a fifth of the budget allows."""

    bench: Bench
    roster: Roster
    first: int = 0  # repetition to begin with, after an interruption

    def measure(self) -> None:
        """Run at least one repetition; an arm that fails is recorded and left out.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        bench = self.bench
        began = time.monotonic()
        limit_s = SHARE * bench.design.budget_s
        for repetition in range(self.first, MAX_REPETITIONS):
            self._repeat(repetition)
            spent_s = time.monotonic() - began
            done = repetition - self.first + 1
            if spent_s * (done + 1) / done > limit_s:
                break

    def _repeat(self, repetition: int) -> None:
        bench = self.bench
        arms = tuple(a for a in self.roster.arms if a != bench.control)
        seed = derive_seed(bench.seed, "startup", bench.cell, repetition)
        for order, arm in enumerate(shuffled(arms, seed)):
            bench.check_interruption()
            worker = bench.launch(arm)
            try:
                bench.recorder.sample(self._launch(worker, repetition=repetition, order=order))
            except WorkloadError as error:
                bench.check_interruption()
                self.roster.fail(arm, failure_of(error))
            finally:
                worker.kill()

    def _launch(self, worker: Worker, *, repetition: int, order: int) -> Startup:
        """Take one worker from its launch to its exit, as a short training run."""
        bench = self.bench
        worker.send_hello(
            msgspec.structs.replace(bench.spec, generation="rebuild", fingerprint=False)
        )
        hello = worker.await_hello()
        arrived_ns = time.monotonic_ns()
        seed = derive_seed(bench.seed, "startup model", bench.cell, repetition) % 2**31
        began = worker.begin(seed, 0)
        sent_ns = time.monotonic_ns()
        ran = worker.run(_train_steps(hello, bench.design.train_steps), BLOCK_LIMIT_S)
        round_trip_ns = max(0, time.monotonic_ns() - sent_ns - sum(ran.wall_ns))
        worker.end()
        quit_ns = time.monotonic_ns()
        cost = worker.quit()
        ended_ns = time.monotonic_ns()
        inside_ns = hello.now_ns - hello.entry_ns
        return Startup(
            cell=bench.cell,
            arm=worker.arm,
            repetition=repetition,
            order=order,
            engine_ns=max(0, arrived_ns - worker.spawned_ns - inside_ns - round_trip_ns // 2),
            import_ns=hello.import_ns,
            data_ns=hello.data_ns,
            build_ns=began.build_ns,
            first_step_ns=began.first_step_ns,
            train_ns=sum(ran.wall_ns),
            exit_ns=ended_ns - quit_ns,
            real_ns=ended_ns - worker.spawned_ns,
            user_ns=cost.user_ns,
            sys_ns=cost.sys_ns,
            train_steps=len(ran.wall_ns),
            page_cache="warm" if repetition > 0 else "unknown",
        )


def _train_steps(hello: Hello, most: int) -> int:
    """Return the steps of the short training run; fewer where the epochs asked for are over."""
    epochs = hello.params.get("epochs")
    if hello.steps_per_epoch is None or not isinstance(epochs, int):
        return most
    return max(1, min(most, hello.steps_per_epoch * epochs - 1))  # the first step is done already
