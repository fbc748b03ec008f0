"""The report as a reader meets it: in a real browser, on a phone, in print, without scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from pages import Visit, open_report
from playwright.sync_api import Browser, BrowserContext, Page

from envcompare.report.page import render
from tests.data.report.builders import OPEN, comparison, on, run_of

pytestmark = pytest.mark.browser

A4_LANDSCAPE_PX = {"width": 1032, "height": 703}  # 297 × 210 mm less the margins, at 96 dpi
VISIBLE_ROWS = "#comparisons tbody tr:not([hidden])"
CHANGES = "#comparisons [data-change] strong"


def bottom_of(page: Page, selector: str) -> float:
    """Return where an element ends on the page."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of all elements, blanks folded."""
    return [" ".join(text.split()) for text in page.locator(selector).all_inner_texts()]


def test_the_first_screen_holds_the_headlines_and_the_table(visit: Visit) -> None:
    """A reader knows the answer without scrolling."""
    assert bottom_of(visit.page, "#answer .lead:last-of-type") < 860
    assert bottom_of(visit.page, "#answer table") < 860
    assert texts(visit.page, "#answer .lead strong")[0].startswith(
        "On this host, in this run, docker is slower than vm"
    )


def test_the_first_screen_holds_eight_rows_and_the_heads_of_the_boxes(
    context: BrowserContext, tmp_path: Path
) -> None:
    """Of two environments in four cells, with forecasts and an error line that is no short one."""
    lost = comparison("failed", reason="RuntimeError: the loader of images ended by itself " * 3)
    cells = (*(on(f"work{number}", OPEN) for number in range(3)), on("rnn", lost))
    arms = ("docker", "singularity")
    run = run_of(*(replace(cell, arm=arm) for arm in arms for cell in cells))
    path = tmp_path / "report.html"
    path.write_text(render(run), encoding="utf-8")
    page = open_report(context, path).page
    assert len(page.locator("#answer tr[data-answer]").all()) == 8
    assert bottom_of(page, "#answer table") < 860
    assert bottom_of(page, "#answer .three h3") < 860


def test_the_page_says_nothing_to_the_console_and_asks_for_nothing(
    visit: Visit, report: Path
) -> None:
    """The policy holds, no script fails, and the page fetches itself alone."""
    visit.page.wait_for_load_state("networkidle")
    assert visit.console == []
    assert visit.requests == [report.as_uri()]


def test_every_link_leads_somewhere(visit: Visit, report: Path) -> None:
    """Anchors exist on the page, files beside it."""
    for target in visit.page.locator("a").evaluate_all(
        "all => all.map(a => a.getAttribute('href'))"
    ):
        if target.startswith("#"):
            assert visit.page.locator(f"[id='{target[1:]}']").count() == 1, target
        else:
            assert (report.parent / target).is_file(), target


def test_comparisons_are_sorted_by_a_click_and_back(visit: Visit) -> None:
    """The largest change comes first or last; what was not measured stays at one end."""
    button = visit.page.get_by_role("button", name="Change")
    button.click()
    changes = texts(visit.page, CHANGES)
    assert changes == ["+0.1 %", "+0.6 %", "+1.9 %", "+2.4 %", "+8.4 %"]
    button.click()
    assert texts(visit.page, CHANGES) == changes[::-1]
    head = visit.page.locator("#comparisons th[aria-sort]")
    assert head.get_attribute("aria-sort") == "descending"


def test_comparisons_are_filtered_by_word_and_by_verdict(visit: Visit) -> None:
    """Find narrows the rows, and the boxes hide an outcome."""
    visit.page.get_by_label("Find").fill("singularity rnn")
    assert visit.page.locator(VISIBLE_ROWS).count() == 1
    assert visit.page.locator("#shown").inner_text() == "1 of 6 shown"
    visit.page.get_by_label("Find").fill("")
    visit.page.get_by_label("failed", exact=True).uncheck()
    assert visit.page.locator(VISIBLE_ROWS).count() == 5


def test_confounded_comparisons_are_hidden_on_demand(visit: Visit) -> None:
    """What remains has no known cause but the environment."""
    visit.page.get_by_label("hide confounded").check()
    assert visit.page.locator(VISIBLE_ROWS).count() == 4
    assert not [text for text in texts(visit.page, VISIBLE_ROWS) if "⚠ confounded" in text]
    visit.page.get_by_label("hide confounded").uncheck()
    assert visit.page.locator(VISIBLE_ROWS).count() == 6


def test_another_metric_is_shown_in_every_row_and_taken_back(visit: Visit) -> None:
    """The switch shows the numbers of the table of all metrics, then the verdict's own again."""
    page, metric = visit.page, visit.page.get_by_label("Metric")
    own = texts(page, CHANGES)
    page.locator("#metrics").evaluate("table => { table.closest('details').open = true; }")
    column = texts(page, "#metrics thead th").index("on the clock (wall)") + 1
    told = texts(page, f"#metrics tbody tr > :nth-child({column})")
    metric.select_option(label="on the clock (wall)")
    shown = texts(page, "#comparisons [data-change]")
    assert shown == told
    assert shown != own
    assert page.locator("#metric-note").inner_text()
    metric.select_option(index=0)
    assert texts(page, CHANGES) == own


