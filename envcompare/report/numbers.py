"""Numbers as the report prints them: one decimal in %, three digits in times, a true minus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

MINUS: Final = "−"
NOT_MEASURED: Final = "not measured"
_LARGEST_PERCENT: Final = 1000  # an interval that reaches beyond says nothing
_LARGEST_LOG: Final = 50.0  # e^50; nothing real is beyond, and e^710 has no number


def change(log_ratio: float) -> float:
    """Return the change of time as a fraction, 0.084 for 8.4 % slower."""
    return math.expm1(max(-_LARGEST_LOG, min(_LARGEST_LOG, log_ratio)))


def percent(fraction: float) -> str:
    """Return the size of a change in percent without its sign, such as "8.4"."""
    size = abs(100 * fraction)
    return f"{size:.1f}" if size < _LARGEST_PERCENT else f"over {_LARGEST_PERCENT}"


def signed(log_ratio: float) -> str:
    """Return a change in percent with its sign, such as "+8.4", "−4.5" and "0.0"."""
    size = percent(change(log_ratio))
    if size == "0.0":
        return size
    sign = "+" if log_ratio > 0 else MINUS
    return f"over {sign}{_LARGEST_PERCENT}" if size.startswith("over") else f"{sign}{size}"


def signed_percent(log_ratio: float) -> str:
    """Return "+8.4 %"."""
    return f"{signed(log_ratio)} %"


def signed_interval(low: float | None, high: float | None) -> str:
    """Return "+8.0 to +8.7 %", or that there is no interval."""
    if low is None or high is None:
        return "no interval"
    return f"{signed(low)} to {signed(high)} %"


def margin_percent(margin: float) -> str:
    """Return a margin or a level as it was chosen, such as "2 %" and "0.5 %"."""
    return f"{100 * margin:.4g} %"


def three_digits(value: float) -> str:
    """Return a number with three significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    return f"{Decimal(f'{value:#.3g}'):f}".replace("-", MINUS)


def milliseconds(seconds: float | None) -> str:
    """Return a step time in ms, such as "41.3"."""
    return NOT_MEASURED if seconds is None else three_digits(1000 * seconds)


def duration(seconds: float | None) -> str:
    """Return a time with its unit, such as "412 ms", "1.28 s" and "12 min"."""
    if seconds is None:
        return NOT_MEASURED
    if seconds >= 600:
        return f"{seconds / 60:.0f} min"
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(1000 * seconds)} ms"


def signed_duration(seconds: float) -> str:
    """Return a difference of times with its sign, such as "+1.42 s" and "−12.0 ms"."""
    size = duration(abs(seconds))
    return f"{MINUS if seconds < 0 else '+'}{size}" if seconds else size


def rough_time(seconds: float) -> str:
    """Return a forecast as nobody should read more into it: "70 s", "12 min", "3 h"."""
    if seconds < 120:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def duration_range(low: float, high: float) -> str:
    """Return "387 to 449 ms", with both units where they differ."""
    first, last = duration(low), duration(high)
    number, _, unit = first.rpartition(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


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
