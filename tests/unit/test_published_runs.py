"""The run folders under results/: their table in the README follows from their samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import envcompare

RESULTS = Path(__file__).resolve().parents[2] / "results"
_ROW = re.compile(r"^\| `(\w+)` [^|]*\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def _percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    if value > 1000:
        return "over 1000"
    return f"{value:.0f}" if value > 100 else f"{value:.1f}".replace("-", "−")


def test_the_table_of_environments_has_the_numbers_of_its_run() -> None:
    """Analysed anew, from the samples."""
    found = envcompare.read(RESULTS / "environments").comparisons
    primary = found[found["is_primary"]].set_index(["arm", "workload"])
    rows = _ROW.findall((RESULTS / "README.md").read_text(encoding="utf-8"))
    assert {name for name, _, _ in rows} == set(found["arm"]) - {"vm~control"}
    for name, files, cnn in rows:
        one = primary.loc[name, "files"]
        assert files == (
            f"{'+' if one['ratio'] > 1 else ''}{_percent(one['ratio'])} % "
            f"({_percent(one['ratio_low'])} to {_percent(one['ratio_high'])} %)"
        )
        other = primary.loc[name, "cnn"]
        is_equal = other["outcome"] == "equivalent"
        assert cnn == "equivalent within ±5 %" if is_equal else cnn.startswith("+3.6 %")


@pytest.mark.parametrize(("name", "cells"), [("environments", 2), ("zoo", 18), ("example", 3)])
def test_a_published_run_is_whole_and_names_no_other_machine(name: str, cells: int) -> None:
    """Its paths are relative, and none of its comparisons has failed."""
    found = envcompare.read(RESULTS / name).comparisons
    primary = found[found["is_primary"]]
    assert len(primary["cell"].unique()) == cells
    assert "failed" not in set(primary["outcome"])
    text = (RESULTS / name / "run.json").read_text(encoding="utf-8")
    assert not re.search(r'"/(?:tmp|root|work)', text)


def test_the_zoo_decides_what_its_text_says() -> None:
    """Slower in `files` alone, and equivalent in eight comparisons."""
    found = envcompare.read(RESULTS / "zoo").comparisons
    primary = found[found["is_primary"] & (found["arm"] != "vm~control")]
    slower = primary[primary["outcome"] == "slower"]
    assert set(slower["workload"]) == {"files"}
    assert sorted(round(100 * (ratio - 1)) for ratio in slower["ratio"]) == [44, 396]
    assert sum(primary["outcome"] == "equivalent") == 8
    assert len(primary) == 36
