"""The table of comparisons: CSV and Parquet tell the same, all of it, and nothing that is not."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import Phase, given, settings
from pyarrow import parquet  # noqa: TID251 — it reads back what was written

from envcompare.analysis.model import GroupEstimate, Reason, ReasonKind, RunComparison, Tail
from envcompare.analysis.tables import TABLE
from envcompare.errors import ConfigError
from envcompare.report import exports
from envcompare.report.exports import FORMULAS, Answer, answer, csv_text, parquet_bytes
from envcompare.report.page import render
from envcompare.run_folder.records import Failure
from envcompare.text import visible
from tests.data.report.builders import HOSTILE, SLOWER, example, run_of, runs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schema" / "comparisons.md"
KINDS = {name: column.kind for name, column in TABLE.items()}
SETTINGS = settings(
    max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
Row = dict[str, Any]


def from_csv(text: str) -> list[Row]:
    """Read the table as the documentation says, empty cells as None."""
    return [
        {name: _value(cell, KINDS[name]) for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text, newline=""), strict=True)
    ]


def _value(cell: str, kind: str) -> Any:
    if cell == "":
        return None
    if kind == "text":
        return cell.removeprefix("'")
    return {"true": True, "false": False}[cell] if kind == "yes or no" else _number(cell, kind)


def _number(cell: str, kind: str) -> float:
    return int(cell) if kind == "whole number" else float(cell)


def from_parquet(content: bytes) -> list[Row]:
    """Read the table with its types."""
    found: list[Row] = parquet.read_table(io.BytesIO(content)).to_pylist()
    return found


def failed(reason: str = "out of memory") -> RunComparison:
    """Return a run whose only comparison failed."""
    failure = Failure(phase="setup", brief="out of memory", exit_code=137, log="logs/docker.log")
    one = msgspec.structs.replace(
        SLOWER,
        outcome="failed",
        primary=None,
        secondary=(),
        reason=Reason(kind="failed", brief=reason),
        failure=failure,
    )
    return run_of(one)


@SETTINGS
@given(runs(names=HOSTILE))
def test_both_formats_tell_the_same_whatever_the_names_are(run: RunComparison) -> None:
    """To the last digit and the last strange character."""
    assert from_csv(csv_text(run)) == from_parquet(parquet_bytes(run))


@SETTINGS
@given(runs())
def test_each_comparison_has_a_row_for_each_metric_and_one_without_a_value(
    run: RunComparison,
) -> None:
    """In their order; the row a verdict rests on is marked."""
    expected = [
        (
            comparison.cell,
            comparison.arm,
            comparison.outcome,
            estimate and estimate.metric,
            estimate and first,
        )
        for comparison in run.comparisons
        for estimate, first in (
            [(comparison.primary, True), *((other, False) for other in comparison.secondary)]
            if comparison.primary
            else [(None, None)]
        )
    ]
    names = ("cell", "arm", "outcome", "metric", "is_primary")
    found = [tuple(row[name] for name in names) for row in from_csv(csv_text(run))]
    assert found == expected


@SETTINGS
@given(runs())
def test_numbers_are_those_of_the_comparison(run: RunComparison) -> None:
    """The ratio is the exponential of the log ratio, and nothing is rounded."""
    estimates = [
        estimate
        for comparison in run.comparisons
        for estimate in (
            (comparison.primary, *comparison.secondary) if comparison.primary else (None,)
        )
    ]
    for row, estimate in zip(from_csv(csv_text(run)), estimates, strict=True):
        if estimate is None:
            continue
        assert row["log_ratio"] == estimate.log_ratio
        assert row["ratio"] == math.exp(estimate.log_ratio)
        assert (row["log_ratio_low"], row["log_ratio_high"]) == (estimate.low, estimate.high)
        assert (row["restarts"], row["rounds"]) == (estimate.restarts, estimate.rounds)


def test_failed_comparison_has_its_reason_and_no_number() -> None:
    """An empty cell, never 0 or NaN; the exit code is a fact and no result."""
    (row,) = from_csv(csv_text(failed()))
    assert (row["outcome"], row["reason"]) == ("failed", "out of memory")
    assert (row["failure_phase"], row["exit_code"]) == ("setup", 137)
    assert row["log"] == "logs/docker.log"
    numbers = {name for name, kind in KINDS.items() if "number" in kind}
    assert {name for name in numbers if row[name] is not None} == {"margin", "exit_code"}
    assert "nan" not in csv_text(failed()).lower()


@pytest.mark.parametrize("start", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "'quoted"])
def test_no_text_is_a_formula_to_a_spreadsheet_and_each_can_be_read_back(start: str) -> None:
    """A reason is what a program printed, and a spreadsheet would run it."""
    text = csv_text(failed(reason=start))
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    assert f"'{start}" in cells
    assert from_csv(text)[0]["reason"] == start


def test_negative_number_stays_a_number() -> None:
    """Only text is written so: a spreadsheet would not add what has an apostrophe."""
    faster = msgspec.structs.replace(
        SLOWER, primary=msgspec.structs.replace(SLOWER.primary, log_ratio=-0.5)
    )
    assert ",-0.5," in csv_text(run_of(faster))


@SETTINGS
@given(runs(names=HOSTILE))
def test_every_cell_is_harmless_and_every_line_whole(run: RunComparison) -> None:
    """RFC 4180: as many cells in each row as in the header, and no hidden character."""
    text = csv_text(run)
    assert visible(text.replace("\r\n", "\n")) == text.replace("\r\n", "\n")
    table = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    assert {len(row) for row in table} == {len(TABLE)}
    for row in table:
        for cell, kind in zip(row, KINDS.values(), strict=True):
            assert kind != "text" or not cell.startswith(FORMULAS[:-1])


def test_ratio_that_no_number_holds_is_left_out() -> None:
    """The logarithm still stands there."""
    wild = msgspec.structs.replace(
        SLOWER, primary=msgspec.structs.replace(SLOWER.primary, log_ratio=800.0, high=math.inf)
    )
    row = from_csv(csv_text(run_of(wild)))[0]
    assert (row["ratio"], row["log_ratio"], row["ratio_high"]) == (None, 800.0, None)


def test_parquet_has_types_and_says_what_they_mean() -> None:
    """A reader needs neither guesses nor a page beside it."""
    found = parquet.read_schema(io.BytesIO(parquet_bytes(example())))
    assert found.metadata[b"run_id"].decode() == example().run_id
    types = [str(found.field(name).type) for name in ("arm", "ratio", "restarts", "is_control")]
    assert types == ["string", "double", "int64", "bool"]
    assert all(field.metadata[b"description"] for field in found)


def test_run_without_comparisons_is_a_header() -> None:
    """A program that reads it finds the columns."""
    assert csv_text(run_of()).splitlines() == [",".join(TABLE)]
    assert from_parquet(parquet_bytes(run_of())) == []


def test_same_run_gives_the_same_bytes() -> None:
    """So that a file can be compared with the one before."""
    assert parquet_bytes(example()) == parquet_bytes(example())


def test_missing_pyarrow_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, since it is large."""
    monkeypatch.setattr(exports, "find_spec", lambda _: None)
    with pytest.raises(ConfigError) as found:
        parquet_bytes(example())
    assert "pip install '.[parquet]' in a clone of envcompare" in found.value.hint


