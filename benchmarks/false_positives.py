"""Compare `vm` with itself, live and often, and count the intervals that exclude 0.

Each is 30 seconds of the product's own lockstep with new processes and a seed of its own. What is
counted is the interval that a verdict rests on, and a plain 95 % interval beside it. A run that was
stopped goes on where it was.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
import numpy as np

from envcompare.analysis.judge import MIN_RESTARTS
from envcompare.metrics import estimate
from envcompare.stats.intervals import Interval, interval, printed_interval
from envcompare.stats.shares import share_interval
from ground import (
    DOCS,
    RESULTS,
    Trial,
    ground,
    load_average,
    measure,
    read_blocks,
    save,
    write_json,
)

FOLDER = RESULTS / "false-positives"
WORKLOADS = ("cnn", "rnn")  # in turns


@click.command(help=__doc__)
@click.option("--trials", default=60, show_default=True)
@click.option("--budget", default=30.0, help="Seconds a trial.", show_default=True)
def main(trials: int, budget: float) -> None:
    """Measure what is missing, then write the result."""
    grounds = {name: ground(name) for name in WORKLOADS}
    for number in range(trials):
        workload = WORKLOADS[number % len(WORKLOADS)]
        path = FOLDER / f"trial-{number:02}-{workload}.jsonl.gz"
        if path.exists():
            continue
        began = time.monotonic()
        trial = Trial(
            name=path.name, arms={"a": {}, "b": {}}, workload=workload, budget_s=budget, seed=number
        )
        save(path, measure(trial, grounds[workload]).samples)
        spent_s = time.monotonic() - began
        print(f"{path.name}: {spent_s:.0f} s, load {load_average()}", file=sys.stderr)
    report(sorted(FOLDER.glob("*.jsonl.gz")), budget)


def report(paths: list[Path], budget: float) -> None:
    """Write the share of intervals that exclude 0, and every estimate."""
    rows = [row(path) for path in paths]
    kinds = {kind: [one[kind] for one in rows] for kind in ("printed", "plain")}
    ready = sum(one is not None and one["restarts"] >= MIN_RESTARTS for one in kinds["printed"])
    lines = [
        "# False positives: `vm` against itself, live",
        "",
        f"{len(rows)} independent comparisons of {budget:.0f} s each, `cnn` and `rnn` in turns, "
        "each with its own processes and seed (`python benchmarks/false_positives.py`; raw data "
        "in `benchmarks/results/false-positives/`). Where a run of `vm` alone compares it with its "
        "control, so does each of these.",
        "",
        "| interval | excludes 0 | share (95 % Clopper–Pearson) | half-width, median | RMSE |",
        "|---|---|---|---|---|",
        *(_line(kind, found) for kind, found in kinds.items()),
        "",
        "*printed* is the interval that a verdict rests on, widened for looking; a verdict needs "
        f"{MIN_RESTARTS} restarts besides, which {ready} of the {len(rows)} had. *plain* is "
        "Student t at 95 %. No share is known better than its interval.",
    ]
    write_json(RESULTS / "false-positives.json", {"trials": rows})
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "false-positives.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def row(path: Path) -> dict[str, object]:
    """Return the estimate of one trial and both of its intervals, as log ratios."""
    _, groups = estimate(read_blocks(path), arm="b", reference="a", metric="net")
    printed = printed_interval(groups, comparisons=1, is_strict=False)
    plain = interval(groups, level=0.95)
    return {"trial": path.name, "printed": _found(printed), "plain": _found(plain)}


def _found(found: Interval | None) -> dict[str, object] | None:
    if found is None or found.low is None or found.high is None:
        return None
    keys = {"restarts": found.restarts, "generations": found.generations, "unit": found.unit}
    return {"mean": found.mean, "low": found.low, "high": found.high, **keys}


def _line(kind: str, found: list[dict[str, float] | None]) -> str:
    known = [one for one in found if one is not None]
    wrong = sum(one["low"] > 0 or one["high"] < 0 for one in known)
    low, high = share_interval(wrong, len(known))
    half = np.median([(one["high"] - one["low"]) / 2 for one in known])
    rmse = np.sqrt(np.mean([one["mean"] ** 2 for one in known]))
    return (
        f"| {kind} | {wrong} of {len(known)} | {wrong / len(known):.1%} ({low:.1%} to {high:.1%}) "
        f"| ±{half:.1%} | {rmse:.2%} |"
    )


if __name__ == "__main__":
    main()
