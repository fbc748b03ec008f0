"""Where runs are read from and results go: paths as typed, the report of a run, files, stdout."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from envcompare.console import is_terminal, print_bytes, print_lines
from envcompare.errors import ConfigError
from envcompare.run_folder.disk import irregular, redrawable, replace_file, write_error

if TYPE_CHECKING:
    from envcompare.analysis.model.comparison import RunComparison
    from envcompare.run_folder.results import RunFolder

PATH: Final = click.Path(path_type=Path, readable=False)
"""A path as it was typed: whoever opens it says what is wrong with it, by its own exit code."""
_OWN: Final = ("run.json", "samples.jsonl", "events.jsonl", "fingerprints", "logs", "profiles")
"""What a run folder cannot be made again from without."""


def check_output(output: Path) -> None:
    """Raise ConfigError where a file cannot be written, before anything is analysed for it."""
    folder = output.parent
    if output.is_dir():
        raise ConfigError(
            f"--output {str(output)!r} is a folder",
            hint="name a file, in this folder or in another one",
        )
    if not folder.is_dir():
        raise ConfigError(
            f"--output {str(output)!r} cannot be written",
            details=f"there is no folder {folder}",
            hint=f"mkdir -p {shlex.quote(str(folder))}",
        )
    if not (irregular(output) or os.access(folder, os.W_OK)):
        raise ConfigError(
            f"--output {str(output)!r} cannot be written",
            details=f"this user cannot write into {folder}",
            hint="name a file in a folder that can be written to",
        )
    if _is_part(real_path(output)):
        raise ConfigError(
            f"--output {str(output)!r} would replace a part of a run",
            hint="name a file outside of run folders, or another name in it",
        )


def check_figures(folder: Path) -> None:
    """Raise ConfigError where figures would stand among what a run was measured as."""
    if _is_part(real_path(folder)):
        raise ConfigError(
            f"--figures {str(folder)!r} is a part of a run",
            hint="name another folder; a separate one inside the run folder is fine",
        )


def check_terminal(form: str) -> None:
    """Raise ConfigError where bytes that are no text would go to a terminal."""
    if is_terminal():
        raise ConfigError(
            f"{form} is binary and is not written to a terminal",
            hint=f"add --output FILE.{form}, or `> FILE.{form}`",
        )


def put(content: bytes, output: Path | None) -> None:
    """Write to the file, or to stdout where none is named.

    Raises RunFolderError where the disk refuses; a file that was there then stays as it was.
    """
    if output is None:
        print_bytes(content)
        return
    try:
        if irregular(output):
            output.write_bytes(content)  # a pipe or a device must not be replaced by a file
        else:
            replace_file(real_path(output), content)
    except OSError as error:
        raise write_error(output, error, option="--output") from error


def real_path(path: Path) -> Path:
    """Return what a path leads to; links that lead to each other stay as they are."""
    return Path(os.path.realpath(path))


def _is_part(output: Path) -> bool:
    """Tell whether a file is what the run folder around it, be it of another run, cannot lose."""
    return any(
        output.relative_to(folder).parts[0] in _OWN and (folder / "run.json").is_file()
        for folder in output.parents
    )


def command_line() -> tuple[str, ...]:
    """Return the command as typed, without the folder its program lies in here."""
    return "envcompare", *sys.argv[1:]


def conclude(folder: RunFolder) -> tuple[RunComparison, Path]:
    """Analyse a run folder, and write comparison.json and report.html into it."""
    from envcompare.analysis.compare import compare_run
    from envcompare.report.page import render

    comparison = compare_run(folder)
    with redrawable(folder.path):
        folder.write_json("comparison.json", comparison)
        names = tuple(name for name in folder.file_names() if name != "report.html")
        folder.write_bytes("report.html", render(comparison, files=names).encode())
    return comparison, folder.path / "report.html"


def show_summary(comparison: RunComparison, path: Path) -> None:
    """Print the sentences of a comparison, and where its report lies."""
    from envcompare.cli.terminal import show
    from envcompare.report.export.summary import summary

    show(summary(comparison))
    print_lines(["", f"report: {path}"])
