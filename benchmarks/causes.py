"""Print whether `envcompare why --prove` finds and proves the known causes of slow command lines.

The cases are those of slowdowns.py. What was changed counts as the cause if it is one of its facts,
an option in which the lines differ, or the file, setting or package: nothing else differs between
the lines of a case. Pairs without an effect show how often one is made up, and rounds drawn again
from those of a proof how often it would come out as it did. A run that was stopped goes on with the
case it was at. Needs root, Docker and gcc. It also writes the gallery of public questions.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from faults_page import keep_record, kept_records
from slowdowns import CASES, UNMEASURED, WITHOUT_EFFECT, Case, measured

from bookkeeping import Conditions, Places, Watch, benchmark
from envcompare.analysis.compare import compare_run
from envcompare.cli.proving import units
from envcompare.proof import judged
from envcompare.report.wording.linewords import line_candidates
from envcompare.run_folder.results import RunFolder

DATA, PAGE, GALLERY = "causes.jsonl", "causes.md", "gallery.md"
FIRST = 2  # places on the first screen that count
EVERY = CASES | WITHOUT_EFFECT
SHORTER = 1 / 3  # of the budget, for a pair without an effect
REPLAYS = 25  # of a proof
LINES = ("fast", "slow", "changed", "placebo")
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
    rounds: tuple[tuple[float, ...], ...] = ()  # of the proof, in ms: LINES
    conditions: Conditions

    @property
    def place(self) -> int | None:
        """Return the place of the cause among the candidates, from 1; None if it is none."""
        names = EVERY[self.case].names
        return next((n for n, key in enumerate(self.candidates, 1) if key in names), None)

    @property
    def is_first_by_name(self) -> bool:
        """Tell whether the cause is the first in the order of names, whatever is known of it."""
        first = min((*self.candidates, *self.denied), default="")
        return first in EVERY[self.case].names

    @property
    def is_denied(self) -> bool:
        """Tell whether the cause was said to have no effect."""
        return self.place is None and not set(EVERY[self.case].names).isdisjoint(self.denied)

    @property
    def is_of_cause(self) -> bool:
        """Tell whether what was changed is the cause, or contains it."""
        case = EVERY[self.case]
        if {"image.id", "image.files", "packages", "software"} & set(self.keys):
            is_named = bool(case.inside) and case.inside in self.what
            return (self.is_whole or is_named) and len(self.keys) == case.count
        is_alone = case.count == 1 and not case.has_bystanders
        known = [key in case.names or (is_alone and key.startswith("option.")) for key in self.keys]
        return all(known) and len(known) == case.count and self.case in CASES

    @property
    def is_whole(self) -> bool:
        """Tell whether the image was changed as a whole, without naming what in it counts."""
        case = CASES[self.case]
        is_named = bool(case.inside) and case.inside in self.what
        if "software" in self.keys:  # the other Python
            return True
        return case.images[0] != case.images[1] and "image.id" in self.keys and not is_named


@benchmark(__doc__, smoke=("--cases", "nofile", "--budget", "30"))
@click.option("--cases", default=",".join(EVERY), show_default=True)
@click.option("--budget", default=120.0, help="Seconds a case, twice.", show_default=True)
@click.option("--base-image", default="envcompare-base:python3.11", help="An image with Python.")
def main(places: Places, cases: str, *, budget: float, base_image: str) -> None:
    """Measure what is missing, then write the pages."""
    for name in cases.split(","):
        if name not in {record.case for record in _records(places)}:
            # a second cause needs a second search
            budget_s = budget * (CASES[name].count if name in CASES else SHORTER)
            record = _measure(name, base_image, budget_s=budget_s, places=places)
            keep_record(places.results / DATA, record)
            print(_row(record), file=sys.stderr)
    print(write_page(places))


def _records(places: Places) -> tuple[Record, ...]:
    records = kept_records(places.results / DATA, Record)
    return tuple(sorted(records, key=lambda record: list(EVERY).index(record.case)))


def _measure(name: str, base: str, *, budget_s: float, places: Places) -> Record:
    watch = Watch.begin()
    folder = measured(name, base, "--prove", budget_s=budget_s, places=places)
    run = compare_run(folder)
    (compared,) = run.compared
    shown, _ = line_candidates(run, compared)
    differing = [difference for difference in run.differences if difference.arm == compared.arm]
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
        rounds=_rounds(folder.path / proof.runs[-1]) if confirmed and proof else (),
        conditions=watch.conditions(),
    )


def _rounds(trial: Path) -> tuple[tuple[float, ...], ...]:
    """Return the times of LINES in each round of a trial that has all of them."""
    every = units(RunFolder.open(trial).read_samples().samples)
    whole = [one for one in every if one.keys() >= set(LINES)]
    return tuple(tuple(round(one[line] / 1e6, 3) for line in LINES) for one in whole)


def _replayed(records: Sequence[Record], *, changed: str, placebo: str) -> Counter[str]:
    """Return how often each outcome is found in rounds that are drawn again with replacement."""
    draw = random.Random(len(records))
    outcomes: Counter[str] = Counter()
    for record in records:
        rounds = [dict(zip(LINES, one, strict=True)) for one in record.rounds]
        for _ in range(REPLAYS if rounds else 0):
            again = draw.choices(rounds, k=len(rounds))
            outcomes[judged(again, changed=changed, placebo=placebo)] += 1
    return outcomes


def write_page(places: Places) -> str:
    """Write the page and the gallery; return the page."""
    every = _records(places)
    records = tuple(one for one in every if one.case in CASES)
    without = [one for one in every if one.case not in CASES]
    proven = [record for record in records if record.proof == "cause" and record.is_of_cause]
    wrong = [record for record in records if record.proof == "cause" and not record.is_of_cause]
    first = [record for record in records if record.place is not None and record.place <= FIRST]
    images = sum(one.is_whole for one in proven)
    page = "\n".join((
        "# Proven causes of slow lines",
        "",
        f"`python benchmarks/causes.py`, as root: {len(records)} of {len(CASES)} slowdowns in "
        "miniature, most of them modelled on public threads ([gallery](../gallery.md)), each "
        f"measured once with `why --prove`{_missing(records)}; raw data in "
        f"`benchmarks/results/{DATA}`. The table shows the place of the cause among the unproven "
        "candidates, what was changed, what share of the difference the change closes in fresh "
        "rounds (95 % interval), likewise a placebo, the number of runs of the proof, and the time "
        "of verdict and proof. Both lines of a case run in containers of one base image, or in "
        "virtual environments of one Python, and differ in the cause alone, but for a harmless "
        "file in one case, a mount in another, and two harmless packages in a third. Two causes at "
        "once have twice the budget, 240 s: with 120 s, only one of them was proven, as a part.",
        "",
        "| cause | printed | place | changed | closes | placebo | outcome | runs | time |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(_row, records),
        "",
        f"- In {len(proven)} of the {len(records)} that were run, the cause was proven; in "
        f"{images} of them only as the whole image or Python.",
        f"- Something else was called the cause in {len(wrong)}.",
        f"- Before any proof, the cause was the first or second candidate in {len(first)}, and was "
        f"ruled out in {sum(record.is_denied for record in records)}.",
        "- The cause comes first in "
        f"{sum(record.is_first_by_name for record in records)} "
        f"by the names of the facts that differ, in {sum(record.place == 1 for record in records)} "
        "by the evidence about them, and in "
        f"{len(proven)} by changing them; little else differs between these lines.",
        *_without_effect(without),
        *_again([record for record in records if record.rounds]),
    ))  # fmt: skip
    conditions = [one.conditions for one in every]
    places.write_page(PAGE, page, conditions)
    places.write_page(f"../{GALLERY}", _gallery(records), conditions)
    return page


def _without_effect(records: Sequence[Record]) -> list[str]:
    """Return what was found in pairs of lines whose difference their program does not notice."""
    if not records:
        return []
    outcomes = Counter(record.outcome for record in records)
    named = [record for record in records if record.proof in {"cause", "contributes"}]
    decided = [record for record in records if record.outcome in {"slower", "faster"}]
    says = "; ".join(f"{WITHOUT_EFFECT[one.case].says}: {_change(one)}" for one in decided)
    return [
        "",
        "## Pairs without an effect",
        "",
        f"{len(records)} of {len(WITHOUT_EFFECT)} pairs that differ in a property which their "
        "program does not notice, such as a limit on descriptors for a program that opens one "
        f"file, with a third of the budget: {_counted(outcomes)}; a cause or a part of one was "
        f"named in {len(named)}.{f' Slower or faster: {says}.' if says else ''}",
    ]


def _again(records: Sequence[Record]) -> list[str]:
    """Return what proofs would find in other rounds of the same runs."""
    if not records:
        return []
    changed = _replayed(records, changed="changed", placebo="placebo")
    nothing = _replayed(records, changed="placebo", placebo="slow")
    return [
        "",
        "## Rounds drawn again",
        "",
        f"The rounds of {len(records)} proofs, drawn again with replacement, {REPLAYS} times each: "
        f"of the change, {_counted(changed)}; with the placebo in place of the change, "
        f"{_counted(nothing)}.",
    ]


def _counted(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in outcomes.most_common())


def _missing(records: tuple[Record, ...]) -> str:
    """Return which cases were not measured; empty if all were."""
    done = {record.case for record in records}
    left = [one for one in CASES if one not in done]
    return f" (not yet run: {', '.join(left)})" if left else ""


def _row(record: Record) -> str:
    place = "denied" if record.is_denied else str(record.place or "none")
    what = f"`{record.what}`" if record.what else "nothing"
    shares = (_percent(record.share), _percent(record.placebo))
    says, trials = EVERY[record.case].says, str(record.trials)
    took = f"{record.conditions['elapsed_s']:.0f} s"
    cells = (says, _change(record), place, what, *shares, record.proof, trials, took)
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
    answered = [record for record in records if CASES[record.case].source]
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
          if case.source and name not in {record.case for record in records}),
    ))  # fmt: skip


def _question(case: Case, record: Record) -> list[str]:
    place = case.source.replace("#", "/issues/")
    typed = (line.format("image-a", "image-b") for line in case.lines)
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
    lines = [
        "",
        f"## {case.says[:1].upper()}{case.says[1:]}",
        "",
        f"[{case.title}](https://github.com/{place}) ({case.source}): {case.claim}.",
        "",
        "```text",
        *typed,
        *(["", *images] if images else []),
        "```",
        "",
        f"The second line: {_change(record)}; {answer}.",
        *(["", f"To fix it: {record.fix}."] if is_answered and record.fix else []),
    ]
    return [line.replace(f"envcompare-lines:{record.case}-", "image-") for line in lines]


if __name__ == "__main__":
    main()
