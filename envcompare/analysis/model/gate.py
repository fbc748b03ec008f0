"""What gates found, as types; `envcompare compare --format json` writes them out."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.analysis.model.comparison import Outcome, RunComparison
from envcompare.run_folder.records import SCHEMA

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
    reason: str = ""
    sentence: str = ""


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One gate over all comparisons; what passes it beyond doubt is only counted."""

    gate: str  # as written in its shortest form, such as slower:2%
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
