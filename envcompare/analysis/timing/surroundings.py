"""Compare surroundings: of arms by cell, of hosts, and of groups of hosts.

Observations during the run count too, such as GPU clocks and limits that were reached.

GPU readings cover all arms; each arm gets those within its blocks.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from envcompare.analysis.model import GroupDifference, HostDifference, HostFact
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.fingerprint import CLASS_ORDER, EXPLAINING
from envcompare.fingerprint.comparing import compare_fingerprints, is_overwritten
from envcompare.fingerprint.evidence import ArmsContext, likelihood
from envcompare.fingerprint.sentences import other_options
from envcompare.gpu import CLOCK_LIMITS
from envcompare.run_folder.profiles import Quantity, Rule
from envcompare.run_folder.records import (
    Block,
    EnergyBlock,
    FactClass,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    HostGroup,
    Memory,
    ProcessRun,
    Sample,
)
from envcompare.run_folder.results import addresses_of, references_of

_Floats = npt.NDArray[np.float64]
SOURCE, INSTANT = "NVML, mean power readings", "NVML, instantaneous power readings"
COUNTER = "NVML, total energy counter"
# The counter is coarse: nvmlDeviceGetTotalEnergyConsumption suits differences from 1 s on,
# and the power of most boards is a mean over up to 1 s (nvmlDeviceGetPowerUsage).
_WINDOW_NS = 1_000_000_000
_MOST_APART_NS = 500_000_000  # largest gap between two readings that still give a result
_SMEARED = (
    "the driver may give the mean power of a whole second, so that blocks of {:.2g} s take up a "
    "part of their neighbours': arms look more alike than they are"
)
# "Part-time Power Measurements: nvidia-smi's Lack of Attention", arXiv:2312.02741: A100 and H100
# sample power during 25 % of the time.
PART_TIME = (
    "the power sensor of A100 and H100 samples about a quarter of the time (arXiv:2312.02741)"
)
_LONG_NS = 5_000_000_000  # from this length on, both ways to an energy should agree
LASTING = "blocks of at least 5 s, of a pass for energy after the timing"
BRIEF = "shorter than 5 s, in which a counter and samples of power can be compared"
NO_COUNTER = "the GPU does not say both its power and its energy"
NO_READINGS = "no GPU was sampled during the timing pass"
NOT_COVERED = "no reading falls on its blocks"
NOT_SAID = "the GPU does not say it"
NO_BATCH = "the samples in a step are not known"
WHICH = "which of the {} GPUs it ran on is not known"
_NAMES: dict[str, tuple[str, Rule]] = {
    "power_w": ("W", "time-weighted"),
    "energy_per_step_j": ("J", "ratio of sums"),
    "energy_per_sample_j": ("J", "ratio of sums"),
    "power_against_counter_share": ("%", "ratio of sums"),
    "sm_clock_mhz": ("MHz", "time-weighted"),
    "memory_clock_mhz": ("MHz", "time-weighted"),
    "temperature_c": ("°C", "maximum"),
    "throttled_share": ("%", "time-weighted"),
    "gpu_utilization_share": ("%", "time-weighted"),
}


_Timed = Block | EnergyBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """A quantity, linear between its readings; integrals are over seconds."""

    t_ns: _Floats
    values: _Floats

    @classmethod
    def of(cls, readings: Sequence[GpuReading], field: str, factor: float = 1.0) -> _Curve:
        """Return a field of one GPU's readings in order of time, without unknown values."""
        values = {
            t_ns: value * factor
            for reading in readings
            for t_ns, value in zip(reading.t_ns, getattr(reading, field), strict=True)
            if value is not None
        }
        table = np.array(sorted(values.items()), dtype=np.float64).reshape(-1, 2)
        return cls(t_ns=table[:, 0], values=table[:, 1])

    def covers(self, blocks: Sequence[_Timed]) -> npt.NDArray[np.bool_]:
        """Return for each block whether readings enclose it and are close together within it."""
        starts, ends = _bounds(blocks)
        if len(self.t_ns) < 2:
            return np.zeros(len(starts), dtype=np.bool_)
        inside = (starts >= self.t_ns[0]) & (ends <= self.t_ns[-1])
        torn = np.concatenate(([0], np.cumsum(np.diff(self.t_ns) > _MOST_APART_NS)))
        first = np.clip(np.searchsorted(self.t_ns, starts, side="right") - 1, 0, None)
        last = np.clip(np.searchsorted(self.t_ns, ends), None, len(self.t_ns) - 1)
        return np.asarray(inside & (torn[last] == torn[first]))

    def integral(self, blocks: Sequence[_Timed]) -> _Floats:
        """Return the integral over each block by trapezoids; the blocks must be covered."""
        starts, ends = _bounds(blocks)
        return self._until(ends) - self._until(starts)

    def change(self, blocks: Sequence[_Timed]) -> _Floats:
        """Return the increase during each block; the blocks must be covered."""
        starts, ends = _bounds(blocks)
        t_ns, values = self.t_ns, self.values
        return np.asarray(np.interp(ends, t_ns, values) - np.interp(starts, t_ns, values))

    def within(self, blocks: Sequence[Block]) -> _Floats:
        """Return the readings within any block."""
        starts, ends = _bounds(sorted(blocks, key=lambda block: block.t0_ns))
        if not len(starts):
            return self.values[:0]
        place = np.searchsorted(starts, self.t_ns, side="right") - 1
        hit = (place >= 0) & (self.t_ns <= ends[np.clip(place, 0, None)])
        return self.values[hit]

    def _until(self, times: _Floats) -> _Floats:
        widths = np.diff(self.t_ns) / 1e9
        means = (self.values[1:] + self.values[:-1]) / 2
        sums = np.concatenate(([0.0], np.cumsum(widths * means)))
        place = np.clip(np.searchsorted(self.t_ns, times, side="right") - 1, 0, len(widths) - 1)
        seconds = (times - self.t_ns[place]) / 1e9
        slope = np.diff(self.values)[place] / widths[place]
        return np.asarray(sums[place] + (self.values[place] + slope * seconds / 2) * seconds)


