"""Arithmetic intensity over two passes of counters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from ncutexts import DATA

from envcompare.analysis.profiles.quantities import _joined_intensity, quantity_rows
from envcompare.profile_files import read
from envcompare.run_folder.profiles import Profile, ProfileRecord

PASSES = ("ncu_raw_2024.csv", "ncu_raw_2024_flops.csv")


def profile(name: str) -> Profile:
    """Return the profile of one pass."""
    return read("ncu", [DATA / name])


def on_tensor_cores(one: Profile) -> Profile:
    """Return a profile whose kernels are of tensor cores by name, and no counter tells."""
    kernels = (
        replace(kernel, name="s16816gemm", metrics=without_tensors(kernel.metrics))
        for kernel in one.kernels
    )
    quantities = tuple(two for two in one.quantities if not two.name.startswith("flops_tensor"))
    return replace(one, kernels=tuple(kernels), quantities=quantities)


def without_tensors(metrics: dict[str, float]) -> dict[str, float]:
    """Return the counters that are not of tensor cores."""
    return {name: value for name, value in metrics.items() if "tensor" not in name}


def test_two_passes_have_the_intensity_of_the_profile_they_are_together() -> None:
    """As if both had been imported as one."""
    together = read("ncu", [DATA / name for name in PASSES])
    expected = {quantity.name: quantity.value for quantity in together.quantities}[
        "arithmetic_intensity"
    ]
    found = _joined_intensity([profile(name) for name in PASSES])
    assert found is not None
    assert found.value == pytest.approx(expected)
    assert found.scope == "device memory, two passes over 4 launches"


def test_passes_over_other_launches_have_none() -> None:
    """Bytes of one program and FLOPs of another are no intensity."""
    other = profile("ncu_details_2020.csv")
    assert _joined_intensity([other, profile("ncu_raw_2024_flops.csv")]) is None
    assert _joined_intensity([other]) is None


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


def test_two_passes_have_no_intensity_where_tensor_cores_ran_uncounted() -> None:
    """The bytes are of all kernels, the FLOPs of their other part."""
    found = _joined_intensity([on_tensor_cores(profile(name)) for name in PASSES])
    assert found is not None
    assert (found.value, found.status) == (None, "missing")
    assert found.reason == "tensor cores were used, and their FLOPs are not counted"
