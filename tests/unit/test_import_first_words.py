"""The first words and values of imports that a reader would otherwise take for another cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from imports import answer, compared, imported, log, request
from kinetotraces import event, kernel, launch, write
from ncutexts import TIME, raw
from ncutexts import launch as ncu_launch
from nsysexports import Trace, change, exported
from summaries import printed

from envcompare.analysis.model.comparison import RunComparison
from envcompare.analysis.model.profiling import QuantityRow
from envcompare.errors import ProfileError

DATA = Path(__file__).resolve().parents[1] / "data" / "imports"
HMMA, TC = "sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tc.sum"
RANKS = (DATA / "kineto_rank0.json", DATA / "kineto_rank1.json")


def quantities(run: RunComparison, arm: str) -> dict[str, QuantityRow]:
    """Return the quantities of an environment by their names."""
    (found,) = (one for one in run.profiles[0].arms if one.arm == arm)
    return {row.name: row for row in found.quantities}


def shifted(folder: Path, rank: int) -> Path:
    """Write the trace of a rank whose matrix product takes 1 µs longer."""
    path = folder / f"docker{rank}.json"
    path.write_text(RANKS[rank].read_text().replace('"dur":30.0', '"dur":31.0'), encoding="utf-8")
    return path


@pytest.mark.parametrize("is_first", [True, False], ids=["reference", "arm"])
def test_graphs_traced_as_wholes_compare_in_busy_time_alone(
    tmp_path: Path, *, is_first: bool
) -> None:
    """Their kernels are hidden, on whichever side: no set, time or share of kernels compares."""
    eager, graphs = (exported(tmp_path, f"nsys_{name}") for name in ("eager", "whole_graphs"))
    files = {"graphs": graphs, "eager": eager} if is_first else {"eager": eager, "graphs": graphs}
    run = imported(tmp_path, "nsys", **files)
    (cell,) = run.profiles
    assert (cell.kernel_diffs, cell.ledgers) == ((), ())
    hidden, seen = quantities(run, "graphs"), quantities(run, "eager")
    assert (hidden["busy_ns"].value, seen["busy_ns"].value) == (76_002_000, 80_000_000)
    for name in ("launch_count", "kernel_time_ns", "tensor_core_share", "memset_bytes"):
        assert (hidden[name].value, hidden[name].ratio, seen[name].ratio) == (None, None, None)
        assert hidden[name].reason == "the kernels and copies of 2 CUDA graphs are hidden"
    ends = "76.0 ms → 80.0 ms" if is_first else "80.0 ms → 76.0 ms"
    for text in (answer(run), printed(run)):
        assert f"GPU busy {ends}; the kernels of 2 CUDA graphs are hidden in graphs" in text
        assert "nsys profile --cuda-graph-trace=node" in text
        assert "only in" not in text
        assert "2.00 µs" not in text
        assert "No confounder" not in text


def test_a_graph_beside_which_nothing_ran_is_no_export_without_data(tmp_path: Path) -> None:
    """Its time is known, and the import says what it hides."""
    path = exported(tmp_path, "nsys_whole_graphs")
    change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    done = request(tmp_path, path, tool="nsys").run()
    assert done.lines[0].startswith("vm: hidden kernels of 2 CUDA graphs")


def test_graphs_of_which_nothing_was_traced_hide_the_busy_time_too(tmp_path: Path) -> None:
    """What ran beside them is not how long the GPU was busy."""
    trace = Trace()
    trace.gpu()
    trace.call("cudaLaunchKernel_v7000", 0, 10, correlation=1)
    trace.kernel("fill", 20, 30, correlation=1)
    trace.call("cudaGraphLaunch_v10000", 40, 50, correlation=2)
    run = imported(tmp_path, "nsys", vm=trace.write(tmp_path / "a.sqlite"))
    rows = quantities(run, "vm")
    assert (rows["busy_ns"].value, rows["launch_count"].value) == (None, None)
    assert "The kernels of 1 CUDA graph are hidden in vm" in printed(run)


@pytest.mark.parametrize("is_traced", [True, False], ids=["nodes", "nothing"])
def test_a_trace_of_pytorch_hides_graphs_where_none_of_their_kernels_is_there(
    tmp_path: Path, *, is_traced: bool
) -> None:
    """Kernels of a graph carry the correlation of its launch."""
    graph = event("cuda_runtime", "cudaGraphLaunch", 40, 5, correlation=2)
    nodes = [kernel("gemm_a", 50, 10, correlation=2), kernel("gemm_b", 60, 10, correlation=2)]
    events = [launch(1, 0), kernel("fill", 10, 1, correlation=1), graph, *nodes * is_traced]
    run = imported(tmp_path, "kineto", vm=write(tmp_path / "a.json", events))
    assert quantities(run, "vm")["launch_count"].value == (3 if is_traced else None)


def test_ranks_of_one_program_are_summed(tmp_path: Path) -> None:
    """Rank and world size stand in the traces: they are no passes that contradict each other."""
    run = imported(tmp_path, "kineto", vm=RANKS)
    found = run.profiles[0].arms[0].quantities
    values = {(row.name, row.rank): row.value for row in found}
    assert values["launch_count", None] == 5
    assert values["kernel_time_ns", None] == 135_000
    assert (values["busy_ns", 0], values["busy_ns", 1]) == (90_000, 45_000)
    text = printed(run)
    assert "Sums of vm are over ranks 0 and 1 of 2" in text
    assert "contradict" not in text
    assert "another program" not in text


@pytest.mark.parametrize("calls", [1, 2], ids=["one call", "a call for each"])
def test_ranks_of_two_environments_are_compared_in_sums(tmp_path: Path, calls: int) -> None:
    """Each rank has its counterpart, and kernels are those of all ranks."""
    docker = tuple(shifted(tmp_path, rank) for rank in (0, 1))
    folder = request(tmp_path, *RANKS, tool="kineto").run().folder
    for files in (docker,) if calls == 1 else ((docker[1],), (docker[0],)):
        request(tmp_path, *files, tool="kineto", arm="docker", into=folder.path).run()
    run = compared(folder)
    rows = {(row.name, row.rank): row for row in run.profiles[0].arms[1].quantities}
    assert rows["kernel_time_ns", None].ratio == pytest.approx(137 / 135)
    assert rows["busy_ns", 1].ratio == pytest.approx(46 / 45)
    assert "the same kernels: 3 kernels" in answer(run)
    assert "135 µs → 137 µs" in answer(run)


def test_a_rank_of_one_environment_is_compared_with_the_same_rank(tmp_path: Path) -> None:
    """Sums over other ranks would be of another program."""
    run = imported(tmp_path, "kineto", vm=RANKS, docker=shifted(tmp_path, 1))
    rows = {(row.name, row.rank): row for row in run.profiles[0].arms[1].quantities}
    assert rows["launch_count", None].ratio == 1
    assert rows["busy_ns", None].ratio == pytest.approx(46 / 45)
    assert "Rank 0 of vm is left out: another environment has no trace of it." in printed(run)


def test_two_logs_of_times_are_no_passes_over_the_same_launches(tmp_path: Path) -> None:
    """Of two ranks with the same kernels one would be lost."""
    logs = (log(tmp_path, "rank0.log"), log(tmp_path, "rank1.log"))
    logs[1].write_text(logs[0].read_text().replace("==1234==", "==1235=="), encoding="utf-8")
    with pytest.raises(ProfileError, match="cannot trust") as caught:
        request(tmp_path, *logs).run()
    assert "process or rank" in caught.value.hint


def test_a_percentage_of_blackwells_pipes_is_evidence_of_tensor_cores(tmp_path: Path) -> None:
    """Where one kernel ran on HMMA and the other on tcgen05, both ran on tensor cores."""
    run = imported(tmp_path, "ncu", vm=DATA / "ncu_blackwell_tensor.csv")
    assert quantities(run, "vm")["tensor_core_share"].value == 100


@pytest.mark.parametrize(
    ("capability", "pipes", "share"),
    [
        ("9.0", {HMMA: "0"}, 0),
        ("12.0", {HMMA: "0"}, 0),
        ("10.0", {HMMA: "0"}, None),
        ("10.3", {HMMA: "0"}, None),
        ("10.0", {HMMA: "0", TC: "0"}, 0),
        ("10.0", {TC: "0", "sm__pipe_tensor_cycles_active.sum": "0"}, 0),
        ("10.0", {"sm__inst_executed_pipe_tensor_subpipe_imma.sum": "0"}, None),
        ("13.0", {HMMA: "0", TC: "0"}, None),
        ("13.0", {HMMA: "0", TC: "4"}, 100),
    ],
)
def test_a_pipe_that_was_not_counted_is_not_known(
    tmp_path: Path, capability: str, pipes: dict[str, str], share: float | None
) -> None:
    """0 in one pipe tells nothing of another, nor of those of a chip that is not known."""
    path = tmp_path / "a.csv"
    units = {name: "inst" if name.endswith(".sum") else "cycle" for name in pipes}
    row = ncu_launch(0, "100", *pipes.values(), capability=capability)
    path.write_text(raw({TIME: "ns", **units}, row), encoding="utf-8")
    run = imported(tmp_path, "ncu", vm=path)
    assert quantities(run, "vm")["tensor_core_share"].value == share