def _bounds(blocks: Sequence[_Timed]) -> tuple[_Floats, _Floats]:
    """Return the starts and ends of blocks on the host's clock, in ns."""
    starts = np.array([block.t0_ns for block in blocks], dtype=np.float64)
    walls = np.array([_wall_ns(block) for block in blocks], dtype=np.float64)
    return starts, starts + walls


def _wall_ns(block: _Timed) -> int:
    return block.wall_ns if isinstance(block, EnergyBlock) else sum(block.wall_ns)


def arm_quantities(  # noqa: PLR0913 — each is a part of the data of an arm
    blocks: Sequence[Block],
    readings: Sequence[GpuReading],
    *,
    energy_blocks: Sequence[EnergyBlock] = (),
    batch: int | None = None,
    uuid: str = "",
    model: str = "",
) -> tuple[Quantity, ...]:
    """Return the GPU quantities of an arm in its measured blocks of one cell.

    If the energy pass has blocks, power and energy come only from them. `uuid` identifies its GPU,
    as is necessary with several sampled GPUs; `model` is its name. Missing quantities have a
    reason.
    """
    uuids = {reading.uuid for reading in readings}
    if not uuids:
        return _all_missing(NO_READINGS)
    of_gpu = _of_gpu(readings, uuid)
    if not of_gpu:
        return _all_missing(WHICH.format(len(uuids)))
    timed = [block for block in blocks if block.status == "ok" and not block.warmup]
    lasting = [block for block in energy_blocks if block.wall_ns >= _LONG_NS]
    note = f"; {PART_TIME}" if re.search(r"\b[AH]100\b", model) else ""
    energy = _energy(lasting or timed, of_gpu, batch, note=note)
    return (*energy, _checked_energy(timed, of_gpu), *_states(timed, of_gpu))


