"""What a step, a block and its clocks may be, how the time of a cell is spent, and when it is done.

Pure, on what was measured so far; what is beyond a limit is named, and gives no number.

Whether steps after a pause take as long as in a loop is looked at here too. What serves an arm,
such as a FUSE daemon, may be faster after a pause; the scheduler may need time to part a worker
from its helper. Reads through squashfuse took two thirds of their usual time for 0.15 s, and a
worker shared its CPU with its sidecar for up to 35 ms (two cases of benchmarks/felt.py, timed by
hand on one host).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from envcompare.measure import Generated, Hello, LaunchSpec, Ran
from envcompare.run_folder.records import Block, Design, Failure
from envcompare.stats.intervals import Interval
from envcompare.stats.metrics import OUTSIDE_SHARE, spinning_ns
from envcompare.stats.typical import MIN_ROUNDS, PRIOR_SPREAD, expected_half_width
from envcompare.stats.verdicts import verdict
from envcompare.text import counted

# A round of 20 ms scatters hardly more than one of 0.1 s, and a budget holds more of them.
BLOCK_S = 0.02
STOPPED_BLOCK_S, MAX_STOPPED_BLOCK_S = 0.2, 2.0  # where arms are stopped between their turns
# What a step waits for arrives while its arm is stopped too, so a block lasts for many waits.
_WAITS = 20
_LEAST_RUN_IN_S, _MOST_RUN_IN_S = 0.005, 1.0
_LONG_STEP_S = 2.0
# Ten periods of a quota, 100 ms as engines set them, and one: a pause restores a quota's budget.
QUOTA_BLOCK_S, QUOTA_RUN_IN_S = 1.0, 0.1
# A slower arm warms up for some steps more, to show how its times change.
_LEAST_WARMUP_STEPS, _SHORT_WARMUP_S = 6, 0.5
_LONGER_BLOCK, _LONGER_STOPPED_BLOCK = 4, 1.5  # times the length wanted, of a slower arm's block
# Under a profiler a step may take so many times as long: what is done around it is slow too.
_SLOWER = 20
# Each step of a block is two numbers of a line of samples.jsonl, so their number is limited.
MIN_STEPS, MAX_STEPS = 1, 2000
_GPU_SCRIPT_STEPS = 20
MIN_BLOCK_LIMIT_S = 60.0
MIN_BEGIN_LIMIT_S, MAX_BEGIN_LIMIT_S = 60.0, 300.0
# A budget should hold so many steps, or compilations, of which each arm needs one only.
_STEPS, _COMPILATIONS = 100, 10
_SLOWEST_BLOCK = 20  # times what was expected, before it is taken to hang or to have stood still
# A shorter gap is no stall, since a step may wait for a disk or a network.
_STALL_NS = 2e9
# Bundled workloads whose steps do more than compute.
_WAITING = frozenset({"compile", "ddp", "files", "loader", "startup"})
_BLOCKS_TO_KNOW = 3  # of an arm, before one of them can be absurd
_USUAL_BLOCKS = 1000  # the last ones of an arm, which say what is usual
# CPU time is counted in ticks of up to 10 ms, so a short block may seem to use too much of it.
_CPU_SLACK_NS = 50_000_000
LEAST_MEASURING_S, MOST_MEASURING_S = 2.0, 40.0  # of a restart
_ROUNDING = 1e-6  # of a restart
OVERTIME_SHARE = 0.5  # of the budget, for the least number of restarts

StopReason = Literal["decided", "equivalent", "target", "planned"]
REASONS: tuple[StopReason, ...] = ("decided", "equivalent", "target", "planned")
CellEnd = StopReason | Literal["budget", "failure"]


def steps_a_block(
    step_s: float, *, block_s: float = BLOCK_S, is_script_on_gpu: bool = False
) -> int:
    """Return how many steps last as long as a block should, within the bounds of a block.

    The GPU of a script is idle at both ends of a block, but works ahead in a loop.
    """
    least = _GPU_SCRIPT_STEPS if is_script_on_gpu else MIN_STEPS
    return min(MAX_STEPS, max(least, round(block_s / max(step_s, 1e-9))))


def has_quota(hellos: Iterable[Hello], *, threads: int) -> bool:
    """Tell whether a quota of an arm is below the threads that run.

    An arm computes in its turn only, and a pause gives a quota its budget back. In short turns it
    would stay below one that stops work which computes all the time (kernel: sched-bwc.rst).
    """
    facts = ((hello.fingerprint or {}).get("cgroup.cpu_quota") for hello in hellos)
    return any(isinstance(fact, int | float) and fact < threads for fact in facts)


def run_in_steps(run_in_s: float, step_s: float, *, share: float, stops: bool) -> int:
    """Return how many untimed steps begin a turn: for one to two times `run_in_s`, by `share`.

    They use up what a pause leaves: answers that came meanwhile, the budget of a quota. With a
    share drawn uniformly from 0 to 1 the timed steps begin at any step between two answers, or in a
    period of a quota, so that on average they take as long as in a loop of hours. Drawn by time
    they would often begin after a long step, and hold one less. There is at least one, except for
    steps that are far longer than a period of a quota.
    """
    least = run_in_s > 0 and (stops or step_s < _LONG_STEP_S)
    return max(int(least), round((1 + share) * run_in_s / max(step_s, 1e-9)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerBlock:
    """The block of an arm that is far slower than the reference."""

    steps: int
    step_s: float

    def warmup_steps(self, wanted_s: float) -> int:
        """Return how many steps last for `wanted_s`: at least those of a block, and some."""
        some = min(_LEAST_WARMUP_STEPS, round(_SHORT_WARMUP_S / max(self.step_s, 1e-9)))
        return max(self.steps, some, round(wanted_s / max(self.step_s, 1e-9)))


def slower_block(steps: int, step_s: float, *, block_s: float) -> SlowerBlock | None:
    """Return the block of an arm in which the reference's steps would last too long, else None.

    Blocks that wait for something, such as what a stopped arm has started, are long already.
    """
    is_long = block_s >= STOPPED_BLOCK_S
    longest_s = (_LONGER_STOPPED_BLOCK if is_long else _LONGER_BLOCK) * block_s
    if steps * step_s <= longest_s:
        return None
    fewer = steps_a_block(step_s, block_s=longest_s)
    return SlowerBlock(steps=fewer, step_s=step_s) if fewer < steps else None


def works_outside(ran: Ran, *, threads: int) -> bool:
    """Tell whether something of an arm may work, for its next steps, while others have their turns.

    A child may; so may a thread that was given a CPU since the block before.
    """
    # Pools of threads spin for a while after a block, which is no work (docs/measurement.md).
    used_ns = (ran.outside_cpu_ns or 0) - spinning_ns(threads)
    return bool(ran.children or ran.outside_runs) or used_ns > OUTSIDE_SHARE * sum(ran.wall_ns)


def longest_wait_s(blocks: Iterable[Ran]) -> float:
    """Return the longest wait of a step for anything but a CPU, from 5 ms to 1 s.

    Timers and requests in flight end while a process is stopped.
    """
    waits_ns = (wall - cpu - (ran.wait_ns or 0) for ran in blocks for wall, cpu in _times(ran))
    return min(_MOST_RUN_IN_S, max(_LEAST_RUN_IN_S, max(waits_ns, default=0) / 1e9))


def stopped_block_s(wait_s: float, step_s: float, *, children: int, margin: float) -> float:
    """Return how long a block should last where arms are stopped between their turns.

    At 20 times the longest wait of a step it holds many answers. Each child may have one answer for
    free in a turn: with children ÷ margin steps these hide no more than the margin.
    """
    wanted_s = max(STOPPED_BLOCK_S, _WAITS * wait_s, step_s * children / margin)
    return min(MAX_STOPPED_BLOCK_S, wanted_s)


def _times(ran: Ran) -> Iterable[tuple[float, float]]:
    """Return wall and CPU time of each step; of a GPU the mean, as the last step waits for all."""
    if not ran.gpu_ns:
        return zip(ran.wall_ns, ran.cpu_ns, strict=True)
    k = len(ran.wall_ns)
    return ((sum(ran.wall_ns) / k, sum(ran.cpu_ns) / k),)


def begin_limit_s(budget_s: float, *, remaining_s: float) -> float:
    """Return how long to wait for a worker, or for its setup with the first step.

    What is left of the budget, though at the most 5 minutes or a tenth of the budget: one arm that
    hangs must not use it up. A step of a hundredth of the budget, as `too_long` asks, always fits.
    """
    return max(MIN_BEGIN_LIMIT_S, min(remaining_s, max(MAX_BEGIN_LIMIT_S, budget_s / 10)))


def limit_s(start_s: float, steps: int, step_s: float) -> float:
    """Return how long to wait for a profile of steps that usually take `step_s` each."""
    return start_s + _SLOWER * steps * step_s


def block_limit_s(expected_s: float) -> float:
    """Return how long to wait for a block that should take `expected_s`."""
    return max(MIN_BLOCK_LIMIT_S, _SLOWEST_BLOCK * expected_s)


def budget_text(design: Design) -> str:
    """Name the budget of a cell as it was given, and a session's part of it."""
    if design.sessions > 1:
        whole_s = design.budget_s * design.sessions
        return f"a session's {design.budget_s:.3g} s of the budget of {whole_s:g} s"
    return f"the budget of {design.budget_s:g} s"


