"""When a cell is done, and how its time is spent: pure, on what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envcompare.stats.intervals import Interval
from envcompare.stats.pairs import Pairs

FIRST_ROUNDS = 3
MIN_ROUNDS, MAX_ROUNDS = 2, 6
MIN_GENERATIONS = 8  # before the first look
MIN_GENERATIONS_A_RESTART, MAX_GENERATIONS_A_RESTART = 2, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was paid so far, in seconds: to launch all arms, for a generation, for a round."""

    launch_s: float
    generation_s: float  # all of it, rounds included
    round_s: float


def stop_reason(
    intervals: Iterable[Interval | None], *, target: float, min_restarts: int
) -> Literal["target", "decided"] | None:
    """Tell whether every arm is done, after enough generations, and by which rule.

    An arm is done when its printed interval is narrower than the target, or when its confidence
    sequence excludes 0; "decided" where at least one arm needed the latter.
    """
    found = tuple(intervals)
    narrow = math.log1p(target)
    done = [
        one is not None
        and one.restarts >= min_restarts
        and one.generations >= MIN_GENERATIONS
        and (one.is_decided or one.half_width <= narrow)
        for one in found
    ]
    if not done or not all(done):
        return None
    is_narrow = all(one is not None and one.half_width <= narrow for one in found)
    return "target" if is_narrow else "decided"


def generations_per_restart(costs: Costs, *, remaining_s: float, restarts_to_come: int) -> int:
    """Spread generations evenly: enough to repay a launch, few enough for the restarts to come.

    `remaining_s` is the time left when the restart began, this restart included.
    """
    worth = math.ceil(costs.launch_s / max(costs.generation_s, 1e-9))
    affordable = math.floor(
        (remaining_s / max(1, restarts_to_come) - costs.launch_s) / max(costs.generation_s, 1e-9)
    )
    wanted = min(MAX_GENERATIONS_A_RESTART, max(MIN_GENERATIONS_A_RESTART, worth))
    return max(1, min(wanted, affordable))


def rounds_per_generation(samples: Iterable[Pairs], costs: Costs, *, rounds: int) -> int:
    """Return r = √((cost of a generation ÷ cost of a round) · (variance within ÷ between)).

    Clamped to 2…6; 6 where the variance between generations is not positive (Kalibera and Jones
    2013). `rounds` is what the generations so far had.
    """
    variances = [found for pairs in samples if (found := _variances(pairs)) is not None]
    if not variances:
        return rounds
    within = float(np.mean([one[0] for one in variances]))
    between = float(np.mean([one[1] for one in variances])) - within / rounds
    if between <= 0:
        return MAX_ROUNDS
    base_s = max(costs.generation_s - rounds * costs.round_s, 0.0)
    best = math.sqrt(base_s / max(costs.round_s, 1e-9) * within / between)
    return min(MAX_ROUNDS, max(MIN_ROUNDS, round(best)))


def _variances(pairs: Pairs) -> tuple[float, float] | None:
    """Return the variance within and between the generations of one arm; None below three."""
    values = [np.asarray(rounds) for gens in pairs.values() for rounds in gens.values()]
    usable = [found for found in values if found.size >= 2]
    if len(usable) < 3:
        return None
    within = float(np.mean([found.var(ddof=1) for found in usable]))
    return within, float(np.var([found.mean() for found in usable], ddof=1))
