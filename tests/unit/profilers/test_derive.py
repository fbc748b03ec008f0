"""Quantities of a profile: sums over launches, ratios of sums, rates weighted by time."""

from __future__ import annotations

from pathlib import Path

import pytest
from ncutexts import DATA

from envcompare.profile_files import read
from envcompare.profile_files.derive import with_quantities
from envcompare.run_folder.profiles import Copy, Device, Kernel, Profile, Quantity

TENSOR = "sm__inst_executed_pipe_tensor.sum"
PATH = "sm__ops_path_tensor_src_"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


def sass(**counts: float) -> dict[str, float]:
    """Return the counters of instructions of one precision, such as `fadd=1`."""
    stem = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    return {stem.format(kind): count for kind, count in counts.items()}


def profile(*metrics: dict[str, float], capability: str = "8.0", chip: str = "ga100") -> Profile:
    """Return a profile of Nsight Compute with a kernel of 100 ns for each set of metrics."""
    kernels = tuple(
        Kernel(name=f"k{place}", calls=1, total_ns=100.0, metrics=one)
        for place, one in enumerate(metrics)
    )
    device = Device(name="GPU", chip=chip, compute_capability=capability)
    return Profile(tool="ncu", version="2024.1", devices=(device,), kernels=kernels)


def quantities(source: Profile) -> dict[str, Quantity]:
    """Return the quantities of a profile by their names."""
    return {quantity.name: quantity for quantity in with_quantities(source).quantities}


def test_flops_of_cuda_cores_count_a_fused_operation_twice() -> None:
    """1 for an addition or multiplication, 2 for both at once, over all kernels."""
    found = quantities(profile(sass(fadd=1, fmul=10, ffma=100), sass(fadd=2, fmul=0, ffma=0)))
    assert found["flops_fp32"].value == 1 + 10 + 200 + 2
    assert (found["flops_fp32"].unit, found["flops_fp32"].rule) == ("FLOP", "sum")
    assert found["flops_fp32"].source == "ncu 2024.1"
    assert found["flops_fp32"].scope == "2 launches of 2 kernels"


def test_flops_are_missing_where_one_kind_was_not_counted() -> None:
    """A sum without the fused operations would look whole."""
    found = quantities(profile(sass(dadd=1, dmul=1)))["flops_fp64"]
    assert (found.value, found.status) == (None, "missing")
    assert "op_dfma_pred_on.sum was not collected" in found.reason


def test_flops_are_missing_where_one_kernel_was_not_counted() -> None:
    """The other kernels' sum is not the profile's."""
    counts = sass(fadd=1, fmul=1, ffma=1)
    found = quantities(profile(counts, {**counts, **sass(ffma=1)}, sass(fadd=1, fmul=1)))
    assert found["flops_fp32"].reason.endswith("is missing for 1 of 3 kernels")


def test_half_precision_has_a_flag_on_its_value() -> None:
    """How packed half instructions count is not settled."""
    counted = quantities(profile(sass(hadd=0, hmul=0, hfma=7)))["flops_fp16"]
    assert counted.value == 14
    assert "packed half" in counted.reason
    assert quantities(profile(sass(hadd=0, hmul=0, hfma=0)))["flops_fp16"].reason == ""


def test_packed_instructions_count_twice_on_data_centre_blackwell() -> None:
    """One instruction executes two operations of FP32."""
    plain = sass(fadd=1, fmul=1, ffma=1)
    packed = sass(fadd2=10, fmul2=100, ffma2=1000)
    found = quantities(profile({**plain, **packed}, capability="10.0", chip="gb100"))
    assert found["flops_fp32"].value == 4 + 20 + 200 + 4000
    without = quantities(profile(plain, capability="10.0", chip="gb100"))["flops_fp32"]
    assert (without.value, without.status) == (None, "missing")
    assert "packed FP32" in without.reason


def test_tensor_instruction_of_volta_is_512_operations() -> None:
    """8 · 8 · 4 multiply-adds."""
    found = quantities(profile({TENSOR: 3.0}, capability="7.0", chip="gv100"))
    assert found["flops_tensor"].value == 3 * 512
    assert found["flops_tensor_fp16"].value == 3 * 512


def test_tensor_instruction_of_ampere_is_not_512_operations() -> None:
    """An instruction there does up to eight times as much: the counters of operations tell."""
    found = quantities(profile({TENSOR: 3.0}))
    assert found["flops_tensor"].value is None
    assert "only on Volta" in found["flops_tensor"].reason
    assert "flops_tensor_fp16" not in found


