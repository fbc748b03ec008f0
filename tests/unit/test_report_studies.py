"""Tables that a run was asked for: what was measured, what a study printed, and what differs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from builders import CELL
from chartpages import HOSTILE
from measuredruns import one_cell, run_folder
from msgspec.structs import replace

from envcompare import bundled
from envcompare.analysis.compare import compare_run
from envcompare.analysis.model.comparison import PickedValue, RunComparison
from envcompare.analysis.model.machines import TorchBuild
from envcompare.analysis.model.scaling import Scaling
from envcompare.cli.givensettings import read_settings
from envcompare.cli.planning import resolved
from envcompare.config.settings import Settings, parse_settings
from envcompare.errors import ConfigError
from envcompare.report.blocks import markdown
from envcompare.report.page import render
from envcompare.report.sections.studies import study_section
from envcompare.report.summary import summary
from envcompare.report.wording.profileterms import quantity_name
from envcompare.run_folder.records import Event, TableRecord
from envcompare.run_folder.results import RunFolder
from tests.data.report.builders import example

_TIMES = {"step_ms", "samples_per_s", "time_ratio", "speed_up", "efficiency", "gpu_activities_ns"}
_OTHERS = {"cuda_allocated_peak_bytes", "layers_that_fit"}
_CELL = r"<t[dh].*?</t[dh]>"
_ROWS: dict[str, Any] = {"title": "By batch", "rows": ("batch",)}


def swept(**fields: Any) -> RunComparison:
    """Return a run of two cells of the cnn, batches of 1 and 2, with one table."""
    run = example()
    first = run.cells[0]
    cells = tuple(
        replace(
            first,
            id=f"lab01/cnn/batch={batch}",
            parameters={"batch": batch, "side": 32},
            step_times=tuple(
                replace(one, median_s=0.01 * batch, samples_per_s=rate)
                for one in first.step_times
                if one.arm == "vm"
            ),
        )
        for batch, rate in ((1, 100.0), (2, 150.0))
    )
    table = TableRecord(**{**_ROWS, **fields})
    arms = tuple(one for one in run.arms if one.arm == "vm")
    return replace(run, cells=cells, arms=arms, comparisons=(), tables=(table,))


def rows_of(run: RunComparison) -> list[list[str]]:
    """Return the texts of the cells of each row on the page."""
    found = re.search(r'<section id="studies".*?</section>', render(run), re.DOTALL)
    assert found is not None
    rows = re.findall(r"<tr.*?</tr>", found[0], re.DOTALL)
    return [
        [unescape(re.sub(r"<[^>]+>", "", one)).strip() for one in re.findall(_CELL, row, re.DOTALL)]
        for row in rows
    ]


def said_by(run: RunComparison) -> list[str]:
    """Return the sentences below the table."""
    made = study_section(run)
    assert made is not None
    return [str(item) for item in made.blocks[-1].items]  # type: ignore[union-attr]


def test_what_the_study_printed_stands_below_what_was_measured() -> None:
    """Rows of one batch stand together; what only the study ran has its rows as well."""
    run = swept(
        values=("step_ms", "samples_per_s", "speed_up", "efficiency"),
        printed=(
            {"batch": 2, "where": "cluster", "step_ms": 12.5},
            {"batch": 4, "samples_per_s": 380},
        ),
    )
    assert rows_of(run) == [
        ["batch", "where", "ms a step", "samples/s", "speed-up", "efficiency, %"],
        ["1", "vm", "10", "100", "1", "100"],
        ["2", "vm", "20", "150", "1.50", "75"],
        ["2", "study, cluster", "12.5", "not printed", "not printed", "not printed"],
        ["4", "study", "not printed", "380", "not printed", "not printed"],
    ]


def test_gain_of_ranks_is_that_of_the_section_of_several_ranks() -> None:
    """Over the restarts that measured both: a page has no second one."""
    run = swept(rows=("ranks",), values=("speed_up", "efficiency"))
    cells = tuple(
        replace(cell, parameters={"ranks": 1 + place}) for place, cell in enumerate(run.cells[:2])
    )
    rows = tuple(
        Scaling(
            cell=cell.id, host=cell.host, workload=cell.workload, arm="vm", ranks=1 + place,
            speed_up=gain, efficiency=gain / (1 + place),
        )
        for place, (cell, gain) in enumerate(zip(cells, (1.0, 1.75), strict=True))
    )  # fmt: skip
    found = rows_of(replace(run, cells=cells, scaling=rows))
    assert [row for row in found if row[1] == "vm"] == [
        ["1", "vm", "1", "100"],
        ["2", "vm", "1.75", "87.5"],
    ]
    found = rows_of(replace(run, cells=cells, scaling=rows[:1]))
    assert found[-1] == ["2", "vm", "not measured", "not measured"]


def test_numbers_stand_in_their_order_whoever_has_them() -> None:
    """What the study alone ran is no appendix."""
    run = swept(
        values=("step_ms",), printed=({"batch": 1.5, "step_ms": 7}, {"batch": 0.5, "step_ms": 3})
    )
    assert [row[0] for row in rows_of(run)] == ["batch", "0.5", "1", "1.5", "2"]


def test_a_table_says_what_differs_from_the_study() -> None:
    """Hardware, software, preset and sizes, those alone that differ."""
    run = swept(
        values=("step_ms",),
        source="a table",
        measured_on="a Tesla T4",
        parameters={"side": 224, "batch": 1},
        notes=("It ran once.",),
    )
    hosts = tuple(replace(one, torch=(TorchBuild(version="2.13.0"),)) for one in run.hosts)
    said = said_by(replace(run, hosts=hosts))
    assert said[0] == "The study's numbers: a table."
    assert "preset default, here; on a Tesla T4 in the study." in said[1]
    sizes = "side is 32 here and 224 there; batch is 1 and 2 here and 1 there"
    assert said[2:] == [f"Other sizes than the study's: {sizes}.", "It ran once."]


def test_numbers_that_a_workload_returned_are_values_of_a_table() -> None:
    """So are peaks of memory; what nobody measured in any row is said below the table."""
    run = swept(values=("accuracy", "max_rss_bytes", "occupancy"))
    cell = run.cells[0].id
    number = PickedValue(
        cell=cell, arm="vm", name="accuracy", processes=2, median=0.95, low=0.9, high=1.0
    )
    memory = replace(run.memory[0], cell=cell, arm="vm", max_rss_bytes=120_000_000)
    found = rows_of(replace(run, picked=(number,), memory=(memory,)))
    assert found[1] == ["1", "vm", "0.950", "120"]
    assert found[2][2:] == ["not measured", "not measured"]
    assert said_by(run)[-1].endswith(
        "accuracy, peak resident memory, MB and occupancy achieved, %."
    )


def test_quantities_have_their_units_in_the_heads() -> None:
    """Shares and rates are in percent; what a workload returned has none."""
    names = (
        "occupancy",
        "collective_share",
        "l2_hit_rate",
        "power_w",
        "dram_bytes_per_s",
        "loss_c",
    )
    table = swept(values=names, printed=({"batch": 1, **dict.fromkeys(names, 5.0)},))
    heads = [head.rpartition(",")[2] for head in rows_of(table)[0][2:]]
    assert heads == ["%", "%", "%", "W", "B/s", "loss c"]


def test_the_tables_stand_in_markdown_and_the_terminal_too() -> None:
    """Below their titles, with the sentences below the table on the page."""
    run = swept(values=("step_ms", "samples_per_s"), source="a *table*")
    text = markdown(summary(run))
    assert "**By batch**" in text
    assert "| batch | where | ms a step | samples/s |" in text
    assert "| 2 | vm | 20 | 150 |" in text
    assert "The study's numbers: a \\*table\\*." in text


def test_a_run_without_tables_has_no_such_section() -> None:
    """Neither heading nor link."""
    assert study_section(example()) is None
    assert "#studies" not in render(example())


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_table_stay_texts(text: str) -> None:
    """Titles, heads, notes and what was printed come from a file that anybody may have written."""
    run = swept(
        values=(text,),
        title=text,
        rows=("batch", text),
        notes=(text,),
        source=text,
        measured_on=text,
        parameters={text: text},
        printed=({"batch": text, "where": text, text: text},),
    )
    page = render(replace(run, tables=(replace(run.tables[0], title=text),)))
    assert "<img src=x" not in page
    assert "&amp; <b>" not in page
    if "<img" in text:
        assert "&lt;img src=x" in page
    assert "\u202e" not in page


def test_a_key_that_a_table_does_not_have_is_refused() -> None:
    """A misspelt key would leave out what it was to say."""
    content = {"tables": [{"title": "t", "rows": ["batch"], "value": ["step_ms"]}]}
    with pytest.raises(ConfigError, match=r"unknown key `tables.*value`") as caught:
        parse_settings(content, source="x.toml")
    assert "did you mean `values`?" in str(caught.value.hint)


@pytest.mark.parametrize("name", bundled.studies())
def test_every_study_has_a_table_of_what_it_runs(name: str) -> None:
    """Its rows are told apart by what the study sets, and its values are known by name."""
    settings = read_settings(bundled.studies()[name])
    experiment, _ = resolved(Settings(envs="vm"), settings)
    given = {parameter for values in (settings.set or {}).values() for parameter in values}
    assert experiment.tables
    for table in experiment.tables:
        assert {*table.rows} <= {"workload", *given}
        assert {*table.workloads} <= {one.name for one in experiment.workloads}
        for value in table.values:
            assert value in _TIMES | _OTHERS or quantity_name(value) != value
        for row in table.printed:
            assert row.keys() <= {"where", *table.rows, *table.values}
            assert row.keys() >= {*table.rows}


def test_numbers_of_finish_are_read_from_the_events_of_each_generation(tmp_path: Path) -> None:
    """Texts and what the cell is told apart by are no numbers; no ratio is made of them."""
    path = run_folder(tmp_path, one_cell("20260101-000000-aaaa", 1.0, ended=False))
    folder = RunFolder.open(path)
    for accuracy in (0.9, 0.95, 1.0):
        values = {"accuracy": accuracy, "backend": "gloo", "is_done": True}
        folder.append_event(
            Event(t=6.0, what="generation", host="local", cell=CELL, arm="docker", values=values)
        )
    folder.close()
    (found,) = compare_run(RunFolder.open(path)).picked
    assert (found.arm, found.name, found.processes) == ("docker", "accuracy", 3)
    assert (found.low, found.median, found.high, found.log_ratio) == (0.9, 0.95, 1.0, None)
    page = render(compare_run(RunFolder.open(path)))
    assert "Numbers the workloads returned" in page
    assert "0.900 to 1.00, 3 generations" in page
