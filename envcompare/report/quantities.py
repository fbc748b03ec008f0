"""The quantities of profiles side by side: a row for each, a column for each arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from envcompare.analysis.profilemodel import ArmProfiles, CellProfiles, QuantityRow
from envcompare.analysis.quantities import gpu_of
from envcompare.report.numbers import NOT_MEASURED, listed
from envcompare.report.quantitynames import PEAKS, in_words, is_power, quantity_name
from envcompare.report.units import bytes_text, quantity_text, ratio_text
from envcompare.texts import one_line

Key = tuple[str, str, str, str, str]
Place = tuple[Key, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value of one arm: what is printed, its ratio to the reference, why there is none."""

    text: str
    ratio: str = ""
    word: str = ""  # "equal", "differs"
    note: str = ""  # the reason where it is missing, the tool where it is another


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityLine:
    """One quantity over the arms, with the rule, tool and scope it holds for."""

    name: str
    per: str  # "a step", "whole profile", or empty
    basis: str
    cells: tuple[Cell, ...]

    @property
    def is_measured(self) -> bool:
        """Say whether any arm has a value."""
        return any(cell.text != NOT_MEASURED for cell in self.cells)


def quantity_lines(one: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what was counted in the work: everything but power, energy and clocks."""
    return _measured(_lines(one, lambda row: not is_power(row.name)))


def power_lines(one: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what the GPU drew and at which clocks."""
    return _measured(_lines(one, lambda row: is_power(row.name)))


def unmeasured(one: CellProfiles, *, of_power: bool = False) -> tuple[tuple[str, str], ...]:
    """Return what has no value as names and arms, by the reason: each reason once."""
    arms = tuple(arm.arm for arm in one.arms)
    found: dict[str, dict[str, list[str]]] = {}
    for line in _lines(one, lambda row: is_power(row.name) is of_power):
        for arm, cell in zip(arms, line.cells, strict=True):
            if cell.text == NOT_MEASURED:
                found.setdefault(cell.note, {}).setdefault(line.name, []).append(arm)
    return tuple(
        (listed(names, most=20) + (f" in {listed(of, most=6)}" if of != arms else ""), reason)
        for reason, by_name in found.items()
        for of, names in _by_arms(by_name).items()
    )


def partly_measured(one: CellProfiles) -> tuple[tuple[str, str], ...]:
    """Return of the quantities that any arm has what others lack: names and arms, and why."""
    shown = {line.name for line in quantity_lines(one)}
    arms = tuple(
        changed(arm, quantities=tuple(row for row in arm.quantities if _name(row) in shown))
        for arm in one.arms
    )
    return unmeasured(changed(one, arms=arms))


def _by_arms(by_name: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], list[str]]:
    found: dict[tuple[str, ...], list[str]] = {}
    for name, arms in by_name.items():
        found.setdefault(tuple(dict.fromkeys(arms)), []).append(name)
    return found


def _measured(lines: Iterable[QuantityLine]) -> tuple[QuantityLine, ...]:
    """Return the lines of which any arm has a value; why others have none is told once."""
    return tuple(
        replace(line, cells=tuple(_without_reason(cell) for cell in line.cells))
        for line in lines
        if line.is_measured
    )


def _without_reason(cell: Cell) -> Cell:
    return replace(cell, note="") if cell.text == NOT_MEASURED else cell


def _lines(one: CellProfiles, wanted: Callable[[QuantityRow], bool]) -> tuple[QuantityLine, ...]:
    rows = [[row for row in arm.quantities if wanted(row)] for arm in one.arms]
    crowded = _crowded(rows)
    tables = [_table(found, crowded) for found in rows]
    keys = dict.fromkeys(key for table in tables for key in table)
    return tuple(
        _line([(arm, table.get(key)) for arm, table in zip(one.arms, tables, strict=True)])
        for key in keys
    )


def _crowded(rows: Iterable[Iterable[QuantityRow]]) -> set[Key]:
    """Return what several tools say of one arm: there a tool stands beside the same tool alone."""
    counts = (Counter(_key(row) for row in found) for found in rows)
    return {key for count in counts for key, times in count.items() if times > 1}


def _table(rows: Iterable[QuantityRow], crowded: Container[Key]) -> dict[Place, QuantityRow]:
    """Return rows by their key; one that comes again, as of a second GPU, by its place as well."""
    seen: Counter[Key] = Counter()
    found: dict[Place, QuantityRow] = {}
    for row in rows:
        key = _key(row, crowded)
        found[key, seen[key]] = row
        seen[key] += 1
    return found


def _key(row: QuantityRow, crowded: Container[Key] = ()) -> Key:
    """Return what a quantity shares with its counterpart in another arm."""
    key = (row.name, row.unit, row.kind, gpu_of(row.scope), "")
    return (*key[:4], row.source.partition(" ")[0]) if key in crowded else key


def _line(pairs: list[tuple[ArmProfiles, QuantityRow | None]]) -> QuantityLine:
    rows = [row for _, row in pairs if row is not None]
    first = next((row for row in rows if row.value is not None), rows[0])
    values = [row for row in rows if row.value is not None]
    is_per_step = bool(values) and all(row.per_step is not None for row in values)
    whole = "whole profile" if values and first.rule == "sum" else ""
    per = "a step" if is_per_step else whole
    sources = dict.fromkeys(row.source for row in rows if row.source)
    source = next(iter(sources), "") if len(sources) < 2 else ""
    return QuantityLine(
        name=_name(first),
        per=per,
        basis=", ".join(text for text in (first.rule, source, first.scope, _known(values)) if text),
        cells=tuple(
            _cell(row, is_per_step=is_per_step, with_source=not source)
            if row is not None
            else Cell(text=NOT_MEASURED, note=_why_not(arm, first))
            for arm, row in pairs
        ),
    )


def _name(row: QuantityRow) -> str:
    gpu = gpu_of(row.scope)
    return f"{quantity_name(row.name)} ({gpu})" if gpu else quantity_name(row.name)


def _known(rows: Iterable[QuantityRow]) -> str:
    """Return what is to be known of the values, as that they are a guess."""
    return "; ".join(dict.fromkeys(in_words(one_line(row.reason)) for row in rows if row.reason))


def _cell(row: QuantityRow, *, is_per_step: bool, with_source: bool) -> Cell:
    if row.value is None:
        return Cell(text=NOT_MEASURED, note=in_words(one_line(row.reason)))
    value = row.per_step if is_per_step else row.value
    is_peak = row.name in PEAKS
    is_compared = row.agreement in {"equal", "differs"}
    return Cell(
        text=bytes_text(value) if is_peak else quantity_text(value, row.unit),
        ratio=ratio_text(row.ratio) if row.agreement != "reference" else "",
        word=row.agreement if is_compared else "",
        note=row.source if with_source else "",
    )


def _why_not(arm: ArmProfiles, like: QuantityRow) -> str:
    """Return why the pass that gives a quantity is missing in an arm, or that it does not say."""
    same = [one for one in arm.passes if one.kind == like.kind]
    missing = [one.reason for one in same if one.state == "missing" and one.reason]
    if missing:
        return one_line(missing[0])
    return "no profile of it says so" if same else "no such profile was taken"