def test_tensor_operations_are_summed_by_type_and_parts_are_not_added() -> None:
    """What is a part of another counter is in it already; integers are no FLOPs."""
    names = ("bf16_dst_fp32", "fp64", "int1", "int4", "int8", "tf32_dst_fp32")
    metrics = {f"{PATH}{name}.sum": 0.0 for name in names}
    metrics |= {f"{PATH}fp16_dst_fp16.sum": 10.0, f"{PATH}fp16_dst_fp32.sum": 20.0}
    metrics |= {f"{PATH}fp16_dst_fp32_sparsity_on.sum": 5.0, f"{PATH}int8.sum": 99.0}
    found = quantities(profile(metrics))
    assert found["flops_tensor_fp16"].value == 30
    assert found["flops_tensor"].value == 30
    assert (found["flops_tensor_int8"].value, found["flops_tensor_int8"].unit) == (99, "OP")


def test_tensor_operations_are_missing_where_a_type_was_not_counted() -> None:
    """One type alone is told as that type, not as all."""
    found = quantities(profile({f"{PATH}tf32_dst_fp32.sum": 8.0}))
    assert found["flops_tensor_tf32"].value == 8
    assert found["flops_tensor"].value is None


def test_hopper_has_one_counter_for_half_precision() -> None:
    """Its names differ from those of Ampere."""
    names = ("bf16_dst_fp32", "fp64", "fp8", "int1", "int8", "tf32_dst_fp32")
    metrics = {f"{PATH}{name}.sum": 0.0 for name in names} | {f"{PATH}fp16.sum": 64.0}
    found = quantities(profile(metrics, capability="9.0", chip="gh100"))
    assert (found["flops_tensor_fp16"].value, found["flops_tensor"].value) == (64, 64)


def test_bytes_and_sectors_follow_from_each_other() -> None:
    """A sector is 32 bytes, whichever of the two was collected."""
    found = quantities(profile({"dram__sectors_read.sum": 5.0, "dram__bytes_write.sum": 64.0}))
    names = [one for one in found if one.startswith("dram_") and not one.endswith("_per_s")]
    assert {name: found[name].value for name in names} == {
        "dram_read_bytes": 160, "dram_read_sectors": 5, "dram_write_bytes": 64,
        "dram_write_sectors": 2, "dram_bytes": 224, "dram_sectors": 7,
    }  # fmt: skip


def test_bytes_that_contradict_their_sectors_are_refused() -> None:
    """Neither number is shown then."""
    found = quantities(profile({"dram__bytes.sum": 3200.0, "dram__sectors.sum": 99.0}))
    for name in ("dram_bytes", "dram_sectors"):
        assert (found[name].value, found[name].status) == (None, "refused")
        assert found[name].reason == "3,200 bytes contradict 99 sectors of 32 bytes"


def test_consumer_blackwell_does_not_tell_reads_from_writes() -> None:
    """The reason is the chip, not the file."""
    found = quantities(profile({"dram__bytes.sum": 64.0}, capability="12.0", chip="gb202"))
    assert found["dram_bytes"].value == 64
    assert found["dram_read_bytes"].reason.startswith("this GPU counts reads and writes")


def test_hit_rate_is_a_ratio_of_sums_where_both_were_counted() -> None:
    """Else the rates of the kernels weigh by their time."""
    rate, sectors, hits = (
        "lts__t_sector_hit_rate.pct", "lts__t_sectors.sum", "lts__t_sectors_lookup_hit.sum",
    )  # fmt: skip
    counted = quantities(profile({sectors: 100.0, hits: 90.0}, {sectors: 900.0, hits: 10.0}))
    assert (counted["l2_hit_rate"].value, counted["l2_hit_rate"].rule) == (10, "ratio of sums")
    weighted = quantities(profile({rate: 90.0}, {rate: 10.0}))["l2_hit_rate"]
    assert (weighted.value, weighted.rule) == (50, "time-weighted")


def test_rates_are_missing_where_no_time_can_weigh_them() -> None:
    """A plain mean over kernels is no rate of the program."""
    kernels = tuple(
        Kernel(name=name, calls=1, total_ns=None, metrics={OCCUPANCY: 50.0}) for name in "ab"
    )
    found = quantities(Profile(tool="ncu", kernels=kernels, has_time=False))
    assert found["occupancy"].value is None
    assert found["kernel_time_ns"].reason == "the collected counters change kernel times"


def test_warp_efficiency_is_the_share_of_active_lanes() -> None:
    """From counts, from per cent, or from the mean number of active threads."""
    ratio = "smsp__thread_inst_executed_per_inst_executed"
    counts = {"smsp__thread_inst_executed.sum": 1600.0, "smsp__inst_executed.sum": 100.0}
    for metrics in (counts, {f"{ratio}.pct": 50.0}, {f"{ratio}.ratio": 16.0}):
        assert quantities(profile(metrics))["warp_efficiency"].value == 50