def _advice(needed_s: float, design: Design) -> str:
    """Advise the budget in which each session has what one needs."""
    return f"give --budget {_roughly(needed_s * design.sessions)} or more"


def too_long(arm: str, begun: Generated, design: Design) -> Failure | None:
    """Refuse a first step that takes longer than the whole budget of a cell."""
    step_s = begun.first_step_ns / 1e9
    if step_s <= design.budget_s:
        return None
    what = "the first step, which compiled the model," if begun.compiled else "one step"
    times = _COMPILATIONS if begun.compiled else _STEPS
    return Failure(
        phase="step",
        brief=f"{arm}: {what} took {step_s:.3g} s, longer than {budget_text(design)}",
        hint=f"{_advice(times * step_s, design)}, or make the step smaller, "
        "for example by a smaller batch with --set",
    )


def restart_s(costs: Costs, *, measuring_s: float = LEAST_MEASURING_S) -> float:
    """Return the least that a restart takes: its launch, `measuring_s`, and half of all rounds."""
    return costs.launch_s + max(measuring_s, MIN_ROUNDS / 2 * costs.round_s)


def overtime_s(costs: Costs, *, remaining_s: float, missing: int, most_s: float) -> float:
    """Return for how long a cell may go on beyond its budget, for a verdict that it would not have.

    A launch may take far longer on a busy machine than at a calm time; where `most_s` more are
    enough for the `missing` restarts, the cell takes what they need. 0: it ends.
    """
    needed_s = missing * restart_s(costs) - remaining_s
    return needed_s if missing > 0 and 0 < needed_s <= most_s else 0.0


