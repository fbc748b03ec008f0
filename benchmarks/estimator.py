"""Simulate what an environment can do to steps, and say what headline and verdict make of it.

Whole cells are drawn block by block and judged by the product's own analysis; the truth is the mean
time that a user waits for. Of some the intervals of the typical step and of the mean are
calibrated. The runs kept in `results/` are judged anew as well, beside the verdict that was
published with them. A run that was stopped goes on at the row where it was, at the same commit.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from bookkeeping import HERE, Places, benchmark, commit, commits, write_json
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison, Estimate, RunComparison
from envcompare.analysis.timing import CellData, summarise_cell
from envcompare.analysis.timing.judge import judge, primaries
from envcompare.run_folder.records import CONTROL_SUFFIX, Block, Event, Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.stats import typical
from envcompare.stats.intervals import ALPHA, Interval
from envcompare.stats.metrics import Readings
from envcompare.stats.typical import TYPICAL_SHARE
from ground import end_widening, recorded_run

RAW, PAGE = "estimator.json", "estimator.md"
SEED = 20_261_128
RUNS = HERE.parent / "results"
REFERENCE, ARM, OTHER = "vm", "docker", "singularity"
CONTROL = f"{REFERENCE}{CONTROL_SUFFIX}"
ARMS = (REFERENCE, ARM, OTHER, CONTROL)
CELL = "local/made/default"
PLANNED = 4  # comparisons of a run of two environments and two workloads
REPEATS, CELLS = 40, 200
LEVEL = 0.95  # of the intervals that are calibrated
GOALS = {"typical": 0.010, "mean": 0.025}  # half-widths of equal arms at 60 s
STEP_NS = 2e6
NOISE = {  # standard deviations of logarithms: of a restart and a block; bursts of some blocks
    "restart": 0.004, "block": 0.03, "step": 0.02, "bursts": 0.03, "burst": 0.3,
}  # fmt: skip
WAITING, WAIT = 0.05, 0.2  # share of the blocks that neighbours take the CPU of, and for how long

_INTRO = """# Headline and verdict

`python benchmarks/estimator.py` draws cells of four arms, block by block, and judges them with the
product's own analysis: {repeats} cells of each scenario, at a margin of 5 %, for four comparisons,
6 restarts of 40 rounds where the name says nothing else. Rounds, restarts and neighbours make the
noise of the kept runs on a CPU. Truth is how much more time a user waits for on average, in
percent. Printed is the median of the figures that verdicts rest on, with their median half-width.
Covers is in how many cells the interval holds the truth.
"""
_ALIKE = """
## Rounds that resemble the one before

On a GPU whose host decides the pace, rounds scatter by 11 %, with a lag-1 correlation of 0.4 and an
integrated time of 5 rounds (`results/h200`). {repeats} cells of three arms and a reference for each
row; half of the variance is AR(1) at 0.8, or all of it at the correlation named. Covers is how
often an interval at a single look and a nominal 95 % holds the truth, 0: the typical step's, with
the factor for correlation and without it, and the mean's.

| correlation | restarts × rounds | covers | without | mean covers | half-width | without |
|---|---|---|---|---|---|---|
"""
ALIKE = (("none", 0.0, 0.0), ("AR(1) at 0.2", 1.0, 0.2), ("AR(1) at 0.4", 1.0, 0.4),
         ("as on the H200", 0.5, 0.8))  # fmt: skip
ALIKE_CELLS = ((2, 40), (2, 130), (4, 20), (4, 60), (6, 40))  # restarts × rounds
ALIKE_SD, ALIKE_REPEATS = 0.11, 15  # of a round; cells for each of a scenario
_CALIBRATION = """
## Calibration

{cells} cells of each row, of 6 restarts of 40 rounds, about what four arms do in 60 s. An interval
at 95 % excludes the truth in {count_low} to {count_high} of {cells} cells, and the mean square of z
lies between {square_low:.2f} and {square_high:.2f}, each in 95 of 100 rows, if the interval is as
wide as it should be. z is the normal quantile of the level at which an interval just reaches the
truth: that of the typical step, or of the mean. Half-widths are medians, in percent: at 95 %, and
as printed for four comparisons. Goals: no interval is too narrow, and those of equal arms are at 95
% at most ± {typical:.1f} % for the typical step and ± {mean:.1f} % for the mean.

