"""When a cell is done, and how its time is spent: pure, on what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from envcompare.stats import Interval, Pairs

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


def reached_target(
    intervals: Iterable[Interval | None], *, target: float, min_restarts: int
) -> bool:
    """Tell whether every interval is narrower than the target, after enough generations."""
    found = tuple(intervals)
    return bool(found) and all(
        interval is not None
        and interval.restarts >= min_restarts
        and interval.generations >= MIN_GENERATIONS
        and interval.half_width <= math.log1p(target)
        for interval in found
    )


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
    generations = [
        np.asarray(v) for pairs in samples for gens in pairs.values() for v in gens.values()
    ]
    usable = [values for values in generations if values.size >= 2]
    if len(usable) < 3:
        return rounds
    within = float(np.mean([values.var(ddof=1) for values in usable]))
    means = np.asarray([values.mean() for values in usable])
    between = float(means.var(ddof=1)) - within / rounds
    if between <= 0:
        return MAX_ROUNDS
    base_s = max(costs.generation_s - rounds * costs.round_s, 0.0)
    best = math.sqrt(base_s / max(costs.round_s, 1e-9) * within / between)
    return min(MAX_ROUNDS, max(MIN_ROUNDS, round(best)))
