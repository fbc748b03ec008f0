"""Measure true differences in turns of 20 ms and of 0.4 s, to see whether they alter the ratio.

Other arms take the caches between two turns, so that the first step of a block is slower. Two arms
are really slower than the reference, by another allocator setting and by plainer vector code; each
trial measures all in blocks of one length, with as many steps in all, and its neighbour in time in
blocks of the other. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from bookkeeping import Conditions, Places, benchmark, load_average
from envcompare.run_folder.records import CONTROL_SUFFIX, Block
from envcompare.stats.intervals import student_factor
from envcompare.stats.metrics import goes_by_clock, net_steps_ns
from ground import FixedSize, Trial, ground, measure, read_blocks, read_conditions, save

REFERENCE, CONTROL = "a", f"a{CONTROL_SUFFIX}"
SMALL_PIECES = str(1 << 16)
ARMS = {
    REFERENCE: {},
    "vector": {"ATEN_CPU_CAPABILITY": "default"},
    "allocator": {"MALLOC_MMAP_THRESHOLD_": SMALL_PIECES, "MALLOC_TRIM_THRESHOLD_": SMALL_PIECES},
    CONTROL: {},
}
SAYS = {
    "vector": "`ATEN_CPU_CAPABILITY=default`",
    "allocator": "thresholds of malloc at 64 KiB",
    CONTROL: "nothing: the reference again",
}
SHORT_S, TIMES = 0.02, 20  # of a block, and how many times as long the other kind is
LEVEL = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """The log ratio of each arm in a pair of trials: in short and long blocks."""

    short: dict[str, float]
    short_without_first: dict[str, float]  # the first step of each block left out
    long: dict[str, float]


@benchmark(__doc__, smoke=("--pairs", "1", "--rounds", "20", "--restarts", "1"))
@click.option("--pairs", default=6, show_default=True, help="Of trials.")
@click.option("--rounds", default=240, show_default=True, help="Of short blocks in a restart.")
@click.option("--restarts", default=2, show_default=True)
@click.option("--step-ms", default=7.0, show_default=True, help="About how long a step takes.")
@click.option("--workload", default="rnn", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(  # noqa: PLR0913 — an option each
    places: Places,
    *,
    pairs: int,
    rounds: int,
    restarts: int,
    step_ms: float,
    workload: str,
    python: str,
) -> None:
    """Measure what is missing, then write the page."""
    on = ground(workload, python=python)
    steps = max(2, round(1000 * SHORT_S / step_ms))
    sizes = {
        "short": FixedSize(restarts=restarts, rounds=rounds, steps=steps),
        "long": FixedSize(restarts=restarts, rounds=rounds // TIMES, steps=TIMES * steps),
    }
    for number in range(pairs):
        for kind in sorted(sizes, reverse=number % 2 == 0):  # which comes first alternates
            path = _path(places, kind, number)
            if path.exists():
                continue
            trial = Trial(
                name=f"{kind}-{number:02}",
                arms=ARMS,
                workload=workload,
                budget_s=3600.0,  # its size ends it
                seed=number,
                size=sizes[kind],
            )
            save(path, measure(trial, on))
            print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def _path(places: Places, kind: str, number: int) -> Path:
    return places.results / "turn-length" / f"{kind}-{number:02}.jsonl.gz"


def write_page(places: Places) -> str:
    """Write the ratios of both kinds of blocks, and their difference; return the page."""
    numbers = range(len(list((places.results / "turn-length").glob("long-*"))))
    found, measured, steps = [], [], 0
    for number in numbers:
        short, long = (_path(places, kind, number) for kind in ("short", "long"))
        if not (short.exists() and long.exists()):
            continue
        blocks = read_blocks(short)
        steps = blocks[-1].k
        found.append(
            Ratios(
                short=log_ratios(blocks),
                short_without_first=log_ratios(blocks, skip=1),
                long=log_ratios(read_blocks(long)),
            )
        )
        measured += [read_conditions(path) for path in (short, long)]
    page = _page(found, measured, steps=steps)
    places.write_page("turn-length.md", page, measured)
    return page


def log_ratios(blocks: Sequence[Block], *, skip: int = 0) -> dict[str, float]:
    """Return the estimate of each arm: lower quartiles, paired by round, median over all rounds."""
    rounds: dict[tuple[int, int], dict[str, float]] = {}
    for block in blocks:
        steps = net_steps_ns(block, by_clock=goes_by_clock(block))
        if not block.warmup and block.status == "ok" and steps:
            typical = math.log(np.quantile(steps[skip:], 0.25))
            rounds.setdefault((block.restart, block.round), {})[block.arm] = typical
    whole = [one for one in rounds.values() if one.keys() >= ARMS.keys()]
    return {arm: float(np.median([one[arm] - one[REFERENCE] for one in whole])) for arm in SAYS}


def _page(found: list[Ratios], measured: list[Conditions], *, steps: int) -> str:
    lines = [
        "# How long a turn lasts",
        "",
        f"`python benchmarks/turn_length.py`: {len(measured)} trials of four arms of the sentiment "
        f"classifier, half of them in blocks of {steps} steps, half in blocks of {TIMES * steps}, "
        "with as many steps in all; raw data in `benchmarks/results/turn-length/`. Ratios are "
        "means over trials of the typical step against the reference; the difference has a 95 % "
        "interval of Student t over pairs of trials.",
        "",
        f"| in the arm | blocks of {steps} steps | of {TIMES * steps} steps | short − long "
        "| short, first step left out, − long |",
        "|---|---:|---:|---:|---:|",
        *(_line(arm, found) for arm in SAYS),
    ]
    return "\n".join(lines) + "\n"


def _line(arm: str, found: list[Ratios]) -> str:
    if not found:
        return f"| {SAYS[arm]} | – | – | – | – |"
    short, long = (
        float(np.expm1(np.mean([getattr(one, kind)[arm] for one in found])))
        for kind in ("short", "long")
    )
    whole = _difference(found, lambda one: one.short[arm] - one.long[arm])
    without = _difference(found, lambda one: one.short_without_first[arm] - one.long[arm])
    return f"| {SAYS[arm]} | {short:+.1%} | {long:+.1%} | {whole} | {without} |"


def _difference(found: list[Ratios], of: Callable[[Ratios], float]) -> str:
    values = [of(one) for one in found]
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{100 * mean:+.1f} points"
    half = student_factor(len(values) - 1, LEVEL) * float(np.std(values, ddof=1))
    half /= math.sqrt(len(values))
    return f"{100 * mean:+.1f} ± {100 * half:.1f} points"


if __name__ == "__main__":
    main()
