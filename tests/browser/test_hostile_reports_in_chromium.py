"""A browser runs nothing of what stands in names, paths, errors and kernels of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import EVIL, files_of, full_run, renamed
from pages import open_report, unfold
from playwright.sync_api import BrowserContext

from envcompare.report.page import render

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("evil", ["".join(EVIL), EVIL[1]])
def test_a_hostile_run_opens_no_dialog_and_asks_for_nothing(
    context: BrowserContext, tmp_path: Path, evil: str
) -> None:
    """No console message, no dialog and no request, and the controls work as ever."""
    run = renamed(full_run(), evil)
    path = tmp_path / "report.html"
    path.write_text(render(run, files=files_of(run)), encoding="utf-8")
    visit = open_report(context, path)
    page = visit.page
    unfold(page)
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Find").fill(evil[:20])
    page.get_by_label("Metric").select_option(index=1)
    page.wait_for_load_state("networkidle")
    assert (visit.console, visit.dialogs) == ([], [])
    assert visit.requests == [path.as_uri()]
    assert page.evaluate("[...document.scripts].map(one => one.type)") == ["application/json", ""]
    assert page.locator("#answer").count() == 1
    for way in ("onerror", "onload", "style", "src"):
        assert page.locator(f"[{way}]").count() == 0
