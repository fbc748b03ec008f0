"""Logs of nvprof that are refused: cut, doubled, mixed with output, or at odds with themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from filespoiling import spoilt
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ncutexts import DATA

from envcompare.errors import ProfileError
from envcompare.profile_files import nvprof

GEMM = "void gemm<float, int=128>(float const *, float*, int)"
RELU = "relu_kernel(float*, int)"
SUMMARY = (DATA / "nvprof_summary.log").read_text(encoding="utf-8")
METRICS = (DATA / "nvprof_metrics.log").read_text(encoding="utf-8")
UNENDED = (DATA / "nvprof_unended.log").read_text(encoding="utf-8")
RATES = ("throughput", "efficiency", "utilization", "occupancy")
COUNTS = "\n".join(line for line in METRICS.splitlines() if not any(name in line for name in RATES))
COUNTS = COUNTS.removesuffix("2000        2000        2000") + "   9         700          70"
GPU_ONLY = "".join(SUMMARY.splitlines(keepends=True)[:10])
LOGS = sorted(path.name for path in DATA.glob("nvprof_*"))
CUTS = [(name, end) for name in LOGS for end in range(len((DATA / name).read_text("utf-8")))]
ONE_KERNEL = """\
==31== Profiling result:
Time(%)      Time     Calls       Avg       Min       Max  Name
100.00%  1.00000s       200  5.0000ms  4.1000ms  6.2000ms  """


def lines_of(text: str) -> list[str]:
    """Return the lines of a text with their ends."""
    return text.splitlines(keepends=True)


def refusal_of(folder: Path, text: str) -> ProfileError:
    """Return the error that reading this text raises."""
    path = folder / "a.log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as told:
        nvprof.read(path)
    return told.value


def test_announced_api_calls_must_follow(tmp_path: Path) -> None:
    """A title that ends the file was followed by rows."""
    text = (DATA / "nvprof_summary_old.log").read_text(encoding="utf-8")
    error = refusal_of(tmp_path, text[: text.index("API calls:")] + "API calls:\n")
    assert "the header for API calls has no rows below it" in error.details


def after(text: str, line: str, added: str) -> str:
    """Return the text with lines added behind the first that begins so."""
    lines = lines_of(text)
    place = next(n for n, one in enumerate(lines) if one.lstrip().startswith(line))
    return "".join([*lines[: place + 1], added, *lines[place + 1 :]])


@pytest.mark.parametrize(
    ("name", "line", "added", "why"),
    [
        ("summary_old.log", "Time(%)", "", "a header within a table"),
        ("metrics.log", "Invocations", "", "a header within a table"),
        ("summary_old.log", "Time(%)", "epoch 2\n", "a row after the end of its table"),
        ("metrics.log", "200", "epoch 2\n", "a row after the end of its table"),
        ("metrics.log", "200", "\n", "a row after the end of its table"),
        ("metrics.csv", '"Tesla', "\n", "a row after the end of its table"),
        ("summary.csv", '"GPU', "\n", "a row after the end of its table"),
    ],
)
def test_rows_of_a_table_that_ended_early_are_refused(
    tmp_path: Path, name: str, line: str, added: str, why: str
) -> None:
    """A doubled header, or output of the program, would drop the rows behind it."""
    text = (DATA / f"nvprof_{name}").read_text(encoding="utf-8")
    doubled = next(one for one in lines_of(text) if one.lstrip().startswith(line))
    assert why in refusal_of(tmp_path, after(text, line, added or doubled)).details


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no summary and no metrics"),
        ("hello\n", "no summary and no metrics"),
        ("".join(lines_of(SUMMARY)[:-1]), "add up to 75.00 %, not to 100 %"),
        ("".join(lines_of(SUMMARY)[:7]), "not to 100 %"),
        (SUMMARY[:-20], "a truncated row"),
        (UNENDED[:-1], "not a number with a known unit"),
        (UNENDED[:-4], "has no line end and is incomplete"),
        (UNENDED.replace("32.000GB/s", " 32.00GB/s")[:-1], "not a number with a known unit"),
        (COUNTS[:-1], "has no line end and is incomplete"),
        (COUNTS[:-2], "a truncated row"),
        (GPU_ONLY[:-2], "has no line end and is incomplete"),
        (METRICS + "==77== Profiling resu", "has no line end and is not a table row"),
        (METRICS + "==78== Profiling result:\n==78== Metric result:\nInvo", "is not a table row"),
        (METRICS[: METRICS.index("relu")] + "relu", "no row follows"),
        (METRICS[: METRICS.index("relu")] + "relu\n", "no row follows"),
        (SUMMARY + SUMMARY, "process 4711 reports a second time"),
        (SUMMARY.replace(RELU, GEMM), "is listed twice"),
        (SUMMARY.replace("   200  5.0000ms", "   300  5.0000ms"), "300 calls of 5e+06 ns are not"),
        (SUMMARY.replace("4.1000ms", "5.1000ms", 1), "outside its minimum and maximum"),
        (SUMMARY.replace("62.50%", "57.50%").replace(" 5.00%", "10.00%"), "% of the time, but"),
        (SUMMARY.replace("1.00000s", "1.00000x"), "not a number with a known unit"),
        (SUMMARY.replace("  1.00000s", "  1,00000s"), "not a number with a known unit"),
        (SUMMARY.replace("      100  ", "       -1  "), "a truncated row"),
        ("".join(lines_of(METRICS)[:-1]), "the last kernel lacks achieved_occupancy"),
        (METRICS[:-12], "a truncated row"),
        (METRICS + lines_of(METRICS)[-1], "is listed twice"),
        (METRICS.replace("        100       ", "        101       ", 1), "has 101 invocations in"),
        (METRICS.replace("     1100000", "    -1100000"), "not a number with a known unit"),
        (METRICS.replace("222.94MB/s", "222.94XB/s"), "not a number with a known unit"),
        (METRICS.replace("1100000", "1900000"), "outside its minimum and maximum"),
        (METRICS + SUMMARY, "a summary and metrics from one run"),
        ("==1== Error: Internal profiling error 3999:999.\n" + SUMMARY, "nvprof reports: Error"),
        ("==1== Warning: 4 records have invalid timestamps\n" + SUMMARY, "nvprof reports: Warning"),
        ("======== Warning: No CUDA application was profiled, exiting\n", "No CUDA application"),
        ("==1== Profiling result:\nNo kernels were profiled.\n", "no summary and no metrics"),
        ("==1== Profiling result:\n   Start  Duration   Grid Size\n", "a trace of single calls"),
    ],
)  # fmt: skip
def test_log_that_cannot_be_trusted_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """A log that was cut or contradicts itself is never read as a whole one."""
    error = refusal_of(tmp_path, text)
    assert why in error.details
    assert error.brief == "cannot trust a.log"
    assert error.hint


def test_row_that_is_cut_is_told_with_its_line(tmp_path: Path) -> None:
    """The line is where to look."""
    assert refusal_of(tmp_path, SUMMARY[:-20]).details.startswith("line 12: ")


def test_row_of_csv_that_is_cut_is_refused(tmp_path: Path) -> None:
    """CSV says by its cells and quotes where it ends."""
    text = (DATA / "nvprof_summary.csv").read_text(encoding="utf-8")
    assert "a truncated line" in refusal_of(tmp_path, text[:-5]).details
    assert "the row is cut" in refusal_of(tmp_path, text[:-21] + "\n").details


@pytest.mark.parametrize(
    ("name", "lost"),
    [("summary.csv", RELU), ("metrics.csv", RELU), ("metrics.csv", "flop_count_sp")],
)
def test_row_without_a_name_is_refused(tmp_path: Path, name: str, lost: str) -> None:
    """Nothing can be compared with a kernel or a metric that has no name."""
    text = (DATA / f"nvprof_{name}").read_text(encoding="utf-8").replace(f'"{lost}"', '""')
    assert "a row without a name" in refusal_of(tmp_path, text).details


@pytest.mark.parametrize("kernel", [GEMM, RELU, "void (anonymous namespace)::scale<int>(int*)"])
def test_kernel_at_a_cut_end_is_read_under_its_whole_name_alone(
    tmp_path: Path, kernel: str
) -> None:
    """A part of a name would be taken for another kernel, which the other arm does not run."""
    for end in range(len(kernel)):
        refusal_of(tmp_path, ONE_KERNEL + kernel[:end])
    path = tmp_path / "whole.log"
    path.write_text(ONE_KERNEL + kernel, encoding="utf-8")
    assert [one.name for one in nvprof.read(path).kernels] == [kernel]


@pytest.mark.parametrize("kernel", ["scale", "_Z5scalePfi", "Scale::operator()"])
def test_kernel_whose_name_may_be_cut_needs_an_end_of_its_line(tmp_path: Path, kernel: str) -> None:
    """Names of C and those that are not demangled have no brackets by which they end."""
    error = refusal_of(tmp_path, ONE_KERNEL + kernel)
    assert f"its name may be cut: {kernel!r}" in error.details
    path = tmp_path / "whole.log"
    path.write_text(f"{ONE_KERNEL}{kernel}\n", encoding="utf-8")
    assert [one.name for one in nvprof.read(path).kernels] == [kernel]


def test_csv_without_units_is_refused(tmp_path: Path) -> None:
    """Times without a unit are no times."""
    text = (DATA / "nvprof_summary.csv").read_text(encoding="utf-8")
    error = refusal_of(tmp_path, text.replace(",%,ms,,us,us,us,\n", ""))
    assert "the row of units below the header is missing" in error.details


def test_database_of_nvprof_is_told_from_its_log(tmp_path: Path) -> None:
    """The export is read by nvprof, whose print is read here."""
    path = tmp_path / "a.nvprof"
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    with pytest.raises(ProfileError) as told:
        nvprof.read(path)
    assert "nvprof --import-profile a.nvprof --csv" in told.value.hint


@settings(max_examples=500, deadline=None)
@given(cut_at=st.sampled_from(CUTS))
@example(cut_at=("nvprof_summary.csv", 382))  # before a name
def test_cut_log_is_refused(
    tmp_path_factory: pytest.TempPathFactory, cut_at: tuple[str, int]
) -> None:
    """A log that was cut anywhere but between processes or behind whole kernels is refused."""
    name, end = cut_at
    text = (DATA / name).read_text(encoding="utf-8")
    whole = nvprof.read(DATA / name)
    path = tmp_path_factory.mktemp("cut") / "a.log"
    path.write_text(text[:end], encoding="utf-8")
    try:
        cut = nvprof.read(path)
    except ProfileError:
        return
    assert cut.kernels == whole.kernels[: len(cut.kernels)] or not cut.has_time


@settings(max_examples=500, deadline=None)
@given(data=st.data(), name=st.sampled_from(LOGS))
def test_spoilt_log_is_read_or_refused_and_never_breaks(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    """Whatever stands in a log, the reader ends with a profile or with its own error."""
    path = tmp_path_factory.mktemp("spoilt") / "a.log"
    path.write_bytes(spoilt(data, (DATA / name).read_bytes()))
    try:
        profile = nvprof.read(path)
    except ProfileError:
        return
    assert all(kernel.calls > 0 for kernel in profile.kernels)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["Kernel: k", "1  a", "1  inst_executed  a  b", "100.00%  1s", ""])
@pytest.mark.parametrize("table", [METRICS, SUMMARY])
def test_a_long_line_costs_no_time_that_grows_with_its_square(
    tmp_path: Path, table: str, kind: str
) -> None:
    """A log may be anybody's; what cannot be read is quoted in a few words."""
    rows = lines_of(table)
    gap = " " * 300_000
    for line in (f"    {kind}{gap}x\n", f"{gap}{kind}\n", f"   {kind}{'  x' * 100_000}\n"):
        said = refusal_of(tmp_path, "".join([*rows[:-1], line, *rows[-1:]]))
        assert len(said.details) < 400


def test_row_outside_a_table_of_csv_is_not_answered_with_csv(tmp_path: Path) -> None:
    """The log is written with --csv already."""
    text = (DATA / "nvprof_metrics.csv").read_text(encoding="utf-8")
    error = refusal_of(tmp_path, f"{text}\nepoch 1\n{lines_of(text)[-1]}")
    assert "a row after the end of its table" in error.details
    assert "--log-file" in error.hint
    assert "--csv" not in error.hint
