"""PyTorch's profiler over k steps: its table, its trace, and what is left out of both."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.counters import torchtrace
from hypothesis import given
from hypothesis import strategies as st

WORKLOADS = Path(__file__).resolve().parents[3] / "workloads"
PROGRAM = """
import sys, json; sys.path.insert(0, sys.argv[1])
import torch
from harness.counters import torchtrace
layer, done = torch.nn.Linear(8, 4), []
def step():
    done.append(1)
    layer(torch.randn(2, 8)).sum().backward()
found = torchtrace.profile(step, 5, sys.argv[2])
print(json.dumps([found, len(done)]))
"""


@pytest.mark.torch
def test_table_and_trace_hold_the_steps_after_the_warm_up(
    torch_interpreter: str, tmp_path: Path
) -> None:
    """What the profiler's own start costs falls into steps that it does not count."""
    out = tmp_path / "trace.json.gz"
    argv = [torch_interpreter, "-B", "-c", PROGRAM, WORKLOADS, out]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found, steps = json.loads(done.stdout)
    assert steps == 5 + found["steps_before"]
    rows = {row["name"]: row for row in found["operators"]}
    assert rows["aten::addmm"]["calls"] == 5
    assert rows["aten::linear"]["cpu_ns"] >= rows["aten::addmm"]["self_cpu_ns"] > 0
    assert rows["aten::addmm"]["self_cpu_bytes"] == 5 * 2 * 4 * 4
    assert {row["self_device_ns"] for row in found["operators"]} == {None}
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    calls = [event for event in events if event.get("name") == "aten::addmm"]
    assert len(calls) == 5
    assert sum(event["dur"] for event in calls) * 1000 == pytest.approx(
        rows["aten::addmm"]["cpu_ns"]
    )


def average(**fields: Any) -> SimpleNamespace:
    """Return a row as key_averages() gives it, with these fields beside the usual ones."""
    usual = {
        "key": "aten::mm", "count": 2, "device_type": "DeviceType.CPU", "self_cpu_time_total": 1.5,
        "cpu_time_total": 2.0, "self_cpu_memory_usage": 64,
    }  # fmt: skip
    return SimpleNamespace(**usual, **fields)


@pytest.mark.parametrize("word", ["device", "cuda"])
def test_times_of_the_gpu_are_read_by_the_name_of_either_version(word: str) -> None:
    """Attributes were called cuda_* before other devices came; µs become ns."""
    fields = {
        f"self_{word}_time_total": 10.25,
        f"{word}_time_total": 11.0,
        f"self_{word}_memory_usage": 512,
    }
    found = torchtrace.row(average(**fields), has_gpu=True)
    assert found == {
        "name": "aten::mm", "calls": 2, "self_cpu_ns": 1500.0, "cpu_ns": 2000.0,
        "self_device_ns": 10250.0, "device_ns": 11000.0, "self_cpu_bytes": 64,
        "self_device_bytes": 512,
    }  # fmt: skip


def test_time_of_a_gpu_that_is_not_there_is_not_0() -> None:
    """PyTorch says 0 then."""
    fields = {"self_device_time_total": 0, "device_time_total": 0, "self_device_memory_usage": 0}
    found = torchtrace.row(average(**fields), has_gpu=False)
    assert {found["self_device_ns"], found["device_ns"], found["self_device_bytes"]} == {None}


@given(
    times=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=450),
    has_gpu=st.booleans(),
)
def test_long_table_keeps_its_sums(times: list[tuple[int, int]], *, has_gpu: bool) -> None:
    """No more rows than the limit and one for the rest; no time is lost, and none counted twice."""
    rows = [
        {
            "name": str(number), "calls": 1, "self_cpu_ns": host, "cpu_ns": 2 * host,
            "self_device_ns": gpu if has_gpu else None, "device_ns": gpu if has_gpu else None,
            "self_cpu_bytes": 4, "self_device_bytes": None,
        }
        for number, (host, gpu) in enumerate(times)
    ]  # fmt: skip
    found = torchtrace.largest(rows)
    assert len(found) == min(len(rows), torchtrace.MOST + 1)
    for name in ("calls", "self_cpu_ns", "self_cpu_bytes"):
        assert sum(row[name] for row in found) == sum(row[name] for row in rows)
    if has_gpu:
        assert sum(row["self_device_ns"] for row in found) == sum(gpu for _, gpu in times)
    if len(rows) > torchtrace.MOST:
        rest = found[-1]
        assert (rest["name"], rest["cpu_ns"]) == (torchtrace.REST, rest["self_cpu_ns"])


def test_workload_without_torch_has_a_reason() -> None:
    """Nothing is imported for it, and no step is run."""
    assert torchtrace.profile(int, 3, "") == {"reason": "the workload does not use PyTorch"}
