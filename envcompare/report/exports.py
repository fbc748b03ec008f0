"""Export of a run: its table as CSV and Parquet, and charts as SVG, PNG and PDF."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from envcompare.analysis.model import Outcome, ReasonKind, RunComparison
from envcompare.analysis.tables import TABLE, Row, whole_table
from envcompare.errors import ConfigError
from envcompare.report.charts import Chart, paper_files
from envcompare.report.charts.roofline import roofline_chart
from envcompare.report.charts.sweeps import forest_chart, ladder_charts, sweep_charts
from envcompare.report.charts.times import startup_charts, step_chart, time_chart
from envcompare.report.sections.profiletables import why_no_ratio
from envcompare.report.wording import arms_in, cell_labels
from envcompare.report.wording.methodwords import (
    device_sentences,
    level_sentence,
    method_rules,
    replication_sentence,
)
from envcompare.report.wording.profilewords import is_timed
from envcompare.report.wording.verdicts import reasons_text
from envcompare.run_folder import replace_file, write_error
from envcompare.run_folder.records import SCHEMA, Proof
from envcompare.text import counted, visible

FORMULAS: Final = ("=", "+", "-", "@", "\t", "'")
"""Characters that start a formula in a spreadsheet, and the apostrophe that prevents it."""
_PLACE: Final = ("host", "workload", "parameters", "arm")
_ANSWER: Final = (*_PLACE, "outcome", "ratio", "ratio_low", "ratio_high")
_QUANTITY: Final = (*_PLACE, "metric", "value", "value_unit", "ratio")


def csv_text(run: RunComparison, *, is_whole: bool = True) -> str:
    """Return the table as CSV (RFC 4180), with a header and empty cells for missing values.

    If it is not whole, it has eight columns and a row for each comparison, or for each quantity if
    nothing was timed.

    Flags are true and false. Texts that a spreadsheet would read as a formula, or that begin with
    an apostrophe, get an apostrophe before them.
    """
    rows = _table(run)
    if not is_whole and is_timed(run):
        rows = list(filter(_is_answer, rows))
    columns = tuple(TABLE) if is_whole else _ANSWER if is_timed(run) else _QUANTITY
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    is_formula = isinstance(value, str) and value.startswith(FORMULAS)
    return f"'{value}" if is_formula else value


def _is_answer(row: Row) -> bool:
    """Return whether a verdict rests on a row of the table.

    Those of the control are none, nor are statements on groups of hosts, which have no cell.
    """
    decides = row["cell"] is not None and (row["is_primary"] or row["metric"] is None)
    return bool(decides and row["outcome"] is not None and not row["is_control"])


class AnsweredComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict as in the table of comparisons, which describes the values."""

    host: str | None = None
    workload: str | None = None
    parameters: str | None = None
    arm: str | None = None
    reference_arm: str | None = None
    outcome: Outcome
    ratio: Annotated[float | None, Meta(description="time in the arm ÷ in the reference")] = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    level: Annotated[float | None, Meta(description="of the interval")] = None
    margin: Annotated[float | None, Meta(description="a ratio of 1 ± it is equivalent")] = None
    why: ReasonKind | None = None
    reason: Annotated[str | None, Meta(description="the same as a sentence")] = None
    candidates: Annotated[
        str | None, Meta(description="keys of what differs besides the environment")
    ] = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a program needs of a run."""

    run_id: str
    created: str
    tool_version: str
    command: Annotated[str, Meta(description="that measures it again")]
    comparisons: tuple[AnsweredComparison, ...]
    proof: Proof | None = None
    schema: Literal[2] = SCHEMA


def answer(run: RunComparison) -> Answer:
    """Return verdicts, reasons, candidates, proof and command; a page holds them, too."""
    names = AnsweredComparison.__struct_fields__
    rows = [
        {name: _rounded(row[name]) for name in names} for row in filter(_is_answer, _table(run))
    ]
    return Answer(
        run_id=visible(run.run_id),
        created=visible(run.created),
        tool_version=visible(run.tool_version),
        command=visible(shlex.join(run.settings.command_line)),
        comparisons=msgspec.convert(rows, tuple[AnsweredComparison, ...]),
        proof=run.proof,
    )


def _rounded(value: object) -> object:
    return round(value, 9) if isinstance(value, float) else value


def parquet_bytes(run: RunComparison) -> bytes:
    """Return the table as a Parquet file, with null for missing values.

    The metadata contain the run, and the meaning of each column. Raises ConfigError if pyarrow is
    not installed.
    """
    check_parquet()
    import pyarrow as pa  # noqa: PLC0415, TID251 — its home, and an extra
    import pyarrow.parquet as files  # noqa: PLC0415, TID251 — likewise

    kinds = {
        "text": pa.string(),
        "whole number": pa.int64(),
        "number": pa.float64(),
        "yes or no": pa.bool_(),
    }
    schema = pa.schema(
        [
            pa.field(name, kinds[column.kind], metadata={"description": column.meaning})
            for name, column in TABLE.items()
        ],
        metadata={"run_id": visible(run.run_id), "tool_version": visible(run.tool_version)},
    )
    columns = pa.Table.from_pylist(_table(run), schema=schema)
    written = io.BytesIO()
    files.write_table(columns.replace_schema_metadata(schema.metadata), written)
    return written.getvalue()


def _table(run: RunComparison) -> list[Row]:
    """Return the table of docs/schema/comparisons.md, with reasons as sentences."""
    reason_texts = {
        (visible(comparison.cell), visible(comparison.arm)): reasons_text((comparison.reason,))
        for comparison in run.comparisons
        if comparison.reason is not None
    }
    rows = whole_table(run)
    for row in rows:
        unlike, page, rule = (
            str(row[name] or "") for name in ("value_unlike", "value_page", "value_rule")
        )
        place = (str(row["cell"]), str(row["arm"]))
        parts = (
            row["reason"],
            None if row["rung"] else reason_texts.get(place),
            why_no_ratio(unlike, page=page, rule=rule),
        )
        row["reason"] = visible("; ".join(str(part) for part in parts if part)) or None
    return rows


def check_parquet() -> None:
    """Raise ConfigError if Parquet files cannot be written, before a long analysis."""
    if find_spec("pyarrow") is None:
        raise ConfigError(
            "no Parquet can be written here",
            details="pyarrow is not installed",
            hint="pip install '.[parquet]' in a clone of envcompare, or use --format csv",
        )


MOST_FIGURES: Final = 200
_OPTION: Final = "--figures"


CAPTIONS: Final = "captions.md"


def captions_of(run: RunComparison, charts: Sequence[Chart]) -> str:
    """Return a caption for each figure, and how the run was measured, for a paper."""
    rules = [
        f"{name}: {text.rstrip('.')}."
        for name, text in method_rules(run)
        if not text.endswith(".md")
    ]
    parts = [
        "# Captions",
        *(f"`{chart.name}`: {chart.title}. {chart.description}" for chart in charts[:MOST_FIGURES]),
        "# Methods",
        " ".join((
            f"Measured with envcompare {run.tool_version}.",
            *(f"Hardware: {sentence}." for sentence in device_sentences(run)),
            replication_sentence(run),
            level_sentence(run),
            f"The margin of equivalence is ±{100 * run.settings.margin:g} %.",
            *rules,
        )),
        f"`{shlex.join(run.settings.command_line)}`",
    ]  # fmt: skip
    return "\n\n".join(visible(part) for part in parts if part) + "\n"


def write_figures(
    charts: Sequence[Chart], folder: Path, *, captions: str = "", width_mm: float | None = None
) -> tuple[Path, ...]:
    """Write the first charts, each as NAME.svg, NAME.png and NAME.pdf, and their captions.

    Returns the paths. A width in millimetres holds for all charts.

    Creates the folder if missing, and replaces existing files atomically. Raises ConfigError if a
    file is in the way, RunFolderError if writing fails.
    """
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error, what="made", option=_OPTION) from error
    written = []
    contents = (
        (f"{chart.name}.{ending}", content)
        for chart in charts[:MOST_FIGURES]
        for ending, content in paper_files(chart, width_mm=width_mm).items()
    )
    for name, content in chain(contents, [(CAPTIONS, captions.encode())] * bool(captions)):
        path = folder / name
        try:
            replace_file(path, content)
        except OSError as error:
            raise write_error(path, error, option=_OPTION) from error
        written.append(path)
    return tuple(written)


def left_out_sentence(charts: Sequence[Chart]) -> str:
    """State how many charts `write_figures` leaves out; empty if it draws all."""
    count = len(charts) - MOST_FIGURES
    if count <= 0:
        return ""
    return f"{counted(count, 'chart')} beyond the first {MOST_FIGURES} not drawn"


def charts_of(run: RunComparison) -> tuple[Chart, ...]:
    """Return every chart of a run, those of the whole run first."""
    labels = cell_labels(run)
    charts = [
        forest_chart(run),
        *ladder_charts(run),
        *sweep_charts(run),
        *(
            roofline_chart(profile, where=labels.get(profile.cell, profile.cell))
            for profile in run.profiles
        ),
        *startup_charts(run),
        *(step_chart(run, cell, arms_in(run, cell)) for cell in run.cells),
        *(
            time_chart(run, profile, ledger)
            for profile in run.profiles
            for ledger in profile.ledgers
        ),
    ]
    return tuple(chart for chart in charts if chart is not None)


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a file is in the place of the folder for figures."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(
            f"{_OPTION} {str(folder)!r} is not a folder",
            details="a file of this name is there",
            hint="name a folder, or one that does not exist yet",
        )
