"""What is kept of the explanations: their page follows from it, and it names no machine's paths."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import explanations
import pytest
from explanations import DOCS, HERE, KEPT, placeless, write_page

PERSONAL = re.compile(r"/(?:root|home|work)\b|\.pyenv")
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


def test_page_is_the_one_that_the_kept_files_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed sentence of the report changes the page."""
    monkeypatch.setattr(explanations, "DOCS", tmp_path)
    write_page()
    name = "explanations.md"
    assert (tmp_path / name).read_text() == (DOCS / name).read_text()
