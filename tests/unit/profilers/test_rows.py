"""Rows of whole numbers: one number for several columns, rows told twice, and launch order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from envcompare.profile_files import ROW, columns, first_duplicate, in_launch_order, keys

SMALL = st.integers(-2, 2)
ANY = st.integers(-(2**63), 2**63 - 1)
CELLS = st.one_of(SMALL, ANY)
ORDER = ("process", "correlation", "start", "end", "device", "stream", "group")


def parts(rows: list[tuple[int, ...]], width: int) -> list[np.ndarray]:
    """Return the columns of rows."""
    return list(np.array(rows, dtype=np.int64).reshape(-1, width).T)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=12))
def test_keys_are_equal_and_ordered_as_the_rows_are(rows: list[tuple[int, ...]]) -> None:
    """However large the numbers of a column are, and however many columns there are."""
    found = keys(parts(rows, 3)).tolist()
    for one, own in zip(rows, found, strict=True):
        for other, its in zip(rows, found, strict=True):
            assert (one < other, one == other) == (own < its, own == its)


@given(st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=9))
def test_first_duplicate_is_the_first_row_that_was_there_before(
    rows: list[tuple[int, ...]],
) -> None:
    """Every pair of rows is compared; the start alone makes none a duplicate."""
    names = ("start", "end", "name")
    cells = dict(zip(names, parts(rows, 3), strict=True))
    table = columns({**cells, "place": np.arange(len(rows), dtype=np.int64)})
    later = next((at for at, row in enumerate(rows) if row in rows[:at]), None)
    expected = None if later is None else (rows.index(rows[later]), later)
    assert first_duplicate(table) == expected


@given(st.lists(st.tuples(*[SMALL] * 7), max_size=9, unique=True))
def test_launch_order_is_by_process_and_correlation_then_by_all_else(
    rows: list[tuple[int, ...]],
) -> None:
    """Correlation ids may be missing or repeat, and processes mix."""
    cells = dict(zip(ORDER, parts(rows, len(ORDER)), strict=True))
    filled = {name: np.zeros(len(rows), dtype=np.int64) for name in (*ROW, "place")}
    ordered = in_launch_order(columns({**filled, **cells}))
    assert [tuple(int(row[name]) for name in ORDER) for row in ordered] == sorted(rows)
