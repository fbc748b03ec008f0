"""The tidy table of a run as a file: CSV for any program, Parquet with types."""

from __future__ import annotations

import io
from importlib.util import find_spec
from typing import Final

from envcompare.analysis.frames import TABLE, Frame, table_frame
from envcompare.analysis.model.comparison import RunComparison
from envcompare.errors import ConfigError
from envcompare.report.sections.quantitytables import why_no_ratio
from envcompare.text import visible

FORMULAS: Final = ("=", "+", "-", "@", "\t", "'")
"""What begins a formula in a spreadsheet, and the apostrophe that says there is none."""


def csv_text(run: RunComparison) -> str:
    """Return the table as CSV (RFC 4180), with a header; what is not there is an empty cell.

    Flags are true and false. A text that a spreadsheet would take for a formula, or that begins
    with an apostrophe, has an apostrophe before it.
    """
    frame = _table(run)
    for name, column in TABLE.items():
        if column.kind == "text":
            frame[name] = frame[name].map(_harmless, na_action="ignore")
        elif column.kind == "yes or no":
            frame[name] = frame[name].map({True: "true", False: "false"})
    text: str = frame.to_csv(index=False, lineterminator="\r\n")
    return text


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
            pa.field(name, kinds[column.kind], metadata={"description": column.meaning})
            for name, column in TABLE.items()
        ],
        metadata={"run_id": visible(run.run_id), "tool_version": visible(run.tool_version)},
    )
    columns = pa.Table.from_pandas(_table(run), schema=schema, preserve_index=False)
    written = io.BytesIO()
    files.write_table(columns.replace_schema_metadata(schema.metadata), written)
    return written.getvalue()


def _table(run: RunComparison) -> Frame:
    """Return the table of docs/schema/comparisons.md, why there is no ratio as a sentence."""
    frame = table_frame(run)
    reasons = zip(
        *(
            frame[name].fillna("")
            for name in ("reason", "value_unlike", "value_page", "value_rule")
        ),
        strict=True,
    )
    told = [
        "; ".join(filter(None, (reason, why_no_ratio(unlike, page=page, rule=rule)))) or None
        for reason, unlike, page, rule in reasons
    ]
    return frame.assign(reason=told).astype({"reason": "string"})


def check_parquet() -> None:
    """Raise ConfigError where no Parquet can be written, before a run is analysed for it."""
    if find_spec("pyarrow") is None:
        raise ConfigError(
            "no Parquet can be written here",
            details="pyarrow is not installed",
            hint="pip install 'envcompare-bench[parquet]', or use --format csv",
        )


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULAS) else text