def small_budget_caution(design: Design, *, restarts: int, needed_s: float) -> str:
    """Say that fewer restarts were measured than planned, and what larger budget would do."""
    if restarts >= design.min_restarts:
        return ""
    so_far = " so far" * (design.sessions > 1)
    return (
        f"{budget_text(design)} had room for {counted(restarts, 'restart')}{so_far}, and "
        f"{design.min_restarts} were planned: {_advice(max(needed_s, design.budget_s), design)}"
    )


PAUSE_CAUTION = (
    "steps after a pause seem to take another time than in a loop, and the rounds were too few to "
    "be sure: give a longer --budget"
)


SHORT_TURNS = "turns are too short to show what an arm takes in a loop, and longer ones"
WORK_DURING_TURNS = (
    "something that an arm started works during the turns of others, and rounds that stop it"
)


def no_room_caution(what: str, design: Design, needed_s: float) -> str:
    """Say what has no room, one of the two above, and which budget would do."""
    advice = _advice(design.budget_s + needed_s, design)
    return f"{what} do not fit {budget_text(design)}: {advice}"


@dataclass(slots=True)
class ClockWatch:
    """Finds the blocks of a cell whose times cannot be true; it remembers those before."""

    _steps_ns: dict[str, deque[float]] = field(default_factory=dict)
    _ends_ns: dict[str, int] = field(default_factory=dict)

    def fault(
        self, block: Block, *, cpus: int | None, took_s: float = math.inf, may_wait: bool = False
    ) -> str:
        """Return why no number may be made of a block; empty where nothing speaks against it.

        The answer came after `took_s`. With `may_wait`, a long step without CPU time, such as a
        checkpoint, is no fault.
        """
        wall_ns = sum(block.wall_ns)
        fault = _impossible(block, wall_ns, cpus)
        if not fault and wall_ns > 1.5e9 * took_s + _STALL_NS:
            fault = f"it took {wall_ns / 1e9:.3g} s by a clock that jumped, and {took_s:.3g} s here"
        # A warm-up is the first of a launch, and each sandbox of gVisor has a new clock.
        end_ns = self._ends_ns.get(block.arm) if block.round >= 0 else None
        if not fault and end_ns is not None and block.t0_ns < end_ns:
            back_s = (end_ns - block.t0_ns) / 1e9
            fault = f"its clock went back by {back_s:.3g} s since the last block"
        if not fault and not may_wait:
            fault = self._stood_still(block, wall_ns)
        self._ends_ns[block.arm] = block.t0_ns + max(0, wall_ns)
        # The times of a block at fault must not change what is usual for its arm.
        if not fault:
            steps = self._steps_ns.setdefault(block.arm, deque(maxlen=_USUAL_BLOCKS))
            steps.append(wall_ns / block.k)
        return fault

    def _stood_still(self, block: Block, wall_ns: int) -> str:
        """Find a block that is long beyond reason, and neither computed nor waited for a CPU.

        A block that computed or waited for half of its time is kept, however slow it is.
        """
        steps = self._steps_ns.get(block.arm, ())
        if len(steps) < _BLOCKS_TO_KNOW:
            return ""
        usual_ns = statistics.median(steps) * block.k
        used_ns = sum(block.cpu_ns) + (block.wait_ns or 0)
        if wall_ns <= max(_SLOWEST_BLOCK * usual_ns, _STALL_NS) or 2 * used_ns > wall_ns:
            return ""
        return (
            f"it took {wall_ns / 1e9:.3g} s, not {usual_ns / 1e9:.3g} s, and used only "
            f"{used_ns / 1e9:.3g} s of it: the clock jumped or the machine stalled"
        )


