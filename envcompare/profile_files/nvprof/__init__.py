"""Read nvprof summaries and metrics, as text or CSV, for GPUs up to Volta and old logs.

A log must be complete and consistent within rounding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envcompare.profile_files.nvprof.log import Activity, LogReader, Metric, Part, share_slack
from envcompare.profile_files.rawfiles import (
    SQLITE,
    first_bytes,
    first_repeated,
    lacking_at_end,
    read_lines,
    refusal,
)
from envcompare.run_folder.profiles import ApiCall, Copy, Device, Kernel, Note, Profile

_COPY: Final = re.compile(r"\[CUDA memcpy (\w+)(?:-to-(\w+))?\]")
_COPY_KINDS: Final = frozenset({"HtoD", "DtoH", "DtoD", "HtoH", "PtoP"})
_RANGE: Final = re.compile(r"(.*) \(\d+\)")
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
_UNSURE: Final = "if the log is complete, add the line end; else write it again with --csv"
_NAMES: Final = "names are cut to the width of the terminal: write the log again with --csv"


def read(path: Path) -> Profile:
    """Return the profile in an nvprof log; the processes in one log are summed.

    Raises ProfileError with the line for a log that is truncated, duplicated or inconsistent.
    """
    _refuse_database(path)
    lines = read_lines(path)
    reader = LogReader(lines, path.name)
    reader.read()
    is_ended = not lines or lines[-1].endswith("\n")
    _refuse_failure(reader.messages, path.name)
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
    kernels = _counted_kernels(parts)
    return Profile(
        tool="nvprof",
        format=f"{'csv' if reader.is_csv else 'text'} {'summary' if activities else 'metrics'}",
        files=(path.name,),
        devices=_devices(metrics),
        kernels=_timed_kernels(activities) if activities else kernels,
        copies=_copies(activities),
        api_calls=_calls(activities),
        has_time=bool(activities),
        notes=(
            *_notes(parts),
            *_unread_notes(reader.unread),
            *_left_out_notes(metrics, kernels),
            *([Note(kind="unended-line")] if not is_ended else []),
        ),
    )


def _refuse_database(path: Path) -> None:
    if first_bytes(path, len(SQLITE)) == SQLITE:
        raise refusal(
            path.name,
            why="it is the database that nvprof exports, not its printed output",
            hint=f"nvprof --import-profile {path.name} --csv --log-file out.csv",
        )


def _refuse_failure(messages: Sequence[tuple[int, str]], file: str) -> None:
    """Refuse a log in which nvprof reports a failure or lost records."""
    for line, text in messages:
        if _FATAL.search(text):
            raise refusal(file, line=line, why=f"nvprof reports: {text}", hint=_AGAIN)


def _timed_kernels(activities: Iterable[Activity]) -> tuple[Kernel, ...]:
    """Return the kernels of a summary, merged by name over processes."""
    kernels = (row for row in activities if row.is_kernel)
    return tuple(Kernel(name=name, **sums) for name, sums in _sums(kernels, lambda row: row.name))


def _copies(activities: Iterable[Activity]) -> tuple[Copy, ...]:
    copies = (
        row
        for row in activities
        if row.section == "GPU activities" and row.name.startswith("[CUDA")
    )
    return tuple(
        Copy(kind=kind, **sums)  # type: ignore[arg-type]  # one of the kinds by construction
        for kind, sums in _sums(copies, lambda row: _copy_kind(row.name))
    )


def _calls(activities: Iterable[Activity]) -> tuple[ApiCall, ...]:
    calls = (row for row in activities if row.section == "API calls")
    return tuple(ApiCall(name=name, **sums) for name, sums in _sums(calls, lambda row: row.name))


def _sums(
    rows: Iterable[Activity], key: Callable[[Activity], str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key with the calls and times of its rows, summed over processes."""
    groups: dict[str, list[Activity]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    for name, group in groups.items():
        yield (
            name,
            {
                "calls": sum(row.calls for row in group),
                "total_ns": sum(row.time.value for row in group),
                "min_ns": min(row.least.value for row in group),
                "max_ns": max(row.most.value for row in group),
            },
        )


def _copy_kind(name: str) -> str:
    match = _COPY.fullmatch(name)
    if match:
        kind = f"{match[1][0]}to{match[2][0]}" if match[2] else match[1]
        kind = kind.replace("A", "D")  # an array is in device memory
        return kind if kind in _COPY_KINDS else "other"
    return "memset" if name.startswith("[CUDA memset") else "other"


def _counted_kernels(parts: Iterable[Part]) -> tuple[Kernel, ...]:
    """Return the kernels of a metrics report; a count is the average times the invocations.

    A metric that some process or GPU did not collect for a kernel is dropped.
    """
    calls: dict[str, int] = {}
    groups: dict[str, dict[str, list[Metric]]] = {}
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
                name: _value(rows)
                for name, rows in metrics.items()
                if sum(row.invocations for row in rows) == calls[kernel]
            },
        )
        for kernel, metrics in groups.items()
    )


