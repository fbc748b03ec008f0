"""Arithmetic intensity over two passes of counters."""

from __future__ import annotations

import pytest
from ncutexts import DATA

from envcompare.analysis.intensity import joined_intensity
from envcompare.analysis.quantities import quantity_rows
from envcompare.profilers.reading import read
from envcompare.profiles import Profile, ProfileRecord

PASSES = ("ncu_raw_2024.csv", "ncu_raw_2024_flops.csv")


def profile(name: str) -> Profile:
    """Return the profile of one pass."""
    return read("ncu", [DATA / name])


def test_two_passes_have_the_intensity_of_the_profile_they_are_together() -> None:
    """As if both had been imported as one."""
    together = read("ncu", [DATA / name for name in PASSES])
    expected = {one.name: one.value for one in together.quantities}["arithmetic_intensity"]
    found = joined_intensity([profile(name) for name in PASSES])
    assert found is not None
    assert found.value == pytest.approx(expected)
    assert found.scope == "device memory, two passes over 4 launches"


def test_passes_over_other_launches_have_none() -> None:
    """Bytes of one program and FLOPs of another are no intensity."""
    other = profile("ncu_details_2020.csv")
    assert joined_intensity([other, profile("ncu_raw_2024_flops.csv")]) is None
    assert joined_intensity([other]) is None


def test_row_of_the_intensity_stands_once_with_its_value() -> None:
    """Neither pass says any more that it lacks what the other has."""
    records = [
        ProfileRecord(host="h", cell="c", arm="vm", kind=kind, name=kind, profile=profile(name))
        for kind, name in zip(("ncu-memory", "ncu-flops"), PASSES, strict=True)
    ]
    rows = quantity_rows({"vm": records}, {}, reference="vm")["vm"]
    found = [row for row in rows if row.name == "arithmetic_intensity"]
    assert [row.status for row in found] == ["ok"]
    assert found[0].value == pytest.approx(1_031_580 / 2_406_400)
