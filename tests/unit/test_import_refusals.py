"""Imports that are refused: nothing is left behind, and the reason is told in sentences."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import envcompare
from imports import NVPROF, WINOGRAD, compared, files_of, log, request, two_arms

from envcompare import importing
from envcompare.errors import ConfigError, ProfileError, RunFolderError


def test_a_refused_file_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither a new run folder nor a change of one that is there."""
    bad = tmp_path / "bad.log"
    bad.write_text(NVPROF.format(kernel=WINOGRAD)[:420], encoding="utf-8")
    with pytest.raises(ProfileError):
        request(tmp_path, log(tmp_path, "vm.log"), bad).run()
    assert not (tmp_path / "results").exists()
    folder = two_arms(tmp_path)
    before = files_of(folder.path)
    with pytest.raises(ProfileError):
        request(tmp_path, bad, arm="singularity", into=folder.path).run()
    assert files_of(folder.path) == before


def test_a_copy_that_fails_undoes_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves no run folder without its profiles, and no arm without any."""
    folder = two_arms(tmp_path)
    before = files_of(folder.path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing.shutil, "copyfileobj", full)
    third = log(tmp_path, "third.log", "third_kernel")
    with pytest.raises(RunFolderError, match="cannot be copied"):
        request(tmp_path, third, arm="singularity", into=folder.path).run()
    assert files_of(folder.path) == before
    with pytest.raises(RunFolderError):
        request(tmp_path, third, out=tmp_path / "other").run()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", "vm~control", "a/b", "\u202ex"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    """An environment's name becomes a folder and a column."""
    with pytest.raises(ConfigError, match="cannot name"):
        request(tmp_path, log(tmp_path, "vm.log"), arm=name).run()
    assert not (tmp_path / "results").exists()


def pipe(path: Path) -> None:
    """Make a named pipe that nobody writes to."""
    os.mkfifo(path)


def device(path: Path) -> None:
    """Make a link to a device that never ends."""
    path.symlink_to("/dev/zero")


def listener(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))  # its path has to be short


@pytest.mark.parametrize("make", [pipe, device, listener, Path.mkdir])
@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """A pipe would wait for ever, and a device fill the memory."""
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "odd.log"
    make(odd)
    with pytest.raises(ConfigError, match="is not a regular file"):
        request(tmp_path, odd).run()
    assert not (tmp_path / "results").exists()
    folder = two_arms(tmp_path)
    record = next(folder.path.glob("profiles/*/docker/*.json"))
    record.unlink()
    make(record)
    with pytest.raises(RunFolderError, match="is not a regular file"):
        compared(folder)


@pytest.mark.parametrize("field", ["arm", "workload"])
def test_a_name_that_fits_into_no_folder_is_refused(tmp_path: Path, field: str) -> None:
    """The disk would refuse it in the middle of the import, and blame its room."""
    path = log(tmp_path, "vm.log")
    request(tmp_path, path, **{field: "a" * 100}).run()
    with pytest.raises(ConfigError, match="too long") as caught:
        request(tmp_path, path, **{field: "a" * 101}).run()
    assert "101 characters" in caught.value.details
    assert len(caught.value.brief) < 100


def test_a_workload_without_a_name_is_refused(tmp_path: Path) -> None:
    """An empty variable of a script is no choice, neither in a new run nor in one that is there."""
    folder = two_arms(tmp_path)
    third = log(tmp_path, "third.log", "k")
    for changes in ({}, {"into": folder.path}):
        with pytest.raises(ConfigError, match="cannot name a workload"):
            request(tmp_path, third, workload="", **changes).run()


def test_an_arm_that_differs_in_case_alone_is_refused(tmp_path: Path) -> None:
    """Some disks would give both one folder."""
    folder = two_arms(tmp_path)
    with pytest.raises(ConfigError, match="only in case"):
        request(tmp_path, log(tmp_path, "x.log"), arm="VM", into=folder.path).run()


def test_a_report_that_the_disk_refuses_can_be_drawn_again(tmp_path: Path) -> None:
    """The run is safe, and the command that draws it is told."""
    folder = two_arms(tmp_path)
    (folder.path / "report.html").mkdir()
    done = envcompare("report", str(folder.path), cwd=tmp_path)
    assert done.returncode == 5
    assert f"kept in {folder.path}" in done.stderr
    assert f"`envcompare report {folder.path}`" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "exit_code", "word"),
    [
        (("nvprof", "--env", "vm", "nowhere.log"), 2, "nowhere.log"),
        (("nvprof", "--env", "vm"), 2, "FILE"),
        (("nvprof", "vm.log"), 2, "--env"),
        (("gprof", "--env", "vm", "vm.log"), 2, "gprof"),
        (("nvprof", "--env", "vm", "--steps", "0", "vm.log"), 2, "--steps"),
        (("nsys", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("ncu", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("kineto", "--env", "vm", "vm.log"), 5, "vm.log"),
        (("nvprof", "--env", "vm", "--into", "nowhere", "vm.log"), 5, "nowhere"),
    ],
)
def test_a_mistake_ends_in_sentences_and_its_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], exit_code: int, word: str
) -> None:
    """Wrong usage is 2, a file or folder that cannot be trusted is 5; nothing is left behind."""
    log(tmp_path, "vm.log")
    done = envcompare("import", *arguments, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert done.stderr.startswith("error: ")
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["vm.log"]
