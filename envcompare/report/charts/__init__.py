"""Shared parts of charts: palettes, marks, axes, keys, and the static SVG.

Colours are CSS variables that follow the page's theme, or plain colours for papers. Each is a
complete text that Vega passes through; Vega must never mix two of them. Only elements and
attributes on an allow-list get from Vega's SVG into the page, so no id, style, script or link can.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

import altair as alt
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from envcompare.analysis.model import Estimate, RunComparison
from envcompare.report import Axis
from envcompare.report.charts.rendering import ChartsError, converted
from envcompare.report.wording import compared_arms
from envcompare.text import shortened, visible_line

LIGHT: Final[dict[str, str]] = {  # as the light theme of report.css has them
    "bg": "#fff",
    "fg": "#1a1f27",
    "mute": "#55606e",
    "line": "#d5dae1",
    "band": "#dfe4ea",
    "zero": "#3a434f",
    "slow": "#9a3b12",
    "fast": "#0b57b0",
    "bad": "#a3102c",
    "even": "#3f4a57",
    "open": "#6b4e00",
    "p1": "#b3471c",
    "p2": "#0b62c4",
    "p3": "#1a7f4b",
    "p4": "#7a4fb5",
    "p5": "#7d6200",
    "p6": "#5b6b7b",
    "p7": "#a3216b",
}
_SERIES: Final = ("p2", "p1", "p3", "p4", "p5", "p7", "p6")
_NAMES: Final = {"bg": "back", "fg": "text"}
_SHAPES: Final = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_DASHES: Final = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (1, 3))
_OTHER: Final = re.compile(r"[^a-z0-9]+")
_LONGEST_SLUG: Final = 60
LABEL_GAP: Final = 10.0  # px between row names and their marks
SIGNED: Final = (  # labels of an axis of changes, which never contain user text
    "(datum.value > 0 ? '+' : datum.value < 0 ? '−' : '') + abs(datum.value) + ' %'"
)
_CHARACTER: Final = 6.8  # px; system fonts are wider than the one that Vega measures with
_WIDER: Final = 1.6  # px a character
Row = Mapping[str, object]
Declared = dict[str, Any]
"""A chart in Vega-Lite's JSON form."""
_NUMBERS: Final = frozenset({"x", "x2", "y", "y2", "fillOpacity", "size"})
_AS_SAID: Final[dict[str, Any]] = {  # channels that could have a scale, but use the values directly
    "color": alt.Color,
    "fill": alt.Fill,
    "stroke": alt.Stroke,
    "shape": alt.Shape,
    "fillOpacity": alt.FillOpacity,
    "size": alt.Size,
    "strokeDash": alt.StrokeDash,
}
_LINE: Final = 20.0
_MARK: Final = 18.0  # px from the mark to its text
_LINED: Final = 34.0  # with a line through the mark
_GAP: Final = 18.0
_KEY_SIZE: Final = 90  # px², area of a mark
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
_MM_PER_INCH: Final = 25.4
_POINTS_PER_INCH: Final = 72
_DOTS_PER_INCH: Final = 300
_SCALE: Final = 2.5  # of PNG: 180 dots an inch
_MOST_CHARTS: Final = 60
_MOST_CHARACTERS: Final = 400_000  # of all charts; some charts need ten times as many as others


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by purpose, each as CSS text."""

    back: str  # behind the chart
    text: str
    mute: str  # text next to the data
    line: str  # of the grid
    band: str  # inside the margin
    zero: str
    slow: str
    fast: str
    bad: str  # failures
    even: str
    open: str  # undecided results
    series: tuple[str, ...]
    background: str | None  # drawn behind the chart; None leaves it transparent

    def of(self, place: int) -> str:
        """Return the colour of the series at an index from 0."""
        return self.series[place % len(self.series)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The look of one arm in every chart: colour, shape and dash."""

    place: int
    shape: str
    dash: tuple[int, ...]


def styles(arms: Iterable[str]) -> dict[str, Style]:
    """Give each arm a style by its index."""
    return {
        arm: Style(
            place=place, shape=_SHAPES[place % len(_SHAPES)], dash=_DASHES[place % len(_DASHES)]
        )
        for place, arm in enumerate(dict.fromkeys(arms))
    }


def run_styles(run: RunComparison) -> dict[str, Style]:
    """Return the styles of the arms of a run, the reference first and its controls last."""
    measured = [times.arm for cell in run.cells for times in cell.step_times]
    others = [arm.arm for arm in run.arms] + [comparison.arm for comparison in run.comparisons]
    others += [startup.arm for startup in run.views.startup]
    return styles((*run.all_references, *compared_arms(run), *others, *measured))


def _palette(colours: dict[str, str], *, background: str | None) -> Palette:
    named = {_NAMES.get(name, name): colours[name] for name in colours if name not in _SERIES}
    series = tuple(colours[name] for name in _SERIES)
    return Palette(**named, series=series, background=background)


PAGE: Final = _palette(
    {name: f"var(--{name}, {value})" for name, value in LIGHT.items()}, background=None
)
PAPER: Final = _palette(LIGHT, background="#fff")


