"""The summary of a fixed run, word for word, on the terminal and as Markdown."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
from rich.console import Console
from summaries import SummaryLine, markdown, terminal_lines

from envcompare.analysis.model import FailureRow, Reason, RunComparison
from envcompare.cli.conclusion import show
from envcompare.report.page import render
from envcompare.report.summary import summary
from envcompare.report.wording.headlines import headlines
from tests.data.report.builders import changed

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def as_text(lines: tuple[SummaryLine, ...]) -> str:
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


def test_no_word_of_a_table_is_cut_off_on_a_narrow_terminal() -> None:
    """A reason of an engine may hold a path that is longer than its column."""
    path = "/dev/" + "-".join(map(str, range(60)))
    reason = Reason(kind="failed", brief=f"docker could not start the container: no {path}")
    failed = [
        msgspec.structs.replace(comparison, reason=reason)
        if comparison.outcome == "failed"
        else comparison
        for comparison in EXAMPLE.comparisons
    ]
    failed = [msgspec.structs.replace(one, failure=None) for one in failed]
    out = io.StringIO()
    run = msgspec.structs.replace(EXAMPLE, comparisons=tuple(failed))
    show(summary(run), Console(file=out, width=80, highlight=False))
    assert "…" not in out.getvalue()


def test_no_line_of_a_terminal_ends_between_a_number_and_its_unit() -> None:
    """At any width a unit stands beside its number, with a common space between them."""
    for width in range(60, 120):
        out = io.StringIO()
        show(summary(EXAMPLE), Console(file=out, width=width, highlight=False))
        begins = {line.strip().partition(" ")[0] for line in out.getvalue().splitlines()}
        assert not begins & {"%", "ms", "%,", "%)", "%).", "%);"}
        assert "0.6 %" in out.getvalue()


def test_an_interrupted_run_says_so_first() -> None:
    """The reader of a torn run learns it before any number."""
    run = changed(EXAMPLE, is_complete=False)
    assert [line.role for line in terminal_lines(run)][:2] == ["title", "warning"]
    assert markdown(run).splitlines()[2].startswith("> ⚠ This run is not complete")


def test_a_failure_is_told_once_with_its_cells() -> None:
    """What failed alike in many cells, or again at a second attempt, is one note."""
    row = FailureRow(
        t=1.0,
        host="lab01",
        cell="lab01/cnn/default",
        arm="",
        phase="data",
        brief="the folder is not on lab01",
        details="",
        hint="copy it there",
        exit_code=None,
        log="",
    )
    rows = [msgspec.structs.replace(row, t=t, cell=f"lab01/{w}/default")
            for t, w in ((1.0, "cnn"), (2.0, "cnn"), (3.0, "rnn"))]  # fmt: skip
    run = changed(EXAMPLE, failures=tuple(rows))
    notes = [line.columns[0] for line in terminal_lines(run) if line.role == "note"]
    assert notes[-2:] == [
        "failed on lab01 in cnn and rnn (phase data): the folder is not on lab01",
        "  try: copy it there",
    ]


def test_a_command_without_results_is_no_step() -> None:
    """The heading names the piece that was to be timed."""
    cells = [msgspec.structs.replace(cell, is_program=True) for cell in EXAMPLE.cells]
    lines = terminal_lines(msgspec.structs.replace(EXAMPLE, cells=tuple(cells)))
    head = next(line for line in lines if line.role == "head")
    assert head.columns[-1].startswith("process, ")
