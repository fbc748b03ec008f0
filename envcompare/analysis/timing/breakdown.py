"""Differences split into parts: the 2 × 2, the ladder of rungs, and groups of hosts; pure.

Four arms form a 2 × 2: a container and the plain process, each with its image's software and with
the host's own. A path from the plain process on the host's files to the container with its image
changes one thing at a time, so the log ratios of its two steps sum to the total.

A ladder compares each rung with the rung below, so that each difference is due to one change. It
uses the run's comparisons with another reference: the same rounds, estimator and widening. A step
from or to the reference equals the other arm's comparison.

Hosts of two groups share no moment and no machine, so nothing is paired: the interval comes from
the variation between hosts of a group. With one host in each group only restarts vary, and the
result holds for these two machines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    Decomposition,
    Estimate,
    GroupDifference,
    GroupEstimate,
    HostsEstimate,
    LadderStep,
    Outcome,
)
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.judge import Key, Primary, claimed, judged_by, outside_turns
from envcompare.analysis.timing.runfiles import RunFiles
from envcompare.analysis.timing.surroundings import Surroundings
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.run_folder.records import ArmRecord, FactDifference, FingerprintRecord, HostGroup
from envcompare.stats import Round
from envcompare.stats.acrosscells import (
    MIN_HOSTS,
    Mean,
    between_groups,
    error_of,
    odd_hosts,
    over_hosts,
    over_runs,
)
from envcompare.stats.intervals import Interval, interval, level_together
from envcompare.stats.metrics import MetricName
from envcompare.stats.typical import contrast
from envcompare.stats.verdicts import AnyEvidence, Ends, difference, verdict

_MEASURED: Final = frozenset({"slower", "faster", "equivalent", "inconclusive"})
_Place = tuple[str, str, str, str]  # workload, parameters, arm, group of hosts
_WORK: Final = {
    "batch": "the batch size differs",
    "device": "the device differs",
    "code": "the code differs",
    "data": "the data differ",
}
_Pair = tuple[HostGroup, HostGroup]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """The measurement of one host: a logarithm with its error and its own interval."""

    value: float
    error: float | None  # None if unknown, as with one restart
    ends: Ends | None  # used if it is the only host of its group
    level: float  # level of these ends


def _failed_floors(
    comparisons: Iterable[Comparison], cells: Iterable[CellSummary]
) -> dict[str, float]:
    failed = {comparison.cell for comparison in comparisons if comparison.control_failed}
    return {
        cell.id: cell.noise_floor.far_end
        for cell in cells
        if cell.id in failed and cell.noise_floor is not None
    }


def group_estimates(  # noqa: PLR0913 — each is a part of the run's data
    read: RunFiles,
    data: Iterable[CellData],
    settled: Mapping[Key, Primary],
    *,
    comparisons: Iterable[Comparison],
    cells: Iterable[CellSummary],
    differences: Iterable[GroupDifference],
) -> tuple[GroupEstimate, ...]:
    """Return every group against the first: the times of each arm, then their costs.

    Software differences confound them. The statements of each of these two kinds have a joint error
    of at most 5 % of runs (Bonferroni).
    """
    works: dict[tuple[str, str, str], list[CellData]] = {}
    for measured in data:
        cell = measured.cell
        place = cell.workload, str(sorted(cell.parameters.items())), cell.within
        works.setdefault(place, []).append(measured)
    planned = [
        (pair, _of_pair(pair, of_work), arm.id)
        for pair in read.group_pairs
        for of_work in works.values()
        for arm in of_work[0].run.arms
        if not arm.is_control
    ]
    compared = [one for one in planned if one[2] != one[1][0].reference.id]
    floors = _failed_floors(comparisons, cells)
    level = level_together(len(compared))
    made = (
        *(_of_times(*one, level=level_together(len(planned))) for one in planned),
        *(_of_effect(*one, settled=settled, floors=floors, level=level) for one in compared),
    )
    unlike = {(one.group, one.arm) for one in differences if one.fact_class == "confounder"}
    return tuple(
        replace(
            estimate,
            is_confounded=estimate.log_ratio is not None
            and bool({(estimate.group, estimate.arm), (estimate.group, estimate.against)} & unlike),
        )
        for estimate in made
    )


def _of_pair(pair: _Pair, data: Iterable[CellData]) -> list[CellData]:
    """Return the cells of the hosts of both groups, since those of a third must not decide."""
    hosts = {host for group in pair for host in group.hosts}
    return [cell for cell in data if cell.cell.host in hosts]


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
    """Compare the typical step of an arm, on `net` if all hosts of both groups have it."""
    measured = [cell for cell in data if cell.arm_blocks(arm) and not cell.did_other_work(arm)]
    if why_not := _other_work(measured, arm):
        return replace(_base(pair, data[0], arm), why_not=why_not)
    metrics: set[MetricName] = {cell.metric[0] for cell in measured}
    metric = metrics.pop() if len(metrics) == 1 else "wall"
    margin = data[0].run.design.margin
    known = {cell.cell.host: _time(cell, arm, metric, level=level) for cell in measured}
    values = {host: value for host, value in known.items() if value is not None}
    made = _estimate(_base(pair, data[0], arm), pair, values, level=level, margin=margin)
    if made.outcome == "equivalent" and any(cell.outside_work(arm) for cell in measured):
        made = replace(made, outcome="inconclusive")

    def seconds(logs: dict[str, float]) -> dict[str, float]:
        return {host: 1e-9 * math.exp(value) for host, value in logs.items()}

    return replace(
        made,
        metric=metric,
        values=seconds(made.values),
        reference_values=seconds(made.reference_values),
    )


def _other_work(data: Iterable[CellData], arm: str) -> str:
    """Return why an arm did different work on some hosts of the groups; empty if it did not."""
    works = [cell.work(arm) for cell in data]
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


def _of_effect(  # noqa: PLR0913 — each is a part of the run's data
    pair: _Pair,
    data: list[CellData],
    arm: str,
    *,
    settled: Mapping[Key, Primary],
    floors: Mapping[str, float],
    level: float,
) -> GroupEstimate:
    """Compare the ratio of an arm to the reference.

    A claim is withdrawn if the failed controls of both groups could cause it. `floors` are, by
    cell, the log ratios of the reference to itself.
    """
    values = {
        cell.cell.host: _effect(settled[cell.cell.id, arm])
        for cell in data
        if (cell.cell.id, arm) in settled
    }
    metrics = {cell.metric[0] for cell in data if cell.cell.host in values}
    margin = data[0].run.design.margin
    base = replace(_base(pair, data[0], arm), against=data[0].reference.id)
    if why_not := _other_work([cell for cell in data if cell.cell.host in values], arm):
        return replace(base, why_not=why_not)
    if len(metrics) > 1:
        return replace(base, why_not="judged on net time on some hosts and on wall time on others")
    base = replace(base, metric=next(iter(metrics), ""))
    made = _estimate(base, pair, values, level=level, margin=margin)
    failed = {cell.cell.host: floors[cell.cell.id] for cell in data if cell.cell.id in floors}
    sides = made.reference_values, made.values  # by measured host
    floor = sum(max((failed.get(h, 0.0) for h in side), default=0.0) for side in sides)
    failed_hosts = tuple(host for side in sides for host in side if host in failed)
    made = replace(made, failed_controls=failed_hosts)
    claim = claimed(made.outcome, made.log_ratio or 0.0, margin=margin)
    is_kept = not failed_hosts or claim > floor or made.outcome == "not-run"
    if made.outcome == "equivalent" and any(outside_turns(cell, arm) for cell in data):
        is_kept = False
    return made if is_kept else replace(made, outcome="inconclusive")


def _effect(primary: Primary) -> _Value:
    ratio = primary.interval
    ends = None
    if ratio.low is not None and ratio.high is not None:
        ends = Ends(mean=ratio.mean, low=ratio.low, high=ratio.high)
    return _Value(value=ratio.mean, error=primary.error, ends=ends, level=ratio.level)


def _estimate(
    base: GroupEstimate, pair: _Pair, values: Mapping[str, _Value], *, level: float, margin: float
) -> GroupEstimate:
    """Compare the second group with the first, from the hosts with a value."""
    measured = [{host: values[host] for host in group.hosts if host in values} for group in pair]
    # hosts with a known error, or all if none has one
    sides = [
        {host: one for host, one in side.items() if one.error is not None} or side
        for side in measured
    ]
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
    if is_single:
        both = first[0].ends, second[0].ends
        ends = difference(both[0], both[1]) if both[0] and both[1] else None
    elif any(value.error is None for value in (*first, *second)):
        ends = None
    else:
        ends = between_groups(_columns(first), _columns(second), level=level)
    return replace(
        base,
        outcome=verdict(ends.low, ends.high, margin=margin) if ends else "inconclusive",
        log_ratio=ends.mean if ends else _mean(second) - _mean(first),
        low=ends and ends.low,
        high=ends and ends.high,
        level=min(first[0].level, second[0].level) if is_single else level,
        unit="restart" if is_single else "host",
    )


def _mean(values: Sequence[_Value]) -> float:
    return sum(value.value for value in values) / len(values)


def _columns(values: Sequence[_Value]) -> tuple[list[float], list[float]]:
    return [value.value for value in values], [value.error or 0.0 for value in values]


def hosts_estimates(
    comparisons: Iterable[Comparison],
    settled: Mapping[Key, Primary],
    *,
    cells: Iterable[CellSummary],
    margin: float,
    of_hosts: Iterable[HostGroup],
) -> tuple[HostsEstimate, ...]:
    """Return an estimate for each workload and arm with two or more hosts of a group.

    Their joint error is at most 5 % of runs (Bonferroni). A claim is withdrawn if a failed control
    could cause it; hosts that are judged on different metrics give none.
    """
    floors = _failed_floors(comparisons, cells)
    of_host = {host: group.name for group in of_hosts for host in group.hosts}
    groups: dict[_Place, list[Comparison]] = {}
    for comparison in comparisons:
        known = settled.get((comparison.cell, comparison.arm))
        if known is None or known.error is None or comparison.outcome not in _MEASURED:
            continue
        parameters = str(sorted(comparison.parameters.items()))
        place = comparison.workload, parameters, comparison.arm, of_host.get(comparison.host, "")
        groups.setdefault(place, []).append(comparison)
    several = {
        place: group
        for place, group in groups.items()
        if len(group) >= MIN_HOSTS
        if len({one.primary.metric for one in group if one.primary is not None}) == 1
    }
    level = level_together(len(several))
    made = (
        (place[-1], _over_hosts(group, settled, floors, level=level, margin=margin))
        for place, group in several.items()
    )
    return tuple(replace(one, group=name) for name, one in made if one)


def is_equal_by_mean(
    groups: Iterable[Sequence[Comparison]], *, level: float, margin: float
) -> bool:
    """Tell whether the mean of all steps is inside the margin, pooled as in `over_runs`.

    Each group has the comparisons of one host. A program has no mean apart from its time.
    """
    hosts = []
    for group in groups:
        means = [comparison.mean for comparison in group if comparison.mean is not None]
        if not means:
            return True
        known = [
            (estimate.log_ratio, error_of(estimate.low, estimate.high, level=estimate.level))
            for estimate in means
            if estimate.low is not None and estimate.high is not None
        ]
        if len(known) < len(group):
            return False
        hosts.append(([value for value, _ in known], [error for _, error in known]))
    together = over_runs(hosts)
    if together is None:
        return False
    ends = together.ends(level)
    return verdict(ends.low, ends.high, margin=margin) == "equivalent"


def _over_hosts(
    group: list[Comparison],
    settled: Mapping[Key, Primary],
    floors: Mapping[str, float],
    *,
    level: float,
    margin: float,
) -> HostsEstimate | None:
    known = [settled[comparison.cell, comparison.arm] for comparison in group]
    values = [primary.interval.mean for primary in known]
    errors = [primary.error or 0.0 for primary in known]
    together = over_hosts(values, errors)
    if together is None:
        return None
    ends = together.ends(level)
    outcome = verdict(ends.low, ends.high, margin=margin)
    floor = max(floors.get(comparison.cell, 0.0) for comparison in group)
    is_unsure = bool(floor) and claimed(outcome, ends.mean, margin=margin) <= floor
    if outcome == "equivalent":
        is_unsure |= any(comparison.works_outside for comparison in group) or not is_equal_by_mean(
            [[comparison] for comparison in group], level=level, margin=margin
        )
    return HostsEstimate(
        workload=group[0].workload,
        parameters=group[0].parameters,
        arm=group[0].arm,
        hosts=len(values),
        log_ratio=ends.mean,
        low=ends.low,
        high=ends.high,
        tau=together.tau,
        level=level,
        outcome="inconclusive" if is_unsure else outcome,
        odd_hosts=tuple(group[place].host for place in odd_hosts(values, errors)),
    )


LEVEL = 0.95
_Rounds = dict[Round, tuple[float, ...]]
"""Logarithms of the typical steps of all corners, by round."""
_TURNED: Final[dict[Outcome, Outcome]] = {"slower": "faster", "faster": "slower"}
_HOW = "engine.options"  # describes how a rung makes its change, so it is not a further one


class _Corners(NamedTuple):
    """The arms of one 2 × 2; all parts are relative to `base`, the plain process on the host."""

    base: str
    host_arm: str  # in the container, with the host's own files
    arm: str  # in the container, with its image
    base_image: str = ""  # the plain process with the image's software, if measured


def _all_corners(arms: Iterable[ArmRecord]) -> tuple[_Corners, ...]:
    """Return each 2 × 2 of the arms; the plain environment is that of the reference.

    An arm with a user's image gets a separate 2 × 2.
    """
    taking_part = tuple(arm for arm in arms if not arm.is_control)
    plain = next((arm.environment for arm in taking_part if arm.is_reference), "")
    on_host = {arm.environment: arm.id for arm in taking_part if arm.stack == "host"}
    built = {
        arm.environment: arm.id for arm in taking_part if arm.stack == "image" and not arm.reference
    }
    return tuple(
        _Corners(
            base=on_host[plain],
            host_arm=on_host[arm.environment],
            arm=arm.id,
            base_image="" if arm.reference else built.get(plain, ""),
        )
        for arm in taking_part
        if arm.stack == "image" and arm.environment != plain
        if arm.environment in on_host and plain in on_host
    )


def decompose(data: CellData) -> tuple[Decomposition, ...]:
    """Split every difference of a cell with measurements of all four arms."""
    parts = (_decomposition(data, corners) for corners in _all_corners(data.run.arms))
    return tuple(part for part in parts if part is not None)


def _decomposition(data: CellData, corners: _Corners) -> Decomposition | None:
    arms = tuple(filter(None, corners))
    if any(map(data.did_other_work, arms)):
        return None  # arms with different work have no ratio
    known = data.readings.logarithms(data.metric[0])
    # the parts add up only over rounds with a value of every arm
    complete = data.readings.complete_rounds(arms, data.metric[0])
    rounds = {number: tuple(known[arm][number] for arm in arms) for number in complete}
    place = {arm: number for number, arm in enumerate(arms)}

    def part(**signs: int) -> Estimate | None:
        weights = [0] * len(arms)
        for corner, sign in signs.items():
            weights[place[getattr(corners, corner)]] = sign
        if not rounds:
            return None
        ratio = _interval(data, rounds, arms, weights)
        return data.to_estimate(ratio, data.metric[0], rounds=len(rounds), is_widened=False)

    total = part(arm=1, base=-1)
    environment = part(host_arm=1, base=-1)
    stack = part(arm=1, host_arm=-1)
    if total is None or environment is None or stack is None:
        return None
    has_both = bool(corners.base_image)
    return Decomposition(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        **corners._asdict(),
        total=total,
        environment=environment,
        stack=stack,
        environment_by_image=part(arm=1, base_image=-1) if has_both else None,
        stack_by_base=part(base_image=1, base=-1) if has_both else None,
        interaction=part(arm=1, host_arm=-1, base_image=-1, base=1) if has_both else None,
    )


def _interval(
    data: CellData, rounds: _Rounds, arms: Sequence[str], weights: Sequence[int]
) -> Interval:
    """Return the interval of a sum of arms; their signs, `weights`, sum to 0."""
    logarithms = np.asarray(list(rounds.values()), dtype=float).T
    values = np.asarray(weights, dtype=float) @ logarithms
    groups: dict[int, list[float]] = {}
    for number, value in zip(rounds, values.tolist(), strict=True):
        groups.setdefault(number[0], []).append(value)
    if data.is_program:
        bounds = interval(values.tolist(), level=LEVEL)
        assert bounds is not None
        return bounds
    size = sum(abs(weight) for weight in weights) / 2  # two differences have twice the variance
    widest = max((data.spread(arm) for arm in arms), key=lambda spread: spread.variance)
    spread = dataclasses.replace(widest, variance=widest.variance * size)
    return contrast(logarithms, weights).interval(
        level=LEVEL,
        spread=spread,
        groups=tuple(map(tuple, groups.values())),
        generations=len({number[:2] for number in rounds}),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The inputs of the ladder."""

    settled: Mapping[Key, Primary]
    comparisons: Mapping[Key, Comparison]  # with the reference, by cell and arm
    prints: Mapping[tuple[str, str], FingerprintRecord]  # by cell and arm
    surroundings: Surroundings


