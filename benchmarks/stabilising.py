"""How much `--stabilise` narrows an interval: each policy against itself, in one lockstep.

Every policy takes part twice, so that the truth of its ratio is 1; all meet the same neighbours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np

from envcompare.metrics import estimate
from envcompare.records import Block
from envcompare.stats.intervals import interval
from ground import RESULTS, Trial, Variables, ground, load_average, measure, read_blocks, save

NO_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "", "MALLOC_TRIM_THRESHOLD_": ""}
POLICIES: dict[str, Variables] = {
    "plain": {**NO_MALLOC, "PYTHONHASHSEED": ""},
    "hash-seed": NO_MALLOC,
    "allocator": {"PYTHONHASHSEED": ""},
    "both": {},
}
FOLDER = RESULTS / "stabilising"


@click.command(help=__doc__)
@click.option("--budget", default=300.0, help="Seconds a trial.", show_default=True)
@click.option("--policies", default="plain,both", show_default=True)
@click.option("--workload", default="cnn", show_default=True)
@click.option("--trials", default=1, show_default=True)
def main(budget: float, policies: str, workload: str, trials: int) -> None:
    """Measure what is missing, then print the table."""
    chosen = {name: POLICIES[name] for name in policies.split(",")}
    arms = {f"{name}{twin}": own for name, own in chosen.items() for twin in ("-a", "-b")}
    on = ground(workload)
    for number in range(trials):
        path = FOLDER / f"{workload}-{policies.replace(',', '-vs-')}-{number:02}.jsonl.gz"
        if not path.exists():
            name = path.stem
            notes = measure(
                Trial(name=name, arms=arms, workload=workload, budget_s=budget, seed=number), on
            )
            save(path, (*notes.samples, *notes.events))
            print(f"{path.name}: load {load_average()}", file=sys.stderr)
    for path in sorted(FOLDER.glob("*.jsonl.gz")):
        for line in rows(path, read_blocks(path)):
            print(line)


def rows(path: Path, blocks: tuple[Block, ...]) -> Iterable[str]:
    """Yield a line for each policy: spreads in percent, and the half-width at 95 %."""
    for name in sorted({block.arm[:-2] for block in blocks}):
        pairs, groups = estimate(blocks, arm=f"{name}-b", reference=f"{name}-a", metric="net")
        data = np.asarray(groups)
        within = np.sqrt(data.var(axis=1, ddof=1).mean()) if data.shape[1] > 1 else np.nan
        rounds = [np.var(r, ddof=1) for gens in pairs.values() for r in gens.values() if len(r) > 1]
        found = interval(groups, level=0.95)
        own = [b for b in blocks if b.arm[:-2] == name and not b.warmup]
        steps = np.asarray([ns for b in own for ns in b.wall_ns]) / 1e6
        faults = [b.minor_faults or 0 for b in own]
        yield (
            f"{path.stem} {name}: {data.shape} step {np.median(steps):.1f} ms, "
            f"faults/block {np.median(faults):.0f}, "
            f"SD rounds {100 * np.sqrt(np.mean(rounds)):.2f}, generations {100 * within:.2f}, "
            f"restarts {100 * data.mean(axis=1).std(ddof=1):.2f} %, "
            f"{100 * found.mean:+.2f} ± {100 * found.half_width:.2f} %"
        )


if __name__ == "__main__":
    main()