def test_the_keyboard_does_what_the_mouse_does(visit: Visit) -> None:
    """Sort with Enter, find by typing, hide with the space bar, choose with the arrows."""
    page = visit.page
    page.get_by_role("button", name="Change").focus()
    page.keyboard.press("Enter")
    assert texts(page, CHANGES)[0] == "+0.1 %"
    page.get_by_label("Find").focus()
    page.keyboard.type("docker")
    assert page.locator(VISIBLE_ROWS).count() == 2
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    page.get_by_label("failed", exact=True).focus()
    page.keyboard.press("Space")
    assert page.locator(VISIBLE_ROWS).count() == 5
    page.get_by_label("Metric").focus()
    before = texts(page, "#comparisons [data-change]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert texts(page, "#comparisons [data-change]") != before
    page.get_by_role("button", name="Theme").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("button", name="Theme").inner_text() == "Theme: light"
    fold = page.locator("summary", has_text="Every metric")
    fold.focus()
    page.keyboard.press("Enter")
    assert page.locator("#metrics").is_visible()


def test_the_print_button_asks_the_browser_to_print(visit: Visit) -> None:
    """Its dialog is the browser's own, which no page can see: that it is asked is what counts."""
    visit.page.evaluate("() => { window.asked = 0; window.print = () => { window.asked += 1; }; }")
    visit.page.get_by_role("button", name="Print").click()
    assert visit.page.evaluate("window.asked") == 1


def test_a_link_to_a_fold_opens_it(visit: Visit) -> None:
    """Who follows "Why" from a row sees the reason and not a closed fold."""
    page = visit.page
    page.locator("#why details").evaluate_all("all => all.forEach(one => { one.open = false; })")
    page.locator("#comparisons a[href^='#w']").first.click()
    page.locator("#why details[open]:target").wait_for()


def test_a_link_to_a_row_that_the_filter_hides_shows_it(visit: Visit) -> None:
    """Nobody is led to a place where nothing stands."""
    page = visit.page
    page.locator("#why details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.get_by_label("Find").fill("no such row")
    assert page.locator(VISIBLE_ROWS).count() == 0
    page.locator("#why .files a[href^='#c']").first.click()
    page.locator("#comparisons tr:target").wait_for()  # the page hears of its new address later
    assert page.locator(VISIBLE_ROWS).count() == 6


def test_the_theme_is_switched_and_returns(visit: Visit) -> None:
    """Auto, light, dark, auto."""
    button = visit.page.get_by_role("button", name="Theme")
    background, colours = "getComputedStyle(document.body).backgroundColor", []
    for _ in range(3):
        button.click()
        colours.append((button.inner_text(), visit.page.evaluate(background)))
    assert colours[0] == ("Theme: light", "rgb(255, 255, 255)")
    assert colours[1] == ("Theme: dark", "rgb(18, 22, 28)")
    assert colours[2][0] == "Theme: auto"


def test_the_theme_is_remembered(visit: Visit) -> None:
    """A reader who chose one finds it when the page is opened again."""
    visit.page.get_by_role("button", name="Theme").click()
    visit.page.reload()
    assert visit.page.get_by_role("button", name="Theme").inner_text() == "Theme: light"


def test_the_theme_is_switched_where_nothing_can_be_kept(
    context: BrowserContext, report: Path
) -> None:
    """A browser that refuses storage to pages from disk refuses them nothing else."""
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });"
    )
    visit = open_report(context, report)
    visit.page.get_by_role("button", name="Theme").click()
    assert visit.page.get_by_role("button", name="Theme").inner_text() == "Theme: light"
    assert visit.page.locator("#shown").inner_text() != ""
    assert visit.console == []


def test_the_keyboard_reaches_every_control_and_every_table(visit: Visit) -> None:
    """Tab walks over links, buttons, boxes and scrolling tables, and is seen."""
    expected = visit.page.locator("a, button, input, select, summary, [tabindex='0']").evaluate_all(
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


def test_a_phone_scrolls_tables_and_not_the_page(visit: Visit) -> None:
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


def test_the_page_is_readable_without_styles(visit: Visit) -> None:
    """The text stands in the order of the report, the answer first."""
    visit.page.evaluate("document.querySelector('style').remove()")
    assert texts(visit.page, "main h2") == [
        "Answer", "Why: where the time goes", "All comparisons", "Start-up", "Memory",
        "Environments", "Failures", "Method", "Reproduce",
    ]  # fmt: skip
    assert (
        visit.page.locator("main")
        .inner_text()
        .startswith("Answer\n\n▶ slower in 1 of 2 On this host, in this run, docker")
    )


def test_print_puts_the_answer_on_the_first_page(visit: Visit) -> None:
    """Headlines, table and the three cards fit an A4 sheet, in dark colours on white."""
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


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="pdftotext (poppler-utils) is not there")
def test_closed_folds_of_why_are_printed(visit: Visit, tmp_path: Path) -> None:
    """Paper cannot be unfolded: causes and glossary stand there without a script."""
    page = visit.page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = false; })")
    folds = page.locator(".fold").count()
    paper = tmp_path / "report.pdf"
    page.pdf(path=paper, prefer_css_page_size=True)
    text = subprocess.run(
        ["pdftotext", "-layout", str(paper), "-"], check=True, capture_output=True, text=True
    ).stdout
    assert text.count("its row in All comparisons") == folds > 0
    assert "all arms started again" in text


def test_the_marks_lie_to_the_right_for_slower(visit: Visit) -> None:
    """Left is faster and right is slower in every drawing."""
    row = visit.page.locator("#answer tr[data-answer=slower]").first
    zero = row.locator(".zero").bounding_box()
    point = row.locator(".point").bounding_box()
    assert point["x"] > zero["x"]
