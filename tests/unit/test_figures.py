"""Figures for papers: each chart as three files, written whole or refused with a reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from chartpages import (
    compared,
    estimate,
    kept_ladder,
    kind_of,
    kinds_of_charts,
    parsed,
    run_of,
    spread_cell,
    swept_run,
)
from profilepages import profiled_run

from envcompare.errors import ConfigError, RunFolderError
from envcompare.report import exports
from envcompare.report.charts import Chart
from envcompare.report.exports import captions_of, charts_of, left_out_sentence, write_figures


def small_charts() -> tuple[Chart, ...]:
    """Return the charts of a run with one comparison and the steps of one cell."""
    cell = spread_cell({"vm": 0.01, "docker": 0.011})
    return charts_of(run_of((cell,), (compared("docker", cell, estimate(8, 7, 9)),)))


def test_each_chart_is_written_as_svg_png_and_pdf(tmp_path: Path) -> None:
    """The folder is made, and what programs expect stands in the files."""
    folder = tmp_path / "a" / "figures"
    written = write_figures(small_charts(), folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in written)
    assert {path.suffix for path in written} == {".svg", ".png", ".pdf"}
    assert len(written) == 3 * len(small_charts()) == 6
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".svg":
            svg = parsed(content.decode())
            backdrop = next(mark for mark in svg.iter() if mark.tag.endswith("rect"))
            assert backdrop.get("fill") == "#fff"
        else:
            magic = b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"%PDF-"
            assert content.startswith(magic)


def test_the_picture_has_at_least_twice_the_pixels(tmp_path: Path) -> None:
    """A paper prints finer than a screen shows."""
    written = write_figures(small_charts(), tmp_path)
    picture = next(path for path in written if path.suffix == ".png").read_bytes()
    wide = int.from_bytes(picture[16:20], "big")
    svg = next(path for path in written if path.suffix == ".svg").read_text(encoding="utf-8")
    assert wide >= 2 * float(parsed(svg).get("width", "0"))


def test_figures_have_the_width_that_is_asked_for(tmp_path: Path) -> None:
    """A point of the page is a unit of the drawing; an inch has 300 dots."""
    written = write_figures(small_charts(), tmp_path, width_mm=84)
    for path in written:
        content = path.read_bytes()
        if path.suffix == ".svg":
            assert float(parsed(content.decode()).get("width", "0")) == pytest.approx(
                238.1, abs=0.1
            )
        elif path.suffix == ".png":
            assert int.from_bytes(content[16:20], "big") == pytest.approx(992, abs=2)
        else:
            box = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", content)
            assert box is not None
            assert float(box[1]) == pytest.approx(238.1, abs=0.5)


def test_captions_and_methods_can_be_pasted(tmp_path: Path) -> None:
    """Each figure has its own, and the methods say how many restarts and which margin."""
    cell = spread_cell({"vm": 0.01, "docker": 0.011})
    run = run_of((cell,), (compared("docker", cell, estimate(8, 7, 9)),))
    charts = charts_of(run)
    write_figures(charts, tmp_path, captions=captions_of(run, charts))
    text = (tmp_path / "captions.md").read_text(encoding="utf-8")
    first, methods = text.split("# Methods")
    assert all(f"`{chart.name}`: {chart.title}." in first for chart in charts)
    assert f"envcompare {run.tool_version}" in methods
    assert f"±{100 * run.settings.margin:g} %" in methods
    assert ".." not in methods
    assert "docs/" not in methods


def test_a_run_draws_every_kind_of_chart() -> None:
    """If this fails, add your chart to `charts_of`, and a run that has it here."""
    swept = swept_run({"docker": {1: (1, 0, 2), 2: (2, 1, 3)}})
    runs = (profiled_run(), swept, kept_ladder())
    figures = (*small_charts(), *(chart for run in runs for chart in charts_of(run)))
    assert {kind_of(chart) for chart in figures} == kinds_of_charts()


def test_a_second_time_replaces_the_files_and_keeps_others(tmp_path: Path) -> None:
    """The names are the same, and the user's own files stay."""
    (tmp_path / "mine.txt").write_text("mine")
    first = write_figures(small_charts(), tmp_path)
    before = [path.read_bytes() for path in first if path.suffix == ".svg"]
    again = write_figures(small_charts(), tmp_path)
    assert again == first
    assert before == [path.read_bytes() for path in again if path.suffix == ".svg"]
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == len(first) + 1


def test_a_file_in_the_way_is_wrong_usage(tmp_path: Path) -> None:
    """The error names the option and what to try."""
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError) as caught:
        write_figures(small_charts(), tmp_path / "taken")
    assert "--figures" in caught.value.brief
    assert caught.value.details
    assert caught.value.hint
    with pytest.raises(RunFolderError) as below:
        write_figures(small_charts(), tmp_path / "taken" / "figures")
    assert "--figures" in below.value.hint


def test_a_folder_in_the_place_of_a_figure_is_said(tmp_path: Path) -> None:
    """Nothing half-written is left behind."""
    chart = small_charts()[0]
    (tmp_path / f"{chart.name}.svg").mkdir()
    with pytest.raises(RunFolderError) as caught:
        write_figures(small_charts(), tmp_path)
    assert caught.value.brief.endswith("cannot be written")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    """The hint says to make it writable."""
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(RunFolderError) as caught:
            write_figures(small_charts(), tmp_path / "figures")
    finally:
        tmp_path.chmod(0o700)
    assert "writable" in caught.value.hint


def test_more_charts_than_the_limit_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not drawn is said, and what is drawn are the charts of the whole run first."""
    assert left_out_sentence(small_charts()) == ""
    monkeypatch.setattr(exports, "MOST_FIGURES", 1)
    assert len(write_figures(small_charts(), tmp_path)) == 3
    assert left_out_sentence(small_charts()).startswith("1 chart")
    assert all(path.name.startswith("forest") for path in tmp_path.iterdir())
