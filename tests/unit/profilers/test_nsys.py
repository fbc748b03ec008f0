"""Exports of Nsight Systems: what they add up to, and what is refused."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nsysexports import (
    BACKWARD,
    KERNEL,
    MEMCPY,
    MEMSET,
    PROCESS,
    RUNTIME,
    START_END,
    THREAD,
    Trace,
    change,
    plain,
)

from envcompare.profile_files.nsys import read
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Profile


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Give the export of a small program."""
    return plain().write(tmp_path / "plain.sqlite")


def two_streams() -> Trace:
    """Return kernels that overlap on two streams, with a gap behind them."""
    trace = Trace()
    trace.gpu()
    trace.kernel("a", 100, 200, correlation=1, stream=7)
    trace.kernel("b", 150, 250, correlation=2, stream=13)
    trace.kernel("a", 300, 310, correlation=3, stream=7)
    trace.copy(1, 240, 260, size=1000, correlation=4)
    trace.memset(290, 295, size=64, correlation=5)
    return trace


@pytest.mark.parametrize("kind", [33, 34, 39, 75], ids=["category", "mark", "thread", "domain"])
def test_events_of_nvtx_that_are_no_ranges_may_come_before_the_trace(
    tmp_path: Path, kind: int
) -> None:
    """A library names its domains and threads before nsys starts its clock."""
    trace = plain()
    trace.range("NCCL", -2_000, None, kind=kind)
    found = read(trace.write(tmp_path / "a.sqlite"))
    plainly = read(plain().write(tmp_path / "b.sqlite"))
    assert (found.kernels, found.api_calls) == (plainly.kernels, plainly.api_calls)


def test_busy_time_is_the_union_over_streams(tmp_path: Path) -> None:
    """What overlaps counts once; copies and memsets keep the GPU busy as well."""
    profile = read(two_streams().write(tmp_path / "a.sqlite"))
    expected = (210, 175, 160, 35)
    found = (profile.span_ns, profile.busy_ns, profile.kernel_busy_ns, profile.launch_gap_ns)
    assert expected == found


def test_kernels_are_grouped_by_name_grid_and_block(tmp_path: Path) -> None:
    """A shape of its own is a group of its own, in the order of first launches."""
    trace = Trace()
    trace.kernel("k", 0, 10, correlation=1, grid=(2, 1, 1))
    trace.kernel("k", 10, 30, correlation=2, grid=(3, 1, 1))
    trace.kernel("k", 30, 35, correlation=3, grid=(2, 1, 1))
    first, second = read(trace.write(tmp_path / "a.sqlite")).kernels
    assert (first.grid, first.calls, first.total_ns, first.min_ns, first.max_ns) == (
        (2, 1, 1), 2, 15, 5, 10,
    )  # fmt: skip
    assert (second.calls, second.first) == (1, 1)


def test_sequence_is_the_order_of_launches_not_of_starts(tmp_path: Path) -> None:
    """Which of two streams starts first is a race; which was launched first is the program's."""
    trace = Trace()
    trace.kernel("late", 10, 20, correlation=2, stream=7)
    trace.kernel("early", 50, 60, correlation=1, stream=13)
    profile = read(trace.write(tmp_path / "a.sqlite"))
    assert [profile.kernels[place].name for place in profile.sequence] == ["early", "late"]


def test_api_calls_lose_the_suffix_of_their_version(export: Path) -> None:
    """cudaLaunchKernel_v7000 is cudaLaunchKernel, and both spellings are one function."""
    names = [call.name for call in read(export).api_calls]
    assert names == ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cudaMemsetAsync"]


def test_copies_are_told_by_direction_with_their_bytes(export: Path) -> None:
    """A memset is a kind of its own."""
    copies = {copy.kind: copy.total_bytes for copy in read(export).copies}
    assert copies == {"HtoD": 4096, "DtoH": 8192, "DtoD": 32768, "memset": 1 << 20}


