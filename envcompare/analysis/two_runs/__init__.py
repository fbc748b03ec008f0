"""Two runs compared: the types of change.json, and gates.

`envcompare compare --format json` writes `GatedRun` or, for two runs, `RunChange`; `envcompare
combine --format json` writes `CombinedRuns`. A change is a change of the log ratio, above 0 if
slower than before. Times from different runs are never compared directly, since the machine may
have changed.

`slower:2%` hits if the whole reported interval, of the typical step or of the mean, is beyond 2 %,
and never if the claim was withdrawn. `unproven:2%` hits unless the whole of both is below 2 %, so
too little measuring does not pass. Comparisons without a judgement are findings too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from envcompare.analysis.model import (
    LEFT_OUT,
    Comparison,
    Estimate,
    HostDifference,
    Leaning,
    Outcome,
    Reason,
    RunComparison,
    When,
)
from envcompare.errors import ConfigError, Phase, UnusableError, exit_code_of
from envcompare.fingerprint.sentences import describe
from envcompare.run_folder.records import SCHEMA, FactDifference, Failure, FingerprintValue, Scalar

GateState = Literal["slower", "faster", "unproven", "inconclusive", "confounded", "failed"]
Finding = Literal["hit", "open", "unjudged"]
CombinedOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
WhyOpen = Literal["", "mean", "outside-turns", "control-failed", "other-metric", "one-run"]


class GateFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a gate for one comparison: hit, open, or impossible to judge."""

    cell: str
    arm: str
    finding: Finding
    outcome: Outcome
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reasons: tuple[Reason, ...] = ()
    forecast_s: float | None = None  # more measuring (of the later run) that would decide
    sentence: str = ""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one gate; comparisons that clearly pass are only counted."""

    gate: str  # as written in its shortest form, such as slower:2%
    state: GateState
    percent: float | None = None  # None: any verdict of that state
    is_hit: bool
    comparisons: int
    findings: tuple[GateFinding, ...] = ()
    sentence: str = ""


class GatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run with the gates applied to its verdicts."""

    comparison: RunComparison
    gates: tuple[GateResult, ...] = ()
    exit_code: int = 0
    schema: Literal[2] = SCHEMA


class RunSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    run_id: str
    created: str
    title: str
    tool_version: str
    preset: str
    margin: float
    planned_comparisons: int
    screen: bool
    is_complete: bool
    host_differences: tuple[HostDifference, ...] = ()


class Mismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A property that must be equal in both runs, but differs or is unknown."""

    # of a fact of the reference, or code, data, device, command, threads, pin, stabilise, same_cpu
    key: str
    cells: tuple[str, ...] = ()  # in which cells; empty: the whole run
    before: FingerprintValue
    after: FingerprintValue
    text: str  # "Python 3.11.2 → 3.11.5"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that only one of the runs planned."""

    cell: str
    arm: str
    only_in: When


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of arm ÷ reference in one cell; exactly one outcome."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}
    arm: str
    outcome: Outcome
    leaning: Leaning = "none"
    metric: str = ""
    log_ratio: float | None = None  # after − before
    low: float | None = None
    high: float | None = None
    mean_low: float | None = None  # of the mean of all steps
    mean_high: float | None = None
    level: float | None = None  # the lower of both, before widening for interim looks
    before: Estimate | None = None
    after: Estimate | None = None
    reasons: tuple[Reason, ...] = ()  # for inconclusive, failed or missing changes
    control_failed: bool = False  # in either run; claims below its noise floor are withdrawn
    phase: Phase | None = None  # of the failure of the arm or its reference, in either run
    failure: Failure | None = None  # in the later run, which may have earlier times
    elapsed_s: float | None = None  # time that its cell took in the later run
    is_described: bool = True  # both runs recorded the arm's surroundings
    differences: tuple[FactDifference, ...] = ()  # of the arm itself; `reference` is before
    remarks: tuple[str, ...] = ()
    sentence: str = ""

    @property
    def is_confounded(self) -> bool:
        """Say whether the arm's software also changed between the runs."""
        return any(difference.fact_class == "confounder" for difference in self.differences)


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared."""

    before: RunSide
    after: RunSide
    reference_arm: str
    references: dict[str, str] = {}  # by cell, for cells with another reference
    margin: float  # of the later run
    changes: tuple[Change, ...]
    left_out: tuple[LeftOut, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()  # empty, or allowed by the user
    cautions: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    exit_code: int = 0
    schema: Literal[2] = SCHEMA


class CombinedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One arm ÷ reference in one run on one host; log ratios as that run reports them."""

    run_id: str
    cell: str
    host: str
    machine: str  # the same for every name of one machine
    outcome: Outcome
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    # Standard error of the log ratio within its run; None if unknown, and then not pooled.
    error: float | None = None
    control_end: float | None = None  # log ratio by which the reference differs from itself there


class CombinedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """The combined result for one arm and one workload.

    The interval is over hosts if several machines were measured, otherwise over runs.
    """

    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as in its cells
    arm: str
    reference: str
    metric: str = ""
    outcome: CombinedOutcome
    why_open: WhyOpen = ""  # reason for making no claim
    runs: int  # number of pooled runs
    hosts: int  # number of machines in those runs
    unit: Literal["host", "run"]
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None  # corrected for the number of these effects
    # Standard deviation of the log ratio between runs, without their own errors.
    between_runs: float | None = None
    parts: tuple[CombinedPart, ...]
    sentence: str = ""


class RunMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """A property that must be equal in two runs and is not; `before` is the first run."""

    first: str  # their IDs
    other: str
    mismatch: Mismatch


class CombinedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Several runs, pooled."""

    runs: tuple[RunSide, ...]
    machines: dict[str, str]  # processor by machine
    margin: float  # the largest of the runs
    effects: tuple[CombinedEffect, ...]
    left_out: tuple[str, ...] = ()  # comparisons that only one run has, with its ID
    mismatches: tuple[RunMismatch, ...] = ()  # empty, or allowed by the user
    schema: Literal[2] = SCHEMA


def mismatch_text(mismatch: Mismatch, cells: tuple[str, ...]) -> str:
    """Return the difference, with the cells unless it concerns the whole run."""
    where = (
        "every cell" if mismatch.cells == cells and len(cells) > 1 else ", ".join(mismatch.cells)
    )
    return f"{mismatch.text} ({where})" if mismatch.cells else mismatch.text


def whole_facts(differences: Iterable[FactDifference]) -> tuple[FactDifference, ...]:
    """Return the facts that are not part of another difference."""
    return tuple(difference for difference in differences if not difference.part_of)


def fact_text(difference: FactDifference) -> str:
    """Return a difference with both values, shortening digests."""
    text, values = describe(difference), (difference.reference, difference.value)
    if "→" in text or any(isinstance(value, tuple) for value in values):
        return text
    return f"{text} {shortened_value(values[0])} → {shortened_value(values[1])}"


def shortened_value(value: FingerprintValue) -> str:
    """Return the text of a value, of a digest only its start."""
    if value is None:
        return "not known"
    text = str(value)
    return f"{text[:_SHOWN_OF_DIGEST]}…" if len(text) > 2 * _SHOWN_OF_DIGEST else text


_SHOWN_OF_DIGEST: Final = 12
_SPEEDS: Final[tuple[GateState, ...]] = ("slower", "faster")
_BOUNDED: Final[tuple[GateState, ...]] = (*_SPEEDS, "unproven")
_STATES: Final[tuple[GateState, ...]] = ("inconclusive", "confounded", "failed")
_MOST: Final[dict[GateState, float]] = {"slower": 1000.0, "faster": 99.0, "unproven": 1000.0}  # %
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
    is_mean_firm: bool = True  # it may claim a difference
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
    return ConfigError(brief, details=details, hint="for example --fail-on unproven:2%,failed")


def claims_of_run(run: RunComparison) -> tuple[Claim, ...]:
    """Return the claims of a run, without the control.

    Left out is also what was skipped on purpose: sizes that do not fit, or places that an arm
    lacks.
    """
    described = {(arm.host, arm.arm) for arm in run.arms if arm.facts}
    elapsed = {cell.id: cell.elapsed_s for cell in run.cells}
    return tuple(
        _claim(
            comparison,
            comparison.deciding,
            mean=(comparison.mean.low, comparison.mean.high) if comparison.mean else (None, None),
            is_mean_firm=comparison.is_mean_firm,
            elapsed_s=elapsed.get(comparison.cell),
            is_described={
                (comparison.host, comparison.arm),
                (comparison.host, run.reference_in(comparison.cell)),
            }
            <= described,
            reasons=(comparison.reason,) if comparison.reason else (),
            phase=phase_of(run, comparison),
        )
        for comparison in run.compared
        if not comparison.is_left_out
    )


def _claim(  # noqa: PLR0913 — each is a part of the claim
    judged: Comparison | Change,
    ratio: Estimate | Change | None,
    *,
    mean: tuple[float | None, float | None],
    is_mean_firm: bool,
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
        mean_low=mean[0],
        mean_high=mean[1],
        is_mean_firm=is_mean_firm,
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
        for row in reversed(run.course.failures)
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
            change,
            change,
            mean=(change.mean_low, change.mean_high),
            is_mean_firm=False,
            elapsed_s=change.elapsed_s,
            kept_half=_half_width(change.before),
            is_described=change.is_described,
            reasons=change.reasons,
            phase=change.phase,
        )
        for change in run.changes
        if not (
            all(reason.kind in LEFT_OUT for reason in change.reasons)
            and any(reason.when == "before" for reason in change.reasons)
        )
    )
    lost = (
        Claim(
            cell=item.cell, arm=item.arm, outcome="not-run", reasons=(Reason(kind="only-before"),)
        )
        for item in run.left_out
        if item.only_in == "before"
    )
    return *changed, *lost


def _half_width(estimate: Estimate | None) -> float:
    if estimate is None or estimate.low is None or estimate.high is None:
        return 0.0
    return (estimate.high - estimate.low) / 2


def _by_mean(gate: Gate, claim: Claim) -> Claim:
    """Return the claim by the mean if only that hits a gate with a bound."""
    low, high = claim.mean_low, claim.mean_high
    if gate.percent is None or low is None or high is None or _finding(gate, claim) == "hit":
        return claim
    if gate.is_of_speed and not claim.is_mean_firm:
        return claim
    mean = replace(claim, low=low, high=high, log_ratio=(low + high) / 2)
    return mean if _finding(gate, mean) == "hit" else claim


def judge_gates(gates: Iterable[Gate], claims: tuple[Claim, ...]) -> tuple[GateResult, ...]:
    """Return the findings of each gate in the claims."""
    return tuple(_judge(gate, claims) for gate in gates)


def gates_exit_code(
    results: Iterable[GateResult], claims: tuple[Claim, ...], *, is_complete: bool = True
) -> int:
    """Return 1 if a gate is hit, else the lowest exit code of what could not be judged, else 0.

    An incomplete run counts as not judged (3), even if all that it measured passes.
    """
    judged = tuple(results)
    if any(result.is_hit for result in judged):
        return 1
    unjudged = {
        (finding.cell, finding.arm)
        for result in judged
        for finding in result.findings
        if finding.finding == "unjudged"
    }
    codes = {claim.exit_code for claim in claims if (claim.cell, claim.arm) in unjudged}
    if judged and not is_complete:
        codes.add(UnusableError.exit_code)
    return min(codes, default=0)


def _judge(gate: Gate, claims: tuple[Claim, ...]) -> GateResult:
    claims = tuple(_by_mean(gate, claim) for claim in claims)
    findings = tuple(
        GateFinding(
            cell=claim.cell,
            arm=claim.arm,
            finding=finding,
            outcome=claim.outcome,
            log_ratio=claim.log_ratio,
            low=claim.low,
            high=claim.high,
            reasons=(Reason(kind="failed", brief=claim.failure),)
            if gate.state == "failed" and claim.failure
            else claim.reasons,
            forecast_s=_forecast_s(gate, claim),
        )
        for claim in claims
        if (finding := _finding(gate, claim)) is not None
    )
    return GateResult(
        gate=gate.text,
        state=gate.state,
        percent=gate.percent,
        is_hit=any(one.finding == "hit" for one in findings),
        comparisons=len(claims),
        findings=findings,
    )


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
    if gate.state not in _BOUNDED or not claim.elapsed_s:
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
