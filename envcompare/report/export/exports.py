"""The tidy table of a run as a file: CSV for any program, Parquet with types."""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from typing import Final

from envcompare.analysis.model.comparison import RunComparison
from envcompare.errors import ConfigError
from envcompare.report.export.comparisonrows import COLUMNS, Value, rows
from envcompare.text import visible

_PAGE: Final = """# The table of comparisons

`envcompare report RUN --format csv` and `--format parquet` write the same table: a row for each
comparison and metric, in the order of `comparison.json`. What is not known is an empty cell in CSV
and null in Parquet, never 0. A comparison that failed or was not run has one row, with its outcome
and reason and without times and ratios. The reference has no row: its times stand in the columns
`reference_…`, and its control is an arm of its own.

An environment of which there are imported profiles alone has no comparison. It has a row for each
quantity its profiles tell, the reference as well: `metric` names the quantity, `ratio` compares it
with the reference, and the columns from `value` on hold what was counted; `outcome` is empty.

CSV is UTF-8 after RFC 4180, with a header; flags are `true` and `false`. A text that begins with
`=`, `+`, `-`, `@` or a tab, which a spreadsheet would take for a formula, has an apostrophe before
it, and so has one that begins with an apostrophe: take one away and the text is what it was.
Numbers have none. Parquet holds the texts as they are, and in its metadata the run and what each
column means. In both, control characters and those that are not seen are written as `⟨U+202E⟩`.

Columns may be added at the end; those that are there keep their names and meaning.

| column | values | meaning |
|---|---|---|
{columns}
"""
FORMULAS: Final = ("=", "+", "-", "@", "\t", "'")
"""What begins a formula in a spreadsheet, and the apostrophe that says there is none."""


def csv_text(run: RunComparison) -> str:
    """Return the table as CSV (RFC 4180), with a header; what is not there is an empty cell.

    Flags are true and false. A text that a spreadsheet would take for a formula, or that begins
    with an apostrophe, has an apostrophe before it.
    """
    written = io.StringIO(newline="")
    table = csv.writer(written)
    table.writerow(column.name for column in COLUMNS)
    table.writerows([_cell(value) for value in row] for row in rows(run))
    return written.getvalue()


def parquet_bytes(run: RunComparison) -> bytes:
    """Return the table as a Parquet file; what is not there is null.

    The metadata hold the run, and those of each column what it means. Raises ConfigError where
    pyarrow is not installed.
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
            pa.field(one.name, kinds[one.kind], metadata={"description": one.meaning})
            for one in COLUMNS
        ],
        metadata={"run_id": visible(run.run_id), "tool_version": visible(run.tool_version)},
    )
    records = [dict(zip(schema.names, row, strict=True)) for row in rows(run)]
    written = io.BytesIO()
    files.write_table(pa.Table.from_pylist(records, schema=schema), written)
    return written.getvalue()


def check_parquet() -> None:
    """Raise ConfigError where no Parquet can be written, before a run is analysed for it."""
    if find_spec("pyarrow") is None:
        raise ConfigError(
            "no Parquet can be written here",
            details="pyarrow is not installed",
            hint="pip install 'envcompare-bench[parquet]', or use --format csv",
        )


def columns_page() -> str:
    """Return the description of all columns as Markdown."""
    lines = (f"| `{one.name}` | {one.kind} | {one.meaning} |" for one in COLUMNS)
    return _PAGE.format(columns="\n".join(lines))


def _cell(value: Value) -> str | int | float:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULAS) else value
    return "" if value is None else value
