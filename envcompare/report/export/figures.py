"""Every chart of a run as files for a paper: SVG, PNG and PDF in light colours on white.

PNG and PDF are drawn with the fonts of this machine, and a character that none of them has is a
box; SVG holds the text as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.errors import ConfigError
from envcompare.report.charts.bars import startup_charts, time_chart
from envcompare.report.charts.drawing import Chart, paper_files
from envcompare.report.charts.forest import forest_chart
from envcompare.report.charts.roofline import roofline_chart
from envcompare.report.charts.steps import step_chart
from envcompare.report.charts.sweeps import sweep_charts
from envcompare.report.wording.labels import cell_labels, compared_arms
from envcompare.run_folder.disk import replace_file, write_error
from envcompare.text import counted

MOST_FIGURES: Final = 200
_OPTION: Final = "--figures"


def write_figures(charts: Sequence[Chart], folder: Path) -> tuple[Path, ...]:
    """Write the first charts, each as NAME.svg, NAME.png and NAME.pdf, and return the paths.

    The folder is made where it is missing. Files of these names are replaced, each as a whole.
    Raises ConfigError where a file is in the way, RunFolderError where the disk refuses.
    """
    _make(folder)
    written = []
    for chart in charts[:MOST_FIGURES]:
        for ending, content in paper_files(chart).items():
            path = folder / f"{chart.name}.{ending}"
            try:
                replace_file(path, content)
            except OSError as error:
                raise write_error(path, error, option=_OPTION) from error
            written.append(path)
    return tuple(written)


def left_out_sentence(charts: Sequence[Chart]) -> str:
    """Say how many charts `write_figures` leaves out, empty where it draws all."""
    count = len(charts) - MOST_FIGURES
    if count <= 0:
        return ""
    return f"{counted(count, 'chart')} beyond the first {MOST_FIGURES} not drawn"


def charts_of(run: RunComparison) -> tuple[Chart, ...]:
    """Return every chart of a run, those of the whole run first."""
    arms, labels = (run.reference_arm, *compared_arms(run)), cell_labels(run)
    found = [
        forest_chart(run),
        *sweep_charts(run),
        *(roofline_chart(one, where=labels.get(one.cell, one.cell)) for one in run.profiles),
        *startup_charts(run),
        *(step_chart(run, cell, arms) for cell in run.cells),
        *(time_chart(run, one, ledger) for one in run.profiles for ledger in one.ledgers),
    ]
    return tuple(chart for chart in found if chart is not None)


def check_folder(folder: Path) -> None:
    """Raise ConfigError where a file stands in the place of the folder for figures."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{_OPTION} {str(folder)!r} is not a folder",
            details="a file of this name is there",
            hint="name a folder, or one that does not exist yet",
        )


def _make(folder: Path) -> None:
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error, what="made", option=_OPTION) from error
