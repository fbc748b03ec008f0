"""When a cell is done, and how its time is spent: pure, on what was measured so far."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envcompare.run_folder.records import Design
from envcompare.stats.intervals import MIN_GENERATIONS, Interval
from envcompare.stats.pairs import Pairs
from envcompare.stats.verdicts import verdict

FIRST_ROUNDS = 6
MIN_ROUNDS, MAX_ROUNDS = 5, 18  # from 5 on a mean is trimmed
SLOW_BLOCK_S = 0.25  # two steps of such a workload last longer than a block should
SLOW_FIRST_ROUNDS = 3
SLOW_MIN_ROUNDS, SLOW_MAX_ROUNDS = 2, 6
MIN_GENERATIONS_A_RESTART, MAX_GENERATIONS_A_RESTART = 2, 6

StopReason = Literal["decided", "equivalent", "target"]
REASONS: tuple[StopReason, ...] = ("decided", "equivalent", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What was paid so far, in seconds: to launch all arms, for a generation, for a round."""

    launch_s: float
    generation_s: float  # all of it, rounds included
    round_s: float
    block_s: float = 0.0  # as calibrated: no wait for neighbours or for the way to the host


def stop_reason(
    intervals: Iterable[Interval | None], *, design: Design, min_restarts: int
) -> StopReason | None:
    """Tell whether every arm is done, after enough generations, and which rule the last one took.

    An arm is done when its printed interval is narrower than the target or lies inside the margin,
    or when its confidence sequence excludes 0. A target below half the margin asks for precision:
    there lying inside the margin is not enough.
    """
    reasons = {_reason(interval, design, min_restarts) for interval in intervals}
    if not reasons or None in reasons:
        return None
    return next(reason for reason in REASONS if reason in reasons)


def _reason(interval: Interval | None, design: Design, min_restarts: int) -> StopReason | None:
    if interval is None or interval.restarts < min_restarts:
        return None
    if interval.generations < MIN_GENERATIONS:
        return None
    if interval.half_width <= math.log1p(design.target):
        return "target"
    if interval.is_decided:
        return "decided"
    is_inside = verdict(interval.low, interval.high, margin=design.margin) == "equivalent"
    return "equivalent" if is_inside and 2 * design.target >= design.margin else None


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


def first_rounds(block_s: float) -> int:
    """Return the rounds of a generation before their spread is known."""
    return SLOW_FIRST_ROUNDS if block_s > SLOW_BLOCK_S else FIRST_ROUNDS


def rounds_per_generation(samples: Iterable[Pairs], costs: Costs, *, rounds: int) -> int:
    """Return r = √((cost of a generation ÷ cost of a round) · (variance within ÷ between)).

    Clamped to 5…18, with slow steps to 2…6; the most where the variance between generations is not
    positive (Kalibera and Jones 2013). `rounds` is what the generations so far had.
    """
    variances = [both for pairs in samples if (both := _variances(pairs)) is not None]
    if not variances:
        return rounds
    least, most = MIN_ROUNDS, MAX_ROUNDS
    if costs.block_s > SLOW_BLOCK_S:
        least, most = SLOW_MIN_ROUNDS, SLOW_MAX_ROUNDS
    within = float(np.mean([within for within, _ in variances]))
    between = float(np.mean([total for _, total in variances])) - within / rounds
    if between <= 0:
        return most
    base_s = max(costs.generation_s - rounds * costs.round_s, 0.0)
    best = math.sqrt(base_s / max(costs.round_s, 1e-9) * within / between)
    return min(most, max(least, round(best)))


def affordable_rounds(
    costs: Costs, *, rounds: int, remaining_s: float, restarts: int, generations: int
) -> int:
    """Return how many rounds a generation may have for all that is still planned to fit.

    `restarts` and `generations` are those to come; `rounds` is what `costs` were paid for.
    """
    if generations < 1:
        return MAX_ROUNDS
    base_s = max(costs.generation_s - rounds * costs.round_s, 0.0)
    each_s = (remaining_s - restarts * costs.launch_s) / generations
    return math.floor((each_s - base_s) / max(costs.round_s, 1e-9))


def _variances(pairs: Pairs) -> tuple[float, float] | None:
    """Return the variance within and between the generations of one arm; None below three."""
    values = [np.asarray(rounds) for gens in pairs.values() for rounds in gens.values()]
    usable = [rounds for rounds in values if rounds.size >= 2]
    if len(usable) < 3:
        return None
    within = float(np.mean([rounds.var(ddof=1) for rounds in usable]))
    return within, float(np.var([rounds.mean() for rounds in usable], ddof=1))
