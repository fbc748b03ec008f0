"""A disk that fills up while a run writes: nothing is lost, and the run is continued."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import envcompare
from runs import run_folder

from envcompare.run_folder import write_hint

WORDS = (
    "run", "--envs", "vm@host,b=vm@host", "--no-quiet-gate", "--profile", "none",
    "--command", "true", "--budget", "8",
)  # fmt: skip
RAN_FULL = """
import errno, os, sys, envcompare.cli
from envcompare.run_folder import results

writes = results.write_whole, results.replace_file
count = 0

def is_full(stream):
    global count
    count += str(stream.name).endswith("samples.jsonl")
    return count > 4 and str(stream.name).endswith({filling!r})

def write_whole(stream, line):
    if is_full(stream):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    writes[0](stream, line)

def replace_file(target, content, **words):
    if count > 4:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    writes[1](target, content, **words)

results.write_whole, results.replace_file = write_whole, replace_file
sys.argv[1:] = {words!r}
envcompare.cli.main()
"""


@pytest.mark.parametrize(
    ("filling", "state"),
    [
        # of a nearly full disk, small files can still be written
        ("samples.jsonl", "ended; `run --resume` measures failed cells again"),
        ("l", "interrupted; it can be resumed"),
    ],
)
def test_run_on_a_full_disk_says_that_it_is_resumed(
    filling: str, state: str, tmp_path: Path
) -> None:
    """Drawing the report would not measure what is lacking."""
    script = RAN_FULL.format(filling=filling, words=WORDS)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    folder = run_folder(tmp_path / "results")
    assert folder is not None
    assert done.returncode == 5, done.stderr
    told = f"continue with `envcompare run --resume results/{folder.name}`"
    assert f"  try: once there is room, {told}" in done.stderr
    said = envcompare("status", str(folder), cwd=tmp_path).stdout
    assert said.startswith(f"run {folder.name}: {state}\n")
    events = (folder / "events.jsonl").read_text()
    assert (told in events) == (filling == "samples.jsonl")
    done = envcompare("run", "--resume", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").exists()


def test_place_that_cannot_be_used_has_no_written_files() -> None:
    """Only a disk that fills up has some already."""
    told = {code: write_hint(OSError(code, "")) for code in (errno.ENOTDIR, errno.ENOSPC)}
    assert "kept" not in told[errno.ENOTDIR]
    assert "written files are kept" in told[errno.ENOSPC]
