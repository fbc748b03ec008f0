"""CSV of Nsight Compute: what it adds up to, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from filespoiling import spoilt
from hypothesis import given, settings
from hypothesis import strategies as st
from ncutexts import BYTES, DATA, TIME, details, launch, raw, row

from envcompare.errors import ProfileError
from envcompare.profile_files import ncu
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Profile

OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


def profile_of(folder: Path, text: str) -> Profile:
    """Return the profile of a file with this text."""
    path = folder / "a.csv"
    path.write_text(text, encoding="utf-8")
    return ncu.read(path)


def refusal_of(folder: Path, text: str) -> ProfileError:
    """Return the error that reading this text raises."""
    with pytest.raises(ProfileError) as told:
        profile_of(folder, text)
    return told.value


def test_raw_page_is_found_behind_messages_and_output_of_the_program() -> None:
    """The table begins at the column ID, and launches add up by name and shape."""
    profile = ncu.read(DATA / "ncu_raw_2024.csv")
    found = [
        (kernel.name[:9], kernel.calls, kernel.total_ns, kernel.grid) for kernel in profile.kernels
    ]
    expected = [
        ("void gemm", 2, 80000.0, (64, 8, 1)),
        ("relu(floa", 1, 5000.0, (16, 1, 1)),
        ("void gemm", 1, 15000.0, (32, 8, 1)),
    ]
    assert expected == found
    assert profile.sequence == (0, 1, 0, 2)


def test_sums_are_added_and_rates_are_weighted_by_time() -> None:
    """20 µs at 50 % and 60 µs at 90 % are 80 % together, not 70 %."""
    gemm = ncu.read(DATA / "ncu_raw_2024.csv").kernels[0]
    assert gemm.metrics["dram__bytes_read.sum"] == 1_280_000
    assert gemm.metrics[OCCUPANCY] == pytest.approx(80)


def test_raw_page_tells_device_and_range() -> None:
    """The name, the capability and the start/end range of the launch are kept."""
    profile = ncu.read(DATA / "ncu_raw_2024.csv")
    device = profile.devices[0]
    assert (device.name, device.chip, device.compute_capability, device.multiprocessors) == (
        "NVIDIA A100-SXM4-40GB", "ga100", "8.0", 108,
    )  # fmt: skip
    assert profile.kernels[0].op == "envcompare"


def test_details_page_of_2020_takes_time_from_cycles() -> None:
    """Reports without a duration tell cycles and their frequency, here with groups of digits."""
    profile = ncu.read(DATA / "ncu_details_2020.csv")
    kernel = profile.kernels[0]
    assert (kernel.calls, kernel.metrics[BYTES]) == (2, 9_600_000)
    assert kernel.total_ns == pytest.approx(3_000_000)
    assert (kernel.min_ns, kernel.max_ns) == (pytest.approx(1e6), pytest.approx(2e6))


def test_details_page_is_read_by_its_labels_and_past_its_rules() -> None:
    """Labels stand for metrics where they are known; two metrics of one label are kept apart."""
    kernel = ncu.read(DATA / "ncu_details_2022_rules.csv").kernels[0]
    assert kernel.total_ns == pytest.approx(239_010)
    assert kernel.metrics == {"lts__t_sector_hit_rate.pct": 50.17, OCCUPANCY: 74.45}


def test_german_file_is_not_read_a_thousand_times_too_low() -> None:
    """118.400 ns are 118 µs there, as 28.595.200 bytes settle."""
    kernel = ncu.read(DATA / "ncu_details_german.csv").kernels[0]
    assert (kernel.total_ns, kernel.metrics[BYTES], kernel.metrics[OCCUPANCY]) == (
        118_400, 28_595_200, 65.7,
    )  # fmt: skip


def test_summary_is_average_times_invocations() -> None:
    """A rate whose launches differ is left out, since their times are not told."""
    profile = ncu.read(DATA / "ncu_summary_2024.csv")
    kernel = profile.kernels[0]
    assert (kernel.calls, kernel.total_ns) == (4, 8000)
    assert kernel.metrics == {BYTES: 19_200, OCCUPANCY: 75}
    assert "lts__t_sector_hit_rate.pct is left out" in note_sentences(profile.notes)[0]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_rate_of_a_kernel_in_a_summary_depends_on_no_other_kernel(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """One whose launches differ takes the rate from none whose launches agree, in any order."""
    head = ("Process ID", "Process Name", "Host Name", "Kernel Name", "Invocations",
            "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average")  # fmt: skip
    cells = {"a": (70, 80, 75), "b": (50, 50, 50)}
    rows = [row((1, "train", "127.0.0.1", name, 2, OCCUPANCY, "%", *cells[name])) for name in names]
    found = {
        kernel.name: kernel.metrics
        for kernel in profile_of(tmp_path, row(head) + "".join(rows)).kernels
    }
    assert found == {"a": {}, "b": {OCCUPANCY: 50}}


def test_metric_that_one_launch_lacks_is_left_out_of_its_kernel(tmp_path: Path) -> None:
    """n/a is missing: a sum over the rest would be too low, and a zero wrong."""
    text = raw({TIME: "ns", BYTES: "byte"}, launch(0, 10, 64), launch(1, 10, "n/a"))
    profile = profile_of(tmp_path, text)
    assert profile.kernels[0].metrics == {}
    assert f"{BYTES} is missing in 1 launch" in note_sentences(profile.notes)


def test_launches_that_are_not_in_the_file_are_told(tmp_path: Path) -> None:
    """A filter leaves them out, and so does a line that was lost."""
    text = raw({TIME: "ns"}, launch(0, 10), launch(1, 10), launch(4, 10))
    expected = "2 launches are not in the file: filtered out, or lost"
    assert expected in note_sentences(profile_of(tmp_path, text).notes)
    assert len(note_sentences(ncu.read(DATA / "ncu_raw_2024.csv").notes)) == 1


def test_name_with_commas_and_quotes_stays_whole(tmp_path: Path) -> None:
    """Rows are read by their quotes."""
    name = 'void k<"a, b", 2>(int, float*)'
    text = raw({TIME: "us"}, launch(0, "1.5", name=name))
    assert profile_of(tmp_path, text).kernels[0].name == name


def test_unknown_unit_of_a_metric_in_use_is_refused(tmp_path: Path) -> None:
    """Bytes in an unknown unit could be anything."""
    error = refusal_of(tmp_path, raw({BYTES: "parsec"}, launch(0, 5)))
    assert error.details == f"line 3: unknown unit 'parsec' of {BYTES}"
    assert "--print-units base" in error.hint


@pytest.mark.parametrize(
    ("metric", "unit", "value"),
    [
        ("dram__bytes_read.min.pct_of_peak_sustained_elapsed", "%", "-0.01"),
        ("lts__t_sectors.min.pct_of_peak_sustained_elapsed", "%", "-0.01"),
        ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "", "-1,141"),
        ("smsp__inst_executed_pipe_uniform.sum", "inst", "1e999"),
    ],
)
def test_odd_metric_of_no_quantity_is_left_out_with_a_note(
    tmp_path: Path, metric: str, unit: str, value: str
) -> None:
    """Ncu computes some as differences; the launches beside it are counted."""
    metrics = {BYTES: "byte", metric: unit}
    launches = (launch(0, "1,064,000", value), launch(1, "1,036,000", "0"))
    profile = profile_of(tmp_path, raw(metrics, *launches))
    (kernel,) = profile.kernels
    assert (kernel.calls, kernel.metrics[BYTES]) == (2, 2_100_000)
    assert metric not in kernel.metrics
    (note,) = (one for one in note_sentences(profile.notes) if metric in one)
    assert note.startswith("left out because the value is impossible and no quantity uses it: ")


def test_odd_metric_of_a_summary_is_left_out_with_a_note(tmp_path: Path) -> None:
    """A summary tells averages, which are below 0 where a launch is."""
    text = (DATA / "ncu_summary_2024.csv").read_text(encoding="utf-8")
    last = next(csv.reader([text.splitlines()[-1]]))
    last[-5:] = ["smsp__conflicts.sum", "", "-1141", "0", "-570.5"]
    profile = profile_of(tmp_path, text + row(last))
    assert profile.kernels == ncu.read(DATA / "ncu_summary_2024.csv").kernels
    assert any("smsp__conflicts.sum (-570.5)" in note for note in note_sentences(profile.notes))


def test_cell_of_two_lines_belongs_to_one_row(tmp_path: Path) -> None:
    """Quoted cells hold ends of lines, and what follows is of the same launch."""
    first = launch(0, "64", name="k(\nint)").replace('"train"', '"train\n== one"')
    page = raw({BYTES: "byte"}, first, "==PROF== Disconnected\n", launch(1, "36"))
    kernels = profile_of(tmp_path, page).kernels
    assert [(kernel.name, kernel.metrics[BYTES]) for kernel in kernels] == [
        ("k(\nint)", 64),
        ("k(int)", 36),
    ]


def test_unknown_unit_of_an_unused_metric_is_left_out(tmp_path: Path) -> None:
    """What no quantity is derived from need not be understood."""
    profile = profile_of(tmp_path, raw({TIME: "ns", "new__thing.sum": "parsec"}, launch(0, 5, 6)))
    assert profile.kernels[0].metrics == {}


GOOD = raw({TIME: "ns", BYTES: "byte"}, launch(0, 10, 64), launch(1, 20, 128))
HEADER, UNITS, FIRST, SECOND = GOOD.splitlines(keepends=True)
DETAILS = details((0, TIME, "ns", "10"), (0, BYTES, "byte", "64"), (1, TIME, "ns", "20"),
                  (1, BYTES, "byte", "128"))  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", None, "the file is empty"),
        (raw({BYTES: "second"}, launch(0, 5)), 3, "cannot have the unit"),
        ("hello\n", None, "no line starts with the column ID"),
        ("==PROF== Connected to process 1\n", 1, "no kernel was profiled"),
        ('==PROF== Profiling "k"\n', None, "ncu ran without --csv, or its output was cut off"),
        (HEADER, None, "the row of units below the header is missing"),
        (HEADER + FIRST, 2, "the row of units below the header is missing"),
        (HEADER + UNITS, 1, "no launch follows"),
        (GOOD.replace(',"64"\n', "\n"), 3, "cells where the header has"),
        (GOOD[:-8], 4, "a truncated line"),
        (GOOD[:-6].rstrip(","), 4, "the file was cut off"),
        (GOOD + SECOND, 5, "launch 1 follows launch 1"),
        (HEADER + UNITS + SECOND + FIRST, 4, "launch 0 follows launch 1"),
        (GOOD + row(["", *[""] * 12]), 5, "the row has no launch ID"),
        (GOOD + GOOD, 5, "a second table begins"),
        (GOOD.replace(BYTES, TIME), 1, "is listed twice"),
        (GOOD.replace('"64"', '"6 apples"'), 3, "not a number"),
        (GOOD.replace('"64"', '"-64"'), 3, "dram__bytes.sum is -64, which is impossible"),
        (GOOD.replace('"64"', '"1e999"'), 3, "which is impossible"),
        (GOOD.replace('"64"', '"1.234"'), 3, "may be"),
        (GOOD + "done in 3 s\n", 5, "cells where the header has"),
        (DETAILS + DETAILS.splitlines(keepends=True)[-1], 6, "of launch 1 is listed twice"),
        ("".join(DETAILS.splitlines(keepends=True)[:-1]), 4, "the file was cut off"),
        ("==ERROR== The application returned an error code (1).\n" + GOOD, 1, "ncu in it, failed"),
        ("==WARNING== No kernels were profiled.\n", 1, "no kernel was profiled"),
    ],
)  # fmt: skip
def test_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, text: str, line: int | None, why: str
) -> None:
    """Each damage is named with its line; none is read as a smaller number."""
    error = refusal_of(tmp_path, text)
    assert why in error.details
    assert error.details.startswith("" if line is None else f"line {line}: ")
    assert error.brief == "cannot trust a.csv"
    assert error.hint


@pytest.mark.parametrize(
    "said",
    [
        "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance C…",
        "Profiling failed because a driver resource was unavailable or the user does not have p…",
    ],
)
def test_closed_counters_are_told_with_how_to_open_them(tmp_path: Path, said: str) -> None:
    """The one line of ncu that most users meet has its remedy beside it."""
    error = refusal_of(
        tmp_path, f"==PROF== Connected\n==ERROR== {said}\n==WARNING== No kernels were profiled.\n"
    )
    assert error.details.startswith("line 2: ncu was not allowed to read the counters")
    for remedy in ("NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN", "dcgmi profile --pause"):
        assert remedy in error.hint


@pytest.mark.parametrize("content", [b'\xff\xfe"\x00I\x00D\x00', b"caf\xe9", b"a\0b"])
def test_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file of another encoding is not guessed at."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(ProfileError):
        ncu.read(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    """The reason of the system is told."""
    with pytest.raises(ProfileError) as told:
        ncu.read(tmp_path / "none.csv")
    assert told.value.details == "it cannot be opened: No such file or directory"


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("name", ["ncu_raw_2024.csv", "ncu_raw_2024_flops.csv"])
def test_file_cut_before_the_last_cell_of_a_row_is_refused(
    tmp_path: Path, name: str, lost: int
) -> None:
    """What is left has the width of a whole row, and would say that the metric is missing."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    cut = tmp_path / "cut.csv"
    kept = "\n".join(lines[: len(lines) - lost])
    cut.write_text(kept.rpartition(",")[0] + ",", encoding="utf-8")
    with pytest.raises(ProfileError) as told:
        ncu.read(cut)
    assert "cut off" in told.value.details


