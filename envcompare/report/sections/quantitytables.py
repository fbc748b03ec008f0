"""The quantities of profiles side by side: a row for each, a column for each arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as changed

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, QuantityRow
from envcompare.report.format.blocks import Column, Items, Kind, Line, Row, Span, Table
from envcompare.report.format.numbers import (
    NOT_MEASURED,
    bytes_text,
    listed,
    quantity_text,
    ratio_text,
)
from envcompare.report.wording.labels import cell_labels
from envcompare.report.wording.profilewords import is_of_ncu, is_timed
from envcompare.report.wording.quantitynames import PEAKS, in_words, is_power, quantity_name
from envcompare.text import one_line, visible_line

_MOST_LEADING: Final = 12
_MOST_TABLES: Final = 2
_UNKNOWN: Final = "not known"
# of an import, on the first screen: work and traffic, then times where there are any
_LEADING: Final = (
    "flops_fp64", "flops_fp32", "flops_fp16", "flops_tensor", "flops_model", "dram_read_sectors",
    "dram_write_sectors", "dram_sectors", "dram_read_bytes_per_s", "dram_write_bytes_per_s",
    "dram_bytes_per_s", "arithmetic_intensity", "occupancy", "kernel_time_ns", "busy_ns",
    "launch_gap_ns", "collective_share", "memcpy_htod_bytes", "memcpy_dtoh_bytes",
    "memset_bytes", "launch_count",
)  # fmt: skip
Key = tuple[str, str, str, int | None, str]
Place = tuple[Key, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A value of one arm: what is printed, its ratio to the reference, why there is none."""

    text: str
    is_measured: bool = True
    ratio: str = ""
    word: str = ""  # "equal", "differs"
    is_zero: bool = False
    note: str = ""  # the reason where it is missing or has no ratio, the tool if another


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityLine:
    """One quantity over the arms, with the rule, tool and scope it holds for."""

    quantity: str  # as profiles call it; empty where the line is of no quantity
    name: str
    per: str  # "per step", "whole profile", or empty
    basis: str
    cells: tuple[Cell, ...]

    @property
    def is_zero(self) -> bool:
        """Say whether every arm that has a value has 0."""
        return all(cell.is_zero for cell in self.cells if cell.is_measured)

    @property
    def is_measured(self) -> bool:
        """Say whether any arm has a value."""
        return any(cell.is_measured for cell in self.cells)


def quantity_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what was counted in the work: everything but power, energy and clocks."""
    return _measured(_lines(profiles, lambda row: not is_power(row.name)))


def leading_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what stands on the first screen: GPUs, builds, then the quantities that matter most.

    Of those that are 0 in every arm there is nothing to compare.
    """
    every = _measured(_lines(profiles, lambda row: row.unit != "ns" or not is_of_ncu(row)))
    lines = (line for line in every if line.quantity in _LEADING and not line.is_zero)
    chosen = sorted(lines, key=lambda line: _LEADING.index(line.quantity))
    return (*fact_lines(profiles), *chosen[:_MOST_LEADING])


