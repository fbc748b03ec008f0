"""Print whether `envcompare why --prove` finds and proves the known causes of slow command lines.

The cases are those of slowdowns.py. What was changed counts as the cause if it is one of its facts,
an option in which the lines differ, or the file or setting of the image: nothing else differs
between the lines of a case. A run that was stopped goes on with the case it was at. Needs root,
Docker and gcc. It also writes the gallery of public questions.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import click
from faults_page import keep_record, kept_records
from slowdowns import CASES, UNMEASURED, Case, measured

from bookkeeping import Conditions, Places, Watch, benchmark
from envcompare.report.wording.linewords import line_candidates

DATA, PAGE, GALLERY = "causes.jsonl", "causes.md", "gallery.md"
FIRST = 2  # places on the first screen that count
MINUS = "\N{MINUS SIGN}"
Ends = tuple[float, float, float]  # a share and its interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What was printed of a case: the change, the candidates in their order, and the proof."""

    case: str
    outcome: str
    change: float | None  # a ratio less 1
    candidates: tuple[str, ...]
    denied: tuple[str, ...]  # facts that differ and were said to have no effect
    proof: str
    keys: tuple[str, ...] = ()  # of what was changed
    what: str = ""
    fix: str = ""
    share: Ends | None = None
    placebo: Ends | None = None
    trials: int = 0
    conditions: Conditions

    @property
    def place(self) -> int | None:
        """Return the place of the cause among the candidates, from 1; None if it is none."""
        names = CASES[self.case].names
        return next((n for n, key in enumerate(self.candidates, 1) if key in names), None)

    @property
    def is_denied(self) -> bool:
        """Tell whether the cause was said to have no effect."""
        return self.place is None and not set(CASES[self.case].names).isdisjoint(self.denied)

    @property
    def is_of_cause(self) -> bool:
        """Tell whether what was changed is the cause, or contains it."""
        case = CASES[self.case]
        if {"image.id", "image.files"} & set(self.keys):
            return self.is_whole or (bool(case.inside) and case.inside in self.what)
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
    """Measure what is missing, then write the pages."""
    for name in cases.split(","):
        if name not in {record.case for record in _records(places)}:
            record = _measure(name, base_image, budget_s=budget, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    records = kept_records(places.results / DATA, Record)
    return tuple(sorted(records, key=lambda record: list(CASES).index(record.case)))


def _measure(name: str, base: str, *, budget_s: float, places: Places) -> Record:
    watch = Watch.begin()
    run = measured(name, base, "--prove", budget_s=budget_s, places=places)
    (compared,) = run.compared
    shown, _ = line_candidates(run, compared)
    differing = [one for one in run.differences if one.arm == compared.arm]
    ratio = compared.deciding.log_ratio if compared.deciding else None
    proof = run.proof
    confirmed = proof.confirmed if proof else None
    shares = (confirmed.share if confirmed else None, proof.placebo if proof else None)
    share, placebo = (None if one is None else (one.value, one.low, one.high) for one in shares)
    return Record(
        case=name,
        outcome=compared.outcome,
        change=None if ratio is None else math.expm1(ratio),
        candidates=tuple(one.key for one in shown),
        denied=tuple(one.key for one in differing if one.is_felt is False),
        proof=proof.outcome if proof else "none",
        keys=confirmed.keys if confirmed else (),
        what=confirmed.what if confirmed else "",
        fix=proof.mend if proof else "",
        share=share,
        placebo=placebo,
        trials=len(proof.runs) if proof else 0,
        conditions=watch.conditions(),
    )


def write_page(places: Places) -> str:
    """Write the page and the gallery; return the page."""
    records = _records(places)
    proven = [one for one in records if one.proof == "cause" and one.is_of_cause]
    wrong = [one for one in records if one.proof == "cause" and not one.is_of_cause]
    first = [one for one in records if one.place is not None and one.place <= FIRST]
    images = sum(one.is_whole for one in proven)
    page = "\n".join((
        "# Proven causes of slow lines",
        "",
        f"`python benchmarks/causes.py`, as root: {len(records)} of {len(CASES)} slowdowns in "
        "miniature, most of them modelled on public threads ([gallery](../gallery.md)), each "
        f"measured once with `why --prove`{_missing(records)}; raw data in "
        f"`benchmarks/results/{DATA}`. The table shows the place of the cause among the unproven "
        "candidates, what was changed, what share of the difference the change closes in fresh "
        "rounds (95 % interval), likewise a placebo, and the number of runs of the proof. Both "
        "lines of a case run in containers of one base image, and differ in the cause alone, but "
        "for a harmless file in one case and a mount in another.",
        "",
        "| cause | printed | place | changed | closes | placebo | outcome | runs |",
        "|---|---|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        f"- In {len(proven)} of {len(records)} the cause was proven; in {images} of them only as "
        "the whole image.",
        f"- Something else was called the cause in {len(wrong)}.",
        f"- Before any proof, the cause was the first or second candidate in {len(first)}, and was "
        f"ruled out in {sum(one.is_denied for one in records)}.",
    ))  # fmt: skip
    conditions = [one.conditions for one in records]
    places.write_page(PAGE, page, conditions)
    places.write_page(f"../{GALLERY}", _gallery(records), conditions)
    return page


def _missing(records: tuple[Record, ...]) -> str:
    """Return which cases were not measured; empty if all were."""
    done = {one.case for one in records}
    left = [one for one in CASES if one not in done]
    return f" (not reached: {', '.join(left)})" if left else ""


def _row(record: Record) -> str:
    place = "denied" if record.is_denied else str(record.place or "none")
    what = f"`{record.what}`" if record.what else "nothing"
    shares = (_percent(record.share), _percent(record.placebo))
    says, trials = CASES[record.case].says, str(record.trials)
    cells = (says, _change(record), place, what, *shares, record.proof, trials)
    return f"| {' | '.join(cells)} |"


def _change(record: Record) -> str:
    if record.change is None:
        return "none"
    return f"{100 * record.change:+.1f} %".replace("-", MINUS)


def _percent(share: Ends | None) -> str:
    if share is None:
        return "not measured"
    value, low, high = (round(100 * one) for one in share)
    return f"{value} % ({low} to {high})".replace("-", MINUS)


def _gallery(records: tuple[Record, ...]) -> str:
    """Return public questions with the answer of envcompare to a small replica of each."""
    answered = [one for one in records if CASES[one.case].source]
    return "\n".join((
        "# Known causes from public threads, in miniature",
        "",
        f"{len(answered)} public threads about something slow, whose cause is known or likely. "
        "envcompare did not run the programs of these threads: each has a small replica of its "
        "cause, and what `envcompare why --prove` said of its two lines on one machine with two "
        "cores ([all numbers](benchmarks/causes.md)). What envcompare calls a fix makes the second "
        "line like the first; the cure of a thread may be another, such as fewer threads in place "
        "of more CPUs. An image that adds nothing is the base image; files of the replicas are in "
        "`benchmarks/slowdowns.py`.",
        *(text for one in answered for text in _question(CASES[one.case], one)),
        "",
        "## Without an answer here",
        "",
        "| thread | claim | needs |",
        "|---|---|---|",
        *(f"| [{title}](https://github.com/{place}) ({source}) | {claim} | {needs} |"
          for source, title, claim, needs in UNMEASURED
          for place in (source.replace("#", "/issues/"),)),
        *(f"| [{case.title}](https://github.com/{case.source.replace('#', '/issues/')}) "
          f"({case.source}) | {case.claim} | its replica was not run |"
          for name, case in CASES.items()
          if case.source and name not in {one.case for one in records}),
    ))  # fmt: skip


def _question(case: Case, record: Record) -> list[str]:
    place = case.source.replace("#", "/issues/")
    lines = (line.format("image-a", "image-b") for line in case.lines)
    images = [
        f"{name}: {line}"
        for name, added in zip(("image-a", "image-b"), case.images, strict=True)
        for line in added.splitlines()
    ]
    is_answered = record.is_of_cause and record.proof in {"cause", "contributes"}
    answer = f"not proven (best candidate: `{record.what}`)" if record.what else "not found"
    if is_answered:
        part = "the cause" if record.proof == "cause" else "a part of the cause"
        answer = f"{part}: `{record.what}` closes {_percent(record.share)} of the difference"
    elif record.proof == "cause":
        answer = f"wrong: `{record.what}` was called the cause"
    return [
        "",
        f"## {case.says[:1].upper()}{case.says[1:]}",
        "",
        f"[{case.title}](https://github.com/{place}) ({case.source}): {case.claim}.",
        "",
        "```text",
        *lines,
        *(["", *images] if images else []),
        "```",
        "",
        f"The second line: {_change(record)}; {answer}.",
        *(["", f"To fix it: {record.fix}."] if is_answered and record.fix else []),
    ]


if __name__ == "__main__":
    main()