def test_an_export_without_a_memset_holds_none(tmp_path: Path) -> None:
    """It records them, so that none is 0; one without GPU work tells nothing of them."""
    trace = Trace()
    trace.kernel("k", 10, 20, correlation=1)
    found = {
        quantity.name: quantity.value
        for quantity in read(trace.write(tmp_path / "a.db")).quantities
    }
    assert (found["memset_ns"], found["memset_bytes"]) == (0, 0)
    idle = read(Trace().write(tmp_path / "b.db"))
    assert not any(quantity.name.startswith("memset") for quantity in idle.quantities)


def test_device_is_told_as_the_export_does(export: Path) -> None:
    """Clock and bandwidth are the roofline's."""
    (device,) = read(export).devices
    assert (device.name, device.compute_capability) == ("NVIDIA A100-PCIE-40GB", "8.0")
    assert (device.clock_hz, device.memory_bytes_per_s) == (1.41e9, 1.5552e12)


def test_two_gpus_are_never_merged(tmp_path: Path) -> None:
    """Two GPUs that work at once are not one that is busy for longer."""
    trace = two_streams()
    trace.gpu(1)
    trace.kernel("a", 100, 400, correlation=9, device=1)
    profile = read(trace.write(tmp_path / "a.sqlite"))
    busy = {
        quantity.scope: quantity.value
        for quantity in profile.quantities
        if quantity.name == "busy_ns"
    }
    assert (profile.span_ns, profile.busy_ns, profile.launch_gap_ns) == (None, None, None)
    assert busy == {"GPU 0": 175, "GPU 1": 300}
    assert [device.uuid for device in profile.devices] == ["GPU-0", "GPU-1"]
    assert any("2 GPUs" in note for note in note_sentences(profile.notes))


def two_processes() -> Trace:
    """Return two processes on two GPUs, each the first and only GPU of its process."""
    trace, other = Trace(), PROCESS + (1 << 24)
    trace.gpu(0, name="Tesla T4")
    trace.gpu(1)
    trace.see(0, as_number=0)
    trace.see(1, as_number=0, process=other)
    trace.kernel("a", 100, 400, correlation=1)
    trace.kernel("a", 100, 200, correlation=1, process=other)
    return trace


def test_gpus_that_are_the_first_of_their_process_are_never_merged(tmp_path: Path) -> None:
    """CUDA numbers the visible GPUs of a process from 0, whichever they are on the machine."""
    profile = read(two_processes().write(tmp_path / "a.sqlite"))
    busy = {row.scope: row.value for row in profile.quantities if row.name == "busy_ns"}
    assert busy == {"GPU 0": 300, "GPU 1": 100}
    assert [device.name for device in profile.devices] == ["Tesla T4", "NVIDIA A100-PCIE-40GB"]
    assert any("2 GPUs" in note for note in note_sentences(profile.notes))


def test_only_visible_gpu_is_the_one_that_worked(tmp_path: Path) -> None:
    """CUDA_VISIBLE_DEVICES=1 makes the second GPU of a machine the first of a program."""
    trace = Trace()
    trace.gpu(0, name="Tesla T4")
    trace.gpu(1)
    trace.see(1, as_number=0)
    trace.kernel("a", 100, 400, correlation=1)
    trace.copy(1, 400, 500, size=10, correlation=2)
    path = trace.write(tmp_path / "a.sqlite")
    change(
        path,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER,"
        " deviceId INTEGER, graphId INTEGER, globalPid INTEGER);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (600, 700, 0, 1, {PROCESS});",
    )
    profile = read(path)
    assert [device.uuid for device in profile.devices] == ["GPU-1"]
    assert profile.busy_ns == 500