def may_wait(spec: LaunchSpec) -> bool:
    """Tell whether a step may wait for seconds, for files or other processes.

    A step of the user's own may hold a checkpoint, which takes long and needs no CPU time.
    """
    is_own = bool(spec.cwd) or ":" in spec.workload  # a script, or FILE:CLASS
    return is_own or spec.workload in _WAITING


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


def _roughly(seconds: float) -> str:
    """Return a number of seconds that nobody reads more into, rounded up."""
    step = 10 if seconds > 30 else 1
    return f"{-(-seconds // step) * step:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a restart has cost, in seconds, and how much its rounds say."""

    launch_s: float  # of all arms, up to the first round
    round_s: float = 0.0
    round_spread: float = 0.05  # standard deviation of a log ratio
    restart_spread: float = PRIOR_SPREAD  # and of what a restart adds to it
    restarts: int = 0  # that are over
    rounds: int = 0  # in them
    compared: int = 1  # arms without the reference, control included
    level: float = 0.95  # of the intervals


def stop_reason(
    intervals: Iterable[Interval | None], *, design: Design, min_restarts: int
) -> StopReason | None:
    """Tell whether every arm is done, and which rule the last one took.

    An arm is done when its printed interval is narrower than the target or lies inside the margin,
    or when its estimate lies farther from 0 than 1.2 times the half-width. A target below half the
    margin asks for precision: there lying inside the margin is not enough.
    """
    reasons = {_reason(interval, design, min_restarts) for interval in intervals}
    if not reasons or None in reasons:
        return None
    return next(reason for reason in REASONS if reason in reasons)


def _reason(interval: Interval | None, design: Design, min_restarts: int) -> StopReason | None:
    if interval is None or interval.restarts < min_restarts:
        return None
    if interval.half_width <= math.log1p(design.target):
        return "target"
    if interval.is_decided:
        return "decided"
    is_inside = verdict(interval.low, interval.high, margin=design.margin) == "equivalent"
    return "equivalent" if is_inside and 2 * design.target >= design.margin else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPlan:
    """How the rest of a budget is to be spent: restarts, and for how long each measures."""

    restarts: int
    measuring_s: float


