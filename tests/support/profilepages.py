"""What the analysis finds in profiles, made by hand: two containers beside a plain process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from traces import lacking

from envcompare.analysis.model import ArmSummary, CellSummary, RunComparison
from envcompare.analysis.model.profiling import (
    ActivityRow,
    ActivityTable,
    ArmProfiles,
    CellProfiles,
    KernelDiff,
    KernelDiffRow,
    Ledger,
    LedgerPart,
    OperatorRow,
    OperatorTable,
    PassState,
    QuantityRow,
    Roof,
    Roofline,
    RooflinePoint,
)
from envcompare.run_folder.records import FactDifference
from tests.data.report.builders import changed

EXAMPLE = Path(__file__).resolve().parents[1] / "data" / "report" / "three-arms.json"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1"
FPROP = "sm90_xmma_fprop_implicit_gemm_bf16_128x128x64_nhwc"
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
RELU = "void at::native::vectorized_elementwise_kernel<4, at::native::threshold_kernel_impl>(int)"
PARTS = (
    ("gemm", "GEMM and convolution", 9_200_000, 9_360_000),
    ("element-wise", "element-wise", 2_830_000, 2_940_000),
    ("memcpy", "memcpy", 619_000, 736_000),
    ("memset", "memset", 88_500, 88_500),
    ("idle", "GPU idle", 2_650_000, 4_200_123),
)


def ledger(**changes: Any) -> Ledger:
    """Return a ledger whose parts add up to its whole."""
    before, after = sum(part[2] for part in PARTS), sum(part[3] for part in PARTS)
    parts = tuple(
        LedgerPart(
            part=part,  # type: ignore[arg-type]
            label=label,
            reference_ns=first,
            arm_ns=second,
            change_ns=second - first,
            share=(second - first) / (after - before),
        )
        for part, label, first, second in PARTS
    )
    fields: dict[str, Any] = {
        "arm": "docker",
        "basis": "gpu-trace",
        "whole": "GPU time from the first start to the last end",
        "source": "nsys 2024.5",
        "rule": "Time in which several kernels ran is given to the one that started first.",
        "reference_ns": before,
        "arm_ns": after,
        "change_ns": after - before,
        "parts": parts,
        "timing_change_ns": 2_040_000,
        "unseen_ns": 2_040_000 - (after - before),
    }
    return Ledger(**{**fields, **changes})


def kernel_row(**changes: Any) -> KernelDiffRow:
    """Return a kernel in both arms that takes a little longer in one."""
    fields: dict[str, Any] = {
        "kind": "both",
        "rule": "shape and launch order",
        "kernel_class": "gemm",
        "reference_name": GEMM,
        "arm_name": GEMM,
        "reference_ns": 5_420_000.0,
        "arm_ns": 5_440_000.0,
        "reference_launches": 39.0,
        "arm_launches": 39.0,
        "reference_grid": (8, 4, 1),
        "reference_block": (384, 1, 1),
        "arm_grid": (8, 4, 1),
        "arm_block": (384, 1, 1),
    }
    return KernelDiffRow(**{**fields, **changes})


def kernel_diff(**changes: Any) -> KernelDiff:
    """Return the kernels of an arm of which one was replaced and one is new."""
    fields: dict[str, Any] = {
        "arm": "docker",
        "source": "nsys, both nsys 2024.5",
        "scaling": "Both profiles cover 20 steps.",
        "is_per_step": True,
        "identical_kernel_set": False,
        "replaced": 1,
        "only_reference": 0,
        "only_arm": 1,
        "both": 2,
        "reference_ns": 12_030_000.0,
        "arm_ns": 12_300_000.0,
        "reference_launches": 208.0,
        "arm_launches": 224.0,
        "rows": (
            kernel_row(
                kind="replaced",
                reference_name=WINOGRAD,
                arm_name=FPROP,
                reference_ns=3_030_000.0,
                arm_ns=1_290_000.0,
                op="aten::cudnn_convolution",
                arm_block=(128, 1, 1),
            ),
            kernel_row(
                kind="only-arm",
                rule=None,
                reference_name="",
                arm_name="cudnn::engines_precompiled::nhwcAddPaddingKernel<__nv_bfloat16>",
                reference_ns=None,
                arm_ns=65_900.0,
                reference_launches=0.0,
                arm_launches=16.0,
                reference_grid=None,
                reference_block=None,
            ),
            kernel_row(),
            kernel_row(reference_name=RELU, arm_name=RELU, reference_ns=12_000.0, arm_ns=12_100.0),
        ),
    }
    return KernelDiff(**{**fields, **changes})


def same_kernels(arm: str) -> KernelDiff:
    """Return the diff of an arm that ran what the reference ran."""
    return kernel_diff(
        arm=arm, identical_kernel_set=True, replaced=0, only_arm=0, arm_launches=208.0,
        arm_ns=12_040_000.0, rows=(kernel_row(), kernel_row(reference_name=RELU, arm_name=RELU)),
    )  # fmt: skip


def quantity(name: str, value: float | None, **changes: Any) -> QuantityRow:
    """Return a sum of ncu over 20 steps."""
    fields: dict[str, Any] = {
        "name": name,
        "unit": "B" if name.endswith("bytes") else "ns" if name.endswith("_ns") else "FLOP",
        "rule": "sum",
        "source": "ncu 2024.1",
        "tool": "ncu",
        "scope": "all launches",
        "kind": "ncu-memory",
        "value": value,
        "per_step": None if value is None else value / 20,
    }
    return QuantityRow(**{**fields, **changes})


def quantities(*, factor: float = 1.0, is_reference: bool = False) -> tuple[QuantityRow, ...]:
    """Return FLOP, bytes, intensity, time and power of one arm; one of them is missing."""
    agreement = "reference" if is_reference else "equal" if factor == 1 else "differs"
    told: dict[str, Any] = {"agreement": agreement, "ratio": factor}
    same: dict[str, Any] = {"agreement": "reference" if is_reference else "equal", "ratio": 1.0}
    return (
        quantity("flops_fp32", 91_603_599_360.0 * factor, kind="ncu-flops", **told),
        quantity("flops_model", 91_603_599_360.0, kind="flops", source="torch 2.13",
                 tool="torch", **same),
        quantity("dram_bytes", 6_331_344_288.0 * factor, **told),
        quantity(
            "dram_read_bytes",
            None,
            per_step=None,
            status="missing",
            reason="this chip does not tell reads from writes",
        ),
        quantity("kernel_time_ns", 240_600_000.0 * factor, kind="nsys", source="nsys 2024.5",
                 tool="nsys", **told),
        quantity("arithmetic_intensity", 14.468, unit="FLOP/B", rule="ratio of sums",
                 per_step=None, **same),
        quantity("occupancy", 61.5, unit="%", rule="time-weighted", per_step=None, **same),
        quantity("launch_count", 4160.0, unit="", kind="nsys", source="nsys 2024.5",
                 tool="nsys", **same),
        quantity("power_w", 402.0 * factor, unit="W", rule="time-weighted", per_step=None,
                 kind="host", source="NVML 550.54", tool=None, **told),
        quantity("energy_per_sample_j", 0.31 * factor, unit="J", rule="ratio of sums",
                 per_step=None, kind="host", source="NVML 550.54", tool=None, **told),
    )  # fmt: skip


def activities() -> ActivityTable:
    """Return a short table as nvprof printed it."""
    rows = (
        ("GPU activities", GEMM, 5_420_000.0, 39),
        ("GPU activities", "[CUDA memcpy HtoD]", 619_000.0, 40),
        ("API calls", "cudaLaunchKernel", 2_100_000.0, 208),
    )
    return ActivityTable(
        source="nsys 2024.5",
        kind="nsys",
        steps=20,
        gpu_ns=6_039_000.0,
        api_ns=2_100_000.0,
        rows=tuple(
            ActivityRow(type=kind, name=name, percent=50.0, time_ns=time, calls=calls,
                        average_ns=time / calls, min_ns=1000.0, max_ns=None)  # type: ignore[arg-type]
            for kind, name, time, calls in rows
        ),
    )  # fmt: skip


def operators() -> OperatorTable:
    """Return a short table as torch.profiler prints it."""
    return OperatorTable(
        source="torch 2.13",
        kind="torch",
        steps=20,
        self_cpu_ns=3_000_000.0,
        self_device_ns=5_000_000.0,
        rows=(
            OperatorRow(name="aten::convolution", calls=60, self_cpu_ns=2_000_000.0,
                        self_cpu_percent=66.7, cpu_ns=2_500_000.0, self_device_ns=5_000_000.0,
                        self_device_percent=100.0, device_ns=5_000_000.0, self_cpu_bytes=0,
                        self_device_bytes=1_048_576),
            OperatorRow(name="aten::add_", calls=40, self_cpu_ns=1_000_000.0,
                        self_cpu_percent=33.3, cpu_ns=1_000_000.0),
        ),
    )  # fmt: skip


def point(arm: str, **changes: Any) -> RooflinePoint:
    """Return the total of an arm in FP32."""
    fields: dict[str, Any] = {
        "arm": arm,
        "name": "all",
        "is_total": True,
        "precision": "fp32",
        "flops": 91_603_599_360.0,
        "bytes": 6_331_344_288.0,
        "time_ns": 240_600_000.0,
        "time_share": 1.0,
        "intensity": 14.468,
        "flops_per_s": 3.807e11,
        "attainable_flops_per_s": 1.567e13,
        "bound": "memory",
        "floor_ns": 7_050_000.0,
    }
    return RooflinePoint(**{**fields, **changes})


def roofline(**changes: Any) -> Roofline:
    """Return two roofs and the points of three arms."""
    kernel = {"is_total": False, "time_share": 0.4}
    fields: dict[str, Any] = {
        "device": "NVIDIA V100-SXM2-16GB",
        "source": "measured with PyTorch 2.13",
        "is_measured": True,
        "bytes_per_s": 8.1e11,
        "roofs": (
            Roof(precision="tensor_fp16", flops_per_s=1.01e14, ridge=124.7, is_used=True),
            Roof(precision="fp32", flops_per_s=1.44e13, ridge=17.8, is_used=True),
            Roof(precision="fp64", flops_per_s=7.1e12, ridge=8.8, is_used=False),
        ),
        "points": (
            point("vm"),
            point("docker", flops_per_s=3.5e11),
            point("singularity", flops_per_s=3.79e11, intensity=14.5),
            point("vm", name=GEMM, intensity=210.0, flops_per_s=6.1e13, precision="tensor_fp16",
                  **kernel),
            point("docker", name=GEMM, intensity=215.0, flops_per_s=5.2e13,
                  precision="tensor_fp16", **kernel),
            point("vm", name=RELU, intensity=0.25, flops_per_s=1.6e11, **kernel),
            point("docker", name=RELU, intensity=0.26, flops_per_s=1.3e11, **kernel),
        ),
        "missing": ("FP16 outside the tensor cores has no point: it was not counted.",),
    }  # fmt: skip
    return Roofline(**{**fields, **changes})


def passes(*, has_counters: bool = True) -> tuple[PassState, ...]:
    """Return a trace, and counters that were taken or refused."""
    trace = PassState(kind="nsys", name="nsys", state="ok", tool="nsys 2024.5", steps=20,
                      has_gpu_work=True)  # fmt: skip
    if has_counters:
        return trace, PassState(kind="ncu-memory", name="ncu-memory", state="ok",
                                tool="ncu 2024.1", steps=20, has_time=False)  # fmt: skip
    refused = PassState(
        kind="ncu-memory",
        name="ncu-memory",
        state="missing",
        lacks=lacking(
            "ERR_NVGPUCTRPERM: no permission to read counters", "docker run --cap-add=SYS_ADMIN"
        ),
    )
    return trace, refused


def cell_profiles(cell: str, **changes: Any) -> CellProfiles:
    """Return all there is of a cell of vm, docker and singularity."""
    fields: dict[str, Any] = {
        "cell": cell,
        "host": "lab01",
        "reference": "vm",
        "devices": ("NVIDIA V100-SXM2-16GB",),
        "arms": (
            ArmProfiles(arm="vm", passes=passes(), quantities=quantities(is_reference=True),
                        activities=activities(), operators=operators()),
            ArmProfiles(arm="docker", passes=passes(), quantities=quantities(factor=1.131),
                        activities=activities()),
            ArmProfiles(arm="singularity", passes=passes(has_counters=False)),
        ),
        "kernel_diffs": (kernel_diff(), same_kernels("singularity")),
        "ledgers": (ledger(),),
        "roofline": roofline(),
        "betrayed": (
            FactDifference(
                host="lab01",
                arm="docker",
                key="kernels.cudnn",
                reference="cuDNN 7 names",
                value="cuDNN 8 names",
                fact_class="confounder",
                sentence="Kernel names carry cuDNN 7 names in the reference and cuDNN 8 names "
                "here: cuDNN is of another generation.",
                evidence=f"Kernels are named “{WINOGRAD}” and “{FPROP}”.",
                remedy="profile both arms with the software of one image",
            ),
        ),
        "cautions": ("The profiled program of docker is not known to be the timed one.",),
    }  # fmt: skip
    return CellProfiles(**{**fields, **changes})


def profiled_run(**changes: Any) -> RunComparison:
    """Return the example run with profiles of its first cell."""
    run = msgspec.json.decode(EXAMPLE.read_bytes(), type=RunComparison)
    fields: dict[str, Any] = {"profiles": (cell_profiles(run.cells[0].id),)}
    return changed(run, **{**fields, **changes})


def imported_run(*arms: str, **changes: Any) -> RunComparison:
    """Return a run of imported profiles of these arms, the first the reference."""
    cell = "imported/workload/default"
    found = cell_profiles(cell, host="imported")
    kept = tuple(arm for arm in found.arms if arm.arm in arms)
    fields: dict[str, Any] = {
        "comparisons": (),
        "cells": (
            CellSummary(id=cell, host="imported", workload="workload", state="ok"),
        ),
        "arms": tuple(
            ArmSummary(host="imported", arm=arm, environment=arm, stack="image", reference="",
                       state="ok", is_timed=False)
            for arm in arms
        ),
        "differences": tuple(one for one in found.betrayed if one.arm in arms),
        "startup": (),
        "memory": (),
        "failures": (),
        "profiles": (
            msgspec.structs.replace(
                found,
                arms=kept,
                kernel_diffs=tuple(diff for diff in found.kernel_diffs if diff.arm in arms),
                ledgers=tuple(one for one in found.ledgers if one.arm in arms),
            ),
        ),
    }  # fmt: skip
    return profiled_run(**{**fields, **changes})