def _invocations(metrics: Iterable[Metric]) -> dict[tuple[str, str], int]:
    """Return the invocations of each kernel on each GPU, from its counts or else its rates."""
    invocations: dict[tuple[str, str], list[tuple[bool, int]]] = {}
    for row in metrics:
        invocations.setdefault((row.device, row.kernel), []).append((row.is_count, row.invocations))
    found = {}
    for key, rows in invocations.items():
        counts = [number for is_count, number in rows if is_count]
        found[key] = Counter(counts or [number for _, number in rows]).most_common(1)[0][0]
    return found


def _value(rows: Sequence[Metric]) -> float:
    """Return a count summed over invocations, or the average of a rate."""
    total = sum(row.invocations * row.average.value for row in rows)
    return total if rows[0].is_count else total / sum(row.invocations for row in rows)


def _devices(metrics: Iterable[Metric]) -> tuple[Device, ...]:
    names = dict.fromkeys(row.device for row in metrics)
    plain = ((match[1] if (match := _RANGE.fullmatch(name)) else name) for name in names)
    return tuple(Device(name=name) for name in dict.fromkeys(plain) if name)


def _notes(parts: Sequence[Part]) -> Iterator[Note]:
    names = {row.name for part in parts for row in part.activities}
    names |= {row.kernel for part in parts for row in part.metrics}
    if any(name.endswith("$") for name in names):
        yield Note(kind="cut-names")
    if any(row.average.is_rounded for part in parts for row in part.metrics):
        yield Note(kind="rounded-counts")
    if unseen := [part.unseen_percent for part in parts if part.lacks_calls]:
        yield Note(kind="no-api-calls", values={"percent": max(unseen)})
    if len(parts) > 1:
        yield Note(kind="processes", values={"processes": len(parts)})
    if any(part.has_events for part in parts):
        yield Note(kind="events-left-out")


def _unread_notes(unread: Mapping[str, Sequence[str]]) -> Iterator[Note]:
    """Yield notes on unread tables of the log and their rows."""
    for title, rows in unread.items():
        if rows:
            values = {"table": title.lower(), "names": ", ".join(rows)}
            yield Note(kind="unread-rows", values=values)
        else:
            yield Note(kind="unread-table", values={"table": title.lower()})


def _left_out_notes(metrics: Sequence[Metric], kernels: Iterable[Kernel]) -> Iterator[Note]:
    """Yield notes on dropped metrics, in the order of the log."""
    uneven = [row for row in metrics if not row.is_even]
    for row in uneven:
        yield Note(kind="uneven-metric", values={"line": row.line, "metric": row.name})
    known = {(row.kernel, row.name) for row in uneven}
    kept = {kernel.name: kernel.metrics for kernel in kernels}
    lacking = (row for row in metrics if row.name not in kept[row.kernel])
    for name in dict.fromkeys(row.name for row in lacking if (row.kernel, row.name) not in known):
        yield Note(kind="metric-of-some", values={"metric": name})


def _check(part: Part, *, file: str) -> None:
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
    metrics = part.metrics
    _refuse_doubles(((row.line, (row.device, row.kernel, row.name)) for row in metrics), file)
    for metric in metrics:
        _check_order(metric, file)
    _check_invocations(metrics, file)
    _check_last_kernel(metrics, file)


