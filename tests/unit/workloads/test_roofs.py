"""The program that measures the bounds of a device: sizes, repetitions, and a real processor."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.counters import roofs
from hypothesis import given
from hypothesis import strategies as st

PROGRAM = Path(roofs.__file__)


@pytest.mark.torch
def test_processor_has_a_bandwidth_and_a_rate_for_each_precision(torch_interpreter: str) -> None:
    """Single precision is faster than double, and both are what a processor can do.

    Other work on the machine can hide that in one measurement, but hardly in each of several.
    """
    for _ in range(5):
        found = _measured(torch_interpreter)
        rates = found["flops_per_s"]
        assert set(rates) == {"fp64", "fp32"}
        if rates["fp64"] < rates["fp32"]:
            break
    assert 1e6 < rates["fp64"] < rates["fp32"] < 1e13
    assert 1e6 < found["bytes_per_s"] < 1e12
    assert found["spread"] >= 0
    assert found["device"]
    assert found["torch"]


def _measured(interpreter: str) -> dict[str, Any]:
    argv = [interpreter, "-B", PROGRAM, "--threads", "1", "--seconds", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@given(
    wanted=st.integers(4096, 1 << 34), free=st.integers(0, 1 << 38), least=st.integers(0, 1 << 30)
)
def test_array_fits_into_memory_and_into_no_cache(wanted: int, free: int, least: int) -> None:
    """Where both cannot be, no bandwidth is measured: that of a cache would be told."""
    size = roofs.fitting(max(wanted, least), free=free, least=least)
    if size is None:
        assert free // roofs.SHARE < max(least, roofs.PAGE) + roofs.PAGE
    else:
        assert max(least, roofs.PAGE) <= size <= free // roofs.SHARE
        assert size < max(wanted, least) + roofs.PAGE
        assert size % roofs.PAGE == 0


@given(times=st.lists(st.floats(0.01, 1), min_size=60, max_size=60), seconds=st.floats(0, 5))
def test_best_of_several_runs_counts(times: list[float], seconds: float) -> None:
    """A disturbance makes a run longer and never shorter; time and repetitions have an end."""
    seen: list[float] = []

    def timer(_run: roofs.Run) -> float:
        seen.append(times[len(seen)])
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofs, "time", SimpleNamespace(monotonic=lambda: sum(seen)))
        found = roofs.best(int, timer, seconds, 6.0)
    assert found.value == 6.0 / min(seen)
    assert 0 <= found.spread <= max(seen) / min(seen) - 1
    assert len(seen) == 1 or sum(seen[:-1]) < seconds
    assert len(seen) <= roofs.REPETITIONS + roofs.WARM_UP_S / 0.01 + 1


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((6, 1), {"fp64", "fp32", "fp16"}),
        ((7, 0), {"fp64", "fp32", "tensor_fp16"}),
        ((8, 0), {"tensor_fp64", "fp32", "tensor_fp16", "tensor_tf32", "tensor_bf16"}),
        ((8, 9), {"fp64", "fp32", "tensor_fp16", "tensor_tf32", "tensor_bf16"}),
        ((12, 0), {"fp64", "fp32", "tensor_fp16", "tensor_tf32", "tensor_bf16"}),
        ((9, 0), {"tensor_fp64", "fp32", "tensor_fp16", "tensor_tf32", "tensor_bf16"}),
    ],
)
def test_roof_is_named_after_the_units_that_a_product_runs_on(
    capability: tuple[int, int], names: set[str]
) -> None:
    """A product in half precision runs on tensor cores where there are some."""
    matmul = SimpleNamespace(allow_tf32=None)
    torch = SimpleNamespace(
        cuda=SimpleNamespace(get_device_capability=lambda: capability),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=matmul)),
        float64="d", float32="f", float16="h", bfloat16="b",
    )  # fmt: skip
    chosen = {}
    for name, _, settle in roofs.kinds(torch, "cuda"):
        settle()
        chosen[name] = matmul.allow_tf32
    assert set(chosen) == names
    assert {name for name, is_on in chosen.items() if is_on} == names & {"tensor_tf32"}


def test_spread_tells_of_what_disturbs_and_not_of_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clocks that rise make the first runs long on any machine."""
    seen: list[float] = []

    def timer(_run: roofs.Run) -> float:
        is_warm = sum(seen) >= roofs.WARM_UP_S
        disturbed = 0.015 if len(seen) % 2 else 0.01
        seen.append(disturbed if is_warm else 0.1)
        return seen[-1]

    monkeypatch.setattr(roofs, "time", SimpleNamespace(monotonic=lambda: sum(seen)))
    assert roofs.best(int, timer, 10.0, 1.0) == roofs.Rate(100.0, pytest.approx(0.25))


def test_matrices_are_drawn_in_their_own_type() -> None:
    """Doubles made of drawn singles are zeros in half their bits, which draws less power."""
    drawn: list[object] = []

    def randn(*_sizes: int, device: str, dtype: object) -> object:
        drawn.append((device, dtype))
        return SimpleNamespace()

    torch = SimpleNamespace(randn=randn, empty_like=lambda one: one, mm=lambda *_, **__: None)
    roofs.flops_per_s(torch, ("cuda", "fp64"), (8,), lambda _run: 1.0, 0.0)
    assert drawn == [("cuda", "fp64")] * 2