def test_page_describes_every_column() -> None:
    """docs/schema holds them in their order, with their kinds and meaning."""
    described = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert described == [(name, *column) for name, column in TABLE.items()]


def test_example_keeps_its_parameters_and_times() -> None:
    """As text for people, as JSON for programs, and with the reference beside the arm."""
    one = msgspec.structs.replace(SLOWER, parameters={"hidden": 64, "batch": 16})
    run = example()
    run = msgspec.structs.replace(
        run, comparisons=(msgspec.structs.replace(one, cell=run.cells[0].id),)
    )
    row = from_csv(csv_text(run))[0]
    assert row["parameters"] == "batch=16,hidden=64"
    assert row["parameters_json"] == '{"batch": 16, "hidden": 64}'
    assert (row["median_s"], row["reference_median_s"]) == (0.0448, 0.0413)


def test_tail_has_a_row_of_its_own_and_its_shares_in_every_row() -> None:
    """The 90th percentile is a ratio with an interval, and no verdict rests on it."""
    tail = Tail(
        share=0.02,
        reference_share=0.005,
        difference_low=0.01,
        difference_high=0.02,
        p90_log_ratio=math.log(1.1),
        p90_low=math.log(1.05),
        p90_high=math.log(1.15),
    )
    mean = msgspec.structs.replace(SLOWER.primary, log_ratio=0.03)
    one = msgspec.structs.replace(SLOWER, mean=mean, tail=tail)
    rows = from_csv(csv_text(run_of(one)))
    assert [row["estimate_of"] for row in rows] == ["typical", "mean", "p90"]
    assert {row["slow_share"] for row in rows} == {0.02}
    assert {row["slow_share_difference_low"] for row in rows} == {0.01}
    last = rows[-1]
    ends = [last[name] for name in ("ratio", "ratio_low", "ratio_high")]
    assert ends == pytest.approx([1.1, 1.05, 1.15])
    assert (last["is_primary"], last["is_widened"], last["level"]) == (False, False, 0.95)