def shown(text: str, *, most: int = 120) -> str:
    """Return a name for a description, shortened and with visible hidden characters."""
    return shortened(visible_line(text), most=most)


def label(text: str, *, most: int = 20) -> str:
    """Return a name for a chart label of up to `most` characters."""
    seen = visible_line(text[: 2 * most])
    return seen if len(text) <= most and len(seen) <= most else f"{seen[: most - 1]}…"


def chart_name(kind: str, *parts: str) -> str:
    """Return a name of [a-z0-9-]+ that is unique to these parts."""
    text = "/".join(parts)
    digest = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).hexdigest()
    slug = _OTHER.sub("-", f"{kind}-{text}".lower())[:_LONGEST_SLUG].strip("-")
    return f"{slug}-{digest[:6]}"


def marks(
    records: Iterable[Row],
    kind: str,
    look: Row | None = None,
    /,
    **channels: Any,  # noqa: ANN401 — classes of Altair
) -> alt.Chart:
    """Return a mark of this kind for each row, all with the same look.

    A channel is an axis or the name of a row's field. Colours, shapes, sizes and dashes come from
    the rows unchanged. Marks without a description are hidden from screen readers.
    """
    # as one text, which Altair need not copy with every mark and encoding; the keys of rows are
    # our own names, since Vega treats dots in names as paths
    text = json.dumps([dict(row) for row in records])
    chart = alt.Chart(alt.InlineData(values=text, format=alt.JsonDataFormat(type="json")))
    unsaid = {} if "description" in channels else {"aria": False}
    encoded = {
        name: _taken(name, field) if isinstance(field, str) else field
        for name, field in channels.items()
    }
    made: alt.Chart = getattr(chart, f"mark_{kind}")(**unsaid, **(look or {})).encode(**encoded)
    return made


def _taken(channel: str, field: str) -> Any:  # noqa: ANN401 — likewise
    number = "Q" if channel in _NUMBERS else "N"
    made = _AS_SAID.get(channel)
    return f"{field}:{number}" if made is None else made(f"{field}:{number}", scale=None)


def layered(
    charts: Iterable[alt.Chart],
    *,
    width: float,
    height: float,
    room: dict[str, float] | None = None,
) -> Declared:
    """Return charts of rows drawn over each other, with `room` around them if known.

    Their declarations are merged directly. Altair's own layers copy their copies, which took four
    times as long as all declarations here.
    """
    layers = [chart.to_dict(validate=False, context={"top_level": False}) for chart in charts]
    size = {"width": width, "height": height}
    return {"layer": layers, **size, **({"padding": room} if room else {})}


def placed(estimate: Estimate, on: Axis) -> dict[str, float | None]:
    """Return the position of an estimate and its interval on an axis in percent."""
    has_interval = estimate.low is not None and estimate.high is not None
    return {
        "at": on.percent(estimate.log_ratio) if estimate.has_size else None,
        "low": on.percent(estimate.low or 0.0) if has_interval else None,
        "high": on.percent(estimate.high or 0.0) if has_interval else None,
    }


def down(field: str, height: float) -> alt.Y:
    """Return the y channel of a field in px from the top, without an axis."""
    scale = alt.Scale(domain=[height, 0], nice=False, zero=False)
    return alt.Y(f"{field}:Q", axis=None, scale=scale)


def row_texts(
    records: Iterable[Row], y: alt.Y, colour: str, *, text: str = "text", x: float = -LABEL_GAP
) -> alt.Chart:
    """Return the text of each row at `y`, from `x` px on; with a negative `x` it ends there."""
    look = {"align": "right" if x < 0 else "left", "baseline": "middle", "color": colour}
    return marks(records, "text", look, x=alt.value(x), y=y, text=text)


def text_width(text: str) -> float:
    """Return the approximate width of a 12 px text in a wide font."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return _CHARACTER * len(text) + 5 * wide


def padding(texts: Iterable[str]) -> dict[str, float]:
    """Return padding for names at the left, with room for a wider font."""
    return {
        "left": 6 + _WIDER * max(map(len, texts), default=0),
        "right": 14,
        "top": 5,
        "bottom": 5,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One entry: colour, shape, and the dash if lines are drawn."""

    text: str
    colour: str
    shape: str = "square"
    opacity: float = 1.0
    dash: tuple[int, ...] | None = None


def with_key(chart: Declared, keys: Sequence[Key], *, width: float, below: float) -> Declared:
    """Put the key `below` px under the data, with room for the axis."""
    placed = _placed(keys, width)
    height = max(row["y"] for row in placed) + _LINE / 2
    y = down("y", height)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, width], nice=False))
    x_of = partial(alt.X, axis=None)
    lined = [row for row in placed if row["dash"]]
    line, dashed = {"strokeWidth": 1.6}, {"color": "colour", "strokeDash": "dash"}
    point = {"filled": True, "size": _KEY_SIZE, "opacity": 1, "strokeWidth": 1.2}
    look = {"fill": "colour", "stroke": "colour", "fillOpacity": "opacity", "shape": "shape"}
    words = {"align": "left", "baseline": "middle"}
    layers = (
        marks(lined, "rule", line, x=x_of("from:Q"), x2="to", y=y, **dashed),
        marks(placed, "point", point, x=x, y=y, **look),
        marks(placed, "text", words, x=x_of("at:Q"), y=y, text="text"),
    )
    drawing = layered(layers, width=width, height=height)
    return {"vconcat": [chart, drawing], "spacing": below, "bounds": "flush"}


