"""The rows of nvprof's two reports, whether they came as text or as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from envcompare.profilers.nvprof.cells import Number

Section = Literal["GPU activities", "API calls", "other"]
_SHARE_ROUNDING: Final = 1e-3
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
    """What one process wrote: its summary, its metrics, and what it said besides.

    `sections` holds those whose rows, or whose lack of rows, were read; `announced` those a title
    promised.
    """

    line: int
    process: str
    activities: list[Activity] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    sections: set[Section] = field(default_factory=set)
    announced: set[Section] = field(default_factory=set)
    has_events: bool = False

    @property
    def is_empty(self) -> bool:
        """Say whether it holds neither a summary nor metrics."""
        return not self.activities and not self.metrics

    @property
    def lacks_calls(self) -> bool:
        """Say whether there are activities and no API calls, as --print-gpu-summary prints."""
        return bool(self.activities) and "API calls" not in self.sections

    @property
    def unseen_percent(self) -> float:
        """Return the share of time that rows may have which the sum of shares would not miss."""
        return share_slack(one for one in self.activities if one.section == "GPU activities")


def share_slack(rows: Iterable[Activity]) -> float:
    """Return by how much the shares of rows may miss 100 %, each being rounded."""
    return sum(one.percent.step for one in rows) + _SHARE_ROUNDING
