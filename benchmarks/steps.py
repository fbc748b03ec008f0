"""Print half-widths of `envcompare why --lockstep` and of whole processes in equal budgets.

Each script is compared with itself, as whole processes of some hundred steps and by its steps. The
cost of the probe is measured in a loop that only calls an optimizer's `step`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import click
from faults_page import keep_record, kept_records
from slowdowns import compare_lines

from bookkeeping import HERE, Conditions, Places, Watch, benchmark
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison

DATA, PAGE = "steps.jsonl", "steps.md"
PROGRAMS = HERE / "programs" / "scripts"
STEPPING = HERE.parent / "workloads" / "harness" / "stepping.py"
SCRIPTS = {
    "plain": "a plain loop",
    "loaders": "a CNN, two processes that load",
    "language": "a language model, accumulated gradients, checkpoints",
    "with_lightning": "Lightning",
    "with_trainer": "Trainer of Transformers",
    "with_accelerate": "Accelerate, accumulated gradients",
}
WHOLE, ENDLESS = 50, 10_000_000  # steps of a script
BARE = 20_000  # steps of a turn of the loop that does nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A script against itself: half-widths of the printed interval of the ratio, and the probe."""

    script: str
    whole: float | None  # None: no interval
    steps: float | None
    whole_count: int  # processes of the line that count
    steps_count: int  # restarts
    outcomes: tuple[str, str]
    seconds: tuple[float, float]  # of both runs
    whole_ns: float  # a process of WHOLE steps
    step_ns: float
    probe_ns: float  # that the probe adds to a step
    conditions: Conditions

    @property
    def share(self) -> float:
        """Return the part of a whole process that is its steps."""
        return WHOLE * self.step_ns / self.whole_ns if self.whole_ns else 0.0

    @property
    def dilution(self) -> float | None:
        """Return the half-width of whole processes, as a change of the step alone."""
        return self.whole / self.share if self.whole is not None and self.share else None


@benchmark(__doc__, smoke=("--scripts", "plain", "--budget", "60"))
@click.option("--scripts", default=",".join(SCRIPTS), show_default=True)
@click.option("--budget", default=90.0, help="Seconds of each run.", show_default=True)
@click.option("--python", required=True, help="An interpreter with requirements/recipes.in.")
def main(places: Places, scripts: str, *, budget: float, python: str) -> None:
    """Measure what is missing, then write the page."""
    for name in scripts.split(","):
        if name not in {record.script for record in _records(places)}:
            record = _measure(name, python, budget_s=budget, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    return kept_records(places.results / DATA, Record)


def _measure(name: str, python: str, *, budget_s: float, places: Places) -> Record:
    watch = Watch.begin()
    line = f"env OMP_NUM_THREADS=1 {python} {PROGRAMS / name}.py"
    began_s = time.monotonic()
    whole = _compare(f"{line} {WHOLE}", budget_s=budget_s, places=places)
    between_s = time.monotonic()
    steps = _compare(f"{line} {ENDLESS}", "--lockstep", budget_s=budget_s, places=places)
    ended_s = time.monotonic()
    return Record(
        script=name,
        whole=_half_width(whole),
        steps=_half_width(steps),
        whole_count=whole.deciding.restarts if whole.deciding else 0,
        steps_count=steps.deciding.restarts if steps.deciding else 0,
        outcomes=(whole.outcome, steps.outcome),
        seconds=(between_s - began_s, ended_s - between_s),
        whole_ns=1e9 * (whole.reference_step_s or 0.0),
        step_ns=1e9 * (steps.reference_step_s or 0.0),
        probe_ns=_probe_ns(python),
        conditions=watch.conditions(),
    )


def _compare(line: str, *options: str, budget_s: float, places: Places) -> Comparison:
    """Return the comparison of a line with itself, which uses the whole budget."""
    out = places.work / "steps" / f"{time.time():.0f}"
    words = (*options, "--target", "0.001", line, line)
    with tempfile.TemporaryDirectory(prefix="envcompare-steps-") as folder:
        run = compare_lines(*words, budget_s=budget_s, folder=folder, out=out)
        (compared,) = compare_run(run).compared
    return compared


def _half_width(compared: Comparison) -> float | None:
    found = compared.deciding
    if found is None or found.low is None or found.high is None:
        return None
    return (found.high - found.low) / 2


def _probe_ns(python: str) -> float:
    """Return what the probe adds to a step in a turn, from one process each."""
    line = f"env OMP_NUM_THREADS=1 {python} {PROGRAMS / 'bare.py'} {BARE}"
    free = subprocess.run(line.split(), capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="envcompare-steps-") as folder:
        variables = {"ENVCOMPARE_LINE": line, "ENVCOMPARE_GATE": folder}
        with subprocess.Popen(
            [sys.executable, str(STEPPING)],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            requests = (
                {"op": "hello", "workload": "bare", "cwd": folder, "fingerprint": False},
                {"op": "run", "k": BARE, "run_in": BARE},
                {"op": "quit"},
            )
            answers = []
            for request in requests:
                worker.stdin.write(json.dumps(request).encode() + b"\n")
                worker.stdin.flush()
                answers.append(json.loads(worker.stdout.readline()))
    return float(sum(answers[1]["wall_ns"])) / BARE - float(free.stdout)


def write_page(places: Places) -> str:
    """Write the page; return it."""
    records = sorted(_records(places), key=lambda record: list(SCRIPTS).index(record.script))
    shares = [record.probe_ns / record.step_ns for record in records if record.step_ns]
    page = "\n".join((
        "# Steps in turns against whole processes",
        "",
        f"`python benchmarks/steps.py --python PYTHON`: {len(records)} training scripts, each "
        f"compared with itself once by `envcompare why`: as whole processes of {WHOLE} steps, "
        "which include imports and start-up, and with `--lockstep`, which measures steps only. "
        f"Both runs use the whole budget. Raw data in `benchmarks/results/{DATA}`. A half-width is "
        "half of the printed interval.",
        "",
        "| script | whole processes | of it steps | as a change of the step | steps in turns "
        "| ratio | a step |",
        "|---|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        "- A process of few steps is mostly imports, which hide a change of the step: *as a change "
        "of the step* is the half-width divided by the part of the process that is steps. The "
        "ratio is that of the two half-widths of the step.",
        "- In a loop that only calls `step`, the probe adds "
        f"{1e-3 * min((one.probe_ns for one in records), default=0):.1f} to "
        f"{1e-3 * max((one.probe_ns for one in records), default=0):.1f} µs a step (one run with "
        "the probe and one without for each script): at most "
        f"{max(shares, default=0):.2%} of a step of these scripts.",
    ))  # fmt: skip
    places.write_page(PAGE, page, (one.conditions for one in records))
    return page


def _row(record: Record) -> str:
    halves = (record.whole, record.steps)
    whole_s, steps_s = record.seconds
    counts = (
        f"{record.whole_count} processes, {whole_s:.0f} s",
        f"{record.steps_count} restarts, {steps_s:.0f} s",
    )
    cells = [
        "no interval" if half is None else f"±{half:.2%} ({count}), {outcome}"
        for half, count, outcome in zip(halves, counts, record.outcomes, strict=True)
    ]
    own, step = record.dilution, f"{record.step_ns / 1e6:.2f} ms"
    ratio = f"{record.steps / own:.2f}" if own and record.steps is not None else "none"
    alone = "no interval" if own is None else f"±{own:.0%}"
    return (
        f"| {SCRIPTS[record.script]} | {cells[0]} | {record.share:.0%} | {alone} | {cells[1]} "
        f"| {ratio} | {step} |"
    )


if __name__ == "__main__":
    main()
