"""Print whether `envcompare why --prove` proves the known causes of slow command lines.

The cases are those of lines.py. What was changed counts as the cause if it is one of its facts, an
option in which the lines differ, or their image: nothing else differs between the lines of a case.
A run that was stopped goes on with the case it was at. Needs root and Docker.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import click
from faults_page import keep_record, kept_records
from lines import CASES, measured

from bookkeeping import Conditions, Places, Watch, benchmark

DATA, PAGE = "causes.jsonl", "causes.md"
Ends = tuple[float, float, float]  # a share and its interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was printed of a case: the change, and what was proven."""

    case: str
    outcome: str
    change: float | None  # a ratio less 1
    proof: str
    keys: tuple[str, ...] = ()  # of what was changed
    what: str = ""
    share: Ends | None = None
    placebo: Ends | None = None
    trials: int = 0
    conditions: Conditions

    @property
    def is_of_cause(self) -> bool:
        """Tell whether what was changed is the cause, or contains it."""
        case = CASES[self.case]
        if {"image.id", "image.files"} & set(self.keys):
            return self.is_whole or bool(case.inside)
        return any(key in case.names or key.startswith("option.") for key in self.keys)

    @property
    def is_whole(self) -> bool:
        """Tell whether the image was changed as a whole, without naming what in it counts."""
        case = CASES[self.case]
        is_named = bool(case.inside) and case.inside in self.what
        return case.images[0] != case.images[1] and "image.id" in self.keys and not is_named


@benchmark(__doc__, smoke=("--cases", "nofile", "--budget", "30"))
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--budget", default=120.0, help="Seconds a case, twice.", show_default=True)
@click.option("--base-image", default="envcompare-base:python3.11", help="An image with Python.")
def main(places: Places, cases: str, *, budget: float, base_image: str) -> None:
    """Measure what is missing, then write the page."""
    for name in cases.split(","):
        if name not in {record.case for record in _records(places)}:
            record = _measure(name, base_image, budget_s=budget, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    return kept_records(places.results / DATA, Record)


def _measure(name: str, base: str, *, budget_s: float, places: Places) -> Record:
    watch = Watch.begin()
    run = measured(name, base, "--prove", budget_s=budget_s, places=places)
    (compared,) = run.compared
    ratio = compared.deciding.log_ratio if compared.deciding else None
    proof = run.proof
    confirmed = proof.confirmed if proof else None
    shares = (confirmed.share if confirmed else None, proof.placebo if proof else None)
    share, placebo = (None if one is None else (one.value, one.low, one.high) for one in shares)
    return Record(
        case=name,
        outcome=compared.outcome,
        change=None if ratio is None else math.expm1(ratio),
        proof=proof.outcome if proof else "none",
        keys=confirmed.keys if confirmed else (),
        what=confirmed.what if confirmed else "",
        share=share,
        placebo=placebo,
        trials=len(proof.runs) if proof else 0,
        conditions=watch.conditions(),
    )


def write_page(places: Places) -> str:
    """Write the page; return it."""
    records = sorted(_records(places), key=lambda record: list(CASES).index(record.case))
    proven = [one for one in records if one.proof == "cause" and one.is_of_cause]
    wrong = [one for one in records if one.proof == "cause" and not one.is_of_cause]
    images = sum(one.is_whole for one in proven)
    page = "\n".join((
        "# Proven causes of slow lines",
        "",
        f"`python benchmarks/causes.py`, as root: {len(records)} of the {len(CASES)} slowdowns of "
        "[known causes](lines.md), each measured once with `why --prove`; raw data in "
        f"`benchmarks/results/{DATA}`. The table shows what was changed, what share of the "
        "difference the change closes in fresh rounds (95 % interval), and likewise a placebo. "
        "Both lines of a case run in containers of one base image, and differ in the cause alone.",
        "",
        "| cause | printed | changed | closes | placebo | outcome | runs |",
        "|---|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        f"- In {len(proven)} of {len(records)} the cause was proven; in {images} of them only as "
        "the whole image.",
        f"- Something else was called the cause in {len(wrong)}.",
    ))  # fmt: skip
    places.write_page(PAGE, page, (one.conditions for one in records))
    return page


def _row(record: Record) -> str:
    change = "none" if record.change is None else f"{record.change:+.1%}"
    what = f"`{record.what}`" if record.what else "nothing"
    shares = (_percent(record.share), _percent(record.placebo))
    cells = (CASES[record.case].says, change, what, *shares, record.proof, str(record.trials))
    return f"| {' | '.join(cells)} |"


def _percent(share: Ends | None) -> str:
    if share is None:
        return "not measured"
    value, low, high = (round(100 * one) for one in share)
    return f"{value} % ({low} to {high})"


if __name__ == "__main__":
    main()
