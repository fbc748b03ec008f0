"""Plant a slowdown of one operator, and see whether the marked rounds find it.

The operator holds about 4 % of a training step and becomes 5 % slower in one arm: the step slows by
0.2 %, less than a verdict on the step can tell. A third arm is the reference again. Each trial has
processes and a seed of its own; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from bookkeeping import HERE, Places, benchmark, load_average
from envcompare.analysis.model.profiling import ArmPhases, PartDifference
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.descriptive import cell_phases
from envcompare.run_folder.records import CONTROL_SUFFIX, Block, MarkedBlock
from envcompare.stats.metrics import Readings
from ground import (
    Trial,
    budgets,
    ground,
    measure,
    printed_at_the_end,
    read_conditions,
    read_samples,
    recorded_run,
    save,
)

WORKLOAD = f"{HERE / 'workloads' / 'planted.py'}:Planted"
VARIABLE = "ENVCOMPARE_PLANTED"
SLOWDOWN = 0.05
OPERATOR = ("forward", "aten::erf")
REFERENCE, SLOWED, CONTROL = "a", "b", f"a{CONTROL_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one trial told of the slowed arm and of the control."""

    trial: str
    slowed: ArmPhases
    control: ArmPhases
    step: tuple[float, float] | None  # the interval of a verdict on the step, log ratios


@benchmark(__doc__, smoke=("--trials", "1", "--budget", "6"))
@click.option("--trials", default=6, show_default=True)
@click.option("--budget", default=120.0, help="Seconds a trial.", show_default=True)
@click.option("--python", default="", help="An interpreter that imports torch.")
def main(places: Places, trials: int, *, budget: float, python: str) -> None:
    """Measure what is missing, then write the page."""
    on = ground(WORKLOAD, python=python)
    for number in range(trials):
        path = places.results / "operators" / f"trial-{number:02}.jsonl.gz"
        if path.exists():
            continue
        arms = {REFERENCE: {}, SLOWED: {VARIABLE: str(1 + SLOWDOWN)}, CONTROL: {}}
        trial = Trial(
            name=path.name, arms=arms, workload=WORKLOAD, budget_s=budget, seed=number, marks=True
        )
        save(path, measure(trial, on))
        print(f"{path.name}: load {load_average()}", file=sys.stderr)
    print(write_page(places))


def write_page(places: Places) -> str:
    """Write what each trial found; return the page."""
    paths = sorted((places.results / "operators").glob("*.jsonl.gz"))
    found = [one for path in paths if (one := found_in(path))]
    measured = [read_conditions(path) for path in paths]
    page = _page(found, budgets(measured))
    places.write_page("operators.md", page, measured)
    return page


def found_in(path: Path) -> Found | None:
    """Return what a trial tells by the product's own analysis; None where it was too short."""
    samples = read_samples(path)
    blocks = tuple(sample for sample in samples if isinstance(sample, Block))
    run = recorded_run(blocks, preset="default", reference=REFERENCE, control=CONTROL)
    data = CellData(
        run=run,
        cell=run.cells[0],
        blocks=blocks,
        events=(),
        host_events=(),
    )
    phases = cell_phases(data, (sample for sample in samples if isinstance(sample, MarkedBlock)))
    arms = {arm.arm: arm for arm in phases.arms} if phases else {}
    if not {SLOWED, CONTROL} <= set(arms):
        return None
    evidence = Readings(blocks, metrics=("net",)).evidence(SLOWED, REFERENCE, "net")
    whole = printed_at_the_end(evidence) if evidence else None
    low, high = (whole.low, whole.high) if whole else (None, None)
    return Found(
        trial=path.name.partition(".")[0],
        slowed=arms[SLOWED],
        control=arms[CONTROL],
        step=None if low is None or high is None else (low, high),
    )


def planted(arm: ArmPhases) -> PartDifference | None:
    """Return what is said of the operator that was slowed."""
    return next((part for part in arm.parts if (part.phase, part.operator) == OPERATOR), None)


def others(arm: ArmPhases) -> list[PartDifference]:
    """Return the operators that were found to differ although nothing was changed in them."""
    return [
        part
        for part in arm.parts
        if part.kind == "operator"
        and part.is_distinguishable
        and (part.phase, part.operator) != OPERATOR
    ]


def _page(found: list[Found], each: str) -> str:
    hits = sum((one := planted(trial.slowed)) is not None and one.is_distinguishable and
               one.log_ratio > 0 for trial in found)  # fmt: skip
    tested = sum(sum(part.kind == "operator" for part in trial.control.parts) for trial in found)
    wrong = sum(len(others(trial.control)) for trial in found)
    lines = [
        "# One slower operator",
        "",
        f"`python benchmarks/operators.py`: `{OPERATOR[1]}`, a few percent of a training step, is "
        f"{SLOWDOWN:.0%} slower in one arm. {len(found)} trials"
        f"{f' of {each} each' if each else ''} with processes and a seed of their own; raw data in "
        "`benchmarks/results/operators/`.",
        "",
        f"**Found in {hits} of {len(found)} trials.** In the control, {wrong} of {tested} "
        "operators were said to differ.",
        "",
        f"| trial | marked rounds | share of the step | `{OPERATOR[1]}` | a step | other operators "
        "said to differ | the same in the control | verdict on the step |",
        "|---|---|---|---|---|---|---|---|",
        *map(_line, found),
        "",
        "The interval of an operator holds together with those of all phases and operators that "
        "hold 1 % of the step or more. The verdict on the step is its printed interval.",
    ]
    return "\n".join(lines) + "\n"


def _line(trial: Found) -> str:
    part, arm = planted(trial.slowed), trial.slowed
    cells = ["–"] * 3
    if part is not None and part.low is not None and part.high is not None:
        cells = [
            f"{part.share:.1%}",
            f"{np.expm1(part.log_ratio):+.1%} ({_interval(part.low, part.high)})",
            f"{part.difference_s * 1e6:+.1f} µs",
        ]
    step = _interval(*trial.step, digits=2) if trial.step else "–"
    return (
        f"| {trial.trial} | {arm.rounds} in {arm.restarts} restarts | {' | '.join(cells)} "
        f"| {_names(others(arm))} | {_names(others(trial.control))} | {step} |"
    )


def _names(parts: list[PartDifference]) -> str:
    return ", ".join(f"{part.phase} {part.operator or 'Python'}" for part in parts) or "none"


def _interval(low: float, high: float, *, digits: int = 1) -> str:
    return f"{np.expm1(low):+.{digits}%} to {np.expm1(high):+.{digits}%}"


if __name__ == "__main__":
    main()
