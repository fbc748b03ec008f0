"""The rows of nvprof's two reports, whether they came as text or as CSV."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from envcompare.profilers.nvprof.cells import Number

Section = Literal["GPU activities", "API calls", "other"]
SECTIONS: Final[dict[str, Section]] = {"GPU activities": "GPU activities", "API calls": "API calls"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One row of a summary: a kernel, a copy or a function of the API."""

    line: int
    section: Section
    percent: Number
    time: Number
    calls: int
    average: Number
    least: Number
    most: Number
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of one kernel, over its invocations."""

    line: int
    device: str
    kernel: str
    invocations: int
    name: str
    least: Number
    most: Number
    average: Number


@dataclass(slots=True, kw_only=True)
class Part:
    """What one process wrote: its summary, its metrics, and what it said besides."""

    line: int
    process: str
    activities: list[Activity] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    sections: set[Section] = field(default_factory=set)
    has_events: bool = False

    @property
    def is_empty(self) -> bool:
        """Say whether it holds neither a summary nor metrics."""
        return not self.activities and not self.metrics
