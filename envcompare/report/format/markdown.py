"""Texts as Markdown: what looks like markup in them is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from envcompare.text import visible

Columns = tuple[str, ...]
_MARKS: Final = frozenset("\\`*_[]|#~!")
_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}


def flat(text: str, *, strip: bool = True) -> str:
    """Return the text on one line with nothing hidden in it."""
    line = visible(text.replace("\t", " ").replace("\n", " "))
    return line.strip() if strip else line


def escape(text: str) -> str:
    """Return the text on one line, every mark of Markdown and HTML as it is read."""
    escaped = "".join(f"\\{char}" if char in _MARKS else char for char in flat(text))
    return "".join(_ENTITIES.get(char, char) for char in escaped)


def table(head: Columns, rows: Sequence[Columns]) -> str:
    """Return a table."""
    lines = (
        tuple(map(escape, head)),
        ("---",) * len(head),
        *(tuple(map(escape, row)) for row in rows),
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)
