"""Configuration of the documentation site (script/site), whose sources are the files of GitHub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

project = "envcompare"
copyright = "The envcompare authors"  # noqa: A001 — as Sphinx calls it
extensions = ["myst_parser", "sphinx_click"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/**/*.md",
    "docs/commands.rst",
    "benchmarks/README.md",
    "results/README.md",
    "workloads/README.md",
]
exclude_patterns = [".*", "build", "tests", "results/*/**"]
myst_heading_anchors = 4
# Links to folders and scripts, which lead somewhere on GitHub alone: test_documentation.py follows
# all links and anchors.
suppress_warnings = ["myst.xref_missing", "toc.not_included"]
html_theme = "furo"
html_title = "envcompare"
html_show_sphinx = False
CONTENTS = Path(__file__).with_name("contents.txt").read_text(encoding="utf-8")


def _add_contents(_: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the first page, which GitHub shows as it is."""
    if name == root_doc:
        source[0] += CONTENTS


def _escape_asterisks(_: Sphinx, __: object, lines: list[str]) -> None:
    """Keep the asterisks of examples, which are no emphasis."""
    lines[:] = [line.replace("*", r"\*") for line in lines]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what changes the sources."""
    app.connect("source-read", _add_contents)
    app.connect("sphinx-click-process-description", _escape_asterisks)
    return {"parallel_read_safe": True}
