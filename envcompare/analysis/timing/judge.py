"""Judge each arm in each cell: its verdict, the evidence against it, and its slow steps.

The interval of a verdict is settled over all comparisons of a run together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from envcompare.analysis.model import (
    TAIL_LEVEL,
    CellSummary,
    Comparison,
    Estimate,
    FarLaunch,
    Leaning,
    Outcome,
    OwnWaiting,
    Reason,
    ReasonKind,
    Tail,
    TurnTrend,
)
from envcompare.analysis.timing import CellData
from envcompare.run_folder.records import CAPTURED, ArmRecord, Design
from envcompare.stats import DRIFT_LEVEL, turn_trend
from envcompare.stats.intervals import (
    ALPHA,
    Interval,
    restarts_needed,
    student_factor,
)
from envcompare.stats.metrics import MetricName, net_steps_ns
from envcompare.stats.typical import (
    MIN_RESTARTS,
    MIN_ROUNDS,
    STRETCHES,
    Contrast,
    jackknife,
)
from envcompare.stats.verdicts import (
    AnyEvidence,
    Decision,
    Headline,
    Verdict,
    decide,
    screen,
    verdict,
)

Key = tuple[str, ...]  # cell and arm, and for a step of the ladder the arm below
# Fewer launches cannot separate an environment from chance. A plan may aim at more, to be narrower.
_MIN_PASSES = 4  # processes of a plain command
PLAIN_LEVEL = 0.95
_READ_AS_ZERO = 0.0005  # of a log ratio: changes are printed with one decimal of a percent
_SECONDARY: tuple[MetricName, ...] = ("net", "wall", "stretch", "cpu", "gpu", "user", "sys", "real")
SLOW = 1.5  # times the median step of the arm
_LEAST_STEPS = 100  # in each arm; the tail of fewer is a step or two
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """The reported interval of one comparison, and its origin."""

    interval: Interval
    is_selected: bool = True  # by the screen; always true without one
    error: float | None = None  # standard error of the mean, None if unknown


def primaries(
    cells: Iterable[CellData],
    design: Design,
    *,
    m: int,
    steps: Mapping[Key, AnyEvidence | None] | None = None,
) -> dict[Key, Primary]:
    """Return the primary of each measured arm and each step of the ladder.

    `m` is the number of planned comparisons, including the steps.
    """
    evidence: dict[Key, AnyEvidence | None] = {
        (cell.cell.id, arm.id): cell.evidence(arm.id, cell.metric[0])
        for cell in cells
        for arm in cell.run.arms
        if not (arm.is_reference or arm.is_control or cell.did_other_work(arm.id))
    }
    evidence |= steps or {}
    measured = {key: one for key, one in evidence.items() if one is not None}
    if not design.screen:
        return {
            key: Primary(interval=one.printed(alpha=ALPHA / m), error=_standard_error(one))
            for key, one in measured.items()
        }
    screened = screen(tuple(measured.values()), planned=m)
    return {
        key: Primary(
            interval=case.interval,
            is_selected=case.is_selected,
            error=_standard_error(measured[key]),
        )
        for key, case in zip(measured, screened, strict=True)
    }


def _standard_error(evidence: AnyEvidence) -> float | None:
    """Return the standard error of a plain interval by the normal quantile, which is cautious."""
    half = evidence.interval(level=PLAIN_LEVEL).half_width
    return half / student_factor(math.inf, PLAIN_LEVEL) if math.isfinite(half) else None


def judge(
    data: CellData, arm: ArmRecord, cell: CellSummary, *, primary: Primary | None
) -> Comparison:
    """Compare one arm with the reference in one cell; exactly one outcome.

    `primary` is settled over the whole run; the control has none.
    """
    settled = primary
    if arm.is_control:
        evidence = data.evidence(arm.id, data.metric[0])
        interval = None if evidence is None else evidence.interval(level=PLAIN_LEVEL)
        settled = None if interval is None else Primary(interval=interval)
    if settled is None or data.did_other_work(arm.id):
        return _without_result(data, arm, cell)
    return _with_result(data, arm, cell, settled)


def _base(data: CellData, arm: ArmRecord) -> Comparison:
    return Comparison(
        cell=data.cell.id,
        host=data.cell.host,
        workload=data.cell.workload,
        parameters=data.cell.parameters,
        within=data.cell.within,
        arm=arm.id,
        environment=arm.environment,
        stack=arm.stack,
        arm_parameters=arm.parameters,
        is_control=arm.is_control,
        outcome="not-run",
        failure=data.failure(arm.id),
    )


def _without_result(data: CellData, arm: ArmRecord, cell: CellSummary) -> Comparison:
    base = _base(data, arm)
    lost = base.failure or data.failure(data.reference.id)
    is_lacking = lost is not None and lost.phase in {"environment", "plan"}
    outcome: Outcome = "not-run" if is_lacking else "failed"
    if base.failure is not None:
        kind: ReasonKind = "not-planned" if base.failure.phase == "plan" else "failed"
        reason = Reason(kind=kind, brief=base.failure.brief)
    elif lost is not None:
        reason = Reason(kind="reference-failed", arm=data.reference.id, brief=lost.brief)
    elif any(e.what == "cell-ended" and e.state == "skipped" for e in data.events):
        outcome, reason = "not-run", Reason(kind="size-skipped", brief=cell.reason)
    elif cell.state != "ok" and cell.reason:
        # if a cell ended well, its reason is why it stopped, not why this is missing
        outcome, reason = "not-run", Reason(kind="cell-ended", brief=cell.reason)
    else:
        outcome, reason = "not-run", Reason(kind="no-complete-round")
    return msgspec.structs.replace(base, outcome=outcome, reason=reason)


def _with_result(data: CellData, arm: ArmRecord, cell: CellSummary, settled: Primary) -> Comparison:
    metric, _ = data.metric
    found = judged_by(data, arm, cell, settled=settled)
    outcome: Outcome = found.outcome
    primary, reason, control_failed = found.primary, found.reason, found.control_failed
    outside = outside_turns(data, arm.id)
    if outside is not None and outcome in {"equivalent", "inconclusive"}:
        outcome, reason = "inconclusive", outside  # more measuring would decide nothing
    reason = reason or outside
    is_open = outcome == "inconclusive" and not (outside or (control_failed and reason))
    is_open &= CAPTURED not in {arm.environment, data.reference.environment}  # it has no more
    more = _more_restarts(data, found.headline.implied or settled.interval) if is_open else None
    if outcome == "inconclusive" and data.stopped_by == "target":
        reason = reason or Reason(kind="target-first")
    estimate = data.plain_estimate if data.is_program else data.mean_estimate
    others = (estimate(arm.id, name, level=PLAIN_LEVEL) for name in _SECONDARY if name != metric)
    return msgspec.structs.replace(
        _base(data, arm),
        outcome=outcome,
        leaning="none"
        if (outside and outcome == "inconclusive") or not primary.has_size
        else leaning(found.deciding.log_ratio),
        primary=primary,
        mean=found.mean,
        excess=_estimate_of_mean(data, arm, found.headline.excess, is_widened=False),
        is_mean_firm=found.is_mean_firm,
        is_by_mean=found.is_by_mean,
        own_waiting=_own_waiting(data, arm),
        far_launches=_far_launches(data, arm),
        turn_trend=_turn_trend(data, arm.id),
        steps=None
        if data.is_program
        else min(data.readings.steps(one) for one in (arm.id, data.reference.id)),
        reference_step_s=data.readings.step_s(
            data.reference.id, compared=arm.id, metric=metric, is_mean=found.is_by_mean
        ),
        tail=tail(data, arm.id),
        secondary=tuple(other for other in others if other is not None),
        reason=reason,
        forecast_restarts=more,
        forecast_s=None if more is None else more * (cell.elapsed_s / max(1, cell.restarts)),
        works_outside=outside is not None,
        control_failed=control_failed and not arm.is_control,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judgement:
    """An outcome by typical step and mean, before considering work outside turns."""

    outcome: Verdict
    reason: Reason | None
    control_failed: bool
    primary: Estimate
    headline: Headline
    mean: Estimate | None
    is_mean_firm: bool
    is_by_mean: bool

    @property
    def deciding(self) -> Estimate:
        """Return the estimate of the outcome."""
        return self.mean if self.is_by_mean and self.mean else self.primary


def judged_by(data: CellData, arm: ArmRecord, cell: CellSummary, *, settled: Primary) -> _Judgement:
    """Judge an arm by its settled typical step and by the mean."""
    metric, _ = data.metric
    primary = data.estimate_of(settled.interval, arm.id, metric, is_widened=not arm.is_control)
    outcome, reason, control_failed = _outcome(data, primary, cell.noise_floor)
    if outcome in {"slower", "faster"} and not settled.is_selected:
        outcome, reason = "inconclusive", Reason(kind="not-selected")
    headline = _headline(data, arm, settled)
    end = failed_control_end(cell.noise_floor, least=_least_restarts(data))
    is_mean_firm = _is_mean_firm(data, headline.mean, end=end)
    mean, is_by_mean = headline.mean, False
    if reason is None:
        margin = data.run.design.margin
        decision = decide(headline, outcome, margin=margin, is_mean_firm=is_mean_firm)
        outcome, is_by_mean = decision.verdict, decision.by == "mean"
        mean = decision.interval if is_by_mean else mean
        reason = _why_not_by_mean(data, decision, end=end)
        if reason is not None:
            outcome, control_failed = "inconclusive", control_failed or end is not None
    return _Judgement(
        outcome=outcome,
        reason=reason,
        control_failed=control_failed,
        primary=primary,
        headline=headline,
        mean=_estimate_of_mean(data, arm, mean),
        is_mean_firm=is_mean_firm,
        is_by_mean=is_by_mean,
    )


def outside_turns(data: CellData, arm: str) -> Reason | None:
    """Return why an arm cannot be equivalent: it or the reference worked outside its turns."""
    work = data.outside_work(arm) or data.outside_work(data.reference.id)
    if work is None:
        return None
    return Reason(
        kind="outside-turns",
        arm=work.arm,
        cpu_s=work.cpu_s,
        children=work.children or None,
        is_unstopped=work.is_unstopped,
        hidden=work.hidden or None,
    )


def _headline(data: CellData, arm: ArmRecord, settled: Primary) -> Headline:
    """Return typical step and mean; those of the control are at 95 % without correction."""
    typical = settled.interval
    if data.is_program:
        return Headline(typical=typical, mean=None, implied=None, excess=None)
    headline = data.headline(arm.id, typical)
    if not arm.is_control or headline.mean is None:
        return headline
    mean = data.readings.felt(arm.id, data.reference.id, data.metric[0])
    if mean is None:
        return headline
    plain = mean.interval(
        level=PLAIN_LEVEL,
        spread=data.spread(arm.id),
        groups=data.readings.groups(arm.id, data.reference.id, data.metric[0]),
        generations=typical.generations,
    )
    return replace(headline, mean=plain, implied=None)


def _estimate_of_mean(
    data: CellData, arm: ArmRecord, mean: Interval | None, *, is_widened: bool = True
) -> Estimate | None:
    if mean is None:
        return None
    widened = is_widened and not arm.is_control
    return data.estimate_of(mean, arm.id, data.metric[0], is_widened=widened)


def _own_waiting(data: CellData, arm: ArmRecord) -> OwnWaiting | None:
    waiting = data.readings.own_waiting(arm.id, data.reference.id)
    if waiting is None or not math.isfinite(waiting.half_width):
        return None
    return OwnWaiting(
        share=waiting.share,
        low=waiting.share - waiting.half_width,
        high=waiting.share + waiting.half_width,
        is_counted=waiting.is_counted,
    )


def _far_launches(data: CellData, arm: ArmRecord) -> tuple[FarLaunch, ...]:
    return tuple(
        FarLaunch(
            restart=launch.restart,
            arm=launch.arm,
            launches=len(data.readings.by_restart(name, data.metric[0])),
            log_ratio=launch.log_ratio,
        )
        for name in (arm.id, data.reference.id)
        for launch in data.readings.far_launches(name)
    )


def _turn_trend(data: CellData, arm: str) -> TurnTrend | None:
    if data.is_program or any(
        getattr(block, "is_stopped", False) for block in data.arm_blocks(arm)
    ):
        return None  # the work in progress when an arm is stopped shortens its first steps
    ours, theirs = (_by_round(data, one) for one in (arm, data.reference.id))
    trend = turn_trend([(ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys())])
    if trend is None:
        return None
    compared = sum(not (record.is_reference or record.is_control) for record in data.run.arms)
    return TurnTrend(
        first_log_ratio=trend.first_log_ratio,
        last_log_ratio=trend.last_log_ratio,
        p_value=trend.p_value,
        is_detected=trend.p_value * max(1, compared) < DRIFT_LEVEL,
    )


def _is_mean_firm(data: CellData, mean: Interval | None, *, end: float | None) -> bool:
    """Say whether a mean may claim a difference: no screen, and its control passed."""
    if mean is None or mean.restarts < _least_restarts(data) or data.run.design.screen:
        return False
    return end is None or abs(mean.mean) > end


def _why_not_by_mean(data: CellData, decision: Decision, *, end: float | None) -> Reason | None:
    """Return why a mean claims nothing: its control failed, or a screen asks for more."""
    margin = data.run.design.margin
    mean = decision.interval
    of_mean = verdict(mean.low, mean.high, margin=margin)
    if decision.by != "mean" or of_mean == "inconclusive":
        return None
    if end is not None and claimed(of_mean, mean.mean, margin=margin) <= end:
        return Reason(kind="control-failed", control_end=end)
    return Reason(kind="not-selected") if decision.verdict == "inconclusive" else None


def _least_restarts(data: CellData) -> int:
    design = data.design
    # with a fixed number, no restart can replace a missing one
    planned = 0 if design.restarts is not None else design.min_restarts
    return least_restarts(preset=design.preset, planned=planned, is_program=data.is_program)


def least_restarts(*, preset: str, planned: int, is_program: bool) -> int:
    """Return the restarts that a verdict needs; strict means the planned number."""
    least = _MIN_PASSES if is_program else MIN_RESTARTS
    return max(planned, least) if preset == "strict" else least


def _more_restarts(data: CellData, ratio: Interval) -> int | None:
    """Forecast the missing units, including restarts below the minimum; None if unknown."""
    missing = max(0, _least_restarts(data) - ratio.restarts)
    needed = restarts_needed(ratio, margin=data.run.design.margin)
    if needed is None:
        return None
    return max(missing, needed - ratio.restarts, 1)


def _outcome(
    data: CellData, primary: Estimate, floor: Estimate | None
) -> tuple[Verdict, Reason | None, bool]:
    """Return the typical step's verdict, why it is inconclusive, and if the control failed."""
    least = _least_restarts(data)
    if primary.restarts < least:
        return "inconclusive", _too_few(data, primary, least), False
    if primary.low is None and primary.rounds < MIN_ROUNDS:
        few = Reason(kind="too-few", unit="round", counted=primary.rounds, needed=MIN_ROUNDS)
        return "inconclusive", few, False
    margin = data.run.design.margin
    outcome = verdict(primary.low, primary.high, margin=margin)
    end = failed_control_end(floor, least=least)
    if end is None:
        return outcome, None, False
    if outcome != "inconclusive" and claimed(outcome, primary.log_ratio, margin=margin) <= end:
        return "inconclusive", Reason(kind="control-failed", control_end=end), True
    return outcome, None, True