def step_evidence(cells: Iterable[CellData]) -> dict[Key, AnyEvidence | None]:
    """Return the evidence on each step that is not a comparison with the reference."""
    return {
        (data.cell.id, arm.id, below.id): data.against(below.id).evidence(arm.id, data.metric[0])
        for data in cells
        for arm, below in _steps(data)
        if not (arm.is_reference or below.is_reference)
    }


def _steps(data: CellData) -> tuple[tuple[ArmRecord, ArmRecord], ...]:
    """Return each measured rung with the nearest measured rung below."""
    measured = [
        arm
        for arm in data.run.arms
        if arm.rung and data.arm_blocks(arm.id) and not data.did_other_work(arm.id)
    ]
    return tuple(zip(measured[1:], measured, strict=False))


def ladder(
    around: Surroundings,
    cells: Iterable[tuple[CellData, CellSummary]],
    settled: Mapping[Key, Primary],
    *,
    comparisons: Iterable[Comparison],
) -> tuple[LadderStep, ...]:
    """Return every rung of each cell, from the lowest up, including unmeasured ones."""
    known = _Judged(
        settled=settled,
        comparisons={(comparison.cell, comparison.arm): comparison for comparison in comparisons},
        prints={
            (fingerprint.cell, fingerprint.arm): fingerprint
            for fingerprint in around.read.fingerprints
        },
        surroundings=around,
    )
    rungs: list[LadderStep] = []
    for data, summary in cells:
        below = {arm.id: lower for arm, lower in _steps(data)}
        for arm in data.run.arms:
            if arm.id in below:
                rungs.append(_measured(data, summary, (arm, below[arm.id]), known))
            elif arm.rung:
                rungs.append(_alone(data, arm))
    return tuple(rungs)