def marked() -> Trace:
    """Return a trace with two of four kernels launched inside the marks."""
    trace = Trace()
    trace.range("envcompare", 100, 200, kind=START_END)
    for number, (start, thread) in enumerate(((50, THREAD), (120, THREAD), (150, BACKWARD))):
        trace.call("cudaLaunchKernel_v7000", start, start + 5, correlation=number, thread=thread)
        trace.kernel(f"k{number}", start + 1000, start + 1010, correlation=number)
    trace.call("cudaMemcpyAsync", 250, 260, correlation=7)
    trace.copy(1, 1300, 1400, size=10, correlation=7)
    return trace


def test_only_what_was_launched_inside_the_marks_counts(tmp_path: Path) -> None:
    """The backward thread counts as well; kernels run long after their launch."""
    profile = read(marked().write(tmp_path / "a.sqlite"))
    assert [kernel.name for kernel in profile.kernels] == ["k1", "k2"]
    assert profile.copies == ()
    assert [(call.name, call.calls) for call in profile.api_calls] == [("cudaLaunchKernel", 2)]
    assert any("2 of 3 kernels" in note for note in note_sentences(profile.notes))


def test_marks_of_another_process_do_not_count(tmp_path: Path) -> None:
    """A range is of the process that opened it."""
    trace = marked()
    other = PROCESS + (1 << 24)
    trace.call("cudaLaunchKernel_v7000", 130, 140, correlation=1, thread=other + 5)
    trace.kernel("other", 1500, 1600, correlation=1, process=other)
    names = [kernel.name for kernel in read(trace.write(tmp_path / "a.sqlite")).kernels]
    assert names == ["k1", "k2"]


def test_op_is_the_innermost_range_of_the_launching_thread(tmp_path: Path) -> None:
    """Ranges of other threads, and ranges that have ended, name nothing."""
    trace = Trace()
    trace.range("step", 0, 1000)
    trace.range("conv", 100, 200)
    trace.range("done", 10, 20)
    trace.range("backward", 0, 1000, thread=BACKWARD)
    for number, (start, thread) in enumerate(((50, THREAD), (150, THREAD), (150, BACKWARD))):
        trace.call("cudaLaunchKernel_v7000", start, start + 5, correlation=number, thread=thread)
        trace.kernel(f"k{number}", start + 1000, start + 1010 + number, correlation=number)
    ops = {kernel.name: kernel.op for kernel in read(trace.write(tmp_path / "a.sqlite")).kernels}
    assert ops == {"k0": "step", "k1": "conv", "k2": "backward"}


def test_index_of_an_export_moves_no_text_to_another_range(tmp_path: Path) -> None:
    """An index on the type of a range reads them type by type, whatever their rows."""
    trace = Trace()
    trace.range("forward", 0, 100, kind=START_END)
    trace.range("backward", 200, 300)
    for number, start in enumerate((50, 250)):
        trace.call("cudaLaunchKernel_v7000", start, start + 5, correlation=number)
        trace.kernel(f"k{number}", start + 1000, start + 1010, correlation=number)
    path = trace.write(tmp_path / "a.sqlite")
    change(path, "CREATE INDEX by_type ON NVTX_EVENTS (eventType)")
    assert {kernel.name: kernel.op for kernel in read(path).kernels} == {
        "k0": "forward", "k1": "backward",
    }  # fmt: skip


def test_no_cuda_data_is_a_state_of_its_own(tmp_path: Path) -> None:
    """Empty tables and missing ones say the same, and neither is an error."""
    empty = read(Trace().write(tmp_path / "empty.sqlite"))
    without = (KERNEL, MEMCPY, MEMSET, RUNTIME, "NVTX_EVENTS", "TARGET_INFO_GPU")
    absent = read(Trace().write(tmp_path / "absent.sqlite", without=without))
    for profile in (empty, absent):
        assert (profile.kernels, profile.span_ns, profile.busy_ns) == ((), None, None)
        assert any("no CUDA data" in note for note in note_sentences(profile.notes))


