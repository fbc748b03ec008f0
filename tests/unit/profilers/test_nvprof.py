"""Logs of nvprof, text and CSV: what they add up to."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from ncutexts import DATA

from envcompare.profile_files import nvprof
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Profile

GEMM = "void gemm<float, int=128>(float const *, float*, int)"
RELU = "relu_kernel(float*, int)"
SUMMARY = (DATA / "nvprof_summary.log").read_text(encoding="utf-8")
LOGS = sorted(path.name for path in DATA.glob("nvprof_*"))
METRICS = (DATA / "nvprof_metrics.log").read_text(encoding="utf-8")


def profile_of(folder: Path, text: str) -> Profile:
    """Return the profile of a log with this text."""
    path = folder / "a.log"
    path.write_text(text, encoding="utf-8")
    return nvprof.read(path)


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends."""
    return text.splitlines(keepends=True)


def test_summary_is_read_with_a_unit_in_each_cell() -> None:
    """Kernels, copies and API calls each go where they belong, all in ns."""
    profile = nvprof.read(DATA / "nvprof_summary.log")
    assert [(kernel.name, kernel.calls, kernel.total_ns) for kernel in profile.kernels] == [
        (GEMM, 200, 1e9),
        (RELU, 100, 5e8),
    ]
    assert [(one.kind, one.calls, one.total_ns) for one in profile.copies] == [
        ("HtoD", 10, 8e7),
        ("DtoH", 5, 1.5e7),
        ("memset", 4, 5e6),
    ]
    assert [(call.name, call.min_ns) for call in profile.api_calls] == [
        ("cudaMalloc", 1000),
        ("cudaLaunchKernel", 300_000),
    ]


def test_summary_before_cuda_9_has_sections_in_the_place_of_a_column() -> None:
    """The API calls follow in a table of their own."""
    profile = nvprof.read(DATA / "nvprof_summary_old.log")
    assert [(kernel.calls, kernel.total_ns) for kernel in profile.kernels] == [(300, 3e9)]
    assert [(call.name, call.calls) for call in profile.api_calls] == [("cudaLaunch", 400)]


def test_summary_in_csv_takes_its_units_from_the_second_row() -> None:
    """The columns of one row have units of their own."""
    profile = nvprof.read(DATA / "nvprof_summary.csv")
    assert (profile.kernels[0].total_ns, profile.kernels[0].min_ns) == (1e9, 4.1e6)
    assert profile.format == "csv summary"


def test_counts_are_the_average_times_the_invocations() -> None:
    """Never the maximum, never a sum over names."""
    kernel = nvprof.read(DATA / "nvprof_metrics.log").kernels[0]
    assert kernel.calls == 200
    assert kernel.metrics["dram_read_transactions"] == 200 * 1_100_000
    assert kernel.metrics["flop_count_sp"] == pytest.approx(200 * 2.1092e10)


def test_units_and_levels_of_metrics_are_read() -> None:
    """GB/s and MB/s are no longer told apart by the reader's luck."""
    gemm, relu = nvprof.read(DATA / "nvprof_metrics.log").kernels
    assert gemm.metrics["dram_read_throughput"] == pytest.approx(114.22e9)
    assert relu.metrics["dram_read_throughput"] == pytest.approx(222.94e6)
    assert (gemm.metrics["dram_utilization"], relu.metrics["dram_utilization"]) == (5, 8)
    assert gemm.metrics["warp_execution_efficiency"] == pytest.approx(86.99)


def test_time_is_not_taken_from_a_run_that_counts() -> None:
    """The kernels of a metrics log have no time."""
    profile = nvprof.read(DATA / "nvprof_metrics.log")
    assert not profile.has_time
    assert [kernel.total_ns for kernel in profile.kernels] == [None, None]


def test_rounding_of_large_counts_is_told_for_text_and_not_for_csv() -> None:
    """Text prints 2.1092e+10 where CSV prints every digit."""
    assert any(
        "rounded" in note for note in note_sentences(nvprof.read(DATA / "nvprof_metrics.log").notes)
    )
    exact = nvprof.read(DATA / "nvprof_metrics.csv")
    assert note_sentences(exact.notes) == ()
    assert exact.kernels[0].metrics["flop_count_sp"] == 200 * 21_092_123_456