def _alone(data: CellData, arm: ArmRecord) -> LadderStep:
    """Return a rung without one below it, or an unmeasured rung."""
    failure = data.failure(arm.id)
    if failure is not None:
        outcome: Outcome = "not-run" if failure.phase in {"environment", "plan"} else "failed"
        why = failure.details or failure.brief
    elif data.arm_blocks(arm.id):
        outcome, why = "reference", ""
    else:
        outcome, why = "not-run", "no round was measured"
    return _rung(data, arm, outcome, why_not=why)


def _measured(
    data: CellData,
    summary: CellSummary,
    step: tuple[ArmRecord, ArmRecord],
    known: _Judged,
) -> LadderStep:
    arm, below = step
    same = _same(data.cell.id, arm, below, known.comparisons)
    primary = known.settled.get((data.cell.id, arm.id, below.id))
    if same is not None:
        outcome, estimate = same
    elif primary is not None:
        against = data.against(below.id)
        judged = judged_by(against, arm, summary, settled=primary)
        outcome, estimate = judged.outcome, judged.deciding
        if outcome == "equivalent" and outside_turns(against, arm.id):
            outcome = "inconclusive"
    else:
        return _rung(data, arm, "not-run", why_not="no round of both rungs was measured")
    differing = _differences(data, step, known, ratio=estimate.log_ratio)
    return msgspec.structs.replace(
        _rung(data, arm, outcome),
        below=below.id,
        step=estimate,
        changed=None if differing is None else tuple(each.key for each in differing),
        is_confounded=any(each.fact_class == "confounder" for each in differing or ()),
    )


