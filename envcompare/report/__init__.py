"""The parts of a page as plain data: texts, tables, lists, folds and small drawings.

One template draws each of them on the page. The terminal and `markdown` draw a few of them for the
summary of a run. Texts are unescaped; the renderer escapes them. The positions of interval marks
and bars are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, groupby
from typing import ClassVar, Final, Literal, TypeVar

from markupsafe import Markup

from envcompare.analysis.model import Comparison, Estimate, LadderStep, Outcome
from envcompare.report.wording import MINUS, change
from envcompare.text import flat, visible

_WIDTH: Final = 240.0
_CHANGE_WIDTH: Final = 120.0
_LEAST_SEEN: Final = 0.5
_PAD: Final = 8.0
_LEAST_BANDS: Final = 2.0  # the axis reaches at least twice the margin to each side
_MOST_BANDS: Final = 15.0  # an arrow at the edge marks anything beyond
Kind = Literal[
    "text", "name", "number", "figure", "word", "value", "property", "kernel", "verdict", "notes",
    "interval", "bar",
]  # fmt: skip
"""The content of a column: texts, numbers, or drawings on a shared axis."""
_CLASSES: Final[dict[Kind, str]] = {
    "text": "",
    "name": "name",
    "number": "num",
    "figure": "num fact",  # a number that stays on one line with its unit
    "word": "fact",
    "value": "value",
    "property": "facts",
    "kernel": "kernel",
    "verdict": "verdict",
    "notes": "notes",
    "interval": "axis",
    "bar": "axis",
}
_HEADS: Final[dict[Kind, str]] = {
    "number": "num", "figure": "num", "interval": "axis", "bar": "change",
}  # fmt: skip
Attributes = tuple[tuple[str, str], ...]
_MARKS: Final = frozenset("\\`*_[]|#~!")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The range of log ratios that all marks of a page share; left is faster."""

    low: float
    high: float
    low_label: str
    high_label: str
    band: float  # ln(1 + margin)

    def x(self, log_ratio: float) -> float:
        """Return the position of a log ratio, at the edge if it is outside."""
        share = (log_ratio - self.low) / (self.high - self.low)
        return _PAD + min(1.0, max(0.0, share)) * (_WIDTH - 2 * _PAD)

    @property
    def percents(self) -> tuple[float, float]:
        """Return both ends as changes in percent."""
        return 100 * change(self.low), 100 * change(self.high)

    @property
    def band_percents(self) -> tuple[float, float]:
        """Return both edges of the band as changes in percent."""
        return 100 * change(-self.band), 100 * change(self.band)

    def percent(self, log_ratio: float) -> float:
        """Return a change in percent, at the edge if it is outside."""
        return 100 * change(min(self.high, max(self.low, log_ratio)))

    def beyond(self, estimate: Estimate) -> tuple[bool, bool]:
        """Say whether an estimate or its interval leaves the axis on the left, and on the right."""
        figures = (estimate.log_ratio, estimate.low, estimate.high)
        places = [figure for figure in figures if figure is not None]
        return min(places) < self.low, max(places) > self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One drawn interval, with positions from 0 to _WIDTH and one decimal."""

    outcome: Outcome
    band_x: str
    band_width: str
    zero_x: str
    x: str
    low_x: str
    high_x: str
    has_interval: bool
    beyond: tuple[bool, bool]  # whether the interval leaves the axis on the left, and on the right


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of a start-up bar, with positions from 0 to 100."""

    phase: str
    x: str
    width: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A signed bar from the middle: left is less, right is more; positions 0 to _CHANGE_WIDTH."""

    way: str  # "less", "more", or empty if it is too short to see
    x: str
    width: str


def signed_bar(change: float, *, largest: float) -> Change:
    """Return the bar of a change; the largest change fills its half."""
    half = _CHANGE_WIDTH / 2
    width = half * min(1.0, abs(change) / largest) if largest > 0 else 0.0
    way = "" if width < _LEAST_SEEN else "less" if change < 0 else "more"
    return Change(way=way, x=_place(half - width if change < 0 else half), width=_place(width))


def shared_axis(comparisons: Iterable[Comparison | LadderStep], *, margin: float) -> Axis:
    """Return an axis with the band and all intervals, up to a limit."""
    band = math.log1p(max(margin, 1e-4))
    ends = [0.0]
    for comparison in comparisons:
        if comparison.deciding is not None:
            figures = (
                comparison.deciding.log_ratio,
                comparison.deciding.low,
                comparison.deciding.high,
            )
            ends += [end for end in figures if end is not None]
    low = min(95, math.ceil(-100 * change(-_reach(-min(ends), band))))
    high = math.ceil(100 * change(_reach(max(ends), band)))
    return Axis(
        low=math.log1p(-low / 100),
        high=math.log1p(high / 100),
        low_label=f"{MINUS}{low} %",
        high_label=f"+{high} %",
        band=band,
    )


def mark(estimate: Estimate | None, outcome: Outcome, *, on: Axis) -> Mark | None:
    """Return the drawing of an estimate, None if nothing was measured."""
    if estimate is None:
        return None
    low = estimate.log_ratio if estimate.low is None else estimate.low
    high = estimate.log_ratio if estimate.high is None else estimate.high
    return Mark(
        outcome=outcome,
        band_x=_place(on.x(-on.band)),
        band_width=_place(on.x(on.band) - on.x(-on.band)),
        zero_x=_place(on.x(0.0)),
        x=_place(on.x(estimate.log_ratio)),
        low_x=_place(on.x(low)),
        high_x=_place(on.x(high)),
        has_interval=estimate.low is not None and estimate.high is not None,
        beyond=on.beyond(estimate),
    )


def _reach(extent: float, band: float) -> float:
    return min(max(_LEAST_BANDS * band, 1.08 * extent), _MOST_BANDS * band)


def _place(value: float) -> str:
    return f"{value:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A text that links somewhere; without `href` it is just a name, set as code."""

    text: str
    href: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Words of a line with their own style, or none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A paragraph, list item or table cell: a text and its surroundings."""

    form: ClassVar[str] = "line"

    text: str = ""
    strong: str = ""  # in bold, before the text
    href: str = ""  # the target of the text and the bold words
    style: str = ""
    before: tuple[Span, ...] = ()  # badges
    after: tuple[Span | Link, ...] = ()
    below: tuple[str, ...] = ()  # small lines of a cell
    last: tuple[Span | Link, ...] = ()  # below them
    items: tuple[Line | str, ...] = ()  # a list inside an item
    codes: tuple[str, ...] = ()  # names set as code, each replacing the one before
    marks: tuple[Mark, ...] = ()
    is_overlaid: bool = False  # many marks in one drawing, without their intervals
    change: Change | None = None
    segments: tuple[Segment, ...] = ()
    phase: str = ""  # its colour precedes the text
    attributes: Attributes = ()


Words = Line | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; a line break in `head` starts a new line."""

    head: str = ""
    kind: Kind = "text"
    note: str = ""  # small, below the head
    group: str = ""  # a head above neighbouring columns of the same group
    axis: Axis | None = None
    is_row_head: bool = False
    is_sorted: bool = False  # whether the script may sort by it

    @property
    def style(self) -> str:
        """Return the class of its cells."""
        return _CLASSES[self.kind]

    @property
    def head_style(self) -> str:
        """Return the class of its head."""
        return _HEADS.get(self.kind, "")

    @property
    def is_prose(self) -> bool:
        """Say whether figures in its texts must stay on one line."""
        return self.kind in {"text", "verdict", "notes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table; a single cell spans all remaining columns."""

    cells: tuple[Words, ...]
    anchor: str = ""
    style: str = ""
    attributes: Attributes = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with an accessible name."""

    form: ClassVar[str] = "table"

    label: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    foot: tuple[Row, ...] = ()
    caption: str = ""
    is_caption_hidden: bool = False
    style: str = ""
    anchor: str = ""
    attributes: Attributes = ()

    @property
    def groups(self) -> tuple[tuple[str, int], ...]:
        """Return the heads above others, each with the number of columns it spans."""
        groups: list[tuple[str, int]] = []
        for column in self.columns if any(one.group for one in self.columns) else ():
            if groups and column.group and groups[-1][0] == column.group:
                groups[-1] = (column.group, groups[-1][1] + 1)
            else:
                groups.append((column.group, 1))
        return tuple(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The heading of a part of a section."""

    form: ClassVar[str] = "heading"

    text: str
    badge: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list."""

    form: ClassVar[str] = "items"

    items: tuple[Words, ...]
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Names and their meanings; a text of several lines keeps its layout."""

    form: ClassVar[str] = "pairs"

    pairs: tuple[tuple[str, str], ...]
    style: str = "pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim:
    """Preformatted text, such as a command."""

    form: ClassVar[str] = "verbatim"

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart as SVG."""

    form: ClassVar[str] = "drawing"

    label: str
    svg: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Blocks that appear when the summary is opened."""

    form: ClassVar[str] = "fold"

    summary: Words
    blocks: tuple[Block, ...]
    anchor: str = ""
    style: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Blocks that belong together, such as cards side by side."""

    form: ClassVar[str] = "group"

    blocks: tuple[Block, ...]
    style: str = ""
    anchor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The controls above the table of all comparisons that choose rows and a metric."""

    form: ClassVar[str] = "filter"

    outcomes: tuple[tuple[str, str], ...]  # with their words
    metrics: tuple[str, ...]
    has_confounded: bool


PlainBlock = Heading | Line | Table | Items
"""The blocks that the terminal and Markdown draw too."""
Block = Line | Table | Heading | Items | Pairs | Verbatim | Drawing | Fold | Group | Filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page with a heading and a link to it."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
    link: str = ""  # its name in the navigation, by default the title
    is_title_hidden: bool = False


def texts(*paragraphs: str, style: str = "") -> tuple[Line, ...]:
    """Return a paragraph for each text that is not empty."""
    return tuple(Line(text=text, style=style) for text in paragraphs if text)


def linked(links: Iterable[Link], *, separator: str = ", ") -> tuple[Span | Link, ...]:
    """Return links in sequence, with the separators as plain words."""
    parts = [part for link in links for part in (Span(text=separator), link)]
    return tuple(parts[1:])


def plain(words: Words) -> str:
    """Return a cell as one text without markup."""
    if isinstance(words, str):
        return visible(words)
    after = (part.text for part in words.after)
    parts = (*(span.text for span in words.before), words.strong, words.text, *after, *words.below)
    return visible(" ".join(part for part in parts if part))


def markdown(blocks: Iterable[PlainBlock]) -> str:
    """Return headings, lines, tables and lists as Markdown, merging adjacent lists."""
    parts: list[str] = []
    for form, group in groupby(blocks, key=lambda block: block.form):
        drawn = map(_drawn, group)
        parts += ["\n".join(drawn)] if form == Items.form else drawn
    return "\n\n".join(parts) + "\n"


def _drawn(block: PlainBlock) -> str:
    match block:
        case Heading():
            return f"### {_escape(block.text)}"
        case Table():
            heads = [_escape(column.head) for column in block.columns]
            rows = ([_escape(plain(cell)) for cell in row.cells] for row in block.rows)
            lines = chain([heads, ["---"] * len(heads)], rows)
            return "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case Items():
            return "\n".join(f"- {_escape(plain(item))}" for item in block.items)
        case Line():
            strong = f"**{_escape(block.strong)}**" if block.strong else ""
            words = " ".join(filter(None, (strong, *map(_escape, (block.text, *block.below)))))
            return f"> ⚠ {words}" if block.style == "warning" else words


def _escape(text: str) -> str:
    """Return the text on one line, with Markdown and HTML characters escaped."""
    escaped = "".join(f"\\{char}" if char in _MARKS else char for char in flat(text).strip())
    return "".join(_ENTITIES.get(char, char) for char in escaped)


Field = tuple[str, Kind, Callable[[Record], Words]]


def table_of(
    label: str,
    records: Iterable[Record],
    *fields: Field[Record],
    caption: str = "",
    style: str = "",
    named: int = 0,
) -> Table:
    """Return a row for each record and a column for each field; `named` is the row head."""
    columns = (
        Column(head=head, kind=kind, is_row_head=place == named)
        for place, (head, kind, _) in enumerate(fields)
    )
    rows = (tuple(read(record) for _, _, read in fields) for record in records)
    return grid_of(label, columns, rows, caption=caption, style=style)


def grid_of(
    label: str,
    heads: Iterable[Column | tuple[str, Kind]],
    rows: Iterable[tuple[Words, ...]],
    *,
    caption: str = "",
    style: str = "",
) -> Table:
    """Return a table of these heads and cells; if heads are plain, the first one heads the row."""
    return Table(
        label=label,
        caption=caption,
        style=style,
        columns=tuple(
            head
            if isinstance(head, Column)
            else Column(head=head[0], kind=head[1], is_row_head=not place)
            for place, head in enumerate(heads)
        ),
        rows=tuple(Row(cells=cells) for cells in rows),
    )
