"""Numbers as a profiler printed them: the convention of a whole file decided, then each read.

Profilers print numbers as the locale of their user does: 1,234.5 or 1.234,5. One cell can often be
read in two ways, so a convention counts only when all cells of the file fit it, and a file that
two conventions fit with different values is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from envcompare.profile_files.refusing import refusal

_MARKS: Final = r"[\d.,'\u2019\u202f\u00a0 ]"
_LOOK: Final = re.compile(rf"[+-]?{_MARKS}*\d{_MARKS}*(?:[eE][+-]?\d+)?")
# ncu prints scaled values with six decimals and a point whatever the locale, beside grouped ones
_FIXED: Final = re.compile(r"[+-]?\d+\.\d{6}")
_MISSING: Final = frozenset({"", "n/a", "nan", "-nan", "inf", "-inf", "(nan)", "no data"})
_HINT: Final = (
    "write the file again with `LC_ALL=C ncu --import … --csv --page raw --print-units base`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a locale writes numbers."""

    name: str
    pattern: re.Pattern[str]
    groups: str
    decimal: str

    def fits(self, text: str) -> bool:
        """Say whether the text is a number of this convention, groups where they must be."""
        return bool(self.pattern.fullmatch(text) or _FIXED.fullmatch(text))

    def value(self, text: str) -> float:
        """Return the number; the text must fit, or be one that is printed without the locale."""
        if _FIXED.fullmatch(text):
            return float(text)
        kept = "".join(char for char in text if char not in self.groups)
        return float(kept.replace(self.decimal, "."))


def _convention(name: str, *, groups: str, decimal: str, pairs: bool = False) -> Convention:
    """Return a convention whose groups are of three digits, or of two before the last three."""
    point, between = re.escape(decimal), f"[{re.escape(groups)}]" if groups else ""
    whole = r"\d+"
    if groups:
        middle = rf"(?:{between}\d{{2}})*{between}\d{{3}}" if pairs else rf"(?:{between}\d{{3}})+"
        first = r"[1-9]\d?" if pairs else r"[1-9]\d{0,2}"
        whole = rf"(?:\d{{1,3}}|{first}{middle})"
    pattern = re.compile(rf"[+-]?{whole}(?:{point}\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
    return Convention(name=name, pattern=pattern, groups=groups, decimal=decimal)


PLAIN: Final = _convention("1234.5", groups="", decimal=".")
"""The convention of LC_ALL=C."""

CONVENTIONS: Final = (
    PLAIN,
    _convention("1234,5", groups="", decimal=","),
    _convention("1,234.5", groups=",", decimal="."),
    _convention("12,34,567.5", groups=",", decimal=".", pairs=True),
    _convention("1.234,5", groups=".", decimal=","),
    _convention("1 234,5", groups="\u202f\u00a0 ", decimal=","),
    _convention("1 234.5", groups="\u202f\u00a0 ", decimal="."),
    _convention("1'234.5", groups="'\u2019", decimal="."),
)


def is_missing(text: str) -> bool:
    """Say whether a cell holds no number: empty, n/a or not finite."""
    return text.strip().lower() in _MISSING


def looks_like_number(text: str) -> bool:
    """Say whether a cell may be a number of some convention."""
    return _LOOK.fullmatch(text) is not None


def _is_evidence(text: str) -> bool:
    return looks_like_number(text) and not _FIXED.fullmatch(text)


def decide(cells: Iterable[tuple[int, str]], *, file: str) -> Convention:
    """Return the one convention that all cells, each with its line, fit.

    Raises ProfileError where none does, or where several do and read a cell differently.
    """
    first_line: dict[str, int] = {}
    for line, text in cells:
        if text not in first_line:
            first_line[text] = line
    for text in [one for one in first_line if not _is_evidence(one)]:
        del first_line[text]
    fitting = list(CONVENTIONS)
    for text, line in first_line.items():
        remaining = [one for one in fitting if one.fits(text)]
        if not remaining:
            names = " or ".join(one.name for one in fitting)
            why = f"{text!r} is no number as the lines above write them ({names})"
            raise refusal(file, line=line, why=why, hint=_HINT)
        fitting = remaining
    _refuse_two_readings(fitting, first_line, file)
    return fitting[0]


def _refuse_two_readings(
    fitting: list[Convention], first_line: Mapping[str, int], file: str
) -> None:
    for text, line in first_line.items():
        readings = {one.value(text): one.name for one in reversed(fitting)}
        if len(readings) > 1:
            told = " or ".join(f"{value:g} (as {name})" for value, name in readings.items())
            why = f"{text!r} may be {told}, and no other number of the file settles it"
            raise refusal(file, line=line, why=why, hint=_HINT)