def test_tensor_share_is_the_time_of_kernels_that_used_the_pipe() -> None:
    """By the counter, not by names."""
    found = quantities(profile({TENSOR: 1.0}, {TENSOR: 0.0}, {TENSOR: 0.0}, {TENSOR: 9.0}))
    assert found["tensor_core_share"].value == 50


def test_tensor_share_of_a_trace_is_a_guess_by_names() -> None:
    """It is said to be one; a kernel that names the CUDA cores is none."""
    kernels = tuple(
        Kernel(name=name, calls=1, total_ns=time)
        for name, time in (
            ("ampere_fp16_s16816gemm_fp16_128x64", 30.0),
            ("ampere_sgemm_128x64_nn", 60.0),
            ("relu(float *)", 10.0),
        )
    )
    found = quantities(Profile(tool="nsys", kernels=kernels))["tensor_core_share"]
    assert found.value == 30
    assert "a guess from the names" in found.reason


def test_intensity_says_what_is_not_counted_in_it() -> None:
    """CUDA cores alone are not all that computes on this GPU."""
    metrics = {**sass(fadd=64, fmul=0, ffma=0), "dram__bytes.sum": 32.0}
    found = quantities(profile(metrics))["arithmetic_intensity"]
    assert (found.value, found.unit, found.rule) == (2, "FLOP/B", "ratio of sums")
    assert found.reason == "without flops_fp64, flops_fp16, flops_tensor, which are not counted"


def test_family_that_was_not_collected_gives_no_quantities() -> None:
    """A pass over memory does not lack FLOPs; the intensity says that there are none."""
    found = quantities(profile({"dram__bytes.sum": 32.0}))
    assert not any(name.startswith("flops_") for name in found)
    assert found["arithmetic_intensity"].reason == "no FLOPs are counted in this profile"


def test_trace_has_times_and_copies_and_no_counters() -> None:
    """What a tracer cannot count is not listed as missing."""
    copies = (
        Copy(kind="HtoD", calls=2, total_ns=5.0, total_bytes=64),
        Copy(kind="memset", calls=1, total_ns=1.0),
    )
    kernels = (Kernel(name="k", calls=3, total_ns=30.0),)
    source = Profile(tool="nsys", kernels=kernels, copies=copies, busy_ns=36.0, launch_gap_ns=4.0)
    found = quantities(source)
    assert {name: one.value for name, one in found.items()} == {
        "launch_count": 3, "kernel_time_ns": 30, "busy_ns": 36, "launch_gap_ns": 4,
        "memcpy_htod_ns": 5, "memcpy_htod_bytes": 64, "memset_ns": 1, "memset_bytes": None,
        "tensor_core_share": 0,
    }  # fmt: skip
    assert (found["busy_ns"].rule, found["launch_gap_ns"].rule) == ("union", "difference")


def test_quantity_of_the_reader_stays_and_none_is_there_twice() -> None:
    """Deriving a second time changes nothing."""
    said = Quantity(name="launch_count", value=7, unit="", rule="sum", source="nsys 2024.5")
    source = Profile(
        tool="nsys", kernels=(Kernel(name="k", calls=3, total_ns=1.0),), quantities=(said,)
    )
    once = with_quantities(source)
    assert once.quantities[0] == said
    assert with_quantities(once) == once
    assert [quantity.name for quantity in once.quantities] == [
        "launch_count",
        "kernel_time_ns",
        "tensor_core_share",
    ]


def test_metrics_of_nvprof_give_the_same_quantities() -> None:
    """Sectors, FLOPs, occupancy as a fraction, efficiency in per cent; time from the summary."""
    logs = [DATA / "nvprof_summary.log", DATA / "nvprof_metrics.log"]
    found = {quantity.name: quantity for quantity in read("nvprof", logs).quantities}
    assert found["dram_read_sectors"].value == 200 * 1_100_000 + 100 * 2000
    assert found["dram_read_bytes"].value == 32 * (200 * 1_100_000 + 100 * 2000)
    assert found["flops_fp32"].value == pytest.approx(200 * 2.1092e10 + 100 * 1024)
    assert found["occupancy"].value == pytest.approx((1.0 * 50 + 0.5 * 80) / 1.5)
    assert found["warp_efficiency"].value == pytest.approx((1.0 * 86.99 + 0.5 * 100) / 1.5)


def test_scope_of_one_launch_or_copy_is_in_the_singular() -> None:
    """1 launches and 1 copies read like a fault."""
    copies = (Copy(kind="HtoD", calls=1, total_ns=10.0), Copy(kind="memset", calls=1, total_ns=1.0))
    found = quantities(Profile(tool="nsys", kernels=(Kernel(name="a", calls=1, total_ns=5.0),),
                               copies=copies))  # fmt: skip
    assert found["launch_count"].scope == "1 launch of 1 kernel"
    assert (found["memcpy_htod_ns"].scope, found["memset_ns"].scope) == ("1 copy", "1 memset")