def fact_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return GPU and builds of each arm; nothing where no arm used a GPU."""
    if not any(profile_pass.has_gpu_work for arm in profiles.arms for profile_pass in arm.passes):
        return ()
    gpus = _fact_line("GPU", (listed(arm.gpus, most=3) for arm in profiles.arms))
    built = _fact_line(
        "builds in kernel names", (", ".join(arm.builds) or "none" for arm in profiles.arms)
    )
    return (gpus, built) if any(arm.builds for arm in profiles.arms) else (gpus,)


def leading_tables(run: RunComparison) -> tuple[Table, ...]:
    """Return what the profiles of an import counted in its first cells; none of a timed run."""
    if is_timed(run):
        return ()
    labels = cell_labels(run)
    tables = (
        _leading_table(profiles, label=labels.get(profiles.cell, profiles.cell))
        for profiles in run.profiles[:_MOST_TABLES]
    )
    return tuple(table for table in tables if table.rows)


def _leading_table(profiles: CellProfiles, *, label: str) -> Table:
    ratios = f"; ratios are to {profiles.reference}" * (len(profiles.arms) > 1)
    return Table(
        label=f"Profiles of {label}",
        caption=f"{label}: what the profiles counted{ratios}",
        style="leading",
        columns=_columns(profiles),
        rows=tuple(
            Row(cells=(_named(line), *(_leading_cell(line, cell) for cell in line.cells)))
            for line in leading_lines(profiles)
        ),
    )


def _leading_cell(line: QuantityLine, cell: Cell) -> Line:
    is_number = bool(line.quantity and cell.is_measured)
    beside = (cell.ratio, cell.note * cell.is_measured)
    return Line(
        strong=cell.text * is_number,
        text=cell.text * (not is_number),
        after=tuple(Span(text=text, style="small") for text in beside if text),
    )


def quantity_table(profiles: CellProfiles, lines: tuple[QuantityLine, ...], *, label: str) -> Table:
    """Return these quantities with the rule, tool and scope that each holds for."""
    return Table(
        label=label,
        caption=f"Ratios are to {profiles.reference}",
        columns=_columns(profiles, kind="property"),
        rows=tuple(
            Row(
                cells=(
                    replace(_named(line), below=(line.basis,)),
                    *(_cell_line(cell) for cell in line.cells),
                )
            )
            for line in lines
        ),
    )


def unmeasured_items(unmeasured: tuple[tuple[str, str], ...]) -> tuple[Items, ...]:
    """Return a list of what was not measured with each reason, none where nothing is missing."""
    items = tuple(f"Not measured, {names}: {reason}" for names, reason in unmeasured)
    return (Items(items=items, style="small"),) if items else ()


def _columns(profiles: CellProfiles, *, kind: Kind = "text") -> tuple[Column, ...]:
    arms = (Column(head=arm.arm, kind="number") for arm in profiles.arms)
    return (Column(head="Quantity", kind=kind, is_row_head=True), *arms)


def _named(line: QuantityLine) -> Line:
    per = (Span(text=line.per, style="small"),) if line.per else ()
    return Line(text=line.name, after=per)


def _cell_line(cell: Cell) -> Line | str:
    if not cell.is_measured:
        return cell.text
    compared = f"{cell.ratio} {cell.word}".strip()
    return Line(strong=cell.text, below=(compared, cell.note))


def _fact_line(name: str, texts: Iterable[str]) -> QuantityLine:
    cells = tuple(Cell(text=visible_line(text) or _UNKNOWN) for text in texts)
    return QuantityLine(quantity="", name=name, per="", basis="", cells=cells)


def power_lines(profiles: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what the GPU drew and at which clocks."""
    return _measured(_lines(profiles, lambda row: is_power(row.name)))


def unmeasured(profiles: CellProfiles, *, of_power: bool = False) -> tuple[tuple[str, str], ...]:
    """Return what has no value as names and arms, by the reason: each reason once."""
    arms = tuple(arm.arm for arm in profiles.arms)
    missing: dict[str, dict[str, list[str]]] = {}
    for line in _lines(profiles, lambda row: is_power(row.name) is of_power):
        for arm, cell in zip(arms, line.cells, strict=True):
            if not cell.is_measured:
                missing.setdefault(cell.note, {}).setdefault(line.name, []).append(arm)
    return tuple(
        (listed(names, most=20) + (f" in {listed(of, most=6)}" if of != arms else ""), reason)
        for reason, by_name in missing.items()
        for of, names in _by_arms(by_name).items()
    )


def partly_measured(profiles: CellProfiles) -> tuple[tuple[str, str], ...]:
    """Return of the quantities that any arm has what others lack: names and arms, and why."""
    shown = {line.name for line in quantity_lines(profiles)}
    arms = tuple(
        changed(arm, quantities=tuple(row for row in arm.quantities if _name(row) in shown))
        for arm in profiles.arms
    )
    return unmeasured(changed(profiles, arms=arms))


def _by_arms(by_name: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], list[str]]:
    names_by_arms: dict[tuple[str, ...], list[str]] = {}
    for name, arms in by_name.items():
        names_by_arms.setdefault(tuple(dict.fromkeys(arms)), []).append(name)
    return names_by_arms


def _measured(lines: Iterable[QuantityLine]) -> tuple[QuantityLine, ...]:
    """Return the lines of which any arm has a value; why others have none is told once."""
    return tuple(
        replace(line, cells=tuple(_without_reason(cell) for cell in line.cells))
        for line in lines
        if line.is_measured
    )


def _without_reason(cell: Cell) -> Cell:
    return cell if cell.is_measured else replace(cell, note="")


