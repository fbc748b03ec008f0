"""Types for combined runs, written by `envcompare combine --format json`."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.analysis.model.changes import Mismatch, RunSide
from envcompare.analysis.model.comparison import Outcome
from envcompare.run_folder.records import SCHEMA, Scalar

CombinedOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
WhyOpen = Literal["", "mean", "outside-turns", "control-failed", "other-metric", "one-run"]


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
