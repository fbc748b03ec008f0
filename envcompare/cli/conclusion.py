"""Finish a command: write the report of a run, and print its summary."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import rich.table
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.console import Display, print_bytes, print_lines, result_stream
from envcompare.errors import RunFolderError
from envcompare.report import Heading, Items, Line, PlainBlock, Table, markdown, plain
from envcompare.report.charts.rendering import left_out_charts
from envcompare.report.summary import summary
from envcompare.report.wording import FIGURE
from envcompare.run_folder.results import RunFolder, json_bytes
from envcompare.text import flat

_STYLES = {
    "warning": "bold yellow",
    "note": "dim",
    "slower": "red",
    "faster": "blue",
    "equivalent": "green",
    "inconclusive": "yellow",
    "failed": "bold red",
}
# A private character is in no visible text; Rich breaks lines at every kind of space.
_GLUE = "\ue000"


def conclude(folder: RunFolder) -> tuple[RunComparison, Path]:
    """Analyse a run folder, and write comparison.json and report.html into it."""
    # Charts are slow to import.
    from envcompare.report.page import render

    comparison = compare_run(folder)
    try:
        folder.write_json("comparison.json", comparison)
        names = tuple(name for name in folder.file_names() if name != "report.html")
        folder.write_bytes("report.html", render(comparison, files=names).encode())
    except RunFolderError as error:
        raise RunFolderError(
            error.brief,
            details=error.details,
            hint=f"the run is kept in {folder.path}; once it is writable, draw the report with "
            f"`envcompare report {shlex.quote(str(folder.path))}`, or elsewhere with "
            "`--output FILE`",
        ) from error
    return comparison, folder.path / "report.html"


def show_summary(comparison: RunComparison, path: Path, display: Display | None = None) -> None:
    """Print the sentences of a comparison and the path of its report.

    Print to the display if stdout is used for something else.
    """
    why_none = left_out_charts()
    lacking = [f"charts are left out: {why_none}"] * bool(why_none)
    lines = ["", *lacking, f"report: {path}"]
    if display is None:
        show(summary(comparison))
        print_lines(lines)
    elif not display.is_quiet:
        show(summary(comparison), display.console)
        for line in lines:
            display.say(line)


def show_result(blocks: tuple[PlainBlock, ...], content: object, *, form: str) -> None:
    """Print blocks as text or Markdown, or the content as JSON."""
    if form == "text":
        show(blocks)
    else:
        print_bytes(json_bytes(content) if form == "json" else markdown(blocks).encode())


def show(blocks: Iterable[PlainBlock], console: Console | None = None) -> None:
    """Print headings, lines, tables and lists to stdout."""
    stream = result_stream()
    out = console or Console(file=stream, highlight=False, emoji=False)
    if not out.is_terminal and console is None:
        # nothing reports a width, and Rich takes 80 columns
        out = Console(file=stream, highlight=False, emoji=False, width=max(out.width, 100))
    with out.capture() as printed:
        for block in blocks:
            _print(out, block)
    out.file.write(printed.get().replace(_GLUE, " "))
    out.file.flush()


def _print(out: Console, block: PlainBlock) -> None:
    match block:
        case Heading():
            out.print(_text(block.text, "bold"))
        case Table():
            out.print()
            out.print(_table(block))
            out.print()
        case Items():
            _print_indented(out, map(plain, block.items), _STYLES.get(block.style, ""))
        case Line():
            words = " ".join(filter(None, (block.strong, block.text)))
            out.print(_text(words, _STYLES.get(block.style, "")))
            _print_indented(out, block.below)


def _print_indented(out: Console, texts: Iterable[str], style: str = "") -> None:
    for text in texts:
        out.print(Padding(_text(text, style), (0, 0, 0, 2)))


def _table(block: Table) -> rich.table.Table:
    # folded, since the end of a path or an image is what tells it from others
    heads = (rich.table.Column(_text(column.head), overflow="fold") for column in block.columns)
    drawn = rich.table.Table(*heads, box=None, padding=(0, 2, 0, 0), header_style="bold")
    for row in block.rows:
        drawn.add_row(*(_text(plain(cell)) for cell in row.cells), style=_STYLES.get(row.style, ""))
    return drawn


def _text(words: str, style: str = "") -> Text:
    """Return words as Rich prints them, keeping each number on one line with its unit."""
    return Text(FIGURE.sub(lambda figure: figure[0].replace(" ", _GLUE), flat(words)), style=style)
