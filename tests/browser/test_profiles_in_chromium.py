"""Profiles as a reader meets them: ledger, kernels, tables and roofline in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import Visit, open_report, trim, unfold, violations
from playwright.sync_api import BrowserContext
from profilepages import imported_run, profiled_run

from envcompare.analysis.model import RunComparison
from envcompare.report.page import render

pytestmark = pytest.mark.browser

TIMED, IMPORTED = profiled_run(), imported_run("vm", "docker", "singularity")
CASES = (
    (TIMED, 1280, {"color_scheme": "light"}),
    (TIMED, 1280, {"color_scheme": "dark"}),
    (TIMED, 320, {"color_scheme": "light"}),
    (TIMED, 1280, {"forced_colors": "active"}),
    (IMPORTED, 1280, {"color_scheme": "dark"}),
)


def opened(context: BrowserContext, folder: Path, run: RunComparison) -> Visit:
    """Draw a run into a folder and open it."""
    path = folder / "report.html"
    path.write_text(render(run), encoding="utf-8")
    return open_report(context, path)


@pytest.mark.parametrize(("run", "width", "media"), CASES)
def test_axe_finds_nothing_in_profiles(
    context: BrowserContext, tmp_path: Path, run: RunComparison, width: int, media: dict[str, Any]
) -> None:
    """Tables, bars and the chart keep WCAG 2.2 AA, timed and imported."""
    page = opened(context, tmp_path, run).page
    page.set_viewport_size({"width": width, "height": 860})
    page.emulate_media(**media)
    trim(page, most=3)
    unfold(page)
    assert violations(page) == []


def test_a_phone_scrolls_the_tables_of_profiles_and_not_the_page(
    context: BrowserContext, tmp_path: Path
) -> None:
    """At 320 px nothing but a table or the chart is wider than the screen."""
    page = opened(context, tmp_path, profiled_run()).page
    page.set_viewport_size({"width": 320, "height": 700})
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 320


def test_the_page_with_profiles_keeps_its_policy(context: BrowserContext, tmp_path: Path) -> None:
    """No style attribute is refused, and nothing is fetched for the chart."""
    visit = opened(context, tmp_path, profiled_run())
    visit.page.wait_for_load_state("networkidle")
    assert visit.console == []
    assert len(visit.requests) == 1


def test_the_ledgers_bars_grow_from_the_middle(context: BrowserContext, tmp_path: Path) -> None:
    """More time is drawn to the right of the line that stands for no change."""
    page = opened(context, tmp_path, profiled_run()).page
    row = page.locator("#why table tbody tr", has_text="GPU idle").first
    zero, bar = row.locator(".zero").bounding_box(), row.locator("rect.more").bounding_box()
    assert zero is not None
    assert bar is not None
    assert bar["x"] >= zero["x"] - 1
    assert bar["width"] > 10


def test_the_labels_of_the_chart_stay_inside_it_and_apart(
    context: BrowserContext, tmp_path: Path
) -> None:
    """No number of an axis is cut off, and no two level labels lie on each other."""
    page = opened(context, tmp_path, profiled_run()).page
    frame = page.locator("#roofline svg.chart").bounding_box()
    assert frame is not None
    boxes = [
        one.bounding_box()
        for one in page.locator("#roofline svg.chart text:not([transform*=rotate])").all()
    ]
    seen = [box for box in boxes if box is not None]
    assert len(seen) == len(boxes) > 10
    for box in seen:
        assert box["x"] >= frame["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    for index, one in enumerate(seen):
        for other in seen[index + 1 :]:
            apart_x = (
                one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            )
            apart_y = (
                one["y"] + one["height"] <= other["y"] + 3
                or other["y"] + other["height"] <= one["y"] + 3
            )
            assert apart_x or apart_y


def test_the_first_screen_of_an_imported_run_is_its_answer(
    context: BrowserContext, tmp_path: Path
) -> None:
    """The kernels, what was counted, that nothing was timed, and why, without scrolling."""
    page = opened(context, tmp_path, imported_run("vm", "docker")).page
    box = page.locator("#answer .three").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 860
    assert page.locator("#answer table.leading tbody tr").first.inner_text().startswith("GPU")
