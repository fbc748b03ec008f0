"""Compare containers of one image with each other, live, as a user's run does, and count errors.

A trial is one `envcompare run` of four equal arms, `docker` twice more and its control, in two
cells (cnn and rnn) of 60 s that share their launches, with an empty noise memory. Any interval that
excludes 0 is wrong. The page also says how narrow the intervals were, how much of the time was
spent in measured blocks, and how many comparisons would be decided. `--also sweep` is one more run,
of 16 cells (rnn with 16 sizes) that share their launches, and `--also long` one of the two cells
with 10 minutes for each. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from scipy import stats

from bookkeeping import Conditions, Places, Watch, benchmark, mean_load, one_run, run_envcompare
from envcompare.measure.hostreadings import NoiseMemory
from envcompare.run_folder.records import Block, Startup
from envcompare.run_folder.results import RunFolder
from envcompare.stats import Round, grouped
from envcompare.stats.intervals import ALPHA, Interval, student_factor
from envcompare.stats.metrics import METRICS, goes_by_clock, typical_ns
from envcompare.stats.typical import (
    TYPICAL_SHARE,
    Groups,
    RoundEvidence,
    Spread,
    own_spread,
    ratio_of_sums,
    spread,
    spread_of_rounds,
)
from envcompare.stats.verdicts import verdict
from ground import end_widening, printed_at_the_end

FOLDER, PAGE = "live", "live.md"
MARGIN = 0.05
WORKLOADS = ("cnn", "rnn")
REFERENCE, CONTROL = "docker", "docker~control"
COMPARED = ("second", "third")
PLANNED = len(COMPARED) * len(WORKLOADS)  # comparisons that a run's intervals are widened for
PAIR = ("--workloads", ",".join(WORKLOADS))
GOAL = 0.6  # of the time in blocks
DESIGN = "same-cpu"
"""Of trials in which the arms of a round share a CPU and requests bypass the client of Docker."""
EARLIER = "before the arms of a round shared a CPU and requests bypassed the client of Docker"
ENOUGH_TO_LEARN = 2  # degrees of freedom of a control, as the product asks for
SIZES = tuple(range(32, 96, 4))
SWEEP = ("--workloads", "rnn", "--set", f"rnn.hidden={','.join(map(str, SIZES))}")
MORE = {"sweep": (SWEEP, 60.0), "long": (PAIR, 600.0)}  # with the seconds of a cell
FLAGS = (
    *("--device", "cpu", "--margin", str(100 * MARGIN)),
    *("--target", "0.001", "--no-noise-memory", "--profile", "none"),
)
TOGETHER = 10  # runs in a row of a table
BANDS = ((0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, math.inf))  # of the load, from and below


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One comparison of equal arms."""

    run: int  # in order of time
    workload: str
    load: float
    is_earlier: bool  # of a run with another design
    printed: Interval
    alone: Interval  # as printed were it the only comparison
    taught: Interval  # as printed with what the runs before have taught of the host
    mean: Interval
    share: float  # of the cell's time in measured blocks


@benchmark(__doc__, smoke=("--trials", "1", "--budget", "8"))
@click.option("--trials", default=80, show_default=True)
@click.option("--budget", default=60.0, help="Seconds a cell.", show_default=True)
@click.option("--base-image", default="", help="Base of the workload image, where one is needed.")
@click.option("--also", type=click.Choice(tuple(MORE)), multiple=True, help="Measure one more run.")
def main(
    places: Places, trials: int, *, budget: float, base_image: str, also: tuple[str, ...]
) -> None:
    """Measure what is missing, then write the page."""
    base = ("--base-image", base_image) if base_image else ()
    image = image_of(base)
    planned = [
        *((f"trial-{number:03}", PAIR, budget) for number in range(trials)),
        *((f"{name}-000", *MORE[name]) for name in also),
    ]
    for seed, (name, cells, budget_s) in enumerate(planned):
        path = places.results / FOLDER / f"{name}.json.gz"
        if path.exists():
            continue
        watch = Watch.begin()
        words = (*cells, *base, "--budget", str(budget_s), "--seed", str(seed))
        measured = _trial(image, words)
        path.parent.mkdir(parents=True, exist_ok=True)
        conditions = watch.conditions()
        known = {"conditions": conditions, "budget_s": budget_s, "design": DESIGN}
        content = {**known, **measured}
        part = path.with_suffix(".part")
        part.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
        part.rename(path)
        print(f"{path.name}: {conditions['elapsed_s']:.0f} s", file=sys.stderr)
    print(write_page(places))


