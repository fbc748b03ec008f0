"""Whatever a run found, its report neither contradicts itself nor hides or invents anything."""

from __future__ import annotations

import math
import re
import unicodedata
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from envcompare.analysis.model import (
    CellSummary,
    Comparison,
    Estimate,
    FailureRow,
    RunComparison,
    StepTimes,
)
from envcompare.records import Failure
from envcompare.report.headlines import headlines, mean_log_ratio
from envcompare.report.numbers import change, milliseconds, percent
from envcompare.report.page import render
from envcompare.report.summary import markdown, terminal_lines
from envcompare.stats import verdict as judge

EXAMPLE = Path(__file__).resolve().parents[1] / "data" / "report" / "three-arms.json"
BASE = msgspec.json.decode(EXAMPLE.read_bytes(), type=RunComparison)
BARE = msgspec.structs.replace(
    BASE, arms=(), differences=(), startup=(), memory=(), failures=(), configuration=""
)
HOSTILE = st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        '"><b style="color:red">',
        "{{ 7 * 7 }}{% raw %}",
        "ab\u202edcba\u2066\u200b",
        "a\x00b\x1b[31mred\x07",
        "line\nbreak\ttab | pipe `code` **bold** [link](javascript:alert(1)) @all #1",
        "javascript:alert(1)",
        "../../../etc/passwd",
        "\ud800 lone",
        "x" * 5000,
        "ünïcödé 模型 🚀",
    ]
) | st.text(max_size=30)
PLAIN = st.from_regex(r"[a-z][a-z0-9]{1,7}", fullmatch=True)
# A run is large: to shrink one takes minutes and tells little more.
SETTINGS = settings(
    max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)


@st.composite
def estimates(draw: st.DrawFn, metric: str = "net") -> Estimate:
    """Return an estimate, wide or narrow, sometimes without an interval."""
    mean = draw(st.floats(-0.5, 0.8))
    half = draw(st.floats(0.0005, 0.3))
    is_open = draw(st.booleans()) and draw(st.booleans())
    return Estimate(
        metric=metric,  # type: ignore[arg-type]
        log_ratio=mean,
        low=None if is_open else mean - half,
        high=None if is_open else mean + half,
        level=0.98,
        unit=draw(st.sampled_from(["restart", "generation"])),
        restarts=draw(st.integers(1, 9)),
        generations=draw(st.integers(1, 40)),
        rounds=draw(st.integers(1, 200)),
        is_widened=metric == "net",
    )


@st.composite
def comparisons(draw: st.DrawFn, *, texts: st.SearchStrategy[str], **known: Any) -> Comparison:
    """Return a comparison whose outcome fits its interval, or that failed or was not run."""
    state = draw(st.sampled_from(["measured", "measured", "measured", "failed", "not-run"]))
    fields: dict[str, Any] = {"is_confounded": draw(st.booleans()), **known}
    if state != "measured":
        failure = Failure(
            phase="step", brief=draw(texts), details=draw(texts), hint=draw(texts),
            exit_code=draw(st.none() | st.integers(0, 255)), log=draw(texts),
        )  # fmt: skip
        return Comparison(
            outcome=state,  # type: ignore[arg-type]
            reason=draw(texts),
            failure=failure if state == "failed" else None,
            **fields,
        )
    primary = draw(estimates())
    lean = "slower" if primary.log_ratio > 0 else "faster"
    return Comparison(
        outcome=judge(primary.low, primary.high, margin=BASE.margin),
        leaning=lean,  # type: ignore[arg-type]
        primary=primary,
        secondary=tuple(draw(estimates(metric)) for metric in ("wall", "stretch", "cpu")),
        forecast_generations=draw(st.none() | st.integers(1, 400)),
        control_failed=draw(st.booleans()),
        **fields,
    )


@st.composite
def runs(draw: st.DrawFn, *, names: st.SearchStrategy[str] = PLAIN) -> RunComparison:
    """Return a run of up to four environments in up to four cells."""
    arms = draw(st.lists(names.filter(lambda n: n != "vm"), min_size=1, max_size=4, unique=True))
    workloads = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    host = draw(names)
    found: list[Comparison] = []
    cells: list[CellSummary] = []
    for workload in workloads:
        cell = f"{host}/{workload}/default"
        own = [
            draw(
                comparisons(
                    texts=names, cell=cell, host=host, workload=workload, arm=arm,
                    environment=arm, stack="image",
                )
            )
            for arm in arms
        ]  # fmt: skip
        found += own
        times = [
            StepTimes(arm=arm, steps=9, median_s=draw(st.floats(1e-5, 9)), p05_s=1e-5, p95_s=9.0)
            for arm in ("vm", *(one.arm for one in own if one.primary is not None))
        ]
        cells.append(
            CellSummary(
                id=cell, host=host, workload=workload, state="ok", reason=draw(names),
                noise_floor=draw(st.none() | estimates()), step_times=tuple(times),
            )
        )  # fmt: skip
    return msgspec.structs.replace(
        BARE,
        title=draw(names),
        comparisons=tuple(found),
        cells=tuple(cells),
        failures=tuple(
            FailureRow(
                t=0.0, host=one.host, cell=one.cell, arm=one.arm, phase=one.failure.phase,
                brief=one.failure.brief, details=one.failure.details, hint=one.failure.hint,
                exit_code=one.failure.exit_code, log=one.failure.log,
            )
            for one in found
            if one.failure is not None
        ),
    )  # fmt: skip


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
