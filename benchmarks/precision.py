"""A true slowdown of 2 %, measured three ways in equal time: lockstep, hyperfine, interleaved.

The program is the classifier, and one arm computes 2 % more (benchmarks/programs). hyperfine times
whole processes one after another, `interleaved` times them in random pairs, and lockstep is the
product's own. All three see the same allocator settings, in one and the same run and in random
order. A run that was stopped goes on where it was.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy import stats

from bookkeeping import HERE, Places, Watch, benchmark, load_average, write_json
from envcompare import bundled
from envcompare.measure import stable_variables
from envcompare.stats.intervals import Interval, interval
from envcompare.stats.typical import MIN_ROUNDS, RoundEvidence
from ground import (
    Ground,
    Trial,
    budgets,
    evidence,
    ground,
    measure,
    printed_at_the_end,
    read_blocks,
    save,
    schedule_text,
)

SLOWDOWN = 0.02
STEPS = 20
ARMS = ("a", "b")
TRAIN = HERE / "programs" / "train.py"
SLOWED = HERE / "programs" / "slowed.py"
LEVEL = 0.95
SHOWN = ("lockstep", "interleaved", "hyperfine")  # in this order
TOO_SHORT = "too few pairs for an interval: give each method more seconds"
PRINTED = "lockstep, as a run prints it"  # widened for looking


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """One repetition: each method has as many seconds."""

    number: int
    budget_s: float
    on: Ground
    folder: Path  # of the raw data
    steps: int = STEPS

    def argv(self) -> tuple[str, ...]:
        """Return the command of a whole process."""
        workloads, data = str(bundled.workloads()), str(self.on.data)
        return (self.on.interpreter, str(TRAIN), workloads, data, str(self.steps))

    def variables(self, arm: str) -> dict[str, str]:
        """Return the environment of a whole process, with what `--stabilise` sets."""
        slowdown = str(SLOWDOWN if arm == "b" else 0)
        fixed = dict(stable_variables(self.number, "precision", 0))
        return {**fixed, "OMP_NUM_THREADS": "1", "SLOWDOWN": slowdown}


def by_lockstep(repeat: Repeat) -> dict[str, object]:
    """Let the product measure; its samples lie beside the result."""
    trial = Trial(
        name=f"precision-{repeat.number}",
        arms={"a": {}, "b": {"SLOWDOWN": str(SLOWDOWN)}},
        workload=f"{SLOWED}:Slowed",
        budget_s=repeat.budget_s,
        seed=repeat.number,
    )
    path = repeat.folder / f"lockstep-{repeat.number:02}.jsonl.gz"
    save(path, measure(trial, repeat.on))
    return {"samples": path.name}


def by_hyperfine(repeat: Repeat) -> dict[str, object]:
    """Let hyperfine time all processes of one arm, then all of the other."""
    began = time.monotonic()
    _whole_process(repeat, "a")  # how many fit; hyperfine has a warm start from it
    runs = max(2, round(repeat.budget_s / (2 * (time.monotonic() - began))))
    commands = [
        " ".join(("env", *(f"{k}={v}" for k, v in repeat.variables(arm).items()), *repeat.argv()))
        for arm in ARMS
    ]
    argv = ("hyperfine", "-N", "--style", "none", "--runs", str(runs))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "hyperfine.json"
        subprocess.run((*argv, "--export-json", str(result), *commands), check=True)
        found = json.loads(result.read_text(encoding="utf-8"))["results"]
    return {arm: one["times"] for arm, one in zip(ARMS, found, strict=True)}


def by_interleaving(repeat: Repeat) -> dict[str, object]:
    """Time whole processes in pairs, each in random order, while a further pair fits."""
    order = random.Random(repeat.number)
    times: dict[str, list[float]] = {arm: [] for arm in ARMS}
    began = time.monotonic()
    pair_s = 0.0
    while len(times["a"]) < 2 or time.monotonic() - began + pair_s <= repeat.budget_s:
        pair_began = time.monotonic()
        for arm in order.sample(ARMS, 2):
            times[arm].append(_whole_process(repeat, arm))
        pair_s = time.monotonic() - pair_began
    return dict(times)


METHODS: dict[str, Callable[[Repeat], dict[str, object]]] = {
    "lockstep": by_lockstep,
    "hyperfine": by_hyperfine,
    "interleaved": by_interleaving,
}


@benchmark(__doc__, smoke=("--repeats", "1", "--budget", "1", "--steps", "1"))
@click.option("--repeats", default=15, show_default=True)
@click.option("--budget", default=45.0, help="Seconds a method.", show_default=True)
@click.option("--steps", default=STEPS, help="Steps of a whole process.", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(places: Places, repeats: int, budget: float, steps: int, python: str) -> None:
    """Measure what is missing, then write the result."""
    folder = places.results / "precision"
    on = ground(python=python)
    for number in range(repeats):
        path = folder / f"repeat-{number:02}.json"
        if not path.exists():
            repeat = Repeat(number=number, budget_s=budget, on=on, folder=folder, steps=steps)
            write_json(path, _measure(repeat))
            print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def _measure(repeat: Repeat) -> dict[str, object]:
    """Carry out all methods in random order, each with the load and the pressure it met."""
    found: dict[str, object] = {"budget_s": repeat.budget_s}
    conditions = {}
    for name in random.Random(repeat.number).sample(tuple(METHODS), len(METHODS)):
        began, watch = time.monotonic(), Watch.begin()
        found[name] = METHODS[name](repeat)
        found[f"{name}_s"], conditions[name] = time.monotonic() - began, watch.conditions()
    return {**found, "conditions": conditions}


def _whole_process(repeat: Repeat, arm: str) -> float:
    environment = {**os.environ, **repeat.variables(arm)}
    began = time.monotonic()
    subprocess.run(repeat.argv(), env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One estimate of the log ratio with the half-width of its 95 % interval."""

    mean: float
    half_width: float
    pairs: int
    seconds: float


