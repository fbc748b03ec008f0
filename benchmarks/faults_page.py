"""The page of the faults on purpose: what was inflicted, and what became of the runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bookkeeping import Conditions, Places
from envcompare.report.format.numbers import NOT_MEASURED

_MARKUP = str.maketrans("|<>`", "/()'")  # what a table and Markdown would take for their own
RECORDS, PAGE = "faults.jsonl", "faults.md"


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
    path = places.results / RECORDS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(_record(json.loads(line)) for line in lines)


def _record(fields: dict[str, Any]) -> Record:
    return Record(**fields)


def append_record(places: Places, record: Record) -> Path:
    """Add a record to those that are kept."""
    path = places.results / RECORDS
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
        file.write(json.dumps(fields) + "\n")
    return path


def write_page(places: Places) -> str:
    """Write the table of all faults; return the page."""
    every = read_records(places)
    last = tuple({record.key: record for record in every}.values())
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
        *_problems(last),
        *_mended(every, last),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    places.write_page(PAGE, page, [record.conditions for record in last])
    return page


def _row(says: str, records: Sequence[Record]) -> str:
    survived = sum(not record.problem for record in records)
    left = sum(record.left or 0 for record in records)
    lost = _figures([record.lost for record in records], ".0f")
    seconds = _figures([record.next_s for record in records], ".1f")
    return f"| {says} | {len(records)} | {survived} | {lost} | {left} | {seconds} |"


def _figures(values: Iterable[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOT_MEASURED
    return f"{statistics.median(known):{form}} ({max(known):{form}})"


def _problems(records: Iterable[Record]) -> list[str]:
    problems = [record for record in records if record.problem]
    if not problems:
        return []
    told = [f"- {one.says}, number {one.number}: {_cell(one.problem)}" for one in problems]
    return ["Not survived:", "", *told, ""]


def _mended(every: Sequence[Record], last: Sequence[Record]) -> list[str]:
    repeated = len(every) - len(last)
    if not repeated:
        return []
    return [f"{repeated} trials were not survived at an earlier commit, and were repeated.", ""]


def _cell(text: str) -> str:
    return " ".join(text.split())[:300].translate(_MARKUP)
