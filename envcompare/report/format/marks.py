"""Where the small drawings stand: interval marks inside the margin, and start-up bars."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.model.comparison import Comparison, Estimate, LadderStep, Outcome
from envcompare.report.format.numbers import MINUS, change

WIDTH: Final = 240.0
CHANGE_WIDTH: Final = 120.0
_LEAST_SEEN: Final = 0.5
_PAD: Final = 8.0
_LEAST_BANDS: Final = 2.0  # the axis reaches at least twice the margin to each side
_MOST_BANDS: Final = 15.0  # what lies beyond is drawn at the edge with an arrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The range of log ratios that all marks of a page share; left is faster."""

    low: float
    high: float
    low_label: str
    high_label: str
    band: float  # ln(1 + margin)

    def x(self, log_ratio: float) -> float:
        """Return the place of a log ratio, at the edge where it lies outside."""
        share = (log_ratio - self.low) / (self.high - self.low)
        return _PAD + min(1.0, max(0.0, share)) * (WIDTH - 2 * _PAD)

    @property
    def percents(self) -> tuple[float, float]:
        """Return both ends as changes in percent."""
        return 100 * change(self.low), 100 * change(self.high)

    @property
    def band_percents(self) -> tuple[float, float]:
        """Return both edges of the band as changes in percent."""
        return 100 * change(-self.band), 100 * change(self.band)

    def percent(self, log_ratio: float) -> float:
        """Return a change in percent, at the edge where it lies outside."""
        return 100 * change(min(self.high, max(self.low, log_ratio)))

    def beyond(self, estimate: Estimate) -> tuple[bool, bool]:
        """Say whether an estimate or its interval leaves the axis to the left, to the right."""
        figures = (estimate.log_ratio, estimate.low, estimate.high)
        places = [one for one in figures if one is not None]
        return min(places) < self.low, max(places) > self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One interval as drawn: places from 0 to WIDTH, one decimal."""

    outcome: Outcome
    band_x: str
    band_width: str
    zero_x: str
    x: str
    low_x: str
    high_x: str
    has_interval: bool
    beyond: tuple[bool, bool]  # whether the interval leaves the axis to the left, to the right


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a start-up bar, places from 0 to 100."""

    phase: str
    x: str
    width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A signed bar from the middle: left is less, right is more; places from 0 to CHANGE_WIDTH."""

    way: str  # "less", "more", or empty where it is too short to be seen
    x: str
    width: str


def signed_bar(change: float, *, largest: float) -> Change:
    """Return the bar of a change; the largest change fills its half."""
    half = CHANGE_WIDTH / 2
    width = half * min(1.0, abs(change) / largest) if largest > 0 else 0.0
    way = "" if width < _LEAST_SEEN else "less" if change < 0 else "more"
    return Change(way=way, x=_place(half - width if change < 0 else half), width=_place(width))


def axis(comparisons: Iterable[Comparison | LadderStep], *, margin: float) -> Axis:
    """Return an axis that holds all intervals, within reason, and the band."""
    band = math.log1p(max(margin, 1e-4))
    ends = [0.0]
    for comparison in comparisons:
        if comparison.deciding is not None:
            figures = (
                comparison.deciding.log_ratio,
                comparison.deciding.low,
                comparison.deciding.high,
            )
            ends += [end for end in figures if end is not None]
    low = min(95, math.ceil(-100 * change(-_reach(-min(ends), band))))
    high = math.ceil(100 * change(_reach(max(ends), band)))
    return Axis(
        low=math.log1p(-low / 100),
        high=math.log1p(high / 100),
        low_label=f"{MINUS}{low} %",
        high_label=f"+{high} %",
        band=band,
    )


def mark(estimate: Estimate | None, outcome: Outcome, *, on: Axis) -> Mark | None:
    """Return the drawing of an estimate, None where nothing was measured."""
    if estimate is None:
        return None
    low = estimate.log_ratio if estimate.low is None else estimate.low
    high = estimate.log_ratio if estimate.high is None else estimate.high
    return Mark(
        outcome=outcome,
        band_x=_place(on.x(-on.band)),
        band_width=_place(on.x(on.band) - on.x(-on.band)),
        zero_x=_place(on.x(0.0)),
        x=_place(on.x(estimate.log_ratio)),
        low_x=_place(on.x(low)),
        high_x=_place(on.x(high)),
        has_interval=estimate.low is not None and estimate.high is not None,
        beyond=on.beyond(estimate),
    )


def segments(parts: Iterable[tuple[str, float]], *, longest: float) -> tuple[Segment, ...]:
    """Stack durations into one bar; `longest` fills the width."""
    stacked, start = [], 0.0
    for phase, seconds in parts:
        width = 100 * seconds / longest if longest > 0 else 0.0
        stacked.append(Segment(phase=phase, x=f"{start:.2f}", width=f"{width:.2f}"))
        start += width
    return tuple(stacked)


def _reach(extent: float, band: float) -> float:
    return min(max(_LEAST_BANDS * band, 1.08 * extent), _MOST_BANDS * band)


def _place(value: float) -> str:
    return f"{value:.1f}"
