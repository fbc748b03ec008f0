"""How the report writes numbers, units and the names of arms, cells and hosts."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    GroupEstimate,
    HostsEstimate,
    RunComparison,
)
from envcompare.analysis.model.profiling import Scaling
from envcompare.run_folder.records import CONTROL_SUFFIX, PLACE_OF_DATA, Scalar
from envcompare.text import assigned, visible, visible_line

_LONGEST: Final = 180
_TAIL: Final = 60  # generated names often differ only at their end
PLURALS: Final = {"step": "steps", "process": "processes"}


def cell_labels(run: RunComparison) -> dict[str, str]:
    """Name each cell by its workload, and by host and parameters if those differ."""
    cells = _cells(run)
    has_hosts = len({cell.host for cell in cells.values()}) > 1
    words = _work_words(cells)
    labels = {
        key: " ".join((*words[key], *[f"on {cell.host}"] * has_hosts))
        for key, cell in cells.items()
    }
    twice = {label for label, times in Counter(labels.values()).items() if times > 1}
    return {key: key if label in twice else label for key, label in labels.items()}


def of_cells(
    run: RunComparison, sentences: Iterable[tuple[str, str]], *, among: int
) -> tuple[str, ...]:
    """Return each text once, after the name of its cell if there are several cells."""
    labels = cell_labels(run)
    texts = (text if among < 2 else f"{labels.get(cell, cell)}: {text}" for cell, text in sentences)
    return tuple(dict.fromkeys(map(visible, texts)))


def work_labels(run: RunComparison) -> dict[str, str]:
    """Name each cell without its host, for places that already name the host."""
    cells = _cells(run)
    whole, words = cell_labels(run), _work_words(cells)
    return {key: key if whole[key] == key else " ".join(words[key]) for key in cells}


def _cells(run: RunComparison) -> dict[str, CellSummary | Comparison]:
    cells: dict[str, CellSummary | Comparison] = {
        comparison.cell: comparison for comparison in run.comparisons
    }
    return cells | {cell.id: cell for cell in run.cells}


def _work_words(cells: dict[str, CellSummary | Comparison]) -> dict[str, list[str]]:
    """Return the workload of each cell, its template, and the parameters that differ.

    The data location is always named.
    """
    varied = varied_parameters(cells.values())
    return {
        key: [
            cell.workload,
            *[f"in {cell.within}"] * bool(cell.within),
            *assigned(
                {
                    name: value
                    for name, value in cell.parameters.items()
                    if (cell.workload, name) in varied
                }
            ),
        ]
        for key, cell in cells.items()
    }


def row_anchor(cell: str, arm: str) -> str:
    """Return the id of a comparison's row; it is stable when the page is drawn again."""
    text = f"{cell}\0{arm}".encode(errors="backslashreplace")
    return f"c{hashlib.sha256(text).hexdigest()[:12]}"


def fold_anchor(cell: str, arm: str) -> str:
    """Return the id of the fold that explains a comparison."""
    return f"w{row_anchor(cell, arm)}"


def varied_parameters(
    cells: Iterable[CellSummary | Comparison | Scaling],
) -> set[tuple[str, str]]:
    """Return workload and name of each parameter that varies, and always of the place of data."""
    seen: dict[tuple[str, str], set[Scalar]] = {}
    for cell in cells:
        for name, value in cell.parameters.items():
            seen.setdefault((cell.workload, name), set()).add(value)
    return {key for key, values in seen.items() if len(values) > 1 or key[1] == PLACE_OF_DATA}


def compared_arms(run: RunComparison) -> tuple[str, ...]:
    """Return the arms that are compared with the reference, in the order of the run."""
    controls = {comparison.arm for comparison in run.comparisons if comparison.is_control}
    names = [arm.arm for arm in run.arms] + [
        comparison.arm for comparison in run.comparisons if comparison.outcome != "reference"
    ]
    return tuple(
        name
        for name in dict.fromkeys(names)
        if name not in {*run.all_references, *controls} and not name.endswith(CONTROL_SUFFIX)
    )


def arms_in(run: RunComparison, cell: CellSummary) -> tuple[str, ...]:
    """Return the reference of a cell and the arms that are compared with it there."""
    there = {comparison.arm for comparison in run.comparisons if comparison.cell == cell.id}
    compared = (arm for arm in compared_arms(run) if arm in there or not cell.within)
    return (run.reference_in(cell.id), *compared)


def reference_name(run: RunComparison, *cells: str) -> str:
    """Return the reference of these cells or of all; "the reference" if there are several."""
    names = {run.reference_in(cell) for cell in cells} or set(run.all_references)
    return names.pop() if len(names) == 1 else "the reference"


