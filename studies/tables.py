"""Print the tables of a study as Markdown: what a run measured, and what the study printed.

`python studies/tables.py results/RUN amp`; studies/tables/ holds what each study printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from envcompare.analysis.model import CellSummary, RunComparison
from envcompare.report import Column, Items, Line, PlainBlock, grid_of, markdown
from envcompare.report.wording import arms_in, listed, number_text
from envcompare.report.wording.methodwords import device_sentences
from envcompare.run_folder.records import Scalar
from envcompare.text import parse_toml

TABLES = Path(__file__).with_name("tables")
_WHERE = "where"
_SCALES = {"ns": 1e-6, "B": 1e-6}  # to ms and MB


class StudyTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row for each arm and each combination of what tells rows apart, and for what was printed.

    A printed row has `where` it was measured, what tells it apart, and some of the values.
    """

    title: str
    rows: tuple[str, ...]  # `workload`, or names of parameters
    values: dict[str, str]  # the head of each column, by the name of its number
    workloads: tuple[str, ...] = ()  # its cells; empty: all
    source: str = ""
    measured_on: str = ""
    parameters: dict[str, Scalar] = {}  # of the study, beside those that tell rows apart
    notes: tuple[str, ...] = ()
    printed: tuple[dict[str, Scalar], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One arm in one cell: what tells it apart, and its numbers in the units of the heads."""

    where: str
    told: dict[str, Scalar]
    numbers: dict[str, float | None]


def tables_of(study: str) -> tuple[StudyTable, ...]:
    """Return the tables of a study."""
    content = parse_toml((TABLES / f"{study}.toml").read_text(encoding="utf-8"))
    return msgspec.convert(content["tables"], type=tuple[StudyTable, ...])


def blocks_of(run: RunComparison, table: StudyTable) -> Iterator[PlainBlock]:
    """Yield a table below its title, and below it what differs from the study."""
    cells = (one for one in run.cells if one.workload in (table.workloads or {one.workload}))
    here = [_measured(run, cell, arm) for cell in cells for arm in arms_in(run, cell)]
    heads = (*table.rows, _WHERE, *table.values.values())
    yield Line(strong=table.title)
    yield grid_of(table.title, [Column(head=head) for head in heads], _rows(table, here))
    yield Items(items=(*_sources(run, table), *_unlike(table, here), *table.notes))


def _measured(run: RunComparison, cell: CellSummary, arm: str) -> _Measured:
    has_hosts = len({one.host for one in run.cells}) > 1
    arms = (one.parameters for one in run.arms if (one.host, one.arm) == (cell.host, arm))
    return _Measured(
        where=f"{arm} on {cell.host}" if has_hosts else arm,
        told={"workload": cell.workload, **cell.parameters, **next(arms, {})},
        numbers={**_profiled(run, cell, arm), **_timed(run, cell, arm)},
    )


def _timed(run: RunComparison, cell: CellSummary, arm: str) -> dict[str, float | None]:
    """Return times, ratio, gain by ranks and peaks of memory, and what the workload returned."""

    def mine(rows: Iterable[Any]) -> Iterator[Any]:
        return (one for one in rows if (one.cell, one.arm) == (cell.id, arm))

    found: dict[str, float | None] = {one.name: one.median for one in mine(run.views.picked)}
    for memory in mine(run.views.memory):
        peaks = msgspec.structs.asdict(memory).items()
        found |= {
            name: 1e-6 * size for name, size in peaks if "_bytes" in name and size is not None
        }
    for times in (one for one in cell.step_times if one.arm == arm):
        found |= {"step_ms": 1e3 * times.median_s, "samples_per_s": times.samples_per_s}
        found["time_ratio"] = 1.0 if arm == run.reference_in(cell.id) else None
    for estimate in (one.deciding for one in mine(run.comparisons) if one.deciding):
        found["time_ratio"] = math.exp(estimate.log_ratio)
    for gain in mine(run.views.scaling):
        percent = None if gain.efficiency is None else 100 * gain.efficiency
        found |= {"speed_up": gain.speed_up, "efficiency": percent}
    return found


def _profiled(run: RunComparison, cell: CellSummary, arm: str) -> dict[str, float | None]:
    """Return the quantities of profiles, of a step where they have one, and the time of the GPU."""
    profiles = (each for one in run.profiles if one.cell == cell.id for each in one.arms)
    found: dict[str, float | None] = {}
    for row in (row for one in profiles if one.arm == arm for row in one.quantities):
        value = row.value if row.per_step is None else row.per_step
        if value is not None and row.gpu is None:
            found.setdefault(row.name, value * _SCALES.get(row.unit, 1.0))
    if (kernels := found.get("kernel_time_ns")) is not None:
        copies = (one for one in found if one.startswith(("memcpy_", "memset_")))
        times = (found[one] or 0.0 for one in copies if one.endswith("_ns"))
        found["gpu_activities_ns"] = kernels + sum(times)
    return found


def _rows(table: StudyTable, here: list[_Measured]) -> list[tuple[str, ...]]:
    """Return for each combination what was measured here, and below it what was printed."""
    measured = [(tuple(map(one.told.get, table.rows)), one) for one in here]
    printed = [(tuple(map(row.get, table.rows)), row) for row in table.printed]
    keys = dict.fromkeys(key for key, _ in (*measured, *printed))
    rows: list[tuple[str, ...]] = []
    # numbers as they grow; names stay in the order of the run
    for key in sorted(keys, key=lambda key: [one for one in key if isinstance(one, int | float)]):
        for one in (one for known, one in measured if known == key):
            texts = [number_text(one.numbers.get(name)) for name in table.values]
            rows.append((*map(_text, key), one.where, *texts))
        for row in (row for known, row in printed if known == key):
            where = f"study, {row[_WHERE]}" if _WHERE in row else "study"
            numbers = [row.get(name) for name in table.values]
            texts = ["not printed" if one is None else number_text(float(one)) for one in numbers]
            rows.append((*map(_text, key), where, *texts))
    return rows


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "default" if value is None else str(value)


def _sources(run: RunComparison, table: StudyTable) -> Iterator[str]:
    """Say where the printed numbers are from, and what both were measured on."""
    if table.source:
        yield f"The study's numbers: {table.source}."
    if table.measured_on:
        device = listed(list(device_sentences(run)), most=4) or "on hardware that is not known"
        builds = list(dict.fromkeys(one.version for host in run.hosts for one in host.torch))
        torch = f", PyTorch {listed(builds)}" if builds and "torch" not in device else ""
        yield f"Measured {device}{torch} here; on {table.measured_on} in the study."


def _unlike(table: StudyTable, here: Iterable[_Measured]) -> Iterator[str]:
    """Say which parameters are others here than in the study."""
    for name, value in table.parameters.items():
        values = list(dict.fromkeys(one.told.get(name) for one in here))
        if values and values != [value]:
            known = listed(list(map(_text, values)), most=4)
            yield f"{name} is {known} here and {_text(value)} in the study."


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True))
@click.argument("study", type=click.Choice(sorted(path.stem for path in TABLES.glob("*.toml"))))
def main(run: Path, study: str) -> None:
    """Print the tables of STUDY with the numbers of RUN, a run folder or its comparison.json."""
    path = run / "comparison.json" if run.is_dir() else run
    try:
        found = msgspec.json.decode(path.read_bytes(), type=RunComparison)
    except (OSError, msgspec.DecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    blocks = (one for table in tables_of(study) for one in blocks_of(found, table))
    click.echo(markdown(blocks), nl=False)


if __name__ == "__main__":
    main()