def _placed(keys: Sequence[Key], width: float) -> list[dict[str, Any]]:
    """Place the entries from left to right, wrapping to new lines."""
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
                **asdict(key),
            }
        )
        x += needed + _GAP
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart: its words and its declaration."""

    name: str  # unique in a run, [a-z0-9-]+: the stem of its files and page ids
    title: str
    description: str  # what it shows, with its main numbers
    declare: Callable[[Palette], Declared]


def clean_svg(svg: str, chart: Chart, *, font: str = "") -> str:
    """Return the SVG for a page, its ids made unique by the chart's name.

    With a font, the SVG is a standalone file.
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
    """Return the visible children of an element, without groups that have no effect."""
    cleaned: list[Element] = []
    for child in parent:
        tag = _NAMESPACE.sub("", child.tag)
        if tag not in _ELEMENTS or _is_unseen(child, tag):
            continue
        attributes = {
            key: _rounded(value) if key in _PLACES else value
            for key, value in child.items()
            if key in _KEPT and (key, value) not in _NEEDLESS
        }
        made = Element(tag, attributes)
        made.text = child.text if tag in {"text", "tspan"} else None
        made.extend([*_title(child, tag), *_cleaned(child)])
        if tag != "g":
            cleaned.append(made)
        elif len(made):
            _gather(made)
            cleaned.extend([made] if made.attrib else made)
    return cleaned


def _gather(group: Element) -> None:
    """Move the attributes that all children share to their group."""
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


def _title(element: Element, tag: str) -> list[Element]:
    """Return Vega's description of a mark as a title, which browsers show as a tooltip."""
    label = element.get("aria-label", "")
    if tag == "g" or not label:
        return []
    made = Element("title")
    made.text = label
    return [made]


def _rounded(value: str) -> str:
    return _NUMBER.sub(lambda match: f"{float(match[0]):.1f}".removesuffix(".0"), value)


def drawn(chart: Chart) -> Markup:
    """Return the chart as SVG to embed in the page, with the page's colour variables."""
    return Markup(clean_svg(_svg(chart, PAGE), chart))  # noqa: S704 — an XML serialiser wrote every text in it


def paper_files(chart: Chart, *, width_mm: float | None = None) -> dict[str, bytes]:
    """Return the files of a chart in light colours on white, by file extension.

    With a width in millimetres the chart is scaled to it, and PNG has 300 dots per inch.
    """
    svg = clean_svg(_svg(chart, PAPER), chart, font=_FONT)
    scale = _SCALE
    if width_mm is not None:
        # a unit of the drawing becomes a point of the PDF
        width = width_mm * _POINTS_PER_INCH / _MM_PER_INCH
        root = fromstring(svg)  # noqa: S314 — our own
        factor = width / float(root.get("width", width))
        height = factor * float(root.get("height", 0))
        size = f'width="{width:.2f}" height="{height:.2f}"'
        svg = re.sub(r'width="[^"]*" height="[^"]*"', size, svg, count=1)
        scale = _DOTS_PER_INCH / _POINTS_PER_INCH
    return {
        "svg": svg.encode(),
        "png": converted("svg_to_png", svg=svg, scale=scale),
        "pdf": converted("svg_to_pdf", svg=svg),
    }


def _svg(chart: Chart, palette: Palette) -> str:
    return converted("vegalite_to_svg", vl_spec=specification(chart, palette)).decode()


def specification(chart: Chart, palette: Palette) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart in a palette."""
    alt.data_transformers.consolidate_datasets = False  # a layer keeps its rows, few as they are
    with debug_mode(arg=False):  # tests check charts against the schema; pages need not repeat that
        words = {
            "labelColor": palette.mute,
            "titleColor": palette.mute,
            "titleFontWeight": "normal",
        }
        sizes = {"labelFontSize": _SIZE, "titleFontSize": _SIZE}
        return {
            **chart.declare(palette),
            "config": {
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
            },
        }


@dataclass(slots=True)
class ChartBudget:
    """Counts the charts of one page in the order of requests."""

    left: int = _MOST_CHARTS
    characters_left: int = _MOST_CHARACTERS
    refused: int = 0
    why_none: str = ""  # why no chart can be drawn here

    def draw(self, chart: Chart | None) -> Markup:
        """Return a chart as SVG; empty without a chart, a renderer or remaining budget."""
        if chart is None or self.why_none:
            return Markup("")
        if not self.left or self.characters_left <= 0:
            self.refused += 1
            return Markup("")
        try:
            svg = drawn(chart)
        except ChartsError as error:
            self.why_none = error.details
            return Markup("")
        self.left -= 1
        self.characters_left -= len(svg)
        return svg
