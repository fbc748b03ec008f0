"""Read printed nvprof summaries and metrics, text or CSV, for GPUs up to Volta and old logs.

A line that starts with ==PID== announces the report of a process; a table starts at its header.
Text has a unit in each cell, CSV a row of units below the header. Each number carries its rounding
step. A log must be complete and consistent within rounding.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar, get_args

from envcompare.profile_files.rawfiles import (
    SQLITE,
    csv_row,
    first_bytes,
    first_repeated,
    lacking_at_end,
    read_lines,
    read_unit,
    refusal,
)
from envcompare.run_folder.profiles import ApiCall, Copy, CopyKind, Device, Kernel, Note, Profile
from envcompare.text import shortened

Section = Literal["GPU activities", "API calls", "other"]
_SECTIONS: Final[dict[str, Section]] = {name: name for name in get_args(Section)}
_NUMBER: Final = re.compile(r"(\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?)\s*(\S*)", re.ASCII)
# nvprof prints these for a rate over 0 time or cycles
_NO_RATE: Final = frozenset({"nan", "-nan", "inf", "-inf", "<OVERFLOW>"})
_LEVEL: Final = re.compile(r"(?:Idle|Low|Mid|High|Max) \((\d+)\)")
_RATE_SLACK: Final = 1e-3  # seen: 6.4094GB/s with a minimum and maximum of 6.4101GB/s
_COUNT: Final = re.compile(
    r"flop_count_\w+|\w+_(?:transactions|bytes|requests)|inst_(?!per_warp|replay)\w+"
    r"|issue_slots|cf_(?:issued|executed)|ldst_(?:issued|executed)"
)
_LINE: Final = re.compile(r'^"?==+(\d*)==+ (.*)$')
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
_APART: Final = "keep the program's output apart: `nvprof --log-file out.log …`"
_MIXED: Final = f"{_APART}, or use --csv"
_COPY: Final = re.compile(r"\[CUDA memcpy (\w+)(?:-to-(\w+))?\]")
_COPY_KINDS: Final[dict[str, CopyKind]] = {
    "HtoD": "HtoD", "DtoH": "DtoH", "DtoD": "DtoD", "HtoH": "HtoH", "PtoP": "PtoP",
}  # fmt: skip
_NUMBERED: Final = re.compile(r" \(\d+\)\Z")
_FATAL: Final = re.compile(
    r"^Error: |records have invalid|incomplete|were dropped|is not supported on devices"
    r"|No CUDA application was profiled|^No kernels were profiled"
)
_AGAIN: Final = (
    "write the log again: `nvprof --csv --log-file out.csv …`; from compute capability 7.5 on, "
    "use ncu and nsys instead"
)
_WHOLE_NS: Final = 1.0  # averages are truncated to whole ns: 5 calls in 46.237us average 9.2470us
_SHARE_STEP: Final = 1e-3  # percent; CSV prints more digits than nvprof computes
_CUT: Final = "the log was cut off, or rows are missing: write it again and import it whole"
_MESSAGE: Final = re.compile(r"==+\d*==+ (?:Generated result file|Warning): ")
_OF_NVPROF: Final = ("=", " ", '"', "Device", "Invocations", "Time(%)", "Type")
_WHOLE_NAME: Final = re.compile(r".*\)(?<!\(anonymous namespace\))(?<!operator\(\))")
_NAMELESS: Final = "a row without a name: the log was cut off"


def read(path: Path) -> Profile:
    """Return the profile in an nvprof log; the processes in one log are summed.

    Raises ProfileError with the line for a log that is truncated, duplicated or inconsistent.
    """
    if first_bytes(path, len(SQLITE)) == SQLITE:
        raise refusal(
            path.name,
            why="it is the database that nvprof exports, not its printed output",
            hint=f"nvprof --import-profile {path.name} --csv --log-file out.csv",
        )
    lines = read_lines(path)
    reader = _LogReader(lines, path.name)
    reader.read()
    is_ended = not lines or lines[-1].endswith("\n")
    for line, text in reader.messages:
        if _FATAL.search(text):
            raise refusal(path.name, line=line, why=f"nvprof reports: {text}", hint=_AGAIN)
    parts = [part for part in reader.parts if not part.is_empty]
    if not parts:
        raise refusal(path.name, why="it holds no summary and no metrics of nvprof", hint=_AGAIN)
    for part in parts:
        _check(part, file=path.name)
    if not is_ended and not reader.is_unread:
        _refuse_cut_end(lines[-1], reader, file=path.name, line=len(lines))
    activities = [row for part in parts for row in part.activities]
    metrics = [row for part in parts for row in part.metrics]
    if activities and metrics:
        why = "it has a summary and metrics from one run, so counting changed the times"
        hint = "write one log for the summary and one for the metrics"
        raise refusal(path.name, line=metrics[0].line, why=why, hint=hint)
    timed = ((row.name, row) for row in activities if row.is_kernel)
    others = [row for row in activities if not row.is_kernel]
    copies = ((_copy_kind(row.name), row) for row in others if row.section == "GPU activities")
    calls = ((row.name, row) for row in others if row.section == "API calls")
    counted = _counted_kernels(parts)
    return Profile(
        tool="nvprof",
        format=f"{'csv' if reader.is_csv else 'text'} {'summary' if activities else 'metrics'}",
        files=(path.name,),
        devices=tuple(
            Device(name=name)
            for name in dict.fromkeys(_NUMBERED.sub("", row.device) for row in metrics)
            if name
        ),
        kernels=(
            tuple(Kernel(name=name, **sums) for name, sums in _sums(timed))
            if activities
            else counted
        ),
        copies=tuple(Copy(kind=kind, **sums) for kind, sums in _sums(copies)),
        api_calls=tuple(ApiCall(name=name, **sums) for name, sums in _sums(calls)),
        has_time=bool(activities),
        notes=(
            *_notes(parts),
            *(_unread_note(title.lower(), rows) for title, rows in reader.unread.items()),
            *_left_out_notes(metrics, counted),
            *([Note(kind="unended-line")] if not is_ended else []),
        ),
    )


_Key = TypeVar("_Key", bound=str)


def _sums(rows: Iterable[tuple[_Key, _Activity]]) -> Iterator[tuple[_Key, dict[str, Any]]]:
    """Yield each key with the calls and times of its rows, summed over processes."""
    groups: dict[_Key, list[_Activity]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    for key, group in groups.items():
        yield (
            key,
            {
                "calls": sum(row.calls for row in group),
                "total_ns": sum(row.time.value for row in group),
                "min_ns": min(row.least.value for row in group),
                "max_ns": max(row.most.value for row in group),
            },
        )


def _copy_kind(name: str) -> CopyKind:
    match = _COPY.fullmatch(name)
    if match:
        kind = f"{match[1][0]}to{match[2][0]}" if match[2] else match[1]
        kind = kind.replace("A", "D")  # an array is in device memory
        return _COPY_KINDS.get(kind, "other")
    return "memset" if name.startswith("[CUDA memset") else "other"


def _counted_kernels(parts: Iterable[_Part]) -> tuple[Kernel, ...]:
    """Return the kernels of a metrics report: counts summed over invocations, rates averaged.

    A metric that some process or GPU did not collect for a kernel is dropped.
    """
    calls: dict[str, int] = {}
    groups: dict[str, dict[str, list[_Metric]]] = {}
    for part in parts:
        for (_, kernel), invocations in _invocations(part.metrics).items():
            calls[kernel] = calls.get(kernel, 0) + invocations
        for row in part.metrics:
            rows = groups.setdefault(row.kernel, {}).setdefault(row.name, [])
            rows += [row] if row.is_even else []
    return tuple(
        Kernel(
            name=kernel,
            calls=calls[kernel],
            total_ns=None,
            metrics={
                name: sum(row.invocations * row.average.value for row in rows)
                / (1 if rows[0].is_count else calls[kernel])
                for name, rows in metrics.items()
                if sum(row.invocations for row in rows) == calls[kernel]
            },
        )
        for kernel, metrics in groups.items()
    )


def _invocations(metrics: Iterable[_Metric]) -> dict[tuple[str, str], int]:
    """Return the invocations of each kernel on each GPU, from its counts or else its rates."""
    invocations: dict[tuple[str, str], list[tuple[bool, int]]] = {}
    for row in metrics:
        invocations.setdefault((row.device, row.kernel), []).append((row.is_count, row.invocations))
    usual = {}
    for key, rows in invocations.items():
        counts = [number for is_count, number in rows if is_count]
        usual[key] = Counter(counts or [number for _, number in rows]).most_common(1)[0][0]
    return usual


def _notes(parts: Sequence[_Part]) -> Iterator[Note]:
    names = {row.name for part in parts for row in part.activities}
    names |= {row.kernel for part in parts for row in part.metrics}
    if any(name.endswith("$") for name in names):
        yield Note(kind="cut-names")
    averages = [row.average for part in parts for row in part.metrics]
    # 2.1092e+10 has lost whole counts
    if any(not number.unit and number.step > 1 for number in averages):
        yield Note(kind="rounded-counts")
    lacking = [part.activities for part in parts if part.lacks_calls]
    if lacking:
        gpu = ([row for row in rows if row.section == "GPU activities"] for rows in lacking)
        # a lost row with a smaller share would not be noticed
        yield Note(kind="no-api-calls", values={"percent": max(map(_share_slack, gpu))})
    if len(parts) > 1:
        yield Note(kind="processes", values={"processes": len(parts)})
    if any(part.has_events for part in parts):
        yield Note(kind="events-left-out")


def _unread_note(table: str, rows: Sequence[str]) -> Note:
    if not rows:
        return Note(kind="unread-table", values={"table": table})
    return Note(kind="unread-rows", values={"table": table, "names": ", ".join(rows)})


def _left_out_notes(metrics: Sequence[_Metric], kernels: Iterable[Kernel]) -> Iterator[Note]:
    """Yield notes on dropped metrics, in the order of the log."""
    uneven = [row for row in metrics if not row.is_even]
    for row in uneven:
        yield Note(kind="uneven-metric", values={"line": row.line, "metric": row.name})
    known = {(row.kernel, row.name) for row in uneven}
    kept = {kernel.name: kernel.metrics for kernel in kernels}
    lacking = (row for row in metrics if row.name not in kept[row.kernel])
    for name in dict.fromkeys(row.name for row in lacking if (row.kernel, row.name) not in known):
        yield Note(kind="metric-of-some", values={"metric": name})


def _check(part: _Part, *, file: str) -> None:
    """Refuse a report that is truncated, has duplicate rows, or has inconsistent columns."""
    for section in ("GPU activities", "API calls"):
        rows = [row for row in part.activities if row.section == section]
        _refuse_doubles(((row.line, (row.name,)) for row in rows), file)
        _check_shares(rows, file)
    for row in part.activities:
        _check_row(row, file)
    if part.lacks_calls and "API calls" in part.announced:
        why = "the header for API calls has no rows below it"
        raise refusal(file, line=part.activities[-1].line, why=why, hint=_CUT)
    _check_metrics(part.metrics, file)


def _check_metrics(metrics: Sequence[_Metric], file: str) -> None:
    """Refuse duplicate, impossible or contradictory counts; such a rate is only dropped later."""
    _refuse_doubles(((row.line, (row.device, row.kernel, row.name)) for row in metrics), file)
    for row in metrics:
        if row.is_count and not row.is_even:
            why = f"the average of {row.name} is outside its minimum and maximum"
            if not row.has_one_unit:
                why = f"{row.name} has different units in its columns"
            raise refusal(file, line=row.line, why=why)
    counts: dict[tuple[str, str], int] = {}
    names: dict[tuple[str, str], set[str]] = {}
    for row in metrics:
        key = (row.device, row.kernel)
        names.setdefault(key, set()).add(row.name)
        if row.is_count and counts.setdefault(key, row.invocations) != row.invocations:
            why = (
                f"{row.kernel} has {counts[key]} invocations in one row and {row.invocations} here"
            )
            raise refusal(file, line=row.line, why=why)
    if lacking := lacking_at_end(list(names.values())):
        why = f"the last kernel lacks {lacking}, which all others have"
        raise refusal(file, line=metrics[-1].line, why=why, hint=_CUT)


def _refuse_cut_end(last: str, reader: _LogReader, *, file: str, line: int) -> None:
    """Refuse an unterminated last line, unless it is a complete row.

    Editors and uploads drop the last line end. A row is complete if its numbers end in the same
    column as in other rows, and its name has balanced brackets. A kernel name must also end with
    its parameters, unless it is quoted.
    """
    part, widths = reader.last, reader.widths
    rows: tuple[_Activity | _Metric, ...] = (*part.activities, *part.metrics)
    if not rows or rows[-1].line != line:
        is_of_table = last.strip() and last.startswith(_OF_NVPROF) and not _MESSAGE.match(last)
        if not is_of_table and not part.is_empty:
            return  # output of the program, or an nvprof message after its tables
        why = "the last line has no line end and is not a table row: the log was cut off"
        raise refusal(file, line=line, why=why, hint=_CUT)
    row = rows[-1]
    if isinstance(row, _Activity):
        pairs = (("(", ")"), ("[", "]"), ("<", ">"))[: 2 if "operator" in row.name else 3]
        is_cut = any(row.name.count(left) != row.name.count(right) for left, right in pairs)
    else:
        # a number followed by a unit is complete, even if it is out of range
        is_cut = not row.has_one_unit or (not row.average.unit and not row.is_even)
        is_cut = is_cut or (len(widths) == 1 and len(last.rstrip()) < min(widths))
    if is_cut:
        why = f"the last row has no line end and is incomplete: {last.strip()!r}"
        raise refusal(file, line=line, why=why, hint=_CUT)
    is_named = isinstance(row, _Activity) and row.is_kernel and not last.rstrip().endswith('"')
    if is_named and not _WHOLE_NAME.fullmatch(row.name):
        why = f"the last row has no line end, and its name may be cut: {row.name!r}"
        hint = "if the log is complete, add the line end; else write it again with --csv"
        raise refusal(file, line=line, why=why, hint=hint)


def _refuse_doubles(keys: Iterable[tuple[int, tuple[str, ...]]], file: str) -> None:
    if twice := first_repeated(keys):
        line, key = twice
        hint = ""
        if any(part.endswith("$") for part in key):
            hint = "names are cut to the width of the terminal: write the log again with --csv"
        raise refusal(file, line=line, why=f"{' / '.join(key)} is listed twice", hint=hint)


def _check_shares(rows: Sequence[_Activity], file: str) -> None:
    total = sum(row.time.value for row in rows)
    if not total:
        return
    share = sum(row.percent.value for row in rows)
    if abs(share - 100) > _share_slack(rows):
        why = f"the shares of the {rows[0].section} add up to {share:.2f} %, not to 100 %"
        raise refusal(file, line=rows[-1].line, why=why, hint=_CUT)
    unsure = sum(row.time.step for row in rows)
    for row in rows:
        expected = 100 * row.time.value / total
        allowed = max(row.percent.step, _SHARE_STEP) + 100 * (row.time.step + unsure) / total
        if abs(row.percent.value - expected) > allowed:
            why = f"{row.name} has {row.percent.value:g} % of the time, but took {expected:g} %"
            raise refusal(file, line=row.line, why=why)


def _check_row(row: _Activity, file: str) -> None:
    product = row.calls * row.average.value
    allowed = row.calls * max(row.average.step, _WHOLE_NS) + row.time.step
    if abs(product - row.time.value) > allowed:
        why = f"{row.calls} calls of {row.average.value:g} ns are not {row.time.value:g} ns"
        raise refusal(file, line=row.line, why=f"{row.name}: {why}")
    low = row.least.value - row.least.step - row.average.step
    high = row.most.value + row.most.step + row.average.step
    if not low <= row.average.value <= high:
        why = f"the average of {row.name} is outside its minimum and maximum"
        raise refusal(file, line=row.line, why=why)


@dataclass(frozen=True, slots=True)
class _Number:
    """A value in its base unit, with the value of 1 in its last printed digit."""

    value: float
    step: float
    unit: str


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
class _Activity:
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
        # other GPU activities are in brackets
        return self.section == "GPU activities" and not self.name.startswith("[CUDA")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
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
        # other metrics are rates or levels
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
class _Part:
    """The report of one process: its summary and its metrics.

    `sections` are those with rows or an explicit lack of rows, `announced` those with a title.
    """

    line: int
    process: str
    activities: list[_Activity] = field(default_factory=list)
    metrics: list[_Metric] = field(default_factory=list)
    sections: set[Section] = field(default_factory=set)
    announced: set[Section] = field(default_factory=set)
    has_events: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.activities and not self.metrics

    @property
    def lacks_calls(self) -> bool:
        """Return whether there are activities but no API calls, as with --print-gpu-summary."""
        return bool(self.activities) and "API calls" not in self.sections


def _share_slack(rows: Iterable[_Activity]) -> float:
    """Return by how many percentage points rounded shares may miss 100 %."""
    return sum(row.percent.step for row in rows) + _SHARE_STEP


class _LogReader:
    """Parse the lines of one file, once; `parts` has one report for each process.

    `last` is the report of the last process. `unread` maps titles of unsupported tables to their
    rows, and `is_unread` means that the file ends in such a table. `widths` are the widths of the
    rows above the last row of a text table.
    """

    def __init__(self, lines: tuple[str, ...], file: str) -> None:
        self.parts: list[_Part] = []
        self.messages: list[tuple[int, str]] = []
        self.unread: dict[str, list[str]] = {}
        self.widths: set[int] = set()
        self.is_csv = False
        self.last = _Part(line=1, process="")
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
            if not self.is_unread:
                self._table(number, text, rows)
            elif row := next(filter(None, (pattern.match(text) for pattern in _UNREAD)), None):
                self.unread[self._title].append(f"{row[1]} × {row[2]}")
        if not self.last.is_empty or self.last.sections:
            self.parts.append(self.last)

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
        elif (
            _CELL.match(text)
            if self.is_csv
            else _ACTIVITY.match(text.lstrip()) or (self.last.metrics and _metric_cells(text))
        ):
            why = f"a row after the end of its table: {_quoted(text)}"
            self._refuse(number, why, _APART if self.is_csv else _MIXED)

    def _is_message(self, number: int, text: str) -> bool:
        """Process an nvprof message; return whether the line is one."""
        if message := _LINE.match(text):
            self._message(number, message[1], message[2])
        elif not self.is_unread and text.startswith(_NO_CALLS):
            self.last.sections.add("API calls")
        else:
            return False
        return True

    def _message(self, number: int, process: str, text: str) -> None:
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
            named = (part for part in (*self.parts, self.last) if process and not part.is_empty)
            twice = next((part for part in named if part.process == process), None)
            if twice is not None:
                why = f"process {process} reports a second time, after line {twice.line}"
                self._refuse(number, why, "import each original log once")
            if not self.last.is_empty:
                self.parts.append(self.last)
            self.last = _Part(line=number, process=process)
            self._section = "GPU activities"
        if title.startswith(_NO_CALLS):
            self.last.sections.add("API calls")

    def _ends(self, number: int, text: str) -> bool:
        # rows of a text table are indented, or start with a share
        if _TEXT_SUMMARY.match(text) or _TEXT_METRICS.match(text) or _TEXT_EVENTS.match(text):
            self._refuse(number, "a header within a table: logs were joined, or a line is repeated")
        self._is_message(number, text)
        return not text.strip() or _OUTPUT.match(text) is not None

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
        is_summary, is_events = "Time(%)" in columns, "Event Name" in columns
        self.last.has_events = self.last.has_events or is_events
        for name in _SUMMARY if is_summary else _METRICS:
            if name not in columns and not is_events:
                self._refuse(number, f"the header has no column {name}")
        units: dict[str, str] = {}
        for line, text in rows:
            if not text.strip() or _LINE.match(text):
                self._ends(line, text)
                return
            cells = csv_row(line, text, file=self._file).cells
            if len(cells) != len(columns):
                why = f"{len(cells)} cells where the header has {len(columns)}: the row is cut"
                self._refuse(line, why)
            fields = dict(zip(columns, cells, strict=True))
            if is_summary and not units:
                units = fields
                if units["Time(%)"] != "%" or not units["Time"]:
                    self._refuse(line, "the row of units below the header is missing")
            elif is_summary:
                self._section = _SECTIONS.get(fields.get("Type", self._section), "other")
                numbers = tuple(fields[name] + units[name] for name in _SUMMARY[1:])
                self._add_activity(line, fields["Name"], numbers)
            elif not is_events:
                parts = tuple(fields[name] for name in _METRICS[2:])
                self._add_metric(line, (fields["Device"], fields["Kernel"]), parts)

    def _add_activity(self, line: int, name: str, cells: tuple[str, ...]) -> None:
        if not name.strip():
            self._refuse(line, _NAMELESS)
        percent = self._number(line, cells[0], "%")
        time, average, least, most = (
            self._number(line, cells[place], "ns") for place in (1, 3, 4, 5)
        )
        self.last.sections.add(self._section)
        self.last.activities.append(
            _Activity(
                line=line, section=self._section, percent=percent, time=time,
                calls=self._count(line, cells[2]), average=average, least=least, most=most,
                name=name.strip(),
            )
        )  # fmt: skip

    def _add_metric(self, line: int, of: tuple[str, str], cells: tuple[str, ...]) -> None:
        if not of[1].strip() or not cells[1].strip():
            self._refuse(line, _NAMELESS)
        least, most, average = (self._cell(line, cells[1], text) for text in cells[2:])
        self.last.metrics.append(
            _Metric(
                line=line, device=of[0], kernel=of[1], invocations=self._count(line, cells[0]),
                name=cells[1], least=least, most=most, average=average,
            )
        )  # fmt: skip

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
