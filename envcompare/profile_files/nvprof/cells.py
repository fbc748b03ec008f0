"""Numbers with units as nvprof prints them, each with how exactly it is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from envcompare.profile_files.units import read_unit

_NUMBER: Final = re.compile(r"(\d+(?:\.(\d+))?(?:[eE]([+-]?\d+))?)\s*(\S*)", re.ASCII)
_NONE: Final = frozenset({"nan", "-nan", "inf", "-inf", "<OVERFLOW>"})
_LEVEL: Final = re.compile(r"(?:Idle|Low|Mid|High|Max) \((\d+)\)")


@dataclass(frozen=True, slots=True)
class Number:
    """A value in its base unit, and by how much the last printed digit counts."""

    value: float
    step: float
    unit: str

    @property
    def is_rounded(self) -> bool:
        """Say whether whole counts are lost in it, as in 2.1092e+10."""
        return not self.unit and self.step > 1


def is_no_number(text: str) -> bool:
    """Say whether nvprof wrote that it could not compute a rate, as of no time or no cycles."""
    return text.strip().rstrip("%").removesuffix("B/s") in _NONE


def read_number(text: str, unit: str = "") -> Number | None:
    """Return the number in a cell, whose unit stands behind it or in a row of its own.

    None for a text that is none, or whose unit is not known. A level as `Mid (5)` is its number.
    """
    level = _LEVEL.fullmatch(text.strip())
    if level:
        return Number(float(level[1]), 0.0, "")
    found = _NUMBER.fullmatch(text.strip())
    measured = read_unit(found[4] or unit) if found else None
    if found is None or measured is None:
        return None
    step = 10.0 ** (int(found[3] or 0) - len(found[2] or ""))
    return Number(float(found[1]) * measured.factor, step * measured.factor, measured.base)
