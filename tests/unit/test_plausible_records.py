"""Records that somebody edited by hand: an impossible number is refused when they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from builders import CELL, run_record

from envcompare.errors import RunFolderError
from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    Kernel,
    Operator,
    Profile,
    ProfileRecord,
    Quantity,
)
from envcompare.run_folder.results import RunFolder

PROFILE = Profile(
    tool="nsys",
    span_ns=900.0,
    busy_ns=800.0,
    kernel_busy_ns=500.0,
    kernels=(Kernel(name="k", calls=2, total_ns=500.0, metrics={"dram__bytes.sum": 5.0}),),
    sequence=(0, 0),
    copies=(Copy(kind="HtoD", calls=1, total_ns=300.0, total_bytes=64),),
    api_calls=(ApiCall(name="cudaLaunchKernel", calls=2, total_ns=40.0),),
    operators=(Operator(name="aten::add", calls=1, self_cpu_ns=1.0, cpu_ns=2.0),),
    quantities=(Quantity(name="busy_ns", value=800.0, unit="ns", rule="union", source="nsys"),),
    steps=2,
)
RECORD = ProfileRecord(
    host="local",
    cell=CELL,
    arm="vm",
    kind="imported",
    name="imported-nsys",
    steps=2,
    profile=PROFILE,
)


def edited(tmp_path: Path, path: str, value: object) -> RunFolder:
    """Write a record, then set the number at a path such as `profile.kernels.0.calls`."""
    folder = RunFolder.create(tmp_path, run_record())
    folder.write_profile(RECORD)
    assert folder.read_profiles() == (RECORD,)
    file = folder.profile_path(RECORD)
    content: Any = json.loads(file.read_text())
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    inner = content
    for part in way:
        inner = inner[part]
    inner[last] = value
    file.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps", 0),
        ("batch", -1),
        ("profile.steps", -3),
        ("profile.span_ns", -5),
        ("profile.busy_ns", 1e30),
        ("profile.launch_gap_ns", -1),
        ("profile.sequence", [99]),
        ("profile.sequence", [-1]),
        ("profile.kernels.0.calls", 0),
        ("profile.kernels.0.calls", 10**31),
        ("profile.kernels.0.total_ns", -500),
        ("profile.kernels.0.total_ns", 1e308),
        ("profile.kernels.0.first", -1),
        ("profile.kernels.0.metrics", {"dram__bytes.sum": -1}),
        ("profile.copies.0.calls", 0),
        ("profile.copies.0.total_bytes", -1),
        ("profile.api_calls.0.total_ns", 1e308),
        ("profile.operators.0.calls", -1),
        ("profile.operators.0.self_cpu_ns", 30.0),
        ("profile.operators.0.device_ns", 1e308),
        ("profile.quantities.0.value", -800),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_its_file(
    tmp_path: Path, path: str, value: object
) -> None:
    """Nothing is computed from it."""
    folder = edited(tmp_path, path, value)
    with pytest.raises(RunFolderError, match="cannot be trusted") as caught:
        folder.read_profiles()
    assert "imported-nsys.json" in caught.value.brief
    assert caught.value.details
    assert caught.value.hint


def test_sums_of_pytorch_may_go_below_zero(tmp_path: Path) -> None:
    """Where operators overlap it subtracts more from the outer one than it took."""
    folder = RunFolder.create(tmp_path, run_record())
    overlapping = Operator(name="aten::add", calls=1, self_cpu_ns=-1.0, cpu_ns=2.0)
    profile = Profile(tool="torch", operators=(overlapping,))
    record = ProfileRecord(
        host="local", cell=CELL, arm="vm", kind="torch", name="torch", profile=profile
    )
    folder.write_profile(record)
    assert folder.read_profiles() == (record,)


def test_a_roof_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """A device has no negative bandwidth."""
    folder = RunFolder.create(tmp_path, run_record())
    folder.write_json(
        "profiles/roofs/local.json",
        {"host": "local", "device": "V100", "source": "x", "is_measured": True, "bytes_per_s": -1},
    )
    with pytest.raises(RunFolderError, match="cannot be trusted"):
        folder.read_roofs()
