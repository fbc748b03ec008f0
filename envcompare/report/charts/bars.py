"""Stacked bars: each row a whole, its parts in order, with a key below the axis.

A letter in each part leads to the key, so that no part is told by its colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from string import ascii_uppercase
from typing import Any, Final

import altair as alt

from envcompare.report.charts.keys import Key, with_key
from envcompare.report.charts.layers import (
    Declared,
    across,
    down,
    layered,
    names,
    own_colour,
    padding,
    rows,
    text_width,
)
from envcompare.report.charts.palette import Palette

WIDTH: Final = 480
_LANE: Final = 32.0
_THICK: Final = 22.0
_AXIS: Final = 44.0  # px that the axis below needs
_PALE: Final = 0.3
_ROOM: Final = 1.15  # of the longest bar, so that its total stands beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of part, at the same place in every bar; a pale one has an edge of its colour."""

    name: str
    place: int  # of its colour in the palette
    is_pale: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of one bar."""

    size: float
    text: str
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row, with a segment for each of the parts."""

    name: str
    segments: tuple[Segment, ...]
    total: str

    @property
    def size(self) -> float:
        """Return how long the bar is."""
        return sum(one.size for one in self.segments)


def stacked(
    palette: Palette, *, bars: Sequence[Bar], parts: Sequence[Part], title: str
) -> Declared:
    """Declare the bars below each other on one axis that starts at 0; one must be above it."""
    height, end = _LANE * len(bars), _ROOM * max(bar.size for bar in bars)
    segments = [
        row
        for place, bar in enumerate(bars)
        for row in _rows(bar, parts, top=_LANE * place, scale=WIDTH / end, palette=palette)
    ]
    x, y = across("x", (0.0, end), title=title), down("y", height)
    boxes: alt.Chart = rows(segments).mark_rect(strokeWidth=1)
    inside: alt.Chart = rows(row for row in segments if row["text"]).mark_text(
        baseline="middle", fontWeight="bold", aria=False
    )
    totals: alt.Chart = rows(_totals(bars)).mark_text(
        align="left", baseline="middle", dx=6, color=palette.mute, aria=False
    )
    layers = (
        boxes.encode(
            x=x,
            x2=alt.X2("x2:Q"),
            y=y,
            y2=alt.Y2("y2:Q"),
            fill=alt.Fill("colour:N", scale=None),
            fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
            stroke=alt.Stroke("edge:N", scale=None),
            description=alt.Description("tip:N"),
        ),
        inside.encode(
            x=alt.X("middle_x:Q"),
            y=down("middle", height),
            text=alt.Text("text:N"),
            color=own_colour("ink"),
        ),
        totals.encode(x=x, y=y, text=alt.Text("text:N")),
        names(_names(bars), height, colour=palette.text),
    )
    drawing = layered(layers, width=WIDTH, height=height)
    keyed = with_key(drawing, _keys(parts, palette), width=WIDTH, below=_AXIS)
    return {**keyed, "padding": padding(bar.name for bar in bars)}


def _rows(
    bar: Bar, parts: Sequence[Part], *, top: float, scale: float, palette: Palette
) -> list[dict[str, Any]]:
    """Return the boxes of one bar, each with as much text as it has room for."""
    ends = list(accumulate((one.size for one in bar.segments), initial=0.0))
    found = []
    for number, (part, segment) in enumerate(zip(parts, bar.segments, strict=True)):
        if not segment.size:
            continue
        found.append(
            {
                "x": ends[number],
                "x2": ends[number + 1],
                "middle_x": (ends[number] + ends[number + 1]) / 2,
                "y": top + (_LANE - _THICK) / 2,
                "y2": top + (_LANE + _THICK) / 2,
                "middle": top + _LANE / 2,
                "colour": palette.of(part.place),
                "opacity": _PALE if part.is_pale else 1.0,
                "edge": palette.of(part.place) if part.is_pale else palette.back,
                "ink": palette.text if part.is_pale else palette.back,
                "text": _fitting(_letter(number), segment.text, room=segment.size * scale),
                "tip": segment.tip,
            }
        )
    return found


def _fitting(letter: str, text: str, *, room: float) -> str:
    both = f"{letter} {text}"
    return next((one for one in (both, letter) if text_width(one) + 4 <= room), "")


def _letter(number: int) -> str:
    return ascii_uppercase[number % len(ascii_uppercase)]


def _totals(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    return [
        {"x": bar.size, "y": _LANE * (place + 0.5), "text": bar.total}
        for place, bar in enumerate(bars)
    ]


def _names(bars: Sequence[Bar]) -> list[dict[str, Any]]:
    return [{"y": _LANE * (place + 0.5), "name": bar.name} for place, bar in enumerate(bars)]


def _keys(parts: Sequence[Part], palette: Palette) -> list[Key]:
    return [
        Key(
            text=f"{_letter(number)} {part.name}",
            colour=palette.of(part.place),
            opacity=_PALE if part.is_pale else 1.0,
        )
        for number, part in enumerate(parts)
    ]
