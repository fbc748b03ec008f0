"""A real Chromium, and the example report as a file on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pages import Visit, open_report
from playwright.sync_api import Browser, BrowserContext

from envcompare.analysis.model import RunComparison
from envcompare.report.page import render

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
LOG = "logs/lab01/lab01_rnn_default/singularity.log"


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw the example run into a folder, with the log that it links to."""
    folder = tmp_path_factory.mktemp("run")
    run = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)
    (folder / LOG).parent.mkdir(parents=True)
    (folder / LOG).write_text("RuntimeError\n", encoding="utf-8")
    path = folder / "report.html"
    path.write_text(render(run, files=(LOG,)), encoding="utf-8")
    return path


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """Give a fresh browser profile with the screen the report is made for."""
    fresh = browser.new_context(viewport={"width": 1280, "height": 860})
    yield fresh
    fresh.close()


@pytest.fixture
def visit(context: BrowserContext, report: Path) -> Visit:
    """Open the report from disk and write down what it says and asks for."""
    return open_report(context, report)