def _checked_energy(blocks: Sequence[Block], readings: Sequence[GpuReading]) -> Quantity:
    """Return the integrated power as a share of the energy counter's increase.

    It spans the first block to the last, with everything in between, since single blocks are too
    short.
    """
    name = "power_against_counter_share"
    if not blocks:
        return _missing(name, NOT_COVERED)
    starts, ends = _bounds(blocks)
    span_ns = round(float(ends.max() - starts.min()))
    whole = [replace(blocks[0], t0_ns=int(starts.min()), wall_ns=(span_ns,))]
    power, counter = _Curve.of(readings, "power_mw", 1e-3), _Curve.of(readings, "energy_mj", 1e-3)
    if not len(power.t_ns) or not len(counter.t_ns):
        return _missing(name, NO_COUNTER)
    if span_ns < _LONG_NS:
        return _missing(name, f"the timing took {span_ns / 1e9:.2g} s, {BRIEF}")
    if not (power.covers(whole).all() and counter.covers(whole).all()):
        return _missing(name, "the readings have a gap, or do not cover all blocks")
    counted_j = float(counter.change(whole)[0])
    if counted_j <= 0:
        return _missing(name, "the energy counter did not grow")
    scope = f"{span_ns / 1e9:.0f} s from the first block to the last, all arms together"
    return _quantity(name, float(power.integral(whole)[0]) / counted_j * 100, scope)


def _of_gpu(readings: Sequence[GpuReading], uuid: str) -> list[GpuReading]:
    """Return the readings of one GPU; its UUID may be unknown if only one GPU was read."""
    is_single = len({reading.uuid for reading in readings}) == 1
    return [reading for reading in readings if is_single or reading.uuid == uuid]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clocks:
    """The clocks of a GPU during an arm's blocks, and the reasons that lowered them."""

    sm_mhz: float
    held: str  # in brackets with a leading blank, for a sentence; empty without a reason


def _energy(
    blocks: Sequence[_Timed], readings: Sequence[GpuReading], batch: int | None, *, note: str = ""
) -> tuple[Quantity, ...]:
    names = ("power_w", "energy_per_step_j", "energy_per_sample_j")
    power = _Curve.of(readings, "power_mw", 1e-3)
    counter = _Curve.of(readings, "energy_mj", 1e-3)
    is_counted = _is_long(blocks) and bool(counter.covers(blocks).all())
    curve = counter if is_counted else power
    if not len(curve.t_ns):
        return tuple(_missing(name, NOT_SAID) for name in names)
    seen = [b for b, is_seen in zip(blocks, curve.covers(blocks), strict=True) if is_seen]
    if not seen:
        return tuple(_missing(name, NOT_COVERED) for name in names)
    is_instant = all(reading.has_instant_power for reading in readings)
    source = COUNTER if is_counted else INSTANT if is_instant else SOURCE
    spans = [_settled(block) for block in seen] if source == SOURCE else seen
    changes = curve.change(spans) if is_counted else curve.integral(spans)
    (starts, ends), (first, last) = _bounds(seen), _bounds(spans)
    joules = float(np.sum(changes * (ends - starts) / (last - first)))
    steps = sum(block.k for block in seen)
    kind = LASTING if isinstance(seen[0], EnergyBlock) else "blocks"
    scope = f"{len(seen)} of {len(blocks)} {kind}, the whole board, idle power included{note}"
    if source == SOURCE and not _is_long(seen):
        scope += f"; {_SMEARED.format(float(np.median(ends - starts)) / 1e9)}"
    samples = None if batch is None else joules / (steps * batch)
    values = (joules * 1e9 / float(np.sum(ends - starts)), joules / steps, samples)
    return tuple(
        _missing(name, NO_BATCH) if value is None else _quantity(name, value, scope, source)
        for name, value in zip(names, values, strict=True)
    )


def _settled(block: _Timed) -> _Timed:
    """Return a block without its first second, since power readings average over up to that time.

    The first second is assumed to have the power of the rest.
    """
    if isinstance(block, Block):
        return block
    return replace(block, t0_ns=block.t0_ns + _WINDOW_NS, wall_ns=block.wall_ns - _WINDOW_NS)


def _is_long(blocks: Sequence[_Timed]) -> bool:
    return bool(blocks) and min(map(_wall_ns, blocks)) >= _WINDOW_NS


