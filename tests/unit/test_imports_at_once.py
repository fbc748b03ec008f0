"""Imports at once into one run folder: none loses an arm, none removes what another wrote."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest
from imports import log, request

from envcompare.errors import RunFolderError
from envcompare.run_folder import LOCK_NAME, locked
from envcompare.run_folder.results import RunFolder

MANY = 3


def numbered(folder: Path, number: int) -> Path:
    """Write a log of nvprof that differs from the others."""
    return log(folder, f"{number}.log", f"kernel_{number}")


def first(tmp_path: Path) -> RunFolder:
    """Import one log as vm."""
    return request(tmp_path, numbered(tmp_path, 0)).run().folder


@pytest.mark.parametrize("arms", [[f"arm{i}" for i in range(MANY)], ["same"] * MANY])
def test_imports_at_once_keep_every_arm_and_file(tmp_path: Path, arms: list[str]) -> None:
    """Of the same arm, each file gets a record of its own."""
    folder = first(tmp_path)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "envcompare", "import", "nvprof", "--env", arm,
             "--into", str(folder.path), str(numbered(tmp_path, number))],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for number, arm in enumerate(arms, start=1)
    ]  # fmt: skip
    errors = [one.communicate()[1] for one in running]
    assert [one.returncode for one in running] == [0] * MANY, errors
    assert {arm.id for arm in folder.read_run().arms} == {"vm", *arms}
    records = folder.read_profiles()
    kernels = {
        kernel.name for record in records if record.profile for kernel in record.profile.kernels
    }
    assert kernels == {f"kernel_{number}" for number in range(MANY + 1)}
    assert all((folder.path / raw).is_file() for record in records for raw in record.raw)
    assert not list(folder.path.rglob("*.partial"))


def test_a_folder_that_stays_locked_is_an_error_in_sentences(tmp_path: Path) -> None:
    """Whoever waits is told what to do, and the folder is free again afterwards."""
    folder = first(tmp_path)
    with (folder.path / LOCK_NAME).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        lock = locked(folder.path, by="import", limit_s=0.1)
        with pytest.raises(RunFolderError, match="another process") as caught:
            lock.__enter__()
    assert caught.value.hint
    with locked(folder.path, by="import", limit_s=0.0):
        pass


def test_the_lock_is_no_file_of_the_run(tmp_path: Path) -> None:
    """No report lists it."""
    folder = first(tmp_path)
    with locked(folder.path, by="import"):
        assert LOCK_NAME not in folder.file_names()


def test_an_import_that_fails_removes_only_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of others in the same folder of an arm stay."""
    folder = first(tmp_path)
    others = folder.path / "profiles/imported_workload_default/docker/imported-nvprof/other.txt"
    others.parent.mkdir(parents=True)
    others.write_text("kept")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "write_profile", full)
    with pytest.raises(OSError, match="No space"):
        request(tmp_path, numbered(tmp_path, 1), arm="docker", into=folder.path).run()
    assert others.read_text() == "kept"
    assert [path.name for path in others.parent.iterdir()] == ["other.txt"]
