"""Show the summary of a run on the terminal: the report's own sentences, coloured by verdict."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from envcompare.console import result_stream
from envcompare.report.summary import TerminalLine

_ROLES = {"title": "bold", "warning": "bold yellow", "detail": "", "note": "dim"}
_OUTCOMES = {
    "slower": "red",
    "faster": "blue",
    "equivalent": "green",
    "inconclusive": "yellow",
    "failed": "bold red",
}
_NARROW = 100  # columns where no terminal tells its width


def show(lines: Iterable[TerminalLine], console: Console | None = None) -> None:
    """Print the lines to stdout; those of the roles head and row make one table."""
    stream = result_stream()
    out = console or Console(file=stream, highlight=False, emoji=False)
    if not out.is_terminal and console is None:
        out = Console(file=stream, highlight=False, emoji=False, width=max(out.width, _NARROW))
    table: Table | None = None
    for line in lines:
        if line.role == "head":
            table = Table(*line.columns, box=None, padding=(0, 2, 0, 0), header_style="bold")
        elif line.role == "row" and table is not None:
            style = _OUTCOMES.get(line.outcome or "", "")
            table.add_row(*(Text(column) for column in line.columns), style=style)
        else:
            _flush(out, table)
            table = None
            _print(out, line)
    _flush(out, table)


def _print(out: Console, line: TerminalLine) -> None:
    style = _ROLES.get(line.role, _OUTCOMES.get(line.outcome or "", ""))
    text = Text(" ".join(line.columns), style=style)
    out.print(Padding(text, (0, 0, 0, 2)) if line.role in {"detail", "note"} else text)


def _flush(out: Console, table: Table | None) -> None:
    if table is not None:
        out.print()
        out.print(table)
        out.print()
