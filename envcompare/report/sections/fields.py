"""Tables declared field by field: a head, what the column holds, and how a record fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from envcompare.report.format.blocks import Column, Kind, Row, Table, Words

Record = TypeVar("Record")
Field = tuple[str, Kind, Callable[[Record], Words]]


def table_of(
    label: str,
    records: Iterable[Record],
    *fields: Field[Record],
    caption: str = "",
    style: str = "",
    named: int = 0,
) -> Table:
    """Return a row for each record, with a column for each field; the one `named` heads the row."""
    return Table(
        label=label,
        caption=caption,
        style=style,
        columns=tuple(
            Column(head=head, kind=kind, is_row_head=place == named)
            for place, (head, kind, _) in enumerate(fields)
        ),
        rows=tuple(Row(cells=tuple(read(one) for _, _, read in fields)) for one in records),
    )
