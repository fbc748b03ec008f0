"""The report as a reader meets it: in a real browser, on a phone, in print, without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import violations
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

A4_LANDSCAPE_PX = {"width": 1032, "height": 703}  # 297 × 210 mm less the margins, at 96 dpi
VISIBLE_ROWS = "#comparisons tbody tr:not([hidden])"


def bottom_of(page: Page, selector: str) -> float:
    """Return where an element ends on the page."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of all elements, blanks folded."""
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def test_the_first_screen_holds_the_headlines_and_the_table(visit: Any) -> None:
    """A reader knows the answer without scrolling."""
    assert bottom_of(visit.page, "#answer .lead:last-of-type") < 860
    assert bottom_of(visit.page, "#answer table") < 860
    assert texts(visit.page, "#answer .lead strong")[0].startswith("docker is slower than vm")


def test_the_page_says_nothing_to_the_console_and_asks_for_nothing(
    visit: Any, report: Path
) -> None:
    """The policy holds, no script fails, and the page fetches itself alone."""
    visit.page.wait_for_load_state("networkidle")
    assert visit.console == []
    assert visit.requests == [report.as_uri()]


def test_every_link_leads_somewhere(visit: Any, report: Path) -> None:
    """Anchors exist on the page, files beside it."""
    for target in visit.page.locator("a").evaluate_all(
        "all => all.map(a => a.getAttribute('href'))"
    ):
        if target.startswith("#"):
            assert visit.page.locator(f"[id='{target[1:]}']").count() == 1, target
        else:
            assert (report.parent / target).is_file(), target


def test_comparisons_are_sorted_by_a_click_and_back(visit: Any) -> None:
    """The largest change comes first or last; what was not measured stays at one end."""
    button = visit.page.get_by_role("button", name="Change")
    button.click()
    changes = texts(visit.page, "#comparisons tbody td:nth-child(4) strong")
    assert changes == ["+0.1 %", "+0.6 %", "+1.9 %", "+2.4 %", "+8.4 %"]
    button.click()
    assert texts(visit.page, "#comparisons tbody td:nth-child(4) strong") == changes[::-1]
    head = visit.page.locator("#comparisons th[aria-sort]")
    assert head.get_attribute("aria-sort") == "descending"


def test_comparisons_are_filtered_by_word_and_by_verdict(visit: Any) -> None:
    """Find narrows the rows, and the boxes hide an outcome."""
    visit.page.get_by_label("Find").fill("singularity rnn")
    assert visit.page.locator(VISIBLE_ROWS).count() == 1
    assert visit.page.locator("#shown").inner_text() == "1 of 6 shown"
    visit.page.get_by_label("Find").fill("")
    visit.page.get_by_label("failed", exact=True).uncheck()
    assert visit.page.locator(VISIBLE_ROWS).count() == 5


def test_the_theme_is_switched_and_returns(visit: Any) -> None:
    """Auto, light, dark, auto."""
    button = visit.page.get_by_role("button", name="Theme")
    background, colours = "getComputedStyle(document.body).backgroundColor", []
    for _ in range(3):
        button.click()
        colours.append((button.inner_text(), visit.page.evaluate(background)))
    assert colours[0] == ("Theme: light", "rgb(255, 255, 255)")
    assert colours[1] == ("Theme: dark", "rgb(18, 22, 28)")
    assert colours[2][0] == "Theme: auto"


def test_the_keyboard_reaches_every_control_and_every_table(visit: Any) -> None:
    """Tab walks over links, buttons, boxes and scrolling tables, and is seen."""
    expected = visit.page.locator("a, button, input, summary, [tabindex='0']").evaluate_all(
        "all => all.filter(e => e.checkVisibility()).length"
    )
    visit.page.keyboard.press("Tab")
    reached = set()
    for _ in range(expected + 5):
        reached.add(
            visit.page.evaluate(
                "(() => { const e = document.activeElement; e.dataset.n ??= String(Math.random());"
                " return e.tagName + e.dataset.n; })()"
            )
        )
        visit.page.keyboard.press("Tab")
    assert len({one for one in reached if not one.startswith("BODY")}) == expected


@pytest.mark.parametrize(
    ("width", "media"),
    [
        (1280, {"color_scheme": "light"}),
        (1280, {"color_scheme": "dark"}),
        (320, {"color_scheme": "light"}),
        (320, {"color_scheme": "dark"}),
        (1280, {"forced_colors": "active"}),
    ],
)
def test_axe_finds_nothing(visit: Any, width: int, media: dict[str, Any]) -> None:
    """The page keeps WCAG 2.2 AA in light, dark, on a phone and in forced colours."""
    visit.page.set_viewport_size({"width": width, "height": 860})
    visit.page.emulate_media(**media)
    for fold in visit.page.locator("details").all():
        fold.evaluate("fold => { fold.open = true; }")
    assert violations(visit.page) == []


def test_a_run_of_many_comparisons_keeps_its_first_screen_and_its_rules(
    visit: Any, wide_report: Path
) -> None:
    """One row an environment, then the matrix; axe finds nothing there either."""
    visit.page.goto(wide_report.as_uri())
    assert bottom_of(visit.page, "#answer table") < 860
    assert texts(visit.page, "#overview tbody th") == [f"work{number}" for number in range(6)]
    assert violations(visit.page) == []


def test_a_phone_scrolls_tables_and_not_the_page(visit: Any) -> None:
    """At 320 px nothing but a table is wider than the screen."""
    visit.page.set_viewport_size({"width": 320, "height": 700})
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 320


def test_the_page_is_readable_without_scripts(browser: Browser, report: Path) -> None:
    """Every sentence and row is there; only the controls that need a script are not."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("#comparisons tbody tr").count() == 6
    assert "docker is slower than vm in cnn" in page.locator("#answer").inner_text()
    assert page.locator("#filter").is_hidden()
    assert page.get_by_role("button").count() == 0
    context.close()


def test_the_page_is_readable_without_styles(visit: Any) -> None:
    """The text stands in the order of the report, the answer first."""
    visit.page.evaluate("document.querySelector('style').remove()")
    assert texts(visit.page, "main h2") == [
        "Answer", "All comparisons", "Start-up", "Memory", "Environments", "Failures", "Method",
        "Reproduce",
    ]  # fmt: skip
    assert visit.page.locator("main").inner_text().startswith("Answer\n\n▶ slower in 1 of 2 docker")


def test_print_puts_the_answer_on_the_first_page(visit: Any) -> None:
    """Headlines, table and the three boxes fit an A4 sheet, in dark colours on white."""
    visit.page.set_viewport_size(A4_LANDSCAPE_PX)
    visit.page.emulate_media(media="print", color_scheme="dark")
    assert bottom_of(visit.page, "#answer table") < A4_LANDSCAPE_PX["height"]
    assert bottom_of(visit.page, "#answer .three") < A4_LANDSCAPE_PX["height"]
    colours = visit.page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert colours == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
    assert visit.page.locator("nav").is_hidden()
    assert visit.page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_the_marks_lie_to_the_right_for_slower(visit: Any) -> None:
    """Left is faster and right is slower in every drawing."""
    row = visit.page.locator("#answer tr[data-answer=slower]").first
    zero = row.locator(".zero").bounding_box()
    point = row.locator(".point").bounding_box()
    assert point["x"] > zero["x"]
