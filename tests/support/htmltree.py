"""A page as a tree of elements, read with nothing but the standard library's parser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = frozenset({"meta", "br", "input", "hr", "img", "link", "wbr"})
_SILENT = frozenset({"style", "script"})
_BLOCKS = frozenset(
    {"html", "head", "body", "header", "main", "nav", "footer", "section", "div", "p", "h1", "h2"}
    | {"h3", "h4", "ul", "ol", "li", "dl", "dt", "dd", "pre", "details", "summary", "table"}
    | {"caption", "thead", "tbody", "tfoot", "tr", "th", "td", "form", "fieldset", "legend"}
    | {"label", "title", "desc", "meta", "svg", "br", "small"}
)


@dataclass(slots=True)
class Element:
    """One element: its tag, attributes in their order, and what stands in it."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """Yield this element and all below it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def every(self, tag: str, **attributes: str) -> list[Element]:
        """Return the elements with a tag; `class_` names one of several classes."""
        name = attributes.pop("class_", "")
        return [
            one
            for one in self.walk()
            if one.tag == tag
            and (not name or name in one.classes)
            and all(one.attributes.get(key) == value for key, value in attributes.items())
        ]

    def find(self, name: str) -> Element:
        """Return the element with an id."""
        return next(one for one in self.walk() if one.attributes.get("id") == name)

    @property
    def classes(self) -> list[str]:
        """Return the classes of the element."""
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        """Return all the text a reader sees, blanks folded, with a blank between blocks."""
        return " ".join("".join(self._texts()).split())

    def _texts(self) -> Iterator[str]:
        if self.tag in _SILENT:
            return
        edge = " " if self.tag in _BLOCKS else ""
        yield edge
        for child in self.children:
            if isinstance(child, str):
                yield child
            else:
                yield from child._texts()  # of the same class
        yield edge


class _Builder(HTMLParser):
    """Build the tree; an element that is closed out of its turn is an error of the template."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"<{tag}> names an attribute twice: {names}"
        found = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(found)
        if tag not in _VOID:
            self.open.append(found)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Add an element of a drawing that is closed at once."""
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be of this tag."""
        last = self.open.pop()
        assert last.tag == tag, f"</{tag}> closes <{last.tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.open[-1].children.append(data)


def parse(html: str) -> Element:
    """Return the tree of a page whose elements are all closed in their turn."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert [one.tag for one in builder.open] == ["document"]
    return builder.root
