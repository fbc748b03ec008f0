"""A chart as a declaration in any palette, and the static SVG that is drawn of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from envcompare.report.charts.cleaning import Words, clean_svg
from envcompare.report.charts.layers import Declared
from envcompare.report.charts.palette import PAGE, PAPER, Palette

_FONT: Final = "Liberation Sans, Arial, sans-serif"
_SIZE: Final = 12
_SCALE: Final = 2.5  # of PNG: 180 dots an inch


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart, in words and as a declaration."""

    name: str  # unique in a run, [a-z0-9-]+: the stem of its files, and of ids in the page
    title: str
    description: str  # what it shows, with its main numbers
    declare: Callable[[Palette], Declared]


def drawn(chart: Chart) -> Markup:
    """Return the chart as SVG to stand in the page: its colours are variables of the page."""
    return Markup(clean_svg(_svg(chart, PAGE), _words(chart)))  # noqa: S704 — an XML serialiser wrote every text in it


def paper_files(chart: Chart) -> dict[str, bytes]:
    """Return the chart in light colours on white, as the bytes of its files by their endings."""
    svg = clean_svg(_svg(chart, PAPER), _words(chart), font=_FONT)
    return {
        "svg": svg.encode(),
        "png": vl_convert.svg_to_png(svg, scale=_SCALE),
        "pdf": vl_convert.svg_to_pdf(svg),
    }


def _words(chart: Chart) -> Words:
    return Words(name=chart.name, title=chart.title, description=chart.description)


def _svg(chart: Chart, palette: Palette) -> str:
    return vl_convert.vegalite_to_svg(specification(chart, palette))


def specification(chart: Chart, palette: Palette) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart in a palette."""
    alt.data_transformers.consolidate_datasets = False  # a layer keeps its rows, few as they are
    with debug_mode(arg=False):  # tests hold charts to the schema; pages need not again
        return {**chart.declare(palette), "config": _config(palette)}


def _config(palette: Palette) -> dict[str, Any]:
    words = {"labelColor": palette.mute, "titleColor": palette.mute, "titleFontWeight": "normal"}
    sizes = {"labelFontSize": _SIZE, "titleFontSize": _SIZE}
    return {
        "background": palette.background,
        "font": _FONT,
        "aria": True,
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            **words,
            **sizes,
            "domainColor": palette.mute,
            "gridColor": palette.line,
            "ticks": False,
            "labelFlush": False,
            "labelPadding": 6,
            "titlePadding": 6,
        },
        "legend": {**words, **sizes, "labelColor": palette.text},
        "text": {"color": palette.text, "fontSize": _SIZE},
    }
