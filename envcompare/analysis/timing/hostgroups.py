"""Groups of hosts against each other: their times, what environments cost there, what differs.

Hosts of two groups share no moment and no machine, so that nothing is paired: the interval comes
from how hosts of a group scatter. With one host in each group only restarts scatter, and what is
said is of the two machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from envcompare.analysis.model.comparison import CellSummary, Comparison
from envcompare.analysis.model.machines import GroupDifference, GroupEstimate
from envcompare.analysis.timing.cells import CellData
from envcompare.analysis.timing.judge import Key, Primary, claimed, did_other_work
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.analysis.timing.surroundings import Surroundings
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.facts import CLASS_ORDER
from envcompare.run_folder.records import FactClass, FingerprintRecord, FingerprintValue, HostGroup
from envcompare.stats.intervals import ALPHA
from envcompare.stats.metrics import MetricName
from envcompare.stats.overhosts import Mean, between_groups
from envcompare.stats.verdicts import Ends, difference, verdict

_NS_IN_S: Final = 1e-9
_UNTOLD: Final = frozenset({"identity", "varied"})  # what names an arm, and what it does on purpose
# Between hosts these are no software; torch takes as many threads between operations as there are
# cores, and no arm sets another number.
_OF_MACHINE: Final = ("gpu.", "torch.cpu_capability", "torch.interop_threads")
_DRAWN: Final = "env.PYTHONHASHSEED"  # anew in each cell
_WORK: Final = {
    "batch": "the batch size differs",
    "device": "the device differs",
    "code": "the code differs",
    "data": "the data differ",
}
_Pair = tuple[HostGroup, HostGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """What one host measured: a logarithm with its error, and its own interval."""

    value: float
    error: float | None  # None where nothing tells it, as with one restart
    ends: Ends | None  # where it may be the only host of its group
    level: float  # of these ends


def _pairs(read: RunFiles) -> tuple[_Pair, ...]:
    groups = read.run.groups
    return tuple((groups[0], group) for group in groups[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What each cell says of its environments: settled ratios, and controls that failed."""

    settled: Mapping[Key, Primary]
    floors: Mapping[str, float]  # by cell, the log ratio by which the reference differs from itself

    @classmethod
    def of(
        cls,
        settled: Mapping[Key, Primary],
        comparisons: Iterable[Comparison],
        cells: Iterable[CellSummary],
    ) -> Costs:
        """Gather them of a run."""
        failed = {one.cell for one in comparisons if one.control_failed}
        known = {cell.id: cell.noise_floor for cell in cells if cell.id in failed}
        floors = {
            cell: max(abs(floor.low or 0.0), abs(floor.high or 0.0))
            for cell, floor in known.items()
            if floor is not None
        }
        return cls(settled=settled, floors=floors)


def group_estimates(
    around: Surroundings,
    cells: Iterable[CellData],
    costs: Costs,
    *,
    differences: Iterable[GroupDifference],
) -> tuple[GroupEstimate, ...]:
    """Return every group against the first one: the times of each arm, then what each arm costs.

    Software in the differences makes them confounded. The statements of each of these two kinds
    together err in 5 % of the runs at most (Bonferroni).
    """
    works: dict[tuple[str, str, str], list[CellData]] = {}
    for measured in cells:
        cell = measured.cell
        place = cell.workload, str(sorted(cell.parameters.items())), cell.within
        works.setdefault(place, []).append(measured)
    planned = [
        (pair, data, arm.id)
        for pair in _pairs(around.read)
        for data in works.values()
        for arm in data[0].run.arms
        if not arm.is_control
    ]
    compared = [one for one in planned if one[2] != one[1][0].reference.id]
    made = (
        *(_of_times(*one, level=1 - ALPHA / len(planned)) for one in planned),
        *(_of_effect(*one, costs, level=1 - ALPHA / len(compared)) for one in compared),
    )
    unlike = {(one.group, one.arm) for one in differences if one.fact_class == "confounder"}
    return tuple(
        replace(
            one,
            is_confounded=one.log_ratio is not None
            and bool({(one.group, one.arm), (one.group, one.against)} & unlike),
        )
        for one in made
    )


def _base(pair: _Pair, data: CellData, arm: str) -> GroupEstimate:
    return GroupEstimate(
        group=pair[1].name,
        reference_group=pair[0].name,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        within=data.cell.within,
        arm=arm,
        outcome="not-run",
    )


