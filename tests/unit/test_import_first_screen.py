"""What an import says before anything is scrolled, on the page and in Markdown."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from htmltree import parse
from imports import answer, compared, imported, request
from kinetotraces import DEVICE, Event, event, kernel, operator, write
from ncutexts import BYTES, details, launch, raw
from pyarrow import parquet  # noqa: TID251 — it reads back what was written
from summaries import markdown, terminal_lines

from envcompare.analysis.model import RunComparison
from envcompare.report.exports import csv_text, parquet_bytes
from envcompare.report.page import render

T4 = {**DEVICE, "name": "Tesla T4", "computeMajor": 7, "computeMinor": 5}
H100 = {**DEVICE, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}
MI300X = {"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4}
SGEMM, HGEMM = "volta_sgemm_128x64_nn", "turing_fp16_s1688gemm_fp16_128x64_ldg8_f2f_tn"
TENSILE = "Cijk_Ailk_Bljk_SB_MT64x64x8_SN_K1"
CLAMP = (
    "void at::native::_GLOBAL__N__51_tmpxft_00003a2b_00000000_11_Activation_compute_{}"
    "_cpp1_ii_f2fd8e5d::clamp_kernel<float, unroll=4, lambda>(int)"
)
METRICS = """\
==77== NVPROF is profiling process 77, command: python train.py
==77== Profiling application: python train.py
==77== Profiling result:
==77== Metric result:
Invocations                  Metric Name                           Metric Description         Min         Max         Avg
Device "Tesla V100-SXM2-16GB (0)"
    Kernel: {kernel}
        200                flop_count_sp  Floating Point Operations(Single Precision)  {flops}  {flops}  {flops}
        200       dram_read_transactions              Device Memory Read Transactions     1000000     1000000     1000000
        200      dram_write_transactions             Device Memory Write Transactions      500000      500000      500000
        200         dram_read_throughput                Device Memory Read Throughput  100.00GB/s  100.00GB/s  100.00GB/s
        200        dram_write_throughput               Device Memory Write Throughput  50.000GB/s  50.000GB/s  50.000GB/s
