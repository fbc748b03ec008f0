"""Spoiled files of every profiler: refused with a reason, or read without anything impossible."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsysexports import change
from profilefuzz import CORPUS, NAMES, Seed, changes, outcome, seeds, spoiled


@pytest.mark.parametrize("reader", NAMES)
def test_every_seed_is_read_whole(reader: str, tmp_path: Path) -> None:
    """Spoiling what is refused anyway would prove nothing."""
    for seed in seeds(reader):
        path = tmp_path / seed.name
        path.write_bytes(seed.content)
        assert outcome(reader, path) is not None, seed.name


def test_a_database_spoiled_before_is_spoiled_further(tmp_path: Path) -> None:
    """A change may have made bytes of the name of a table, in which the next picks a row."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(seeds("nsys")[0].content)
    script = "UPDATE sqlite_master SET name = CAST(name AS BLOB) WHERE rowid = 5"
    change(path, f"PRAGMA writable_schema = ON; {script}")
    seed = Seed("a.sqlite", path.read_bytes())
    for number in range(10):
        assert spoiled("nsys", seed, [("row", number), ("cell", number)])


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: path.name)
def test_what_once_broke_a_reader_is_refused_or_read(path: Path) -> None:
    """The corpus keeps what a long run of `script/fuzz` found."""
    outcome(path.parent.name, path)


@pytest.mark.parametrize("reader", NAMES)
@settings(
    max_examples=500, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=st.data())
def test_spoiled_files_are_refused_or_possible(
    reader: str, tmp_path: Path, data: st.DataObject
) -> None:
    """No other error, no hang, and no number that cannot be."""
    seed = data.draw(st.sampled_from(seeds(reader)))
    steps = st.tuples(st.sampled_from(sorted(changes(reader))), st.integers(0, 2**32))
    path = tmp_path / seed.name
    path.write_bytes(spoiled(reader, seed, data.draw(st.lists(steps, min_size=1, max_size=3))))
    outcome(reader, path)