def _lines(
    profiles: CellProfiles, wanted: Callable[[QuantityRow], bool]
) -> tuple[QuantityLine, ...]:
    rows = [[row for row in arm.quantities if wanted(row)] for arm in profiles.arms]
    crowded = _crowded(rows)
    tables = [_table(arm_rows, crowded) for arm_rows in rows]
    keys = dict.fromkeys(key for table in tables for key in table)
    return tuple(
        _line([(arm, table.get(key)) for arm, table in zip(profiles.arms, tables, strict=True)])
        for key in keys
    )


def _crowded(rows: Iterable[Iterable[QuantityRow]]) -> set[Key]:
    """Return what several tools say of one arm: there a tool stands beside the same tool alone."""
    counts = (Counter(_key(row) for row in found) for found in rows)
    return {key for count in counts for key, times in count.items() if times > 1}


def _table(rows: Iterable[QuantityRow], crowded: Container[Key]) -> dict[Place, QuantityRow]:
    """Return rows by their key; one that comes again, as of a second GPU, by its place as well."""
    seen: Counter[Key] = Counter()
    table: dict[Place, QuantityRow] = {}
    for row in rows:
        key = _key(row, crowded)
        table[key, seen[key]] = row
        seen[key] += 1
    return table


def _key(row: QuantityRow, crowded: Container[Key] = ()) -> Key:
    """Return what a quantity shares with its counterpart in another arm."""
    key = (row.name, row.unit, row.kind, row.gpu, "")
    return (*key[:4], row.tool or "") if key in crowded else key


def _line(pairs: list[tuple[ArmProfiles, QuantityRow | None]]) -> QuantityLine:
    rows = [row for _, row in pairs if row is not None]
    first = next((row for row in rows if row.value is not None), rows[0])
    values = [row for row in rows if row.value is not None]
    is_per_step = bool(values) and all(row.per_step is not None for row in values)
    whole = "whole profile" if values and first.rule == "sum" else ""
    per = "per step" if is_per_step else whole
    sources = dict.fromkeys(row.source for row in rows if row.source)
    source = next(iter(sources), "") if len(sources) < 2 else ""
    return QuantityLine(
        quantity=first.name,
        name=_name(first),
        per=per,
        basis=", ".join(text for text in (first.rule, source, first.scope, _known(values)) if text),
        cells=tuple(
            _cell(row, is_per_step=is_per_step, with_source=not source)
            if row is not None
            else _missing(_why_not(arm, first))
            for arm, row in pairs
        ),
    )


def _name(row: QuantityRow) -> str:
    name = quantity_name(row.name)
    return name if row.gpu is None else f"{name} (GPU {row.gpu})"


def _known(rows: Iterable[QuantityRow]) -> str:
    """Return what is to be known of the values, as that they are a guess."""
    return "; ".join(dict.fromkeys(in_words(one_line(row.reason)) for row in rows if row.reason))


def _cell(row: QuantityRow, *, is_per_step: bool, with_source: bool) -> Cell:
    if row.value is None:
        return _missing(in_words(one_line(row.reason)))
    value = row.per_step if is_per_step else row.value
    is_peak = row.name in PEAKS
    is_compared = row.agreement in {"equal", "differs"}
    why = why_no_ratio(row.unlike, page=row.page, rule=row.rule)
    return Cell(
        text=bytes_text(value) if is_peak else quantity_text(value, row.unit),
        ratio=ratio_text(row.ratio) if row.agreement != "reference" else "",
        word=row.agreement if is_compared else "",
        is_zero=not value,
        note="; ".join(filter(None, (row.source if with_source else "", why))),
    )


def _missing(reason: str) -> Cell:
    return Cell(text=NOT_MEASURED, is_measured=False, note=reason)


def why_no_ratio(unlike: str, *, page: str, rule: str) -> str:
    """Return in what a number is of another kind than the reference's; empty: in nothing."""
    kinds = {
        "tool": "another tool",
        "page": f"from the {page} page",
        "rule": f"averaged differently ({rule})",
    }
    return f"no ratio: {kinds[unlike]}" if unlike else ""


def _why_not(arm: ArmProfiles, like: QuantityRow) -> str:
    """Return why the pass that gives a quantity is missing in an arm, or that it does not say."""
    same = [one for one in arm.passes if one.kind == like.kind]
    missing = [one.lacks.problem.reason for one in same if one.state == "missing" and one.lacks]
    if missing:
        return one_line(missing[0])
    return "no profile of it says so" if same else "no such profile was taken"
