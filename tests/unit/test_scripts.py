"""The scripts of the repository: what they say before they touch anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(
    path
    for path in (ROOT / "script").iterdir()
    if path.is_file() and b"bash" in path.read_bytes().splitlines()[0]
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_what_bash_reads(script: Path) -> None:
    """Nobody finds a typing error in the middle of a long build."""
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_images_of_a_variant_that_is_none_are_refused() -> None:
    """The error names the variants there are."""
    done = images("--variant", "rocm")
    assert done.returncode == 1
    assert "there is no variant 'rocm'" in done.stderr
    assert "cpu or for cuda" in done.stderr


@pytest.mark.parametrize("words", [("--help",), ("--variant",), ("--variant", "cpu", "--out")])
def test_images_says_how_it_is_used(words: tuple[str, ...]) -> None:
    """A flag without its value is wrong usage too."""
    done = images(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: script/images [--variant cpu|cuda]")


def images(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the script with these words."""
    argv = [str(ROOT / "script" / "images"), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20)
