"""Workers that are far off for a whole restart: recognised by a rule that looks at all arms alike.

Of some hundred forked workers a few take 20 to 50 % longer, or less, for as long as they live, for
no reason that a counter shows. In a restart with such a worker no ratio says anything of an
environment, so that all arms lose it. The rule was fixed before any run: what an arm takes more
than the others in a restart, less the median of that over restarts, is above 10 % and five times
its own error. Of four restarts one may be left out; where more are odd, that is how they scatter.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from envcompare.stats.pairs import Logarithms, Round
from envcompare.stats.typical import centre

LEAST_OFF = math.log(1.1)
_ERRORS = 5.0
_LEAST_RESTARTS = 3  # two tell only that they differ
_LEAST_ROUNDS = 6
_MOST = 0.25  # of the restarts, and at least one


@dataclass(frozen=True, slots=True, kw_only=True)
class OddRestart:
    """A restart that no estimate takes in, with the worker that was farthest off."""

    restart: int
    arm: str
    log_ratio: float  # of its time to what it usually takes against the others


def odd_restarts(values: Logarithms) -> tuple[OddRestart, ...]:
    """Return the restarts that are left out; none below three, or where too many are odd."""
    offsets = {arm: _offsets(values, arm) for arm in values} if len(values) > 1 else {}
    odd: dict[int, OddRestart] = {}
    for arm, by_restart in offsets.items():
        for restart, off in _far(by_restart).items():
            known = odd.get(restart)
            if known is None or abs(off) > abs(known.log_ratio):
                odd[restart] = OddRestart(restart=restart, arm=arm, log_ratio=off)
    count = len({number[0] for by_round in values.values() for number in by_round})
    if len(odd) > max(1, math.floor(_MOST * count)):
        return ()
    return tuple(odd[restart] for restart in sorted(odd))


def _offsets(values: Logarithms, arm: str) -> dict[int, list[float]]:
    """Return by restart how far an arm lies above the median of the others, round by round."""
    others = [by_round for name, by_round in values.items() if name != arm]
    offsets: dict[int, list[float]] = {}
    for number, value in values[arm].items():
        beside = _at(others, number)
        if beside:
            offsets.setdefault(number[0], []).append(value - statistics.median(beside))
    return {restart: kept for restart, kept in offsets.items() if len(kept) >= _LEAST_ROUNDS}


def _at(arms: list[Mapping[Round, float]], number: Round) -> list[float]:
    return [by_round[number] for by_round in arms if number in by_round]


def _far(offsets: dict[int, list[float]]) -> dict[int, float]:
    """Return the restarts in which an arm is far from where it usually is, and how far."""
    if len(offsets) < _LEAST_RESTARTS:
        return {}
    centres = {restart: centre(tuple(kept)) for restart, kept in offsets.items()}
    usual = statistics.median(median for median, _ in centres.values())
    offs = {restart: (median - usual, error) for restart, (median, error) in centres.items()}
    return {
        restart: off
        for restart, (off, error) in offs.items()
        if abs(off) > max(LEAST_OFF, _ERRORS * error)
    }
