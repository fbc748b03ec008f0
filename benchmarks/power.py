"""Plant slowdowns of 2 % of several kinds, live, and count how often a minute a cell finds them.

The work is the sentiment classifier. After each step an arm computes for 2 % more in Python, or
makes and drops buffers for as long, or sleeps; in one more arm one step in 50 takes three times as
long. A trial has four arms, two of them slowed and one the reference again, in two cells that share
their launches. Each has processes and a seed of its own; a run that was stopped goes on where it
was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from scipy import stats

from bookkeeping import HERE, Conditions, Places, benchmark, load_average
from envcompare.analysis.model import Tail
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.judge import primaries, tail
from envcompare.run_folder.records import CONTROL_SUFFIX
from envcompare.stats.intervals import Interval
from ground import (
    Trial,
    budgets,
    ground,
    measure,
    read_blocks,
    read_conditions,
    read_events,
    recorded_run,
    save,
)

WORKLOAD = f"{HERE / 'workloads' / 'slowedways.py'}:SlowedWays"
VARIABLE = "ENVCOMPARE_SLOWED"
REFERENCE, CONTROL = "a", f"a{CONTROL_SUFFIX}"
PAIRS = (("python", "sleep"), ("allocator", "tail"))
CELLS = ({"hidden": 40}, {"hidden": 48})
PLANNED = 4  # two slowed arms in two cells
WAYS = {
    "python": "2 % more in Python",
    "allocator": "2 % more in making and dropping buffers",
    "sleep": "a sleep of 2 % after each step",
    "tail": "one step in 50 three times as long",
    CONTROL: "nothing: the reference again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one cell told of one arm."""

    way: str
    typical: Interval
    mean: Interval | None
    tail: Tail | None

    @property
    def is_typical_slower(self) -> bool:
        """Tell whether the printed interval of the typical step lies above 0."""
        return self.typical.mean > self.typical.half_width

    @property
    def is_mean_slower(self) -> bool:
        """Tell whether the printed interval of the mean lies above 0."""
        return self.mean is not None and self.mean.low is not None and self.mean.low > 0

    @property
    def has_more_slow_steps(self) -> bool:
        """Tell whether the interval of the share of slow steps lies above that of the reference."""
        low = self.tail.difference_low if self.tail else None
        return low is not None and low > 0

    @property
    def is_called_faster(self) -> bool:
        """Tell whether either interval lies below 0, which is wrong in every arm."""
        by_mean = self.mean is not None and self.mean.high is not None and self.mean.high < 0
        return by_mean or self.typical.mean < -self.typical.half_width


@benchmark(__doc__, smoke=("--trials", "2", "--budget", "5"))
@click.option("--trials", default=20, show_default=True)
@click.option("--budget", default=60.0, help="Seconds a cell.", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(places: Places, trials: int, *, budget: float, python: str) -> None:
    """Measure what is missing, then write the page."""
    on = ground("rnn", python=python)
    for number in range(trials):
        path = places.results / "power" / f"trial-{number:02}.jsonl.gz"
        if path.exists():
            continue
        slowed = {way: {VARIABLE: way} for way in PAIRS[number % len(PAIRS)]}
        trial = Trial(
            name=path.name.partition(".")[0],
            arms={REFERENCE: {}, **slowed, CONTROL: {}},
            workload=WORKLOAD,
            cells=CELLS,
            budget_s=budget,
            seed=number,
        )
        save(path, measure(trial, on))
        print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def write_page(places: Places) -> str:
    """Write how often each kind of slowdown was found; return the page."""
    paths = sorted((places.results / "power").glob("*.jsonl.gz"))
    found = [one for path in paths for one in found_in(path)]
    measured = [read_conditions(path) for path in paths]
    page = _page(found, measured)
    places.write_page("power.md", page, measured)
    return page


def found_in(path: Path) -> Iterator[Found]:
    """Yield what a trial tells by the product's own analysis, as printed for four comparisons."""
    blocks, events = read_blocks(path), read_events(path)
    # the control is judged as one more arm
    run = recorded_run(blocks, preset="quick", reference=REFERENCE)
    for cell in run.cells:
        data = CellData(
            run=run,
            cell=cell,
            blocks=tuple(block for block in blocks if block.cell == cell.id),
            events=tuple(event for event in events if event.cell == cell.id),
            host_events=(),
        )
        settled = primaries([data], run.design, m=PLANNED)
        for arm in run.arms:
            if primary := settled.get((cell.id, arm.id)):
                yield Found(
                    way=arm.id,
                    typical=primary.interval,
                    mean=data.headline(arm.id, primary.interval).mean,
                    tail=tail(data, arm.id),
                )


def _page(found: list[Found], measured: list[Conditions]) -> str:
    known = [one for one in found if math.isfinite(one.typical.half_width)]
    each = budgets(measured)
    lines = [
        "# Power: slowdowns of several kinds",
        "",
        f"`python benchmarks/power.py`: {len(measured)} trials of four arms, two of them slowed, "
        f"in two cells{f' of {each} each' if each else ''} (the sentiment classifier in two "
        "sizes); raw data in `benchmarks/results/power/`. Intervals are as a run prints them for "
        "four comparisons.",
        "",
        "| in the arm | comparisons | *slower* by the typical step | by typical step or mean "
        "| more slow steps | 95 % Clopper–Pearson of what finds it | typical step, median "
        "| half-width | mean, median |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|",
        *(_row(way, [one for one in known if one.way == way]) for way in WAYS),
        "",
        "The tail is found by the share of steps above 1.5 times the median; all others by the "
        "typical step or the mean. The sleep is longer than asked, by what the kernel's timer "
        f"adds. {len(found) - len(known)} comparisons had no interval, and "
        f"{sum(one.is_called_faster for one in known)} arms were called faster.",
    ]
    return "\n".join(lines) + "\n"


def _row(way: str, found: list[Found]) -> str:
    if not found:
        return f"| {WAYS[way]} | 0 |{' – |' * 7}"
    typical = sum(one.is_typical_slower for one in found)
    either = sum(one.is_typical_slower or one.is_mean_slower for one in found)
    slow = sum(one.has_more_slow_steps for one in found)
    hits = slow if way == "tail" else either
    ends = stats.binomtest(hits, len(found)).proportion_ci(0.95, method="exact")
    half = float(np.median([one.typical.half_width for one in found]))
    means = [one.mean.mean for one in found if one.mean is not None]
    return (
        f"| {WAYS[way]} | {len(found)} | {typical} | {either} | {slow} "
        f"| {ends.low:.0%} to {ends.high:.0%} "
        f"| {np.expm1(np.median([one.typical.mean for one in found])):+.1%} | ±{half:.1%} "
        f"| {np.expm1(np.median(means)):+.1%} |"
    )


if __name__ == "__main__":
    main()
