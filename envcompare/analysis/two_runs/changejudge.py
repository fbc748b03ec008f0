"""The verdict on how one arm ÷ reference changed in one cell, with what speaks against it.

The runs share nothing random, and each printed interval is widened already for the comparisons of
its run and for looking. That of the difference inherits both: its error is at most the larger of
the two, and so over all changes at most that of one run. The intervals of a
screen would not do: they pay for those that it selected in its run, and changes are others.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from envcompare.analysis.model.change import Change
from envcompare.analysis.model.comparison import Comparison, Estimate, Outcome, RunComparison
from envcompare.analysis.timing.judge import (
    claimed,
    control_reason,
    failed_control_end,
    leaning,
    least_restarts,
)
from envcompare.analysis.two_runs.gates import phase_of
from envcompare.analysis.two_runs.mismatches import ReadRun, changed_facts
from envcompare.run_folder.records import ArmRecord, FactDifference
from envcompare.stats.differences import Ends, difference
from envcompare.stats.verdicts import verdict

Key = tuple[str, str]  # cell, arm
Both = tuple[Comparison, Comparison]
_WORDS = ("before", "after")


def judge_change(before: ReadRun, after: ReadRun, both: Both) -> Change:
    """Return the change of one comparison, with what else of its arm changed."""
    one = both[1]
    base = Change(
        cell=one.cell,
        host=one.host,
        workload=one.workload,
        parameters=one.parameters,
        arm=one.arm,
        outcome="not-run",
        before=both[0].primary,
        after=one.primary,
        is_described=all((one.cell, one.arm) in run.fingerprints for run in (before, after)),
        differences=_differences(before, after, (one.cell, one.arm)),
        failure=one.failure,
        remarks=tuple(_remarks(before, after, both)),
    )
    estimates = both[0].primary, one.primary
    if estimates[0] is None or estimates[1] is None:
        return _unmeasured(base, before, after, both)
    if estimates[0].metric != estimates[1].metric:
        what = f"judged on {estimates[0].metric} before and on {estimates[1].metric} after"
        return msgspec.structs.replace(base, reason=f"not compared: {what}")
    return _measured(base, before, after, both)


def _unmeasured(base: Change, before: ReadRun, after: ReadRun, both: Both) -> Change:
    runs = before.comparison, after.comparison
    lacking = [
        (word, one, phase_of(run, one))
        for word, run, one in zip(_WORDS, runs, both, strict=True)
        if one.primary is None
    ]
    is_failed = any(one.outcome == "failed" for _, one, _ in lacking)
    reasons = (f"{word}: {one.reason or 'no reason was recorded'}" for word, one, _ in lacking)
    return msgspec.structs.replace(
        base,
        outcome="failed" if is_failed else "not-run",
        reason="; ".join(reasons),
        phase=next((phase for _, _, phase in lacking if phase is not None), None),
    )


def _measured(base: Change, before: ReadRun, after: ReadRun, both: Both) -> Change:
    runs = before.comparison, after.comparison
    assert base.before is not None
    assert base.after is not None
    first, second = base.before, base.after
    mean = second.log_ratio - first.log_ratio
    ends = _ends(first, second)
    low, high = (ends.low, ends.high) if ends else (None, None)
    outcome: Outcome = verdict(low, high, margin=runs[1].margin)
    reasons = {
        word: text
        for word, run, one in zip(_WORDS, runs, both, strict=True)
        if (text := _lacking(run, one))
    }
    floors = {
        word: end
        for word, run, one in zip(_WORDS, runs, both, strict=True)
        if (end := _floor(run, one)) is not None
    }
    claim = claimed(outcome, mean, margin=runs[1].margin)
    if not reasons and floors and outcome != "inconclusive" and claim <= sum(floors.values()):
        reasons = {word: control_reason(end) for word, end in floors.items()}
    return msgspec.structs.replace(
        base,
        outcome="inconclusive" if reasons else outcome,
        leaning=leaning(mean),
        metric=second.metric,
        log_ratio=mean,
        low=low,
        high=high,
        level=min(first.level, second.level),
        reason="; ".join(f"{word}: {text}" for word, text in reasons.items()),
        control_failed=bool(floors),
    )


def _ends(before: Estimate, after: Estimate) -> Ends | None:
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return None
    return difference(
        Ends(mean=before.log_ratio, low=before.low, high=before.high),
        Ends(mean=after.log_ratio, low=after.low, high=after.high),
    )


def _lacking(run: RunComparison, one: Comparison) -> str:
    """Return why no claim can rest on the interval of a run; empty where one can."""
    primary = one.primary
    assert primary is not None
    needed = least_restarts(preset=run.preset, planned=run.min_restarts)
    if primary.restarts < needed or primary.low is None or primary.high is None:
        return one.reason or "there is no interval"
    return ""


def _floor(run: RunComparison, one: Comparison) -> float | None:
    """Return the far end of the control of a cell where it failed."""
    floors = (cell.noise_floor for cell in run.cells if cell.id == one.cell)
    return failed_control_end(next(floors, None))


def _differences(before: ReadRun, after: ReadRun, key: Key) -> tuple[FactDifference, ...]:
    mine, theirs = before.fingerprints.get(key), after.fingerprints.get(key)
    if mine is None or theirs is None:
        return ()
    is_stabilised = before.record.design.stabilise and after.record.design.stabilise
    return changed_facts(mine, theirs, is_stabilised=is_stabilised)


def _remarks(before: ReadRun, after: ReadRun, both: Both) -> Iterable[str]:
    """Say where one name stands for two environments or images, and what failed half-way."""
    arm = both[1].arm
    asked = [
        next(_arm_text(one) for one in run.record.arms if one.id == arm) for run in (before, after)
    ]
    if asked[0] != asked[1]:
        yield f"{arm} is {asked[0]} before and {asked[1]} after"
    for word, one in zip(_WORDS, both, strict=True):
        if one.failure is not None and one.primary is not None:
            yield f"{word}: {arm} failed before the end of its cell: {one.failure.brief}"


def _arm_text(arm: ArmRecord) -> str:
    return f"{arm.environment}:{arm.reference}" if arm.reference else (
        f"{arm.environment}@{arm.stack}"
    )  # fmt: skip
