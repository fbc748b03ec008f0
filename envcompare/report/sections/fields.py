"""Tables declared by their heads, what each column holds, and how a record fills it."""

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
    columns = (
        Column(head=head, kind=kind, is_row_head=place == named)
        for place, (head, kind, _) in enumerate(fields)
    )
    rows = (tuple(read(one) for _, _, read in fields) for one in records)
    return grid_of(label, columns, rows, caption=caption, style=style)


def grid_of(
    label: str,
    heads: Iterable[Column | tuple[str, Kind]],
    rows: Iterable[tuple[Words, ...]],
    *,
    caption: str = "",
    style: str = "",
) -> Table:
    """Return a table of these heads and cells; of bare heads the first heads the row."""
    return Table(
        label=label,
        caption=caption,
        style=style,
        columns=tuple(
            head
            if isinstance(head, Column)
            else Column(head=head[0], kind=head[1], is_row_head=not place)
            for place, head in enumerate(heads)
        ),
        rows=tuple(Row(cells=cells) for cells in rows),
    )