def write_page(places: Places) -> str:
    """Write result and page from the raw data; return the page."""
    truth = math.log1p(SLOWDOWN)
    paths = sorted((places.results / "precision").glob("repeat-*.json"))
    raw = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    folder = places.results / "precision"
    trials = [read_blocks(folder / one["lockstep"]["samples"]) for one in raw]
    repeats = [_found(one, evidence(blocks)) for one, blocks in zip(raw, trials, strict=True)]
    by_method = {name: [one[name] for one in repeats] for name in (*SHOWN, PRINTED)}
    rows = {name: _row(found, truth) for name, found in by_method.items()}
    kept = {"truth": truth, "repeats": len(repeats), "rows": rows}
    write_json(places.results / "precision.json", kept)
    head, tests = _head(len(repeats), budgets(raw), schedule_text(trials)), _tests(by_method, truth)
    page = "\n".join((*head, *map(_line, rows.items()), *tests))
    measured = [one for repeat in raw for one in repeat.get("conditions", {}).values()]
    places.write_page("precision.md", page + "\n", measured)
    return page


def _found(raw: dict[str, Any], lockstep: RoundEvidence | None) -> dict[str, Found]:
    if lockstep is None:
        raise click.ClickException(TOO_SHORT)
    seconds = {name: raw[f"{name}_s"] for name in SHOWN}
    rounds, printed = sum(map(len, lockstep.groups)), printed_at_the_end(lockstep)
    return {
        "lockstep": _of_interval(lockstep.interval(level=LEVEL), seconds["lockstep"], rounds),
        PRINTED: _of_interval(printed, seconds["lockstep"], rounds),
        "interleaved": _paired(raw["interleaved"], seconds["interleaved"]),
        "hyperfine": _welch(raw["hyperfine"], seconds["hyperfine"]),
    }


