"""How much `--stabilise` narrows an interval: each policy against itself, in one lockstep.

Every policy takes part twice, so that the truth of its ratio is 1; all meet the same neighbours.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np

from bookkeeping import HERE, Places, benchmark, load_average
from envcompare.report.wording import NOT_MEASURED
from envcompare.run_folder.records import Block
from envcompare.stats.metrics import METRICS
from envcompare.stats.typical import spread_of_rounds
from ground import (
    Trial,
    Variables,
    evidence,
    ground,
    measure,
    read_blocks,
    read_conditions,
    save,
    schedule_text,
)

NO_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "", "MALLOC_TRIM_THRESHOLD_": ""}
LIGHT = f"{HERE / 'workloads' / 'systemcalls.py'}:SystemCalls"  # starts at once, without torch
POLICIES: dict[str, Variables] = {
    "plain": {**NO_MALLOC, "PYTHONHASHSEED": ""},
    "hash-seed": NO_MALLOC,
    "allocator": {"PYTHONHASHSEED": ""},
    "both": {},
}


@benchmark(__doc__, smoke=("--budget", "1", "--workload", LIGHT))
@click.option("--budget", default=300.0, help="Seconds a trial.", show_default=True)
@click.option("--policies", default="plain,both", show_default=True)
@click.option("--workload", default="cnn", show_default=True)
@click.option("--trials", default=1, show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(  # noqa: PLR0913 — an option each
    places: Places, *, budget: float, policies: str, workload: str, trials: int, python: str
) -> None:
    """Measure what is missing, then write the table."""
    chosen = {name: POLICIES[name] for name in policies.split(",")}
    arms = {f"{name}{twin}": own for name, own in chosen.items() for twin in ("-a", "-b")}
    on = ground(workload, python=python)
    folder = places.results / "stabilising"
    for number in range(trials):
        name = f"{_name(workload)}-{policies.replace(',', '-vs-')}-{number:02}"
        path = folder / f"{name}.jsonl.gz"
        if not path.exists():
            trial = Trial(name=name, arms=arms, workload=workload, budget_s=budget, seed=number)
            save(path, measure(trial, on))
            print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def write_page(places: Places) -> str:
    """Write the table of all trials; return the page."""
    paths = sorted((places.results / "stabilising").glob("*.jsonl.gz"))
    trials = {path: read_blocks(path) for path in paths}
    lines = [
        "# What `--stabilise` does to an interval",
        "",
        "Each policy takes part twice in one lockstep, so that the truth of its ratio is 1 and all "
        "policies meet the same neighbours (`python benchmarks/stabilising.py`; raw data in "
        "`benchmarks/results/stabilising/`). *plain* leaves everything as it is, *allocator* fixes "
        "glibc's trim and mmap thresholds, *hash-seed* gives all workers of a restart one hash "
        "seed, and *both* is `--stabilise`, the default."
        f"{schedule_text(trials.values())}",
        "",
        "| trial | policy | net step time, median | page faults a block | rounds | SD of rounds "
        "| SD of restarts beyond | half-width (95 %) |",
        "|---|---|---|---|---|---|---|---|",
        *(line for path, blocks in trials.items() for line in rows(path, blocks)),
        "",
        "The SD of rounds is the one that the median of all rounds sees; that of restarts is what "
        "they add to it, 0 where they scatter no more than their rounds explain.",
        "",
        "Policies are to be compared within a trial: only there did they run side by side. A step "
        "under fixed thresholds is another step: memory that is freed stays with the process, and "
        "the faults that would have brought it back are gone. What an environment makes of page "
        "faults is measured with `--no-stabilise` alone.",
    ]
    page = "\n".join(lines) + "\n"
    places.write_page("stabilising.md", page, map(read_conditions, paths))
    return page


def rows(path: Path, blocks: tuple[Block, ...]) -> Iterable[str]:
    """Yield a line for each policy: spreads of log ratios in percent."""
    for name in sorted({block.arm[:-2] for block in blocks}):
        found = evidence(blocks, arm=f"{name}-b", reference=f"{name}-a")
        assert found is not None
        rounds = spread_of_rounds(found.groups)
        own = [b for b in blocks if b.arm[:-2] == name and not b.warmup]
        steps = [(METRICS["net"](b) or np.nan) / b.k / 1e6 for b in own]
        yield (
            f"| {path.name.partition('.')[0]} | {name} | {np.nanmedian(steps):.1f} ms "
            f"| {np.median([b.minor_faults or 0 for b in own]):.0f} "
            f"| {sum(map(len, found.groups))} "
            f"| {NOT_MEASURED if rounds is None else f'{rounds:.2%}'} "
            f"| {math.sqrt(max(0.0, found.spread.own_excess)):.2%} "
            f"| ±{found.interval(level=0.95).half_width:.2%} |"
        )


def _name(workload: str) -> str:
    """Return what a file is called by; a workload may be given as FILE:CLASS."""
    return Path(workload).name.partition(".")[0]


if __name__ == "__main__":
    main()