def _refuse_cut_end(last: str, reader: LogReader, *, file: str, line: int) -> None:
    """Refuse an unterminated last line, unless it is a complete row.

    Editors and uploads drop the last line end. A row is complete if its numbers end in the same
    column as in other rows, and its name has balanced brackets. A kernel name must also end with
    its parameters, unless it is quoted.
    """
    part, widths = reader.last, reader.widths
    rows: tuple[Activity | Metric, ...] = (*part.activities, *part.metrics)
    if not rows or rows[-1].line != line:
        is_of_table = last.strip() and last.startswith(_OF_NVPROF) and not _MESSAGE.match(last)
        if not is_of_table and not part.is_empty:
            return  # output of the program, or an nvprof message after its tables
        why = "the last line has no line end and is not a table row: the log was cut off"
        raise refusal(file, line=line, why=why, hint=_CUT)
    row = rows[-1]
    if isinstance(row, Activity):
        pairs = (("(", ")"), ("[", "]"), ("<", ">"))[: 2 if "operator" in row.name else 3]
        is_cut = any(row.name.count(left) != row.name.count(right) for left, right in pairs)
    else:
        # a number followed by a unit is complete, even if it is out of range
        is_cut = not row.has_one_unit or (not row.average.unit and not row.is_even)
        is_cut = is_cut or (len(widths) == 1 and len(last.rstrip()) < min(widths))
    if is_cut:
        why = f"the last row has no line end and is incomplete: {last.strip()!r}"
        raise refusal(file, line=line, why=why, hint=_CUT)
    is_named = isinstance(row, Activity) and row.is_kernel and not last.rstrip().endswith('"')
    if is_named and not _WHOLE_NAME.fullmatch(row.name):
        why = f"the last row has no line end, and its name may be cut: {row.name!r}"
        raise refusal(file, line=line, why=why, hint=_UNSURE)


def _refuse_doubles(keys: Iterable[tuple[int, tuple[str, ...]]], file: str) -> None:
    if twice := first_repeated(keys):
        line, key = twice
        hint = _NAMES if any(part.endswith("$") for part in key) else ""
        raise refusal(file, line=line, why=f"{' / '.join(key)} is listed twice", hint=hint)


def _check_shares(rows: Sequence[Activity], file: str) -> None:
    """Refuse shares that do not add up to 100 %, or do not match their times."""
    total = sum(row.time.value for row in rows)
    if not total:
        return
    share = sum(row.percent.value for row in rows)
    if abs(share - 100) > share_slack(rows):
        why = f"the shares of the {rows[0].section} add up to {share:.2f} %, not to 100 %"
        raise refusal(file, line=rows[-1].line, why=why, hint=_CUT)
    unsure = sum(row.time.step for row in rows)
    for row in rows:
        expected = 100 * row.time.value / total
        allowed = max(row.percent.step, _SHARE_STEP) + 100 * (row.time.step + unsure) / total
        if abs(row.percent.value - expected) > allowed:
            why = f"{row.name} has {row.percent.value:g} % of the time, but took {expected:g} %"
            raise refusal(file, line=row.line, why=why)


def _check_row(row: Activity, file: str) -> None:
    """Refuse a row whose average is not time ÷ calls, or is outside its range."""
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


def _check_order(row: Metric, file: str) -> None:
    """Refuse a count whose average is outside its range; such a rate is only dropped."""
    if not row.is_count or row.is_even:
        return
    why = f"the average of {row.name} is outside its minimum and maximum"
    if not row.has_one_unit:
        why = f"{row.name} has different units in its columns"
    raise refusal(file, line=row.line, why=why)


def _check_invocations(metrics: Sequence[Metric], file: str) -> None:
    """Refuse counts of one kernel with different invocations; such a rate is only dropped."""
    counts: dict[tuple[str, str], int] = {}
    for row in (row for row in metrics if row.is_count):
        first = counts.setdefault((row.device, row.kernel), row.invocations)
        if first != row.invocations:
            why = f"{row.kernel} has {first} invocations in one row and {row.invocations} here"
            raise refusal(file, line=row.line, why=why)


def _check_last_kernel(metrics: Sequence[Metric], file: str) -> None:
    """Refuse a log whose last kernel lacks a metric that all others have."""
    names: dict[tuple[str, str], set[str]] = {}
    for row in metrics:
        names.setdefault((row.device, row.kernel), set()).add(row.name)
    if lacking := lacking_at_end(list(names.values())):
        why = f"the last kernel lacks {lacking}, which all others have"
        raise refusal(file, line=metrics[-1].line, why=why, hint=_CUT)
