"""Gates: the conditions that make `envcompare compare` fail, from parsing to findings.

`slower:2%` hits if the whole reported interval, of the typical step or of the mean, is beyond 2 %,
and never if the claim was withdrawn. `unproven:2%` hits unless the whole interval is below 2 %, so
too little measuring does not pass. Comparisons without a judgement are findings too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from envcompare.analysis.model.changes import (
    Change,
    Finding,
    GateFinding,
    GateResult,
    GateState,
    RunChange,
)
from envcompare.analysis.model.comparison import (
    LEFT_OUT,
    Comparison,
    Estimate,
    Outcome,
    Reason,
    RunComparison,
)
from envcompare.errors import ConfigError, Phase, UnusableError, exit_code_of

_SPEEDS: Final[tuple[GateState, ...]] = ("slower", "faster")
_BOUNDED: Final[tuple[GateState, ...]] = (*_SPEEDS, "unproven")
_STATES: Final[tuple[GateState, ...]] = ("inconclusive", "confounded", "failed")
_MOST: Final[dict[GateState, float]] = {
    "slower": 1000.0,
    "faster": 99.0,
    "unproven": 1000.0,
}  # percent
_PERCENT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%", re.ASCII)
_MOST_TIMES: Final = 30.0  # narrower than now; a longer forecast is of no use for planning
_WITHDRAWN: Final = frozenset({"too-few", "control-failed", "no-interval", "failed", "mean-open"})
_UNMEASURED: Final = frozenset({"failed", "not-run"})
_ALLOWED: Final = (
    "slower, slower:2%, unproven:2%, faster, faster:2%, inconclusive, confounded and failed, "
    "several with commas"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition that must not hold; `percent` is None for any verdict of that state."""

    state: GateState
    percent: float | None = None

    @property
    def text(self) -> str:
        """Return the gate in its written form."""
        return self.state if self.percent is None else f"{self.state}:{self.percent:.12g}%"

    @property
    def is_of_speed(self) -> bool:
        """Say whether it needs an interval to be judged."""
        return self.state in _SPEEDS

    @property
    def bound(self) -> float:
        """Return the log ratio beyond which it hits, above 0 for slower and below for faster."""
        share = (self.percent or 0.0) / 100
        return math.log1p(-share) if self.state == "faster" else math.log1p(share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The input of a gate for one comparison, of one run or of two."""

    cell: str
    arm: str
    outcome: Outcome
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    mean_low: float | None = None  # of the mean of all steps
    mean_high: float | None = None
    elapsed_s: float | None = None  # time that its cell took; with two runs, in the later one
    kept_half: float = 0.0  # half-width that the earlier run contributes to a change
    is_firm: bool = True  # no failed control contradicts a claim inside the margin
    is_confounded: bool = False
    is_described: bool = True  # there are fingerprints to find confounders in
    reasons: tuple[Reason, ...] = ()
    phase: Phase | None = None  # of the failure of the arm or its reference
    failure: str = ""  # the failure, though there may be earlier times

    @property
    def exit_code(self) -> int:
        """Return the exit code for missing results: 4 for a workload failure, otherwise 3."""
        if self.phase is not None:
            return exit_code_of(self.phase)
        return 4 if self.outcome == "failed" else 3


def parse_gates(texts: Iterable[str]) -> tuple[Gate, ...]:
    """Return the gates of all `--fail-on`, each once; raises ConfigError for an invalid one."""
    items = (item.strip() for text in texts for item in text.split(","))
    return tuple(dict.fromkeys(_gate(item) for item in items))


def _gate(item: str) -> Gate:
    state, colon, amount = item.partition(":")
    for known in _BOUNDED:
        if state == known and (colon or known in _SPEEDS):
            return Gate(state=known, percent=_percent(item, known, amount) if colon else None)
    for named in _STATES:
        if item == named:
            return Gate(state=named)
    raise _refused(item, f"gates are {_ALLOWED}")


def _percent(item: str, state: GateState, amount: str) -> float:
    matched, most = _PERCENT.fullmatch(amount), _MOST[state]
    if matched is None or float(matched[1]) > most:
        raise _refused(item, f"{state}: needs a percentage from 0% to {most:.0f}%, with the sign %")
    return float(matched[1])


def _refused(item: str, details: str) -> ConfigError:
    brief = f"--fail-on {item} is not a gate" if item else "--fail-on names no gate"
    return ConfigError(brief, details=details, hint="for example --fail-on slower:2%")


def claims_of_run(run: RunComparison) -> tuple[Claim, ...]:
    """Return the claims of a run, without the control.

    Left out is also what was skipped on purpose: sizes that do not fit, or places that an arm
    lacks.
    """
    described = {(one.host, one.arm) for one in run.arms if one.facts}
    elapsed = {cell.id: cell.elapsed_s for cell in run.cells}
    return tuple(
        _claim(
            one,
            one.deciding,
            mean=one.mean if one.is_mean_firm else None,
            elapsed_s=elapsed.get(one.cell),
            is_described={
                (one.host, one.arm),
                (one.host, run.reference_in(one.cell)),
            }
            <= described,
            reasons=(one.reason,) if one.reason else (),
            phase=phase_of(run, one),
        )
        for one in run.compared
        if not one.is_left_out
    )


def _claim(  # noqa: PLR0913 — each is a part of the claim
    judged: Comparison | Change,
    ratio: Estimate | Change | None,
    *,
    mean: Estimate | None = None,
    elapsed_s: float | None,
    kept_half: float = 0.0,
    is_described: bool,
    reasons: tuple[Reason, ...],
    phase: Phase | None,
) -> Claim:
    return Claim(
        cell=judged.cell,
        arm=judged.arm,
        outcome=judged.outcome,
        log_ratio=ratio.log_ratio if ratio else None,
        low=ratio.low if ratio else None,
        high=ratio.high if ratio else None,
        mean_low=mean.low if mean else None,
        mean_high=mean.high if mean else None,
        elapsed_s=elapsed_s,
        kept_half=kept_half,
        is_firm=not judged.control_failed,
        is_confounded=judged.is_confounded,
        is_described=is_described,
        reasons=reasons,
        phase=phase,
        failure=judged.failure.brief if judged.failure else "",
    )


def phase_of(run: RunComparison, comparison: Comparison) -> Phase | None:
    """Return the phase in which a comparison or else its reference failed; None if neither did."""
    if comparison.failure is not None:
        return comparison.failure.phase
    phases = (
        row.phase
        for row in reversed(run.failures)
        if row.host == comparison.host
        and row.arm in {"", run.reference_in(comparison.cell)}
        and row.cell in {"", comparison.cell}
    )
    return next(phases, None) if comparison.outcome in _UNMEASURED else None


def claims_of_change(run: RunChange) -> tuple[Claim, ...]:
    """Return the claims of two runs: the change of each ratio.

    A comparison only in the earlier run counts as no longer run. New comparisons have no change to
    judge, nor have those left out on purpose in the earlier run.
    """
    changed = (
        _claim(
            one,
            one,
            elapsed_s=one.elapsed_s,
            kept_half=_half_width(one.before),
            is_described=one.is_described,
            reasons=one.reasons,
            phase=one.phase,
        )
        for one in run.changes
        if not _was_left_out(one)
    )
    lost = (
        Claim(cell=one.cell, arm=one.arm, outcome="not-run", reasons=(Reason(kind="only-before"),))
        for one in run.left_out
        if one.only_in == "before"
    )
    return *changed, *lost


def _was_left_out(change: Change) -> bool:
    is_on_purpose = all(reason.kind in LEFT_OUT for reason in change.reasons)
    return is_on_purpose and any(reason.when == "before" for reason in change.reasons)


def _half_width(estimate: Estimate | None) -> float:
    if estimate is None or estimate.low is None or estimate.high is None:
        return 0.0
    return (estimate.high - estimate.low) / 2


def _by_mean(gate: Gate, claim: Claim) -> Claim:
    """Return the claim by the mean if only that is beyond the bound of a gate."""
    low, high = claim.mean_low, claim.mean_high
    if gate.percent is None or low is None or high is None or _is_beyond(gate, claim):
        return claim
    mean = replace(claim, low=low, high=high, log_ratio=(low + high) / 2)
    return mean if _is_beyond(gate, mean) else claim


def judge_gates(gates: Iterable[Gate], claims: tuple[Claim, ...]) -> tuple[GateResult, ...]:
    """Return the findings of each gate in the claims."""
    return tuple(_judge(gate, claims) for gate in gates)


def gates_exit_code(
    results: Iterable[GateResult], claims: tuple[Claim, ...], *, is_complete: bool = True
) -> int:
    """Return 1 if a gate is hit, else 3 or 4 if one could not judge everything, else 0.

    An incomplete run was not judged as planned, whatever it has.
    """
    judged = tuple(results)
    if any(one.is_hit for one in judged):
        return 1
    unjudged = {
        (one.cell, one.arm)
        for result in judged
        for one in result.findings
        if one.finding == "unjudged"
    }
    codes = {one.exit_code for one in claims if (one.cell, one.arm) in unjudged}
    if judged and not is_complete:
        codes.add(UnusableError.exit_code)
    return min(codes, default=0)


def _judge(gate: Gate, claims: tuple[Claim, ...]) -> GateResult:
    if gate.is_of_speed:
        claims = tuple(_by_mean(gate, one) for one in claims)
    findings = tuple(
        GateFinding(
            cell=one.cell,
            arm=one.arm,
            finding=finding,
            outcome=one.outcome,
            log_ratio=one.log_ratio,
            low=one.low,
            high=one.high,
            reasons=_reasons(gate, one),
            forecast_s=_forecast_s(gate, one),
        )
        for one in claims
        if (finding := _finding(gate, one)) is not None
    )
    return GateResult(
        gate=gate.text,
        state=gate.state,
        percent=gate.percent,
        is_hit=any(one.finding == "hit" for one in findings),
        comparisons=len(claims),
        findings=findings,
    )


def _reasons(gate: Gate, claim: Claim) -> tuple[Reason, ...]:
    if gate.state == "failed" and claim.failure:
        return (Reason(kind="failed", brief=claim.failure),)
    return claim.reasons


def _finding(gate: Gate, claim: Claim) -> Finding | None:
    """Return the finding for a comparison; None if it clearly passes."""
    is_unmeasured = claim.outcome in _UNMEASURED
    if gate.state == "failed":
        return "hit" if is_unmeasured or claim.failure else None
    if is_unmeasured or (gate.is_of_speed and None in (claim.low, claim.high)):
        return "unjudged"
    if gate.state == "unproven":
        return None if _is_proven(gate, claim) else "hit"
    if gate.is_of_speed:
        return "hit" if _is_beyond(gate, claim) else "open" if _is_open(gate, claim) else None
    if gate.state == "confounded" and not (claim.is_confounded or claim.is_described):
        return "unjudged"
    holds = claim.is_confounded if gate.state == "confounded" else claim.outcome == gate.state
    return "hit" if holds else None


def _is_beyond(gate: Gate, claim: Claim) -> bool:
    """Say whether the whole interval is beyond the bound, and the claim was not withdrawn."""
    if gate.percent is None or claim.low is None or claim.high is None:
        return claim.outcome == gate.state
    is_kept = claim.outcome == gate.state or (claim.outcome == "equivalent" and claim.is_firm)
    if gate.state == "slower":
        return is_kept and claim.low > gate.bound
    return is_kept and claim.high < gate.bound


def _is_proven(gate: Gate, claim: Claim) -> bool:
    """Say whether the whole interval is below the bound, and nothing contradicts it."""
    is_withdrawn = any(reason.kind in _WITHDRAWN for reason in claim.reasons)
    return claim.high is not None and claim.high < gate.bound and not is_withdrawn


def _forecast_s(gate: Gate, claim: Claim) -> float | None:
    """Forecast the additional seconds that would decide on which side of the bound a ratio is.

    Widths fall with the square root of time. With two runs only the later one can continue, and the
    earlier one's half-width remains (half-widths add in quadrature). None if the time is unknown,
    nothing is open, or more time would not decide, as after a failed control.
    """
    if gate.state not in ("slower", "faster", "unproven") or not claim.elapsed_s:
        return None
    if claim.low is None or claim.high is None or claim.log_ratio is None:
        return None
    if any(reason.kind == "control-failed" for reason in claim.reasons):
        return None
    half, reach = (claim.high - claim.low) / 2, abs(gate.bound - claim.log_ratio)
    open_half, wanted = half**2 - claim.kept_half**2, reach**2 - claim.kept_half**2
    if half <= reach or wanted * _MOST_TIMES**2 < open_half or wanted <= 0:
        return None
    return claim.elapsed_s * (open_half / wanted - 1)


def _is_open(gate: Gate, claim: Claim) -> bool:
    """Say whether the true value may still be beyond the bound."""
    if claim.outcome == "inconclusive":
        return True
    if gate.percent is None or claim.low is None or claim.high is None:
        return False
    return claim.high > gate.bound if gate.state == "slower" else claim.low < gate.bound