@settings(max_examples=500, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(path.name for path in DATA.glob("ncu_*.csv"))))
def test_cut_file_is_refused_or_loses_whole_launches_only(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    """Wherever a file is cut, no launch is read with fewer or other numbers than it has."""
    text = (DATA / name).read_text(encoding="utf-8")
    whole = ncu.read(DATA / name)
    path = tmp_path_factory.mktemp("cut") / "a.csv"
    path.write_text(text[: data.draw(st.integers(0, len(text)))], encoding="utf-8")
    try:
        cut = ncu.read(path)
    except ProfileError:
        return
    known = {(kernel.name, kernel.grid): kernel for kernel in whole.kernels}
    for kernel in cut.kernels:
        same = known[kernel.name, kernel.grid]
        assert kernel.calls <= same.calls
        if kernel.calls == same.calls and len(whole.kernels) > 1:
            assert kernel.metrics == same.metrics


@settings(max_examples=500, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(path.name for path in DATA.glob("ncu_*.csv"))))
def test_spoilt_file_is_read_or_refused_and_never_breaks(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    """Whatever stands in a file, the reader ends with a profile or with its own error."""
    path = tmp_path_factory.mktemp("spoilt") / "a.csv"
    path.write_bytes(spoilt(data, (DATA / name).read_bytes()))
    try:
        profile = ncu.read(path)
    except ProfileError:
        return
    assert all(kernel.calls > 0 for kernel in profile.kernels)
