"""The pages of the fixed runs as readers meet them, from one comparison to a thousand."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from goldenruns import SHAPES, SMALL, golden_run
from nightly import nightly_except
from pages import Visit, ci_server, open_address, open_report, trim, unfold, violations
from playwright.sync_api import Browser, BrowserContext, Page

from envcompare.report.wording.headlines import headlines

pytestmark = pytest.mark.browser

SCREEN = {"width": 1280, "height": 860}
MEDIA = (
    (1280, {"color_scheme": "light"}),
    (1280, {"color_scheme": "dark"}),
    (320, {"color_scheme": "light"}),
    (1280, {"forced_colors": "active"}),
)
SIZES = tuple(SHAPES)
ORDER = (
    "Answer", "Why", "All comparisons", "Start-up", "Memory", "Environments", "Method", "Reproduce",
)  # fmt: skip


@pytest.fixture(scope="module", params=SIZES)
def golden(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Visit]:
    """Open each page once for all tests that only look at it."""
    context = browser.new_context(viewport=SCREEN)
    visit = open_report(context, golden_run(request.param).page)
    yield visit
    context.close()


@pytest.fixture(scope="module", params=SIZES)
def unfolded(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """Open each page once more, with all folds open and of many things alike the first two."""
    context = browser.new_context(viewport=SCREEN)
    page = open_report(context, golden_run(request.param).page).page
    trim(page, most=2)
    unfold(page)
    yield page
    context.close()


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    """Name one fixed run after the other."""
    return str(request.param)


def bottom_of(page: Page, selector: str) -> float:
    """Return where the last of the elements ends on the page."""
    box = page.locator(selector).last.bounding_box()
    assert box is not None
    return float(box["y"] + box["height"])


@pytest.mark.parametrize("scheme", nightly_except(("light",), ("light", "dark")))
def test_the_first_screen_holds_headlines_and_table(golden: Visit, scheme: str) -> None:
    """Which one, and how much, is read without scrolling."""
    page = golden.page
    page.set_viewport_size(SCREEN)
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("scrollY") == 0
    assert bottom_of(page, "#answer .lead") < SCREEN["height"]
    assert bottom_of(page, "#answer table") < SCREEN["height"]


def test_the_page_is_silent_and_alone(golden: Visit) -> None:
    """Its policy refuses nothing it does, and it asks for nothing but itself."""
    golden.page.wait_for_load_state("networkidle")
    assert golden.console == []
    assert golden.dialogs == []
    assert len(golden.requests) == 1


def test_no_element_has_a_style_of_its_own_even_after_the_script_ran(golden: Visit) -> None:
    """A style attribute is what a strict policy refuses first."""
    assert golden.page.locator("[style]").count() == 0


@pytest.mark.parametrize("width", [640, 320])
def test_neither_zoom_nor_a_phone_scrolls_the_page_sideways(unfolded: Page, width: int) -> None:
    """1280 px at 200 % are 640, and at 400 % are 320: tables and charts scroll by themselves."""
    unfolded.set_viewport_size({"width": width, "height": 700})
    assert unfolded.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("unfolded", "width", "media"),
    [
        pytest.param(
            size, width, media,
            # On the largest page, axe takes a minute in each medium.
            marks=() if size in SMALL or number == 0 else pytest.mark.nightly,
        )
        for size in SIZES
        for number, (width, media) in enumerate(MEDIA)
    ],
    indirect=["unfolded"],
)  # fmt: skip
def test_axe_finds_nothing(unfolded: Page, width: int, media: dict[str, Any]) -> None:
    """WCAG 2.2 AA is kept in light, dark, on a phone and in forced colours, with all folds open."""
    unfolded.set_viewport_size({"width": width, "height": 860})
    unfolded.emulate_media(**{"color_scheme": "light", "forced_colors": "none", **media})
    assert violations(unfolded) == []


UNSEEN = """() => {
  const ground = getComputedStyle(document.body).backgroundColor, found = [];
  const inks = mark => [getComputedStyle(mark).fill, getComputedStyle(mark).stroke].filter(
    ink => ink !== "none" && ink !== "rgba(0, 0, 0, 0)");
  const shapes = "svg[role=img] :is(path, rect, line, circle, text)";
  for (const mark of document.querySelectorAll(shapes)) {
    const drawn = inks(mark), is_lost = drawn.length && drawn.every(ink => ink === ground);
    // what stands on a filled bar has the colour of the ground
    if (drawn.includes("rgb(0, 0, 0)") || (is_lost && mark.tagName !== "text")) {
      found.push(mark.outerHTML.slice(0, 200));
    }
  }
  return found;
}"""


@pytest.mark.parametrize("name", SMALL)
def test_the_colours_of_charts_follow_the_theme(context: BrowserContext, name: str) -> None:
    """In the dark nothing is black, and no mark has the colour of what lies behind it."""
    page = open_report(context, golden_run(name).page).page
    page.emulate_media(color_scheme="dark")
    unfold(page)
    assert page.locator("svg[role=img]").count() > 0
    assert page.evaluate(UNSEEN) == []


@pytest.mark.parametrize("name", SMALL)
def test_every_chart_has_a_name_and_its_numbers_in_words(
    context: BrowserContext, name: str
) -> None:
    """Who cannot see a chart is told its title and what it shows."""
    page = open_report(context, golden_run(name).page).page
    for chart in page.locator("svg[role=img]").all():
        title, told = (chart.locator(tag).first.text_content() for tag in ("title", "desc"))
        assert title
        assert told
        assert any(char.isdigit() for char in told), told


@pytest.mark.parametrize("name", SMALL)
def test_without_scripts_nothing_is_missing(browser: Browser, name: str) -> None:
    """All rows, numbers and charts are there; what only a script can do is not."""
    pages = []
    for has_scripts in (True, False):
        context = browser.new_context(java_script_enabled=has_scripts, viewport=SCREEN)
        page = context.new_page()
        page.goto(golden_run(name).page.as_uri())
        pages.append((context, page))
    (with_context, scripted), (without_context, plain) = pages
    for selector in ("main tr", "main svg", "main svg[role=img]", "main details"):
        assert plain.locator(selector).count() == scripted.locator(selector).count()
    assert plain.locator("#comparisons tbody tr:visible").count() == len(
        golden_run(name).comparison.comparisons
    )
    answer = plain.locator("#answer").inner_text()
    assert answer == scripted.locator("#answer").inner_text()
    for control in ("button", "select", "input", "[role=button]"):
        assert plain.locator(f"{control}:visible").count() == 0
    for context in (with_context, without_context):
        context.close()


COVERED = """() => {
  const blocks = "h1, h2, h3, p, li, summary, td, th, dd";
  const found = [], texts = [...document.querySelectorAll(blocks)];
  for (const drawing of document.querySelectorAll("svg")) {
    const a = drawing.getBoundingClientRect();
    if (Math.max(a.width, a.height) > 1400) { found.push(drawing.outerHTML.slice(0, 99)); }
    for (const text of drawing.getAttribute("role") === "img" ? texts : []) {
      const b = text.getBoundingClientRect();
      const across = a.left < b.right && b.left < a.right;
      if (across && a.top < b.bottom - 1 && b.top < a.bottom - 1 && !text.contains(drawing)) {
        found.push(text.textContent.slice(0, 99));
      }
    }
  }
  return found;
}"""


@pytest.mark.parametrize("name", SMALL)
def test_without_styles_the_page_reads_in_order_and_no_drawing_covers_it(
    context: BrowserContext, name: str
) -> None:
    """The answer comes first, and each drawing keeps to its own place and size."""
    page = open_report(context, golden_run(name).page).page
    page.evaluate("document.querySelectorAll('style').forEach(one => one.remove())")
    unfold(page)
    heads = page.locator("main h2").all_inner_texts()
    found = [next(number for number, head in enumerate(heads) if head.startswith(word))
             for word in ORDER]  # fmt: skip
    assert found == sorted(found)
    first = page.locator("main").inner_text().partition("Is it real?")[0]
    assert "docker is" in first
    assert "slower than vm" in first
    assert page.evaluate(COVERED) == []


def test_a_ci_server_that_refuses_styles_and_scripts_still_shows_the_answer(
    context: BrowserContext,
) -> None:
    """Under its policy the page is plain, whole, and asks for nothing."""
    run = golden_run("3x2x1")
    with ci_server(run.folder.path) as address:
        visit = open_address(context, f"{address}/report.html")
        page = visit.page
        page.wait_for_load_state("networkidle")
        assert visit.requests == [f"{address}/report.html"]
        assert visit.dialogs == []
        assert page.locator("#comparisons tbody tr:visible").count() == len(
            run.comparison.comparisons
        )
        assert page.locator("#answer .lead").first.is_visible()
        for control in ("button", "select", "input"):
            assert page.locator(f"{control}:visible").count() == 0
        refused = [text for text in visit.console if "Content Security Policy" not in text
                   and "sandboxed" not in text]  # fmt: skip
        assert refused == []


@pytest.mark.skipif(not shutil.which("pdftotext"), reason="pdftotext (poppler-utils) is not there")
def test_the_first_printed_sheet_holds_the_answer(
    context: BrowserContext, tmp_path: Path, size: str
) -> None:
    """Headlines, table and the three cards, as a PDF reader finds them."""
    page = open_report(context, golden_run(size).page).page
    trim(page)  # what is on the first sheet does not hang on how many follow
    paper = tmp_path / "report.pdf"
    page.pdf(path=paper, prefer_css_page_size=True, page_ranges="1")
    text = " ".join(
        subprocess.run(
            ["pdftotext", "-layout", "-l", "1", str(paper), "-"],
            check=True, capture_output=True, text=True,
        ).stdout.split()
    )  # fmt: skip
    run = golden_run(size).comparison
    for one in headlines(run):
        assert one.arm in text
    assert " ".join(headlines(run)[0].text.split()[:5]) in text
    for heading in ("Is it real?", "Why?", "Before you rely on it"):
        assert heading in text
    assert "Theme" not in text
