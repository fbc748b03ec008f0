"""Whether a log of nvprof is whole and agrees with itself, within what rounding allows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from envcompare.profile_files.nvprof.rows import Activity, Metric, Part, share_slack
from envcompare.profile_files.refusing import refusal

_WHOLE_NS: Final = 1.0  # averages are cut to whole ns: 5 calls in 46.237us average 9.2470us
_SHARE_STEP: Final = 1e-3  # per cent; CSV prints more digits than nvprof computes
_CUT: Final = "the log was cut off, or rows are missing: write it again and import it whole"
_SAID: Final = re.compile(r"==+\d*==+ (?:Generated result file|Warning): ")
_OF_NVPROF: Final = ("=", " ", '"', "Device", "Invocations", "Time(%)", "Type")
_WHOLE_NAME: Final = re.compile(r".*\)(?<!\(anonymous namespace\))(?<!operator\(\))")
_UNSURE: Final = "end that line where the log is whole, else write it again with --csv"
_NAMES: Final = "names are cut to the width of the terminal: write the log again with --csv"


def check(part: Part, *, file: str) -> None:
    """Refuse a report that was cut, holds rows twice, or whose columns contradict each other."""
    for section in ("GPU activities", "API calls"):
        rows = [one for one in part.activities if one.section == section]
        _refuse_doubles(((one.line, (one.name,)) for one in rows), file)
        _check_shares(rows, file)
    for row in part.activities:
        _check_row(row, file)
    if part.lacks_calls and "API calls" in part.announced:
        why = "API calls are announced, and none follows"
        raise refusal(file, line=part.activities[-1].line, why=why, hint=_CUT)
    metrics = part.metrics
    _refuse_doubles(((one.line, (one.device, one.kernel, one.name)) for one in metrics), file)
    for metric in metrics:
        _check_order(metric, file)
    _check_invocations(metrics, file)
    _check_last_kernel(metrics, file)


def refuse_cut_end(last: str, part: Part, *, widths: Collection[int], file: str, line: int) -> None:
    """Refuse a last line without an end that is no whole row; a row that is whole may lack it.

    Editors and uploads drop the last end of line; what tells a row that was cut is its own form:
    columns of numbers end where those of all other rows do, and a name closes its brackets. That of
    a kernel ends with its parameters, unless its quotes show that it is whole.
    """
    rows: tuple[Activity | Metric, ...] = (*part.activities, *part.metrics)
    if not rows or rows[-1].line != line:
        is_of_table = last.strip() and last.startswith(_OF_NVPROF) and not _SAID.match(last)
        if not is_of_table and not part.is_empty:
            return  # the program's own output, or a word of nvprof behind its tables
        why = "the last line has no end, and is no row of a table: the log was cut off"
        raise refusal(file, line=line, why=why, hint=_CUT)
    row = rows[-1]
    if isinstance(row, Activity):
        pairs = (("(", ")"), ("[", "]"), ("<", ">"))[: 2 if "operator" in row.name else 3]
        is_cut = any(row.name.count(one) != row.name.count(two) for one, two in pairs)
    else:
        # a number before its unit is whole, whether or not it fits its range
        is_cut = not row.has_one_unit or (not row.average.unit and not row.is_even)
        is_cut = is_cut or (len(widths) == 1 and len(last.rstrip()) < min(widths))
    if is_cut:
        why = f"the last row has no end, and is not whole: {last.strip()!r}"
        raise refusal(file, line=line, why=why, hint=_CUT)
    if isinstance(row, Activity) and row.is_kernel and not last.rstrip().endswith('"'):
        _refuse_unsure_name(row, file)


def _refuse_unsure_name(row: Activity, file: str) -> None:
    if not _WHOLE_NAME.fullmatch(row.name):
        why = f"the last row has no end, and its name may be cut: {row.name!r}"
        raise refusal(file, line=row.line, why=why, hint=_UNSURE)


def _refuse_doubles(keys: Iterable[tuple[int, tuple[str, ...]]], file: str) -> None:
    seen: set[tuple[str, ...]] = set()
    for line, key in keys:
        if key in seen:
            cut = any(part.endswith("$") for part in key)
            raise refusal(
                file,
                line=line,
                why=f"{' / '.join(key)} stands there twice",
                hint=_NAMES if cut else "",
            )
        seen.add(key)


def _check_shares(rows: Sequence[Activity], file: str) -> None:
    """Refuse shares that do not add up to 100 %, or do not fit the times beside them."""
    total = sum(one.time.value for one in rows)
    if not total:
        return
    share = sum(one.percent.value for one in rows)
    if abs(share - 100) > share_slack(rows):
        why = f"the shares of the {rows[0].section} add up to {share:.2f} %, not to 100 %"
        raise refusal(file, line=rows[-1].line, why=why, hint=_CUT)
    unsure = sum(one.time.step for one in rows)
    for one in rows:
        expected = 100 * one.time.value / total
        allowed = max(one.percent.step, _SHARE_STEP) + 100 * (one.time.step + unsure) / total
        if abs(one.percent.value - expected) > allowed:
            why = (
                f"{one.name} has {one.percent.value:g} % of the time, but took {expected:g} % of it"
            )
            raise refusal(file, line=one.line, why=why)


def _check_row(row: Activity, file: str) -> None:
    """Refuse a row whose average is not its time over its calls, or lies outside its range."""
    product = row.calls * row.average.value
    allowed = row.calls * max(row.average.step, _WHOLE_NS) + row.time.step
    if abs(product - row.time.value) > allowed:
        why = f"{row.calls} calls of {row.average.value:g} ns are not {row.time.value:g} ns"
        raise refusal(file, line=row.line, why=f"{row.name}: {why}")
    low = row.least.value - row.least.step - row.average.step
    high = row.most.value + row.most.step + row.average.step
    if not low <= row.average.value <= high:
        why = f"the average of {row.name} lies outside its minimum and maximum"
        raise refusal(file, line=row.line, why=why)


def _check_order(row: Metric, file: str) -> None:
    """Refuse a count whose average lies outside its range; a rate is left out by itself."""
    if not row.is_count or row.is_even:
        return
    why = f"the average of {row.name} lies outside its minimum and maximum"
    if not row.has_one_unit:
        why = f"{row.name} has a unit in one column and another in the next"
    raise refusal(file, line=row.line, why=why)


def _check_invocations(metrics: Sequence[Metric], file: str) -> None:
    counts: dict[tuple[str, str], int] = {}
    for one in metrics:
        first = counts.setdefault((one.device, one.kernel), one.invocations)
        if first != one.invocations:
            why = f"{one.kernel} has {first} invocations in one row and {one.invocations} here"
            raise refusal(file, line=one.line, why=why)


def _check_last_kernel(metrics: Sequence[Metric], file: str) -> None:
    """Refuse a log whose last kernel lacks what every other has."""
    names: dict[tuple[str, str], set[str]] = {}
    for one in metrics:
        names.setdefault((one.device, one.kernel), set()).add(one.name)
    sets = list(names.values())
    if len(sets) < 2:
        return
    lacking = set.intersection(*sets[:-1]) - sets[-1]
    if lacking:
        why = f"the last kernel lacks {min(lacking)}, which all others have"
        raise refusal(file, line=metrics[-1].line, why=why, hint=_CUT)
