"""The energy pass: after the timing each arm runs blocks that are long enough for a power sensor.

NVML's power (nvmlDeviceGetPowerUsage) is a mean over 1 s on Ampere and newer GPUs, GA100 excepted:
https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html. The blocks of the timing are
shorter than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Final

from envcompare.config.plan import shuffled
from envcompare.errors import StillRunningError
from envcompare.measure.cell import CellContext, surviving
from envcompare.measure.limits import limit_s
from envcompare.measure.profile import started, warmed_up
from envcompare.measure.replies import Ran
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import EnergyBlock

BLOCK_S: Final = 5.0
ROUNDS: Final = 2
_CALL_S: Final = 1.0  # a block is made of calls of about this length until it is long enough
_MOST_STEPS: Final = 5000  # in a call: a worker answers with the times of each
_BUDGET_S: Final = 240.0  # beyond which there is one round only
_CALL_LIMIT_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class EnergyPass:
    """Runs long blocks of each arm in turn, while the power of the host's GPUs is sampled.

    No time of it enters a comparison, and none is taken from the budget of the cell.
    """

    context: CellContext
    arms: tuple[str, ...]
    launch: Callable[[str], Worker]
    sampling: Callable[[], AbstractContextManager[None]]
    prior: Sequence[EnergyBlock] = ()  # of this cell, before an interruption
    block_s: float = BLOCK_S
    _workers: dict[str, Worker] = field(default_factory=dict)
    _step_s: dict[str, float] = field(default_factory=dict)
    _taken: int = 0

    def measure(self) -> str:
        """Run the blocks that are missing, and say in a line what there is.

        Raises TransportError when the host is lost and InterruptedRunError when the user stops.
        """
        kept = {(block.round, block.arm) for block in self.prior}
        missing = [
            (number, arm)
            for number in range(ROUNDS)
            for arm in self._order(number)
            if (number, arm) not in kept
        ]
        if missing:
            try:
                self._run(missing)
            except StillRunningError as error:
                self.context.note("note", text=f"no further energy was measured: {error.brief}")
        count = self._taken + len(kept)
        if not count:
            return "no energy was measured"
        return f"energy of {count} blocks of at least {self.block_s:g} s"

    def _order(self, number: int) -> tuple[str, ...]:
        return shuffled(self.arms, self.context.seed_of("energy", number))

    def _run(self, missing: list[tuple[int, str]]) -> None:
        with ExitStack() as stack:
            for arm in dict.fromkeys(arm for _, arm in missing):
                with self._surviving(arm):
                    self._start(arm, stack)
            if not self._workers:
                return
            with self.sampling():
                rounds = self._rounds()
                for number, arm in missing:
                    if number < rounds and arm in self._workers:
                        self.context.check_interruption()
                        with self._surviving(arm):
                            self._take(number, arm)
            for arm, worker in self._workers.items():
                with self._surviving(arm):
                    worker.quit()

    def _start(self, arm: str, stack: ExitStack) -> None:
        """Bring a worker of an arm past its first steps; one that runs on the CPU is left out."""
        self.context.check_interruption()
        spec = self.context.untimed_spec(arm)
        worker, hello = stack.enter_context(started(lambda: self.launch(arm), spec))
        if hello.device == "cuda":
            self._step_s[arm] = warmed_up(self.context, worker)
            self._workers[arm] = worker

    def _rounds(self) -> int:
        """Return how many rounds are run: one where steps are so long that two take minutes."""
        lasting_s = sum(max(self.block_s, step_s) for step_s in self._step_s.values())
        return ROUNDS if ROUNDS * lasting_s <= _BUDGET_S else 1

    def _take(self, number: int, arm: str) -> None:
        """Run steps of an arm until they have lasted for a block, and keep it."""
        worker, step_s = self._workers[arm], max(self._step_s[arm], 1e-9)
        k = max(1, min(_MOST_STEPS, math.ceil(min(_CALL_S, self.block_s) / step_s)))
        limit = limit_s(_CALL_LIMIT_S, k, step_s)
        calls = [worker.run(k, limit)]
        while _lasted_ns(calls) < self.block_s * 1e9:
            calls.append(worker.run(k, limit))
        block = EnergyBlock(
            cell=self.context.cell,
            arm=arm,
            round=number,
            order=self._order(number).index(arm),
            k=k * len(calls),
            t0_ns=calls[0].t0_ns,
            wall_ns=_lasted_ns(calls),
        )
        self.context.recorder.sample(block)
        self._taken += 1

    def _surviving(self, arm: str) -> AbstractContextManager[None]:
        """Note why an arm has no further blocks."""
        what = "no further energy was measured"
        return surviving(self.context, arm, what=what, drop=lambda: self._drop(arm))

    def _drop(self, arm: str) -> None:
        """End the worker of an arm: what still runs would be taken for the power of others."""
        if arm in self._workers:
            self._workers.pop(arm).kill()


def _lasted_ns(calls: Sequence[Ran]) -> int:
    """Return the time from the first step to the last, with what is between two calls."""
    return calls[-1].t0_ns + sum(calls[-1].wall_ns) - calls[0].t0_ns