def short_name(name: str) -> str:
    """Return a kernel name on one visible line, with its middle left out if long."""
    shown = visible_line(name)
    if len(shown) <= _LONGEST:
        return shown
    return f"{shown[: _LONGEST - _TAIL]} … {shown[-_TAIL:]}"


def has_programs(run: RunComparison) -> bool:
    """Tell whether any cell was planned to time a plain command."""
    return any(cell.is_program for cell in run.cells)


def has_lines(run: RunComparison) -> bool:
    """Return whether the arms are command lines."""
    return any(arm.stack == "line" for arm in run.arms)


def has_steps(run: RunComparison) -> bool:
    """Tell whether any cell was planned to time steps of a workload."""
    return not run.cells or not all(cell.is_program for cell in run.cells)


def piece_of(cell: CellSummary) -> str:
    """Return the unit of a cell's times: a step or a process."""
    return "process" if cell.is_program else "step"


def piece_word(run: RunComparison, *, is_plural: bool = False) -> str:
    """Return the unit of this run's times: a step, a process, or either."""
    step, process = PLURALS.values() if is_plural else PLURALS
    return " or ".join([step] * has_steps(run) + [process] * has_programs(run))


def group_work(estimate: GroupEstimate) -> str:
    """Name the workload of an estimate with its parameters."""
    within = f"in {estimate.within}" if estimate.within else ""
    return visible(
        " ".join(filter(None, (estimate.workload, within, *assigned(estimate.parameters))))
    )


def hosts_work(estimate: HostsEstimate) -> str:
    """Name a workload with its parameters."""
    return visible(" ".join((estimate.workload, *assigned(estimate.parameters))))


MINUS: Final = "−"
NOT_MEASURED: Final = "not measured"
ONE_RESTART: Final = "one restart: no size"
_LARGEST_CHANGE: Final = 10.0  # as a fraction; a larger change is printed as a factor, as in "×24"
_HARDLY_KNOWN: Final = math.log(2)
_SMALLEST_PERCENT: Final = 0.01
_ONE_DECIMAL: Final = 1.0  # of percent; from here on, one decimal is enough
_LARGEST_LOG: Final = 50.0  # e^50; no real ratio is larger, and e^710 overflows
FIGURE: Final = re.compile(  # kept on one line: "−7.1 to +5.7 %", "41.3 → 44.8 ms"
    r"[+−±]?\d[\d.]*(?: to [+−]?\d[\d.]*| → \d[\d.]*)? (?:%|ms|µs|ns|s|min|MiB|GiB|samples/s)(?!\w)"
    r"|×\d[\d.]* to ×\d[\d.]*"
)
NS: Final = 1e9  # in a second
_MINUTES: Final = 600  # s; longer times are given in minutes
_TIMES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_PREFIXES: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SCALED: Final = ("FLOP", "FLOP/s", "B", "B/s", "Hz")  # units that take a prefix
_COUNTS: Final = (  # their name says what is counted
    "transactions of 32 B", "faults", "switches", "calls", "migrations", "cycles",
    "instructions", "events",
)  # fmt: skip
_COUNTED: Final = 1_000_000  # smaller whole numbers are printed with all their digits
_NEAR: Final = 0.1  # ratios nearer to 1 get four decimals


def change(log_ratio: float) -> float:
    """Return the change of time as a fraction, 0.084 for 8.4 % slower."""
    return math.expm1(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_ratio)))


def percent(fraction: float) -> str:
    """Return a fraction in percent without its sign, such as "8.4"."""
    return f"{abs(100 * fraction):.1f}"


def _signed(log_ratio: float) -> str:
    """Return a change in percent with its sign, such as "+8.4", "−4.5" and "0.0"."""
    size = percent(change(log_ratio))
    if size == "0.0":
        return size
    return f"{'+' if log_ratio > 0 else MINUS}{size}"


def _is_factor(log_ratio: float) -> bool:
    return change(log_ratio) >= _LARGEST_CHANGE


def factor_text(log_ratio: float) -> str:
    """Return the factor of the time: "×24", "×1.20"."""
    text = ratio_text(1 + change(log_ratio))
    return text.removesuffix(".0")


def signed_percent(log_ratio: float | None) -> str:
    """Return "+8.4 %", or the factor of a change beyond 1000 %: "×24"."""
    if log_ratio is None:
        return NOT_MEASURED
    return factor_text(log_ratio) if _is_factor(log_ratio) else f"{_signed(log_ratio)} %"


