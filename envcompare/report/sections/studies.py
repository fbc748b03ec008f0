"""Tables that a run was asked for, as those of a study: its numbers and the printed ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from envcompare.analysis.model.comparison import CellSummary, RunComparison, StepTimes
from envcompare.analysis.timing.scaling import RANKS
from envcompare.report.blocks import Column, Items, Line, PlainBlock, Row, Section, Table
from envcompare.report.numbers import NOT_MEASURED, listed, number_text
from envcompare.report.wording.labels import arms_in
from envcompare.report.wording.methodwords import device_sentences
from envcompare.report.wording.profileterms import quantity_name
from envcompare.run_folder.records import Scalar, TableRecord
from envcompare.text import visible, visible_line

_HEADS: Final = {
    "step_ms": "ms a step",
    "samples_per_s": "samples/s",
    "time_ratio": "time ÷ reference",
    "speed_up": "speed-up",
    "efficiency": "efficiency, %",
    "gpu_activities_ns": "all GPU activities,\nms a step",
    "cuda_allocated_peak_bytes": "CUDA allocated, MB",
    "cuda_reserved_peak_bytes": "CUDA reserved, MB",
}
_UNITS: Final = {
    "ns": "ms a step", "bytes": "MB", "share": "%", "occupancy": "%", "rate": "%",
    "efficiency": "%", "intensity": "FLOP/B", "w": "W", "j": "J", "mhz": "MHz", "c": "°C",
}  # fmt: skip
"""By the end of a quantity's name, as its values are shown here."""
_WHERE: Final = "where"
_MS: Final = 1e3
_NS_IN_MS: Final = 1e-6
_MB: Final = 1e-6
_PERCENT: Final = 100
Key = tuple[Scalar, ...]


@dataclass(frozen=True, kw_only=True)  # no slots: what is looked up for each row is kept
class _Measured:
    """One arm in one cell, and what is known of it."""

    run: RunComparison
    cell: CellSummary
    arm: str

    def told(self, name: str) -> Scalar:
        """Return what tells its row apart: workload, host or the value of a parameter."""
        places: dict[str, Scalar] = {"workload": self.cell.workload, "host": self.cell.host}
        return {**places, **self.cell.parameters, **self._parameters}.get(name)

    @property
    def where(self) -> str:
        """Name the arm, and its host where the run has several."""
        has_hosts = len({cell.host for cell in self.run.cells}) > 1
        return f"{self.arm} on {self.cell.host}" if has_hosts else self.arm

    @cached_property
    def times(self) -> StepTimes | None:
        """Return its step times."""
        return next((one for one in self.cell.step_times if one.arm == self.arm), None)

    def value(self, name: str) -> float | None:
        """Return one of its numbers, in the unit of the head; None where it was not measured."""
        times = self.times
        match name:
            case "step_ms":
                return _MS * times.median_s if times else None
            case "samples_per_s":
                return times.samples_per_s if times else None
            case "time_ratio":
                return self._ratio
            case "gpu_activities_ns":
                return self._gpu_activities_ms
        known = (self._peak(name), self._quantities.get(name), self._returned(name))
        return next((one for one in known if one is not None), None)

    @property
    def _parameters(self) -> dict[str, Scalar]:
        arms = (one for one in self.run.arms if (one.host, one.arm) == (self.cell.host, self.arm))
        return next((one.parameters for one in arms), {})

    def gain(self, name: str) -> float | None:
        """Return speed-up, or efficiency in percent, as the section of several ranks has it."""
        place = (self.cell.id, self.arm)
        rows = (one for one in self.run.scaling if (one.cell, one.arm) == place)
        scaled = next(rows, None)
        if scaled is None or scaled.speed_up is None or scaled.efficiency is None:
            return None
        return scaled.speed_up if name == "speed_up" else _PERCENT * scaled.efficiency

    @property
    def _ratio(self) -> float | None:
        if self.arm == self.run.reference_in(self.cell.id):
            return 1.0 if self.times else None
        place = (self.cell.id, self.arm)
        estimates = (
            comparison.deciding
            for comparison in self.run.comparisons
            if (comparison.cell, comparison.arm) == place
        )
        return next((math.exp(estimate.log_ratio) for estimate in estimates if estimate), None)

    def _peak(self, name: str) -> float | None:
        place = (self.cell.id, self.arm)
        memories = (memory for memory in self.run.memory if (memory.cell, memory.arm) == place)
        peaks = (getattr(memory, name, None) for memory in memories if name.endswith("_bytes"))
        return next((_MB * peak for peak in peaks if peak is not None), None)

    def _returned(self, name: str) -> float | None:
        place = (self.cell.id, self.arm, name)
        picked = (each for each in self.run.picked if (each.cell, each.arm, each.name) == place)
        return next((each.median for each in picked), None)

    @cached_property
    def _quantities(self) -> dict[str, float]:
        """Return the quantities of its profiles: of a step where they have one, times in ms."""
        profiles = (one for one in self.run.profiles if one.cell == self.cell.id)
        arms = (arm for one in profiles for arm in one.arms if arm.arm == self.arm)
        values: dict[str, float] = {}
        for row in (row for arm in arms for row in arm.quantities if row.gpu is None):
            value = row.value if row.per_step is None else row.per_step
            if value is not None:
                values.setdefault(row.name, value * {"ns": _NS_IN_MS, "B": _MB}.get(row.unit, 1.0))
        return values

    @property
    def _gpu_activities_ms(self) -> float | None:
        """Return the time in kernels, copies and memsets, as a profiler of the GPU sums them up."""
        known = self._quantities
        if "kernel_time_ns" not in known:
            return None
        copies = (name for name in known if name.startswith(("memcpy_", "memset_")))
        return known["kernel_time_ns"] + sum(known[one] for one in copies if one.endswith("_ns"))


