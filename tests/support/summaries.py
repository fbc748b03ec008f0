"""The summary of a run as tests look at it: its lines, as Markdown, and as a terminal shows it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console

from envcompare import report
from envcompare.analysis.model import RunComparison
from envcompare.cli.conclusion import show
from envcompare.report import Heading, Items, Line, PlainBlock, Table, plain
from envcompare.report.summary import summary
from envcompare.text import flat


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryLine:
    """One line: its role, the outcome that colours it, and its columns."""

    role: str
    columns: tuple[str, ...]
    outcome: str = ""


def markdown(run: RunComparison) -> str:
    """Return the summary of a run as Markdown."""
    return report.markdown(summary(run))


def printed(run: RunComparison) -> str:
    """Return the summary of a run as a terminal shows it that is wide enough for every name."""
    out = io.StringIO()
    show(summary(run), Console(file=out, width=1_000_000, highlight=False, emoji=False))
    return out.getvalue()


def terminal_lines(run: RunComparison) -> tuple[SummaryLine, ...]:
    """Return the lines of the summary of a run."""
    return lines_of(summary(run))


def lines_of(blocks: Iterable[PlainBlock]) -> tuple[SummaryLine, ...]:
    """Return the lines of blocks."""
    return tuple(line for block in blocks for line in _lines(block))


def _lines(block: PlainBlock) -> Iterator[SummaryLine]:
    match block:
        case Heading():
            yield _line("title", block.text)
        case Items():
            yield from (_line(block.style or "detail", plain(item)) for item in block.items)
        case Line() if block.style == "warning":
            yield _line("warning", block.text)
        case Line():
            yield _line("headline", block.strong, outcome=block.style)
            yield from (_line("detail", text) for text in block.below)
        case Table():
            yield _line("head", *(column.head for column in block.columns))
            for row in block.rows:
                yield _line("row", *map(plain, row.cells), outcome=row.style)


def _line(role: str, *columns: str, outcome: str = "") -> SummaryLine:
    return SummaryLine(role=role, columns=tuple(map(flat, columns)), outcome=outcome)
