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

import click

from bookkeeping import HERE, Places, Watch, benchmark, load_average, write_json
from envcompare import bundled
from envcompare.measure import stable_variables
from ground import Ground, Trial, ground, measure, save
from precision_page import write_page

SLOWDOWN = 0.02
STEPS = 20
ARMS = ("a", "b")
TRAIN = HERE / "programs" / "train.py"
SLOWED = HERE / "programs" / "slowed.py"


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
    print(write_page(places, truth=math.log1p(SLOWDOWN)))


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


if __name__ == "__main__":
    main()
