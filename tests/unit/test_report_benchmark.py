"""The page about the size and speed of reports follows from what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import report
from report import DOCS, write_page


def test_page_is_the_one_that_the_kept_readings_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure on the page is one that was measured."""
    monkeypatch.setattr(report, "DOCS", tmp_path)
    write_page()
    assert (tmp_path / "report.md").read_text() == (DOCS / "report.md").read_text()