def test_several_processes_are_added_up(tmp_path: Path) -> None:
    """Each process has its own tables."""
    profile = profile_of(tmp_path, SUMMARY + SUMMARY.replace("4711", "4712"))
    assert [(kernel.calls, kernel.total_ns) for kernel in profile.kernels] == [
        (400, 2e9),
        (200, 1e9),
    ]
    assert "2 processes are added up" in note_sentences(profile.notes)


def test_metric_that_one_process_alone_counted_is_left_out(tmp_path: Path) -> None:
    """Its sum would be too low for the launches of both."""
    other = METRICS.replace("77==", "78==")
    rows = [line for line in lines_of(other) if "dram_read_transactions" not in line]
    profile = profile_of(tmp_path, METRICS + "".join(rows))
    kernel = profile.kernels[0]
    assert (kernel.calls, kernel.metrics["dram_write_transactions"]) == (400, 400 * 500_000)
    assert "dram_read_transactions" not in kernel.metrics
    assert any(
        "dram_read_transactions is left out" in note for note in note_sentences(profile.notes)
    )


@pytest.mark.parametrize(("name", "kind"), [("HtoA", "HtoD"), ("AtoH", "DtoH"), ("AtoA", "DtoD")])
def test_copy_of_an_array_is_one_of_device_memory(tmp_path: Path, name: str, kind: str) -> None:
    """As the other readers take it; a texture lies there too."""
    profile = profile_of(tmp_path, SUMMARY.replace("memcpy HtoD", f"memcpy {name}"))
    assert profile.copies[0].kind == kind


def test_averages_cut_to_whole_nanoseconds_are_no_contradiction(tmp_path: Path) -> None:
    """5 calls in 46.237us average 9.2470us, as nvprof prints it."""
    text = (
        "==1== Profiling result:\n"
        "Time(%)      Time     Calls       Avg       Min       Max  Name\n"
        "100.00%  46.237us         5  9.2470us     704ns  42.174us  k(int)\n"
        "\n==1== API calls:\nNo API activities were profiled.\n"
    )
    assert profile_of(tmp_path, text).kernels[0].total_ns == 46_237


def test_unified_memory_is_named_and_not_compared(tmp_path: Path) -> None:
    """Its table has columns of its own; the API calls behind it are read."""
    lines = lines_of((DATA / "nvprof_summary_old.log").read_text(encoding="utf-8"))
    managed = (
        "==31== Unified Memory profiling result:\n"
        'Device "Tesla P40 (0)"\n'
        "   Count  Avg Size  Min Size  Max Size  Total Size  Total Time  Name\n"
        "       4  32.000KB  4.0000KB  60.000KB  128.0000KB  12.34567us  Host To Device\n"
        "      12         -         -         -           -  4.243755ms  Gpu page fault groups\n\n"
    )
    place = next(n for n, line in enumerate(lines) if "API calls" in line)
    profile = profile_of(tmp_path, "".join([*lines[:place], managed, *lines[place:]]))
    note = "not compared: unified memory (4 × Host To Device, 12 × Gpu page fault groups)"
    assert note_sentences(profile.notes) == (note,)
    assert profile == msgspec.structs.replace(
        nvprof.read(DATA / "nvprof_summary_old.log"), files=("a.log",), notes=profile.notes
    )


def test_unified_memory_at_the_end_may_lack_its_last_end_of_line(tmp_path: Path) -> None:
    """What is not compared cannot be cut."""
    managed = (
        "==4711== Unified Memory profiling result:\n"
        '"Device","Count","Avg Size","Min Size","Max Size","Total Size","Total Time","Name"\n'
        ",,KB,KB,KB,MB,us,\n"
        '"Tesla P40 (0)",48,170.666667,4.000000,1020.000000,8.000000,843.866000,"Host To Device"'
    )
    profile = profile_of(tmp_path, (DATA / "nvprof_summary.csv").read_text("utf-8") + managed)
    assert note_sentences(profile.notes)[0] == "not compared: unified memory (48 × Host To Device)"
    assert len(profile.kernels) == 2


