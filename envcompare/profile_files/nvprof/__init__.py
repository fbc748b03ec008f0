"""nvprof: summaries and metrics, as text and as CSV; for GPUs up to Volta and for old logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from envcompare.profile_files.nvprof.checks import check, refuse_cut_end
from envcompare.profile_files.nvprof.rows import Activity, Metric, Part
from envcompare.profile_files.nvprof.text import Reader
from envcompare.profile_files.refusing import refusal
from envcompare.profile_files.tables import read_lines
from envcompare.run_folder.profiles import ApiCall, Copy, Device, Kernel, Profile

_SQLITE: Final = b"SQLite format 3\0"
_COPY: Final = re.compile(r"\[CUDA memcpy (\w+)(?:-to-(\w+))?\]")
_COPY_KINDS: Final = frozenset({"HtoD", "DtoH", "DtoD", "HtoH", "PtoP"})
_RANGE: Final = re.compile(r"(.*) \(\d+\)")
_FATAL: Final = re.compile(
    r"^Error: |records have invalid|incomplete|were dropped|is not supported on devices"
    r"|No CUDA application was profiled|^No kernels were profiled"
)
_UNENDED: Final = "the last line has no line ending; its row passes every check and was read"
_AGAIN: Final = (
    "write the log again: `nvprof --csv --log-file out.csv …`; on compute capability 7.5 and "
    "higher nvprof reads no counters, use ncu and nsys"
)


def read(path: Path) -> Profile:
    """Return the profile in a log of nvprof; several processes of one log are added up.

    Raises ProfileError for a log that was cut, doubled or contradicts itself, with its line.
    """
    _refuse_database(path)
    lines = read_lines(path)
    reader = Reader(lines, path.name)
    reader.read()
    is_ended = not lines or lines[-1].endswith("\n")
    _refuse_failure(reader.said, path.name)
    parts = [part for part in reader.parts if not part.is_empty]
    if not parts:
        raise refusal(path.name, why="it holds no summary and no metrics of nvprof", hint=_AGAIN)
    for part in parts:
        check(part, file=path.name)
    if not is_ended:
        _refuse_cut(reader, lines, path.name)
    activities = [one for part in parts for one in part.activities]
    metrics = [one for part in parts for one in part.metrics]
    if activities and metrics:
        why = "it holds a summary and metrics of one run, in which counting changed the times"
        raise refusal(path.name, line=metrics[0].line, why=why, hint="import a log of each")
    counted = _counted(parts)
    return Profile(
        tool="nvprof",
        format=f"{'csv' if reader.is_csv else 'text'} {'summary' if activities else 'metrics'}",
        files=(path.name,),
        devices=_devices(metrics),
        kernels=_timed(activities) if activities else counted,
        copies=_copies(activities),
        api_calls=_calls(activities),
        has_time=bool(activities),
        notes=(
            *_notes(parts),
            *_unread_notes(reader.unread),
            *_left_out_notes(metrics, counted),
            *([_UNENDED] if not is_ended else []),
        ),
    )


def _refuse_cut(reader: Reader, lines: Sequence[str], file: str) -> None:
    if not reader.is_unread:
        last, place = lines[-1], len(lines)
        refuse_cut_end(last, reader.last, widths=reader.widths, file=file, line=place)


def _refuse_database(path: Path) -> None:
    try:
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise refusal(path.name, why=error.strerror or str(error)) from error
    if is_database:
        raise refusal(
            path.name,
            why="it is the database that nvprof exports, not what it prints",
            hint=f"nvprof --import-profile {path.name} --csv --log-file out.csv",
        )


def _refuse_failure(said: Sequence[tuple[int, str]], file: str) -> None:
    """Refuse a log in which nvprof says that it failed or lost records."""
    for line, text in said:
        if _FATAL.search(text):
            raise refusal(file, line=line, why=f"nvprof says: {text}", hint=_AGAIN)


def _timed(activities: Iterable[Activity]) -> tuple[Kernel, ...]:
    """Return the kernels of a summary, those of one name in several processes as one."""
    kernels = (one for one in activities if one.is_kernel)
    return tuple(Kernel(name=name, **sums) for name, sums in _sums(kernels, lambda one: one.name))


def _copies(activities: Iterable[Activity]) -> tuple[Copy, ...]:
    copies = (one for one in activities if _is_gpu(one) and one.name.startswith("[CUDA"))
    return tuple(
        Copy(kind=kind, **sums)  # type: ignore[arg-type]  # one of the kinds by construction
        for kind, sums in _sums(copies, lambda one: _copy_kind(one.name))
    )


def _calls(activities: Iterable[Activity]) -> tuple[ApiCall, ...]:
    calls = (one for one in activities if one.section == "API calls")
    return tuple(ApiCall(name=name, **sums) for name, sums in _sums(calls, lambda one: one.name))


def _is_gpu(row: Activity) -> bool:
    return row.section == "GPU activities"


def _sums(
    rows: Iterable[Activity], key: Callable[[Activity], str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each key with calls and times of its rows, which may be of several processes."""
    groups: dict[str, list[Activity]] = {}
    for one in rows:
        groups.setdefault(key(one), []).append(one)
    for name, group in groups.items():
        yield (
            name,
            {
                "calls": sum(one.calls for one in group),
                "total_ns": sum(one.time.value for one in group),
                "min_ns": min(one.least.value for one in group),
                "max_ns": max(one.most.value for one in group),
            },
        )


