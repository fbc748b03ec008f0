"""Where imported profiles go: the run, the cell and the environment, and what is there already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import CELL
from imports import FPROP, WINOGRAD, compared, files_of, log, measured, request, two_arms
from summaries import markdown

from envcompare.cli.planning import resumed
from envcompare.config.settings import Settings
from envcompare.errors import ConfigError, RunFolderError
from envcompare.run_folder import cell_name
from envcompare.run_folder.records import CellRecord
from envcompare.run_folder.results import RunFolder


def test_the_reference_of_an_imported_run_can_be_chosen(tmp_path: Path) -> None:
    """The first is a default."""
    folder = two_arms(tmp_path)
    again = log(tmp_path, "docker.log", FPROP)
    request(tmp_path, again, arm="docker", into=folder.path, reference="docker").run()
    assert compared(folder).reference_arm == "docker"
    with pytest.raises(ConfigError, match="not an environment of the run"):
        request(tmp_path, again, arm="docker", into=folder.path, reference="x").run()


def test_another_workload_makes_another_cell(tmp_path: Path) -> None:
    """Profiles of other work are never compared with each other."""
    folder = request(tmp_path, log(tmp_path, "vm.log"), workload="cnn").run().folder
    other = request(tmp_path, log(tmp_path, "rnn.log", FPROP), workload="rnn", into=folder.path)
    other.run()
    assert [cell.workload for cell in folder.read_run().cells] == ["cnn", "rnn"]
    third = log(tmp_path, "third.log", "k")
    with pytest.raises(ConfigError, match="several cells"):
        request(tmp_path, third, into=folder.path).run()


def test_an_arm_of_a_timed_run_gets_the_profile(tmp_path: Path) -> None:
    """Verdicts stay as they were; the profiles stand beside them."""
    folder = measured(tmp_path)
    before = compared(folder)
    for arm in ("vm", "docker"):
        path = log(tmp_path, f"{arm}.log", f"{WINOGRAD}_{'a' * len(arm)}")
        request(tmp_path, path, arm=arm, into=folder.path).run()
    after = compared(folder)
    assert after.comparisons == before.comparisons
    assert after.cells == before.cells
    assert after.course.duration_s == before.course.duration_s
    assert [diff.arm for diff in after.profiles[0].kernel_diffs] == ["docker"]
    assert folder.read_run() == RunFolder.open(folder.path).read_run()


def test_an_arm_that_a_timed_run_lacks_is_added_untimed(tmp_path: Path) -> None:
    """It widens no interval, has no verdict, and does not stop the run from being resumed."""
    folder = measured(tmp_path)
    before = compared(folder)
    for arm, kernel in (("vm", WINOGRAD), ("old", FPROP)):
        path = log(tmp_path, f"{arm}.log", kernel)
        request(tmp_path, path, arm=arm, into=folder.path).run()
    after = compared(folder)
    assert after.settings.planned_comparisons == before.settings.planned_comparisons
    assert after.comparisons == before.comparisons
    assert {one.arm: one.is_timed for one in after.arms}["old"] is False
    assert "old and vm differ" in markdown(after)
    with pytest.raises(ConfigError, match="cannot be changed"):
        request(tmp_path, tmp_path / "old.log", arm="old", into=folder.path, reference="old").run()


def test_a_run_of_several_cells_asks_which_is_meant(tmp_path: Path) -> None:
    """By workload or by the cell's ID."""
    cells = (
        CellRecord(id=CELL, host="local", workload="cnn"),
        CellRecord(id="local/rnn/default", host="local", workload="rnn"),
    )
    folder = measured(tmp_path, cells=cells)
    path = log(tmp_path, "vm.log")
    with pytest.raises(ConfigError) as caught:
        request(tmp_path, path, into=folder.path).run()
    assert "local/rnn/default" in caught.value.details
    with pytest.raises(ConfigError, match="the run has no gpt"):
        request(tmp_path, path, into=folder.path, workload="gpt").run()
    request(tmp_path, path, into=folder.path, workload="rnn").run()
    request(tmp_path, path, into=folder.path, cell=CELL).run()
    assert {one.cell for one in folder.read_profiles()} == {CELL, "local/rnn/default"}


def test_arms_with_like_names_keep_their_own_profiles(tmp_path: Path) -> None:
    """A name that makes no folder as it is shares none with another."""
    folder = request(tmp_path, log(tmp_path, "a.log"), arm="docker@host").run().folder
    request(tmp_path, log(tmp_path, "b.log", FPROP), arm="docker_host", into=folder.path).run()
    kept = {one.arm: one.profile.kernels[0].name for one in folder.read_profiles() if one.profile}
    assert kept == {"docker@host": WINOGRAD, "docker_host": FPROP}


@pytest.mark.parametrize(
    "name", ["events.jsonl", "run.json", "profiles", "profiles/CELL", "profiles/CELL/vm"]
)
def test_nothing_is_written_through_a_link(name: str, tmp_path: Path) -> None:
    """A run folder from elsewhere may hold links to files and folders of the user."""
    folder = measured(tmp_path)
    place = folder.path / name.replace("CELL", cell_name(CELL))
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / "file"
    mine.write_bytes(place.read_bytes() if place.exists() else b"a line\nand a torn one")
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(mine if place.suffix else mine.parent)
    before = (files_of(mine.parent), files_of(folder.path))
    with pytest.raises(RunFolderError, match="cannot be written") as caught:
        request(tmp_path, log(tmp_path, "vm.log"), into=folder.path).run()
    assert caught.value.details == f"{place} is a link"
    assert (files_of(mine.parent), files_of(folder.path)) == before


def test_what_a_killed_import_left_is_replaced(tmp_path: Path) -> None:
    """It has the name that the next one gives its copy."""
    folder = measured(tmp_path)
    profile = log(tmp_path, "vm.log")
    tool = request(tmp_path, profile, into=folder.path).tool
    place = folder.path / "profiles" / cell_name(CELL) / "vm"
    left = place / f"imported-{tool}" / profile.name
    left.parent.mkdir(parents=True)
    left.write_text("half")
    request(tmp_path, profile, into=folder.path).run()
    assert left.read_bytes() == profile.read_bytes()
    assert left.stat().st_mode & 0o777 == 0o600


def test_an_imported_run_cannot_be_resumed(tmp_path: Path) -> None:
    """It measures nothing."""
    folder = request(tmp_path, log(tmp_path, "vm.log")).run().folder
    with pytest.raises(ConfigError, match="imported profiles"):
        resumed(folder, Settings())


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"arm": "nobody"}, "nobody"), ({"cell": "x/y/z"}, "x/y/z"), ({"host": "far"}, "far")],
)
def test_a_record_of_what_the_run_does_not_know_is_told(
    tmp_path: Path, changes: dict[str, str], name: str
) -> None:
    """It was edited or copied in, and would be missed by whoever looks for it."""
    folder = two_arms(tmp_path)
    record = next(folder.path.glob("profiles/*/docker/*.json"))
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    (cell,) = compared(folder).profiles
    (told,) = [text for text in cell.cautions if "run.json" in text]
    assert name in told