"""  # noqa: E501 — as nvprof writes it


def traced(folder: Path, name: str, events: list[Event], device: Event | None) -> Path:
    """Write a trace of torch.profiler."""
    properties = [device] if device else []
    return write(folder / f"{name}.json", events, deviceProperties=properties)


def one_kernel_each(folder: Path, **arms: tuple[str, float, Event | None]) -> RunComparison:
    """Import a trace for each environment: the name of its kernel, how long it ran, and its GPU."""
    files = {
        arm: traced(folder, arm, [kernel(name, 0, duration_us)], gpu)
        for arm, (name, duration_us, gpu) in arms.items()
    }
    return imported(folder, "kineto", **files)


def counted(folder: Path) -> RunComparison:
    """Import metrics of nvprof for three environments, one of another build."""
    files = {}
    for arm, build, flops in (("vm", 70, 1_000_000), ("docker", 86, 1_500_000), ("sif", 86, 1)):
        files[arm] = folder / f"{arm}.log"
        text = METRICS.format(kernel=CLAMP.format(build), flops=flops)
        files[arm].write_text(text, encoding="utf-8")
    return imported(folder, "nvprof", **files)


def test_counters_of_all_environments_stand_on_the_first_screen(tmp_path: Path) -> None:
    """FLOPs, transactions and GB/s with their ratios, and the builds as the names have them."""
    run = counted(tmp_path)
    for text in (answer(run), markdown(run).replace("\\", "")):
        for value in ("200 MFLOP", "300 MFLOP", "×1.50", "200 M", "100 M", "100 GB/s", "50.0 GB/s"):
            assert value in text
        assert "compute_70" in text
        assert "compute_86" in text


def test_an_import_without_times_says_nothing_of_time(tmp_path: Path) -> None:
    """Counters of nvprof tell none that compares."""
    run = counted(tmp_path)
    assert "time" not in answer(run).replace("not timed", "").replace("Nothing was timed", "")
    assert "where the time goes" not in render(run)
    assert "spends its time" not in markdown(run)


def test_times_of_kernels_that_ran_alone_are_no_times_of_the_program(tmp_path: Path) -> None:
    """Nsight Compute runs each by itself, by default with empty caches and a locked clock."""
    data = Path(__file__).resolve().parents[1] / "data" / "profiles" / "ncu_raw_2024.csv"
    other = tmp_path / "other.csv"
    other.write_text(data.read_text().replace("gemm", "sgemm"), encoding="utf-8")
    run = imported(tmp_path, "ncu", vm=data, docker=other)
    said = answer(run).replace("not timed", "").replace("Nothing was timed", "")
    assert "time" not in said
    assert "on the GPU" not in markdown(run)
    (cell,) = run.profiles
    assert cell.ledgers == ()
    assert any("runs each kernel alone" in text for text in cell.kernel_diffs[0].cautions)


def test_one_environment_has_no_ratios_to_name(tmp_path: Path) -> None:
    """Nothing stands beside it yet."""
    run = one_kernel_each(tmp_path, vm=(SGEMM, 10, T4))
    assert "Tesla T4" in answer(run)
    assert "ratios" not in answer(run)


def test_ranges_of_the_profiler_are_imported_as_counters(tmp_path: Path) -> None:
    """One of the whole program holds something to compare, and its GPU was at work."""
    kinds = ("fadd", "fmul", "ffma")
    counters = {f"smsp__sass_thread_inst_executed_op_{one}_pred_on.sum": 100 for one in kinds}
    folder: Path | None = None
    for arm in ("vm", "docker"):
        events = [event("cuda_profiler_range", "__profile__", 0, len(arm), **counters)]
        path = traced(tmp_path, arm, events, H100)
        made = request(tmp_path, path, tool="kineto", arm=arm, into=folder).run()
        assert (
            made.lines[0] == f"{arm}: counters of 1 range of the CUPTI profiler, read from kineto"
        )
        folder = made.folder.path
    run = compared(made.folder)
    assert not made.is_alone
    assert "GPU NVIDIA H100 80GB HBM3" in answer(run)
    assert "400 FLOP" in answer(run)
    assert "GPU model" not in answer(run)


def test_another_gpu_model_stands_on_the_first_screen(tmp_path: Path) -> None:
    """With both names; that nothing else is known to differ is not said."""
    run = one_kernel_each(tmp_path, vm=(SGEMM, 10, H100), docker=(TENSILE, 12, MI300X))
    for text in (answer(run), markdown(run)):
        assert "Besides the environment, the GPU (NVIDIA H100 80GB HBM3 → AMD Instinct" in text
    assert "No confounder" not in answer(run)
    assert {difference.key for difference in run.differences} >= {"gpu.name"}


def test_a_model_that_is_not_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Nothing tells whether it is another."""
    run = one_kernel_each(tmp_path, vm=(SGEMM, 10, T4), docker=(SGEMM, 12, None))
    for text in (answer(run), markdown(run)):
        assert "The GPU model of docker is unknown" in text
    assert "No confounder" not in answer(run)
    table = parse(render(run)).find("answer").every("table")[0].text
    assert "GPU Tesla T4 not known" in table


def test_a_change_of_precision_is_named_and_no_gpu_suspected(tmp_path: Path) -> None:
    """FP32 against AMP on one GPU."""
    run = one_kernel_each(tmp_path, fp32=(SGEMM, 10, T4), amp=(HGEMM, 5, T4))
    assert "or on another GPU" not in render(run)
    for text in (answer(run), markdown(run)):
        assert "amp: Kernel names suggest FP32 in the reference and FP16 here" in text
        assert "No confounder is known" not in text


def test_traces_without_gpu_work_say_so_first(tmp_path: Path) -> None:
    """On the page, on the terminal and in Markdown; no GPU is missed in them."""
    events = [operator("aten::linear", 0, 100)]
    run = imported(
        tmp_path, "kineto", vm=traced(tmp_path, "a", events, None),
        docker=traced(tmp_path, "b", [operator("aten::linear", 0, 120)], None),
    )  # fmt: skip
    said = "The profiles of docker and vm hold no GPU data"
    terminal = " ".join(text for line in terminal_lines(run) for text in line.columns)
    for text in (answer(run), markdown(run), terminal):
        assert said in text
        assert "GPU model" not in text