def signed_interval(low: float | None, high: float | None) -> str:
    """Return "+8.0 to +8.7 %", or a note that there is no interval.

    An end near 0 gets enough digits to show that the interval excludes 0: "+0.03 to +7.1 %". If the
    interval exceeds a factor of 2 in both directions, the result only says so. If the upper end is
    printed as a factor, both ends are.
    """
    if low is None or high is None:
        return "no interval"
    if low < -_HARDLY_KNOWN and high > _HARDLY_KNOWN:
        return f"wider than {_signed(-_HARDLY_KNOWN)} to {_signed(_HARDLY_KNOWN)} %"
    if _is_factor(high):
        return f"{factor_text(low)} to {factor_text(high)}"
    if low <= 0 <= high:
        return f"{_signed(low)} to {_signed(high)} %"
    sign = "+" if low > 0 else MINUS
    texts = (_near_zero(end, sign=sign) or _signed(end) for end in (low, high))
    return f"{' to '.join(texts)} %"


def ends_text(low: float | None, high: float | None, say: Callable[[float], str]) -> str:
    """Return "1.20 s to 1.31 s" for positive numbers, or that there is no useful interval."""
    if low is None or high is None:
        return "no interval"
    if low <= 0 or math.log(high / low) > 2 * _HARDLY_KNOWN:
        return "not known to a factor of 2"
    return f"{say(low)} to {say(high)}"


def unsigned_percent(log_ratio: float) -> str:
    """Return "8.4 %" or "×24", for use where words give the direction."""
    if _is_factor(log_ratio):
        return factor_text(log_ratio)
    return f"{percent(change(log_ratio))} %"


def slower_text(log_ratio: float, than: str = "", *, as_factor: bool = False) -> str:
    """Return "8.4 % slower than vm" or "24 times as slow as vm", or either without the name."""
    if as_factor or _is_factor(log_ratio):
        words, joint = f"{factor_text(log_ratio).lstrip('×')} times as slow", "as"
    else:
        words, joint = f"{percent(change(log_ratio))} % slower", "than"
    return f"{words} {joint} {than}" if than else words


def unsigned_interval(low: float | None, high: float | None) -> str:
    """Return "8.0 to 8.7 %", the smaller change first, or a note that there is no interval."""
    if low is None or high is None:
        return "no interval"
    if _is_factor(max(low, high)):
        return f"{factor_text(min(low, high))} to {factor_text(max(low, high))}"
    ends = sorted((low, high), key=lambda end: abs(change(end)))
    texts = (_near_zero(end) or percent(change(end)) for end in ends)
    return f"{' to '.join(texts)} %"


def share_text(share: float) -> str:
    """Return a share of steps in percent, such as "2.1 %", "0.04 %" and "0 %"."""
    size = 100 * share
    if not size:
        return "0 %"
    if size < _SMALLEST_PERCENT:
        return f"under {_SMALLEST_PERCENT} %"
    return f"{size:.1f} %" if size >= _ONE_DECIMAL else f"{size:.2f} %"


def points_interval(low: float | None, high: float | None) -> str:
    """Return the interval of a difference of shares: "+0.31 to +2.10 points"."""
    if low is None or high is None:
        return "no interval"
    ends = (f"{100 * end:+.2f}".replace("-", MINUS) for end in (low, high))
    return f"{' to '.join(ends)} points"


def _near_zero(log_ratio: float, *, sign: str = "") -> str:
    """Return a change that one decimal would round to 0; empty for any other change."""
    fraction = change(log_ratio)
    if fraction == 0 or percent(fraction) != "0.0":
        return ""
    size = abs(100 * fraction)
    is_shown = size >= _SMALLEST_PERCENT
    return f"{sign}{size:.2f}" if is_shown else f"under {sign}{_SMALLEST_PERCENT}"


def margin_percent(margin: float) -> str:
    """Return a margin or level without rounding up to 100 %: "2 %", "0.5 %"."""
    texts = (f"{100 * margin:.{digits}g}" for digits in (4, 7, 10, 17))
    return f"{next((text for text in texts if text != '100'), '100')} %"


def three_digits(value: float | None) -> str:
    """Return a number with three significant digits and no exponent."""
    return NOT_MEASURED if value is None else distinct_numbers(value)[0]


def distinct_numbers(*values: float) -> tuple[str, ...]:
    """Return numbers with three significant digits, or enough to distinguish them (up to 17)."""
    digits, distinct = 3, len(set(values))
    while digits < 17 and len({_rounded(value, digits) for value in values}) < distinct:
        digits += 1
    return tuple(_rounded(value, digits + (digits > 3)) for value in values)


