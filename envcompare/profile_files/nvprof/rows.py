"""The rows of nvprof's two reports, whether they came as text or as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from envcompare.profile_files.nvprof.cells import Number

Section = Literal["GPU activities", "API calls", "other"]
_SHARE_ROUNDING: Final = 1e-3
_RATE_SLACK: Final = 1e-3  # 6.4094GB/s was seen beside a minimum and maximum of 6.4101GB/s
_COUNT: Final = re.compile(
    r"flop_count_\w+|\w+_(?:transactions|bytes|requests)|inst_(?!per_warp|replay)\w+"
    r"|issue_slots|cf_(?:issued|executed)|ldst_(?:issued|executed)"
)
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

    @property
    def is_kernel(self) -> bool:
        """Say whether it is a kernel: what else the GPU does stands in brackets."""
        return self.section == "GPU activities" and not self.name.startswith("[CUDA")


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

    @property
    def is_count(self) -> bool:
        """Say whether the metric adds up over launches; any other is a rate or a level."""
        return is_count(self.name)

    @property
    def has_one_unit(self) -> bool:
        """Say whether all three numbers are of one unit; 0 may have none."""
        numbers = (self.least, self.most, self.average)
        return len({one.unit for one in numbers if one.value}) < 2

    @property
    def is_even(self) -> bool:
        """Say whether its average lies within its range; a rate's may lie a little beside it."""
        if not self.has_one_unit:
            return False
        slack = self.average.step + _RATE_SLACK * self.average.value
        low = self.least.value - self.least.step - slack
        return low <= self.average.value <= self.most.value + self.most.step + slack


def is_count(metric: str) -> bool:
    """Say whether a metric adds up over launches."""
    return _COUNT.fullmatch(metric) is not None


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