def test_one_trace_without_gpu_work_is_named(tmp_path: Path) -> None:
    """Of the other there is nothing to compare with."""
    run = imported(
        tmp_path, "kineto", vm=traced(tmp_path, "a", [kernel(SGEMM, 0, 10)], T4),
        docker=traced(tmp_path, "b", [operator("aten::linear", 0, 120)], None),
    )  # fmt: skip
    for text in (answer(run), markdown(run)):
        assert "The profile of docker holds no GPU data" in text


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_quantities_of_an_import_are_rows_of_the_table(tmp_path: Path, form: str) -> None:
    """One for each environment and quantity, the reference's own as well."""
    run = counted(tmp_path)
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(csv_text(run), newline="")))
    else:
        rows = parquet.read_table(io.BytesIO(parquet_bytes(run))).to_pylist()
    found = {(row["arm"], row["metric"]): row for row in rows}
    assert float(found["vm", "flops_fp32"]["value"]) == 200_000_000
    docker = found["docker", "flops_fp32"]
    assert (float(docker["value"]), float(docker["ratio"])) == (300_000_000, 1.5)
    assert float(docker["reference_value"]) == 200_000_000
    assert (docker["value_unit"], docker["value_rule"], docker["value_pass"]) == (
        "FLOP", "sum", "imported",
    )  # fmt: skip
    assert docker["outcome"] in {"", None}
    assert found["sif", "dram_sectors"]["workload"] == "workload"


def test_logs_of_a_study_are_compared_as_they_are(tmp_path: Path) -> None:
    """Two have no last end of line, the third a rate that does not fit: all have all numbers."""
    files = {}
    for arm, build, flops in (
        ("vm", 70, 1_000_000),
        ("docker", 86, 3_000_000),
        ("sif", 86, 3_000_000),
    ):
        text = METRICS.format(kernel=CLAMP.format(build), flops=flops)
        if arm == "sif":
            text = text.replace(
                "100.00GB/s  100.00GB/s  100.00GB/s", "100.00GB/s  100.00GB/s  107.00GB/s"
            )
        files[arm] = tmp_path / f"{arm}.log"
        files[arm].write_text(text if arm == "sif" else text.rstrip("\n"), encoding="utf-8")
    run = imported(tmp_path, "nvprof", **files)
    rows = [line.split(" | ") for line in markdown(run).splitlines() if line.startswith("| ")]
    table = {row[0].removeprefix("| "): [cell.rstrip(" |") for cell in row[1:]] for row in rows}
    assert table["builds in kernel names"] == ["compute\\_70", "compute\\_86", "compute\\_86"]
    flops = table["FLOP, FP32, CUDA cores, whole profile"]
    assert flops == ["200 MFLOP", "600 MFLOP ×3.00", "600 MFLOP ×3.00"]
    sectors = table["device memory, 32 B transactions, whole profile"]
    assert sectors == ["300 M", "300 M ×1.0000", "300 M ×1.0000"]
    throughput = table["device memory throughput, both ways"]
    assert throughput == ["150 GB/s", "150 GB/s ×1.0000", "150 GB/s ×1.0000"]
    page = answer(run)
    assert all(text in page for text in ("×3.00", "150 GB/s", "300 M", "compute_86"))


def test_numbers_of_two_pages_stand_side_by_side_without_a_ratio(tmp_path: Path) -> None:
    """The reason stands where the ratio would."""
    files = {"vm": tmp_path / "raw.csv", "docker": tmp_path / "details.csv"}
    files["vm"].write_text(raw({BYTES: "byte"}, launch(0, "64")), encoding="utf-8")
    files["docker"].write_text(details((0, BYTES, "byte", "96")), encoding="utf-8")
    run = imported(tmp_path, "ncu", **files)
    assert "64 B | 96 B (no ratio: from the details page)" in markdown(run)
    assert "no ratio: from the details page" in answer(run)
    rows = list(csv.DictReader(io.StringIO(csv_text(run))))
    (told,) = (row for row in rows if (row["arm"], row["metric"]) == ("docker", "dram_bytes"))
    assert (told["ratio"], told["reason"]) == ("", "no ratio: from the details page")