def study_section(run: RunComparison) -> Section | None:
    """Return the tables that were asked for, None where the run has none."""
    if not run.tables:
        return None
    blocks = tuple(block for table in run.tables for block in _blocks(run, table))
    has_printed = any(table.printed or table.measured_on for table in run.tables)
    title = "Tables of the study" if has_printed else "Tables"
    return Section(anchor="studies", title=title, link="Tables", blocks=blocks)


def study_blocks(run: RunComparison) -> Iterator[PlainBlock]:
    """Yield the same tables for the terminal and Markdown, each below its title."""
    for table in run.tables:
        yield Line(strong=visible_line(table.title))
        yield from _blocks(run, table)


def _blocks(run: RunComparison, table: TableRecord) -> Iterator[Table | Items]:
    measured = tuple(_all_measured(run, table))
    lines = tuple(_lines(table, measured))
    known = [place for place in range(len(table.values)) if any(one.knows(place) for one in lines)]
    title, heads = visible_line(table.title), (*table.rows, _WHERE)
    names = (
        Column(head=visible_line(name), kind="name", is_row_head=not place)
        for place, name in enumerate(heads)
    )
    numbers = (Column(head=_head(table.values[place]), kind="number") for place in known)
    yield Table(
        label=title,
        caption=title,
        columns=(*names, *numbers),
        rows=tuple(line.row(known) for line in lines),
        style="fit",
    )
    lacking = [_head(name) for place, name in enumerate(table.values) if place not in known]
    said = (
        *_sources(run, table, has_measured=bool(measured)),
        *_unlike(table, measured),
        *table.notes,
        *_unknown(lacking),
    )
    if said:
        yield Items(items=tuple(map(visible, said)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One row: what tells it apart, where its numbers are from, and they."""

    names: tuple[str, ...]
    values: tuple[Scalar, ...]
    is_printed: bool

    def knows(self, place: int) -> bool:
        """Say whether it has a value for a column."""
        return self.values[place] is not None

    def row(self, places: Iterable[int]) -> Row:
        """Return it as a row with these of its values."""
        missing = "not printed" if self.is_printed else NOT_MEASURED
        texts = (_number(self.values[place]) or missing for place in places)
        return Row(cells=(*self.names, *texts), style="control" * self.is_printed)


def _all_measured(run: RunComparison, table: TableRecord) -> Iterator[_Measured]:
    for cell in run.cells:
        if not table.workloads or cell.workload in table.workloads:
            yield from (_Measured(run=run, cell=cell, arm=arm) for arm in arms_in(run, cell))


def _head(name: str) -> str:
    """Return the head of a column; what a workload returned has the words of its name."""
    if name in _HEADS:
        return _HEADS[name]
    words = quantity_name(name)
    unit = "B/s" if name.endswith("_bytes_per_s") else _UNITS.get(name.rpartition("_")[2], "")
    told = name.replace("_", " ") if words == name else ", ".join(filter(None, (words, unit)))
    return visible_line(told).replace(", ", ",\n")


def _lines(table: TableRecord, measured: tuple[_Measured, ...]) -> Iterator[_Line]:
    """Yield for each combination what was measured here, and below it what was printed."""
    here: dict[Key, list[_Measured]] = {}
    for measurement in measured:
        here.setdefault(tuple(map(measurement.told, table.rows)), []).append(measurement)
    printed: dict[Key, list[dict[str, Scalar]]] = {}
    for row in table.printed:
        printed.setdefault(tuple(map(row.get, table.rows)), []).append(row)
    for key in _in_order(dict.fromkeys((*here, *printed))):
        told = tuple(map(_text, key))
        for measurement in here.get(key, ()):
            values = (_value(measurement, name, table, measured) for name in table.values)
            names = (*told, visible_line(measurement.where))
            yield _Line(names=names, values=tuple(values), is_printed=False)
        for row in printed.get(key, ()):
            where = visible_line(f"study, {row[_WHERE]}" if row.get(_WHERE) else "study")
            figures = tuple(map(row.get, table.values))
            yield _Line(names=(*told, where), values=figures, is_printed=True)


def _in_order(keys: Iterable[Key]) -> Iterable[Key]:
    """Return numbers as they grow; names stay in the order of the run."""
    known = tuple(keys)
    numbers = [tuple(v for v in key if isinstance(v, int | float)) for key in known]
    if any(len(key) < len(whole) for key, whole in zip(numbers, known, strict=True)):
        return known
    return [key for _, key in sorted(zip(numbers, known, strict=True))]


def _value(
    measurement: _Measured, name: str, table: TableRecord, measured: Iterable[_Measured]
) -> float | None:
    if name not in {"speed_up", "efficiency"}:
        return measurement.value(name)
    if table.rows[0] == RANKS:
        return measurement.gain(name)
    first = _first(measurement, table, measured)
    rates = [each.value("samples_per_s") if each else None for each in (first, measurement)]
    if first is None or rates[0] is None or rates[1] is None:
        return None
    counts = [each.told(table.rows[0]) for each in (first, measurement)]
    before, after = (count if isinstance(count, int | float) else None for count in counts)
    if name == "speed_up":
        return rates[1] / rates[0]
    return _PERCENT * rates[1] / rates[0] * before / after if before and after else None


def _first(
    measurement: _Measured, table: TableRecord, measured: Iterable[_Measured]
) -> _Measured | None:
    """Return the first row of the same arm and work in which only what leads the table differs."""

    def others(each: _Measured) -> tuple[object, ...]:
        parameters = {name: each.told(name) for name in each.cell.parameters}
        parameters.pop(table.rows[0], None)
        return (each.arm, each.cell.host, each.cell.workload, *parameters.items())

    return next((each for each in measured if others(each) == others(measurement)), None)


def _text(value: Scalar) -> str:
    if value is None:
        return "default"
    return visible_line(str(value).lower() if isinstance(value, bool) else str(value))


def _number(value: Scalar) -> str:
    """Return a number or a text that was printed; empty where there is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return number_text(value)
    return visible_line(value) if isinstance(value, str) else ""


def _unknown(heads: list[str]) -> Iterator[str]:
    if heads:
        names = listed([head.replace("\n", " ") for head in heads], most=9)
        yield f"Neither measured here nor printed: {names}."


def _sources(run: RunComparison, table: TableRecord, *, has_measured: bool) -> Iterator[str]:
    """Say where the printed numbers are from, and what both were measured on."""
    if table.source:
        yield f"The study's numbers: {table.source}."
    if table.measured_on and not has_measured:
        yield f"The study measured on {table.measured_on}; nothing of this table was measured here."
    elif table.measured_on:
        here = listed(list(device_sentences(run)), most=4) or "on hardware that is not known"
        builds = dict.fromkeys(one.version for host in run.hosts for one in host.torch)
        torch = f", PyTorch {listed(list(builds))}" * (bool(builds) and "torch" not in here)
        yield (
            f"Measured {here}{torch}, preset {run.preset}, here; on {table.measured_on} in the "
            "study."
        )


def _unlike(table: TableRecord, measured: Iterable[_Measured]) -> Iterator[str]:
    """Say which parameters are others here than in the study."""
    measured = tuple(measured)
    unlike = [
        f"{name} is {listed([_text(one) for one in here], most=4)} here and {_text(value)} there"
        for name, value in table.parameters.items()
        if (here := list(dict.fromkeys(one.told(name) for one in measured))) and here != [value]
    ]
    if unlike:
        yield f"Other sizes than the study's: {'; '.join(unlike)}."