def plan_restarts(
    costs: Costs,
    *,
    remaining_s: float,
    missing: int,
    is_launched: bool = False,
    overtime_s: float = math.inf,
) -> RestartPlan:
    """Share what is left among the restarts to come, all alike, so that intervals are narrowest.

    `missing` of them are needed for a verdict: their launches come first, and what they measure is
    shortened for them. Where fewer fit, each measures for 4 s at most, since what is left may with
    `overtime_s` yet be enough for another. With `is_launched` one of them has its workers already.
    No restarts: what is left is not worth a launch.
    """
    left_s = remaining_s + (costs.launch_s if is_launched else 0.0)
    least_s = restart_s(costs, measuring_s=LEAST_MEASURING_S / 2)
    # what overtime has added is exactly enough, but for rounding
    possible = max(int(is_launched), math.floor(left_s / max(least_s, 1e-9) + _ROUNDING))
    restarts = min(max(missing, _narrowest(costs, left_s), int(is_launched)), possible)
    if restarts < 1:
        return RestartPlan(restarts=0, measuring_s=0.0)
    each_s = left_s / restarts - costs.launch_s
    is_short = restarts < missing and missing * restart_s(costs) <= left_s + overtime_s
    return RestartPlan(
        restarts=restarts,
        measuring_s=min(each_s, 2 * LEAST_MEASURING_S) if is_short else each_s,
    )


def _narrowest(costs: Costs, left_s: float) -> int:
    """Return how many restarts in the time that is left are to make the half-width least.

    Each measures between 2 and 40 s.
    """
    most = math.floor(left_s / (costs.launch_s + LEAST_MEASURING_S))
    if most < 1:
        return 0
    least = math.ceil(left_s / (costs.launch_s + MOST_MEASURING_S))
    more = np.arange(min(max(1, least), most), most + 1, dtype=float)
    rounds = costs.rounds + (left_s - more * costs.launch_s) / max(costs.round_s, 1e-9)
    widths = expected_half_width(
        costs.restarts + more,
        rounds,
        round_spread=costs.round_spread,
        restart_spread=costs.restart_spread,
        comparisons=costs.compared,
        level=costs.level,
    )
    return int(more[np.argmin(widths)])


def plan_text(
    plan: RestartPlan, costs: Costs, *, remaining_s: float, design: Design, missing: int
) -> str:
    """Say how many restarts fit, from which costs, and what more budget would do."""
    needed_s = design.budget_s + (missing - plan.restarts) * restart_s(costs)
    enough = (
        f"; {missing} are needed: {_advice(needed_s, design)}" if plan.restarts < missing else ""
    )
    # The launch alone may take more than the budget.
    each_s = max(0.0, plan.measuring_s)
    count = "1 restart fits" if plan.restarts == 1 else f"{plan.restarts} restarts fit"
    return (
        f"plan: {count} the {remaining_s:.0f} s left of the budget: a launch of all arms takes "
        f"{costs.launch_s:.1f} s, and each measures for {each_s:.0f} s{enough}"
    )


LEAST_SETTLING_S, MOST_SETTLING_S = 0.05, 0.2
# A longer block settles by itself.
SHORT_BLOCK_S = 0.05
LOOP_S = 0.25  # of a discarded turn, whose second half counts
_LOOK_ROUNDS, _MOST_LOOK_ROUNDS, _LOOPS_AGAIN = 12, 48, 3
# A smaller difference of a log ratio is not worth longer turns.
_LEAST_GAIN, _LEAST_SHARE = 0.025, 0.05
_LOOK_ERRORS = 3  # standard errors that a difference must exceed

# A sign test must exclude chance by so many standard errors, as there is a look after each round.
_HELD_ERRORS = 4
_HELD_WAIT = 0.01  # share of a block

Loops = Sequence[Mapping[str, Ran]]
"""Discarded turns, each with a long block of every arm."""
Rounds = Sequence[Mapping[str, float]]
"""The logarithm of the mean step of each arm, by round."""


