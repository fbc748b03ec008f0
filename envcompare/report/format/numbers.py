"""Numbers as the report prints them: one decimal in %, three digits elsewhere, a true minus."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Final

MINUS: Final = "−"
NOT_MEASURED: Final = "not measured"
_LARGEST_PERCENT: Final = 1000  # an interval that reaches beyond says nothing
_SMALLEST_PERCENT: Final = 0.01
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
    """Return "+8.0 to +8.7 %", or that there is no interval.

    An end near 0 has as many digits as tell that the interval excludes 0: "+0.03 to +7.1 %".
    """
    if low is None or high is None:
        return "no interval"
    if low <= 0 <= high:
        return f"{signed(low)} to {signed(high)} %"
    sign = "+" if low > 0 else MINUS
    texts = (_near_zero(end, sign=sign) or signed(end) for end in (low, high))
    return f"{' to '.join(texts)} %"


def unsigned_percent(log_ratio: float) -> str:
    """Return "8.4 %", where words say which way."""
    return f"{percent(change(log_ratio))} %"


def unsigned_interval(low: float | None, high: float | None) -> str:
    """Return "8.0 to 8.7 %", the smaller change first, or that there is no interval."""
    if low is None or high is None:
        return "no interval"
    ends = sorted((low, high), key=lambda end: abs(change(end)))
    texts = (_near_zero(end) or percent(change(end)) for end in ends)
    return f"{' to '.join(texts)} %"


def _near_zero(log_ratio: float, *, sign: str = "") -> str:
    """Return a change that one decimal would print as 0, empty where it is none such."""
    fraction = change(log_ratio)
    if fraction == 0 or percent(fraction) != "0.0":
        return ""
    size = abs(100 * fraction)
    is_shown = size >= _SMALLEST_PERCENT
    return f"{sign}{size:.2f}" if is_shown else f"under {sign}{_SMALLEST_PERCENT}"


def margin_percent(margin: float) -> str:
    """Return a margin or a level as it was chosen: "2 %", "0.5 %", and no "100 %" below it."""
    texts = (f"{100 * margin:.{digits}g}" for digits in (4, 7, 10, 17))
    return f"{next((text for text in texts if text != '100'), '100')} %"


def three_digits(value: float) -> str:
    """Return a number with three significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    return f"{Decimal(f'{value:#.3g}'):f}".replace("-", MINUS)


def rough_time(seconds: float) -> str:
    """Return a forecast as nobody should read more into it: "70 s", "12 min", "3 h"."""
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
