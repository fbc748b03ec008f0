"""Pieces that charts share: rows of data, axes, keys, and texts of the user made safe and short."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import altair as alt

from envcompare.analysis.model.comparison import Estimate
from envcompare.report.format.marks import Axis
from envcompare.text import shortened, visible_line

_OTHER: Final = re.compile(r"[^a-z0-9]+")
_LONGEST_SLUG: Final = 60
LABEL_GAP: Final = 10.0  # px between names of rows and what is drawn of them
SIGNED: Final = (  # labels of an axis of changes: our own text, with no name of the user in it
    "(datum.value > 0 ? '+' : datum.value < 0 ? '−' : '') + abs(datum.value) + ' %'"
)
_CHARACTER: Final = 6.8  # px; system fonts are wider than the one that Vega measures with
_WIDER: Final = 1.6  # px a character
Row = Mapping[str, object]
Declared = dict[str, Any]
"""A drawing as Vega-Lite takes it."""
_LINE: Final = 20.0
_MARK: Final = 18.0  # px from the mark to its text
_LINED: Final = 34.0  # likewise with a line through the mark
_GAP: Final = 18.0
_SIZE: Final = 90  # px², area of a mark


def shown(text: str, *, most: int = 120) -> str:
    """Return a name for a description: hidden characters visible, and not endless."""
    return shortened(visible_line(text), most=most)


def label(text: str, *, most: int = 20) -> str:
    """Return a name for a place in a chart that has room for `most` characters."""
    seen = visible_line(text[: 2 * most])
    return seen if len(text) <= most and len(seen) <= most else f"{seen[: most - 1]}…"


def chart_name(kind: str, *parts: str) -> str:
    """Return a name of [a-z0-9-]+ that no other parts give."""
    text = "/".join(parts)
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
    slug = _OTHER.sub("-", f"{kind}-{text}".lower())[:_LONGEST_SLUG].strip("-")
    return f"{slug}-{digest[:6]}"


def rows(records: Iterable[Row]) -> alt.Chart:
    """Return a chart of these rows; their keys are names of ours, for Vega reads dots in them.

    The rows are one text, which Altair need not copy with every mark and encoding.
    """
    text = json.dumps([dict(row) for row in records])
    return alt.Chart(alt.InlineData(values=text, format=alt.JsonDataFormat(type="json")))


def layered(
    charts: Iterable[alt.Chart],
    *,
    width: float,
    height: float,
    room: dict[str, float] | None = None,
) -> Declared:
    """Return charts of rows drawn over each other, with `room` around them where that is known.

    They are put together as what they declare: Altair's own layers are copies of copies, which took
    four times as long as all that is declared here.
    """
    layers = [one.to_dict(validate=False, context={"top_level": False}) for one in charts]
    size = {"width": width, "height": height}
    return {"layer": layers, **size, **({"padding": room} if room else {})}


def placed(estimate: Estimate, on: Axis) -> dict[str, float | None]:
    """Return where an estimate stands on an axis in percent, and the ends of its interval."""
    has_interval = estimate.low is not None and estimate.high is not None
    return {
        "at": on.percent(estimate.log_ratio),
        "low": on.percent(estimate.low or 0.0) if has_interval else None,
        "high": on.percent(estimate.high or 0.0) if has_interval else None,
    }


def down(field: str, height: float) -> alt.Y:
    """Return the place of a field in px from the top, with no axis drawn."""
    scale = alt.Scale(domain=[height, 0], nice=False, zero=False)
    return alt.Y(f"{field}:Q", axis=None, scale=scale)


def across(
    field: str, ends: tuple[float, float], *, title: str, axis: alt.Axis | None = None
) -> alt.X:
    """Return a linear axis from `ends[0]` to `ends[1]`, where right is more."""
    scale = alt.Scale(domain=list(ends), nice=False, zero=False)
    return alt.X(f"{field}:Q", scale=scale, title=title, axis=axis or alt.Axis(tickCount=6))


def own_colour(field: str = "colour") -> alt.Color:
    """Colour marks as the rows say, passing the text on as it stands."""
    return alt.Color(f"{field}:N", scale=None)


def row_texts(
    labels: Iterable[Row],
    height: float,
    *,
    colour: str,
    x: float = -LABEL_GAP,
    align: Literal["left", "right"] = "right",
) -> alt.Chart:
    """Return the `text` of each row at its `y`: left of the data, or from or up to `x` px."""
    made: alt.Chart = rows(labels).mark_text(
        align=align, baseline="middle", color=colour, aria=False
    )
    return made.encode(x=alt.value(x), y=down("y", height), text=alt.Text("text:N"))


def text_width(text: str) -> float:
    """Return about how wide a text of 12 px is in a wide font."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return _CHARACTER * len(text) + 5 * wide


def padding(texts: Iterable[str]) -> dict[str, float]:
    """Return room around a chart whose names at the left may be set in a wider font."""
    return {
        "left": 6 + _WIDER * max(map(len, texts), default=0),
        "right": 14,
        "top": 5,
        "bottom": 5,
    }


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
    entries, x, y = [], 0.0, _LINE / 2
    for key in keys:
        mark = _LINED if key.dash else _MARK
        needed = mark + text_width(key.text)
        if x and x + needed > width:
            x, y = 0.0, y + _LINE
        entries.append(
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
    return entries
