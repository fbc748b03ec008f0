"""The units in which NVIDIA's profilers print, and the base unit each is brought to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_PREFIXES: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_TIMES: Final = {
    "nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "µs": 1e3, "msecond": 1e6, "ms": 1e6,
    "second": 1e9, "s": 1e9,
}  # fmt: skip
_COUNTS: Final = frozenset({
    "block", "cta", "cycle", "dsects", "inst", "instruction", "op", "ops", "register", "request",
    "sector", "thread", "thread_inst", "warp", "wavefront", "tag", "access", "node", "item",
})  # fmt: skip


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
    above = _part(upper)
    if above is None or not line:
        return above
    below = _part(lower)
    if below is None or not lower:
        return None
    if below.base == "ns":
        return Unit(above.factor * (1e9 / below.factor), f"{above.base}/s")
    return Unit(above.factor / below.factor, f"{above.base}/{below.base}")


def _part(text: str) -> Unit | None:
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
