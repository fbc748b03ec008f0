"""Answers of the worker's own profilers, as profiles, with what a trace adds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinetotraces import event, kernel, operator, write

from envcompare.errors import ProfileError
from envcompare.profilers import Answer, Pass
from envcompare.profilers.toolbox import WORKER_PROFILERS
from envcompare.profilers.torch import has_exchanges
from envcompare.run_folder.profiles import PassName, Profile

OPERATORS = {
    "version": "2.13.0",
    "operators": [{"name": "aten::mm", "calls": 4, "self_cpu_ns": 1.0, "cpu_ns": 2.0}],
}
COUNTERS = {"counters": {"minor_faults": {"value": 7, "reason": "", "hint": "", "scope": ""}}}


def found(kind: PassName, values: dict[str, Any], *, trace: Path | None = None) -> Profile | None:
    """Return the profile of an answer of five steps."""
    name, asked = pass_of(kind)
    answer = Answer(kind=asked, values=values, steps=5, trace=trace)
    return WORKER_PROFILERS[name].read(answer)


def pass_of(kind: PassName) -> tuple[str, Pass]:
    """Return a pass with the name of its profiler."""
    passes = ((name, one) for name, made in WORKER_PROFILERS.items() for one in made.passes)
    return next((name, one) for name, one in passes if one.name == kind)


@pytest.mark.parametrize("kind", ["host", "flops", "torch"])
def test_an_answer_without_a_find_is_no_profile(kind: PassName) -> None:
    """The reason that came with it stands in the record."""
    assert found(kind, {}) is None
    assert found(kind, {"flops": None}) is None


def test_each_kind_is_read_by_its_own_rules() -> None:
    """All of them know their steps."""
    torch, flops = found("torch", OPERATORS), found("flops", {"flops": 40, "by_op": {}})
    host = found("host", COUNTERS)
    assert torch is not None
    assert flops is not None
    assert host is not None
    assert [one.name for one in torch.operators] == ["aten::mm"]
    assert [(quantity.name, quantity.value) for quantity in flops.quantities] == [
        ("flops_model", 40)
    ]
    assert ("minor_faults", 7) in [(quantity.name, quantity.value) for quantity in host.quantities]
    assert {torch.steps, flops.steps, host.steps} == {5}


def test_an_answer_of_another_form_is_refused() -> None:
    """A silent wrong number would be worse."""
    with pytest.raises(ProfileError):
        found("torch", {"operators": [{"name": "aten::mm"}]})


def test_a_damaged_trace_is_refused(tmp_path: Path) -> None:
    """It was copied whole, so the profiler wrote it so."""
    path = tmp_path / "torch.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [')
    with pytest.raises(ProfileError):
        found("torch", OPERATORS, trace=path)


def test_a_trace_tells_the_kernels_and_the_table_the_operators(tmp_path: Path) -> None:
    """The table is whole, a trace cut at its limit may not be."""
    trace = write(tmp_path / "torch.json.gz", [kernel("k", 0, 1), operator("aten::add", 0, 9)])
    both = found("torch", OPERATORS, trace=trace)
    assert both is not None
    assert (both.tool, both.version, both.steps) == ("kineto", "2.13.0", 5)
    assert both.files == ("torch.json.gz",)
    assert [(row.name, row.calls, row.total_ns) for row in both.kernels] == [("k", 1, 1000.0)]
    assert [(row.name, row.cpu_ns) for row in both.operators] == [("aten::mm", 2.0)]
    assert both.busy_ns == 1000.0


def test_a_trace_without_a_gpu_tells_how_long_ranks_exchanged_data(tmp_path: Path) -> None:
    """All else of it stands in the table of operators."""
    exchange = event("user_annotation", "gloo:all_reduce", 5, 4)
    trace = write(tmp_path / "torch.json.gz", [exchange, operator("aten::add", 0, 7)])
    row = {"name": "gloo:all_reduce", "calls": 1, "self_cpu_ns": 0.0, "cpu_ns": 4000.0}
    assert has_exchanges({"operators": [row]})
    assert not has_exchanges(OPERATORS)
    told = found("torch", OPERATORS, trace=trace)
    assert told is not None
    assert (told.tool, told.files) == ("torch", ("torch.json.gz",))
    assert [(quantity.name, quantity.value) for quantity in told.quantities] == [
        ("collective_ns", 4000.0),
        ("collective_exposed_ns", 2000.0),
    ]
