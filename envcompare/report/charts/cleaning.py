"""SVG as Vega writes it, made fit for the page: small, safe, named, and without styles.

Only elements and attributes on a list pass, so that no id, style, script or link can get through.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a chart is called and what it shows."""

    name: str
    title: str
    description: str


def clean_svg(svg: str, words: Words, *, font: str = "") -> str:
    """Return the SVG for a page, its ids made unique by the chart's name.

    With a font it is whole: a file of its own, which has no page to take the font from.
    """
    source = fromstring(svg)  # noqa: S314 — Vega wrote it, of texts without entities
    size = {key: _rounded(source.get(key, "")) for key in ("width", "height", "viewBox")}
    ids = f"{words.name}-title", f"{words.name}-desc"
    whole = {"xmlns": _SVG, "font-family": font} if font else {}
    root = Element("svg", {**whole, "class": "chart", **size, "role": "img"})
    root.set("aria-labelledby", " ".join(ids))
    texts = (words.title, words.description)
    for tag, key, text in zip(("title", "desc"), ids, texts, strict=True):
        SubElement(root, tag, {"id": key}).text = text
    inner = SubElement(root, "g", {"fill": "none", "font-size": "12"})
    inner.extend(_cleaned(source))
    return tostring(root, encoding="unicode")


def _cleaned(parent: Element) -> list[Element]:
    """Return what is to be seen of an element's children; groups that do nothing dissolve."""
    found: list[Element] = []
    for child in parent:
        tag = _NAMESPACE.sub("", child.tag)
        if tag not in _ELEMENTS or _is_unseen(child, tag):
            continue
        made = Element(tag, _attributes(child))
        made.text = child.text if tag in {"text", "tspan"} else None
        made.extend([*_title(child, tag), *_cleaned(child)])
        if tag != "g":
            found.append(made)
        elif len(made):
            _gather(made)
            found.extend([made] if made.attrib else made)
    return found


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
    return _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), value)