def _of_times(pair: _Pair, data: list[CellData], arm: str, *, level: float) -> GroupEstimate:
    """Return how the typical step of an arm compares; on `net` where all hosts know it."""
    measured = [one for one in data if one.arm_blocks(arm) and not did_other_work(one, arm)]
    if why_not := _other_work(pair, measured, arm):
        return replace(_base(pair, data[0], arm), why_not=why_not)
    metrics: set[MetricName] = {one.metric[0] for one in measured}
    metric = metrics.pop() if len(metrics) == 1 else "wall"
    margin = data[0].run.design.margin
    known = {one.cell.host: _time(one, arm, metric, level=level) for one in measured}
    values = {host: value for host, value in known.items() if value is not None}
    made = _estimate(_base(pair, data[0], arm), pair, values, level=level, margin=margin)

    def seconds(logs: dict[str, float]) -> dict[str, float]:
        return {host: _NS_IN_S * math.exp(value) for host, value in logs.items()}

    return replace(
        made,
        metric=metric,
        values=seconds(made.values),
        reference_values=seconds(made.reference_values),
    )


def _other_work(pair: _Pair, data: Iterable[CellData], arm: str) -> str:
    """Return why hosts of both groups did not do the same work in an arm; empty where they did."""
    hosts = {host for group in pair for host in group.hosts}
    works = [one.work(arm) for one in data if one.cell.host in hosts]
    for key, differs in _WORK.items():
        if len({work[key] for work in works if key in work}) > 1:
            return f"the hosts did other work, since {differs}"
    return ""


def _time(data: CellData, arm: str, metric: MetricName, *, level: float) -> _Value | None:
    """Return the mean over restarts of the median typical step, with its Student interval."""
    restarts = data.readings.by_restart(arm, metric)
    medians = [float(np.median(values)) for values in restarts.values()]
    if not medians:
        return None
    mean, count = float(np.mean(medians)), len(medians)
    if count < 2:
        return _Value(value=mean, error=None, ends=None, level=level)
    error = float(np.std(medians, ddof=1)) / math.sqrt(count)
    ends = Mean(mean=mean, error=error, df=count - 1).ends(level)
    return _Value(value=mean, error=error, ends=ends, level=level)


def _of_effect(
    pair: _Pair, data: list[CellData], arm: str, costs: Costs, *, level: float
) -> GroupEstimate:
    """Return how the ratio of an arm to the reference compares.

    What the failed controls of both groups can make by themselves is not claimed.
    """
    effects = {one.cell.host: _effect(costs.settled.get((one.cell.id, arm))) for one in data}
    values = {host: value for host, value in effects.items() if value is not None}
    metrics = {one.metric[0] for one in data if one.cell.host in values}
    margin = data[0].run.design.margin
    base = replace(_base(pair, data[0], arm), against=data[0].reference.id)
    if why_not := _other_work(pair, [one for one in data if one.cell.host in values], arm):
        return replace(base, why_not=why_not)
    if len(metrics) > 1:
        return replace(base, why_not="judged on net time on some hosts and on wall time on others")
    base = replace(base, metric=next(iter(metrics), ""))
    made = _estimate(base, pair, values, level=level, margin=margin)
    failed = {
        one.cell.host: costs.floors[one.cell.id] for one in data if one.cell.id in costs.floors
    }
    floor = sum(max((failed.get(h, 0.0) for h in side), default=0.0) for side in _sides(made))
    told = tuple(host for side in _sides(made) for host in side if host in failed)
    made = replace(made, failed_controls=told)
    claim = claimed(made.outcome, made.log_ratio or 0.0, margin=margin)
    is_kept = not told or claim > floor or made.outcome == "not-run"
    return made if is_kept else replace(made, outcome="inconclusive")


def _sides(made: GroupEstimate) -> tuple[Iterable[str], Iterable[str]]:
    """Return the hosts of both groups that were measured."""
    return made.reference_values, made.values


def _effect(primary: Primary | None) -> _Value | None:
    if primary is None:
        return None
    ratio = primary.interval
    ends = None
    if ratio.low is not None and ratio.high is not None:
        ends = Ends(mean=ratio.mean, low=ratio.low, high=ratio.high)
    return _Value(value=ratio.mean, error=primary.error, ends=ends, level=ratio.level)


