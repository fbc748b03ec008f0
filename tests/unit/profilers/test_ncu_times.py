"""Whose time a file of Nsight Compute tells where instructions were counted as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from ncutexts import BYTES, HEAD, TIME, launch, raw, row

from envcompare.profile_files import ncu
from envcompare.run_folder.profiles import Note, Profile

FMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"


def profile_of(folder: Path, text: str) -> Profile:
    """Return the profile of a file with this text."""
    path = folder / "a.csv"
    path.write_text(text, encoding="utf-8")
    return ncu.read(path)


def test_summary_has_time_beside_counters_of_memory(tmp_path: Path) -> None:
    """The same rule as for launches: duration and counters of L2 or DRAM of one kernel."""
    head = ("Process ID", "Process Name", "Host Name", "Kernel Name", "Invocations",
            "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average")  # fmt: skip
    told = {TIME: "ns", FMA: "inst", BYTES: "byte"}
    lines = [row((1, "train", "h", "a", 2, name, unit, 8, 8, 8)) for name, unit in told.items()]
    whole = profile_of(tmp_path, row(head) + "".join(lines))
    assert (whole.kernels[0].total_ns, whole.notes[0]) == (16, Note(kind="unpatched-time"))
    alone = profile_of(tmp_path, row(head) + "".join(lines[:2]))
    assert (alone.kernels[0].total_ns, alone.notes[0]) == (None, Note(kind="no-time"))


def test_no_time_is_taken_where_instructions_are_counted(tmp_path: Path) -> None:
    """Counting SASS instructions was seen to stretch kernels 146 times."""
    text = raw({TIME: "ns", FMA: "inst"}, launch(0, 1000, 5), launch(1, 9000, 5))
    profile = profile_of(tmp_path, text)
    assert not profile.has_time
    assert (profile.kernels[0].total_ns, profile.kernels[0].metrics) == (None, {FMA: 10})


def test_time_beside_counters_of_memory_is_of_a_pass_without_counting(tmp_path: Path) -> None:
    """A full set patches some passes; bytes over time are the rate that the memory tells itself."""
    rate = f"{BYTES}.per_second"
    metrics = {TIME: "ns", BYTES: "byte", rate: "byte/second", FMA: "inst"}
    text = raw(metrics, launch(0, 1000, 64_000, 64e9, 5), launch(1, 3000, 64_000, 21.3e9, 5))
    profile = profile_of(tmp_path, text)
    assert profile.kernels[0].total_ns == 4000
    assert Note(kind="unpatched-time") in profile.notes
    assert Note(kind="no-time") not in profile.notes
    stretched = raw(metrics, launch(0, 146_000, 64_000, 64e9, 5))
    assert not profile_of(tmp_path, stretched).has_time


@pytest.mark.parametrize(
    ("label", "total_ns"), [("L2 Hit Rate", 3000), ("Achieved Occupancy", None)]
)
def test_details_hide_counters_of_instructions_behind_their_section(
    tmp_path: Path, label: str, total_ns: float | None
) -> None:
    """The section tells that some were counted; a rate of L2 that another pass took the time."""
    header = row((*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value"))
    rows = [
        launch(0, "GPU Speed Of Light Throughput", "Duration", "usecond", 3),
        launch(0, "Memory Workload Analysis", label, "%", 50),
        launch(0, "Source Counters", "Branch Instructions", "inst", 5),
    ]
    assert profile_of(tmp_path, header + "".join(rows)).kernels[0].total_ns == total_ns


def test_cycles_are_no_time_where_instructions_are_counted(tmp_path: Path) -> None:
    """They were seen to be those of the patched pass."""
    cycles = "sm__cycles_elapsed.avg"
    metrics = {cycles: "cycle", f"{cycles}.per_second": "cycle/second", BYTES: "byte", FMA: "inst"}
    text = raw(metrics, launch(0, 179_638_319, 1_312_168_927, 64, 5))
    assert profile_of(tmp_path, text).kernels[0].total_ns is None
