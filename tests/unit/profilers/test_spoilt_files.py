"""Files with a fault that a person or a disk makes: refused, or nothing in them grows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsysexports import KERNEL, MEMCPY, MEMSET, RUNTIME
from profilefuzz import NAMES, Seed, outcome, seeds

from envcompare.run_folder.profiles import Profile

SEEDS = [pytest.param(name, seed, id=seed.name) for name in NAMES for seed in seeds(name)]
TEXTS = [one for one in SEEDS if not one.values[1].name.endswith((".sqlite", ".gz"))]
UNIT = re.compile(
    rb'(?<=")(?:ns|us|ms|nsecond|usecond|byte|Kbyte|Mbyte)(?=")|(?<=\d)(?:ns|us|ms)\b'
)

Totals = dict[tuple[object, ...], float]


def totals(profile: Profile) -> Totals:
    """Return calls, times and counters of everything in a profile, by what it is."""
    found: Totals = {}
    for one in profile.kernels:
        key = ("kernel", one.name, one.grid, one.block)
        found |= {(*key, "calls"): one.calls, (*key, "total"): one.total_ns or 0}
        found |= {(*key, name): value for name, value in one.metrics.items()}
    for other in (*profile.copies, *profile.api_calls):
        name = getattr(other, "kind", "") or getattr(other, "name", "")
        found |= {("call", name, "calls"): other.calls, ("call", name, "total"): other.total_ns}
    return found


def read_bytes(reader: str, path: Path, content: bytes) -> Totals | None:
    """Return the totals of a file with this content, or nothing where it is refused."""
    path.write_bytes(content)
    profile = outcome(reader, path)
    return None if profile is None else totals(profile)


def grown(found: Totals, truth: Totals) -> Totals:
    """Return what is more than it was, or was not there; a mean may go either way."""
    return {
        key: value
        for key, value in found.items()
        if ".avg" not in str(key[-1]) and ".pct" not in str(key[-1])
        if value > truth.get(key, -1) * (1 + 1e-9)
    }


@pytest.mark.parametrize(("reader", "seed"), SEEDS)
def test_a_cut_file_is_refused_or_tells_less(reader: str, seed: Seed, tmp_path: Path) -> None:
    """Cut at forty places, and never a wrong number."""
    path = tmp_path / seed.name
    truth = read_bytes(reader, path, seed.content)
    assert truth is not None
    for part in range(40):
        found = read_bytes(reader, path, seed.content[: len(seed.content) * part // 40])
        assert found is None or grown(found, truth) == {}


@pytest.mark.parametrize(("reader", "seed"), TEXTS)
def test_a_line_less_is_refused_or_tells_less(reader: str, seed: Seed, tmp_path: Path) -> None:
    """What other lines say does not change."""
    path, lines = tmp_path / seed.name, seed.content.splitlines(keepends=True)
    truth = read_bytes(reader, path, seed.content)
    assert truth is not None
    for place in some(len(lines)):
        found = read_bytes(reader, path, b"".join(lines[:place] + lines[place + 1 :]))
        assert found is None or grown(found, truth) == {}, lines[place]


@pytest.mark.parametrize(("reader", "seed"), TEXTS)
def test_a_line_twice_is_refused_or_counted_once(reader: str, seed: Seed, tmp_path: Path) -> None:
    """No launch counts twice because it was written twice."""
    path, lines = tmp_path / seed.name, seed.content.splitlines(keepends=True)
    truth = read_bytes(reader, path, seed.content)
    assert truth is not None
    for place in some(len(lines)):
        found = read_bytes(reader, path, b"".join((*lines[: place + 1], *lines[place:])))
        assert found is None or grown(found, truth) == {}, lines[place]


def some(count: int) -> Iterator[int]:
    """Yield places all over a file, eighty at most."""
    yield from range(0, count, max(1, count // 80))


@pytest.mark.parametrize(("reader", "seed"), TEXTS)
def test_an_unknown_unit_is_refused_or_told_without(
    reader: str, seed: Seed, tmp_path: Path
) -> None:
    """A number of nobody knows what is no number."""
    path = tmp_path / seed.name
    truth = read_bytes(reader, path, seed.content)
    assert truth is not None
    for unit in UNIT.finditer(seed.content):
        content = seed.content[: unit.start()] + b"parsec" + seed.content[unit.end() :]
        found = read_bytes(reader, path, content)
        assert found is None or grown(found, truth) == {}, content[unit.start() - 60 :][:90]


@pytest.mark.parametrize(("reader", "seed"), [one for one in TEXTS if one.values[0] != "kineto"])
def test_other_separators_are_refused_or_understood(
    reader: str, seed: Seed, tmp_path: Path
) -> None:
    """A file from a German desktop holds the same numbers, or none."""
    path = tmp_path / seed.name
    truth = read_bytes(reader, path, seed.content)
    swapped = re.sub(
        rb'(?<=")\d[\d.,]*\d(?=")', lambda one: one[0].translate(bytes.maketrans(b".,", b",.")),
        seed.content,
    )  # fmt: skip
    found = read_bytes(reader, path, swapped)
    assert found is None or found == truth


@pytest.mark.parametrize("table", [KERNEL, MEMCPY, MEMSET, RUNTIME])
def test_a_row_of_an_export_less_or_twice(table: str, tmp_path: Path) -> None:
    """A row less tells less; a row twice is refused."""
    seed = seeds("nsys")[0]
    path = tmp_path / seed.name
    truth = read_bytes("nsys", path, seed.content)
    assert truth is not None
    for sql, is_refused in (
        (f"DELETE FROM {table} WHERE rowid = 1", False),
        (f"INSERT INTO {table} SELECT * FROM {table} WHERE rowid = 1", True),
    ):
        path.write_bytes(seed.content)
        with sqlite3.connect(path) as database:
            database.execute(sql)
        database.close()
        found = read_bytes("nsys", path, path.read_bytes())
        assert (found is None) == is_refused
        assert found is None or grown(found, truth) == {}
