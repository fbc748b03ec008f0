"""Numbers and units as profilers print them: read exactly, or refused.

Nsight Compute prints numbers as the locale of its user does. One cell can often be read in two
ways: 1.234 is above a thousand in German. So a convention counts only when all cells of the file
fit it, and a file that two conventions fit with different values is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.profile_files.rawfiles import refusal

_MARKS: Final = r"[\d.,'\u2019\u202f\u00a0 ]"  # of any locale, so that none is taken for a text
_LOOK: Final = re.compile(rf"[+-]?{_MARKS}*\d{_MARKS}*(?:[eE][+-]?\d+)?")
# ncu prints scaled values with six decimals and a point whatever the locale, beside grouped ones
_FIXED: Final = re.compile(r"[+-]?\d+\.\d{6}")
_MISSING: Final = frozenset({"", "n/a", "nan", "-nan", "inf", "-inf", "(nan)", "no data"})
_HINT: Final = (
    "write the file again with `LC_ALL=C ncu --import … --csv --page raw --print-units base`"
)
_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_TIMES: Final = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "µs": 1e3, "msecond": 1e6, "ms": 1e6,
    "second": 1e9, "s": 1e9,
}  # fmt: skip
_COUNTS: Final = frozenset({
    "block", "cta", "cycle", "dsects", "inst", "instruction", "op", "ops", "register", "request",
    "sector", "thread", "thread_inst", "warp", "wavefront", "tag", "access", "node", "item",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """How a locale writes numbers."""

    name: str
    groups: str
    decimal: str
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, name: str, *, groups: str, decimal: str) -> Convention:
        """Return a convention whose groups are of three digits, and stand wherever they can."""
        whole = (
            rf"(?:\d{{1,3}}|[1-9]\d{{0,2}}(?:{re.escape(groups)}\d{{3}})+)" if groups else r"\d+"
        )
        pattern = rf"[+-]?{whole}(?:{re.escape(decimal)}\d+)?(?:[eE][+-]?\d+)?"
        return cls(name=name, groups=groups, decimal=decimal, pattern=re.compile(pattern, re.ASCII))

    def fits(self, text: str) -> bool:
        """Say whether the text is a number of this convention, groups where they must be."""
        return bool(self.pattern.fullmatch(text) or _FIXED.fullmatch(text))

    def value(self, text: str) -> float:
        """Return the number; the text must fit, or be one that is printed without the locale."""
        if _FIXED.fullmatch(text):
            return float(text)
        plain = text.replace(self.groups, "") if self.groups else text
        return float(plain.replace(self.decimal, "."))


_CONVENTIONS: Final = (
    Convention.of("1234.5", groups="", decimal="."),
    Convention.of("1,234.5", groups=",", decimal="."),
    Convention.of("1.234,5", groups=".", decimal=","),
)
"""Those of LC_ALL=C, and of English and German locales."""


def is_missing(text: str) -> bool:
    """Say whether a cell holds no number: empty, n/a or not finite."""
    return text.strip().lower() in _MISSING


def decide(cells: Iterable[tuple[int, str]], *, file: str) -> Convention:
    """Return the one convention that all cells, each with its line, fit.

    Raises ProfileError where none does, or where several do and read a cell differently.
    """
    lines: dict[str, int] = {}
    for line, text in cells:
        if text not in lines:
            lines[text] = line
    numbers = {text: line for text, line in lines.items() if _is_evidence(text)}
    fitting = list(_CONVENTIONS)
    for text, line in numbers.items():
        remaining = [convention for convention in fitting if convention.fits(text)]
        if not remaining:
            names = " or ".join(convention.name for convention in fitting)
            why = f"{text!r} is no number as the lines above write them ({names})"
            raise refusal(file, line=line, why=why, hint=_HINT)
        fitting = remaining
    for text, line in numbers.items():
        readings = {convention.value(text): convention.name for convention in reversed(fitting)}
        if len(readings) > 1:
            told = " or ".join(f"{value:g} (as {name})" for value, name in readings.items())
            why = f"{text!r} may be {told}, and no other number of the file settles it"
            raise refusal(file, line=line, why=why, hint=_HINT)
    return fitting[0]


def _is_evidence(text: str) -> bool:
    return _LOOK.fullmatch(text) is not None and not _FIXED.fullmatch(text)


@dataclass(frozen=True, slots=True)
class Unit:
    """By what a number is multiplied, and the base unit it is in then."""

    factor: float
    base: str


def read_unit(text: str) -> Unit | None:
    """Return the unit a profiler wrote, as `Mbyte/second`; None where it is not known.

    Times become ns, sizes B, rates are per second; multiples are of 1000, as ncu's are.
    """
    upper, line, lower = text.strip().partition("/")
    above = _unit(upper)
    if above is None or not line:
        return above
    below = _unit(lower)
    if below is None or not lower:
        return None
    if below.base == "ns":
        return Unit(above.factor * (1e9 / below.factor), f"{above.base}/s")
    return Unit(above.factor / below.factor, f"{above.base}/{below.base}")


def _unit(text: str) -> Unit | None:
    if text in _TIMES:
        return Unit(_TIMES[text], "ns")
    if text in {"", "%"}:
        return Unit(1.0, text)
    word = text.lower()
    short = ("b", "B") if text.endswith("B") else ("byte", "B")
    for ending, base in (("byte", "B"), short, ("hz", "cycle/s")):
        if word.endswith(ending) and word.removesuffix(ending) in _PREFIXES:
            return Unit(_PREFIXES[word.removesuffix(ending)], base)
    noun = word if word in _COUNTS else word.removesuffix("s")
    return Unit(1.0, noun) if noun in _COUNTS else None
