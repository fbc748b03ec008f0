"""What several runs say together, as types: `envcompare combine --format json` writes them."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.analysis.model.changes import Mismatch, RunSide
from envcompare.analysis.model.comparison import Outcome
from envcompare.run_folder.records import SCHEMA, Scalar

CombinedOutcome = Literal["slower", "faster", "equivalent", "inconclusive", "not-run"]
WhyOpen = Literal["", "mean", "outside-turns", "control-failed", "other-metric", "one-run"]


class CombinedPart(msgspec.Struct, frozen=True, kw_only=True):
    """One arm ÷ reference in one run on one host; log ratios, as that run printed them."""

    run_id: str
    cell: str
    host: str
    machine: str  # the same for every name of one machine
    outcome: Outcome
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    # Standard error of the log ratio within its run; None: nothing tells it, and it is not pooled.
    error: float | None = None
    control_end: float | None = None  # log ratio by which the reference differs from itself there


class CombinedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs say of one arm and one workload.

    The unit of the interval is the host where several machines were measured, else the run.
    """

    workload: str
    parameters: dict[str, Scalar] = {}
    within: str = ""  # as of its cells
    arm: str
    reference: str
    metric: str = ""
    outcome: CombinedOutcome
    why_open: WhyOpen = ""  # where no claim is made
    runs: int  # that were pooled
    hosts: int  # machines that these were measured on
    unit: Literal["host", "run"]
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    level: float | None = None  # widened for the number of these statements
    # Standard deviation of the log ratio between runs, their own errors taken off.
    between_runs: float | None = None
    parts: tuple[CombinedPart, ...]
    sentence: str = ""


class RunMismatch(msgspec.Struct, frozen=True, kw_only=True):
    """What must be the same in two runs and is not; the values before are those of the first."""

    first: str  # their IDs
    other: str
    mismatch: Mismatch


class CombinedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Several runs, pooled."""

    runs: tuple[RunSide, ...]
    machines: dict[str, str]  # of each machine its processor
    margin: float  # the largest of the runs
    effects: tuple[CombinedEffect, ...]
    left_out: tuple[str, ...] = ()  # comparisons that one run alone has, with its ID
    mismatches: tuple[RunMismatch, ...] = ()  # none, or they were allowed
    schema: Literal[2] = SCHEMA
