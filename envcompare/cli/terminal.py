"""Show the summary of a run on the terminal: the report's own sentences, coloured by verdict."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from envcompare.console import result_stream
from envcompare.report.export.summary import TerminalLine
from envcompare.report.format.numbers import FIGURE

_ROLES = {"title": "bold", "warning": "bold yellow", "detail": "", "note": "dim"}
_OUTCOMES = {
    "slower": "red",
    "faster": "blue",
    "equivalent": "green",
    "inconclusive": "yellow",
    "failed": "bold red",
}
_GLUE = "\ue000"  # in no text that was made visible; Rich breaks lines at every kind of space
_NARROW = 100  # columns where no terminal tells its width


def show(lines: Iterable[TerminalLine], console: Console | None = None) -> None:
    """Print the lines to stdout; those of the roles head and row make one table."""
    stream = result_stream()
    out = console or Console(file=stream, highlight=False, emoji=False)
    if not out.is_terminal and console is None:
        out = Console(file=stream, highlight=False, emoji=False, width=max(out.width, _NARROW))
    with out.capture() as printed:
        _print_all(out, lines)
    out.file.write(printed.get().replace(_GLUE, " "))
    out.file.flush()


def _print_all(out: Console, lines: Iterable[TerminalLine]) -> None:
    table: Table | None = None
    for line in lines:
        if line.role == "head":
            heads = (Column(_text(column)) for column in line.columns)
            table = Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="bold")
        elif line.role == "row" and table is not None:
            style = _OUTCOMES.get(line.outcome or "", "")
            table.add_row(*(_text(column) for column in line.columns), style=style)
        else:
            _flush(out, table)
            table = None
            _print(out, line)
    _flush(out, table)


def _text(words: str, style: str = "") -> Text:
    """Return words as Rich prints them, each number on one line with its unit."""
    return Text(FIGURE.sub(lambda figure: figure[0].replace(" ", _GLUE), words), style=style)


def _print(out: Console, line: TerminalLine) -> None:
    style = _ROLES.get(line.role, _OUTCOMES.get(line.outcome or "", ""))
    text = _text(" ".join(line.columns), style=style)
    out.print(Padding(text, (0, 0, 0, 2)) if line.role in {"detail", "note"} else text)


def _flush(out: Console, table: Table | None) -> None:
    if table is not None:
        out.print()
        out.print(table)
        out.print()
