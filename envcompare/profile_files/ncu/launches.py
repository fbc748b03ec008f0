"""Read launches through NVIDIA's module `ncu_report`, and sum launches to kernels.

A metric has a base unit, and combines over launches as a sum, as a rate or not at all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, Protocol

from envcompare.gpu import chip_of
from envcompare.profile_files import SEQUENCE_MOST, Shape
from envcompare.profile_files.rawfiles import Convention, is_missing, read_unit, refusal
from envcompare.run_folder.profiles import Device, Dim, Kernel, Note

CombiningRule = Literal["sum", "rate"]
TIME: Final = "gpu__time_duration.sum"
_CYCLES: Final = ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.max")

BASE_UNITS: Final = (
    "write it again: `LC_ALL=C ncu --import FILE.ncu-rep --csv --page raw --print-units base`"
)
LABELS: Final = {
    "Duration": TIME,
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
}
"""Names on the details page, mapped to metric names."""

_DIM: Final = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)")
# A report has up to 900 metric names, which are repeated for each launch.
_NAMES: Final = 20_000
_RATE: Final = re.compile(r"\.(?:pct|ratio)$|\.pct_of_peak_sustained_|\.per_(?:second|cycle_)")
_MEMORY: Final = ("dram__", "lts__")
_RATED: Final = ".per_second"
# Passes of a short kernel vary, but a patched pass takes 100 times as long.
_RATE_FACTOR: Final = 2.0
_SASS: Final = re.compile(r"(?:^|_)sass_")
_USED: Final = re.compile(
    r"gpu__time_duration\.sum|sm__cycles_elapsed\.(?:avg|max)(?:\.per_second)?"
    r"|dram__(?:bytes|sectors)(?:_read|_write)?\.sum(?:\.per_second)?"
    r"|lts__t_(?:bytes|sectors|sectors_lookup_hit)\.sum|lts__t_sector_hit_rate\.pct"
    r"|smsp?__sass_thread_inst_executed_op_\w+\.sum"
    r"|sm__(?:inst_executed_pipe_t|ops_path_tensor_)\w+\.sum"
    r"|sm__warps_active\.avg\.pct_of_peak_sustained_active"
    r"|smsp__(?:thread_)?inst_executed\.sum"
    r"|smsp__thread_inst_executed_per_inst_executed\.(?:pct|ratio)"
)
NEWER_HINT: Final = (
    "pip install --upgrade ncu-report, or import the output of the ncu that collected it: "
    "`LC_ALL=C ncu --import {file} --csv --page raw --print-units base`"
)
CUT: Final = "copy the report again, or profile again: it is damaged, cut off, or from a newer ncu"
_MODEL: Final = "device__attribute_display_name"
_MAJOR: Final = "device__attribute_compute_capability_major"
_MINOR: Final = "device__attribute_compute_capability_minor"
_MULTIPROCESSORS: Final = "device__attribute_multiprocessor_count"
_LEFT_OUT: Final = ("device__", "launch__", "profiler__", "derived__", "breakdown:")
_BASES: Final = (
    (re.compile(r"gpu__time_duration\.\w+"), "ns"),
    (re.compile(r"(?:dram|lts)_\w*_bytes\w*\.sum"), "B"),
    (re.compile(r"(?:dram|lts)_\w*_sectors\w*\.sum"), "sector"),
    (re.compile(r"sm__cycles_elapsed\.(?:avg|max)"), "cycle"),
    (re.compile(r"sm__cycles_elapsed\.(?:avg|max)\.per_second"), "cycle/s"),
    (re.compile(r".*\.pct(?:_of_peak_\w+)?"), "%"),
)


@lru_cache(maxsize=_NAMES)
def combining_rule(metric: str) -> CombiningRule | None:
    """Return how a metric combines over launches; None if it does not."""
    if metric.startswith(_LEFT_OUT):
        return None
    if _RATE.search(metric):
        return "rate"
    return "sum" if metric.endswith(".sum") or metric in _CYCLES else None


def _is_used(metric: str) -> bool:
    # quantities are derived from it
    return _USED.fullmatch(metric) is not None


@lru_cache(maxsize=_NAMES)
def changes_time(metric: str) -> bool:
    """Return whether collecting the metric patches the kernel, which multiplies its time."""
    return _SASS.search(metric) is not None


def is_unpatched_time(values: Mapping[str, float]) -> bool:
    """Return whether a duration next to instruction counters comes from an unpatched pass.

    ncu replays a kernel unpatched for hardware counters, and patches other replays. In the full-set
    samples that ship with Nsight Compute 2022.3, DRAM bytes ÷ duration equal the recorded rate.
    Cycles collected together with only instruction counters came from the patched replay, 146
    times as many. So L2 or DRAM counters must be present, and match the duration if the file has
    their rate.
    """
    time = values.get(TIME)
    memory = [name for name in values if name.startswith(_MEMORY)]
    if not time or not memory:
        return False
    rated = [name for name in memory if name + _RATED in values]
    return all(
        values[name] / _RATE_FACTOR <= values[name + _RATED] * time / 1e9
        and values[name + _RATED] * time / 1e9 <= values[name] * _RATE_FACTOR
        for name in rated
    )


@lru_cache(maxsize=_NAMES)
def _scale(metric: str, unit: str) -> tuple[float | None, str]:
    """Return the factor to the base unit of the metric, or None with the reason."""
    read = read_unit(unit)
    if read is None:
        return None, f"unknown unit {unit!r} of {metric}"
    wanted = next((base for pattern, base in _BASES if pattern.fullmatch(metric)), read.base)
    if read.base != wanted:
        return None, f"{metric} cannot have the unit {unit or 'no unit'!r}"
    return read.factor, ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One metric of one launch, with unit and number as printed."""

    line: int | None
    metric: str
    unit: str
    text: str

    def factor(self, file: str) -> float | None:
        """Return the factor to the base unit; None if unknown for an unused metric.

        Raises ProfileError for a wrong unit if quantities are derived from the metric.
        """
        factor, why = _scale(self.metric, self.unit)
        if factor is None and _is_used(self.metric):
            raise refusal(file, line=self.line, why=why, hint=BASE_UNITS)
        return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Metrics in base units; `odd` are unused metrics with an impossible value.

    An example is a count below 0: ncu computes some as differences of two passes.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    odd: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, numbers: Iterable[tuple[Cell, float]], file: str) -> Measured:
        """Return the metrics of one launch; raises ProfileError for an impossible used metric."""
        values: dict[str, float] = {}
        odd: dict[str, float] = {}
        for cell, value in numbers:
            if not 0 <= value < math.inf and not _is_used(cell.metric):
                odd[cell.metric] = value
            elif not 0 <= value < math.inf:
                why = f"{cell.metric} is {cell.text}, which is impossible"
                raise refusal(file, line=cell.line, why=why)
            elif (first := values.setdefault(cell.metric, value)) != value:
                why = f"{cell.metric} is given twice for a launch: {first:g} and {value:g}"
                raise refusal(file, line=cell.line, why=why)
        kept = {name: value for name, value in values.items() if name not in odd}
        return cls(values=kept, odd=odd)

    @classmethod
    def printed(cls, cells: Sequence[Cell], convention: Convention, file: str) -> Measured:
        """Return the metrics in these cells of one launch; missing values are skipped."""

        def numbers() -> Iterator[tuple[Cell, float]]:
            for cell in cells:
                if combining_rule(cell.metric) is None or is_missing(cell.text):
                    continue
                factor = cell.factor(file)
                if factor is None:
                    continue
                if not convention.fits(cell.text):
                    why = f"{cell.metric} is {cell.text!r}, not a number"
                    raise refusal(file, line=cell.line, why=why, hint=BASE_UNITS)
                yield cell, convention.value(cell.text) * factor

        return cls.of(numbers(), file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch of a kernel, with its shape and metrics.

    `is_patched` means that other evidence shows instruction counting, which changes time.
    """

    name: str
    grid: Dim | None = None
    block: Dim | None = None
    op: str = ""
    is_patched: bool = False
    measured: Measured = field(default_factory=Measured)

    @property
    def values(self) -> Mapping[str, float]:
        """Return the metrics in base units."""
        return self.measured.values

    @property
    def shape(self) -> Shape:
        """Return the key that launches of one kernel share."""
        return (self.name, self.grid, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The kernels of a list of launches, in order of first launch."""

    kernels: tuple[Kernel, ...]
    sequence: tuple[int, ...] = ()
    has_time: bool
    notes: tuple[Note, ...]


def dim(text: str) -> Dim | None:
    """Parse `(128, 1, 1)`; None for a single number, which is the product."""
    match = _DIM.fullmatch(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def combine_launches(launches: Sequence[Launch]) -> Counted:
    """Combine launches to kernels: sums are added, rates averaged with launch time as weight.

    If counters changed time, and nothing shows that the duration comes from another pass, kernels
    have no time, and a rate is kept only if all launches agree. A metric that one launch lacks is
    dropped for its kernel.
    """
    patched = [
        launch for launch in launches
        if launch.is_patched or any(map(changes_time, launch.values))
    ]  # fmt: skip
    has_time = all(is_unpatched_time(launch.values) for launch in patched)
    groups: dict[Shape, list[int]] = {}
    for place, launch in enumerate(launches):
        groups.setdefault(launch.shape, []).append(place)
    lacking: dict[str, int] = {}
    kernels = tuple(
        _kernel([launches[place] for place in places], places[0], lacking, has_time=has_time)
        for places in groups.values()
    )
    places = {shape: place for place, shape in enumerate(groups)}
    sequence = tuple(places[launch.shape] for launch in launches[:SEQUENCE_MOST])
    odd = {name: value for launch in launches for name, value in launch.measured.odd.items()}
    notes = (
        *(
            Note(kind="metric-missing", values={"metric": name, "launches": count})
            for name, count in lacking.items()
            if name not in odd
        ),
        *odd_notes(odd),
        *time_notes(is_patched=bool(patched), has_time=has_time),
    )
    return Counted(kernels=kernels, sequence=sequence, has_time=has_time, notes=notes)


def _kernel(
    launches: Sequence[Launch], first: int, lacking: dict[str, int], *, has_time: bool
) -> Kernel:
    times = [_time(launch.values) for launch in launches] if has_time else []
    known = [time for time in times if time is not None]
    is_timed = len(known) == len(launches)
    ops = {launch.op for launch in launches}
    return Kernel(
        name=launches[0].name,
        calls=len(launches),
        total_ns=sum(known) if is_timed else None,
        min_ns=min(known) if is_timed else None,
        max_ns=max(known) if is_timed else None,
        grid=launches[0].grid,
        block=launches[0].block,
        first=first,
        op=ops.pop() if len(ops) == 1 else "",
        metrics=_metrics(launches, known if is_timed else [], lacking),
    )


def _metrics(
    launches: Sequence[Launch], times: Sequence[float], lacking: dict[str, int]
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(name for launch in launches for name in launch.values):
        values = [launch.values[name] for launch in launches if name in launch.values]
        if len(values) < len(launches):
            lacking[name] = lacking.get(name, 0) + len(launches) - len(values)
        elif combining_rule(name) == "sum":
            metrics[name] = sum(values)
        elif combining_rule(name) == "rate":
            mean = _weighted(values, times)
            metrics |= {} if mean is None else {name: mean}
    metrics.pop(TIME, None)
    return metrics


def _weighted(values: Sequence[float], times: Sequence[float]) -> float | None:
    """Return the mean weighted by time; without times, only a value shared by all launches."""
    if len(set(values)) == 1:
        return values[0]
    total = sum(times)
    if not total:
        return None
    return sum(value * time for value, time in zip(values, times, strict=True)) / total


def _time(values: Mapping[str, float]) -> float | None:
    """Return the duration in ns; reports of 2020 have cycles and frequency instead."""
    if TIME in values:
        return values[TIME]
    for name in _CYCLES:
        frequency = values.get(f"{name}.per_second")
        if name in values and frequency:
            return values[name] / frequency * 1e9
    return None


def odd_notes(odd: Mapping[str, float]) -> tuple[Note, ...]:
    """Return a note on metrics dropped for an impossible value, each with an example."""
    if not odd:
        return ()
    metrics = ", ".join(f"{name} ({value:g})" for name, value in odd.items())
    return (Note(kind="impossible-metrics", values={"metrics": metrics}),)


def time_notes(*, is_patched: bool, has_time: bool) -> tuple[Note, ...]:
    """Return notes on times in a file that also counted instructions."""
    if not has_time:
        return (Note(kind="no-time"),)
    return (Note(kind="unpatched-time"),) if is_patched else ()


def device(columns: Mapping[str, str]) -> Device | None:
    """Return the GPU of a launch from its columns; None if unknown."""
    capability = columns.get("CC", "")
    if columns.get(_MAJOR, "").isdigit():
        capability = f"{columns[_MAJOR]}.{columns.get(_MINOR, '0')}"
    if not re.fullmatch(r"\d+\.\d", capability):
        return None
    # The number may contain the digit groups of a locale.
    count = re.sub(r"\D", "", columns.get(_MULTIPROCESSORS, ""))
    return Device(
        name=columns.get(_MODEL, ""),
        chip=chip_of(capability),
        compute_capability=capability,
        multiprocessors=int(count) if count else None,
    )


class _Metric(Protocol):
    def value(self) -> float | str | None: ...
    def unit(self) -> str: ...


class _Action(Protocol):
    """A launch; the context of a report has ranges, and a range has launches."""

    NameBase_DEMANGLED: int

    def name(self, base: int) -> str | None: ...
    def metric_names(self) -> tuple[str, ...]: ...
    def metric_by_name(self, name: str) -> _Metric | None: ...


def read_report(module: ModuleType, path: Path) -> tuple[Counted, tuple[Device, ...]]:
    """Return the kernels of a report, read by NVIDIA's module `ncu_report`, and each GPU once.

    Raises ProfileError if the module cannot read it, or finds no launch.
    """
    try:
        launches = tuple(_launches(module, path))
    except (RuntimeError, OSError, ValueError, SystemError) as error:
        raise refusal(path.name, why=f"ncu_report cannot read it: {error}", hint=CUT) from error
    if not launches:
        # the module also finds nothing in a report newer than itself
        why = f"ncu_report {_module_version()} finds no launch: cut off, or from a newer ncu"
        raise refusal(path.name, why=why, hint=f"{CUT}; {NEWER_HINT.format(file=path.name)}")
    devices = dict.fromkeys(gpu for _, gpu in launches if gpu is not None)
    return combine_launches([launch for launch, _ in launches]), tuple(devices)


def _module_version() -> str:
    try:
        return metadata.version("ncu-report")
    except metadata.PackageNotFoundError:
        return "(installed with ncu)"


def _launches(module: ModuleType, path: Path) -> Iterator[tuple[Launch, Device | None]]:
    context = module.load_report(str(path))
    for place in range(context.num_ranges()):
        part = context.range_by_idx(place)
        for number in range(part.num_actions()):
            action: _Action = part.action_by_idx(number)
            # for a truncated report the module returns launches without a name or a metric
            if not _name(action) or not action.metric_names():
                raise refusal(path.name, why=f"launch {number} has no name or no metric", hint=CUT)
            columns = {
                name: _text(action, name) for name in (_MODEL, _MAJOR, _MINOR, _MULTIPROCESSORS)
            }
            yield _launch(action, path.name), device(columns)


def _launch(action: _Action, file: str) -> Launch:
    def numbers() -> Iterator[tuple[Cell, float]]:
        for name in filter(combining_rule, action.metric_names()):
            metric = action.metric_by_name(name)
            value = None if metric is None else metric.value()
            if metric is None or not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            cell = Cell(None, name, metric.unit(), str(value))
            factor = cell.factor(file)
            if factor is not None:
                yield cell, value * factor

    return Launch(
        name=_name(action),
        grid=_shape(action, "launch__grid_dim"),
        block=_shape(action, "launch__block_dim"),
        measured=Measured.of(numbers(), file),
    )


def _name(action: _Action) -> str:
    return action.name(action.NameBase_DEMANGLED) or ""


def _shape(action: _Action, what: str) -> Dim | None:
    x, y, z = (_text(action, f"{what}_{axis}") for axis in "xyz")
    return (int(float(x)), int(float(y)), int(float(z))) if x and y and z else None


def _text(action: _Action, name: str) -> str:
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    return "" if value is None else str(value)
