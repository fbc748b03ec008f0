"""What keeps the page of a large run small: it says what it leaves out, and where that stands."""

from __future__ import annotations

import pytest

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report import Line, Table, plain
from envcompare.report.charts import Chart, ChartBudget, Declared, layered, marks
from envcompare.report.sections import file_links
from envcompare.report.sections.charted import startup_tables
from runfolders import Arm, Shape, write
from tests.data.report.builders import changed

ARMS = tuple(Arm(id=f"image{number}") for number in range(5))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Return a run of 30 cells, each with the start-up of seven environments."""
    shape = Shape(
        arms=ARMS,
        workloads=tuple(f"work{number:02}" for number in range(30)),
        restarts=1,
        generations=1,
        rounds=2,
    )
    return compare_run(write(tmp_path_factory.mktemp("runs"), shape))


def has_bars(table: Table) -> bool:
    """Say whether a table divides its start-ups into parts."""
    first = table.rows[0].cells[1:]
    return any(isinstance(cell, Line) and bool(cell.segments) for cell in first)


def test_start_ups_of_many_cells_are_told_as_a_whole(large: RunComparison) -> None:
    """The first sixty have their parts; other cells have the whole, and say where parts are."""
    tables = [table for _, table in startup_tables(large)]
    assert len(tables) == 30
    divided = [has_bars(table) for table in tables]
    assert divided == sorted(divided, reverse=True)
    assert sum(len(table.columns) - 1 for table in tables if has_bars(table)) in range(60, 67)
    for table in tables:
        names = [plain(row.cells[0]) for row in table.rows]
        assert ("imports" in names) == has_bars(table)
        assert "real" in names
        assert ("comparison.json holds the parts." in table.caption) != has_bars(table)


def test_start_ups_of_a_usual_run_are_all_divided(large: RunComparison) -> None:
    """What is left out is left out for the size alone."""
    first = {large.cells[0].id, large.cells[1].id}
    found = tuple(one for one in large.views.startup if one.cell in first)
    few = changed(large, startup=found)
    assert all(has_bars(table) for _, table in startup_tables(few))


def test_files_are_named_and_folders_counted() -> None:
    """A list of a thousand names helps nobody; those of the run itself stay links."""
    logs = tuple(f"logs/gpu/cell{number}/vm.log" for number in range(900))
    found = file_links(
        ("comparison.json", *logs, "profiles/a.json", "run.json", "../a/1", "../a/2")
    )
    assert [(one.text, one.href) for one in found] == [
        ("comparison.json", "./comparison.json"),
        ("profiles/a.json", "./profiles/a.json"),
        ("run.json", "./run.json"),
        ("900 files in logs", "./logs/"),
        ("2 files in ..", ""),
    ]


def test_charts_stop_where_they_fill_the_page() -> None:
    """Some charts are ten times as long as others, so their number alone says little."""

    def declare(_: object) -> Declared:
        return layered([marks([{"x": 1}], "point", x="x")], width=9, height=9)

    chart = Chart(name="one", title="One", description="A point.", declare=declare)
    charts = ChartBudget(characters_left=1)
    assert charts.draw(chart)
    assert not charts.draw(chart)
    assert charts.refused == 1
