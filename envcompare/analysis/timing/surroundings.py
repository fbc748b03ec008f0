"""Compare surroundings: of arms by cell, of hosts, and of groups of hosts.

Observations during the run count too, such as GPU clocks and limits that were reached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, get_args

from msgspec.structs import replace

from envcompare.analysis.model.machines import GroupDifference, HostDifference, HostFact
from envcompare.analysis.timing.cells import CellData
from envcompare.analysis.timing.gpureadings import Clocks, clocks_of
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.fingerprint import CLASS_ORDER, EXPLAINING, holds_for, is_first
from envcompare.fingerprint.comparing import compare_fingerprints, is_overwritten
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.fingerprint.sentences import other_options
from envcompare.run_folder.records import (
    Block,
    FactClass,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    HostGroup,
    Memory,
    ProcessRun,
    RunRecord,
    Sample,
)
from envcompare.run_folder.results import references_of

Differences = tuple[FactDifference, ...]
_FELT: Final = (True, None, False)
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
    running: list[int] = field(default_factory=list)
    is_program: bool = False

    def take(self, sample: Sample) -> None:
        if isinstance(sample, Block) and sample.throttled_ns is not None:
            self.throttled_ns.append(sample.throttled_ns)
        if isinstance(sample, Block) and sample.running is not None:
            self.running.append(sample.running)
        if isinstance(sample, Memory | ProcessRun) and sample.max_rss_bytes is not None:
            self.peak_bytes.append(sample.max_rss_bytes)
        self.is_program = self.is_program or isinstance(sample, ProcessRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Observations around the arms of a run while they were measured."""

    read: RunFiles
    seen: Mapping[tuple[str, str], _Seen]  # by cell and arm

    @classmethod
    def of(cls, read: RunFiles) -> Surroundings:
        """Collect the observations in the samples of a run."""
        seen: dict[tuple[str, str], _Seen] = {}
        for sample in read.samples:
            if not isinstance(sample, GpuReading):  # readings are of a GPU, which all arms share
                seen.setdefault((sample.cell, sample.arm), _Seen()).take(sample)
        return cls(read=read, seen=seen)

    def context(self, cell: str, names: tuple[str, str]) -> ArmsContext:
        """Return the observations on two arms in a cell, in addition to their facts."""
        both = [self.seen.get((cell, name), _Seen()) for name in names]
        return _context(self.read.timed, names, both)

    def of_hosts(self, arm: str, hosts: tuple[str, str]) -> ArmsContext:
        """Return the observations on an arm on two hosts, over all their cells."""
        cells = {cell.id for cell in self.read.run.cells if cell.host in hosts}
        both = [seen for (cell, name), seen in self.seen.items() if name == arm and cell in cells]
        return _context(self.read.timed, (arm, arm), both)

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
    at = {(one.cell, one.arm): one for one in around.read.fingerprints}
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


def _clocks(read: RunFiles, data: CellData, arm: str) -> Clocks | None:
    """Return the GPU clocks during an arm's blocks; None with too few readings."""
    blocks = [one for one in data.arm_blocks(arm) if isinstance(one, Block) and one.gpu_ns]
    uuid = str(read.facts.get(data.cell.id, {}).get(arm, {}).get("gpu.uuid") or "")
    clocks = clocks_of(blocks, read.readings.get(data.cell.id, []), uuid=uuid)
    return clocks if clocks and clocks.readings >= _FEWEST_READINGS else None


def _of_clocks(
    reference: Clocks, other: Clocks, ratio: float, margin: float
) -> FactDifference | None:
    """Return the difference of two clocks; a confounder if the measured difference needs it."""
    slower = math.log(reference.sm_mhz / other.sm_mhz)  # the most that the clock alone can cost
    if abs(slower) < _SAME_CLOCK:
        return None
    without = abs(ratio) - (slower if ratio > 0 else -slower)
    is_explained = abs(slower) >= abs(ratio) or (abs(ratio) > margin and without <= margin)
    ran = (
        f"The GPU ran at {reference.sm_mhz:.0f} MHz on average in the blocks of the reference"
        f"{reference.held} and at {other.sm_mhz:.0f} MHz in those of this arm{other.held}"
    )
    size = f"{abs(math.expm1(-slower)):.1%}"
    meaning = (
        f"a difference of {size}, which can explain the difference in time or lifts it above the "
        "margin; a power limit, heat or another program can cause it as well as the arm"
        if is_explained
        else f"a difference of {size}, which explains a part of the difference in time at most"
    )
    return FactDifference(
        host="",
        arm="",
        key=GPU_CLOCK,
        reference=round(reference.sm_mhz),
        value=round(other.sm_mhz),
        fact_class="confounder" if is_explained else "possible-influence",
        sentence=f"{ran}: {meaning}.",
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
        one
        for one in differences
        if one.arm == arm and one.fact_class in EXPLAINING and not one.part_of
        if not is_overwritten(one)
    ]
    return tuple(one.key for one in sorted(explaining, key=likelihood))


def likelihood(difference: FactDifference) -> tuple[int, int, int]:
    """Return a sort key that puts the likeliest cause first.

    The order is: class; libraries before the C library and options of one arm; evidence.
    """
    rank = 0 if is_first(difference.key) else 1 if holds_for("given", difference.key) else 2
    felt = _FELT.index(difference.is_felt)
    return CLASS_ORDER.index(difference.fact_class), rank, felt


def of_cells(by_cell: dict[str, Differences], *, shared: Differences) -> dict[str, Differences]:
    """Return each cell's differences that are not in `shared`, or differ from it."""
    shared_facts = {(one.host, one.arm, one.key): one for one in shared}
    otherwise = {
        cell: tuple(one for one in found if shared_facts.get((one.host, one.arm, one.key)) != one)
        for cell, found in by_cell.items()
    }
    return {cell: found for cell, found in otherwise.items() if found}


def _context(run: RunRecord, names: tuple[str, str], both: list[_Seen]) -> ArmsContext:
    arms = {arm.id: arm for arm in run.arms}
    throttled = [value for one in both for value in one.throttled_ns]
    peaks = [value for one in both for value in one.peak_bytes]
    known = names[0] in arms and names[1] in arms
    return ArmsContext(
        arms=(arms[names[0]], arms[names[1]]) if known else None,
        is_program=any(one.is_program for one in both),
        throttled_ns=sum(throttled) if throttled else None,
        peak_bytes=max(peaks, default=None),
        running=max(
            (statistics.median_low(one.running) for one in both if one.running), default=None
        ),
        options=other_options(run.command_line),
    )


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
