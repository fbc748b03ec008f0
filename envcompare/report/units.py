"""Quantities of profiles as the page prints them: three significant digits and an SI prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from envcompare.report.numbers import MINUS, NOT_MEASURED, three_digits

_TIMES: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
_PREFIXES: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SCALED: Final = ("FLOP", "FLOP/s", "B", "B/s", "Hz")  # what takes a prefix
_COUNTS: Final = (  # the name of the quantity says what is counted
    "transactions of 32 B", "faults", "switches", "calls", "migrations", "cycles",
    "instructions", "events",
)  # fmt: skip
_COUNTED: Final = 1_000_000  # below it a whole number is printed with all its digits
_NEAR: Final = 0.1  # ratios nearer to 1 get four decimals


def time_text(ns: float | None) -> str:
    """Return a time in the unit that suits it, such as "12.3 µs"."""
    if ns is None:
        return NOT_MEASURED
    return f"{three_digits(ns / _unit(ns)[0])} {_unit(ns)[1]}"


def quantity_text(value: float | None, unit: str) -> str:
    """Return a value with its unit: times in a unit that suits them, FLOP and bytes prefixed."""
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


def number_text(value: float) -> str:
    """Return whole numbers with all their digits while those are few, others with three.

    Large ones get a prefix, as in "198 M".
    """
    if float(value).is_integer() and abs(value) < _COUNTED:
        return f"{value:.0f}".replace("-", MINUS)
    if abs(value) < _COUNTED:
        return three_digits(value)
    return _prefixed(value)


def ratio_text(ratio: float | None) -> str:
    """Return "×1.0013" near 1, "×3.16" further away, empty where there is none."""
    if ratio is None or not math.isfinite(ratio):
        return ""
    return f"×{ratio:.4f}" if abs(ratio - 1) < _NEAR else f"×{three_digits(ratio)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    """One unit and one number of decimals for all times of a table, so that they add up to see."""

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
        """Return a time without its unit, which stands in the head of its column."""
        if ns is None:
            return NOT_MEASURED
        return f"{ns / self.size_ns:.{self.decimals}f}".replace("-", MINUS)

    def signed(self, ns: float) -> str:
        """Return a change with its sign, a bare 0 where it rounds to nothing."""
        text = self.number(abs(ns))
        if not float(text):
            return text
        return f"{'+' if ns > 0 else MINUS}{text}"


def _unit(ns: float) -> tuple[float, str]:
    return next((pair for pair in _TIMES if abs(ns) >= pair[0]), _TIMES[-1])


def _prefixed(value: float) -> str:
    """Return "4.58 G", "0" and "12", to be followed by the unit."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{three_digits(value / size)} {prefix}"
    return number_text(value)
