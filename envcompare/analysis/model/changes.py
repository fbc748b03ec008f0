"""Types for the change between two runs, the results of gates, and several combined runs.

`envcompare compare --format json` writes `GatedRun` or, for two runs, `RunChange`; `envcompare
combine --format json` writes `CombinedRuns`. A change is a change of the log ratio, above 0 if
slower than before. Times from different runs are never compared directly, since the machine may
have changed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.analysis.model.comparison import (
    Estimate,
    Leaning,
    Outcome,
    Reason,
    RunComparison,
    When,
)
from envcompare.analysis.model.machines import HostDifference
from envcompare.errors import Phase
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
        return any(one.fact_class == "confounder" for one in self.differences)


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
