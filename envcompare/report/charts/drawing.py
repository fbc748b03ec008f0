"""A chart as a declaration in any palette, and the static SVG that is drawn of it.

SVG as Vega writes it is made fit for the page: only elements and attributes on a list pass, so that
no id, style, script or link can get through.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

import altair as alt
import vl_convert
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from envcompare.report.charts.layers import PAGE, PAPER, Declared, Palette

_SVG: Final = "http://www.w3.org/2000/svg"
_NAMESPACE: Final = re.compile(r"^\{[^}]*\}")
_NUMBER: Final = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_PLACES: Final = frozenset({
    "d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height", "r", "cx", "cy",
})  # fmt: skip
_KEPT: Final = _PLACES | {
    "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin",
    "fill-opacity", "stroke-opacity", "opacity", "text-anchor", "font-size", "font-weight",
    "font-style",
}  # fmt: skip
_INHERITED: Final = frozenset({
    "fill", "stroke", "stroke-width", "stroke-dasharray", "fill-opacity", "text-anchor",
})  # fmt: skip
_FEW: Final = 3
_ELEMENTS: Final = frozenset({"g", "path", "line", "rect", "circle", "text", "tspan"})
_NEEDLESS: Final = frozenset({
    ("opacity", "1"), ("fill-opacity", "1"), ("stroke-opacity", "1"), ("stroke-width", "1"),
    ("transform", "translate(0,0)"), ("font-size", "12px"), ("text-anchor", "start"),
    ("stroke-dasharray", "1,0"), ("font-weight", "normal"),
})  # fmt: skip
_FONT: Final = "Liberation Sans, Arial, sans-serif"
_SIZE: Final = 12
_SCALE: Final = 2.5  # of PNG: 180 dots an inch
MOST_CHARTS: Final = 60
MOST_CHARACTERS: Final = 400_000  # of all charts; some need ten times as many as others


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart, in words and as a declaration."""

    name: str  # unique in a run, [a-z0-9-]+: the stem of its files, and of ids in the page
    title: str
    description: str  # what it shows, with its main numbers
    declare: Callable[[Palette], Declared]


def clean_svg(svg: str, chart: Chart, *, font: str = "") -> str:
    """Return the SVG for a page, its ids made unique by the chart's name.

    With a font it is whole: a file of its own, which has no page to take the font from.
    """
    source = fromstring(svg)  # noqa: S314 — Vega wrote it, of texts without entities
    size = {key: _rounded(source.get(key, "")) for key in ("width", "height", "viewBox")}
    ids = f"{chart.name}-title", f"{chart.name}-desc"
    whole = {"xmlns": _SVG, "font-family": font} if font else {}
    root = Element("svg", {**whole, "class": "chart", **size, "role": "img"})
    root.set("aria-labelledby", " ".join(ids))
    texts = (chart.title, chart.description)
    for tag, key, text in zip(("title", "desc"), ids, texts, strict=True):
        SubElement(root, tag, {"id": key}).text = text
    inner = SubElement(root, "g", {"fill": "none", "font-size": "12"})
    inner.extend(_cleaned(source))
    return tostring(root, encoding="unicode")


def _cleaned(parent: Element) -> list[Element]:
    """Return what is to be seen of an element's children; groups that do nothing dissolve."""
    cleaned: list[Element] = []
    for child in parent:
        tag = _NAMESPACE.sub("", child.tag)
        if tag not in _ELEMENTS or _is_unseen(child, tag):
            continue
        made = Element(tag, _attributes(child))
        made.text = child.text if tag in {"text", "tspan"} else None
        made.extend([*_title(child, tag), *_cleaned(child)])
        if tag != "g":
            cleaned.append(made)
        elif len(made):
            _gather(made)
            cleaned.extend([made] if made.attrib else made)
    return cleaned


def _gather(group: Element) -> None:
    """Say once for a group what all of its children say."""
    if len(group) < _FEW:
        return
    shared = set.intersection(*(set(child.items()) for child in group))
    for key, value in sorted(shared):
        if key in _INHERITED and key not in group.attrib:
            group.set(key, value)
            for child in group:
                del child.attrib[key]


def _is_unseen(element: Element, tag: str) -> bool:
    if element.get("display") == "none":
        return True
    if tag in {"path", "rect"}:
        is_bare = element.get("fill", "none") == element.get("stroke", "none") == "none"
        return is_bare or (tag == "path" and not element.get("d"))
    return False


def _attributes(element: Element) -> dict[str, str]:
    return {
        key: _rounded(value) if key in _PLACES else value
        for key, value in element.items()
        if key in _KEPT and (key, value) not in _NEEDLESS
    }


def _title(element: Element, tag: str) -> list[Element]:
    """Return what Vega says of one mark as a title, which browsers show as a tooltip."""
    label = element.get("aria-label", "")
    if tag == "g" or not label:
        return []
    made = Element("title")
    made.text = label
    return [made]


def _rounded(value: str) -> str:
    return _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), value)


def drawn(chart: Chart) -> Markup:
    """Return the chart as SVG to stand in the page: its colours are variables of the page."""
    return Markup(clean_svg(_svg(chart, PAGE), chart))  # noqa: S704 — an XML serialiser wrote every text in it


def paper_files(chart: Chart) -> dict[str, bytes]:
    """Return the chart in light colours on white, as the bytes of its files by their endings."""
    svg = clean_svg(_svg(chart, PAPER), chart, font=_FONT)
    return {
        "svg": svg.encode(),
        "png": vl_convert.svg_to_png(svg, scale=_SCALE),
        "pdf": vl_convert.svg_to_pdf(svg),
    }


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


@dataclass(slots=True)
class ChartBudget:
    """Counts the charts of one page in the order they are asked for."""

    left: int = MOST_CHARTS
    characters_left: int = MOST_CHARACTERS
    refused: int = 0

    def draw(self, chart: Chart | None) -> Markup:
        """Return a chart as SVG, empty where there is none or the page has enough of them."""
        if chart is None:
            return Markup("")
        if not self.left or self.characters_left <= 0:
            self.refused += 1
            return Markup("")
        svg = drawn(chart)
        self.left -= 1
        self.characters_left -= len(svg)
        return svg
