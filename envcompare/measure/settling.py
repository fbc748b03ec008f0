"""Whether steps after a pause take as long as in a loop, and how turns are lengthened if not.

What serves an arm, such as a FUSE daemon, may be faster after a pause; the scheduler may need time
to part a worker from its helper. Reads through squashfuse took two thirds of their usual time for
0.15 s, and a worker shared its CPU with its sidecar for up to 35 ms (two cases of
benchmarks/felt.py, timed by hand on one host).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envcompare.measure.limits import BLOCK_S
from envcompare.measure.replies import Ran

LEAST_SETTLING_S, MOST_SETTLING_S = 0.05, 0.2
SHORT_BLOCK_S = 0.05  # longer blocks settle by themselves
LOOP_S = 0.25  # of a discarded turn, whose second half counts
_ROUNDS, _MOST_ROUNDS, _LOOPS_AGAIN = 12, 48, 3
LOOKS_S = (1 + _LOOPS_AGAIN) * LOOP_S  # of each arm, in two looks: usually enough
_LEAST_GAIN = 0.025  # as a log ratio: less is not worth longer turns
_ERRORS = 3  # standard errors that a difference must exceed

_HELD_ERRORS = 4  # of a sign test, since there is a look after each round
_HELD_WAIT = 0.01  # share of a block

Loops = Sequence[Mapping[str, Ran]]
"""Discarded turns, each with a long block of every arm."""
Rounds = Sequence[Mapping[str, float]]
"""The logarithm of the mean step of each arm, by round."""


@dataclass(slots=True)
class Settling:
    """The looks at what a pause changes; it has to be seen twice, in different rounds and loops."""

    is_settled: bool = True
    is_seen: bool = False
    _looks: int = 0  # at these rounds
    _rounds: list[Mapping[str, float]] = field(default_factory=list)
    _loops: list[Mapping[str, Ran]] = field(default_factory=list)

    def begin(self) -> None:
        """Look at the rounds from now on."""
        self.is_settled = self.is_seen = False
        self._clear()

    def add(self, blocks: Mapping[str, Ran]) -> None:
        """Add a round."""
        if not self.is_settled:
            self._rounds.append({arm: _log_mean(ran.wall_ns) for arm, ran in blocks.items()})

    @property
    def is_due(self) -> bool:
        """Tell whether there are enough rounds for a look, and one is to come."""
        return not self.is_settled and len(self._rounds) >= _ROUNDS * (1 + self._looks)

    @property
    def loops(self) -> int:
        """Return how many more loops the next look needs."""
        return _LOOPS_AGAIN if self.is_seen and not self._looks else 1

    def look(self, loops: Loops, *, reference: str, margin: float) -> float:
        """Return for how long turns have to settle, in seconds; 0 if that is not sure (yet)."""
        self._looks += 1
        self._loops += loops
        wanted_s = settling_s(self._loops, self._rounds, reference=reference, margin=margin)
        if wanted_s:
            was_seen, self.is_seen = self.is_seen, True
            self._clear()
            return wanted_s if was_seen else 0.0
        self.is_settled = wanted_s is not None or len(self._rounds) >= _MOST_ROUNDS
        return 0.0

    def _clear(self) -> None:
        self._looks = 0
        self._rounds.clear()
        self._loops.clear()


def settling_s(loops: Loops, rounds: Rounds, *, reference: str, margin: float) -> float | None:
    """Return how long after a pause the ratio of an arm becomes what it is in a loop; 0: at once.

    The mean log ratio of an arm to the reference over all rounds has to differ from that in the
    second halves of the loops by more than 3 standard errors, and by more than 2.5 % and half the
    margin. None: too few rounds to tell, since a difference of one error more would be too large.
    """
    limit = max(_LEAST_GAIN, math.log1p(margin / 2))
    arms = [arm for arm in loops[0] if arm != reference] if loops and reference in loops[0] else []
    is_early_different = is_different = is_unsure = False
    for arm in arms:
        turns = [one[arm] - one[reference] for one in rounds if arm in one and reference in one]
        ours, theirs = ([*_late(loops, name)] for name in (arm, reference))
        if min(map(len, (turns, ours, theirs))) < 2:
            continue
        late = statistics.fmean(ours) - statistics.fmean(theirs)
        error = math.sqrt(sum(statistics.variance(x) / len(x) for x in (turns, ours, theirs)))
        difference = abs(statistics.fmean(turns) - late)
        is_different |= difference > max(limit, _ERRORS * error)
        is_unsure |= difference + error > limit
        early = [[*_early(loops, name)] for name in (arm, reference)]
        if all(early):
            first = statistics.fmean(early[0]) - statistics.fmean(early[1])
            is_early_different |= abs(first - late) > limit
    if not is_different:
        return None if is_unsure else 0.0
    return MOST_SETTLING_S if is_early_different else LEAST_SETTLING_S


def _late(loops: Loops, arm: str) -> Iterator[float]:
    """Yield the logarithm of the mean step of each 20 ms in the second halves of the loops."""
    for loop in loops:
        steps = loop[arm].wall_ns[len(loop[arm].wall_ns) // 2 :] if arm in loop else ()
        ends_s = itertools.accumulate(step / 1e9 for step in steps)
        parts = itertools.groupby(zip(ends_s, steps, strict=True), lambda one: one[0] // BLOCK_S)
        yield from (_log_mean([step for _, step in part]) for _, part in parts)


def _early(loops: Loops, arm: str) -> Iterator[float]:
    """Yield the logarithms of the steps that begin from 50 to 100 ms after a pause."""
    for loop in loops:
        steps = loop[arm].wall_ns if arm in loop else ()
        begins_s = (ns / 1e9 for ns in itertools.accumulate(steps, initial=0))
        for step, begin_s in zip(steps, begins_s, strict=False):
            if LEAST_SETTLING_S <= begin_s < 2 * LEAST_SETTLING_S:
                yield _log_mean([step])


def _log_mean(steps_ns: Sequence[float]) -> float:
    return math.log(max(1.0, statistics.fmean(steps_ns)))


@dataclass(slots=True)
class HeldWaits:
    """How often an arm waited longer for a CPU than the reference, in rounds held on one CPU."""

    _rounds: int = 0
    _longer: dict[str, int] = field(default_factory=dict)
    _shorter: dict[str, int] = field(default_factory=dict)

    def add(self, blocks: Mapping[str, Ran], reference: str) -> None:
        """Add a round, if its blocks were held on one CPU."""
        if reference not in blocks or not all(ran.is_held for ran in blocks.values()):
            return
        self._rounds += 1
        usual = _waited(blocks[reference])
        for arm, ran in blocks.items():
            more = _waited(ran) - usual
            self._longer[arm] = self._longer.get(arm, 0) + (more > _HELD_WAIT)
            self._shorter[arm] = self._shorter.get(arm, 0) + (more < -_HELD_WAIT)

    @property
    def harm(self) -> bool:
        """Tell whether something of an arm, or of the reference, needs the CPU of its worker.

        Neighbors of the host make an arm wait longer as often as the reference.
        """
        pairs = [(count, self._shorter[arm]) for arm, count in self._longer.items()]
        return any(
            abs(longer - shorter) >= max(_HELD_ERRORS * math.sqrt(longer + shorter), 1)
            and max(longer, shorter) >= self._rounds / 4
            for longer, shorter in pairs
        )


def _waited(ran: Ran) -> float:
    """Return the share of a block in which its step waited for a CPU."""
    return (ran.wait_ns or 0) / max(1, sum(ran.wall_ns))