def _estimate(
    base: GroupEstimate, pair: _Pair, values: Mapping[str, _Value], *, level: float, margin: float
) -> GroupEstimate:
    """Return the second group against the first, from the hosts of each that have a value."""
    measured = [{host: values[host] for host in group.hosts if host in values} for group in pair]
    sides = [_with_errors(side) for side in measured]
    base = replace(
        base,
        reference_values={host: one.value for host, one in sides[0].items()},
        values={host: one.value for host, one in sides[1].items()},
        left_out=tuple(
            host for side in measured for host in side if host not in {**sides[0], **sides[1]}
        ),
    )
    lacking = [group.name for group, side in zip(pair, sides, strict=True) if not side]
    if lacking:
        return replace(base, why_not=f"not measured on any host of {' and of '.join(lacking)}")
    first, second = (list(side.values()) for side in sides)
    is_single = len(first) == len(second) == 1
    ends = _between_two(first[0], second[0]) if is_single else _between(first, second, level=level)
    return replace(
        base,
        outcome=verdict(ends.low, ends.high, margin=margin) if ends else "inconclusive",
        log_ratio=ends.mean if ends else _mean(second) - _mean(first),
        low=ends and ends.low,
        high=ends and ends.high,
        level=min(first[0].level, second[0].level) if is_single else level,
        unit="restart" if is_single else "host",
    )


def _with_errors(side: Mapping[str, _Value]) -> Mapping[str, _Value]:
    """Return the hosts whose error is known; all of them where it is known of none."""
    return {host: one for host, one in side.items() if one.error is not None} or side


def _mean(values: Sequence[_Value]) -> float:
    return sum(one.value for one in values) / len(values)


def _between(first: Sequence[_Value], second: Sequence[_Value], *, level: float) -> Ends | None:
    """Return the difference of two groups; None where the error of a host is not known."""
    if any(one.error is None for one in (*first, *second)):
        return None
    return between_groups(_columns(first), _columns(second), level=level)


def _columns(values: Sequence[_Value]) -> tuple[list[float], list[float]]:
    return [one.value for one in values], [one.error or 0.0 for one in values]


def _between_two(first: _Value, second: _Value) -> Ends | None:
    """Return the difference of two machines; None where one of them has no interval."""
    if first.ends is None or second.ends is None:
        return None
    return difference(first.ends, second.ends)


def group_differences(around: Surroundings) -> tuple[GroupDifference, ...]:
    """Return in what groups differ from the first: the machines as the reference saw them first.

    Left out is what has the same values in both groups, what names an arm, and what its environment
    sets on purpose.
    """
    arms = [arm for arm in around.read.timed.arms if not arm.is_control]
    arms.sort(key=lambda arm: not arm.is_reference)
    told: dict[tuple[str, str], GroupDifference] = {}
    for pair in _pairs(around.read):
        for arm in arms:
            for differing in _of_arm(pair, arm.id, around):
                place = (
                    differing.group,
                    differing.key
                    if differing.fact_class == "host"
                    else f"{arm.id} {differing.key}",
                )
                told.setdefault(place, differing)
    return tuple(
        sorted(
            told.values(),
            key=lambda differing: (
                CLASS_ORDER.index(differing.fact_class) if differing.fact_class != "host" else -1
            ),
        )
    )


def _of_arm(pair: _Pair, arm: str, around: Surroundings) -> Iterator[GroupDifference]:
    records: dict[str, FingerprintRecord] = {}
    for record in around.read.fingerprints:
        if record.arm == arm:
            records.setdefault(record.host, record)  # the first cell of a host will do
    sides = [[host for host in group.hosts if host in records] for group in pair]
    if not all(sides):
        return
    hosts = [*sides[0], *sides[1]]
    for key, fact_class in _told(records, hosts, around).items():
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


def _told(
    records: Mapping[str, FingerprintRecord], hosts: Sequence[str], around: Surroundings
) -> dict[str, FactClass]:
    """Return the facts in which any host differs from the first, each with its class.

    A limit that the work reached is a confounder, such as a quota that stopped it.
    """
    keys: dict[str, FactClass] = {}
    for host in hosts[1:]:
        known_beside = around.of_hosts(records[host].arm, (hosts[0], host))
        for differing in compare_fingerprints(records[hosts[0]], records[host], known_beside):
            if differing.fact_class in _UNTOLD or differing.part_of or differing.key == _DRAWN:
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
    """Return the value of each host, of a list without what all of them have."""
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
