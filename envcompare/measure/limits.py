"""What a step, a block and its clocks may be, how the time of a cell is spent, and when it is done.

Pure, on what was measured so far; what is beyond a limit is named, and gives no number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from envcompare.measure.worker import Hello
from envcompare.run_folder.records import Block, Design, Failure
from envcompare.stats.intervals import MIN_GENERATIONS, Interval
from envcompare.stats.pairs import Pairs
from envcompare.stats.verdicts import verdict
from envcompare.text import counted

BLOCK_S = 0.1  # rounds spread as much at 0.1 s as at 0.3 s, so that more of them say more
_WARMUP_S = 0.3
MIN_STEPS, MAX_STEPS = 2, 2000  # in a block; each step is two numbers of a line of samples.jsonl
_MIN_STEP_S = 10e-6  # reading both clocks takes 0.5 to 1 µs, a tenth of it
MIN_BLOCK_LIMIT_S = 60.0
MIN_BEGIN_LIMIT_S, MAX_BEGIN_LIMIT_S = 60.0, 300.0
_SLOWEST_BLOCK = 20  # times what was expected, before it is taken to hang or to have stood still
_BLOCKS_TO_KNOW = 3  # of an arm, before one of them can be absurd
_CPU_SLACK_NS = 50_000_000  # CPU time is counted in ticks of up to 10 ms
FIRST_ROUNDS = 6
MIN_ROUNDS, MAX_ROUNDS = 5, 18  # from 5 on a mean is trimmed
SLOW_BLOCK_S = 0.25  # two steps of such a workload last longer than a block should
SLOW_FIRST_ROUNDS = 3
SLOW_MIN_ROUNDS, SLOW_MAX_ROUNDS = 2, 6
MIN_GENERATIONS_A_RESTART, MAX_GENERATIONS_A_RESTART = 2, 6

StopReason = Literal["decided", "equivalent", "target"]
REASONS: tuple[StopReason, ...] = ("decided", "equivalent", "target")


def steps_a_block(step_s: float) -> int:
    """Return how many steps last about 0.1 s, within the bounds of a block."""
    return min(MAX_STEPS, max(MIN_STEPS, round(BLOCK_S / max(step_s, 1e-9))))


def begin_limit_s(budget_s: float, *, remaining_s: float) -> float:
    """Return how long to wait for a worker, or for its setup with the first step.

    What is left of the budget, though at the most 5 minutes or a tenth of the budget: one arm that
    hangs must not use it up. A step of a hundredth of the budget, as `too_long` asks, always fits.
    """
    return max(MIN_BEGIN_LIMIT_S, min(remaining_s, max(MAX_BEGIN_LIMIT_S, budget_s / 10)))


def block_limit_s(expected_s: float) -> float:
    """Return how long to wait for a block that should take `expected_s`."""
    return max(MIN_BLOCK_LIMIT_S, _SLOWEST_BLOCK * expected_s)


def expected_block_s(first_step_s: float) -> float:
    """Return what a block may be expected to take, seen from the first step of a generation.

    A block of more than the fewest steps was calibrated to 0.1 s.
    """
    return max(BLOCK_S, MIN_STEPS * first_step_s)


def warmup_steps(steps: int, first_step_s: float) -> int:
    """Return the steps of the discarded block: those of a block, or as many as last 0.3 s.

    A first step says what a step takes only where a block has the fewest; else it is far slower.
    """
    block_s = BLOCK_S if steps > MIN_STEPS else expected_block_s(first_step_s)
    return steps * max(1, round(_WARMUP_S / block_s))


def too_long(arm: str, step_s: float, budget_s: float) -> Failure | None:
    """Refuse a step that takes longer than the whole budget of a cell."""
    if step_s <= budget_s:
        return None
    return Failure(
        phase="step",
        brief=f"{arm}: one step took {step_s:.3g} s, longer than the budget of {budget_s:.3g} s",
        details="a cell needs at least 4 restarts, each with some blocks of 2 steps for every arm",
        hint=f"give --budget {_roughly(100 * step_s)} or more, or make the step smaller, "
        "for example by a smaller batch with --set",
    )


def too_short(arm: str, step_s: float) -> Failure | None:
    """Refuse a step that the clock cannot tell from the reading of the clock."""
    if step_s >= _MIN_STEP_S:
        return None
    return Failure(
        phase="step",
        brief=f"{arm}: a step takes {step_s * 1e6:.2g} µs, up to 1 µs of it for reading the clocks",
        details=f"below {_MIN_STEP_S * 1e6:.0f} µs a step the clock itself would be measured",
        hint="put more work into a step, for example 1000 rounds of what it does now",
    )


def short_block_caution(step_s: float, steps: int) -> str:
    """Say that even the most steps fill no block; empty where they do."""
    block_s = steps * step_s
    if steps < MAX_STEPS or block_s >= 0.9 * BLOCK_S:
        return ""
    return (
        f"a block lasts {block_s * 1e3:.0f} ms and not {BLOCK_S * 1e3:.0f} ms, since a step takes "
        f"{step_s * 1e6:.0f} µs and a block has at most {MAX_STEPS} steps: it is more easily "
        "disturbed; put more work into a step"
    )


def one_cpu_caution(hello: Hello) -> str:
    """Say that a worker has one CPU only; empty where it has more, or did not tell."""
    cpus = (hello.fingerprint or {}).get("cpu.affinity")
    if not isinstance(cpus, tuple) or len(cpus) != 1:
        return ""
    return (
        f"all arms run on the one CPU {cpus[0]}: what the system and envcompare itself do there "
        "disturbs every block; give --pin two CPUs or more, or a host that has them"
    )


def small_budget_caution(budget_s: float, *, generations: int, needed_s: float) -> str:
    """Say that too little was measured for any interval, and what budget would do."""
    if generations >= 2:
        return ""
    count = "1 generation" if generations == 1 else f"{generations} generations"
    return (
        f"the budget of {budget_s:.3g} s fitted {count}, and an interval needs two at the least: "
        f"give --budget {_roughly(needed_s)} or more"
    )


@dataclass(slots=True)
class ClockWatch:
    """Finds the blocks of a cell whose times cannot be true; it remembers those before."""

    _steps_ns: dict[str, list[float]] = field(default_factory=dict)
    _ends_ns: dict[str, int] = field(default_factory=dict)

    def fault(self, block: Block, *, cpus: int | None) -> str:
        """Return why no number may be made of a block; empty where nothing speaks against it."""
        wall_ns = sum(block.wall_ns)
        fault = (
            _impossible(block, wall_ns, cpus)
            or self._backwards(block)
            or self._stood_still(block, wall_ns)
        )
        self._ends_ns[block.arm] = block.t0_ns + max(0, wall_ns)
        if not fault:
            self._steps_ns.setdefault(block.arm, []).append(wall_ns / block.k)
        return fault

    def _backwards(self, block: Block) -> str:
        end_ns = self._ends_ns.get(block.arm)
        if end_ns is None or block.t0_ns >= end_ns:
            return ""
        return f"its clock went back by {(end_ns - block.t0_ns) / 1e9:.3g} s since the last block"

    def _stood_still(self, block: Block, wall_ns: int) -> str:
        """Find a block that is long beyond reason, and neither computed nor waited for a CPU.

        A block that is as slow for a reason of its own has used its time, and stays.
        """
        steps = self._steps_ns.get(block.arm, [])
        if len(steps) < _BLOCKS_TO_KNOW:
            return ""
        usual_ns = statistics.median(steps) * block.k
        used_ns = sum(block.cpu_ns) + (block.wait_ns or 0)
        if wall_ns <= _SLOWEST_BLOCK * usual_ns or 2 * used_ns > wall_ns:
            return ""
        return (
            f"it took {wall_ns / 1e9:.3g} s, not {usual_ns / 1e9:.3g} s, and used only "
            f"{used_ns / 1e9:.3g} s of it: the clock jumped or the machine stalled"
        )


def _impossible(block: Block, wall_ns: int, cpus: int | None) -> str:
    cpu_ns = sum(block.cpu_ns)
    if wall_ns <= 0 or min(block.wall_ns, default=0) < 0 or min(block.cpu_ns, default=0) < 0:
        return f"its clock did not go forward ({wall_ns} ns for {block.k} steps)"
    if cpus is not None and cpu_ns > 1.5 * wall_ns * cpus + _CPU_SLACK_NS:
        return (
            f"it used {cpu_ns / 1e9:.3g} s of CPU time in {wall_ns / 1e9:.3g} s on {cpus} CPUs: "
            "its clock jumped"
        )
    return ""


def cpu_count(hello: Hello | None) -> int | None:
    """Return how many CPUs a worker may use, None where it did not tell."""
    cpus = ((hello.fingerprint if hello else None) or {}).get("cpu.affinity")
    return len(cpus) if isinstance(cpus, tuple) else None


def _roughly(seconds: float) -> str:
    """Return a number of seconds that nobody reads more into, rounded up."""
    step = 10 if seconds > 30 else 1
    return f"{-(-seconds // step) * step:.0f}"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """How the rest of a budget is to be spent: restarts, the present one included, and rounds."""

    restarts: int
    rounds: int
    needed_s: float  # of budget, for all the restarts that are wanted


def plan_restarts(
    costs: Costs, *, rounds: int, remaining_s: float, budget_s: float, restarts: int
) -> RestartPlan:
    """Plan from what a launch and the begin of a generation have cost, before any block is timed.

    `costs.generation_s` is that of the begin alone. Rounds are given up, down to 2, where all
    restarts fit only so: a launch cannot be made cheaper, and too few give no verdict.
    """

    def spent_s(count: int) -> float:
        return (count + 1) * costs.round_s  # with the one that warms up

    def fitting(count: int) -> int:
        each_s = costs.launch_s + costs.generation_s + spent_s(count)
        return 1 + max(0, math.floor((remaining_s - spent_s(count)) / max(each_s, 1e-9)))

    counts = range(rounds, min(rounds, SLOW_MIN_ROUNDS) - 1, -1)
    best = next((count for count in counts if fitting(count) >= restarts), counts[-1])
    least_s = costs.launch_s + costs.generation_s + spent_s(counts[-1])
    missing_s = (restarts - 1) * least_s + spent_s(counts[-1]) - remaining_s
    return RestartPlan(restarts=fitting(best), rounds=best, needed_s=budget_s + missing_s)


def plan_text(plan: RestartPlan, costs: Costs, *, remaining_s: float, restarts: int) -> str:
    """Say how many restarts fit, from which costs, and what more budget would do."""
    enough = (
        f"; {restarts} are needed: give --budget {_roughly(plan.needed_s)} or more"
        if plan.restarts < restarts
        else ""
    )
    count = "1 restart fits" if plan.restarts == 1 else f"{plan.restarts} restarts fit"
    rounds = counted(plan.rounds, "round")
    return (
        f"plan: {count} the {remaining_s:.0f} s left of the budget, with {rounds} in a "
        f"generation: a launch of all arms takes {costs.launch_s:.1f} s, the begin of a generation "
        f"{costs.generation_s:.1f} s and a round {costs.round_s:.1f} s{enough}"
    )


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