Goals missed: {missed}
"""
_BEYOND = """
One launch in {one_in} is beyond the goals: three in four of these cells have no such launch, and
nothing in their times shows that there are any.
"""
_MARGIN = """
## At the margin

{cells} cells of environments whose mean is exactly the margin slower. At most 5 % may be called
equivalent, up to {most} of {cells} with the error of the simulation.

| what an environment does | equivalent |
|---|---|
"""
_RARE = """
The last row is beyond that goal, as 26 times is above the 20 that the rule of rare slow steps is
for: a cell has some five of them, and the mean of one that met fewer looks shorter and steadier
than it is.
"""
_KEPT = """
## The kept runs

Each comparison, its control among them: the verdict in its `comparison.json`, and that of today.
"""

Floats = NDArray[np.float64]
Calibration = dict[str, dict[str, float]]
"""Of typical step and mean: what is counted of their intervals."""
_HALVINGS = 40


@dataclass(slots=True, kw_only=True)
class Steps:
    """What one arm does in a restart, in nanoseconds: rounds × steps, or by round."""

    cpu: Floats
    wait: Floats  # run-queue wait, by round
    elsewhere: Floats  # on the clock, but neither computed nor waited for, by round
    gave_up: bool = False  # the CPU, of itself, in each block


Change = Callable[[Steps, int, np.random.Generator], None]
"""Does to the steps of an arm in a restart what its environment does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What an environment does, and how many times as long a step takes a user on average."""

    name: str
    truth: float
    typical: float | None = None  # the same of the typical step, where that is another
    change: Change | None = None
    everywhere: Change | None = None  # done to all arms
    restarts: int = 6
    rounds: int = 40
    steps: int = 10


def _helper(steps: Steps, _restart: int, _generator: np.random.Generator) -> None:
    steps.wait += 0.12 * steps.cpu.sum(axis=1)


def _sidecar(steps: Steps, _restart: int, generator: np.random.Generator) -> None:
    hit = generator.random(len(steps.wait)) < 0.25
    steps.wait += hit * 0.48 * steps.cpu.sum(axis=1)


def _crowd(steps: Steps, _restart: int, generator: np.random.Generator) -> None:
    """Let neighbours have two thirds of the CPU, more or less."""
    steps.wait += 2 * steps.cpu.sum(axis=1) * generator.gamma(9, 1 / 9, len(steps.wait))


def _steal(steps: Steps, _restart: int, _generator: np.random.Generator) -> None:
    steps.elsewhere += 0.05 * steps.cpu.sum(axis=1)


def _gives_up(steps: Steps, _restart: int, _generator: np.random.Generator) -> None:
    steps.gave_up = True
    steps.elsewhere += 0.001 * steps.cpu.sum(axis=1)


def _slow_steps(*, one_in: int, times: float) -> Change:
    def change(steps: Steps, _restart: int, generator: np.random.Generator) -> None:
        steps.cpu[generator.random(steps.cpu.shape) < 1 / one_in] *= times

    return change


def _slow_rounds(share: float) -> Change:
    def change(steps: Steps, _restart: int, generator: np.random.Generator) -> None:
        steps.cpu[generator.random(len(steps.cpu)) < share] *= 1.15

    return change


def _rising(steps: Steps, _restart: int, _generator: np.random.Generator) -> None:
    steps.cpu *= np.linspace(1.0, 1.6, steps.cpu.shape[1])


def _slow_launch(by: float) -> Change:
    def change(steps: Steps, restart: int, _generator: np.random.Generator) -> None:
        steps.cpu *= 1 + by * (restart == 1)

    return change


def _slow_launches(*, one_in: int, by: float) -> Change:
    def change(steps: Steps, _restart: int, generator: np.random.Generator) -> None:
        steps.cpu *= 1 + by * (generator.random() < 1 / one_in)

    return change


def _slower(by: float) -> Change:
    def change(steps: Steps, _restart: int, _generator: np.random.Generator) -> None:
        steps.cpu *= 1 + by

    return change


SCENARIOS = (
    Scenario(name="nothing", truth=1.0),
    Scenario(name="nothing, one step a block", truth=1.0, steps=1),
    Scenario(name="nothing, 20 rounds a restart", truth=1.0, rounds=20, steps=3),
    Scenario(name="every step 3 % slower", truth=1.03, change=_slower(0.03)),
    Scenario(name="every step 5.1 % slower", truth=1.051, change=_slower(0.051)),
    Scenario(name="every step 8 % slower", truth=1.08, change=_slower(0.08)),
    Scenario(name="a helper takes 12 % of the CPU", truth=1.12, change=_helper),
    Scenario(name="a sidecar preempts, 12 %", truth=1.12, change=_sidecar),
    Scenario(
        name="12 % slower, neighbours take 2/3 of the CPU",
        truth=1.12,
        change=_slower(0.12),
        everywhere=_crowd,
    ),
    Scenario(
        name="5 % steal, one arm gives up the CPU",
        truth=1.001,
        change=_gives_up,
        everywhere=_steal,
    ),
    Scenario(
        name="one step in 50 takes 4 times",
        truth=1.06,
        change=_slow_steps(one_in=50, times=4),
    ),
    Scenario(
        name="one step in 50 takes 3.6 times",
        truth=1.052,
        change=_slow_steps(one_in=50, times=3.6),
    ),
    Scenario(
        name="one step in 500 takes 21 times",
        truth=1.04,
        change=_slow_steps(one_in=500, times=21),
    ),
    Scenario(
        name="one step in 250 takes 21 times",
        truth=1.08,
        change=_slow_steps(one_in=250, times=21),
    ),
    Scenario(name="45 % of rounds 15 % slower", truth=1.0675, change=_slow_rounds(0.45)),
    Scenario(name="55 % of rounds 15 % slower", truth=1.0825, change=_slow_rounds(0.55)),
    Scenario(name="steps rise from 1.0 to 1.6 in a block", truth=1.3, change=_rising),
    Scenario(name="1 launch of 4 slower by 20 %", truth=1.05, change=_slow_launch(0.2), restarts=4),
    Scenario(name="1 launch of 4 slower by 40 %", truth=1.10, change=_slow_launch(0.4), restarts=4),
)

SELDOM = 20  # launches, of which one is slow: a cell has 6
CALIBRATED = (
    Scenario(name="nothing", truth=1.0),
    Scenario(name="every step 2 % slower", truth=1.02, change=_slower(0.02)),
    Scenario(name="every step 12 % slower", truth=1.12, change=_slower(0.12)),
    Scenario(
        name="one step in 50 takes 4 times",
        truth=1.06,
        typical=1.0004,  # a quartile of ten steps, of which a few are slow
        change=_slow_steps(one_in=50, times=4),
    ),
    Scenario(
        name="one launch in 4 is 2 % slower",
        truth=1.005,
        typical=1.0049,  # the median of the mixture
        change=_slow_launches(one_in=4, by=0.02),
    ),
    Scenario(
        name=f"one launch in {SELDOM} is 20 % slower",
        truth=1.01,
        typical=1.0030,
        change=_slow_launches(one_in=SELDOM, by=0.2),
    ),
)
RARE = "one step in 500 takes 26 times"
AT_THE_MARGIN = (
    Scenario(name="every step 5 % slower", truth=1.05, change=_slower(0.05)),
    Scenario(
        name="the same, 4 restarts of 12 rounds of 3 steps",
        truth=1.05,
        change=_slower(0.05),
        restarts=4,
        rounds=12,
        steps=3,
    ),
    Scenario(
        name="one step in 50 takes 3.5 times",
        truth=1.05,
        change=_slow_steps(one_in=50, times=3.5),
    ),
    Scenario(
        name="one step in 400 takes 21 times",
        truth=1.05,
        change=_slow_steps(one_in=400, times=21),
    ),
    Scenario(name=RARE, truth=1.05, change=_slow_steps(one_in=500, times=26)),
)


def draw(scenario: Scenario, generator: np.random.Generator) -> tuple[Block, ...]:
    """Return the blocks of a cell of four arms, of which the second does what the scenario says."""
    blocks: list[Block] = []
    for restart in range(scenario.restarts):
        for order, arm in enumerate(ARMS):
            steps = _steps(scenario, generator)
            if arm == ARM and scenario.change is not None:
                scenario.change(steps, restart, generator)
            if scenario.everywhere is not None:
                scenario.everywhere(steps, restart, generator)
            blocks += _blocks(steps, arm, restart=restart, order=order)
    return tuple(blocks)


def _steps(scenario: Scenario, generator: np.random.Generator) -> Steps:
    shape = (scenario.rounds, scenario.steps)
    level = generator.normal(0, NOISE["restart"])
    block = generator.normal(0, NOISE["block"], size=(shape[0], 1))
    step = generator.normal(0, NOISE["step"], size=shape)
    burst = (generator.random((shape[0], 1)) < NOISE["bursts"]) * generator.exponential(
        NOISE["burst"], size=(shape[0], 1)
    )
    cpu = STEP_NS * np.exp(level + block + step) * (1 + burst)
    waits = (generator.random(shape[0]) < WAITING) * generator.exponential(WAIT, size=shape[0])
    return Steps(cpu=cpu, wait=waits * cpu.sum(axis=1), elsewhere=np.zeros(shape[0]))


def _blocks(steps: Steps, arm: str, *, restart: int, order: int) -> Iterable[Block]:
    count = steps.cpu.shape[1]
    for number, cpu in enumerate(steps.cpu):
        more = (steps.wait[number] + steps.elsewhere[number]) / count
        yield Block(
            cell=CELL,
            arm=arm,
            restart=restart,
            generation=0,
            round=number,
            order=order,
            k=count,
            t0_ns=0,
            wall_ns=tuple(np.rint(cpu + more).astype(int).tolist()),
            cpu_ns=tuple(np.rint(cpu).astype(int).tolist()),
            wait_ns=round(steps.wait[number]),
            throttled_ns=0,
            voluntary_switches=int(steps.gave_up),
        )


def judged(blocks: tuple[Block, ...]) -> Comparison:
    """Return what the product says of the arm in a run of four comparisons at a budget of 60 s."""
    run = recorded_run(blocks, preset="quick", reference=REFERENCE, control=CONTROL)
    cell = run.cells[0]
    stopped = Event(t=1.0, what="stopped", host=cell.host, cell=cell.id, text="budget")
    data = CellData(run=run, cell=cell, blocks=blocks, events=(stopped,), host_events=())
    arm = next(one for one in run.arms if one.id == ARM)
    settled = primaries([data], run.design, m=PLANNED)[cell.id, ARM]
    return judge(data, arm, summarise_cell(data), primary=settled)


def seeded(name: str, repeat: int) -> np.random.Generator:
    """Return the generator of a cell: the same whatever was drawn before it."""
    return np.random.default_rng([SEED, zlib.crc32(name.encode()), repeat])


def row(scenario: Scenario, *, repeats: int) -> str:
    """Return a line of the table of what was printed and decided."""
    found = [judged(draw(scenario, seeded(scenario.name, one))) for one in range(repeats)]
    said = [one.deciding for one in found if one.deciding is not None]
    outcomes = Counter(one.outcome for one in found)
    covered = sum(_covers(one, scenario.truth) for one in said)
    decided = ", ".join(f"{name} {count}" for name, count in outcomes.most_common())
    median = float(np.median([one.log_ratio for one in said]))
    halves = [one.high - one.log_ratio for one in said if one.high is not None]
    return (
        f"| {scenario.name} | {_percent(math.log(scenario.truth))} | {_percent(median)} "
        f"| ± {100 * float(np.median(halves)):.1f} | {covered} | {decided} |"
    )


def alike_rows(*, repeats: int) -> Iterable[str]:
    """Yield a line for each correlation and size of a cell whose rounds resemble each other."""
    for name, share, decay in ALIKE:
        for restarts, rounds in ALIKE_CELLS:
            cells = []
            for repeat in range(repeats):
                generator = seeded(f"{name}/{restarts}/{rounds}", repeat)
                cells.append(_alike(generator, (share, decay), restarts=restarts, rounds=rounds))
            parts = [_interval_of(cell) for cell in cells]
            with mock.patch.object(typical, "correlation_factor", return_value=1.0):
                alone = [_interval_of(cell)[0] for cell in cells]
            with_factor, means = zip(*parts, strict=True)
            shares = [
                100 * float(np.mean([abs(one.mean) <= one.half_width for one in found]))
                for found in (with_factor, alone, means)
            ]
            widths = [
                100 * float(np.median([one.half_width for one in found]))
                for found in (with_factor, alone)
            ]
            figures = (f"{one:.1f} %" for one in shares)
            yield (
                f"| {name} | {restarts} × {rounds} | {' | '.join(figures)} "
                f"| {' | '.join(f'± {one:.1f} %' for one in widths)} |"
            )


def _alike(
    generator: np.random.Generator, law: tuple[float, float], *, restarts: int, rounds: int
) -> Floats:
    """Return log times of arms × restarts × rounds, the reference first."""
    share, decay = law
    drawn = generator.standard_normal((2, len(ARMS), restarts, rounds))
    drawn[0, ..., 1:] *= math.sqrt(1 - decay**2)
    level = np.empty_like(drawn[0])
    level[..., 0] = drawn[0, ..., 0]
    for number in range(1, rounds):
        level[..., number] = decay * level[..., number - 1] + drawn[0, ..., number]
    logs: Floats = math.sqrt(share) * level + math.sqrt(1 - share) * drawn[1]
    return ALIKE_SD / math.sqrt(2) * logs


def _interval_of(logs: Floats) -> tuple[Interval, Interval]:
    """Return the intervals of typical step and mean of the first arm, at 95 % and one look."""
    ratios = [tuple(map(tuple, one.tolist())) for one in logs[1:] - logs[0]]
    groups, known = ratios[0], typical.spread(ratios)
    scatter = typical.own_spread(groups, known)
    evidence = typical.RoundEvidence(groups=groups, spread=scatter, generations=len(groups))
    mean = typical.ratio_of_sums([np.exp(one).ravel() for one in (logs[1], logs[0])])
    return evidence.interval(level=0.95), mean.interval(
        level=0.95, spread=scatter, groups=groups, generations=len(groups)
    )


def _covers(said: Estimate, truth: float) -> bool:
    ends = said.low, said.high
    return ends[0] is None or ends[1] is None or ends[0] <= math.log(truth) <= ends[1]


def _percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f}"


def calibrate(scenario: Scenario, *, cells: int) -> Calibration:
    """Return how often the intervals of a scenario exclude the truth, of typical step and mean."""
    known: dict[str, list[tuple[float, float, float]]] = {name: [] for name in GOALS}
    for repeat in range(cells):
        blocks = draw(scenario, seeded(scenario.name, repeat))
        for name, (at_level, alpha) in _intervals(blocks).items():
            typical = scenario.typical if name == "typical" else None
            truth = math.log(typical or scenario.truth)
            printed = at_level(1 - alpha).half_width * end_widening(scenario.restarts, alpha)
            known[name].append((reach(at_level, truth), at_level(LEVEL).half_width, printed))
    limit = float(special.ndtri((1 + LEVEL) / 2))
    rows = {}
    for name, kept in known.items():
        z, half, printed = np.asarray(kept).T
        rows[name] = {
            "excludes": int(np.sum(np.abs(z) > limit)),
            "square": round(float(np.mean(z**2)), 3),
            "half_width": round(float(np.median(half)), 5),
            "printed": round(float(np.median(printed)), 5),
        }
    return rows


def _intervals(blocks: tuple[Block, ...]) -> dict[str, tuple[Callable[[float], Interval], float]]:
    """Return typical step and mean by level, not widened, and the error that each may spend."""
    readings, alpha = Readings(blocks, metrics=("net",)), ALPHA / PLANNED
    typical = readings.evidence(ARM, REFERENCE, "net")
    mean = readings.felt(ARM, REFERENCE, "net")
    assert typical is not None
    assert mean is not None

    def of_mean(level: float) -> Interval:
        return mean.interval(
            level=level,
            spread=typical.spread,
            groups=typical.groups,
            generations=typical.generations,
        )

    return {
        "typical": (lambda level: typical.interval(level=level), TYPICAL_SHARE * alpha),
        "mean": (of_mean, (1 - TYPICAL_SHARE) * alpha),
    }


def reach(at_level: Callable[[float], Interval], truth: float) -> float:
    """Return the z of an estimate: the normal quantile of the level that just reaches the truth."""
    off = at_level(LEVEL).mean - truth
    low, high = 0.0, 1 - 1e-9
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_short = at_level(middle).half_width < abs(off)
        low, high = (middle, high) if is_short else (low, middle)
    return math.copysign(float(special.ndtri((1 + low) / 2)), off)


def bands(cells: int) -> tuple[tuple[int, int], tuple[float, float]]:
    """Return in which bounds counts and mean squares of z lie in 95 of 100 rows."""
    counts, squares = stats.binom(cells, 1 - LEVEL), stats.chi2(cells)
    ends = 0.025, 0.975
    return (
        (int(counts.ppf(ends[0])), int(counts.ppf(ends[1]))),
        (float(squares.ppf(ends[0])) / cells, float(squares.ppf(ends[1])) / cells),
    )


def reading(row: Mapping[str, float], cells: int) -> str:
    """Return whether an interval is as wide as it should be."""
    pairs = list(zip((row["excludes"], row["square"]), bands(cells), strict=True))
    if any(value > high for value, (_, high) in pairs):
        return "too narrow"
    return "wider than needed" if any(value < low for value, (low, _) in pairs) else "in the bands"


def missed_goals(found: Mapping[str, Any]) -> list[str]:
    """Return a phrase for each goal that a calibration, or what is at the margin, misses."""
    cells, missed = found["cells"], []
    for scenario in CALIBRATED:
        for figure, one in found["calibration"].get(scenario.name, {}).items():
            where = f"{scenario.name}, {figure}"
            if reading(one, cells) == "too narrow" and scenario is not CALIBRATED[-1]:
                missed.append(f"{where}: too narrow")
            if scenario.truth == 1 and one["half_width"] > GOALS[figure]:
                missed.append(f"{where}: ± {100 * one['half_width']:.2f} %")
    return missed + [
        f"{name}: {count} equivalent"
        for name, count in found["margin"].items()
        if count > bands(cells)[0][1] and name != RARE
    ]


def replayed(path: Path) -> list[str]:
    """Return a line for each comparison of a kept run: the verdict kept, and that of today."""
    kept = msgspec.json.decode((path / "comparison.json").read_bytes(), type=RunComparison)
    before = {(comparison.cell, comparison.arm): comparison for comparison in kept.comparisons}
    return [
        f"| {path.name} | {comparison.cell} | {comparison.arm} "
        f"| {_said(before.get((comparison.cell, comparison.arm)))} | {_said(comparison)} |"
        for comparison in compare_run(RunFolder.open(path)).comparisons
    ]


def _said(one: Comparison | None) -> str:
    if one is None:
        return "none"
    said = one.deciding
    if said is None or said.low is None or said.high is None:
        return one.outcome
    ends = f"{_percent(said.low)} to {_percent(said.high)}"
    return f"{one.outcome}, {_percent(said.log_ratio)} ({ends})"


def _page(found: Mapping[str, Any]) -> str:
    cells = found["cells"]
    (count_low, count_high), (square_low, square_high) = bands(cells)
    calibration = _CALIBRATION.format(
        cells=cells,
        count_low=count_low,
        count_high=count_high,
        square_low=square_low,
        square_high=square_high,
        missed="; ".join(missed_goals(found)) or "none.",
        **{name: 100 * goal for name, goal in GOALS.items()},
    )
    return "\n".join(
        [
            _INTRO.format(repeats=found["repeats"]),
            "| what an environment does | truth | printed | interval | covers | verdicts |",
            "|---|---|---|---|---|---|",
            *found["rows"].values(),
            _ALIKE.format(repeats=ALIKE_REPEATS * found["repeats"]).rstrip(),
            *found["alike"],
            calibration,
            "| what an environment does | figure | excludes the truth | mean square of z "
            "| half-width | as printed for 4 | interval |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {figure} | {one['excludes']} | {one['square']:.2f} "
                f"| ± {100 * one['half_width']:.2f} | ± {100 * one['printed']:.2f} "
                f"| {reading(one, cells)} |"
                for name, row in found["calibration"].items()
                for figure, one in row.items()
            ),
            _BEYOND.format(one_in=SELDOM),
            _MARGIN.format(cells=cells, most=count_high).strip(),
            *(f"| {name} | {count} |" for name, count in found["margin"].items()),
            _RARE,
            _KEPT.strip(),
            "",
            "| run | cell | environment | kept with the run | judged anew |",
            "|---|---|---|---|---|",
            *found["kept"],
            "",
            f"Simulated at commit {commits([found])}.",
            "",
        ]
    )


@benchmark(__doc__, smoke=("--repeats", "2", "--cells", "2", "--runs", "0"))
@click.option("--repeats", default=REPEATS, show_default=True, help="Cells of each scenario.")
@click.option("--cells", default=CELLS, show_default=True, help="Cells of each calibration.")
@click.option("--runs", type=int, help="Judge so many of the kept runs anew.  [default: all]")
def main(places: Places, repeats: int, cells: int, runs: int | None) -> None:
    """Draw and judge every scenario, then the kept runs; write the page."""
    found = begun(places, {**commit(), "repeats": repeats, "cells": cells})
    tables: tuple[tuple[str, tuple[Scenario, ...], Callable[[Scenario], object]], ...] = (
        ("rows", SCENARIOS, lambda one: row(one, repeats=repeats)),
        ("calibration", CALIBRATED, lambda one: calibrate(one, cells=cells)),
        ("margin", AT_THE_MARGIN, lambda one: count_equivalent(one, cells=cells)),
    )
    for table, scenarios, measure in tables:
        for scenario in scenarios:
            if scenario.name not in found[table]:
                found[table][scenario.name] = measure(scenario)
                write_json(places.results / RAW, found)
                print(scenario.name, found[table][scenario.name], flush=True)
    found["alike"] = list(alike_rows(repeats=ALIKE_REPEATS * repeats))
    print(*found["alike"], sep="\n", flush=True)
    folders = sorted(path.parent for path in RUNS.glob("*/comparison.json"))[:runs]
    found["kept"] = [line for folder in folders for line in replayed(folder)]
    print(*found["kept"], sep="\n")
    write_json(places.results / RAW, found)
    write_page(places)


def begun(places: Places, head: Mapping[str, Scalar]) -> dict[str, Any]:
    """Return what is kept of a run at this very commit that was stopped, or nothing yet."""
    path = places.results / RAW
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    is_same = not head["is_dirty"] and all(kept.get(key) == value for key, value in head.items())
    return (
        kept
        if is_same
        else {**head, "rows": {}, "calibration": {}, "margin": {}, "alike": [], "kept": []}
    )


def count_equivalent(scenario: Scenario, *, cells: int) -> int:
    """Return how many cells of a scenario are called equivalent."""
    found = (judged(draw(scenario, seeded(scenario.name, one))) for one in range(cells))
    return sum(one.outcome == "equivalent" for one in found)


def write_page(places: Places) -> None:
    """Write the page of what was found."""
    places.write_page(PAGE, _page(json.loads((places.results / RAW).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
