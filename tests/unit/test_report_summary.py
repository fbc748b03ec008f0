"""The summary of a fixed run, word for word, on the terminal and as Markdown."""

from __future__ import annotations

from pathlib import Path

import msgspec

from envcompare.analysis.model import RunComparison
from envcompare.report.headlines import headlines
from envcompare.report.page import render
from envcompare.report.summary import TerminalLine, markdown, terminal_lines

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def as_text(lines: tuple[TerminalLine, ...]) -> str:
    """Return the lines as text: role, outcome, columns."""
    return "".join(
        f"{line.role:<9}{line.outcome or '':<13}{' | '.join(line.columns)}\n" for line in lines
    )


def test_terminal_lines_of_the_example() -> None:
    """Headlines, table, control and the three sentences of the failure, in this order."""
    golden = (DATA / "three-arms.terminal.txt").read_text(encoding="utf-8")
    assert as_text(terminal_lines(EXAMPLE)) == golden


def test_markdown_of_the_example() -> None:
    """A pull-request comment says the same sentences."""
    golden = (DATA / "three-arms.md").read_text(encoding="utf-8")
    assert markdown(EXAMPLE) == golden


def test_page_terminal_and_markdown_say_the_same_sentences() -> None:
    """There is one source of sentences."""
    page, text = render(EXAMPLE), as_text(terminal_lines(EXAMPLE))
    plain = page.replace('<span class="nw">', "").replace("</span>", "")
    for one in headlines(EXAMPLE):
        assert one.lead in plain
        assert one.lead in text
        assert one.lead in markdown(EXAMPLE)
        for found in one.verdicts:
            assert found.text in text
            assert found.text.replace("'", "&#39;") in plain


def test_an_interrupted_run_says_so_first() -> None:
    """The reader of a torn run learns it before any number."""
    run = msgspec.structs.replace(EXAMPLE, is_complete=False)
    assert [line.role for line in terminal_lines(run)][:2] == ["title", "warning"]
    assert markdown(run).splitlines()[2].startswith("> ⚠ This run is not complete")
