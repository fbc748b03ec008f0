"""Whatever a run found, its report neither contradicts itself nor hides or invents anything."""

from __future__ import annotations

import math
import re
import unicodedata
from html.parser import HTMLParser

import msgspec
from hypothesis import Phase, given, settings

from envcompare.analysis.model import (
    RunComparison,
)
from envcompare.report.headlines import headlines, mean_log_ratio
from envcompare.report.numbers import change, milliseconds, percent
from envcompare.report.page import render
from envcompare.report.summary import markdown, terminal_lines
from tests.data.report.builders import BARE, HOSTILE, runs

# A run is large: to shrink one takes minutes and tells little more.
SETTINGS = settings(
    max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


class Page(HTMLParser):
    """What a browser would find in a page: elements with attributes, and the text it shows."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.parts: list[str] = []
        self.hidden = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the element; what stands in style and script is not text."""
        self.elements.append((tag, dict(attrs)))
        if tag in {"style", "script"}:
            self.hidden = tag

    def handle_endtag(self, tag: str) -> None:
        """Take up text again after style and script."""
        if tag == self.hidden:
            self.hidden = ""

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        if not self.hidden:
            self.parts.append(data)

    @property
    def text(self) -> str:
        """Return all text of the page, a blank between elements."""
        return " ".join(self.parts)

    def outcomes(self) -> list[str]:
        """Return the outcomes of the rows of all comparisons."""
        return [str(attrs["data-outcome"]) for _, attrs in self.elements if "data-outcome" in attrs]


@SETTINGS
@given(runs())
def test_the_headline_never_contradicts_the_table(run: RunComparison) -> None:
    """The lead says what rows say, "all" only of all, and names no way that no row goes."""
    for one in headlines(run):
        rows = [row for row in run.comparisons if row.arm == one.arm]
        outcomes = {row.outcome for row in rows}
        said = f"{one.lead} {one.rest}"
        assert one.outcome in outcomes
        assert (" slower than " in one.lead) == ("slower" in outcomes)
        assert ("less time than" in one.lead) == ("faster" in outcomes)
        assert ("quivalent " in said) == ("equivalent" in outcomes)
        assert ("inconclusive" in said.lower()) == ("inconclusive" in outcomes)
        assert ("failed" in said.lower()) == ("failed" in outcomes)
        assert ("not run" in said.lower()) == ("not-run" in outcomes)
        assert (" in all " in one.lead or " in both " in one.lead) == (
            len(outcomes) == 1 and len(rows) > 1
        )


@SETTINGS
@given(runs())
def test_every_number_shown_stands_in_the_comparison(run: RunComparison) -> None:
    """No percentage and no time is printed that the analysis did not find."""
    text = Page(render(run)).text
    shown = set(re.findall(r"(\d+\.\d)(?= %| to [+−]?\d+\.\d %)", text))
    assert shown <= _percentages(run)
    times = re.findall(r"([\d.]+) → ([\d.]+) ms", text)
    known = {milliseconds(one.median_s) for cell in run.cells for one in cell.step_times}
    assert {time for pair in times for time in pair} <= known


@SETTINGS
@given(runs())
def test_what_failed_or_was_not_run_is_always_visible(run: RunComparison) -> None:
    """Every comparison is a row on the page, in the terminal and in Markdown, with its state."""
    expected = sorted(one.outcome for one in run.comparisons)
    page = Page(render(run))
    assert sorted(page.outcomes()) == expected
    lines = terminal_lines(run)
    assert sorted(str(one.outcome) for one in lines if one.role == "row") == expected
    text = markdown(run)
    assert text.count("| ✕ failed") == expected.count("failed")
    assert text.count("| – not run") == expected.count("not-run")
    assert page.text.count("✕ failed") >= expected.count("failed")


@SETTINGS
@given(runs(names=HOSTILE))
def test_hostile_names_stay_text(run: RunComparison) -> None:
    """No name, path or error becomes markup, a script, a handler or a way out of the page."""
    html = render(run, files=tuple(one.log for one in run.failures))
    html.encode()
    page = Page(html)
    assert [tag for tag, _ in page.elements].count("script") == 1
    for tag, attrs in page.elements:
        assert tag in KNOWN_TAGS
        assert not any(name.startswith("on") or name == "style" for name in attrs)
        target = attrs.get("href")
        assert target is None or target.startswith(("#", "./"))
        assert ".." not in (target or "").split("/")
        assert "src" not in attrs
    assert not [char for char in html if _is_hidden(char)]


@SETTINGS
@given(runs(names=HOSTILE))
def test_hostile_names_break_no_line_of_the_terminal_or_of_markdown(run: RunComparison) -> None:
    """A line stays a line, and a table keeps its columns."""
    for line in terminal_lines(run):
        assert not [char for text in line.columns for char in text if char == "\n"]
        assert not [char for text in line.columns for char in text if _is_hidden(char)]
    table = [line for line in markdown(run).splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in table} == {5}
    assert "<" not in markdown(run)


def test_a_run_without_any_comparison_still_has_a_page() -> None:
    """A run that was killed before its first round is drawn and says so."""
    run = msgspec.structs.replace(
        BARE, comparisons=(), cells=(), is_complete=False, planned_comparisons=1
    )
    text = Page(render(run)).text
    assert "This run is not complete" in text
    assert "No environment was compared with the reference" in text
    assert "not complete" in markdown(run)


KNOWN_TAGS = frozenset(
    {"html", "head", "meta", "title", "style", "script", "body", "header", "main", "nav", "footer"}
    | {"section", "div", "p", "h1", "h2", "h3", "ul", "li", "dl", "dt", "dd", "pre", "code"}
    | {"span", "strong", "small", "br", "a", "details", "summary", "table", "caption", "thead"}
    | {"tbody", "tr", "th", "td", "svg", "g", "rect", "line", "path", "circle"}
    | {"form", "fieldset", "legend", "label", "input", "button"}
)


def _percentages(run: RunComparison) -> set[str]:
    found = [one.noise_floor for one in run.cells] + [
        estimate for one in run.comparisons for estimate in (one.primary, *one.secondary)
    ]
    ratios = [
        value
        for one in found
        if one is not None
        for value in (one.log_ratio, one.low, one.high)
        if value is not None
    ]
    means = [mean_log_ratio(one.verdicts) for one in headlines(run)]
    by_workload = [
        mean_log_ratio(tuple(v for v in one.verdicts if v.cell == cell))
        for one in headlines(run)
        for cell in {v.cell for v in one.verdicts}
    ]
    described = [value for value in (*means, *by_workload) if value is not None]
    chosen = {f"{100 * value:.1f}" for value in (run.margin, run.target)}
    return {percent(change(value)) for value in (*ratios, *described)} | chosen


def _is_hidden(char: str) -> bool:
    return char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_the_change_of_a_huge_ratio_is_a_number() -> None:
    """A ratio that no clock could give is printed and does not end the report."""
    assert math.isfinite(change(1e6))
