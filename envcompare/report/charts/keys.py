"""The key below a chart: a mark and a text for each series or part, in lines as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt

from envcompare.report.charts.layers import Declared, down, layered, own_colour, rows, text_width

_LINE: Final = 20.0
_MARK: Final = 18.0  # px from the mark to its text
_LINED: Final = 34.0  # likewise with a line through the mark
_GAP: Final = 18.0
_SIZE: Final = 90  # px², area of a mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry: colour and shape, and the dash where lines are drawn."""

    text: str
    colour: str
    shape: str = "square"
    opacity: float = 1.0
    dash: tuple[int, ...] | None = None


def with_key(chart: Declared, keys: Sequence[Key], *, width: float, below: float) -> Declared:
    """Put the key `below` px under the data, which leaves room for the axis."""
    placed = _placed(keys, width)
    height = max(row["y"] for row in placed) + _LINE / 2
    y = down("y", height)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, width], nice=False))
    texts: alt.Chart = rows(placed).mark_text(align="left", baseline="middle", aria=False)
    marks: alt.Chart = rows(placed).mark_point(
        filled=True, size=_SIZE, opacity=1, strokeWidth=1.2, aria=False
    )
    lines: alt.Chart = rows(row for row in placed if row["dash"]).mark_rule(
        strokeWidth=1.6, aria=False
    )
    layers = (
        lines.encode(
            x=alt.X("from:Q", axis=None),
            x2=alt.X2("to:Q"),
            y=y,
            color=own_colour(),
            strokeDash=alt.StrokeDash("dash:N", scale=None),
        ),
        marks.encode(
            x=x,
            y=y,
            fill=alt.Fill("colour:N", scale=None),
            stroke=alt.Stroke("colour:N", scale=None),
            fillOpacity=alt.FillOpacity("opacity:Q", scale=None),
            shape=alt.Shape("shape:N", scale=None),
        ),
        texts.encode(x=alt.X("at:Q", axis=None), y=y, text=alt.Text("text:N")),
    )
    drawing = layered(layers, width=width, height=height)
    return {"vconcat": [chart, drawing], "spacing": below, "bounds": "flush"}


def _placed(keys: Sequence[Key], width: float) -> list[dict[str, Any]]:
    """Set the entries from left to right, a new line where the next would not fit."""
    found, x, y = [], 0.0, _LINE / 2
    for key in keys:
        mark = _LINED if key.dash else _MARK
        needed = mark + text_width(key.text)
        if x and x + needed > width:
            x, y = 0.0, y + _LINE
        found.append(
            {
                "x": x + mark / 2 - 4,
                "from": x,
                "to": x + mark - 8,
                "at": x + mark,
                "y": y,
                "text": key.text,
                "colour": key.colour,
                "shape": key.shape,
                "opacity": key.opacity,
                "dash": list(key.dash) if key.dash else None,
            }
        )
        x += needed + _GAP
    return found
