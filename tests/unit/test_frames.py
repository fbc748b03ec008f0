"""`envcompare.read`: a run folder as pandas frames, with the columns that the guide describes."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import block, run_record
from goldenruns import KEPT, golden_run
from imports import two_arms

import envcompare
from envcompare.analysis.frames import comparison_frame
from envcompare.analysis.tables import (
    COMPARISONS,
    DIFFERENCES,
    QUANTITIES,
    SAMPLES,
    SCALING,
    Column,
)
from envcompare.run_folder.records import ProcessRun, Sample
from envcompare.run_folder.results import RunFolder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "python.md"
COLUMNS = {
    "comparisons": COMPARISONS,
    "samples": SAMPLES,
    "differences": DIFFERENCES,
    "quantities": QUANTITIES,
    "scaling": SCALING,
}
DTYPES = {
    "text": ("string", "category"),
    "whole number": ("Int64",),
    "number": ("float64",),
    "yes or no": ("boolean",),
}


def written(out: Path, *samples: Sample) -> Path:
    """Return a run folder with these samples."""
    folder = RunFolder.create(out, run_record())
    for sample in samples:
        folder.append_sample(sample)
    folder.close()
    return folder.path


@pytest.mark.parametrize("name", COLUMNS)
def test_each_frame_has_the_described_columns_with_their_types(name: str, tmp_path: Path) -> None:
    """With rows, and without any: a script need not ask which of both it has."""
    for folder in (KEPT / "1x1x1", two_arms(tmp_path).path, written(tmp_path)):
        frame = getattr(envcompare.read(folder), name)
        assert list(frame.columns) == list(COLUMNS[name])
        for column in frame.columns:
            assert str(frame[column].dtype) in DTYPES[COLUMNS[name][column].kind], column


def test_comparisons_are_those_of_the_analysis() -> None:
    """The same outcomes and numbers; a failed one has a row without any."""
    run = golden_run("3x2x1")
    frame = envcompare.read(run.folder.path).comparisons
    assert frame.equals(comparison_frame(run.comparison))
    estimates = {
        (comparison.cell, comparison.arm): comparison for comparison in run.comparison.comparisons
    }
    assert len(frame[frame["is_primary"].fillna(value=True)]) == len(estimates)
    for row in frame[frame["is_primary"]].itertuples():
        one = estimates[row.cell, row.arm]
        assert one.deciding is not None
        expected = (one.outcome, one.deciding.log_ratio, one.deciding.low)
        assert (row.outcome, row.log_ratio, row.log_ratio_low) == expected
    failed = frame[frame["outcome"] == "failed"]
    assert failed["metric"].isna().all()
    assert failed["median_s"].isna().all()
    assert set(failed["why"]) == {"failed"}
    assert failed["failure"].notna().all()


def test_every_step_of_a_block_is_a_row(tmp_path: Path) -> None:
    """In seconds, in its place; what the block does not say of each step is missing."""
    first = block(wall_ns=(10, 20, 30), cpu_ns=(1, 2, 3), gpu_ns=(4, 5, 6), warmup=True)
    second = block(round=1, wall_ns=(40, 50, 60), cpu_ns=(7,))
    frame = envcompare.read(written(tmp_path, first, second)).samples
    assert list(frame["step"]) == [0, 1, 2, 0, 1, 2]
    assert list(frame["wall_s"] * 1e9) == pytest.approx([10, 20, 30, 40, 50, 60])
    assert list(frame["gpu_s"][:3] * 1e9) == pytest.approx([4, 5, 6])
    assert list(frame["is_warmup"]) == [True] * 3 + [False] * 3
    assert frame["cpu_s"][3:].isna().all()
    assert frame["gpu_s"][3:].isna().all()


def test_a_process_of_a_plain_command_is_one_row(tmp_path: Path) -> None:
    """Its CPU time is that of its own work and that inside the kernel."""
    run = ProcessRun(
        cell=block().cell,
        arm="vm",
        number=0,
        order=0,
        t0_ns=0,
        wall_ns=9_000_000_000,
        user_ns=5_000_000_000,
        sys_ns=1_000_000_000,
        real_ns=9_500_000_000,
        exit_code=0,
    )
    frame = envcompare.read(written(tmp_path, run)).samples
    assert frame[["step", "wall_s", "cpu_s"]].to_numpy().tolist() == [[0, 9.0, 6.0]]


def test_quantities_of_imported_profiles_have_those_of_the_reference(tmp_path: Path) -> None:
    """Each arm has its numbers, and the ratio is of both."""
    frame = envcompare.read(two_arms(tmp_path).path).quantities
    times = frame[frame["metric"] == "kernel_time_ns"].set_index("arm")
    assert not times["is_timed"].any()
    assert times["value_agreement"]["vm"] == "reference"
    docker = times.loc["docker"]
    assert docker["reference_value"] == times["value"]["vm"]
    assert docker["ratio"] == docker["value"] / docker["reference_value"]


def test_differences_are_those_of_the_fingerprints() -> None:
    """A list is JSON, a text stands as it is."""
    run = golden_run("3x2x1")
    frame = envcompare.read(run.folder.path).differences
    found = {
        (difference.host, difference.arm, difference.key): difference
        for difference in run.comparison.differences
    }
    assert len(frame[frame["cell"].isna()]) == len(found)
    for row in frame[frame["cell"].isna()].itertuples():
        assert row.fact_class == found[row.host, row.arm, row.key].fact_class
    assert {"confounder", "varied"} <= set(frame["fact_class"])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "is not a run folder"),
        (lambda path: (path / "run.json").write_text("{}"), "cannot be read"),
        (lambda path: (path / "run.json").write_text('{"schema": 99}'), "has schema 99"),
        (lambda path: (path / "samples.jsonl").write_text("x\n"), "is damaged in line 1"),
        (lambda path: (path / "samples.jsonl").unlink(), "missing or empty"),
    ],
)  # fmt: skip
def test_folder_that_cannot_be_read_is_refused_as_everywhere(
    tmp_path: Path, spoil: object, words: str
) -> None:
    """With what is wrong, why, and what to try."""
    folder = tmp_path / "run"
    shutil.copytree(KEPT / "1x1x1", folder)
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(envcompare.RunFolderError, match=words) as raised:
        envcompare.read(folder)
    assert raised.value.details
    assert raised.value.hint


def test_folder_where_a_file_is_expected_is_refused(tmp_path: Path) -> None:
    """An error of the operating system is told as one of the run folder."""
    folder = tmp_path / "run"
    shutil.copytree(KEPT / "1x1x1", folder)
    (folder / "profiles" / "roofs" / "gpu01.json").mkdir(parents=True)
    with pytest.raises(envcompare.RunFolderError) as raised:
        envcompare.read(folder)
    assert raised.value.hint


def test_hostile_texts_hold_no_control_character(tmp_path: Path) -> None:
    """A frame is printed on a terminal."""
    folder = tmp_path / "run"
    shutil.copytree(KEPT / "1x1x1", folder)
    for path in (*folder.rglob("*.json"), *folder.rglob("*.jsonl")):
        path.write_text(path.read_text().replace("gpu01", "gpu\\u001b[31m\\u202e"))
    frames = envcompare.read(folder)
    for name in ("comparisons", "samples", "differences"):
        hosts = set(getattr(frames, name)["host"])
        assert hosts == {"gpu⟨U+001B⟩[31m⟨U+202E⟩"}


def test_importing_the_package_does_not_import_pandas() -> None:
    """`envcompare --help` answers at once; `read` imports it."""
    script = "import sys, envcompare; print({'pandas', 'numpy', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "set()"
    assert envcompare.__all__ == ("RunFolderError", "__version__", "read")
    assert envcompare.read.__doc__


def test_page_and_tables_need_no_pandas() -> None:
    """It is an extra, and slow to import; `read` names it if it is missing."""
    script = (
        "import sys; sys.modules['pandas'] = None; import envcompare\n"
        "from envcompare.cli import main\n"
        "try: envcompare.read('x')\n"
        "except ImportError as error: print(error)\n"
        f"sys.argv[1:] = ['-q', 'report', {str(KEPT / '1x1x1')!r}, '--format', 'csv']; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    first, *table = done.stdout.splitlines()
    assert first == "envcompare.read needs pandas: pip install '.[pandas]' in a clone of envcompare"
    assert table[0].startswith("host,workload,parameters,arm,outcome")


def test_examples_of_the_guide_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page was not written from memory."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "20260101-000000-0001").symlink_to(KEPT / "1x1x1")
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"^```.*$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(examples)
    assert outcome.attempted >= 5
    assert outcome.failed == 0


@pytest.mark.parametrize("name", ["samples", "differences", "quantities", "scaling"])
def test_guide_describes_every_column(name: str) -> None:
    """In its order, with its kind and meaning."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", section, re.MULTILINE)
    assert [(key, Column(kind, meaning)) for key, kind, meaning in rows] == [*COLUMNS[name].items()]
