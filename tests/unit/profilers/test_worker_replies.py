"""What a worker says of its steps becomes quantities that carry unit, scope, status and reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.errors import ProfileError
from envcompare.profilers import Answer, Pass
from envcompare.profilers.host import HostCounters
from envcompare.profilers.torch import FLOPS, OPERATORS, Torch
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Profile, Quantity

ROW = {
    "name": "aten::mm", "calls": 3, "self_cpu_ns": 10.5, "cpu_ns": 12.0, "self_device_ns": None,
    "device_ns": None, "self_cpu_bytes": 64, "self_device_bytes": None,
}  # fmt: skip

(HOST,) = HostCounters().passes


def replied(kind: Pass, values: dict[str, Any], *, steps: int, reason: str = "") -> Profile:
    """Return the profile in a worker's answer."""
    reader = Torch() if kind in Torch().passes else HostCounters()
    profile = reader.read(Answer(kind=kind, values=values, steps=steps, reason=reason))
    assert profile is not None
    return profile


def test_operators_are_taken_as_they_were_given() -> None:
    """Times and sizes that were not measured stay unmeasured."""
    values = {"version": "2.13.0", "steps_before": 3, "operators": [ROW]}
    found = replied(OPERATORS, values, steps=7)
    assert (found.tool, found.version, found.steps) == ("torch", "2.13.0", 7)
    assert found.files == ()
    (operator,) = found.operators
    assert (operator.name, operator.calls, operator.cpu_ns) == ("aten::mm", 3, 12.0)
    assert (operator.device_ns, operator.self_device_bytes) == (None, None)


def test_model_flops_are_of_all_steps() -> None:
    """The sum is a quantity, its parts stand beside it."""
    values = {"flops": 300, "by_op": {"aten.mm": 200, "aten.addmm": 100}}
    found = replied(FLOPS, values, steps=4)
    (quantity,) = found.quantities
    assert (quantity.name, quantity.value, quantity.unit) == ("flops_model", 300, "FLOP")
    assert (quantity.rule, quantity.scope, quantity.status) == ("sum", "4 steps", "ok")
    assert note_sentences(found.notes) == ("aten.addmm: 100 FLOP", "aten.mm: 200 FLOP")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"flops": 0, "by_op": {}}, "not counted: quantized_lstm"),
        ({"flops": 300, "by_op": {"aten.mm": 300}}, "not counted: quantized_lstm"),
    ],
)
def test_count_that_lacks_something_is_no_count(values: dict[str, Any], reason: str) -> None:
    """A sum that is too small would be believed; the reason is not."""
    (quantity,) = replied(FLOPS, values, steps=4, reason=reason).quantities
    assert (quantity.value, quantity.status, quantity.reason) == (None, "missing", reason)


@pytest.mark.parametrize(
    ("name", "unit", "rule"),
    [
        ("minor_faults", "faults", "sum"),
        ("instructions", "instructions", "sum"),
        ("cgroup_peak_bytes", "B", "maximum"),
        ("branch_misses", "events", "sum"),
    ],
)
def test_counter_of_the_host_has_its_unit_and_rule(name: str, unit: str, rule: str) -> None:
    """What adds up over steps is a sum, a peak is a maximum."""
    values = {"counters": {name: {"value": 12, "scope": "", "reason": "", "hint": ""}}}
    (quantity,) = replied(HOST, values, steps=5).quantities
    assert (quantity.value, quantity.unit, quantity.rule) == (12, unit, rule)
    assert ("5 steps" in quantity.scope) == (rule == "sum")


@given(value=st.none() | st.floats(0, 1e18), reason=st.text(max_size=9), hint=st.text(max_size=9))
def test_counter_without_a_value_is_missing_with_a_reason(
    value: float | None, reason: str, hint: str
) -> None:
    """Status, value and reason agree whatever a worker sends."""
    sent = {"counters": {"cycles": {"value": value, "reason": reason, "hint": hint}}}
    (quantity,) = replied(HOST, sent, steps=1).quantities
    assert isinstance(quantity, Quantity)
    assert (quantity.value is None) == (quantity.status == "missing") == bool(quantity.reason)
    assert quantity.value == value
    if value is None:
        assert hint in quantity.reason


@pytest.mark.parametrize(
    "broken",
    [{"operators": [{"name": "aten::mm"}]}, {"operators": 3}, {"operators": [], "version": 5}],
)
def test_answer_that_is_not_understood_is_refused(broken: dict[str, Any]) -> None:
    """Nothing is guessed from half an answer."""
    with pytest.raises(ProfileError) as caught:
        replied(OPERATORS, broken, steps=1)
    assert caught.value.details
    with pytest.raises(ProfileError):
        replied(HOST, {"counters": [1]}, steps=1)
