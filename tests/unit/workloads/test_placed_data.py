"""Data at the place that a run asks for: copied by the worker, read, dropped from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversation import Conversation, Start

FEW = {"files": 20}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with small files, as `make` writes them."""
    folder = tmp_path / "data"
    for number in range(30):
        part = folder / f"{number % 3}"
        part.mkdir(parents=True, exist_ok=True)
        (part / f"{number}.txt").write_text("x" * (1000 + number))
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the scratch folder of the arm."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def greeted(worker: Conversation, data: Path, at: dict[str, Any] | None, **params: Any) -> Any:
    """Return what the worker says of small files there, after a first step."""
    hello = worker.ask(
        "hello", workload="files", data=str(data), place=at, params={**FEW, **params}
    )
    return worker.ask("gen", seed=1, pad=0) if hello["ok"] else hello


def test_data_are_copied_to_their_place_and_read_there(
    start: Start, data: Path, tmp_path: Path
) -> None:
    """Once, whatever cells the worker serves; the checksum is that of the original."""
    target = tmp_path / "place"
    data.chmod(0o700)
    sums = []
    for place in (None, {"name": "bind"}, {"name": "tmpfs", "folder": str(target)}):
        worker: Conversation = start()
        params = {} if place else {"place": "data"}
        begun = greeted(worker, data, place, **params)
        assert begun["ok"], begun
        sums.append(begun["checksum"])
        worker.ask("end")
    assert sums[0] == sums[1] == sums[2]
    (copy,) = target.iterdir()
    assert copy.stat().st_mode & 0o777 == 0o700  # as that of the user's, whatever is around it
    files = sorted(path.relative_to(copy) for path in copy.rglob("*.txt"))
    assert files == sorted(path.relative_to(data) for path in data.rglob("*.txt"))


def test_a_file_of_the_user_is_copied_too(start: Start, tmp_path: Path) -> None:
    """The workload is told its copy."""
    path = tmp_path / "single.csv"
    path.write_text("1,2\n")
    worker: Conversation = start()
    place = {"name": "overlay", "folder": str(tmp_path / "place")}
    begun = greeted(worker, path, place, files=1)
    assert not begun["ok"]  # a file is no folder of files
    assert [one.read_text() for one in (tmp_path / "place").rglob("single.csv")] == ["1,2\n"]


def test_a_file_in_an_image_has_the_hash_of_the_users(start: Start, tmp_path: Path) -> None:
    """Its name is part of it, and so it lies in a folder there."""
    path, held = tmp_path / "single.csv", tmp_path / "held"
    path.write_text("1,2\n")
    held.mkdir()
    (held / "single.csv").write_text("1,2\n")
    place = {"name": "image", "folder": str(held), "is_held": True}
    said = [
        start().ask("hello", workload="files", data=str(path), place=at, params=FEW)
        for at in (None, place)
    ]
    assert said[0]["ok"], said[0]
    assert said[1]["data_hash"] == said[0]["data_hash"]


def test_an_image_that_lacks_its_data_is_a_failure_of_the_data(
    start: Start, data: Path, tmp_path: Path
) -> None:
    """It is not replaced by another copy."""
    place = {"name": "image", "folder": str(tmp_path / "nothing"), "is_held": True}
    said = greeted(start(), data, place)
    assert said["error"]["phase"] == "data"
    assert "the image holds no data in" in said["error"]["brief"]


def test_without_a_place_the_files_of_the_software_are_read(start: Start, data: Path) -> None:
    """As before there were places; those that are written lie in the scratch folder."""
    worker: Conversation = start()
    said = greeted(worker, data, None, package="mypy", files=40)  # the data set has 30
    assert said["ok"], said


def test_a_package_may_lie_in_several_folders(
    start: Start, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As namespace packages do; a folder that is not there counts for nothing."""
    roots = [tmp_path / name for name in ("one", "two")]
    for root in roots:
        (root / "shared").mkdir(parents=True)
        (root / "shared" / f"of_{root.name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, roots)))
    for count, is_enough in ((2, True), (3, False)):
        said = greeted(start(), data, None, package="shared", files=count)
        assert said["ok"] is is_enough, said
    assert "the package 'shared' has 2 source files here" in said["error"]["brief"]


@pytest.mark.parametrize("pattern", ["stat", "read"])
def test_a_step_does_not_look_up_the_way_to_the_folder(
    start: Start, data: Path, tmp_path: Path, pattern: str
) -> None:
    """The path to it is longer in some environments."""
    worker: Conversation = start()
    assert greeted(worker, data, None, place="data", pattern=pattern)["ok"]
    data.rename(tmp_path / "elsewhere")
    assert worker.ask("run", k=3)["ok"]
    assert worker.ask("end")["result"]["files"] == 20


@pytest.mark.parametrize("name", ["tmpfs", "bind"])
def test_files_are_written_at_the_place(
    start: Start, data: Path, home: Path, tmp_path: Path, name: str
) -> None:
    """The scratch folder of an arm is on the disk of the host, as a bind is."""
    target = tmp_path / "place"
    worker: Conversation = start()
    place = {"name": name, "folder": str(target) if name == "tmpfs" else ""}
    assert greeted(worker, data, place, pattern="write")["ok"]
    around = target if name == "tmpfs" else home
    written = [path for path in around.rglob("*") if path.is_file() and path.suffix != ".txt"]
    assert len(written) == 20
    worker.ask("end")
    assert not [path for path in written if path.exists()]


def test_nothing_is_written_to_an_image(start: Start, data: Path) -> None:
    """With the places that can be."""
    place = {"name": "image", "folder": str(data), "is_held": True}
    said = greeted(start(), data, place, pattern="write")
    assert "choose bind, overlay or tmpfs" in said["error"]["brief"]


@pytest.mark.parametrize(("cache", "share"), [("cold", 0.0), ("warm", None)])
def test_files_are_dropped_from_the_page_cache_behind_a_cold_reader(
    start: Start, data: Path, cache: str, share: float | None
) -> None:
    """The kernel itself says that none of their pages is left (mincore(2))."""
    worker: Conversation = start()
    assert greeted(worker, data, {"name": "bind"}, cache=cache)["ok"]
    assert worker.ask("run", k=3)["ok"]
    assert worker.ask("end")["result"].get("cached") == share