@dataclass(slots=True)
class Settling:
    """The looks at what a pause changes; it has to be seen twice, in different rounds and loops."""

    is_settled: bool = True
    is_seen: bool = False  # once; still so at the end if it did not become clear
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
        # at 12, 24, 36 and 48 rounds, then whenever they have doubled
        needed = max(_LOOK_ROUNDS * (1 + self._looks), _MOST_LOOK_ROUNDS * 2 ** (self._looks - 3))
        return not self.is_settled and len(self._rounds) >= needed

    @property
    def loops(self) -> int:
        """Return how many more loops the next look needs."""
        is_first = not self._looks
        is_late = _LOOK_ROUNDS * (1 + self._looks) > _MOST_LOOK_ROUNDS
        return _LOOPS_AGAIN if self.is_seen and (is_first or is_late) else 1

    def look(self, loops: Loops, *, reference: str, margin: float) -> float:
        """Return for how long turns have to settle, in seconds; 0 if that is not sure (yet)."""
        self._looks += 1
        self._loops += loops
        wanted_s = settling_s(self._loops, self._rounds, reference=reference, margin=margin)
        if wanted_s:
            was_seen, self.is_seen = self.is_seen, True
            self._clear()
            return wanted_s if was_seen else 0.0
        if wanted_s is not None:
            self.is_settled, self.is_seen = True, False
        elif not self.is_seen and len(self._rounds) >= _MOST_LOOK_ROUNDS:
            self.is_settled = True
        return 0.0

    def _clear(self) -> None:
        self._looks = 0
        self._rounds.clear()
        self._loops.clear()


def settling_s(loops: Loops, rounds: Rounds, *, reference: str, margin: float) -> float | None:
    """Return how long after a pause the ratio of an arm becomes what it is in a loop; 0: at once.

    The mean log ratio of an arm to the reference over all rounds has to differ from that in the
    second halves of the loops by more than 3 standard errors, and by more than 2.5 %, half the
    margin and a twentieth of itself. None: too few rounds to tell, since a difference of one error
    more would be too large.
    """
    is_early_different = is_different = is_unsure = False
    for arm in dict.fromkeys(arm for loop in loops for arm in loop if arm != reference):
        turns = [one[arm] - one[reference] for one in rounds if arm in one and reference in one]
        ours, theirs = ([*_late(loops, name)] for name in (arm, reference))
        if min(map(len, (turns, ours, theirs))) < 2:
            continue
        late = statistics.fmean(ours) - statistics.fmean(theirs)
        limit = max(_LEAST_GAIN, math.log1p(margin / 2), _LEAST_SHARE * abs(late))
        # The parts of one loop resemble each other, so the scatter between loops may be the larger
        # one.
        error_of_loops = max(
            statistics.variance(ours) / len(ours) + statistics.variance(theirs) / len(theirs),
            _variance_of_loops(loops, arm, reference),
        )
        error = math.sqrt(statistics.variance(turns) / len(turns) + error_of_loops)
        difference = abs(statistics.fmean(turns) - late)
        is_different |= difference > max(limit, _LOOK_ERRORS * error)
        is_unsure |= difference + error > limit
        early = [[*_early(loops, name)] for name in (arm, reference)]
        if all(early):
            first = statistics.fmean(early[0]) - statistics.fmean(early[1])
            is_early_different |= abs(first - late) > limit
    if not is_different:
        return None if is_unsure else 0.0
    return MOST_SETTLING_S if is_early_different else LEAST_SETTLING_S


def _variance_of_loops(loops: Loops, arm: str, reference: str) -> float:
    """Return that of the mean log ratio over loops, as the parts of one resemble each other."""
    ratios = []
    for loop in loops:
        ours, theirs = ([*_late([loop], name)] for name in (arm, reference))
        if ours and theirs:
            ratios.append(statistics.fmean(ours) - statistics.fmean(theirs))
    return statistics.variance(ratios) / len(ratios) if len(ratios) > 1 else 0.0


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

        Neighbours of the host make an arm wait longer as often as the reference.
        """
        pairs = [(count, self._shorter[arm]) for arm, count in self._longer.items()]
        return any(
            abs(longer - shorter) >= max(_HELD_ERRORS * math.sqrt(longer + shorter), 1)
            and max(longer, shorter) >= self._rounds / 4
            for longer, shorter in pairs
        )


def _waited(ran: Ran) -> float:
    """Return the share of a block waited for a CPU that others held; a quota's stops are none."""
    held_ns = max(0, (ran.wait_ns or 0) - (ran.throttled_ns or 0))
    return held_ns / max(1, sum(ran.wall_ns))