@pytest.mark.parametrize(
    ("name", "counts", "value"),
    [
        ("gemm", {TENSOR: 5.0}, None),
        (
            "gemm",
            {"sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active": 4},
            None,
        ),
        ("volta_h884gemm_128x64", {}, None),
        ("volta_h884gemm_128x64", {TENSOR: 0.0}, 400 / 64),
        ("gemm", {"sm__inst_executed_pipe_tensor_op_imma.sum": 7.0}, 400 / 64),
        ("ampere_sgemm_128x64", {}, 400 / 64),
    ],
)
def test_intensity_needs_the_flops_of_tensor_cores_where_those_ran(
    name: str, counts: dict[str, float], value: float | None
) -> None:
    """What the CUDA cores did is a part of the FLOPs then, and all of the bytes."""
    metrics = {"dram__bytes.sum": 64.0, **sass(fadd=0, fmul=0, ffma=200), **counts}
    kernel = Kernel(name=name, calls=1, total_ns=5.0, metrics=metrics)
    found = quantities(Profile(tool="ncu", kernels=(kernel,)))["arithmetic_intensity"]
    assert found.value == value
    assert (found.reason == "tensor cores were used, and their FLOPs are not counted") == (
        not value
    )


def test_kernels_are_counted_by_name_and_by_shape() -> None:
    """One kernel in two shapes is one kernel."""
    shapes = [("a", (1, 1, 1)), ("a", (2, 1, 1)), ("b", (1, 1, 1))]
    kernels = tuple(Kernel(name=name, grid=grid, calls=2, total_ns=1.0) for name, grid in shapes)
    found = quantities(Profile(tool="nsys", kernels=kernels))["launch_count"]
    assert found.scope == "6 launches of 2 kernels in 3 shapes"


def test_log_of_nvprof_gives_flops_transactions_and_throughput(tmp_path: Path) -> None:
    """Rates are weighted by time, Σ bytes ÷ Σ (bytes ÷ rate); GB/s and MB/s stay apart."""
    found = {
        quantity.name: quantity
        for quantity in read("nvprof", [DATA / "nvprof_unended.log"]).quantities
    }
    assert found["flops_fp32"].value == 10 * 150_994_944
    assert found["dram_read_sectors"].value == 40 * 8 + 10 * 200_000
    seconds = 40 * 8e-6 + 10 * 100e-6
    assert found["dram_read_bytes_per_s"].value == pytest.approx(32 * 2_000_320 / seconds)
    assert found["dram_write_bytes_per_s"].value == pytest.approx(32 * 1_080_000 / seconds)
    assert found["dram_bytes_per_s"].value == pytest.approx(32 * 3_080_320 / seconds)
    assert found["dram_bytes_per_s"].rule == "time-weighted"


def throughput(folder: Path, **left_out: str) -> Quantity:
    """Return what is read from device memory by time, of a log with rows that do not fit."""
    text = (DATA / "nvprof_unended.log").read_text(encoding="utf-8")
    for row in left_out.values():
        text = text.replace(row, f"999.00{row[-4:]}")
    (folder / "a.log").write_text(text, encoding="utf-8")
    found = {quantity.name: quantity for quantity in read("nvprof", [folder / "a.log"]).quantities}
    assert found["dram_read_bytes"].value == 32 * 2_000_320
    return found["dram_read_bytes_per_s"]


def test_time_of_a_kernel_without_a_read_rate_comes_from_what_it_wrote(tmp_path: Path) -> None:
    """A row that was left out changes nothing where another tells the same time."""
    expected = throughput(tmp_path).value
    assert throughput(tmp_path, small="32.000MB/s").value == pytest.approx(expected)
    assert throughput(tmp_path, large="64.000GB/s").value == pytest.approx(expected)


def test_throughput_says_what_has_no_rate(tmp_path: Path) -> None:
    """Where more than 1 % of the bytes have none, there is no value."""
    small = throughput(tmp_path, read="32.000MB/s", written="8.0000GB/s")
    assert small.value == pytest.approx(64e9)
    assert "1 of 2 kernels has no rate; it moved 0.016 % of the bytes" in small.reason
    large = throughput(tmp_path, read="64.000GB/s", written="32.000GB/s")
    assert (large.value, large.status) == (None, "missing")
    assert "1 of 2 kernels has no rate; it moved 100 % of the bytes" in large.reason


def test_throughput_of_ncu_is_bytes_over_kernel_time() -> None:
    """Each launch has its own time there."""
    rows = [{"dram__bytes.sum": 300.0}, {"dram__bytes.sum": 100.0}]
    found = quantities(profile(*rows))["dram_bytes_per_s"]
    assert (found.value, found.unit, found.rule) == (400 / 200e-9, "B/s", "ratio of sums")
