"""The section of sweeps: only where a number was swept, each chart with a table of its numbers."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from chartpages import HOSTILE, hostile_runs, swept, swept_run
from msgspec.structs import replace

from envcompare.analysis.model import RunComparison
from envcompare.report.charts import ChartBudget
from envcompare.report.page import render
from envcompare.report.sections.charted import MOST_SWEEPS, sweeps_section
from envcompare.text import visible


def section(html: str) -> str:
    """Return the section of sweeps."""
    found = re.search(r'<section id="sweeps".*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def sweeps_of(run: RunComparison, charts: ChartBudget) -> list[Any]:
    """Return the blocks of each sweep."""
    made = sweeps_section(run, charts)
    assert made is not None
    (shown,) = (block for block in made.blocks if block.form == "group")
    return [group.blocks for group in shown.blocks]


def test_the_page_has_a_section_where_a_parameter_was_swept() -> None:
    """Heading, chart, and a row for each value with each arm's change, interval and verdict."""
    html = render(swept())
    assert '<a href="#sweeps">Sweeps</a>' in html
    found = section(html)
    assert "cnn by batch on gpu01" in found
    assert found.count('<svg class="chart"') == 1
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in re.findall(r"<tr>.*?</tr>", found)]
    assert [row[0] for row in rows] == ["batch", "1", "4", "16"]
    assert " ".join(rows[3]).startswith("16 +8.0 % +7.5 to +8.5 % ▶ slower")
    assert " ".join(rows[2]).endswith(
        "not measured failed (phase setup, exit code 1): out of memory"
    )


def test_no_sweep_leaves_no_section() -> None:
    """A run of one value has neither the heading nor the link to it."""
    run = swept_run({"docker": {1: (1, 0, 2)}})
    html = render(run)
    assert section(html) == ""
    assert "#sweeps" not in html
    assert sweeps_section(run, ChartBudget()) is None


def test_of_many_sweeps_those_that_moved_most_are_drawn() -> None:
    """The others are counted, and their numbers stand in the table of all comparisons."""
    run = swept_run({"docker": {1: (1, 0, 2), 2: (2, 1, 3)}})
    hosts = [f"gpu{number:02}" for number in range(MOST_SWEEPS + 3)]
    cells = [
        replace(cell, host=host, id=cell.id.replace("gpu01", host))
        for host in hosts
        for cell in run.cells
    ]
    made = [
        replace(comparison, host=host, cell=comparison.cell.replace("gpu01", host),
                primary=replace(comparison.primary, log_ratio=0.001 * place))
        for place, host in enumerate(hosts)
        for comparison in run.comparisons
        if comparison.primary
    ]  # fmt: skip
    many = replace(run, cells=tuple(cells), comparisons=tuple(made))
    titles = [heading.text for heading, *_ in sweeps_of(many, ChartBudget())]
    assert titles == [f"cnn by batch on {host}" for host in hosts[3:]]
    assert "3 more sweeps moved less:" in section(render(many))


def test_a_page_without_charts_left_keeps_the_table() -> None:
    """The numbers stand there even where the chart would make the page too large."""
    (first,) = sweeps_of(swept(), ChartBudget(left=0))
    assert [block.form for block in first] == ["heading", "fold"]
    assert len(first[1].blocks[0].rows) == 3


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_parameter_is_text(name: str) -> None:
    """Its name stands in heading, table and chart, and nothing of it becomes markup."""
    found = section(render(hostile_runs(name)[0]))
    assert visible(name)[:20] in unescape(found)
    assert not [part for part in ("<img", "<b>", "\u202e", "\x00") if part in found]