def claimed(outcome: Outcome, log_ratio: float, *, margin: float) -> float:
    """Return the claimed difference, or the one that *equivalent* denies, as a log ratio."""
    return math.log1p(margin) if outcome == "equivalent" else abs(log_ratio)


def _too_few(data: CellData, primary: Estimate, least: int) -> Reason:
    planned = data.design.min_restarts
    return Reason(
        kind="too-few",
        unit="round" if primary.unit == "process" else "restart",
        counted=primary.restarts,
        needed=least,
        planned=planned if planned > least else None,
        missing=max(1, 2 - primary.restarts) if primary.low is None else None,
    )


def failed_control_end(floor: Estimate | None, *, least: int) -> float | None:
    """Return the far end of the control's 99 % interval if that excludes 0, else None.

    It is None below the `least` restarts of a verdict.
    """
    if floor is None or floor.low is None or floor.high is None:
        return None
    if floor.restarts < least or floor.low <= 0 <= floor.high:
        return None
    return floor.far_end


def leaning(log_ratio: float) -> Leaning:
    """Return the direction of a log ratio; none if it rounds to 0.0 %."""
    if abs(log_ratio) < _READ_AS_ZERO:
        return "none"
    return "slower" if log_ratio > 0 else "faster"


def tail(data: CellData, arm: str) -> Tail | None:
    """Return the slow steps of an arm and of the reference; None with too few steps.

    On a GPU a step is timed between events. Only rounds with both arms count.
    """
    if data.is_program or arm == data.reference.id:
        return None
    both_arms = (arm, data.reference.id)
    ours, theirs = (_by_round(data, one) for one in both_arms)
    complete = [
        number
        for number in data.readings.complete_rounds(both_arms, data.metric[0])
        if number in ours and number in theirs
    ]
    both = [[one[key] for key in complete] for one in (ours, theirs)]
    if len(complete) < STRETCHES or min(sum(map(len, one)) for one in both) < _LEAST_STEPS:
        return None
    stretches = np.array_split(np.arange(len(complete)), STRETCHES)
    parts = [[np.concatenate([one[i] for i in part]) for part in stretches] for one in both]
    a, b = (np.concatenate(part) for part in parts)
    kept = [
        [np.concatenate([part for i, part in enumerate(one) if i != left]) for one in parts]
        for left in range(STRETCHES)
    ]
    shares = jackknife([_share(x) - _share(y) for x, y in kept], _share(a) - _share(b))
    p90 = jackknife([_p90(x) - _p90(y) for x, y in kept], _p90(a) - _p90(b))
    # without slow steps the jackknife gives no variance, which does not mean certainty
    low, high = _ends(shares) if _share(a) or _share(b) else (None, None)
    p90_low, p90_high = _ends(p90)
    slow = a[a > SLOW * np.median(a)]
    return Tail(
        share=_share(a),
        reference_share=_share(b),
        difference_low=low,
        difference_high=high,
        slow_ratio=float(np.median(slow) / np.median(a)) if slow.size else None,
        p90_log_ratio=p90.mean,
        p90_low=p90_low,
        p90_high=p90_high,
    )


def _by_round(data: CellData, arm: str) -> dict[tuple[int, int, int], Floats]:
    """Return the step times of an arm by round; on a GPU they are between events."""
    rounds = {}
    for block in data.arm_blocks(arm):
        if data.metric[0] == "net":
            steps = net_steps_ns(block, by_clock=data.readings.goes_by_clock)
        else:
            steps = getattr(block, "gpu_ns", None) or getattr(block, "wall_ns", None)
        if steps:
            rounds[block.restart, block.generation, block.round] = np.asarray(steps, dtype=float)
    return rounds


def _share(steps: Floats) -> float:
    return float(np.mean(steps > SLOW * np.median(steps)))


def _p90(steps: Floats) -> float:
    return float(np.log(np.quantile(steps, 0.9)))


def _ends(excess: Contrast) -> tuple[float, float]:
    half = student_factor(excess.df, TAIL_LEVEL) * excess.error
    return excess.mean - half, excess.mean + half
