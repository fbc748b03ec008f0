"""Blocks as Markdown: what looks like markup in their texts is none."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from typing import Final

from envcompare.report.format.blocks import Heading, Items, Line, PlainBlock, Table, plain
from envcompare.text import flat

_MARKS: Final = frozenset("\\`*_[]|#~!")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}


def markdown(blocks: Iterable[PlainBlock]) -> str:
    """Return headings, lines, tables and lists; lists that follow each other become one."""
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
    """Return the text on one line, every mark of Markdown and HTML as it is read."""
    escaped = "".join(f"\\{char}" if char in _MARKS else char for char in flat(text).strip())
    return "".join(_ENTITIES.get(char, char) for char in escaped)
