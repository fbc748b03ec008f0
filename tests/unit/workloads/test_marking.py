"""Marked steps: how their time is divided among phases and operators."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from harness.counters.marking import REST, Event, divided, largest, mark
from lab import need, torch_python

WORKLOADS = Path(__file__).parents[3] / "workloads"
STEP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from harness.counters.marking import mark
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(8, 64)
before = torch.autograd.backward

def step():
    inputs = data.flip(0)
    optimizer.zero_grad()
    loss = model(inputs).sum()
    loss.backward()
    optimizer.step()
    return loss

found = mark(step, 3)
found["is_undone"] = torch.autograd.backward is before
found["hooks"] = len(torch.nn.modules.module._global_forward_pre_hooks)
print(json.dumps(found))
"""


def event(name: str, start_ns: int, end_ns: int, *, is_stretch: bool = False) -> Event:
    """Return what the profiler saw of one operator or named stretch."""
    return Event(start_ns, end_ns, name, is_stretch)


def marked(name: str, at_ns: int) -> Event:
    """Return a mark."""
    return event(f"envcompare::{name}", at_ns, at_ns + 1, is_stretch=True)


def test_time_of_a_step_is_divided_without_rest() -> None:
    """Each phase has its operators by their own time, and what is outside of them."""
    found = divided(
        [
            event("aten::before", 0, 90),
            marked("step", 100),
            event("aten::index", 110, 130),
            event("Optimizer.zero_grad#SGD.zero_grad", 130, 140, is_stretch=True),
            marked("forward", 150),
            event("aten::linear", 160, 260),
            event("aten::addmm", 170, 250),
            marked("backward", 300),
            event("autograd::engine::evaluate_function: AddmmBackward0", 310, 400),
            event("aten::mm", 320, 390),
            marked("end", 410),
            event("Optimizer.step#SGD.step", 420, 520, is_stretch=True),
            event("aten::add_", 430, 500),
            event("my stretch", 530, 600, is_stretch=True),
            marked("end", 600),
        ]
    )
    assert found == {
        "data": {"": 20, "aten::index": 20},
        "optimizer": {"": 40, "aten::add_": 70},
        "forward": {"": 50, "aten::linear": 20, "aten::addmm": 80},
        "backward": {"": 20, "AddmmBackward0": 20, "aten::mm": 70},
        "other": {"": 90},
    }
    assert sum(sum(times.values()) for times in found.values()) == 600 - 100


def test_what_comes_before_backward_is_other_where_no_module_was_called() -> None:
    """Data and forward pass cannot be told apart then."""
    found = divided([marked("step", 0), event("aten::mul", 2, 8), marked("end", 10)])
    assert found == {"other": {"": 4, "aten::mul": 6}}


def test_closure_of_an_optimizer_keeps_its_own_phases() -> None:
    """A backward pass within a step of the optimizer is a backward pass."""
    found = divided(
        [
            marked("step", 0),
            event("Optimizer.step#LBFGS.step", 10, 100, is_stretch=True),
            marked("forward", 20),
            marked("backward", 50),
            marked("end", 80),
            marked("end", 110),
        ]
    )
    assert {phase: sum(times.values()) for phase, times in found.items()} == {
        "data": 10,
        "optimizer": 10,
        "forward": 30,
        "backward": 30,
        "other": 30,
    }


def test_small_operators_are_added_up() -> None:
    """Below a thousandth of all steps an operator has no row, and its time is kept."""
    parts = {"forward": {"": 1, "aten::mm": 9998, "aten::a": 1, "aten::b": 2}}
    assert largest(parts["forward"], parts) == {"": 1, "aten::mm": 9998, REST: 3}


def test_steps_of_pytorch_are_marked_and_nothing_is_left_behind() -> None:
    """All phases of a training step are found; hooks and patches are gone afterwards."""
    need("torch")
    done = subprocess.run(
        [torch_python(), "-c", STEP, str(WORKLOADS)], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["is_undone"]
    assert found["hooks"] == 0
    assert set(found["parts"]) == {"data", "forward", "backward", "optimizer", "other"}
    assert "aten::addmm" in found["parts"]["forward"]
    assert "aten::mm" in found["parts"]["backward"]
    assert found["parts"]["optimizer"][""] > 0


def test_work_without_pytorch_is_not_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is given, and no step is run for it."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    steps: list[int] = []
    assert mark(lambda: steps.append(1), 2) == {"reason": "the workload does not use PyTorch"}
    assert steps == []