def _of_interval(found: Interval | None, seconds: float, pairs: int) -> Found:
    if found is None:
        raise click.ClickException(TOO_SHORT)
    return Found(mean=found.mean, half_width=found.half_width, pairs=pairs, seconds=seconds)


def _paired(times: dict[str, list[float]], seconds: float) -> Found:
    ratios = np.log(times["b"]) - np.log(times["a"])
    found = interval(ratios.tolist(), level=LEVEL)
    return _of_interval(found, seconds, ratios.size)


def _welch(times: dict[str, list[float]], seconds: float) -> Found:
    a, b = np.log(times["a"]), np.log(times["b"])
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(LEVEL)
    return Found(
        mean=float(b.mean() - a.mean()),
        half_width=float(high - low) / 2,
        pairs=a.size,
        seconds=seconds,
    )


def _row(found: list[Found], truth: float) -> dict[str, float]:
    errors = np.asarray([one.mean - truth for one in found])
    halves = np.asarray([one.half_width for one in found])
    return {
        "rmse": float(np.sqrt((errors**2).mean())),
        "half_width": float(np.median(halves)),
        "covers": float((np.abs(errors) <= halves).mean()),
        "excludes_0": float(np.mean([abs(one.mean) > one.half_width for one in found])),
        "pairs": float(np.median([one.pairs for one in found])),
        "seconds": float(np.median([one.seconds for one in found])),
    }


def _head(repeats: int, each: str, schedule: str) -> tuple[str, ...]:
    return (
        "# Precision: a true slowdown of 2 %, three ways in equal time",
        "",
        f"{repeats} repetitions; in each, every method has {each or 'the same time'}, in random "
        "order "
        "(`python benchmarks/precision.py`; raw data in `benchmarks/results/precision/`). Lockstep "
        "has the two arms alone here, as the others do, without the A/A control that a run adds; "
        "all three see the allocator settings of `--stabilise`."
        f"{schedule}",
        "",
        "| method | RMSE | half-width (95 %), median | covers the truth | excludes 0 "
        "| rounds or pairs | seconds |",
        "|---|---|---|---|---|---|---|",
    )


def _line(row: tuple[str, dict[str, float]]) -> str:
    name, found = row
    return (
        f"| {name} | {found['rmse']:.2%} | ±{found['half_width']:.2%} | {found['covers']:.0%} | "
        f"{found['excludes_0']:.0%} | {found['pairs']:.0f} | {found['seconds']:.0f} |"
    )


def _tests(by_method: dict[str, list[Found]], truth: float) -> tuple[str, ...]:
    """Compare widths and errors of lockstep with those of each other method, repeat by repeat."""
    lines = []
    own = np.asarray([one.half_width for one in by_method["lockstep"]])
    errors = {
        name: np.abs([one.mean - truth for one in found]) for name, found in by_method.items()
    }
    for name in SHOWN[1:]:
        other = np.asarray([one.half_width for one in by_method[name]])
        widths = np.log((own / other)[np.isfinite(own) & np.isfinite(other)])
        ratio = float(np.exp(np.median(widths)))
        p_value = float(stats.wilcoxon(widths).pvalue)
        p_error = float(stats.wilcoxon(errors["lockstep"], errors[name]).pvalue)
        lines += [
            "",
            f"Against {name}: the half-width of lockstep is {ratio:.2f} of its own (median of the "
            f"{widths.size} repetitions in which both have an interval; Wilcoxon signed-rank "
            f"p = {p_value:.1g}), and its error is smaller in "
            f"{np.mean(errors['lockstep'] < errors[name]):.0%} of the repetitions "
            f"(p = {p_error:.1g}).",
        ]
    missing = int(np.isinf(own).sum())
    if missing:
        lines += [
            "",
            f"In {missing} repetitions lockstep has fewer than {MIN_ROUNDS} rounds, so no "
            "interval; that counts as wide as can be, covers the truth and does not exclude 0.",
        ]
    return tuple(lines)


if __name__ == "__main__":
    main()
