"""What every subcommand that ends with a run folder does: analyse it, draw it, say the result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from envcompare.console import print_lines

if TYPE_CHECKING:
    from envcompare.analysis.model.comparison import RunComparison
    from envcompare.run_folder.results import RunFolder


def command_line() -> tuple[str, ...]:
    """Return the command as typed, without the folder its program lies in here."""
    return "envcompare", *sys.argv[1:]


def conclude(folder: RunFolder) -> tuple[RunComparison, Path]:
    """Analyse a run folder, and write comparison.json and report.html into it."""
    from envcompare.analysis.compare import compare_run
    from envcompare.report.page import render
    from envcompare.run_folder.disk import redrawable

    comparison = compare_run(folder)
    with redrawable(folder.path):
        folder.write_json("comparison.json", comparison)
        names = tuple(name for name in folder.file_names() if name != "report.html")
        folder.write_bytes("report.html", render(comparison, files=names).encode())
    return comparison, folder.path / "report.html"


def show_summary(comparison: RunComparison, path: Path) -> None:
    """Print the sentences of a comparison, and where its report lies."""
    from envcompare.cli.terminal import show
    from envcompare.report.export.summary import terminal_lines

    show(terminal_lines(comparison))
    print_lines(["", f"report: {path}"])