def _states(blocks: Sequence[Block], readings: Sequence[GpuReading]) -> tuple[Quantity, ...]:
    """Return clocks, temperature and throttling over the readings within blocks."""

    def state(name: str, field: str, reduce: Callable[[_Floats], float]) -> Quantity:
        curve = _Curve.of(readings, field)
        if not len(curve.t_ns):
            return _missing(name, NOT_SAID)
        values = curve.within(blocks)
        if not len(values):
            return _missing(name, NOT_COVERED)
        scope = f"{len(values)} readings"
        if field == "throttling":
            scope += f": {', '.join(_held_down(values)) or 'nothing held the clocks down'}"
        return _quantity(name, reduce(values), scope)

    return (
        state("sm_clock_mhz", "sm_mhz", _mean),
        state("memory_clock_mhz", "memory_mhz", _mean),
        state("temperature_c", "temperature_c", lambda values: float(np.max(values))),
        state("throttled_share", "throttling", _throttled_percent),
        state("gpu_utilization_share", "utilization_percent", _mean),
    )


def _mean(values: _Floats) -> float:
    return float(np.mean(values))


def _throttled_percent(masks: _Floats) -> float:
    return float(np.mean((masks.astype(np.int64) & sum(CLOCK_LIMITS)) != 0)) * 100


def _held_down(masks: _Floats) -> list[str]:
    """Return each reason that lowered the clocks, with its share of the readings."""
    bits = masks.astype(np.int64)
    shares = {word: float(np.mean((bits & bit) != 0)) for bit, word in CLOCK_LIMITS.items()}
    return [f"{word} in {share:.1%}" for word, share in shares.items() if share]


def _quantity(name: str, value: float, scope: str, source: str = "NVML") -> Quantity:
    unit, rule = _NAMES[name]
    return Quantity(name=name, value=value, unit=unit, rule=rule, source=source, scope=scope)


def _missing(name: str, reason: str) -> Quantity:
    unit, rule = _NAMES[name]
    return Quantity(
        name=name, value=None, unit=unit, rule=rule, source="NVML", status="missing", reason=reason
    )


def _all_missing(reason: str) -> tuple[Quantity, ...]:
    return tuple(_missing(name, reason) for name in _NAMES)


Differences = tuple[FactDifference, ...]
_HOST_FACTS: Final[tuple[HostFact, ...]] = get_args(HostFact)
_LEFT_OUT: Final = frozenset({"identity", "varied"})  # names of an arm, and intended differences
# Between hosts these are not software differences. torch takes as many inter-op threads as there
# are cores, and no arm sets another number.
_OF_MACHINE: Final = ("gpu.", "torch.cpu_capability", "torch.interop_threads")
_DRAWN: Final = "env.PYTHONHASHSEED"  # new in each cell
GPU_CLOCK: Final = "gpu.clock_sm_mhz"
"""The clock of a GPU while an arm was measured."""
# Clocks move in steps of 7.5 or 15 MHz: a smaller difference of means is not another clock.
_SAME_CLOCK: Final = math.log(1.005)
_FEWEST_READINGS: Final = 10  # of an arm, for a mean
_STEADY: Final = (
    "let the GPU cool and measure again, or fix its clock with `nvidia-smi --lock-gpu-clocks` "
    "(root)"
)


