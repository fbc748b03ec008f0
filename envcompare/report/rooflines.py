"""The roofline of a cell: places of roofs and points on two logarithmic axes, and their table.

Only this module and its template know that the chart is SVG written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from envcompare.analysis.profilemodel import CellProfiles, Roof, Roofline, RooflinePoint
from envcompare.report.kernels import short_name
from envcompare.report.numbers import NOT_MEASURED, listed, three_digits
from envcompare.report.units import quantity_text, time_text
from envcompare.texts import counted

WIDTH: Final = 640
HEIGHT: Final = 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 92.0, 612.0, 14.0, 332.0
_SHAPES: Final = ("circle", "square", "triangle", "diamond", "cross")
_COLOURS: Final = 7
_MOST_POINTS: Final = 60
_LEAST, _MOST = 1e-12, 1e24  # FLOP per byte, and FLOP/s: beyond is no measurement
_MOST_TICKS: Final = 12
_APART: Final = 14.0  # px that two lines of text need
_PREFIXES: Final = {0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A line of the grid with its number."""

    place: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A roof: its ends and its label."""

    x1: str
    y1: str
    x2: str
    y2: str
    label: str
    label_x: str
    label_y: str
    angle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One point as drawn; the shape tells the arm, the size whether it is a total."""

    x: str
    y: str
    shape: str
    colour: int
    is_total: bool
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One arm in the key."""

    arm: str
    shape: str
    colour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineView:
    """The chart of one cell, its sentences and the table of its points."""

    device: str
    source: str
    description: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...]
    series: tuple[Series, ...]
    roofs: tuple[tuple[str, str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Both axes, in decades."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int

    def x(self, intensity: float) -> float:
        share = (math.log10(intensity) - self.x_low) / (self.x_high - self.x_low)
        return _LEFT + share * (_RIGHT - _LEFT)

    def y(self, flops_per_s: float) -> float:
        share = (math.log10(flops_per_s) - self.y_low) / (self.y_high - self.y_low)
        return _BOTTOM - share * (_BOTTOM - _TOP)


def roofline_view(one: CellProfiles) -> RooflineView | None:
    """Return the chart of a cell, None where no point can stand on it."""
    roofline = one.roofline
    if roofline is None:
        return None
    placed = tuple(point for point in roofline.points if _is_placed(point))[:_MOST_POINTS]
    roofs = _drawn(roofline)
    if not placed or not roofs:
        return None
    frame = _frame(roofs, placed)
    series = _series(one)
    return RooflineView(
        device=roofline.device,
        source=f"{'measured' if roofline.is_measured else 'from the table'}: {roofline.source}",
        description=_description(roofline, placed),
        x_ticks=tuple(
            Tick(place=_place(frame.x(10.0**decade)), text=_decade(decade, prefixed=False))
            for decade in _steps(frame.x_low, frame.x_high)
        ),
        y_ticks=tuple(
            Tick(
                place=_place(frame.y(10.0**decade)), text=f"{_decade(decade, prefixed=True)}FLOP/s"
            )
            for decade in _steps(frame.y_low, frame.y_high)
        ),
        lines=(*_slope(roofline, roofs, frame), *_flats(roofs, frame)),
        dots=tuple(_dot(point, frame, series[point.arm]) for point in placed),
        series=tuple(series.values()),
        roofs=tuple(
            (roof.precision, quantity_text(roof.flops_per_s, "FLOP/s"), _intensity(roof.ridge))
            for roof in roofline.roofs
        ),
        rows=tuple(_row(point) for point in roofline.points[:_MOST_POINTS]),
        notes=(*roofline.missing, *roofline.notes),
    )


def _is_placed(point: RooflinePoint) -> bool:
    return _is_drawable(point.intensity) and _is_drawable(point.flops_per_s)


def _is_drawable(value: float | None) -> bool:
    """Say whether a logarithmic axis can hold a value beside those of real devices."""
    return value is not None and _LEAST <= value <= _MOST


def _drawn(roofline: Roofline) -> tuple[Roof, ...]:
    """Return the roofs of precisions in use, or all of them, the highest first."""
    found = [roof for roof in roofline.roofs if _is_drawable(roof.flops_per_s)]
    used = [roof for roof in found if roof.is_used]
    return tuple(sorted(used or found, key=lambda roof: -roof.flops_per_s))


def _frame(roofs: tuple[Roof, ...], points: tuple[RooflinePoint, ...]) -> _Frame:
    ridges = [roof.ridge for roof in roofs if roof.ridge and _is_drawable(roof.ridge)]
    xs = [*ridges, *(point.intensity or 1.0 for point in points)]
    ys = [*(roof.flops_per_s for roof in roofs), *(point.flops_per_s for point in points)]
    x_low, x_high = _decades(xs)
    y_low, y_high = _decades(ys)
    return _Frame(x_low=x_low, x_high=x_high, y_low=y_low, y_high=y_high)


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """Return whole decades with room around the values."""
    logs = [math.log10(value) for value in values]
    return math.floor(min(logs) - 0.15), math.ceil(max(logs) + 0.15)


def _steps(low: int, high: int) -> range:
    """Return the decades that get a line, so many apart that their numbers have room."""
    return range(low, high + 1, 1 + (high - low) // _MOST_TICKS)


def _slope(roofline: Roofline, roofs: tuple[Roof, ...], frame: _Frame) -> tuple[Line, ...]:
    """Return the memory roof, from the edge of the chart up to the highest ridge."""
    bandwidth = roofline.bytes_per_s
    if not bandwidth or not _is_drawable(bandwidth):
        return ()
    start = max(10.0**frame.x_low, 10.0**frame.y_low / bandwidth)
    end = min(10.0**frame.x_high, roofs[0].flops_per_s / bandwidth)
    if end <= start:
        return ()
    x1, y1 = frame.x(start), frame.y(start * bandwidth)
    x2, y2 = frame.x(end), frame.y(end * bandwidth)
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    text = f"{roofline.level} {quantity_text(bandwidth, 'B/s')}"
    middle = (x1 + 0.4 * (x2 - x1), y1 + 0.4 * (y2 - y1) - 7)
    return (_line((x1, y1, x2, y2), text, middle, angle=angle),)


def _flats(roofs: tuple[Roof, ...], frame: _Frame) -> tuple[Line, ...]:
    """Return the compute roofs; a label that would lie on the one above goes below its line."""
    found, last = [], -math.inf
    for roof in roofs:
        y = frame.y(roof.flops_per_s)
        x = frame.x(roof.ridge) if roof.ridge and _is_drawable(roof.ridge) else _LEFT
        label_y = y - 5 if y - 5 - last >= _APART else y + 12
        last = label_y
        text = f"{roof.precision} {quantity_text(roof.flops_per_s, 'FLOP/s')}"
        found.append(_line((max(x, _LEFT), y, _RIGHT, y), text, (_RIGHT - 4, label_y)))
    return tuple(found)


def _line(
    ends: tuple[float, float, float, float],
    label: str,
    at: tuple[float, float],
    *,
    angle: float = 0.0,
) -> Line:
    x1, y1, x2, y2 = map(_place, ends)
    return Line(
        x1=x1,
        y1=y1,
        x2=x2,
        y2=y2,
        label=label,
        label_x=_place(at[0]),
        label_y=_place(at[1]),
        angle=_place(angle),
    )


def _series(one: CellProfiles) -> dict[str, Series]:
    """Give each arm a shape and a colour, the same in every chart of the cell."""
    names = dict.fromkeys((one.reference, *(arm.arm for arm in one.arms)))
    if one.roofline is not None:
        names.update(dict.fromkeys(point.arm for point in one.roofline.points))
    return {
        arm: Series(arm=arm, shape=_SHAPES[place % len(_SHAPES)], colour=1 + place % _COLOURS)
        for place, arm in enumerate(names)
    }


def _dot(point: RooflinePoint, frame: _Frame, series: Series) -> Dot:
    return Dot(
        x=_place(frame.x(point.intensity or 1.0)),
        y=_place(frame.y(point.flops_per_s)),
        shape=series.shape,
        colour=series.colour,
        is_total=point.is_total,
        title=f"{point.arm}, {_name(point)}, {point.precision}: "
        f"{quantity_text(point.flops_per_s, 'FLOP/s')}",
    )


def _row(point: RooflinePoint) -> tuple[str, ...]:
    share = point.time_share
    return (
        point.arm,
        _name(point),
        point.precision,
        quantity_text(point.flops, "FLOP"),
        quantity_text(point.bytes, "B"),
        _intensity(point.intensity),
        time_text(point.time_ns),
        "" if share is None else f"{100 * share:.1f} % of all",
        quantity_text(point.flops_per_s, "FLOP/s"),
        quantity_text(point.attainable_flops_per_s, "FLOP/s"),
        f"bound by {point.bound}" if point.bound else "",
    )


def _name(point: RooflinePoint) -> str:
    return "all kernels" if point.is_total else short_name(point.name)


def _intensity(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{three_digits(value)} FLOP/B"


def _description(roofline: Roofline, placed: tuple[RooflinePoint, ...]) -> str:
    arms = listed(list(dict.fromkeys(point.arm for point in placed)), most=5)
    return (
        f"Achieved FLOP/s over FLOP per byte of {roofline.level}, both logarithmic: "
        f"{counted(len(placed), 'point')} of {arms} below the roofs of {roofline.device}. "
        "The table below holds the same numbers."
    )


def _decade(decade: int, *, prefixed: bool) -> str:
    """Return a power of ten: "100 G" with a prefix, "0.01" and "1000" without."""
    if not prefixed:
        return f"{10.0**decade:g}"
    step = max(0, min(18, 3 * (decade // 3)))
    return f"{10.0 ** (decade - step):g} {_PREFIXES[step]}"


def _place(value: float) -> str:
    return f"{value:.1f}"
