"""A reader that goes away, and a terminal that is lost, end no measurement."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

WORK = """
import sys
from pathlib import Path
from rich.console import Console
from envcompare.console import Display, print_lines
from envcompare.errors import ConfigError
from envcompare.report import Heading
from envcompare.cli.conclusion import show

sys.stdin.read()  # until the reader is gone
display = Display()
with display.showing_progress():
    for number in range(50):
        display.say(f"line {number}")
        display.cell(f"cell {number}", done=0.5, text="runs")
        display.cell_done(f"cell {number}", "done")
display.error(ConfigError("wrong", hint="nothing"))
show([Heading(text="a title")])
print_lines(["a result"])
print("warning", file=sys.stderr)
Path(sys.argv[1]).write_text("measured")
sys.exit(7)
"""


def ended(folder: Path, output: int, reader: int) -> int:
    """Run the work with both streams on `output`, whose `reader` closes first."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder / "done")],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
    )
    os.close(output)
    os.close(reader)
    process.communicate()
    return process.returncode


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_work_goes_on_and_keeps_its_exit_code(tmp_path: Path, kind: str) -> None:
    """As with `2>&1 | head -1`, or a connection that broke."""
    reader, output = os.pipe() if kind == "pipe" else pty.openpty()
    assert ended(tmp_path, output, reader) == 7
    assert (tmp_path / "done").read_text() == "measured"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_stops_no_progress_but_is_an_error_for_results(tmp_path: Path) -> None:
    """A result that is lost must not look like one that was given."""
    script = "from envcompare.console import *; Display().say('x'); print_lines(['x'])"
    with Path("/dev/full").open("w") as full:
        lost = [sys.executable, "-c", script]
        quiet = subprocess.run(lost, stderr=full, stdout=subprocess.PIPE, check=False)
        failed = subprocess.run(lost, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (quiet.returncode, quiet.stdout) == (0, b"x\n")
    assert failed.returncode != 0
    assert b"No space left" in failed.stderr
