"""Pieces that charts share: rows of data, axes, and places measured in pixels from the top."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Final

import altair as alt

from envcompare.analysis.model.comparison import Estimate
from envcompare.report.charts.marks import Axis

LABEL_GAP: Final = 10.0  # px between names of rows and what is drawn of them

SIGNED: Final = (  # labels of an axis of changes: our own text, with no name of the user in it
    "(datum.value > 0 ? '+' : datum.value < 0 ? '−' : '') + abs(datum.value) + ' %'"
)
_CHARACTER: Final = 6.8  # px; system fonts are wider than the one that Vega measures with
_WIDER: Final = 1.6  # px a character

Row = Mapping[str, object]
Declared = dict[str, Any]
"""A drawing as Vega-Lite takes it."""


def rows(found: Iterable[Row]) -> alt.Chart:
    """Return a chart of these rows; their keys are names of ours, for Vega reads dots in them.

    The rows are one text, which Altair need not copy with every mark and encoding.
    """
    text = json.dumps([dict(row) for row in found])
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


def names(found: Iterable[Row], height: float, *, colour: str) -> alt.Chart:
    """Return texts left of the data: `name` at `y`."""
    made: alt.Chart = rows(found).mark_text(
        align="right", baseline="middle", color=colour, aria=False
    )
    return made.encode(x=alt.value(-LABEL_GAP), y=down("y", height), text=alt.Text("name:N"))


def text_width(text: str) -> float:
    """Return about how wide a text of 12 px is in a wide font."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return _CHARACTER * len(text) + 5 * wide


def padding(found: Iterable[str]) -> dict[str, float]:
    """Return room around a chart whose names at the left may be set in a wider font."""
    return {
        "left": 6 + _WIDER * max(map(len, found), default=0),
        "right": 14,
        "top": 5,
        "bottom": 5,
    }