def test_graphs_traced_as_wholes_are_told(tmp_path: Path) -> None:
    """Their time is busy time; their kernels are not known."""
    path = two_streams().write(tmp_path / "a.sqlite")
    change(
        path,
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER,"
        " deviceId INTEGER, graphId INTEGER);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (310, 400, 0, 1);",
    )
    profile = read(path)
    assert (profile.busy_ns, profile.kernel_busy_ns) == (265, 160)
    assert any("--cuda-graph-trace=node" in note for note in note_sentences(profile.notes))


@pytest.mark.parametrize("call", ["cudaLaunchKernel_v7000", "cuLaunchKernel"])
def test_launches_without_a_kernel_are_told(export: Path, call: str) -> None:
    """A trace that lost kernels says how many, also of those that the driver's call launched.

    The launch of a kernel that is captured into a CUDA graph runs none either.
    """
    change(export, f"DELETE FROM {KERNEL} WHERE rowid IN (3, 4)")
    change(export, f"UPDATE StringIds SET value = '{call}' WHERE value LIKE 'cudaLaunchKernel%'")
    said = "2 launches have no kernel in the export: captured into a CUDA graph, lost, or run after"
    assert any(said in note for note in note_sentences(read(export).notes))


def test_unknown_columns_of_a_known_schema_are_no_hindrance(export: Path) -> None:
    """Newer releases add columns in any place."""
    before = read(export)
    change(
        export,
        f"ALTER TABLE {KERNEL} ADD COLUMN qmdBulkReleaseUs REAL DEFAULT 1.5;"
        "UPDATE EXPORT_META_DATA SET value = '3.99.0' WHERE name = 'EXPORT_SCHEMA_VERSION';"
        "ALTER TABLE EXPORT_META_DATA RENAME TO META_DATA_EXPORT;",
    )
    after = read(export)
    assert (after.kernels, after.busy_ns) == (before.kernels, before.busy_ns)
    assert after.format == "SQLite schema 3.99.0"


def shuffled(path: Path, seed: int) -> Path:
    """Rewrite the rows of all event tables in another order."""
    database, draw = sqlite3.connect(path), random.Random(seed)
    for table in (KERNEL, MEMCPY, MEMSET, RUNTIME):
        rows = database.execute(f"SELECT * FROM {table}").fetchall()
        draw.shuffle(rows)
        database.execute(f"DELETE FROM {table}")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    database.commit()
    database.close()
    return path


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_order_of_rows_does_not_matter(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Rows may come as the writer's threads pleased."""
    path = plain(seed=seed).write(tmp_path_factory.mktemp("nsys") / "a.sqlite")

    def told(profile: Profile) -> tuple[object, ...]:
        busy = profile.busy_ns
        return profile.kernels, profile.sequence, profile.copies, profile.api_calls, busy

    assert told(read(path)) == told(read(shuffled(path, seed)))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), kernels=st.integers(0, 40))
def test_groups_add_up_to_the_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kernels: int
) -> None:
    """Nothing is lost between rows and groups, and the union is at most the sum."""
    trace = plain(kernels, seed=seed)
    profile = read(trace.write(tmp_path_factory.mktemp("nsys") / "a.sqlite"))

    def rows(table: str) -> list[int]:
        found = trace.tables.get(table, [])
        return [int(f"{row['end']}") - int(f"{row['start']}") for row in found]

    assert sum(kernel.total_ns or 0 for kernel in profile.kernels) == sum(rows(KERNEL))
    assert sum(kernel.calls for kernel in profile.kernels) == len(profile.sequence) == kernels
    assert sum(copy.total_ns for copy in profile.copies) == sum(rows(MEMCPY) + rows(MEMSET))
    assert (profile.kernel_busy_ns or 0) <= sum(rows(KERNEL))
    assert (profile.kernel_busy_ns or 0) <= (profile.busy_ns or 0) <= (profile.span_ns or 0)