@dataclass(slots=True)
class _Seen:
    """The limits that an arm reached in a cell, from its samples."""

    throttled_ns: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    group_peaks: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    is_program: bool = False

    def take(self, sample: Sample) -> None:
        if isinstance(sample, Block) and sample.throttled_ns is not None:
            self.throttled_ns.append(sample.throttled_ns)
        if isinstance(sample, Block) and sample.running is not None:
            self.running.append(sample.running)
        if isinstance(sample, Memory | ProcessRun) and sample.max_rss_bytes is not None:
            self.peak_bytes.append(sample.max_rss_bytes)
        if isinstance(sample, Memory) and sample.cgroup_peak_bytes is not None:
            self.group_peaks.append(sample.cgroup_peak_bytes)
        self.is_program = self.is_program or isinstance(sample, ProcessRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Observations around the arms of a run while they were measured."""

    read: RunFiles
    seen: Mapping[tuple[str, str], _Seen]  # by cell and arm
    hosts: tuple[tuple[str, str], ...]  # as those of ArmsContext

    @classmethod
    def of(cls, read: RunFiles) -> Surroundings:
        """Collect the observations in the samples of a run."""
        seen: dict[tuple[str, str], _Seen] = {}
        for sample in read.samples:
            if not isinstance(sample, GpuReading):  # readings are of a GPU, which all arms share
                seen.setdefault((sample.cell, sample.arm), _Seen()).take(sample)
        return cls(read=read, seen=seen, hosts=tuple(addresses_of(read.run).items()))

    def context(self, cell: str, names: tuple[str, str]) -> ArmsContext:
        """Return the observations on two arms in a cell, in addition to their facts."""
        first, second = ([self.seen.get((cell, name), _Seen())] for name in names)
        return _context(self, names, (first, second))

    def of_hosts(self, arm: str, hosts: tuple[str, str]) -> ArmsContext:
        """Return the observations on an arm on two hosts, over all their cells."""
        host_of = {cell.id: cell.host for cell in self.read.run.cells}
        first, second = (
            [
                seen
                for (cell, name), seen in self.seen.items()
                if name == arm and host_of.get(cell) == host
            ]
            for host in hosts
        )
        return _context(self, (arm, arm), (first, second))

    def clocks(self, data: CellData, names: tuple[str, str], ratio: float) -> Differences:
        """Return the difference of GPU clocks between two arms, if any.

        `ratio` is their log ratio.
        """
        reference, other = (_clocks(self.read, data, name) for name in names)
        if reference is None or other is None:
            return ()
        margin = math.log1p(self.read.run.design.margin)
        difference = _of_clocks(reference, other, ratio, margin)
        if difference is None:
            return ()
        return (replace(difference, host=data.cell.host, arm=names[1]),)


def differences_by_cell(around: Surroundings) -> dict[str, Differences]:
    """Compare each cell's fingerprints with those of its reference."""
    references = references_of(around.read.timed)
    at = {
        (fingerprint.cell, fingerprint.arm): fingerprint for fingerprint in around.read.fingerprints
    }
    differences: dict[str, Differences] = {}
    for (cell, arm), record in at.items():
        reference = references.get(cell, "")
        if arm != reference and (cell, reference) in at:
            pair = around.context(cell, (reference, arm))
            of_arm = compare_fingerprints(at[cell, reference], record, pair)
            differences[cell] = (*differences.get(cell, ()), *of_arm)
    return differences


def clock_differences(
    around: Surroundings, cells: Iterable[CellData], log_ratios: Mapping[tuple[str, str], float]
) -> dict[str, Differences]:
    """Return by cell the arms with another GPU clock than the reference.

    `log_ratios` has one value for each comparison. A clock is a confounder if it explains the
    difference or lifts it above the margin: a GPU that is too hot or at its power cap slows the arm
    that runs at that time.
    """
    differences: dict[str, Differences] = {}
    for data in cells:
        cell, reference = data.cell.id, data.reference.id
        for arm in data.run.arms:
            ratio = log_ratios.get((cell, arm.id))
            if ratio is not None and arm.id != reference:
                clocks = around.clocks(data, (reference, arm.id), ratio)
                differences[cell] = (*differences.get(cell, ()), *clocks)
    return {cell: found for cell, found in differences.items() if found}


def _clocks(read: RunFiles, data: CellData, arm: str) -> _Clocks | None:
    """Return the GPU clocks during an arm's blocks; None with too few readings."""
    blocks = [block for block in data.arm_blocks(arm) if isinstance(block, Block) and block.gpu_ns]
    uuid = str(read.facts.get(data.cell.id, {}).get(arm, {}).get("gpu.uuid") or "")
    readings = _of_gpu(read.readings.get(data.cell.id, []), uuid)
    values = _Curve.of(readings, "sm_mhz").within(blocks)
    if len(values) < _FEWEST_READINGS or not np.all(values > 0):
        return None
    masks = _Curve.of(readings, "throttling").within(blocks)
    seen = ", ".join(_held_down(masks)) if len(masks) else ""
    held = f" ({seen} of the readings)" if seen else ""
    return _Clocks(sm_mhz=_mean(values), held=held)


def _of_clocks(
    reference: _Clocks, other: _Clocks, ratio: float, margin: float
) -> FactDifference | None:
    """Return the difference of two clocks; a confounder if the verdict needs it."""
    slower = math.log(reference.sm_mhz / other.sm_mhz)  # the most that the clock alone can cost
    if abs(slower) < _SAME_CLOCK:
        return None
    without = abs(ratio) - (slower if ratio > 0 else -slower)
    is_decided = abs(ratio) > margin
    hides = slower * ratio < 0 and (is_decided or abs(slower) < abs(ratio))
    is_explained = not hides and (abs(slower) >= abs(ratio) or (is_decided and without <= margin))
    is_confounder = is_explained or (hides and not is_decided and without > margin)
    ran = (
        f"The GPU ran at {reference.sm_mhz:.0f} MHz on average in the blocks of the reference"
        f"{reference.held} and at {other.sm_mhz:.0f} MHz in those of this arm{other.held}"
    )
    size = f"{abs(math.expm1(-slower)):.1%}"
    if hides:
        meaning = "which hides a part of the difference in time"
    elif not is_explained:
        meaning = "which explains a part of the difference in time at most"
    else:
        meaning = (
            "which can explain or hide the difference in time, or lifts it above the margin; a "
            "power limit, heat or another program can cause it as well as the arm"
        )
    return FactDifference(
        host="",
        arm="",
        key=GPU_CLOCK,
        reference=round(reference.sm_mhz),
        value=round(other.sm_mhz),
        fact_class="confounder" if is_confounder else "possible-influence",
        sentence=f"{ran}: a difference of {size}, {meaning}.",
        evidence=f"{ran}.",
        is_felt=True,
        remedy=_STEADY,
    )


def candidates(differences: Differences, arm: str) -> tuple[str, ...]:
    """Return the keys of likely causes of an arm's difference, the likeliest first.

    Confounders come first, then facts that the workload was seen to use. Left out are facts that
    another difference covers, and settings that envcompare replaced in every arm.
    """
    explaining = [
        difference
        for difference in differences
        if difference.arm == arm and difference.fact_class in EXPLAINING and not difference.part_of
        if not is_overwritten(difference)
    ]
    return tuple(difference.key for difference in sorted(explaining, key=likelihood))


def of_cells(by_cell: dict[str, Differences], *, shared: Differences) -> dict[str, Differences]:
    """Return each cell's differences that are not in `shared`, or differ from it."""
    shared_facts = {
        (difference.host, difference.arm, difference.key): difference for difference in shared
    }
    otherwise = {
        cell: tuple(
            difference
            for difference in found
            if shared_facts.get((difference.host, difference.arm, difference.key)) != difference
        )
        for cell, found in by_cell.items()
    }
    return {cell: found for cell, found in otherwise.items() if found}


def _context(
    around: Surroundings, names: tuple[str, str], sides: tuple[list[_Seen], list[_Seen]]
) -> ArmsContext:
    run = around.read.timed
    both = [*sides[0], *sides[1]]
    arms = {arm.id: arm for arm in run.arms}
    throttled = [value for seen in both for value in seen.throttled_ns]
    peaks = [value for seen in both for value in seen.peak_bytes]
    known = names[0] in arms and names[1] in arms
    return ArmsContext(
        arms=(arms[names[0]], arms[names[1]]) if known else None,
        is_program=any(seen.is_program for seen in both),
        throttled_ns=sum(throttled) if throttled else None,
        peak_bytes=max(peaks, default=None),
        running=(_running(sides[0]), _running(sides[1])),
        group_peaks=(_group_peak(sides[0]), _group_peak(sides[1])),
        options=other_options(run.command_line),
        hosts=around.hosts,
    )


def _running(side: list[_Seen]) -> int | None:
    numbers = (statistics.median_low(seen.running) for seen in side if seen.running)
    return max(numbers, default=None)


def _group_peak(side: list[_Seen]) -> int | None:
    return max((peak for seen in side for peak in seen.group_peaks), default=None)


def host_differences(read: RunFiles) -> tuple[HostDifference, ...]:
    """Return the software of each arm that differs between hosts, without the control.

    Hosts without facts are left out. A CPU build is known to have no CUDA.
    """
    return tuple(
        difference
        for arm in read.run.arms
        if arm.is_timed and not arm.is_control
        for difference in _between_hosts(arm.id, read.fingerprints)
    )


def _between_hosts(arm: str, fingerprints: Iterable[FingerprintRecord]) -> Iterator[HostDifference]:
    # facts with torch imported are enough, so the first cell of a host will do
    known: dict[HostFact, dict[str, FingerprintValue]] = {key: {} for key in _HOST_FACTS}
    for record in fingerprints:
        if record.arm != arm:
            continue
        for key in _HOST_FACTS:
            has_torch = key == "torch.cuda" and record.facts.get("torch.version") is not None
            value = record.facts.get(key)
            if value is not None or has_torch:
                known[key].setdefault(record.host, value)
    for key, values in known.items():
        if len(set(values.values())) > 1:
            yield HostDifference(arm=arm, key=key, values=values)


def group_differences(around: Surroundings) -> tuple[GroupDifference, ...]:
    """Return how each group differs from the first; the reference arm describes the machines.

    Equal values, names of arms, and what an environment sets on purpose are left out.
    """
    arms = [arm for arm in around.read.timed.arms if not arm.is_control]
    arms.sort(key=lambda arm: not arm.is_reference)
    by_place: dict[tuple[str, str], GroupDifference] = {}
    for pair in around.read.group_pairs:
        for arm in arms:
            for differing in _between_groups(pair, arm.id, around):
                place = (
                    differing.group,
                    differing.key
                    if differing.fact_class == "host"
                    else f"{arm.id} {differing.key}",
                )
                by_place.setdefault(place, differing)
    return tuple(
        sorted(
            by_place.values(),
            key=lambda differing: (
                CLASS_ORDER.index(differing.fact_class) if differing.fact_class != "host" else -1
            ),
        )
    )


def _between_groups(
    pair: tuple[HostGroup, HostGroup], arm: str, around: Surroundings
) -> Iterator[GroupDifference]:
    records: dict[str, FingerprintRecord] = {}
    for record in around.read.fingerprints:
        if record.arm == arm:
            records.setdefault(record.host, record)  # the first cell of a host will do
    sides = [[host for host in group.hosts if host in records] for group in pair]
    if not all(sides):
        return
    hosts = [*sides[0], *sides[1]]
    for key, fact_class in _classes(records, hosts, around).items():
        values = _values(key, records, hosts)
        first, second = ({values[host] for host in side} for side in sides)
        if first != second:
            yield GroupDifference(
                group=pair[1].name,
                reference_group=pair[0].name,
                arm=arm,
                key=key,
                fact_class=fact_class,
                values=values,
                is_apart=not first & second,
            )


def _classes(
    records: Mapping[str, FingerprintRecord], hosts: Sequence[str], around: Surroundings
) -> dict[str, FactClass]:
    """Return the class of each fact in which any host differs from the first.

    A limit that the work reached is a confounder, such as a quota that stopped it.
    """
    keys: dict[str, FactClass] = {}
    for host in hosts[1:]:
        known_around = around.of_hosts(records[host].arm, (hosts[0], host))
        for differing in compare_fingerprints(records[hosts[0]], records[host], known_around):
            if differing.fact_class in _LEFT_OUT or differing.part_of or differing.key == _DRAWN:
                continue
            fact_class: FactClass = (
                "host" if differing.key.startswith(_OF_MACHINE) else differing.fact_class
            )
            known = keys.setdefault(differing.key, fact_class)
            keys[differing.key] = min(known, fact_class, key=CLASS_ORDER.index)
    return keys


def _values(
    key: str, records: Mapping[str, FingerprintRecord], hosts: Sequence[str]
) -> dict[str, FingerprintValue]:
    """Return the value of each host; for a list, without the entries that all hosts have."""
    values = {host: records[host].facts.get(key) for host in hosts}
    lists = [set(value) for value in values.values() if isinstance(value, tuple)]
    if len(lists) < len(values):
        return values
    shared = set.intersection(*lists)
    return {
        host: tuple(each for each in value if each not in shared)
        for host, value in values.items()
        if isinstance(value, tuple)
    }
