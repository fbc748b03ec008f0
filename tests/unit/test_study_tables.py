"""`studies/tables.py`: what a run measured, what a study printed, and what differs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from envcompare import bundled
from envcompare.analysis.model import PickedValue, RunComparison
from envcompare.analysis.model.profiling import ArmProfiles, CellProfiles, QuantityRow
from envcompare.cli.options import read_settings
from envcompare.cli.planning import resolved
from envcompare.config.settings import Settings
from envcompare.report import markdown
from envcompare.report.wording.profilewords import quantity_name
from studies import tables
from studies.tables import StudyTable
from tests.data.report.builders import changed, example

ROOT = Path(__file__).resolve().parents[2]
_TIMES = {"step_ms", "samples_per_s", "time_ratio", "speed_up", "efficiency", "gpu_activities_ns"}
_OTHERS = {"cuda_allocated_peak_bytes", "layers_that_fit"}


def swept() -> RunComparison:
    """Return a run of vm alone in two cells of the cnn, batches of 2 and 1."""
    run = example()
    first = run.cells[0]
    cells = tuple(
        replace(
            first,
            id=f"lab01/cnn/batch={batch}",
            parameters={"batch": batch, "side": 32},
            step_times=tuple(
                replace(times, median_s=0.01 * batch, samples_per_s=rate)
                for times in first.step_times
                if times.arm == "vm"
            ),
        )
        for batch, rate in ((2, 150.0), (1, 100.0))
    )
    arms = tuple(arm for arm in run.arms if arm.arm == "vm")
    return changed(run, cells=cells, arms=arms, comparisons=(), memory=(), profiles=())


def shown(run: RunComparison, **fields: Any) -> tuple[list[list[str]], list[str]]:
    """Return the cells of each row of a table by batch, and the sentences below it."""
    given = {"title": "By batch", "rows": ("batch",), "values": {"step_ms": "ms a step"}, **fields}
    lines = markdown(tables.blocks_of(run, StudyTable(**given))).splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [rows[0], *rows[2:]], [line[2:] for line in lines if line.startswith("- ")]


def printed_by(run: Path, study: str) -> str:
    """Return what the script prints."""
    argv = [sys.executable, str(ROOT / "studies" / "tables.py"), str(run), study]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("file", ["", "comparison.json"])
def test_a_kept_run_is_shown_beside_the_study(file: str) -> None:
    """The numbers are those of its samples; without a GPU nothing of one was measured."""
    text = printed_by(ROOT / "results" / "ranks" / file, "gpu-activities")
    lacking = " | ".join(["not measured"] * 3)
    assert text.startswith("**GPU activities by number of GPUs and batch**\n\n| ranks | batch |")
    assert f"| 1 | 32 | vm | 152 | 1 | 100 | {lacking} | 0.0422 | 0.0325 |" in text
    assert f"| 2 | 32 | docker | 227 | 1.31 | 65.4 | {lacking} | 20.4 | 7.95 |" in text
    absent = " | ".join(["not printed"] * 3)
    assert f"| 4 | 16 | study | {absent} | 81.5 | 5.69 | 37 |" in text
    assert "hidden is 512 here and 4096 in the study." in text


def test_what_the_study_printed_stands_below_what_was_measured() -> None:
    """Rows of one batch stand together, in the order of batches, whoever has them."""
    rows, _ = shown(
        swept(),
        values={"step_ms": "ms a step", "samples_per_s": "samples/s"},
        printed=(
            {"batch": 2, "where": "cluster", "step_ms": 12.5},
            {"batch": 1.5, "samples_per_s": 380},
        ),
    )
    assert rows == [
        ["batch", "where", "ms a step", "samples/s"],
        ["1", "vm", "10", "100"],
        ["1.5", "study", "not printed", "380"],
        ["2", "vm", "20", "150"],
        ["2", "study, cluster", "12.5", "not printed"],
    ]


def test_a_table_says_what_differs_from_the_study() -> None:
    """Hardware, and the sizes alone that differ."""
    _, said = shown(
        swept(),
        source="a table",
        measured_on="a Tesla T4",
        parameters={"side": 224, "batch": 1, "lr": 0.1},
        notes=("It ran once.",),
    )
    assert said[0] == "The study's numbers: a table."
    assert said[1].endswith(" here; on a Tesla T4 in the study.")
    assert said[2:] == [
        "side is 32 here and 224 in the study.",
        "batch is 2 and 1 here and 1 in the study.",
        "lr is default here and 0.1 in the study.",
        "It ran once.",
    ]


def test_numbers_come_from_memory_profiles_and_what_a_workload_returned() -> None:
    """In MB and milliseconds of a step; what is missing is not measured, and never 0."""
    run = swept()
    cell = run.cells[1].id
    number = PickedValue(
        cell=cell, arm="vm", name="accuracy", processes=2, median=0.95, low=0.9, high=1.0
    )
    memory = replace(
        example().views.memory[0],
        cell=cell, arm="vm", max_rss_bytes=120_000_000, cuda_allocated_peak_bytes=0,
    )  # fmt: skip
    quantities = tuple(
        QuantityRow(name=name, unit=unit, rule="sum", source="made up", kind="trace", **values)
        for name, unit, values in (
            ("kernel_time_ns", "ns", {"value": 9e6, "per_step": 3e6}),
            ("memcpy_htod_ns", "ns", {"value": 1.5e6, "per_step": 5e5}),
            ("occupancy", "%", {"value": 40.0}),
        )
    )
    profiles = CellProfiles(
        cell=cell, host="lab01", reference="vm",
        arms=(ArmProfiles(arm="vm", passes=(), quantities=quantities),),
    )  # fmt: skip
    names = (
        "accuracy", "max_rss_bytes", "cuda_allocated_peak_bytes", "gpu_activities_ns", "occupancy",
        "time_ratio", "speed_up",
    )  # fmt: skip
    rows, _ = shown(
        changed(run, picked=(number,), memory=(memory,), profiles=(profiles,)),
        values={name: name for name in names},
    )
    assert rows[1] == ["1", "vm", "0.950", "120", "0", "3.50", "40", "1", "not measured"]
    assert rows[2] == ["2", "vm", *["not measured"] * 5, "1", "not measured"]


@pytest.mark.parametrize("name", bundled.studies())
def test_every_study_has_a_table_of_what_it_runs(name: str) -> None:
    """Its rows are told apart by what the study sets, and its values are known by name."""
    settings = read_settings(bundled.studies()[name])
    experiment, _ = resolved(Settings(envs="vm"), settings)
    given = {parameter for values in (settings.set or {}).values() for parameter in values}
    found = tables.tables_of(name)
    assert found
    for table in found:
        assert {*table.rows} <= {"workload", *given}
        assert {*table.workloads} <= {workload.name for workload in experiment.workloads}
        for value in table.values:
            assert value in _TIMES | _OTHERS or quantity_name(value) != value
        for row in table.printed:
            assert row.keys() <= {"where", *table.rows, *table.values}
            assert row.keys() >= {*table.rows}


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """A folder without a comparison, or a file of something else."""
    (tmp_path / "other.json").write_text("{}")
    for path in (tmp_path, tmp_path / "other.json"):
        done = CliRunner().invoke(tables.main, [str(path), "amp"])
        assert done.exit_code == 1
        assert "cannot be read" in done.output
