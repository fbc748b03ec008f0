"""What a run keeps is for the user who runs it alone, whatever the user's mask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import envcompare


@pytest.fixture
def _open_mask() -> Iterator[None]:
    """Let new files be open to all, as the mask 0 does."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    """Return the rights of a file or a folder."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_open_mask")
def test_a_run_folder_is_closed_to_others_and_the_folder_around_it_is_the_users(
    tmp_path: Path,
) -> None:
    """Logs and samples are closed too, so that a copy of them is."""
    words = ("--command", "sh -c 'echo said >&2'", "--envs", "vm", "--budget", "4")
    out = tmp_path / "made" / "runs"
    done = envcompare(out, *words, "--no-quiet-gate", "--no-noise-memory")
    assert done.folder is not None, done.stderr
    assert mode(done.folder) == 0o700
    assert mode(out) == mode(out.parent) == 0o777
    files = [path for path in done.folder.rglob("*") if path.is_file() and path.name[0] != "."]
    assert {".log", ".json", ".jsonl", ".html"} <= {path.suffix for path in files}
    assert {path.name: oct(mode(path)) for path in files if mode(path) != 0o600} == {}
