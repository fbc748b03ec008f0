"""Every number on the page, in a comment and on the terminal stands in comparison.json."""

from __future__ import annotations

import re

import pytest
from goldenruns import SMALL, golden_run
from hostile import full_run
from htmltree import parse
from hypothesis import Phase, given, settings
from knownnumbers import known_decimals, known_figures, shown_numbers, unknown_figures
from summaries import markdown, terminal_lines

from envcompare.analysis.model import RunComparison
from envcompare.report.page import render
from envcompare.report.wording import margin_percent
from tests.data.report.richruns import rich_runs

# A run that fails is printed as a whole, for there is no telling which part of it matters.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
# Each page has charts, which take most of the time.
SETTINGS = settings(
    max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


def check(run: RunComparison) -> None:
    """Look up every figure with its unit, and every decimal number without one."""
    figures, decimals = shown_numbers(parse(render(run)))
    known = known_figures(run)
    remedy = "if the page works this number out, add it to tests/support/knownnumbers.py"
    assert sorted(pair for pair in figures if pair[0] not in known[pair[1]]) == [], remedy
    assert sorted(decimals - known_decimals(run)) == [], remedy


@SETTINGS
@given(rich_runs())
def test_every_number_on_the_page_stands_in_the_comparison(run: RunComparison) -> None:
    """No percentage, time or size is printed that the analysis did not find."""
    check(run)


@pytest.mark.parametrize("name", SMALL)
def test_every_number_on_a_fixed_page_stands_in_its_comparison(name: str) -> None:
    """The pages that are kept word for word hold nothing else either."""
    check(golden_run(name).comparison)


def test_every_number_on_a_page_of_everything_stands_in_its_comparison() -> None:
    """Kernels, quantities, the roofline and what a 2 × 2 found are no exception."""
    check(full_run())


@SETTINGS
@given(rich_runs())
def test_every_figure_of_the_summaries_stands_in_the_comparison(run: RunComparison) -> None:
    """Markdown and terminal print from the same numbers."""
    terminal = "\n".join(" ".join(line.columns) for line in terminal_lines(run))
    for text in (terminal, re.sub(r"\\(.)", r"\1", markdown(run))):
        assert not unknown_figures(text, run)


def test_a_number_from_nowhere_is_found() -> None:
    """The look-up is no formality: a figure that was made up is known by nothing."""
    run = golden_run("1x1x1").comparison
    assert unknown_figures("7.77 % slower, 123 ms", run) == {("7.77", "%"), ("123", "ms")}


def test_a_level_below_certainty_is_never_called_100_percent() -> None:
    """With a thousand comparisons each interval holds at 99.995 %, which is not 100."""
    levels = (0.02, 0.95, 0.9933, 0.99995, 0.9999999999, 1.0)
    assert [margin_percent(level) for level in levels] == [
        "2 %", "95 %", "99.33 %", "99.995 %", "99.99999999 %", "100 %",
    ]  # fmt: skip
