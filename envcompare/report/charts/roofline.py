"""The roofline of a cell: the limits of a device, and what each arm achieved.

Both axes are logarithmic, so the memory bound is a straight slope.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import altair as alt

from envcompare.analysis.model.profiling import CellProfiles, Roof, Roofline, RooflinePoint
from envcompare.report.charts import (
    Chart,
    Declared,
    Key,
    Palette,
    Style,
    chart_name,
    label,
    layered,
    marks,
    shown,
    styles,
    with_key,
)
from envcompare.report.wording import (
    listed,
    quantity_text,
    short_name,
)
from envcompare.text import counted

MOST_POINTS: Final = 60
_WIDTH: Final = 580
_HEIGHT: Final = 320
_BELOW: Final = 46.0
_LEAST, _MOST = 1e-12, 1e24  # FLOP per byte, and FLOP/s; values beyond are not measurements
_MOST_TICKS: Final = 12
_APART: Final = 14.0  # px for two lines of text
_FILLED: Final = 0.5  # marks at the same position show through each other
_ALONG: Final = 0.4  # of the slope, at the position of its label


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Both axes, in decades."""

    x_low: int
    x_high: int
    y_low: int
    y_high: int

    @property
    def x_pixels(self) -> float:
        """Return the width of a decade."""
        return _WIDTH / (self.x_high - self.x_low)

    @property
    def y_pixels(self) -> float:
        """Return the height of a decade."""
        return _HEIGHT / (self.y_high - self.y_low)

    def above(self, flops_per_s: float, pixels: float) -> float:
        """Return the FLOP/s this many pixels higher."""
        return float(flops_per_s * 10.0 ** (pixels / self.y_pixels))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A roof: its ends, and the position of its label."""

    ends: tuple[tuple[float, float], tuple[float, float]]
    text: str
    at: tuple[float, float]


def roofline_chart(profiles: CellProfiles, *, where: str) -> Chart | None:
    """Return the chart of a cell, None if it can draw no point."""
    roofline = profiles.roofline
    if roofline is None:
        return None
    placed = tuple(
        point
        for point in roofline.points[:MOST_POINTS]
        if _is_drawable(point.intensity) and _is_drawable(point.flops_per_s)
    )
    drawable = [roof for roof in roofline.roofs if _is_drawable(roof.flops_per_s)]
    used = [roof for roof in drawable if roof.is_used]
    roofs = tuple(sorted(used or drawable, key=lambda roof: -roof.flops_per_s))
    if not placed or not roofs:
        return None
    measured = (*(arm.arm for arm in profiles.arms), *(point.arm for point in roofline.points))
    looks = styles((profiles.reference, *measured))
    arms = listed([shown(arm) for arm in dict.fromkeys(point.arm for point in placed)], most=5)
    return Chart(
        name=chart_name("roofline", profiles.cell),
        title=f"Roofline of {shown(where)}",
        description=(
            f"Achieved FLOP/s over FLOP per byte of {shown(roofline.level)}, both logarithmic: "
            f"{counted(len(placed), 'point')} of {arms} below the roofs of "
            f"{shown(roofline.device)}. The table below holds the same numbers."
        ),
        declare=partial(_declared, roofline, roofs, placed, looks),
    )


def _declared(
    roofline: Roofline,
    roofs: tuple[Roof, ...],
    points: tuple[RooflinePoint, ...],
    looks: dict[str, Style],
    palette: Palette,
) -> Declared:
    ridges = [roof.ridge for roof in roofs if roof.ridge and _is_drawable(roof.ridge)]
    x_low, x_high = _around([*ridges, *(point.intensity or 1.0 for point in points)])
    y_low, y_high = _around([
        *(roof.flops_per_s for roof in roofs), *(point.flops_per_s for point in points)
    ])  # fmt: skip
    frame = _Frame(x_low=x_low, x_high=x_high, y_low=y_low, y_high=y_high)
    lines: list[_Line] = []
    left, right, last = 10.0**frame.x_low, 10.0**frame.x_high, math.inf
    for flat in roofs:
        height = flat.flops_per_s
        start = flat.ridge if flat.ridge and _is_drawable(flat.ridge) else left
        # A label that would overlap the one above goes below its line.
        is_free = frame.above(height, 8 + _APART) <= last
        last = frame.above(height, 8 if is_free else -9)
        text = f"{shown(flat.precision)} {quantity_text(height, 'FLOP/s')}"
        ends = (max(start, left), height), (right, height)
        lines.append(_Line(ends=ends, text=text, at=(right, last)))
    layers = [
        *_roofs(_slope(roofline, roofs, frame), lines, frame, palette),
        _points(points, looks, frame, palette),
    ]
    drawing = layered(layers, width=_WIDTH, height=_HEIGHT)
    arms = {point.arm: looks[point.arm] for point in points}
    arm_keys = [
        Key(text=label(arm), colour=palette.of(look.place), shape=look.shape, opacity=_FILLED)
        for arm, look in arms.items()
    ]
    filled = Key(text="filled: all kernels", colour=palette.mute, shape="circle", opacity=_FILLED)
    hollow = Key(text="open: one kernel", colour=palette.mute, shape="circle", opacity=0.0)
    return with_key(drawing, [*arm_keys, filled, hollow], width=_WIDTH, below=_BELOW)


def _axes(frame: _Frame) -> dict[str, alt.X | alt.Y]:
    return {
        "x": alt.X(
            "x:Q",
            title="arithmetic intensity, FLOP per byte (logarithmic)",
            scale=_logarithmic(frame.x_low, frame.x_high),
            axis=alt.Axis(values=_decades(frame.x_low, frame.x_high), format="~g"),
        ),
        "y": alt.Y(
            "y:Q",
            title="achieved FLOP/s (logarithmic)",
            scale=_logarithmic(frame.y_low, frame.y_high),
            axis=alt.Axis(
                values=_decades(frame.y_low, frame.y_high),
                format="~s",
                domain=False,
                titlePadding=12,
            ),
        ),
    }


def _logarithmic(low: int, high: int) -> alt.Scale:
    return alt.Scale(type="log", domain=[10.0**low, 10.0**high], nice=False)


def _decades(low: int, high: int) -> list[float]:
    """Return the decades with a grid line, far enough apart for their numbers."""
    return [10.0**one for one in range(low, high + 1, 1 + (high - low) // _MOST_TICKS)]


def _around(values: Iterable[float]) -> tuple[int, int]:
    logs = [math.log10(value) for value in values]
    return math.floor(min(logs) - 0.15), math.ceil(max(logs) + 0.15)


def _is_drawable(value: float | None) -> bool:
    """Say whether a value fits on a logarithmic axis with those of real devices."""
    return value is not None and _LEAST <= value <= _MOST


def _slope(roofline: Roofline, roofs: tuple[Roof, ...], frame: _Frame) -> list[_Line]:
    """Return the memory roof, from the edge of the chart to the highest ridge."""
    bandwidth = roofline.bytes_per_s
    if not bandwidth or not _is_drawable(bandwidth):
        return []
    start = max(10.0**frame.x_low, 10.0**frame.y_low / bandwidth)
    end = min(10.0**frame.x_high, roofs[0].flops_per_s / bandwidth)
    if end <= start:
        return []
    middle = start * (end / start) ** _ALONG
    return [
        _Line(
            ends=((start, start * bandwidth), (end, end * bandwidth)),
            text=f"{shown(roofline.level)} {quantity_text(bandwidth, 'B/s')}",
            at=(middle, middle * bandwidth),
        )
    ]


def _roofs(
    slope: list[_Line], flats: list[_Line], frame: _Frame, palette: Palette
) -> list[alt.Chart]:
    ends = [
        {"x": place[0], "y": place[1], "roof": number}
        for number, line in enumerate((*slope, *flats))
        for place in line.ends
    ]
    angle = -math.degrees(math.atan2(frame.y_pixels, frame.x_pixels)) % 360
    along = {"angle": angle, "dy": -9, "color": palette.text}
    over = {"align": "right", "baseline": "middle", "dx": -4, "color": palette.text}
    axes = _axes(frame)
    layers = [marks(ends, "line", {"color": palette.text, "strokeWidth": 2}, **axes, detail="roof")]
    for lines, look in ((slope, along), (flats, over)):
        labels = [{"x": line.at[0], "y": line.at[1], "text": line.text} for line in lines]
        if labels:
            layers.append(marks(labels, "text", look, **axes, text="text"))
    return layers


def _points(
    points: tuple[RooflinePoint, ...], looks: dict[str, Style], frame: _Frame, palette: Palette
) -> alt.Chart:
    records = [
        {
            "x": point.intensity,
            "y": point.flops_per_s,
            "colour": palette.of(looks[point.arm].place),
            "shape": looks[point.arm].shape,
            "filled": _FILLED if point.is_total else 0.0,
            "size": 120 if point.is_total else 60,
            "tip": f"{shown(point.arm)}, {point_name(point)}, {shown(point.precision)}: "
            f"{quantity_text(point.flops_per_s, 'FLOP/s')}",
        }
        for point in points
    ]
    look = {"fillOpacity": "filled", "shape": "shape", "size": "size", "description": "tip"}
    return marks(
        records,
        "point",
        {"strokeWidth": 1.8, "opacity": 1},
        **_axes(frame),
        stroke="colour",
        fill="colour",
        **look,
    )


def point_name(point: RooflinePoint) -> str:
    """Return the name of a point."""
    return shown(short_name(point.name))
