"""What is kept of the explanations names no paths of a machine."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from explanations import placeless

from bookkeeping import DOCS, HERE, RESULTS

PERSONAL = re.compile(r"/(?:root|home|work)\b|\.pyenv")
KEPT = RESULTS / "explanations"
FILES = (DOCS / "explanations.md", *sorted(path for path in KEPT.rglob("*") if path.is_file()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HERE.parent}/benchmarks/x.py:X", "benchmarks/x.py:X"),
        ("/home/ann/.pyenv/versions/3.11.7/bin/python3.11", "<prefix>/bin/python3.11"),
        (
            "'--prefix=/root/.pyenv/versions/3.11.7' '-Wl,/root/.pyenv/versions/3.11.7/lib'",
            "'--prefix=<prefix>' '-Wl,<prefix>/lib'",
        ),
        ('\\"/home/ann/.cache/venv/bin/python\\"', '\\"~/.cache/venv/bin/python\\"'),
        ("HOME=/root", "HOME=~"),
        ("-I/root/include -L/home/ann", "-I~/include -L~"),
        ("/rootless /usr/home/ann lib/root/x", "/rootless /usr/home/ann lib/root/x"),
    ],
)
def test_paths_of_a_machine_are_made_general(text: str, expected: str) -> None:
    """Project, interpreter and homes go; what only looks like one stays."""
    assert placeless(text) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept_files_name_no_path_of_a_machine(path: Path) -> None:
    """Neither in what was asked nor in what the interpreters say of themselves."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    assert PERSONAL.findall(text) == []
    assert placeless(text) == text
