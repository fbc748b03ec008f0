"""The page of the faults on purpose: what was inflicted, and what became of the runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bookkeeping import Conditions, Places, commits
from envcompare.report.wording import NOT_MEASURED
from envcompare.text import counted

_MARKUP = str.maketrans("|<>`", "/()'")  # what a table and Markdown would take for their own
RECORDS, PAGE = "faults.jsonl", "faults.md"
Kept = TypeVar("Kept")


class Outcome(Protocol):
    """What became of a run that a fault met, whichever fault."""

    @property
    def key(self) -> tuple[object, ...]:
        """Return which of all faults it is."""
        ...

    @property
    def problem(self) -> str:
        """Return why the run did not survive; empty where it did."""
        ...

    @property
    def conditions(self) -> Conditions:
        """Return commit and load."""
        ...


Trial = TypeVar("Trial", bound=Outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One fault, and what became of the run that it met."""

    name: str
    says: str
    seed: int
    number: int
    problem: str  # empty where the run survived
    lost: int | None  # blocks that were measured again
    left: int | None  # containers, processes, mounts, folders
    next_s: float | None
    conditions: Conditions

    @property
    def key(self) -> tuple[str, int, int]:
        """Return which of all faults it is."""
        return self.name, self.seed, self.number


def read_records(places: Places) -> tuple[Record, ...]:
    """Return all records, the oldest first."""
    return kept_records(places.results / RECORDS, Record)


def append_record(places: Places, record: Record) -> None:
    """Add a record to those that are kept."""
    keep_record(places.results / RECORDS, record)


def kept_records(path: Path, kind: Callable[..., Kept]) -> tuple[Kept, ...]:
    """Return the records of a file of JSON lines, the oldest first; none where it is missing."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(kind(**json.loads(line)) for line in lines)


def keep_record(path: Path, record: Any) -> None:  # noqa: ANN401 — a dataclass, whichever
    """Add a record to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
        file.write(json.dumps(fields) + "\n")


def write_page(places: Places) -> str:
    """Write the table of all faults; return the page."""
    every = read_records(places)
    last = latest(every)
    kinds = dict.fromkeys((record.name, record.says) for record in last)
    rows = [_row(says, [record for record in last if record.name == name]) for name, says in kinds]
    lines = [
        "# Faults on purpose",
        "",
        "A run of a fixed size (2 restarts of 10 rounds; a plain process, a container and the A/A "
        "control on a lab host) is hurt at a random point, and resumed where its client has ended. "
        "It survives where it then has each block that a calm run has, once; where no process, "
        "container, mount or folder of it is left on the host or the client; and where every "
        "round that was judged is whole (`script/faults`; raw data in "
        "`benchmarks/results/faults.jsonl`). "
        "*Lost samples* are blocks that were measured and, as their restart was broken off, "
        "measured again. The seconds count from the fault, or from its end where it has one, to "
        "the next block; where the client was killed it is resumed at once.",
        "",
        "| fault | injected | survived | lost samples, median (max) | left behind "
        "| seconds until the next sample, median (max) |",
        "|---|---|---|---|---|---|",
        *rows,
        _row("**all**", last),
        "",
        *list_problems((f"{one.says}, number {one.number}", one.problem) for one in last),
        *tell_repeats(every),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    places.write_page(PAGE, page, [record.conditions for record in last])
    return page


def _row(says: str, records: Sequence[Record]) -> str:
    survived = sum(not record.problem for record in records)
    left = sum(record.left or 0 for record in records)
    lost = figures([record.lost for record in records], ".0f")
    seconds = figures([record.next_s for record in records], ".1f")
    return f"| {says} | {len(records)} | {survived} | {lost} | {left} | {seconds} |"


def figures(values: Iterable[float | None], form: str) -> str:
    """Return median and maximum of the values that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return NOT_MEASURED
    return f"{statistics.median(known):{form}} ({max(known):{form}})"


def list_problems(trials: Iterable[tuple[str, str]]) -> list[str]:
    """List the trials that were not survived: which, and why; the reason is empty in others."""
    told = [f"- {which}: {_cell(problem)}" for which, problem in trials if problem]
    return ["Not survived:", "", *told, ""] if told else []


def latest(every: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the last trial of each fault, which stands for it."""
    return tuple({record.key: record for record in every}.values())


def one_of_each_first(due: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield each kind of fault as often as it is due, with its number, one of each kind first."""
    for number in range(max(due.values(), default=0)):
        yield from ((name, number) for name, count in due.items() if number < count)


def tell_repeats(every: Iterable[Outcome]) -> list[str]:
    """Say how many trials stand in no table, as a later one took their place."""
    records = tuple(every)
    standing = {id(record) for record in latest(records)}
    earlier = [record for record in records if id(record) not in standing]
    broken = [record for record in earlier if record.problem]
    return [
        *_tell_earlier("not survived", broken),
        *_tell_earlier("survived", [record for record in earlier if not record.problem]),
    ]


def _tell_earlier(what: str, records: Sequence[Outcome]) -> list[str]:
    if not records:
        return []
    is_single = len(records) == 1
    were, later = ("was", "a later one stands") if is_single else ("were", "later ones stand")
    known = commits(record.conditions for record in records)
    where = f" (commit{'s' * (', ' in known)} {known})" if known else ""
    told = f"{counted(len(records), 'earlier trial')} {were} {what}{where}"
    return [f"{told}; {later} in the table.", ""]


def _cell(text: str) -> str:
    return " ".join(text.split())[:300].translate(_MARKUP)