def image_of(base: tuple[str, ...]) -> str:
    """Build the workload image where it is not there, and return its ID."""
    told = re.search(r"sha256:[0-9a-f]{64}", run_envcompare("build", "--envs", "docker", *base))
    if told is None:
        raise click.ClickException("envcompare build names no image")
    return told[0]


def _trial(image: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Run once; return what the estimates need of each block, and what the launches took."""
    envs = ",".join((REFERENCE, *(f"{name}=docker:{image}" for name in COMPARED)))
    with one_run("--envs", envs, *FLAGS, *words) as path:
        folder = RunFolder.open(path)
        samples, events = folder.read_samples().samples, folder.read_events().events
        folder.close()
    names = dict.fromkeys(event.cell for event in events if event.what == "turn")
    timed = [event.t for event in events if event.what in ("turn", "stopped")]
    launches = {
        (sample.arm, sample.repetition): (sample.engine_ns + sample.import_ns + sample.exit_ns)
        / 1e9
        for sample in samples
        if isinstance(sample, Startup)
    }
    return {
        "launch_s": float(np.mean(list(launches.values()))) if launches else 0.0,
        "cells": {
            cell: {
                "elapsed_s": (max(timed) - min(timed)) / len(names),
                "blocks": [_kept(s) for s in samples if isinstance(s, Block) and s.cell == cell],
            }
            for cell in names
        },
    }


def _kept(block: Block) -> list[Any]:
    """Return arm, place, wall, typical step and sum of a block, in ns; 0 for what is left out."""
    is_used = not block.warmup and block.status == "ok"
    typical = typical_ns(block, "net", by_clock=goes_by_clock(block))
    whole = METRICS["net"](block)
    return [
        *(block.arm, block.restart, block.round, sum(block.wall_ns)),
        *((round(typical), round(whole)) if is_used and typical and whole else (0, 0)),
    ]


def write_page(places: Places) -> str:
    """Write the page of the trials that are kept, and return it."""
    kinds = ("trial", "sweep", "long")
    trials, sweeps, longs = (_read(places, f"{name}-*.json.gz") for name in kinds)
    found = list(_found_in_turn(trials))
    measured = [trial["conditions"] for trial in trials]
    page = _page(
        found,
        measured,
        budget_s=trials[0]["budget_s"] if trials else 0.0,
        earlier=sum(map(_is_earlier, trials)),
    )
    present = [trial for trial in trials if not _is_earlier(trial)] or trials
    page += _spending_section(present) if trials else ""
    page += "".join(map(_sweep_section, sweeps)) + "".join(map(_long_section, longs))
    places.write_page(PAGE, page, measured + [run["conditions"] for run in sweeps + longs])
    return page


def _is_earlier(trial: dict[str, Any]) -> bool:
    return bool(trial.get("design") != DESIGN)


def _when(trial: dict[str, Any]) -> str:
    """Return a clause that says of a trial that it is from before; empty for one of today."""
    return f", {EARLIER}" if _is_earlier(trial) else ""


def _read(places: Places, pattern: str) -> list[dict[str, Any]]:
    paths = sorted((places.results / FOLDER).glob(pattern))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def _sweep_section(sweep: dict[str, Any]) -> str:
    """Say how narrow the cells of a sweep are, and what their launches would cost each alone."""
    known = [one for one in _found(sweep, Spread()) if math.isfinite(one.printed.half_width)]
    cells = sweep["cells"].values()
    restarts = [len({kept[1] for kept in cell["blocks"]}) for cell in cells]
    took_s = sum(cell["elapsed_s"] for cell in cells)
    arms = len({kept[0] for cell in cells for kept in cell["blocks"]})
    alone_s = took_s + (sum(restarts) - max(restarts)) * arms * sweep["launch_s"]
    widths = [
        _median(one.half_width for one in ours)
        for ours in ([one.printed for one in known], [one.alone for one in known])
    ]
    wrong = sum(abs(one.printed.mean) > one.printed.half_width for one in known)
    return "\n".join(
        [
            "",
            f"## {len(restarts)} cells that share their launches",
            "",
            f"One run of rnn with {len(restarts)} sizes of its hidden state and the same four arms"
            f"{_when(sweep)} (`python benchmarks/live.py --also sweep`): {took_s:.0f} s, "
            f"{max(restarts)} restarts, a launch of an arm takes {sweep['launch_s']:.1f} s, and "
            f"{_median(one.share for one in known):.0%} of the time was spent in measured blocks. "
            f"{wrong} of the {len(known)} intervals printed for 4 comparisons "
            f"{'excludes' if wrong == 1 else 'exclude'} 0. Median "
            f"half-width: ±{widths[0]:.2%} as printed for 4, ±{widths[1]:.2%} for 1.",
            "",
            "With launches of its own in every restart of every cell the same blocks would have "
            f"taken {alone_s:.0f} s, {alone_s / took_s:.1f} times as long (reckoned from the "
            "launches of this run).",
            "",
        ]
    )


def _long_section(run: dict[str, Any]) -> str:
    """Say how narrow the intervals of a run with more time are."""
    minutes = run["budget_s"] / 60
    found = list(_found(run, Spread()))
    return "\n".join(
        [
            "",
            f"## {minutes:.0f} minutes a cell",
            "",
            f"One run as those above, with {minutes:.0f} min for each cell "
            f"(`python benchmarks/live.py --also long`){_when(run)}.",
            "",
            *_widths(found),
            "",
        ]
    )


def _found_in_turn(trials: Iterable[dict[str, Any]]) -> Iterator[Found]:
    """Yield the comparisons of all trials, each knowing the noise of those before."""
    memory = NoiseMemory()
    for number, trial in enumerate(trials):
        yield from _found(trial, memory.spread, run=number)
        for kept in trial["cells"].values():
            cell = _Cell.of(kept)
            control = spread([cell.groups[CONTROL]] if CONTROL in cell.groups else [])
            if control.own_df >= ENOUGH_TO_LEARN:
                memory = memory.with_cell(control)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What the blocks of a cell say: the typical steps paired with the reference's, and sums."""

    groups: dict[str, Groups]  # of the arms that are compared; the control is one more equal arm
    sums: dict[str, dict[Round, float]]
    measured_s: float

    @classmethod
    def of(cls, kept: dict[str, Any]) -> _Cell:
        typical: dict[str, dict[Round, float]] = {}
        sums: dict[str, dict[Round, float]] = {}
        for arm, restart, number, _, step, whole in kept["blocks"]:
            if step:
                typical.setdefault(arm, {})[restart, 0, number] = math.log(step)
                sums.setdefault(arm, {})[restart, 0, number] = whole
        arms = [arm for arm in (*COMPARED, CONTROL) if arm in typical]
        return cls(
            groups={arm: grouped(typical, arm=arm, reference=REFERENCE) for arm in arms},
            sums=sums,
            measured_s=sum(wall for *_, wall, step, _ in kept["blocks"] if step) / 1e9,
        )

    def evidence(self, arm: str, prior: Spread) -> RoundEvidence:
        pooled = spread(self.groups.values(), prior)
        return RoundEvidence(
            groups=self.groups[arm],
            spread=own_spread(self.groups[arm], pooled, prior),
            generations=len(self.groups[arm]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spending:
    """How a cell spent its time on its restarts: launches against rounds.

    After a time T the squared half-width is (L + g) (z² s² r ÷ g + t² τ²) ÷ T, with L what a
    restart costs beside its rounds, g the time of these, r that of one, s and τ the scatter of
    rounds and of restarts (docs/measurement.md).
    """

    rest_s: float
    rounds_s: float
    of_rounds: float  # z² s² r
    of_restarts: float  # t² τ²

    @classmethod
    def of(cls, cell: _Cell, elapsed_s: float, restarts: int) -> _Spending | None:
        """Return the means over the restarts of a cell; None where its rounds were too few."""
        known = [
            group for group in map(spread_of_rounds, cell.groups.values()) if group is not None
        ]
        if not known:
            return None
        pooled, level = spread(cell.groups.values()), 1 - TYPICAL_SHARE * ALPHA / PLANNED
        rounds = max(sum(map(len, groups)) for groups in cell.groups.values())
        factor = float(stats.norm.ppf((1 + level) / 2)) * _median(known)
        return cls(
            rest_s=(elapsed_s - cell.measured_s) / restarts,
            rounds_s=cell.measured_s / restarts,
            of_rounds=factor**2 * cell.measured_s / rounds,
            of_restarts=student_factor(pooled.df, level) ** 2 * pooled.variance,
        )

    @property
    def best_s(self) -> float:
        """Return the time of rounds at which the half-width is least."""
        return math.sqrt(self.rest_s * self.of_rounds / self.of_restarts)

    def width(self, rounds_s: float) -> float:
        """Return the half-width, up to a factor."""
        rounds, whole_s = self.of_rounds / rounds_s, self.rest_s + rounds_s
        return math.sqrt(whole_s * (rounds + self.of_restarts))


def _spending_section(trials: Iterable[dict[str, Any]]) -> str:
    """Say whether more of the time in blocks would have made intervals narrower."""
    lines = [
        "",
        "## What more time in blocks would do",
        "",
        "More time in the blocks of a restart leaves time for fewer restarts. By the formula of "
        "the plan, with what each cell cost and how far it scattered (medians):",
        "",
        "| workload | a restart beside its blocks | in blocks | best | half-width against the best "
        f"| at {GOAL:.0%} of the time in blocks |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    cells: dict[str, list[_Spending]] = {}
    for trial in trials:
        for name, kept in trial["cells"].items():
            restarts = len({block[1] for block in kept["blocks"]})
            spending = _Spending.of(_Cell.of(kept), kept["elapsed_s"], restarts)
            if spending is not None:
                cells.setdefault(name.split("/")[1], []).append(spending)
    for name, spent in cells.items():
        rest_s, rounds_s, best_s = (
            _median(getattr(one, part) for one in spent)
            for part in ("rest_s", "rounds_s", "best_s")
        )
        now = _median(one.width(one.rounds_s) / one.width(one.best_s) for one in spent) - 1
        goal = GOAL / (1 - GOAL)
        then = _median(one.width(goal * one.rest_s) / one.width(one.best_s) for one in spent) - 1
        lines.append(
            f"| {name} | {rest_s:.1f} s | {rounds_s:.1f} s | {best_s:.1f} s | {now:+.1%} "
            f"| {then:+.1%} |"
        )
    return "\n".join([*lines, ""])


def _found(trial: dict[str, Any], taught: Spread, *, run: int = 0) -> Iterator[Found]:
    """Yield the comparisons of a trial; `taught` is the noise that the host is known for."""
    load = mean_load(trial["conditions"])
    for name, kept in trial["cells"].items():
        cell = _Cell.of(kept)
        for arm in cell.groups:
            evidence = cell.evidence(arm, Spread())
            yield Found(
                run=run,
                workload=name.split("/")[1],
                load=load,
                is_earlier=_is_earlier(trial),
                printed=printed_at_the_end(evidence, comparisons=PLANNED),
                alone=printed_at_the_end(evidence),
                taught=printed_at_the_end(cell.evidence(arm, taught), comparisons=PLANNED),
                mean=_mean(cell.sums[arm], cell.sums[REFERENCE], evidence),
                share=cell.measured_s / kept["elapsed_s"],
            )


def _mean(
    ours: dict[Round, float], theirs: dict[Round, float], evidence: RoundEvidence
) -> Interval:
    complete = sorted(ours.keys() & theirs.keys())
    times = [np.asarray([one[key] for key in complete]) for one in (ours, theirs)]
    own = (1 - TYPICAL_SHARE) * ALPHA / PLANNED
    return ratio_of_sums(times).interval(
        level=1 - own,
        spread=evidence.spread,
        groups=evidence.groups,
        generations=evidence.generations,
        factor=end_widening(len(evidence.groups), own),
    )


def _page(found: list[Found], measured: list[Conditions], *, budget_s: float, earlier: int) -> str:
    lines = [
        "# Live: containers of one image against each other",
        "",
        f"{len(measured)} runs of four equal arms, the image of the workloads in `docker` four "
        f"times over, in two cells of {budget_s:.0f} s each (`python benchmarks/live.py`; raw data "
        "in `benchmarks/results/live/`). Each is a run as a user's: new containers in every "
        "restart, which both cells share, intervals widened for looking and for four comparisons. "
        "It has an empty noise memory, and a target that never ends a cell. Three arms of a cell "
        f"are compared with the fourth, so that its comparisons are not independent. {earlier} of "
        f"the runs are from {EARLIER}.",
        "",
        "## Intervals that exclude 0",
        "",
        "Each is an error: the arms are equal.",
        "",
        "| interval | comparisons | exclude 0 | 95 % Clopper–Pearson |",
        "|---|---:|---:|---|",
        *_errors(found),
        "",
        "## Width, and what it decides",
        "",
        *_widths([one for one in found if not one.is_earlier]),
        "",
        *_earlier_widths([one for one in found if one.is_earlier]),
        "Half-widths are medians. A comparison without an interval had too few restarts or whole "
        "rounds: launches took the budget. *equivalent* is the share of those with one that the "
        "printed interval of the typical step decides so, at the end of the budget. *taught*: the "
        "same blocks, analysed with the noise memory that the controls of the runs before would "
        "have left.",
        "",
        "## By load",
        "",
        "All runs, of both designs.",
        "",
        "| load of the minute before and after | comparisons | exclude 0 | half-width |",
        "|---|---:|---:|---:|",
        *_by_load(found),
        "",
        "A load says how many tasks wait for a CPU, and not what neighbours on the machine do to "
        f"caches and clocks. By {TOGETHER} runs in order of time:",
        "",
        "| runs | load | half-width, cnn | rnn |",
        "|---|---|---:|---:|",
        *_by_time(found),
    ]
    return "\n".join(lines) + "\n"


def _errors(found: list[Found]) -> Iterator[str]:
    kinds: dict[str, Callable[[Found], Interval]] = {
        "typical step, as printed for 4 comparisons": lambda one: one.printed,
        "typical step, as printed for 1": lambda one: one.alone,
        "typical step, as printed for 4, taught": lambda one: one.taught,
        "mean, as printed for 4": lambda one: one.mean,
    }
    for name, of in kinds.items():
        known = [of(one) for one in found if math.isfinite(of(one).half_width)]
        wrong = sum(abs(one.mean) > one.half_width for one in known)
        if not known:
            continue
        ends = stats.binomtest(wrong, len(known)).proportion_ci(0.95, method="exact")
        yield f"| {name} | {len(known)} | {wrong} | {ends.low:.1%} to {ends.high:.1%} |"


def _widths(found: list[Found]) -> Iterator[str]:
    yield (
        "| workload | with an interval | half-width, as printed for 4 | for 1 | for 4, taught "
        f"| of the mean | *equivalent* within ±{MARGIN:.0%} | RMSE | time in blocks |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name in WORKLOADS:
        yield _width(name, [one for one in found if one.workload == name])


def _earlier_widths(found: list[Found]) -> Iterator[str]:
    if found:
        yield from (f"In the runs {EARLIER}:", "", *_widths(found), "")


def _width(name: str, found: list[Found]) -> str:
    known = [one for one in found if math.isfinite(one.printed.half_width)]
    if not known:
        return f"| {name} | 0 | – | – | – | – | – | – | – |"
    outcomes = [verdict(o.printed.low, o.printed.high, margin=MARGIN) for o in known]
    widths = (
        _median(one.printed.half_width for one in known),
        _median(one.alone.half_width for one in known),
        _median(one.taught.half_width for one in known),
        _median(one.mean.half_width for one in known),
    )
    rmse = math.sqrt(float(np.mean([one.printed.mean**2 for one in known])))
    decided = outcomes.count("equivalent") / len(outcomes)
    shown = " | ".join(f"±{width:.2%}" for width in widths)
    share = _median(one.share for one in known)
    count = f"{len(known)} of {len(found)}"
    return f"| {name} | {count} | {shown} | {decided:.0%} | {rmse:.2%} | {share:.0%} |"


def _by_load(found: list[Found]) -> Iterator[str]:
    for low, high in BANDS:
        band = [one for one in found if low <= one.load < high]
        known = [one.printed for one in band if math.isfinite(one.printed.half_width)]
        if not known:
            continue
        wrong = sum(abs(one.mean) > one.half_width for one in known)
        name = f"{low:g} and more" if math.isinf(high) else f"{low:g} to {high:g}"
        width = _median(one.half_width for one in known)
        yield f"| {name} | {len(known)} | {wrong} | ±{width:.2%} |"


def _by_time(found: list[Found]) -> Iterator[str]:
    together: dict[int, list[Found]] = {}
    for one in found:
        together.setdefault(one.run // TOGETHER, []).append(one)
    for place, ones in together.items():
        widths = []
        for name in WORKLOADS:
            halves = [one.printed.half_width for one in ones if one.workload == name]
            known = list(filter(math.isfinite, halves))
            widths.append(f"±{_median(known):.2%}" if known else "–")
        runs = f"{place * TOGETHER} to {max(one.run for one in ones)}"
        loads = [one.load for one in ones]
        yield f"| {runs} | {min(loads):.1f} to {max(loads):.1f} | {' | '.join(widths)} |"


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


if __name__ == "__main__":
    main()
