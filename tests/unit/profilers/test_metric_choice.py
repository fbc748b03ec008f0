"""Which metrics Nsight Compute is asked for."""

from __future__ import annotations

import pytest
from ncutexts import DATA

from envcompare.gpu import chip_of, ncu_name, tensor_totals
from envcompare.profilers.ncu import choose, offered_metrics

OFFERED = offered_metrics((DATA / "ncu_query_ga100.txt").read_text(encoding="utf-8"))


def test_offered_metrics_are_the_names_and_not_their_descriptions() -> None:
    """A description goes over several lines, and a name may be as long as its column."""
    assert {"dram__bytes_read", "gpu__time_duration", "sm__inst_executed_pipe_tensor"} <= OFFERED
    assert all("__" in name and " " not in name for name in OFFERED)


def test_only_what_is_offered_is_asked_for() -> None:
    """A metric that a version does not know makes ncu fail."""
    passes = choose("8.0", ncu_version="2022.3.0.0", offered=OFFERED)
    asked = {name.split(".")[0] for name in passes.memory + passes.flops}
    assert asked <= OFFERED
    assert "does not count tensor-core operations" in passes.reason


def test_counters_that_change_time_are_in_the_pass_of_their_own() -> None:
    """Time and memory come from kernels that run as they are."""
    passes = choose("8.0", ncu_version="2024.1", offered=frozenset())
    assert "gpu__time_duration.sum" in passes.memory
    assert not any("sass" in name for name in passes.memory)
    assert "gpu__time_duration.sum" not in passes.flops
    assert sum("sass" in name for name in passes.flops) == 9


@pytest.mark.parametrize("capability", ["3.5", "5.2", "6.0", "6.1"])
def test_pascal_and_older_get_no_pass_and_a_sentence(capability: str) -> None:
    """Nsight Compute dropped them in 2020.1."""
    passes = choose(capability, ncu_version="2024.1")
    assert (passes.memory, passes.flops) == ((), ())
    assert "Pascal and older" in passes.reason


def test_volta_needs_a_version_that_still_profiles_it() -> None:
    """2025.2 does, 2026.1 does not."""
    assert choose("7.0", ncu_version="2025.2.1").memory
    refused = choose("7.0", ncu_version="2026.1.0")
    assert (refused.memory, refused.flops) == ((), ())
    assert "use 2025.2 or older" in refused.reason


def test_unknown_capability_gets_no_pass() -> None:
    """What is not known is not tried."""
    assert choose("", ncu_version="2024.1").reason.startswith("the compute capability")


def test_reads_and_writes_are_not_asked_of_a_chip_that_counts_them_together() -> None:
    """Consumer Blackwell has the bytes in all alone."""
    passes = choose("12.0", ncu_version="2026.1")
    assert "dram__bytes.sum" in passes.memory
    assert "dram__bytes_read.sum" not in passes.memory
    assert "does not count reads and writes of device memory separately" in passes.reason


def test_packed_instructions_are_asked_where_they_exist() -> None:
    """Data-centre Blackwell executes two FP32 operations with one instruction."""
    packed = "smsp__sass_thread_inst_executed_op_ffma2_pred_on.sum"
    assert packed in choose("10.0", ncu_version="2026.1").flops
    assert packed not in choose("9.0", ncu_version="2026.1").flops
    assert packed not in choose("12.1", ncu_version="2026.1").flops


def test_chip_without_a_table_counts_no_operation_twice() -> None:
    """A counter by result is a part of the one without."""
    paths = ("fp16", "fp16_dst_fp32", "tf32_dst_fp32", "fp16_dst_fp32_sparsity_on")
    offered = frozenset(f"sm__ops_path_tensor_src_{path}" for path in paths)
    passes = choose("11.0", ncu_version="2026.1", offered=offered)
    assert passes.flops == (
        "sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
    )  # fmt: skip


def test_tables_travel_with_the_package() -> None:
    """Each capability has its chip, each chip its counters of tensor operations."""
    assert chip_of("8.6") == "ga102"
    assert chip_of("6.1") == ""
    assert "sm__ops_path_tensor_src_fp16.sum" in tensor_totals("gh100")
    assert ncu_name("dram_read_transactions") == "dram__sectors_read.sum"
