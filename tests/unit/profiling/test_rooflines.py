"""The roofline: roofs of the right device, points whose FLOPs, bytes and time belong together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from traces import ADD, CONV, kernel, lacking, launched, record

from envcompare.analysis.model.profiling import Roofline, RooflinePoint
from envcompare.analysis.profiles.quantities import TOTAL, _kernel_work, roofline
from envcompare.gpu import device_of, roofs_of, table_roofs
from envcompare.run_folder.profiles import Device, Profile, ProfileRecord, Quantity, Roofs

A100 = Device(name="NVIDIA A100-SXM4-40GB", compute_capability="8.0", multiprocessors=108)
MEASURED = Roofs(
    host="local",
    device=A100.name,
    source="measured",
    is_measured=True,
    bytes_per_s=1e12,
    flops_per_s={"fp32": 1e13, "tensor_tf32": 1e14},
)


def traced(arm: str = "vm", **changes: Any) -> ProfileRecord:
    """Return a trace of two steps: a convolution of 4 µs and an addition of 1 µs."""
    step = [kernel(CONV, each_ns=4_000.0), kernel(ADD, each_ns=1_000.0)]
    return record(launched(step, devices=(A100,), **changes), arm=arm)


def counted(
    conv: dict[str, float], add: dict[str, float], *, kind: str = "ncu-flops", **changes: Any
) -> ProfileRecord:
    """Return counters of one step, with times that counting has spoilt."""
    kernels = [
        kernel(CONV, each_ns=9e9, metrics=conv, **changes),
        kernel(ADD, each_ns=9e9, metrics=add, **changes),
    ]
    profile = launched(kernels, steps=1, tool="ncu", devices=(A100,), has_time=False)
    return record(profile, kind=kind)


FLOPS = counted({"flops_fp32": 2e7}, {"flops_fp32": 1e3})
BYTES = counted({"dram_bytes": 1e6}, {"dram_bytes": 8e5}, kind="ncu-memory")


def drawn(*records: ProfileRecord, roofs: tuple[Roofs, ...] = (MEASURED,)) -> Roofline:
    """Return the roofline of one arm."""
    made = roofline({"vm": records}, roofs, host="local", steps_ns={})
    assert isinstance(made, Roofline)
    return made


def point(made: Roofline, name: str) -> RooflinePoint:
    """Return the point of a kernel, or of all."""
    return next(one for one in made.points if one.name == name)


def test_time_comes_from_the_trace_and_counts_from_the_counters() -> None:
    """The time under counters, seconds here, is used nowhere."""
    one = point(drawn(traced(), FLOPS, BYTES), CONV)
    assert (one.calls, one.time_ns) == (2, 8_000.0)
    assert (one.flops, one.bytes) == (4e7, 2e6)
    assert one.intensity == pytest.approx(20.0)
    assert one.flops_per_s == pytest.approx(5e12)
    assert one.attainable_flops_per_s == pytest.approx(1e13)
    assert (one.bound, one.floor_ns) == ("compute", pytest.approx(4_000.0))


def test_kernel_whose_tensor_cores_were_not_counted_has_no_point() -> None:
    """Its FLOPs would be those of its CUDA cores alone."""
    pipe = {"sm__inst_executed_pipe_tensor.sum": 7.0}
    made = drawn(traced(), counted({"flops_fp32": 2e7, **pipe}, {"flops_fp32": 1e3}), BYTES)
    assert {one.name for one in made.points} == {ADD, TOTAL}
    assert made.missing == ("vm: 80 % of its kernel time is in kernels without counters.",)


def test_kernel_below_the_ridge_is_bound_by_memory() -> None:
    """Its roof is the slope, intensity times bandwidth."""
    one = point(drawn(traced(), FLOPS, BYTES), ADD)
    assert one.bound == "memory"
    assert one.attainable_flops_per_s == pytest.approx((one.intensity or 0.0) * 1e12)


def test_total_is_of_sums_and_its_floor_of_all_kernels() -> None:
    """Rates of kernels are never averaged."""
    one = point(drawn(traced(), FLOPS, BYTES), TOTAL)
    assert one.is_total
    assert one.intensity == pytest.approx((2e7 + 1e3) / 1.8e6)
    assert one.floor_ns == pytest.approx(2 * (2_000.0 + 800.0))


def test_mixed_precisions_have_a_floor_of_their_sum() -> None:
    """No single roof holds for a kernel that computes in two."""
    both = counted({"flops_fp32": 1e7, "flops_tensor_tf32": 1e8}, {"flops_fp32": 1e3})
    one = point(drawn(traced(), both, BYTES), CONV)
    assert one.precision == "mixed"
    assert one.precisions == ("fp32", "tensor_tf32")
    assert one.floor_ns == pytest.approx(2 * (1_000.0 + 1_000.0))


def test_precision_without_a_roof_has_no_bound_and_it_is_said() -> None:
    """FP16 is not held against the roof of another precision."""
    made = drawn(traced(), counted({"flops_fp16": 1e7}, {"flops_fp32": 1e3}), BYTES)
    assert point(made, CONV).attainable_flops_per_s is None
    assert made.missing == ("There is no roof for fp16.",)


def test_without_bytes_only_computing_bounds() -> None:
    """The pass that counts bytes says why it is missing."""
    lost = record(None, kind="ncu-memory", state="missing", lacks=lacking("ERR_NVGPUCTRPERM"))
    made = drawn(traced(), FLOPS, lost)
    assert (point(made, CONV).intensity, point(made, CONV).bound) == (None, None)
    assert "ERR_NVGPUCTRPERM" in made.missing[0]


def test_kernels_without_counters_are_left_out_and_said() -> None:
    """Counters of the first launches cover a part of the time."""
    some = record(
        launched([kernel(CONV, metrics={"flops_fp32": 2e7})], steps=1, tool="ncu"),
        kind="ncu-flops",
    )
    made = drawn(traced(), some, BYTES)
    assert [one.name for one in made.points] == [TOTAL, CONV]
    assert made.missing == ("vm: 20 % of its kernel time is in kernels without counters.",)


def test_shape_tells_launches_of_one_kernel_apart() -> None:
    """Another grid does other work."""
    small, large = ({"grid": (size, 1, 1)} for size in (1, 64))
    trace = record(
        launched([kernel(CONV, **small), kernel(CONV, each_ns=9_000.0, **large)], devices=(A100,))
    )
    flops = record(
        launched(
            [
                kernel(CONV, metrics={"flops_fp32": 10.0}, **small),
                kernel(CONV, metrics={"flops_fp32": 1e6}, **large),
            ],
            tool="ncu",
        ),
        kind="ncu-flops",
    )
    work, _ = _kernel_work([trace, flops])
    assert [(one.time_ns, one.flops) for one in work] == [
        (18_000.0, {"fp32": 2e6}),
        (2_000.0, {"fp32": 20.0}),
    ]


def test_tool_without_shapes_is_joined_by_name() -> None:
    """Old logs tell a kernel and its mean alone."""
    flops = counted({"flops_fp32": 2e7}, {"flops_fp32": 1e3}, grid=None, block=None)
    work, _ = _kernel_work([traced(), flops])
    assert work[0].flops == {"fp32": 4e7}


def test_roofs_measured_on_the_device_come_before_the_table() -> None:
    """Another device's roofs are nobody else's."""
    other = Roofs(host="local", device="NVIDIA L4", source="measured", is_measured=True,
                  flops_per_s={"fp32": 1.0})  # fmt: skip
    own, added = roofs_of(A100, (other, MEASURED), host="local")
    assert own is not None
    assert own.is_measured
    assert own.flops_per_s["fp32"] == 1e13
    assert own.flops_per_s["fp64"] == 9.75e12
    assert "from the table of peaks, not measured: fp64" in added
    fallback, said = roofs_of(A100, (other,), host="local")
    assert fallback is not None
    assert not fallback.is_measured
    assert fallback.bytes_per_s == 1555.2e9
    assert "table" in said


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-PCIE-40GB", 1555.2e9),
        ("NVIDIA A100 80GB PCIe", 1935e9),
        ("NVIDIA A100-SXM4-80GB", 2039e9),
        ("Tesla V100-SXM2-32GB", 898e9),
        ("NVIDIA H100 80GB HBM3", 3350e9),
        ("NVIDIA H200", 4800e9),
        ("NVIDIA L4", 300e9),
        ("NVIDIA GeForce GTX 1080 Ti", 484e9),
    ],
)
def test_table_knows_the_names_drivers_give(name: str, peak: float) -> None:
    """Each variant has its own memory."""
    found = table_roofs(Device(name=name), host="local")
    assert isinstance(found, Roofs)
    assert found.bytes_per_s == peak


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(name="NVIDIA A100"), "which variant"),
        (Device(name="NVIDIA H200 NVL"), "which variant"),
        (Device(name="Tesla V100S-PCIE-32GB"), "does not have"),
        (Device(name="NVIDIA L40S"), "does not have"),
        (Device(name="NVIDIA A100-SXM4-40GB", multiprocessors=14), "14 of 108"),
        (Device(name="NVIDIA L4", compute_capability="8.6"), "compute capability"),
    ],
)
def test_table_refuses_what_it_does_not_name(device: Device, why: str) -> None:
    """A near miss is no peak: variants differ, and a slice has less."""
    found = table_roofs(device, host="local")
    assert isinstance(found, str)
    assert why in found


def test_profiles_of_two_gpus_have_no_roofline() -> None:
    """Their roofs are not the same."""
    found = device_of([A100, Device(name="NVIDIA L4")])
    assert isinstance(found, str)
    assert "different GPUs" in found


def test_cpu_is_held_against_its_measured_roof_of_computing() -> None:
    """Model FLOPs over the step on the clock; nothing is said of bytes."""
    model = Quantity(name="flops_model", value=2e9, unit="FLOP", rule="sum", source="torch")
    flops = record(Profile(tool="torch", quantities=(model,), steps=2), kind="flops")
    cpu = Roofs(
        host="local", device="EPYC", source="measured", is_measured=True, flops_per_s={"fp32": 1e11}
    )
    made = roofline({"vm": (flops,)}, (cpu,), host="local", steps_ns={"vm": 2e7})
    assert isinstance(made, Roofline)
    (one,) = made.points
    assert one.flops_per_s == pytest.approx(5e10)
    assert (one.floor_ns, one.bound, one.bytes) == (pytest.approx(1e7), None, None)


def test_roof_of_a_gpu_is_none_of_the_cpu() -> None:
    """Work on the CPU of a machine with a GPU has no roof, and the missing trace says why."""
    lost = record(None, state="missing", lacks=lacking("the workload ran on the CPU"))
    gpu = replace(MEASURED, uuid="GPU-1")
    found = roofline({"vm": (lost,)}, (gpu,), host="local", steps_ns={"vm": 1.0})
    assert found == "the workload ran on the CPU"


def test_without_counters_no_point_is_drawn_and_it_is_said() -> None:
    """A trace alone counts nothing."""
    made = drawn(traced())
    assert made.points == ()
    assert "no profile has kernel FLOPs" in made.missing[0]


@settings(deadline=None)
@given(
    flops=st.floats(1, 1e15), size=st.floats(1, 1e12), each=st.floats(1, 1e9),
)  # fmt: skip
def test_one_precision_is_bound_by_the_lower_of_roof_and_slope(
    flops: float, size: float, each: float
) -> None:
    """Attainable is min(peak, intensity × bandwidth), whatever the numbers."""
    trace = record(launched([kernel(CONV, each_ns=each)], steps=1, devices=(A100,)))
    metrics = {"flops_fp32": flops, "dram_bytes": size}
    counters = record(
        launched([kernel(CONV, metrics=metrics)], steps=1, tool="ncu"), kind="ncu-flops"
    )
    one = point(drawn(trace, counters), CONV)
    assert one.attainable_flops_per_s == pytest.approx(min(1e13, flops / size * 1e12))
    assert one.flops_per_s == pytest.approx(flops / each * 1e9)
