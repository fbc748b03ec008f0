"""What running all arms of a round on the same CPU changes.

A trial is a run of vm, docker and singularity on a lab host, with `--same-cpu` or without it; both
kinds take turns. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import click
import numpy as np
from first_run import DEMO

from bookkeeping import Places, Watch, benchmark, load_average, on_lab_host, one_run
from envcompare.run_folder.records import Block, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.typical import spread_of_rounds
from ground import Notes, evidence, read_blocks, read_conditions, save

FOLDER, PAGE = "same-cpu", "same-cpu.md"
KINDS = {"same": "--same-cpu", "free": "--no-same-cpu"}
REFERENCE = "vm"
ARMS = ("docker", "singularity", "vm~control")
RUN = (
    *(*DEMO, "--no-startup", "--profile", "none", "--no-noise-memory"),
    *("--target", "0.1"),  # the budget ends a cell
)


@benchmark(__doc__, smoke=("--trials", "1", "--budget", "8", "--workloads", "rnn"))
@click.option("--trials", default=4, show_default=True, help="Of each kind.")
@click.option("--budget", default=60.0, help="Seconds a cell.", show_default=True)
@click.option("--workloads", default="cnn,rnn", show_default=True)
@on_lab_host
def main(  # noqa: PLR0913 — the options of a run
    places: Places, trials: int, *, budget: float, workloads: str, host: str, ssh_config: str
) -> None:
    """Measure what is missing, then write the page."""
    words = (*RUN, "--hosts", host, "--ssh-config", ssh_config, "--workloads", workloads)
    for number in range(trials):
        for kind in sorted(KINDS, reverse=number % 2 == 0):  # which comes first alternates
            path = places.results / FOLDER / f"{kind}-{number:02}.jsonl.gz"
            if not path.exists():
                given = ("--budget", str(budget), "--seed", str(number), KINDS[kind])
                save(path, _measure((*words, *given)))
                print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def _measure(words: tuple[str, ...]) -> Notes:
    """Run once; return the blocks that count, and the conditions."""
    watch = Watch.begin()
    with one_run(*words) as folder:
        samples = RunFolder.open(folder).read_samples().samples
    notes = Notes(samples=[s for s in samples if isinstance(s, Block) and not s.warmup])
    notes.event(Event(t=time.time(), what="note", values=watch.conditions()))
    return notes


def write_page(places: Places) -> str:
    """Write where the blocks ran and what came of it, for both kinds of trials; return the page."""
    paths = {kind: sorted((places.results / FOLDER).glob(f"{kind}-*.gz")) for kind in KINDS}
    every = [path for some in paths.values() for path in some]
    lines = [
        "# All arms of a round on the same CPU",
        "",
        f"`python benchmarks/same_cpu.py`: {len(every)} runs of vm, docker and singularity on a "
        "lab host, half with `--same-cpu`, the default, half with `--no-same-cpu`; raw data in "
        "`benchmarks/results/same-cpu/`. The share is that of the blocks that ended on the CPU "
        "with the lowest number. A ratio is that of typical steps to vm, the mean over trials with "
        "the lowest and the highest; the SD of a round is taken from the middle of the rounds, so "
        "that a few long ones do not raise it, and is the median over trials.",
        "",
        "| | workload | arm | on the first CPU | vm there | ratio − 1 | SD of a round |",
        "|---|---|---|---:|---:|---:|---:|",
        *(line for kind in KINDS for line in _rows(kind, [read_blocks(p) for p in paths[kind]])),
    ]
    page = "\n".join(lines) + "\n"
    places.write_page(PAGE, page, map(read_conditions, every))
    return page


def _rows(kind: str, trials: list[tuple[Block, ...]]) -> Iterator[str]:
    """Yield a line for each workload and arm."""
    cells = sorted({block.cell for blocks in trials for block in blocks})
    for cell in cells:
        of_cell = [[block for block in blocks if block.cell == cell] for blocks in trials]
        for arm in ARMS:
            found = [evidence(blocks, arm=arm, reference=REFERENCE) for blocks in of_cell]
            known = [one for one in found if one is not None]
            if not known:
                continue
            ratios = [np.expm1(one.interval(level=0.95).mean) for one in known]
            spreads = [s for one in known if (s := spread_of_rounds(one.groups)) is not None]
            yield (
                f"| `{KINDS[kind]}` | {cell.split('/')[1]} | {arm} | {_first(of_cell, arm):.0%} "
                f"| {_first(of_cell, REFERENCE):.0%} "
                f"| {np.mean(ratios):+.1%} ({min(ratios):+.1%} to {max(ratios):+.1%}) "
                f"| {f'{np.median(spreads):.1%}' if spreads else '–'} |"
            )


def _first(trials: list[list[Block]], arm: str) -> float:
    """Return the share of the blocks of an arm that ended on the first CPU that any ended on."""
    known = [(b.arm, b.cpu) for blocks in trials for b in blocks if b.cpu is not None]
    first = min((cpu for _, cpu in known), default=0)
    own = [cpu == first for name, cpu in known if name == arm]
    return float(np.mean(own)) if own else float("nan")


if __name__ == "__main__":
    main()
