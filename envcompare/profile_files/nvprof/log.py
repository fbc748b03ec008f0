"""Split printed nvprof output, text or CSV, into the reports of each process.

A line that starts with ==PID== announces a report; a table starts at its header. Text has a unit
in each cell, CSV a row of units below the header. Each number carries its rounding step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from envcompare.profile_files.rawfiles import csv_row, read_unit, refusal
from envcompare.text import shortened

Section = Literal["GPU activities", "API calls", "other"]
_SECTIONS: Final[dict[str, Section]] = {
    "GPU activities": "GPU activities", "API calls": "API calls",
}  # fmt: skip
_NUMBER: Final = re.compile(r"(\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?)\s*(\S*)", re.ASCII)
# nvprof prints these for a rate over 0 time or cycles
_NO_RATE: Final = frozenset({"nan", "-nan", "inf", "-inf", "<OVERFLOW>"})
_LEVEL: Final = re.compile(r"(?:Idle|Low|Mid|High|Max) \((\d+)\)")
_SHARE_ROUNDING: Final = 1e-3
_RATE_SLACK: Final = 1e-3  # seen: 6.4094GB/s with a minimum and maximum of 6.4101GB/s
_COUNT: Final = re.compile(
    r"flop_count_\w+|\w+_(?:transactions|bytes|requests)|inst_(?!per_warp|replay)\w+"
    r"|issue_slots|cf_(?:issued|executed)|ldst_(?:issued|executed)"
)
_MESSAGE: Final = re.compile(r'^"?==+(\d*)==+ (.*)$')
_TEXT_SUMMARY: Final = re.compile(
    r"^\s*(?:Type\s+)?Time\(%\)\s+Time\s+Calls\s+Avg\s+Min\s+Max\s+Name\s*$"
)
_TEXT_METRICS: Final = re.compile(
    r"^Invocations\s+Metric Name\s+Metric Description\s+Min\s+Max\s+Avg\s*$"
)
_TEXT_EVENTS: Final = re.compile(r"^Invocations\s+Event Name\s+Min\s+Max\s+Avg(?:\s+Total)?\s*$")
_CSV: Final = re.compile(r'^"?(?:Type"?,"?)?Time\(%\)"?,|^"?Device"?,"?Kernel"?,"?Invocations"?,')
_SUMMARY: Final = ("Name", "Time(%)", "Time", "Calls", "Avg", "Min", "Max")
_METRICS: Final = ("Device", "Kernel", "Invocations", "Metric Name", "Min", "Max", "Avg")
_TRACE: Final = re.compile(r'^\s*"?Start"?(?:\s+|,)"?Duration"?')
_ACTIVITY: Final = re.compile(
    r"^(?:([A-Z][^:%]*):)?\s*(\d+\.\d+%)\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s\s(\S.*)$"
)
# Hostile text must not take quadratic time, so lines are stripped of trailing spaces, and cells are
# split at gaps.
_METRIC: Final = re.compile(r"^\s+(\d+)\s+([a-z]\w*)\s{2,}(\S.*)$")
_GAP: Final = re.compile(r"\s{2,}")
_DEVICE: Final = re.compile(r'^Device "(.*)"\s*$')
_KERNEL: Final = re.compile(r"^\s+Kernel: (.+)$")
_UNREAD: Final = (
    re.compile(r"^\s+(\d+)\s{2,}\S.*\s{2,}(\S.*)$"),
    re.compile(r'^"[^"]*",(\d+),.*"([^"]+)"$'),
)
_OUTPUT: Final = re.compile(r"[^\s\d]")
_CELL: Final = re.compile(r'^"[^"]*",')
_NO_CALLS: Final = "No API activities were profiled"
_MIXED: Final = "keep the program's output apart: `nvprof --log-file out.log …`, or use --csv"


@dataclass(frozen=True, slots=True)
class _Number:
    """A value in its base unit, with the value of 1 in its last printed digit."""

    value: float
    step: float
    unit: str

    @property
    def is_rounded(self) -> bool:
        """Return whether rounding loses whole counts, as in 2.1092e+10."""
        return not self.unit and self.step > 1


def _read_number(text: str) -> _Number | None:
    """Return the number in a cell, which may end with a unit.

    None for other text or an unknown unit. A level such as `Mid (5)` gives its number.
    """
    level = _LEVEL.fullmatch(text.strip())
    if level:
        return _Number(float(level[1]), 0.0, "")
    match = _NUMBER.fullmatch(text.strip())
    measured = read_unit(match[4]) if match else None
    if match is None or measured is None:
        return None
    step = 10.0 ** (int(match[3] or 0) - len(match[2] or ""))
    return _Number(float(match[1]) * measured.factor, step * measured.factor, measured.base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One row of a summary: a kernel, a copy or an API function."""

    line: int
    section: Section
    percent: _Number
    time: _Number
    calls: int
    average: _Number
    least: _Number
    most: _Number
    name: str

    @property
    def is_kernel(self) -> bool:
        """Return whether it is a kernel; other GPU activities are in brackets."""
        return self.section == "GPU activities" and not self.name.startswith("[CUDA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of one kernel, over its invocations."""

    line: int
    device: str
    kernel: str
    invocations: int
    name: str
    least: _Number
    most: _Number
    average: _Number

    @property
    def is_count(self) -> bool:
        """Return whether the metric is a sum over launches, not a rate or a level."""
        return _COUNT.fullmatch(self.name) is not None

    @property
    def has_one_unit(self) -> bool:
        """Return whether all three numbers have one unit; 0 may have none."""
        numbers = (self.least, self.most, self.average)
        return len({number.unit for number in numbers if number.value}) < 2

    @property
    def is_even(self) -> bool:
        """Return whether the average is within its range, with a small slack for rates."""
        if not self.has_one_unit:
            return False
        slack = self.average.step + _RATE_SLACK * self.average.value
        low = self.least.value - self.least.step - slack
        return low <= self.average.value <= self.most.value + self.most.step + slack


@dataclass(slots=True, kw_only=True)
class Part:
    """The report of one process: its summary and its metrics.

    `sections` are those with rows or an explicit lack of rows, `announced` those with a title.
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
        """Return whether there is neither a summary nor metrics."""
        return not self.activities and not self.metrics

    @property
    def lacks_calls(self) -> bool:
        """Return whether there are activities but no API calls, as with --print-gpu-summary."""
        return bool(self.activities) and "API calls" not in self.sections

    @property
    def unseen_percent(self) -> float:
        """Return the share of time in % that missing rows could have without being noticed."""
        return share_slack(row for row in self.activities if row.section == "GPU activities")


def share_slack(rows: Iterable[Activity]) -> float:
    """Return by how many percentage points rounded shares may miss 100 %."""
    return sum(row.percent.step for row in rows) + _SHARE_ROUNDING


class LogReader:
    """Parse the lines of one file, once; `parts` has one report for each process.

    `last` is the report of the last process. `unread` maps titles of unsupported tables to their
    rows, and `is_unread` means that the file ends in such a table. `widths` are the widths of the
    rows above the last row of a text table.
    """

    def __init__(self, lines: tuple[str, ...], file: str) -> None:
        self.parts: list[Part] = []
        self.messages: list[tuple[int, str]] = []
        self.unread: dict[str, list[str]] = {}
        self.widths: set[int] = set()
        self.is_csv = False
        self.last = Part(line=1, process="")
        self.is_unread = False
        self._file = file
        self._lines = [text.rstrip() for text in lines]
        self._section: Section = "GPU activities"
        self._title = ""

    def read(self) -> None:
        """Fill `parts` and `messages`; raises ProfileError at the first unreadable line."""
        rows = iter(enumerate(self._lines, 1))
        for number, text in rows:
            if self._is_message(number, text):
                continue
            if self.is_unread:
                self._unread(text)
            else:
                self._table(number, text, rows)
        if not self.last.is_empty or self.last.sections:
            self.parts.append(self.last)

    def _unread(self, text: str) -> None:
        """Record count and name of a row in an unsupported table."""
        row = next(filter(None, (pattern.match(text) for pattern in _UNREAD)), None)
        if row:
            self.unread[self._title].append(f"{row[1]} × {row[2]}")

    def _table(self, number: int, text: str, rows: Iterator[tuple[int, str]]) -> None:
        """Read the table that starts at a line; any other line is program output."""
        if _CSV.match(text):
            self.is_csv = True
            self._csv(number, text, rows)
        elif _TEXT_SUMMARY.match(text):
            self._text_summary(rows)
        elif _TEXT_METRICS.match(text) or _TEXT_EVENTS.match(text):
            self.widths = {len(text.rstrip())}
            self._text_metrics(rows, is_events=not _TEXT_METRICS.match(text))
        elif _TRACE.match(text):
            why = "this is a trace of single calls; only summaries and metrics are supported"
            self._refuse(number, why, "print a summary: `nvprof --import-profile FILE --csv`")
        elif self._looks_like_row(text):
            why = f"a row after the end of its table: {_quoted(text)}"
            self._refuse(number, why, _MIXED)

    def _looks_like_row(self, text: str) -> bool:
        """Return whether a line outside any table looks like a table row."""
        if self.is_csv:
            return _CELL.match(text) is not None
        is_metric = self.last.metrics and _metric_cells(text)
        return bool(is_metric or _ACTIVITY.match(text.lstrip()))

    def _is_message(self, number: int, text: str) -> bool:
        """Return whether a line is an nvprof message, and process it."""
        messages = _MESSAGE.match(text)
        if messages:
            self._message(number, messages[1], messages[2])
        elif not self.is_unread and text.startswith(_NO_CALLS):
            self.last.sections.add("API calls")
        else:
            return False
        return True

    def _message(self, number: int, process: str, text: str) -> None:
        """Start the report that a message announces."""
        self.messages.append((number, text))
        title = text.strip().rstrip('"')
        if title == "API calls:":
            self._section, self.is_unread = "API calls", False
            self.last.announced.add("API calls")
        if title.endswith("result:"):
            self.is_unread = title not in {"Profiling result:", "Metric result:", "Event result:"}
            self._title = title.removesuffix(" result:").removesuffix(" profiling")
        if self.is_unread:
            self.unread.setdefault(self._title, [])
        if title == "Profiling result:":
            self._section = "GPU activities"
            self._begin(number, process)
        if title.startswith(_NO_CALLS):
            self.last.sections.add("API calls")

    def _ends(self, number: int, text: str) -> bool:
        """Return whether a line ends a text table: rows are indented, or start with a share."""
        if _TEXT_SUMMARY.match(text) or _TEXT_METRICS.match(text) or _TEXT_EVENTS.match(text):
            self._refuse(number, "a header within a table: logs were joined, or a line is repeated")
        self._is_message(number, text)
        return not text.strip() or _OUTPUT.match(text) is not None

    def _begin(self, number: int, process: str) -> None:
        named = (part for part in (*self.parts, self.last) if process and not part.is_empty)
        twice = next((part for part in named if part.process == process), None)
        if twice is not None:
            why = f"process {process} reports a second time, after line {twice.line}"
            self._refuse(number, why, "import each original log once")
        if not self.last.is_empty:
            self.parts.append(self.last)
        self.last = Part(line=number, process=process)

    def _text_summary(self, rows: Iterator[tuple[int, str]]) -> None:
        for number, text in rows:
            if self._ends(number, text):
                return
            cells = _ACTIVITY.match(text.lstrip())
            if cells is None:
                why = f"a truncated row, or program output inside the table: {_quoted(text)}"
                self._refuse(number, why, _MIXED)
            if cells[1]:
                self._section = _SECTIONS.get(cells[1], "other")
            self._add_activity(number, cells[8], cells.group(2, 3, 4, 5, 6, 7))

    def _text_metrics(self, rows: Iterator[tuple[int, str]], *, is_events: bool) -> None:
        device = kernel = ""
        self.last.has_events = self.last.has_events or is_events
        for number, text in rows:
            named, of_kernel = _DEVICE.match(text), _KERNEL.match(text)
            if not named and self._ends(number, text):
                return
            if named or of_kernel:
                device = named[1] if named else device
                kernel = of_kernel[1] if of_kernel else ""
                if number == len(self._lines):
                    self._refuse(number, f"no row follows {_quoted(text)}: the log was cut off")
                continue
            if is_events:
                continue
            if number < len(self._lines):
                self.widths.add(len(text.rstrip()))
            cells = _metric_cells(text)
            if not cells or not kernel:
                why = f"a truncated row, or a row without a kernel: {_quoted(text)}"
                self._refuse(number, why, _MIXED)
            self._add_metric(number, (device, kernel), cells)

    def _csv(self, number: int, header: str, rows: Iterator[tuple[int, str]]) -> None:
        columns = csv_row(number, header, file=self._file).cells
        is_summary = "Time(%)" in columns
        for name in _SUMMARY if is_summary else _METRICS:
            if name not in columns:
                self._refuse(number, f"the header has no column {name}")
        units: dict[str, str] = {}
        for line, text in rows:
            if not text.strip() or _MESSAGE.match(text):
                self._ends(line, text)
                return
            cells = csv_row(line, text, file=self._file).cells
            if len(cells) != len(columns):
                why = f"{len(cells)} cells where the header has {len(columns)}: the row is cut"
                self._refuse(line, why)
            fields = dict(zip(columns, cells, strict=True))
            if is_summary and not units:
                units = self._units(line, fields)
            elif is_summary:
                self._section = _SECTIONS.get(fields.get("Type", self._section), "other")
                numbers = tuple(fields[name] + units[name] for name in _SUMMARY[1:])
                self._add_activity(line, fields["Name"], numbers)
            else:
                parts = tuple(fields[name] for name in _METRICS[2:])
                self._add_metric(line, (fields["Device"], fields["Kernel"]), parts)

    def _units(self, line: int, fields: dict[str, str]) -> dict[str, str]:
        if fields["Time(%)"] != "%" or not fields["Time"]:
            self._refuse(line, "the row of units below the header is missing")
        return fields

    def _add_activity(self, line: int, name: str, cells: tuple[str, ...]) -> None:
        self._require_names(line, name)
        percent = self._number(line, cells[0], "%")
        time, average, least, most = (
            self._number(line, cells[place], "ns") for place in (1, 3, 4, 5)
        )
        self.last.sections.add(self._section)
        self.last.activities.append(
            Activity(
                line=line, section=self._section, percent=percent, time=time,
                calls=self._count(line, cells[2]), average=average, least=least, most=most,
                name=name.strip(),
            )
        )  # fmt: skip

    def _add_metric(self, line: int, of: tuple[str, str], cells: tuple[str, ...]) -> None:
        self._require_names(line, of[1], cells[1])
        least, most, average = (self._cell(line, cells[1], text) for text in cells[2:])
        self.last.metrics.append(
            Metric(
                line=line, device=of[0], kernel=of[1], invocations=self._count(line, cells[0]),
                name=cells[1], least=least, most=most, average=average,
            )
        )  # fmt: skip

    def _require_names(self, line: int, *names: str) -> None:
        if not all(name.strip() for name in names):
            self._refuse(line, "a row without a name: the log was cut off")

    def _cell(self, line: int, metric: str, text: str) -> _Number:
        """Return the number in a cell of a metric; NaN for an undefined rate."""
        bare = text.strip().rstrip("%").removesuffix("B/s")
        if bare in _NO_RATE and not _COUNT.fullmatch(metric):
            return _Number(math.nan, 0.0, "")
        return self._number(line, text)

    def _number(self, line: int, text: str, base: str | None = None) -> _Number:
        number = _read_number(text)
        if number is None or (base is not None and number.unit != base):
            self._refuse(line, f"{text!r} is not a number with a known unit")
        return number

    def _count(self, line: int, text: str) -> int:
        if not text.isascii() or not text.isdigit() or not int(text):
            self._refuse(line, f"{text!r} is not a number of calls")
        return int(text)

    def _refuse(self, line: int, why: str, hint: str = "") -> NoReturn:
        raise refusal(self._file, line=line, why=why, hint=hint)


def _metric_cells(text: str) -> tuple[str, ...]:
    """Return count, name, minimum, maximum and mean of a text table row; empty for other lines.

    The description between the name and the numbers is dropped.
    """
    row = _METRIC.match(text)
    cells = _GAP.split(row[3], maxsplit=3) if row else ()
    return (row[1], row[2], *cells[1:]) if row and len(cells) == 4 else ()


def _quoted(text: str) -> str:
    return repr(shortened(text.strip(), most=120))
