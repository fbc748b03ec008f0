"""The quantities of profiles side by side: a row for each, a column for each arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.profilemodel import ArmProfiles, CellProfiles, QuantityRow
from envcompare.report.numbers import NOT_MEASURED, listed
from envcompare.report.units import quantity_text, ratio_text
from envcompare.texts import one_line

_WORDS: Final[dict[str, str]] = {
    "flops_fp64": "FLOP, FP64, CUDA cores",
    "flops_fp32": "FLOP, FP32, CUDA cores",
    "flops_fp16": "FLOP, FP16, CUDA cores",
    "flops_model": "FLOP of the model",
    "dram_read_bytes": "device memory, read",
    "dram_write_bytes": "device memory, written",
    "dram_bytes": "device memory, both ways",
    "dram_read_sectors": "device memory, read, 32 B transactions",
    "dram_write_sectors": "device memory, written, 32 B transactions",
    "dram_sectors": "device memory, 32 B transactions",
    "l2_bytes": "L2 cache",
    "l2_sectors": "L2 cache, 32 B transactions",
    "l2_hit_rate": "L2 hit rate",
    "arithmetic_intensity": "arithmetic intensity",
    "occupancy": "occupancy achieved",
    "warp_efficiency": "warp execution efficiency",
    "kernel_time_ns": "kernel time",
    "busy_ns": "GPU busy",
    "launch_count": "kernel launches",
    "launch_gap_ns": "GPU idle between launches",
    "nccl_share": "NCCL, share of kernel time",
    "nccl_exposed_ns": "NCCL, exposed",
    "tensor_core_share": "tensor-core kernels, share of kernel time",
    "user_ns": "CPU time of the program",
    "sys_ns": "CPU time of the operating system",
    "throttled_ns": "stopped by a CPU quota",
    "system_calls": "system calls",
    "minor_faults": "minor page faults",
    "major_faults": "major page faults",
}
_ENDS: Final = {"_ns": ", time", "_bytes": ", bytes", "_share": ", share"}
_WAYS: Final = {"htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD", "htoh": "HtoH", "ptop": "PtoP"}
_POWER: Final[dict[str, str]] = {
    "power_w": "power",
    "energy_per_step_j": "energy a step",
    "energy_per_sample_j": "energy a sample",
    "sm_clock_hz": "clock of the multiprocessors",
    "memory_clock_hz": "clock of the memory",
    "temperature_c": "temperature, highest",
    "throttled_share": "time with clocks held down",
    "gpu_utilization_share": "time with a kernel running",
}
Key = tuple[str, str, str, str]


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
    lines = _lines(one, lambda row: not is_power(row.name))
    return tuple(line for line in lines if line.is_measured)


def unmeasured(one: CellProfiles) -> tuple[tuple[str, str], ...]:
    """Return what no arm has a value of, as names by their reason."""
    found: dict[str, list[str]] = {}
    for line in _lines(one, lambda row: not is_power(row.name)):
        if not line.is_measured:
            reasons = dict.fromkeys(cell.note for cell in line.cells if cell.note)
            found.setdefault("; or ".join(reasons), []).append(line.name)
    return tuple((listed(names, most=20), reason) for reason, names in found.items())


def power_lines(one: CellProfiles) -> tuple[QuantityLine, ...]:
    """Return what the GPU drew and at which clocks."""
    return _lines(one, lambda row: is_power(row.name))


def is_power(name: str) -> bool:
    """Say whether a quantity is of the device's power, energy, clocks or heat."""
    return name in _POWER


def quantity_name(name: str) -> str:
    """Return a quantity in words; one without words of its own by its name."""
    words = _WORDS.get(name) or _POWER.get(name)
    if words is not None:
        return words
    if name.startswith("flops_tensor_"):
        kind = name.removeprefix("flops_tensor_").upper().replace("_DST_", " to ")
        return f"FLOP, {kind}, tensor cores"
    start, _, rest = name.partition("_")
    if start == "memcpy" and "_" in rest:
        way, _, end = rest.partition("_")
        name = f"memcpy {_WAYS.get(way, way)}_{end}"
    end = next((end for end in _ENDS if name.endswith(end)), "")
    return f"{name.removesuffix(end).replace('_', ' ')}{_ENDS.get(end, '')}"


def _lines(one: CellProfiles, wanted: Callable[[QuantityRow], bool]) -> tuple[QuantityLine, ...]:
    rows = [[row for row in arm.quantities if wanted(row)] for arm in one.arms]
    crowded = _crowded(rows)
    tables = [{_key(row, crowded): row for row in found} for found in rows]
    keys = dict.fromkeys(key for table in tables for key in table)
    return tuple(
        _line([(arm, table.get(key)) for arm, table in zip(one.arms, tables, strict=True)])
        for key in keys
    )


def _crowded(rows: Iterable[Iterable[QuantityRow]]) -> set[Key]:
    """Return what several tools say of one arm: there a tool stands beside the same tool alone."""
    counts = (Counter(_key(row) for row in found) for found in rows)
    return {key for count in counts for key, times in count.items() if times > 1}


def _key(row: QuantityRow, crowded: Container[Key] = ()) -> Key:
    """Return what a quantity shares with its counterpart in another arm."""
    key = (row.name, row.unit, row.kind, "")
    return (*key[:3], row.source.partition(" ")[0]) if key in crowded else key


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
        name=quantity_name(first.name),
        per=per,
        basis=", ".join(text for text in (first.rule, source, first.scope) if text),
        cells=tuple(
            _cell(row, is_per_step=is_per_step, with_source=not source)
            if row is not None
            else Cell(text=NOT_MEASURED, note=_why_not(arm, first))
            for arm, row in pairs
        ),
    )


def _cell(row: QuantityRow, *, is_per_step: bool, with_source: bool) -> Cell:
    if row.value is None:
        return Cell(text=NOT_MEASURED, note=one_line(row.reason))
    value = row.per_step if is_per_step else row.value
    is_compared = row.agreement in {"equal", "differs"}
    return Cell(
        text=quantity_text(value, row.unit),
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