def test_usual_csv_has_eight_columns_and_a_row_for_each_comparison() -> None:
    """The rest is in the whole table."""
    run = example()
    rows = list(csv.DictReader(io.StringIO(csv_text(run, is_whole=False), newline="")))
    assert list(rows[0]) == [
        *("host", "workload", "parameters", "arm"),
        *("outcome", "ratio", "ratio_low", "ratio_high"),
    ]
    compared = [comparison for comparison in run.comparisons if not comparison.is_control]
    assert len(compared) < len(run.comparisons)
    assert [row["outcome"] for row in rows] == [one.outcome for one in compared]
    assert len({tuple(row.values())[:4] for row in rows}) == len(rows)


def test_groups_that_cannot_be_compared_are_no_verdicts() -> None:
    """They have no metric either, but no environment failed to run there."""
    run = example()
    groups = GroupEstimate(
        group="b", reference_group="a", workload="cnn", arm="docker", outcome="not-run"
    )
    of_hosts = msgspec.structs.replace(run.between_hosts, group_estimates=(groups,))
    grouped = msgspec.structs.replace(run, between_hosts=of_hosts)
    assert csv_text(grouped, is_whole=False) == csv_text(run, is_whole=False)
    assert answer(grouped).comparisons == answer(run).comparisons


@SETTINGS
@given(runs(names=HOSTILE))
def test_page_and_json_hold_the_same_answer(run: RunComparison) -> None:
    """A name in it ends no script, and every verdict of the table is there."""
    found = re.findall(r'id="answer-data">(.*?)</script>', render(run), re.DOTALL)
    assert len(found) == 1
    assert not set("<>&") & set(found[0])
    told = msgspec.json.decode(html.unescape(found[0]), type=Answer)
    assert told == answer(run)
    rows = list(csv.DictReader(io.StringIO(csv_text(run, is_whole=False), newline="")))
    outcomes = [row["outcome"] for row in rows if "outcome" in row]
    assert [comparison.outcome for comparison in told.comparisons] == outcomes


def test_codes_of_reasons_are_documented() -> None:
    """Those of a run; two runs have codes of their own."""
    codes = re.findall(r"^\| `([a-z-]+)` \| [^|]+ \|$", PAGE.read_text(), re.MULTILINE)
    of_two = {"other-metric", "only-before", "mean-open", "unknown"}
    assert set(codes) == set(get_args(ReasonKind)) - of_two
