"""Whatever a run found, its report neither contradicts itself nor hides anything."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter

import pytest
from htmltree import Element, parse
from hypothesis import Phase, given, settings
from summaries import markdown, printed, terminal_lines

from envcompare.analysis.model import Comparison, RunComparison
from envcompare.report.page import render
from envcompare.report.wording import cell_labels, change, fold_anchor, row_anchor
from envcompare.report.wording.headlines import headlines
from envcompare.report.wording.verdicts import SYMBOLS, WORDS, reasons_text
from tests.data.report.builders import BARE, HOSTILE, changed, runs

# A run is large: to shrink one takes minutes and tells little more.
SETTINGS = settings(
    max_examples=8, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
# A run that fails is printed as a whole, for there is no telling which part of it matters.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
UNKNOWN = ("slower", "faster", "inconclusive")  # what has a cause to look for


def sections(run: RunComparison) -> dict[str, Element]:
    """Draw the page and return its sections by their ids."""
    return {one.attributes["id"]: one for one in parse(render(run)).every("section")}


def badges(one: Element) -> set[str]:
    """Return the outcomes that the badges in an element name."""
    found = {name for badge in one.every("span", class_="badge") for name in badge.classes}
    return found & set(SYMBOLS)


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
def test_the_page_gives_a_comparison_one_outcome_wherever_it_stands(run: RunComparison) -> None:
    """Rows, folds, the answer and the overview agree, and a fold is for whatever has a cause."""
    found = sections(run)
    for one in run.comparisons:
        row = found["all"].find(row_anchor(one.cell, one.arm))
        assert row.attributes["data-outcome"] == one.outcome
        assert badges(row) == {one.outcome}
        folds = found["why"].every("details", id=fold_anchor(one.cell, one.arm))
        assert len(folds) == (one.outcome in UNKNOWN)
        for fold in folds:
            assert badges(fold.every("summary")[0]) == {one.outcome}
    rows = found["answer"].every("tr")[2:]  # below the head and the reference
    if "overview" in found:
        check_counts(run, rows)
        check_overview(run, found["overview"].every("table")[0])
    else:
        assert sorted(row.attributes["data-answer"] for row in rows) == outcomes(run.comparisons)


def check_counts(run: RunComparison, rows: list[Element]) -> None:
    """Compare the rows of the environments with how often each had which outcome."""
    assert {row.every("th")[0].text for row in rows} == {
        comparison.arm for comparison in run.comparisons
    }
    for row in rows:
        arm, told = row.every("th")[0].text, row.every("td")[-1].text
        for outcome in SYMBOLS:
            count = sum(
                (comparison.arm, comparison.outcome) == (arm, outcome)
                for comparison in run.comparisons
            )
            word = WORDS.get(outcome, outcome)
            assert bool(count) == bool(re.search(rf"\b{count} {word}\b", told))


def check_overview(run: RunComparison, table: Element) -> None:
    """Compare the symbols of each workload and environment with the comparisons there."""
    arms = [cell.text for cell in table.every("thead")[0].every("th")[1:]]
    for row in table.every("tbody")[0].every("tr"):
        workload = row.every("th")[0].text
        for arm, cell in zip(arms, row.every("td"), strict=True):
            own = [
                comparison
                for comparison in run.comparisons
                if (comparison.workload, comparison.arm) == (workload, arm)
            ]
            drawn = [symbol for symbol in cell.text if symbol in SYMBOLS.values()]
            assert sorted(drawn) == sorted(SYMBOLS[one.outcome] for one in own)
            assert cell.text.count("⚠") == sum(is_marked(one) for one in own)
            check_word(own, cell)


def check_word(own: list[Comparison], cell: Element) -> None:
    """Compare the word of a place with what it holds: "4 of 5 slower", "faster and slower"."""
    found = Counter(WORDS.get(one.outcome, one.outcome) for one in own)
    said = cell.every("a")[0].text
    for word in ("slower", "faster"):
        assert (word in said) == (word in found)
    if not said.endswith("faster and slower"):
        match = re.search(r"(?:(\d+) of (\d+) )?([a-z][a-z ]+)$", said)
        assert match is not None
        count, most = match[1] or len(own), match[2] or len(own)
        assert (int(count), int(most)) == (found[match[3]], len(own))


def is_marked(one: Comparison) -> bool:
    """Say whether a comparison is measured and confounded."""
    return one.is_confounded and one.primary is not None


def outcomes(found: tuple[Comparison, ...]) -> list[str]:
    """Return all outcomes, sorted."""
    return sorted(one.outcome for one in found)


@SETTINGS
@given(runs())
def test_the_boxes_count_what_the_table_holds(run: RunComparison) -> None:
    """What failed or was not run is counted, and it is said where nothing moved."""
    box = " ".join(one.text for one in sections(run)["answer"].every("div", class_="three"))
    counts = {name: outcomes(run.comparisons).count(name) for name in SYMBOLS}
    for name, word in (("failed", "failed"), ("not-run", "not run")):
        said = re.findall(rf"(\d+) of {len(run.comparisons)} comparisons? {word}", box)
        assert said == [str(counts[name])] * bool(counts[name])
    moved = counts["slower"] + counts["faster"]
    assert ("No comparison is slower or faster" in box) == (not moved)
    clean = [
        comparison
        for comparison in run.comparisons
        if comparison.outcome in UNKNOWN[:2] and not is_marked(comparison)
    ]
    assert ("Largest difference without a known confounder" in box) == bool(clean)
    if clean:
        sizes = [
            abs(one.deciding.log_ratio) if one.deciding and one.deciding.has_size else 0.0
            for one in clean
        ]
        largest = [one for one, size in zip(clean, sizes, strict=True) if size == max(sizes)]
        said = box.partition("without a known confounder: ")[2].partition("Why")[0]
        assert any(one.arm in said and cell_labels(run)[one.cell] in said for one in largest)


@SETTINGS
@given(runs())
def test_page_comment_and_terminal_say_the_same(run: RunComparison) -> None:
    """The leads of all three are one text, and so are their verdicts."""
    page = parse(render(run)).text
    comment = re.sub(r"\\(.)", r"\1", markdown(run))
    terminal = terminal_lines(run)
    rows = [line for line in terminal if line.role == "row"]
    for one in headlines(run):
        for text in filter(None, (one.lead, one.rest, one.caution)):
            assert " ".join(text.split()) in page
            assert text in comment
            assert any(text in line.columns[0] for line in terminal)
        for verdict in one.verdicts:
            line = next(row for row in rows if row.columns[:2] == (verdict.arm, verdict.cell))
            assert line.outcome == verdict.outcome
            assert f"| {' | '.join(line.columns)} |" in comment


@SETTINGS
@given(runs())
def test_what_failed_or_was_not_run_is_always_visible(run: RunComparison) -> None:
    """Every comparison is a row on the page, in the terminal and in Markdown, with its state."""
    expected, found = outcomes(run.comparisons), sections(run)
    rows = [row for row in found["all"].every("tr") if "data-outcome" in row.attributes]
    assert sorted(row.attributes["data-outcome"] for row in rows) == expected
    lines = terminal_lines(run)
    assert sorted(str(line.outcome) for line in lines if line.role == "row") == expected
    text = markdown(run)
    assert text.count("| ✕ failed") == expected.count("failed")
    assert text.count("| – not run") == expected.count("not-run")
    check_failures(run, found.get("failures"))


def check_failures(run: RunComparison, section: Element | None) -> None:
    """Look up each comparison without a value with its place and its first line."""
    labels = cell_labels(run)
    shown = [] if section is None else [one.text for one in section.every("div", class_="failure")]
    lost = [
        comparison for comparison in run.comparisons if comparison.outcome in {"failed", "not-run"}
    ]
    assert len(shown) == len(lost)
    for one in lost:
        reason = reasons_text((one.reason,)) if one.reason else ""
        said = one.failure.brief if one.failure else reason
        where = f"{SYMBOLS[one.outcome]} {WORDS.get(one.outcome, one.outcome)} {one.arm}, "
        where += labels[one.cell]
        assert any(where in text and said in text for text in shown), (where, said)
    assert (section is None) == (not lost)


@SETTINGS
@given(runs(names=HOSTILE))
def test_hostile_names_stay_text(run: RunComparison) -> None:
    """No name, path or error becomes markup, a script, a handler or a way out of the page."""
    html = render(run, files=tuple(failure.log for failure in run.course.failures))
    html.encode()
    page = parse(html)
    kinds = [one.attributes.get("type") for one in page.every("script")]
    assert kinds == ["application/json", None]
    for one in page.walk():
        assert not any(name.startswith("on") or name == "style" for name in one.attributes)
        target = one.attributes.get("href", "#")
        assert target.startswith(("#", "./"))
        assert ".." not in target.split("/")
        assert "src" not in one.attributes
    assert not [char for char in html if is_hidden(char)]


@SETTINGS
@given(runs(names=HOSTILE))
def test_hostile_names_break_no_line_of_the_terminal_or_of_markdown(run: RunComparison) -> None:
    """A line stays a line, and a table keeps its columns."""
    lines = printed(run).splitlines()
    assert len([line for line in lines if line.strip()]) == len(terminal_lines(run))
    assert not [char for line in lines for char in line if is_hidden(char)]
    table = [line for line in markdown(run).splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", line.replace("\\\\", ""))) for line in table} == {5}
    assert "<" not in markdown(run)


def test_a_run_without_any_comparison_still_has_a_page() -> None:
    """A run that was killed before its first round is drawn and says so."""
    run = changed(BARE, comparisons=(), cells=(), is_complete=False, planned_comparisons=1)
    text = parse(render(run)).text
    assert "This run is not complete" in text
    assert "No environment was compared with the reference" in text
    assert "not complete" in markdown(run)


def is_hidden(char: str) -> bool:
    """Say whether a reader sees nothing of a character."""
    return char not in "\n\t" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_the_change_of_a_huge_ratio_is_a_number() -> None:
    """A ratio that no clock could give is printed and does not end the report."""
    assert math.isfinite(change(1e6))