def _copy_kind(name: str) -> str:
    found = _COPY.fullmatch(name)
    if found:
        kind = f"{found[1][0]}to{found[2][0]}" if found[2] else found[1]
        kind = kind.replace("A", "D")  # an array lies in the memory of the device
        return kind if kind in _COPY_KINDS else "other"
    return "memset" if name.startswith("[CUDA memset") else "other"


def _counted(parts: Iterable[Part]) -> tuple[Kernel, ...]:
    """Return the kernels of a metrics report: counts are the average times the invocations.

    What one process or GPU counted of a kernel and another did not is left out.
    """
    calls: dict[str, int] = {}
    groups: dict[str, dict[str, list[Metric]]] = {}
    for part in parts:
        once = {(one.device, one.kernel): one for one in part.metrics}
        for one in once.values():
            calls[one.kernel] = calls.get(one.kernel, 0) + one.invocations
        for one in part.metrics:
            rows = groups.setdefault(one.kernel, {}).setdefault(one.name, [])
            rows += [one] if one.is_even else []
    return tuple(
        Kernel(
            name=kernel,
            calls=calls[kernel],
            total_ns=None,
            metrics={
                name: _value(rows)
                for name, rows in metrics.items()
                if sum(one.invocations for one in rows) == calls[kernel]
            },
        )
        for kernel, metrics in groups.items()
    )


def _value(rows: Sequence[Metric]) -> float:
    """Return a count summed over invocations, or the average that nvprof took of a rate."""
    total = sum(one.invocations * one.average.value for one in rows)
    if rows[0].is_count:
        return total
    return total / sum(one.invocations for one in rows)


def _devices(metrics: Iterable[Metric]) -> tuple[Device, ...]:
    names = dict.fromkeys(one.device for one in metrics)
    plain = ((found[1] if (found := _RANGE.fullmatch(name)) else name) for name in names)
    return tuple(Device(name=name) for name in dict.fromkeys(plain) if name)


def _notes(parts: Sequence[Part]) -> Iterable[str]:
    names = {one.name for part in parts for one in part.activities}
    names |= {one.kernel for part in parts for one in part.metrics}
    if any(name.endswith("$") for name in names):
        yield "some names end in $: nvprof cut them to the width of the terminal"
    if any(one.average.is_rounded for part in parts for one in part.metrics):
        yield "large counts are rounded to five digits, as nvprof prints them in text; CSV is exact"
    if any(part.lacks_calls for part in parts):
        unseen = max(part.unseen_percent for part in parts if part.lacks_calls)
        yield (
            "no API calls, as --print-gpu-summary prints: were the log cut off, only what took "
            f"less than {unseen:.2g} % of the GPU's time could be missing"
        )
    if len(parts) > 1:
        yield f"{len(parts)} processes are added up"
    if any(part.has_events for part in parts):
        yield "events are left out; metrics alone are read"


def _unread_notes(unread: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Yield which tables of the log are not read, and what stands in them."""
    for title, rows in unread.items():
        told = f" ({', '.join(rows)})" if rows else ""
        yield f"not compared: {title.lower()}{told}"


def _left_out_notes(metrics: Sequence[Metric], kernels: Iterable[Kernel]) -> Iterable[str]:
    """Yield which metrics are left out of a kernel and why, in the order they stand in."""
    uneven = [one for one in metrics if not one.is_even]
    for one in uneven:
        yield (
            f"line {one.line}: {one.name} is left out of one kernel: its average does not fit its "
            "minimum and maximum"
        )
    known = {(one.kernel, one.name) for one in uneven}
    kept = {kernel.name: kernel.metrics for kernel in kernels}
    lacking = (one for one in metrics if one.name not in kept[one.kernel])
    for name in dict.fromkeys(one.name for one in lacking if (one.kernel, one.name) not in known):
        yield f"{name} is left out of a kernel: one process or GPU counted it and another did not"