def _rounded(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    return f"{Decimal(f'{value:#.{digits}g}'):f}".replace("-", MINUS)


def rough_time(seconds: float) -> str:
    """Return a forecast with the precision it deserves: "70 s", "12 min", "3 h"."""
    if seconds < 120:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def size(count: int | None) -> str:
    """Return bytes in MiB or GiB with three significant digits."""
    if count is None:
        return NOT_MEASURED
    mib = count / 2**20
    return f"{three_digits(mib / 1024)} GiB" if mib >= 1024 else f"{three_digits(mib)} MiB"


def listed(words: Sequence[str], *, most: int = 3) -> str:
    """Return "a", "a and b", "a, b and c", "a, b, c and 4 more"."""
    shown = list(words[:most])
    if len(words) > most:
        shown.append(f"{len(words) - most} more")
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def time_text(ns: float | None) -> str:
    """Return a time in a suitable unit, such as "12.3 µs"."""
    if ns is None:
        return NOT_MEASURED
    return f"{three_digits(ns / _unit(ns)[0])} {_unit(ns)[1]}"


def duration(seconds: float | None) -> str:
    """Return a time with its unit, such as "40.0 µs", "412 ms", "1.28 s" and "12 min"."""
    if not seconds:
        return NOT_MEASURED if seconds is None else "0 s"
    return time_text(NS * seconds) if seconds < _MINUTES else f"{seconds / 60:.0f} min"


def quantity_text(value: float | None, unit: str) -> str:
    """Return a value with its unit, scaling times and adding prefixes to FLOP and bytes."""
    if value is None:
        return NOT_MEASURED
    if unit == "ns":
        return time_text(value)
    if unit in _SCALED:
        number = _prefixed(value)
        return f"{number}{unit}" if number[-1].isalpha() else f"{number} {unit}"
    number = number_text(value)
    return f"{number} {unit}" if unit and unit not in _COUNTS else number


def bytes_text(count: float | None) -> str:
    """Return memory in binary units, such as "0 B", "312 B", "−4.50 KiB" and "1.00 MiB"."""
    if count is None:
        return NOT_MEASURED
    size, unit = next((pair for pair in _BINARY if abs(count) >= pair[0]), (1, "B"))
    return f"{number_text(count) if size == 1 else three_digits(count / size)} {unit}"


def number_text(value: float | None) -> str:
    """Return small whole numbers with all their digits, others with three.

    Large ones get a prefix, as in "198 M".
    """
    if value is None:
        return NOT_MEASURED
    if float(value).is_integer() and abs(value) < _COUNTED:
        return f"{value:.0f}".replace("-", MINUS)
    if abs(value) < _COUNTED:
        return three_digits(value)
    return _prefixed(value)


def ratio_text(ratio: float | None) -> str:
    """Return "×1.0013" near 1, "×3.16" further away, empty without a ratio."""
    if ratio is None or not math.isfinite(ratio):
        return ""
    return f"×{ratio:.4f}" if abs(ratio - 1) < _NEAR else f"×{three_digits(ratio)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """One unit for all times of a table, a row or an axis.

    Times that add up share a number of decimals; others have three digits.
    """

    unit: str
    size_ns: float
    decimals: int

    @classmethod
    def of(cls, longest_ns: float) -> TimeScale:
        """Return the scale that shows the longest time with four significant digits."""
        size, unit = _unit(longest_ns)
        digits = len(str(int(abs(longest_ns) / size)))
        return cls(unit=unit, size_ns=size, decimals=0 if unit == "ns" else max(0, 4 - digits))

    def number(self, ns: float | None) -> str:
        """Return a time without its unit, for a column whose head has the unit."""
        if ns is None:
            return NOT_MEASURED
        return f"{ns / self.size_ns:.{self.decimals}f}".replace("-", MINUS)

    def digits(self, seconds: float | None) -> str:
        """Return a time with three significant digits and without its unit."""
        return NOT_MEASURED if seconds is None else three_digits(NS * seconds / self.size_ns)

    def signed_digits(self, seconds: float) -> str:
        """Return a difference without its unit, such as "+1.42", "−0.753" and "0"."""
        return f"{'+' if seconds > 0 else ''}{self.digits(seconds)}"

    def signed(self, ns: float) -> str:
        """Return a change with its sign, or "0" if it rounds to 0."""
        text = self.number(abs(ns))
        if not float(text):
            return text
        return f"{'+' if ns > 0 else MINUS}{text}"


def paired_times(before_s: float | None, after_s: float | None) -> str:
    """Return "41.3 → 44.8 ms", or the one time that is known."""
    if before_s is None or after_s is None:
        ends = (duration(before_s), duration(after_s))
        return NOT_MEASURED if before_s is after_s else " → ".join(ends)
    scale = TimeScale.of(NS * max(before_s, after_s))
    return f"{scale.digits(before_s)} → {scale.digits(after_s)} {scale.unit}"


def _unit(ns: float) -> tuple[float, str]:
    return next((pair for pair in _TIMES if abs(ns) >= pair[0]), _TIMES[-1])


def _prefixed(value: float) -> str:
    """Return "4.58 G", "0" or "12", to be followed by the unit."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{three_digits(value / size)} {prefix}"
    return number_text(value)


ONE_PROFILE: Final = (
    "Each time comes from one profile, taken with the profiler attached; its spread is not known."
)