@pytest.mark.parametrize("name", LOGS)
def test_log_without_its_last_end_of_line_is_read(tmp_path: Path, name: str) -> None:
    """Editors and uploads drop it; the rows are whole by their own form."""
    text = (DATA / name).read_text(encoding="utf-8")
    found, whole = profile_of(tmp_path, text.rstrip("\n")), profile_of(tmp_path, f"{text}\n")
    assert (found.kernels, found.api_calls) == (whole.kernels, whole.api_calls)
    assert any("the last line has no line ending" in note for note in note_sentences(found.notes))


@pytest.mark.parametrize(
    "last", ["   ", "Test accuracy 0.98", "==77== Generated result file: /home/a/run.nvvp"]
)
def test_what_follows_the_tables_may_lack_its_end(tmp_path: Path, last: str) -> None:
    """It is no row, so that nothing can be missing of one."""
    assert profile_of(tmp_path, METRICS + last).kernels == profile_of(tmp_path, METRICS).kernels


def test_a_zero_may_have_no_unit(tmp_path: Path) -> None:
    """What moved no byte has none in any unit."""
    text = METRICS.replace(
        "222.94MB/s  222.94MB/s  222.94MB/s", "         0  222.94MB/s  111.47MB/s"
    )
    assert profile_of(tmp_path, text).kernels[1].metrics["dram_read_throughput"] == 111.47e6


@pytest.mark.parametrize(
    ("was", "written"),
    [
        ("100.00GB/s  120.00GB/s  114.22GB/s", "100.00GB/s  120.00GB/s  134.22GB/s"),
        ("100.00GB/s  120.00GB/s  114.22GB/s", "120.00GB/s  100.00GB/s  114.22GB/s"),
        ("100.00GB/s  120.00GB/s  114.22GB/s", "       nan         nan         nan"),
        ("100.00GB/s  120.00GB/s  114.22GB/s", "   100.00%     120.00%  114.22GB/s"),
    ],
)
def test_uneven_row_of_a_rate_is_left_out_alone(tmp_path: Path, was: str, written: str) -> None:
    """The counts beside it stay, and so do the rates of other kernels."""
    gemm, relu = profile_of(tmp_path, METRICS.replace(was, written)).kernels
    assert "dram_read_throughput" not in gemm.metrics
    assert gemm.metrics["dram_read_transactions"] == 200 * 1_100_000
    assert relu.metrics["dram_read_throughput"] == pytest.approx(222.94e6)
    notes = note_sentences(profile_of(tmp_path, METRICS.replace(was, written)).notes)
    (note,) = (note for note in notes if "left out" in note)
    assert note.startswith("line 13: dram_read_throughput is left out of one kernel: its average")


def test_events_in_csv_are_left_out_with_a_note(tmp_path: Path) -> None:
    """`nvprof --csv --events … --metrics …` writes both tables, and only metrics are read."""
    metrics = (DATA / "nvprof_metrics.csv").read_text(encoding="utf-8")
    events = (
        "==77== Event result:\n"
        '"Device","Kernel","Invocations","Event Name","Min","Max","Avg","Total"\n'
        '"Tesla V100-SXM2-16GB (0)","relu_kernel(float*, int)",100,"warps_launched",32,32,32,3200\n'
    )
    title = "==77== Metric result:\n"
    profile = profile_of(tmp_path, metrics.replace(title, events + "\n" + title))
    plain = nvprof.read(DATA / "nvprof_metrics.csv")
    assert profile.kernels == plain.kernels
    assert {note.kind for note in profile.notes} - {note.kind for note in plain.notes} == {
        "events-left-out"
    }


def test_names_cut_to_the_terminal_are_told(tmp_path: Path) -> None:
    """What ends in $ may stand for several kernels."""
    profile = profile_of(tmp_path, SUMMARY.replace(RELU, "relu_kern$"))
    assert note_sentences(profile.notes) == (
        "some names end in $: nvprof cut them to the width of the terminal",
    )


def test_summary_of_the_gpu_alone_is_read_with_a_note(tmp_path: Path) -> None:
    """--print-gpu-summary prints no API calls; the shares say that no row is missing."""
    profile = profile_of(tmp_path, "".join(lines_of(SUMMARY)[:-2]))
    whole = nvprof.read(DATA / "nvprof_summary.log")
    assert (profile.kernels, profile.copies) == (whole.kernels, whole.copies)
    assert profile.api_calls == ()
    (note,) = note_sentences(profile.notes)
    assert "--print-gpu-summary" in note
    assert "less than 0.051 % of the GPU's time" in note