def _same(
    cell: str, arm: ArmRecord, below: ArmRecord, comparisons: Mapping[Key, Comparison]
) -> tuple[Outcome, Estimate] | None:
    """Return the comparison with the reference that equals a step, inverted if it ends there."""
    if below.is_reference:
        comparison = comparisons.get((cell, arm.id))
        return (
            (comparison.outcome, comparison.deciding)
            if comparison and comparison.deciding
            else None
        )
    comparison = comparisons.get((cell, below.id)) if arm.is_reference else None
    if comparison is None or comparison.deciding is None:
        return None
    there = comparison.deciding
    low, high = (None if end is None else -end for end in (there.high, there.low))
    turned = msgspec.structs.replace(there, log_ratio=-there.log_ratio, low=low, high=high)
    return _TURNED.get(comparison.outcome, comparison.outcome), turned


def _rung(data: CellData, arm: ArmRecord, outcome: Outcome, *, why_not: str = "") -> LadderStep:
    return LadderStep(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        arm=arm.id,
        rung=arm.rung,
        outcome=outcome,
        why_not=why_not,
    )


def _differences(
    data: CellData, step: tuple[ArmRecord, ArmRecord], known: _Judged, *, ratio: float
) -> tuple[FactDifference, ...] | None:
    """Return the facts in which a rung differs from the one below, except the arm's names.

    They include stops by a quota and the GPU clocks of both rungs. None if the facts of either rung
    are unknown.
    """
    (arm, below), cell = step, data.cell.id
    if not {(cell, arm.id), (cell, below.id)} <= known.prints.keys():
        return None
    context = known.surroundings.context(cell, (below.id, arm.id))
    prints = known.prints[cell, below.id], known.prints[cell, arm.id]
    clocks = known.surroundings.clocks(data, (below.id, arm.id), ratio)
    return tuple(
        one
        for one in (*compare_fingerprints(*prints, context), *clocks)
        if one.fact_class != "identity" and not one.part_of and one.key != _HOW
    )
