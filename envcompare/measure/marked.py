"""Marked rounds: after the rounds of a restart, a few in which phases and operators are timed.

They come last, so that nothing of the marks is left in what a verdict rests on, and all arms take
turns in them as in the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from envcompare.measure.context import CellContext
from envcompare.measure.limits import block_limit_s
from envcompare.measure.replies import Profiled
from envcompare.measure.worker import Worker
from envcompare.measure.workers import CellWorkers
from envcompare.run_folder.records import MarkedBlock, OperatorTimes, StepPhase

SHARE = 0.13  # of what a restart measures
KIND = "phases"
_STEPS = 4  # times fewer than in a block: more rounds say more than longer ones
_SLOWER = 20  # times a step without marks, at most: what the profiler does around it is slow too
_START_S = 5.0
_Phases = dict[StepPhase, OperatorTimes]


@dataclass(slots=True)
class Marking:
    """The marked rounds of a cell; one reason why steps cannot be marked ends them for all arms."""

    is_wanted: bool
    reason: str = ""
    _is_settled: bool = False  # a round that counts has run, or it was said that none has room

    @property
    def share(self) -> float:
        """Return which share of the measuring of a restart is for marked rounds."""
        return SHARE if self.is_wanted and not self.reason else 0.0

    def run(  # noqa: PLR0913 — what is marked, how long the rest took, and in which order
        self,
        workers: CellWorkers,
        *,
        restart: int,
        steps: int,
        step_s: float,
        rounds_s: float,
        order: Callable[[str], tuple[str, ...]],
    ) -> float:
        """Run marked rounds for their share of the time, `rounds_s` being that of the others.

        The first one is discarded: the profiler starts in it. Return the seconds that all took.
        """
        began = time.monotonic()
        wanted_s = min(rounds_s * self.share / (1 - SHARE), workers.context.remaining_s)
        marked = max(1, steps // _STEPS)
        limit_s = block_limit_s(_START_S + _SLOWER * marked * step_s)
        arms, number, round_s = workers.arms, -1, marked * step_s * len(workers.arms)
        while self.share and workers.arms == arms:
            spent_s = time.monotonic() - began
            if spent_s + round_s > wanted_s:
                self._note_room(workers.context, round_s)
                break
            blocks = self._round(workers, order(f"marked {number}"), marked, limit_s)
            for place, (arm, phases) in enumerate(blocks.items() if number >= 0 else ()):
                block = MarkedBlock(
                    cell=workers.context.cell,
                    arm=arm,
                    restart=restart,
                    generation=0,
                    round=number,
                    order=place,
                    k=marked,
                    phases=phases,
                )
                workers.context.recorder.sample(block)
            round_s = time.monotonic() - began - spent_s
            self._is_settled |= number >= 0
            number += 1
        return time.monotonic() - began

    def _note_room(self, context: CellContext, round_s: float) -> None:
        """Say once why nothing is marked, where not one round that counts has found room."""
        if self._is_settled:
            return
        self._is_settled = True
        text = f"a round of one step in each arm takes {round_s:.1f} s: give a longer --budget"
        context.note("not-marked", text=text)

    def _round(
        self, workers: CellWorkers, order: tuple[str, ...], steps: int, limit_s: float
    ) -> dict[str, _Phases]:
        """Return what each arm took, nothing where one could not tell: then no arm is marked."""
        by_arm: dict[str, _Phases] = {}
        for arm in order:
            reply = workers.ask(arm, _marked(steps, limit_s))
            if reply is None:
                return {}
            phases = self._read(arm, reply)
            if phases is None:
                workers.context.note("not-marked", arm=arm, text=self.reason)
                return {}
            by_arm[arm] = phases
        return by_arm

    def _read(self, arm: str, reply: Profiled) -> _Phases | None:
        if not reply.reason:
            try:
                return msgspec.convert(reply.values.get("parts"), _Phases)
            except msgspec.ValidationError as error:
                self.reason = f"what {arm} answered is not understood: {error}"
                return None
        self.reason = reply.reason
        return None


def _marked(steps: int, limit_s: float) -> Callable[[Worker], Profiled]:
    return lambda worker: worker.profile(KIND, steps, out="", limit_s=limit_s)
