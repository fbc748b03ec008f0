"""What changed from one run to the next, and what gates say of one run or of two, as types.

`envcompare compare --format json` writes `GatedRun` or, of two runs, `RunChange`. A change is
that of the log ratio from one run to the next, above 0 is slower than before: times of two runs are
times of two moments, and are never set against each other.
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


class GateFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate says of one comparison: it hits, leaves it open, or cannot judge it."""

    cell: str
    arm: str
    finding: Finding
    outcome: Outcome
    log_ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reasons: tuple[Reason, ...] = ()
    forecast_s: float | None = None  # more seconds (of the run after) that would decide
    sentence: str = ""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One gate over all comparisons; what passes it beyond doubt is only counted."""

    gate: str  # as written in its shortest form, such as slower:2%
    state: GateState
    percent: float | None = None  # none: any verdict of that state
    is_hit: bool
    comparisons: int
    findings: tuple[GateFinding, ...] = ()
    sentence: str = ""


class GatedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run with the gates on its verdicts."""

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
    """Something that must be the same in both runs and is not, or is not known to be."""

    # of a fact of the reference, or code, data, device, command, threads, pin, stabilise, same_cpu
    key: str
    cells: tuple[str, ...] = ()  # in which; none: it is of the whole run
    before: FingerprintValue
    after: FingerprintValue
    text: str  # "Python 3.11.2 → 3.11.5"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison that only one of the runs planned."""

    cell: str
    arm: str
    only_in: When


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How one arm ÷ reference changed in one cell; exactly one outcome."""

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
    level: float | None = None  # the lower of both, before they were widened for looking
    before: Estimate | None = None
    after: Estimate | None = None
    reasons: tuple[Reason, ...] = ()  # why it is inconclusive, failed or was not compared
    control_failed: bool = False  # in either run; no claim below its noise floor is kept
    phase: Phase | None = None  # in which it failed in either run, or its reference
    failure: Failure | None = None  # in the run after, which may hold times from before it
    elapsed_s: float | None = None  # that its cell took in the run after
    is_described: bool = True  # both runs recorded what was around the arm
    differences: tuple[FactDifference, ...] = ()  # of the arm itself, `reference` is before
    remarks: tuple[str, ...] = ()
    sentence: str = ""

    @property
    def is_confounded(self) -> bool:
        """Say whether the arm's software changed as well between the runs."""
        return any(one.fact_class == "confounder" for one in self.differences)


class RunChange(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared."""

    before: RunSide
    after: RunSide
    reference_arm: str
    references: dict[str, str] = {}  # by cell, where it is another arm
    margin: float  # of the run after
    changes: tuple[Change, ...]
    left_out: tuple[LeftOut, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()  # none, or they were allowed
    cautions: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    exit_code: int = 0
    schema: Literal[2] = SCHEMA
