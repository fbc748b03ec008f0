"""Compare `vm` with itself, live and often, and count the intervals that exclude 0.

Each is 30 seconds of the product's own lockstep with new processes and a seed of its own. What is
counted is the interval that a verdict rests on, and a plain 95 % interval beside it. A run that was
stopped goes on where it was.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass

import click
import numpy as np
from scipy import stats

from bookkeeping import Conditions, Places, benchmark, load_average, write_json
from envcompare.stats.intervals import ALPHA, Interval
from envcompare.stats.typical import MIN_RESTARTS, MIN_ROUNDS, RoundEvidence
from ground import (
    Trial,
    budgets,
    evidence,
    ground,
    measure,
    printed_at_the_end,
    read_blocks,
    read_conditions,
    save,
    schedule_text,
)

WORKLOADS = ("cnn", "rnn")  # in turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The typical log ratio of one trial, an interval around it, and what that rests on."""

    mean: float
    low: float
    high: float
    restarts: int
    generations: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trial with both of its intervals; None where it was too short for one."""

    trial: str
    printed: Estimate | None
    plain: Estimate | None


@benchmark(__doc__, smoke=("--trials", "1", "--budget", "1"))
@click.option("--trials", default=60, show_default=True)
@click.option("--budget", default=30.0, help="Seconds a trial.", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(places: Places, trials: int, *, budget: float, python: str) -> None:
    """Measure what is missing, then write the result."""
    grounds = {name: ground(name, python=python) for name in WORKLOADS[:trials]}
    for number in range(trials):
        workload = WORKLOADS[number % len(WORKLOADS)]
        path = places.results / "false-positives" / f"trial-{number:02}-{workload}.jsonl.gz"
        if path.exists():
            continue
        began = time.monotonic()
        trial = Trial(
            name=path.name, arms={"a": {}, "b": {}}, workload=workload, budget_s=budget, seed=number
        )
        save(path, measure(trial, grounds[workload]))
        spent_s = time.monotonic() - began
        print(f"{path.name}: {spent_s:.0f} s, load {load_average()}", file=sys.stderr)
    print(write_page(places))


def write_page(places: Places) -> str:
    """Write the share of intervals that exclude 0, and every estimate; return the page."""
    paths = sorted((places.results / "false-positives").glob("*.jsonl.gz"))
    trials = {path.name: read_blocks(path) for path in paths}
    rows = [row(name, evidence(blocks)) for name, blocks in trials.items()]
    measured = [read_conditions(path) for path in paths]
    write_json(places.results / "false-positives.json", {"trials": [asdict(one) for one in rows]})
    page = _page(rows, measured, schedule_text(trials.values()))
    places.write_page("false-positives.md", page, measured)
    return page


def row(trial: str, rounds: RoundEvidence | None) -> Row:
    """Return the estimate of one trial and both of its intervals, as log ratios."""
    if rounds is None:
        return Row(trial=trial, printed=None, plain=None)
    printed = _found(printed_at_the_end(rounds))
    plain = _found(rounds.interval(level=1 - ALPHA))
    return Row(trial=trial, printed=printed, plain=plain)


def _page(rows: list[Row], measured: list[Conditions], schedule: str) -> str:
    each = budgets(measured)
    lines = [
        "# False positives: `vm` against itself, live",
        "",
        f"{len(rows)} independent comparisons{f' of {each} each' if each else ''}, `cnn` and "
        "`rnn` in turns, each with its own processes and seed "
        "(`python benchmarks/false_positives.py`; raw data in "
        "`benchmarks/results/false-positives/`). Where a run of `vm` alone compares it with its "
        "control, so does each of these."
        f"{schedule}",
        "",
        "| interval | excludes 0 | share (95 % Clopper–Pearson) | half-width, median | RMSE |",
        "|---|---|---|---|---|",
        _line("printed", [one.printed for one in rows]),
        _line("plain", [one.plain for one in rows]),
        "",
        "*printed* is the interval that a verdict rests on, widened for looking. It needs "
        f"{MIN_RESTARTS} restarts and {MIN_ROUNDS} rounds. "
        "*plain* is the interval at 95 % that pays for nothing. No share is known better than its "
        "interval.",
    ]
    return "\n".join(lines) + "\n"


def _found(found: Interval | None) -> Estimate | None:
    if found is None or found.low is None or found.high is None:
        return None
    return Estimate(
        mean=found.mean,
        low=found.low,
        high=found.high,
        restarts=found.restarts,
        generations=found.generations,
        unit=found.unit,
    )


def _line(kind: str, found: list[Estimate | None]) -> str:
    known = [one for one in found if one is not None]
    if not known:
        return f"| {kind} | 0 of 0 | – | – | – |"
    wrong = sum(one.low > 0 or one.high < 0 for one in known)
    # exact (Clopper and Pearson 1934)
    share = stats.binomtest(wrong, len(known)).proportion_ci(0.95, method="exact")
    half = np.median([(one.high - one.low) / 2 for one in known])
    rmse = np.sqrt(np.mean([one.mean**2 for one in known]))
    return (
        f"| {kind} | {wrong} of {len(known)} "
        f"| {wrong / len(known):.1%} ({share.low:.1%} to {share.high:.1%}) "
        f"| ±{half:.1%} | {rmse:.2%} |"
    )


if __name__ == "__main__":
    main()
