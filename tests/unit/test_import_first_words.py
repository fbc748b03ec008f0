"""The first words and values of imports that a reader would otherwise take for another cause."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from imports import answer, compared, files_of, imported, log, request
from kinetotraces import copy as copied
from kinetotraces import event, kernel, launch, write
from ncutexts import TIME, raw
from ncutexts import launch as ncu_launch
from nsysexports import Trace, change, exported
from summaries import printed

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import QuantityRow
from envcompare.analysis.profiles.armprofiles import over_ranks
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
    assert "Sums for vm cover ranks 0 and 1 of 2" in text
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


def test_several_ranks_that_another_environment_lacks_are_named_in_the_plural(
    tmp_path: Path,
) -> None:
    """The sentence is read by people."""
    vm, docker = (
        [started_with(tmp_path / f"{arm}{n}", {"RANK": n, "WORLD_SIZE": 3}) for n in ranks]
        for arm, ranks in (("vm", (0, 1, 2)), ("docker", (0,)))
    )
    run = imported(tmp_path, "nsys", vm=tuple(vm), docker=tuple(docker))
    said = "Ranks 1 and 2 of vm are left out: another environment has no trace of them."
    assert said in printed(run)


def of_rank(folder: Path, name: str, rank: int, *, size: int) -> Path:
    """Write the trace of a rank of so many."""
    text = RANKS[0].read_text(encoding="utf-8")
    path = folder / f"{name}{rank}.json"
    text = text.replace('"rank":0', f'"rank":{rank}').replace(
        '"world_size":2', f'"world_size":{size}'
    )
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            ((0,), (3,)),
            "The traces of vm are of rank 0 of 4, and those of docker are of rank 3 of 4",
        ),
        (
            ((0, 1), (2, 3)),
            "vm are of ranks 0 and 1 of 4, and those of docker are of ranks 2 and 3 of",
        ),
    ],
    ids=["a rank", "several"],
)
def test_traces_of_other_ranks_have_no_ratio(
    tmp_path: Path, ranks: tuple[tuple[int, ...], ...], said: str
) -> None:
    """They do other work, which is no difference between environments."""
    vm, docker = (
        tuple(of_rank(tmp_path, arm, rank, size=4) for rank in of)
        for arm, of in zip(("vm", "docker"), ranks, strict=True)
    )
    run = imported(tmp_path, "kineto", vm=vm, docker=docker)
    rows = run.profiles[0].arms[1].quantities
    assert {row.ratio for row in rows} == {None}
    assert {row.unlike for row in rows if row.rank is None and row.value is not None} == {"ranks"}
    assert (run.profiles[0].kernel_diffs, run.profiles[0].ledgers) == ((), ())
    assert said in printed(run)
    assert "the same kernels" not in answer(run) + printed(run)


def test_the_same_rank_of_another_number_of_ranks_is_compared_with_a_caution(
    tmp_path: Path,
) -> None:
    """More ranks share the work of a program, which may be what was asked about."""
    vm, docker = (of_rank(tmp_path, f"{size}-", 0, size=size) for size in (2, 4))
    run = imported(tmp_path, "kineto", vm=vm, docker=docker)
    rows = {row.name: row.ratio for row in run.profiles[0].arms[1].quantities}
    assert rows["launch_count"] == 1
    assert "rank 0 of 4: the number of ranks could explain any difference." in printed(run)


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


def test_an_agent_that_is_not_listed_is_of_the_one_model_that_is(tmp_path: Path) -> None:
    """ROCm numbers all agents of the host; beside it the NVIDIA GPU is named first."""
    amd, b200 = DATA / "kineto_rocm_device_2_of_1.json", DATA / "kineto_bf16_flash.json"
    run = imported(tmp_path, "kineto", amd=amd, b200=b200)
    for text in (answer(run), printed(run)):
        assert "GPU (AMD Instinct MI300X → NVIDIA B200)" in text
        assert "precision" not in text.partition("whole profile")[0]
        assert "GPU not known" not in text


def test_a_number_that_fits_no_listed_model_names_none(tmp_path: Path) -> None:
    """Of two models in a host any may be meant."""
    listed = [{"id": 0, "name": "NVIDIA T4"}, {"id": 1, "name": "NVIDIA L4"}]
    path = write(tmp_path / "a.json", [kernel("k", 0, 1, device=5)], deviceProperties=listed)
    assert imported(tmp_path, "kineto", vm=path).profiles[0].devices == ()


def test_a_trace_of_an_xpu_is_read(tmp_path: Path) -> None:
    """What a stream is to CUDA is a queue to SYCL."""
    run = imported(tmp_path, "kineto", vm=DATA / "kineto_xpu.json")
    rows = quantities(run, "vm")
    assert (rows["launch_count"].value, rows["kernel_time_ns"].value) == (1, 30_000)
    assert run.profiles[0].devices == ("Intel(R) Data Center GPU Max 1550",)


@pytest.mark.parametrize(
    ("name", "quantity"),
    [("Memcpy M2D (Memory -> Device)", "memcpy_htod_bytes"),
     ("Memcpy D2M (Device -> Memory)", "memcpy_dtoh_bytes"),
     ("Memcpy D2S (Device -> Shared)", "memcpy_unified_bytes")],
)  # fmt: skip
def test_copies_of_an_xpu_have_their_direction(tmp_path: Path, name: str, quantity: str) -> None:
    """Memory of the host is M there."""
    args = {"device": 0, "bytes": 64, "sycl queue": 0, "context": "0x1"}
    path = write(tmp_path / "a.json", [event("gpu_memcpy", name, 0, 1, **args)])
    assert quantities(imported(tmp_path, "kineto", vm=path), "vm")[quantity].value == 64


@pytest.mark.parametrize(
    ("category", "call", "told"),
    [
        ("cuda_runtime", "hipLaunchKernel", "AMD"),
        ("musa_runtime", "musaLaunchKernel", "Moore Threads"),
    ],
)
def test_a_vendor_is_named_where_no_model_is(
    tmp_path: Path, category: str, call: str, told: str
) -> None:
    """By the calls that launched the kernels; another vendor is another GPU."""
    events = [event(category, call, 0, 1, correlation=1), kernel("k", 2, 1, correlation=1)]
    other = write(tmp_path / "other.json", events, deviceProperties=[])
    run = imported(tmp_path, "kineto", b200=DATA / "kineto_bf16_flash.json", other=other)
    said = f"GPU (NVIDIA B200 → {told} GPU, model not recorded)"
    assert said in answer(run)


def test_work_that_cannot_be_read_names_whose_it_is(tmp_path: Path) -> None:
    """The refusal blames no other vendor."""
    lacking = write(
        tmp_path / "a.json", [event("kernel", "k", 0, 1)],
        deviceProperties=[{"id": 0, "name": "Gaudi 3"}],
    )  # fmt: skip
    ascend = write(tmp_path / "b.json", [event("", "k", 0, 1, **{"Task Type": "", "Stream Id": 1})])
    for path, told in ((lacking, "Gaudi 3"), (ascend, "Huawei Ascend")):
        with pytest.raises(ProfileError) as caught:
            request(tmp_path, path, tool="kineto").run()
        assert told in caught.value.details
        assert "ROCm" not in caught.value.details


def test_names_of_cudnns_attention_tell_no_precision(tmp_path: Path) -> None:
    """It says f16 of BF16 too; both kernels run on tensor cores."""
    flash, cudnn = DATA / "kineto_bf16_flash.json", DATA / "kineto_bf16_cudnn.json"
    run = imported(tmp_path, "kineto", flash=flash, cudnn=cudnn)
    for arm in ("flash", "cudnn"):
        assert quantities(run, arm)["tensor_core_share"].value == 100
    for text in (answer(run), printed(run)):
        assert "precision" not in text
        assert "same work" not in text


def test_kernels_whose_names_tell_nothing_are_no_kernels_without_tensor_cores(
    tmp_path: Path,
) -> None:
    """A matrix product without a word for its cores may run on either."""
    events = [kernel("my_gemm(float*)", 0, 99), kernel("relu(float*)", 99, 1)]
    run = imported(tmp_path, "kineto", vm=write(tmp_path / "a.json", events))
    row = quantities(run, "vm")["tensor_core_share"]
    assert row.value is None
    assert row.reason == "kernels with 99 % of the time have names that give no hint"


def test_another_batch_is_no_proof_of_another_library(tmp_path: Path) -> None:
    """One cuBLAS chooses kernels of several generations by the shape."""
    names = {"small": "volta_sgemm_128x64_nn", "large": "ampere_sgemm_128x64_nn"}
    files = {
        arm: write(tmp_path / f"{arm}.json", [kernel(name, 0, 9)]) for arm, name in names.items()
    }
    text = printed(imported(tmp_path, "kineto", **files))
    assert "which suggests other shapes or another batch, or libraries of another version" in text
    assert "chose them" not in text


def test_launches_without_a_name_count(tmp_path: Path) -> None:
    """They took their time; whether two programs ran the same kernels is open then."""
    path = exported(tmp_path, "nsys_unknown_names")
    run = imported(tmp_path, "nsys", vm=path, docker=exported(tmp_path, "nsys_eager"))
    rows = quantities(run, "vm")
    assert (rows["launch_count"].value, rows["kernel_time_ns"].value) == (3, 7e6)
    assert rows["busy_ns"].value == 7e6
    assert "same kernels is not known: 2 launches have no name" in answer(run)


def test_the_first_traces_were_bare_lists_of_events(tmp_path: Path) -> None:
    """Kineto of 2020 and tools that cut traces write them so."""
    run = imported(tmp_path, "kineto", vm=DATA / "kineto_bare_array.json")
    rows = quantities(run, "vm")
    assert (rows["launch_count"].value, rows["kernel_time_ns"].value) == (2, 30_000)
    assert rows["memset_bytes"].value == 256


def test_devices_of_the_first_traces_have_their_names(tmp_path: Path) -> None:
    """They stood in computeProperties."""
    listed = [{"id": 0, "name": "Tesla V100", "major": 7, "minor": 0}]
    path = tmp_path / "a.json"
    content = {"schemaVersion": 1, "computeProperties": listed, "traceEvents": [kernel("k", 0, 1)]}
    path.write_text(json.dumps(content), encoding="utf-8")
    assert imported(tmp_path, "kineto", vm=path).profiles[0].devices == ("Tesla V100",)


def test_a_rate_of_fewer_invocations_is_left_out_by_itself(tmp_path: Path) -> None:
    """Nvprof prints one so; the counts beside it are whole."""
    run = imported(tmp_path, "nvprof", vm=DATA / "nvprof_one_rate_short.log")
    rows = quantities(run, "vm")
    assert (rows["flops_fp32"].value, rows["dram_read_sectors"].value) == (8_000, 400)


@pytest.mark.parametrize(
    ("name", "why", "hint"),
    [
        ("ncu_failed.txt", "failed: LaunchFailed", "make the program succeed without ncu"),
        ("ncu_nothing_profiled.csv", "no kernel was profiled", "--target-processes"),
    ],
    ids=["failed", "nothing profiled"],
)
def test_a_log_of_ncu_says_why_it_holds_nothing(
    tmp_path: Path, name: str, why: str, hint: str
) -> None:
    """To convert it, or to print it as CSV, would not help."""
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, DATA / name, tool="ncu").run()
    assert why in caught.value.details
    assert hint in caught.value.hint
    assert "--import" not in caught.value.hint


STATS = """
 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Name
"""
CSV_STATS = "Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,5,1,5.0,k\n"
TAR = b"a.json".ljust(257, b"\0") + b"ustar\x0000"


@pytest.mark.parametrize(
    ("content", "why", "hint"),
    [
        (STATS.encode(), "the output of `nsys stats`", "nsys export"),
        (CSV_STATS.encode(), "the output of `nsys stats`", "nsys export"),
        (b'[{"Time (%)": 3}]', "the output of `nsys stats`", "nsys export"),
        (TAR, "a tar archive", "tar xf"),
        (gzip.compress(TAR), "a tar archive", "tar xf"),
        (b"PK\x03\x04rest", "a zip archive", "unzip"),
    ],
    ids=["stats", "stats as CSV", "stats as JSON", "tar", "tar.gz", "zip"],
)
@pytest.mark.parametrize("tool", ["nsys", "kineto", "ncu", "nvprof"])
def test_what_is_no_file_of_a_profiler_is_recognised(
    tmp_path: Path, tool: str, content: bytes, why: str, hint: str
) -> None:
    """Archives and printed statistics, whichever tool they are given for."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, path, tool=tool).run()
    assert why in caught.value.details
    assert hint in caught.value.hint


def test_an_export_of_old_is_read_without_the_tables_of_today(tmp_path: Path) -> None:
    """Nsys exported it, though it has no ANALYSIS_DETAILS."""
    path = exported(tmp_path, "nsys_eager")
    change(path, "DROP TABLE ANALYSIS_DETAILS")
    run = imported(tmp_path, "nsys", vm=path)
    assert quantities(run, "vm")["launch_count"].value == 2


def test_a_copy_that_only_one_environment_made_is_0_in_the_other(tmp_path: Path) -> None:
    """A trace holds all copies and memsets there were."""
    work = [kernel("k", 0, 1)]
    with_copy = [*work, copied("Memcpy HtoD (Pinned -> Device)", 2, 1, 4096)]
    vm, docker = write(tmp_path / "a.json", with_copy), write(tmp_path / "b.json", work)
    rows = quantities(imported(tmp_path, "kineto", vm=vm, docker=docker), "docker")
    assert (rows["memcpy_htod_bytes"].value, rows["memcpy_htod_ns"].value) == (0, 0)
    assert rows["memset_bytes"].value == 0


def test_kernels_that_ncu_ran_alone_are_compared_as_such(tmp_path: Path) -> None:
    """Their times are of kernels, and no words make them those of the program."""
    files = {}
    for arm, time in (("vm", "100"), ("docker", "300")):
        files[arm] = tmp_path / f"{arm}.csv"
        files[arm].write_text(raw({TIME: "ns"}, ncu_launch(0, time)), encoding="utf-8")
    run = imported(tmp_path, "ncu", **files)
    for text in (answer(run), printed(run)):
        assert "Run one by one by ncu, the kernels took 100 ns → 300 ns." in text


ENVIRONMENT = {"HOME": "/root", "WANDB_API_KEY": "0123456789abcdef0123"}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace_that_holds_a_secret_is_not_copied(tmp_path: Path, name: str) -> None:
    """The profile is kept; the variable is named and not its value."""
    path = write(tmp_path / name, [kernel("k", 0, 1)], environment=ENVIRONMENT)
    done = request(tmp_path, path, tool="kineto").run()
    assert f"{name} is not copied: it holds WANDB_API_KEY, which may be a secret" in done.lines
    kept = b"".join(files_of(done.folder.path).values())
    assert b"0123456789abcdef0123" not in kept


@pytest.mark.parametrize(
    "cells",
    [
        "'WANDB_API_KEY', 'abc123'",
        "'env', 'X=1\nWANDB_API_KEY=abc123'",
        "'env', CAST(X'4C433DFF0A' AS TEXT) || 'WANDB_API_KEY=abc123'",
    ],
    ids=["name and value", "text", "no UTF-8"],
)
def test_an_export_that_holds_a_secret_is_not_copied(tmp_path: Path, cells: str) -> None:
    """As a name and a value, or within a text."""
    path = exported(tmp_path, "nsys_eager")
    change(path, f"INSERT INTO META_DATA_EXPORT VALUES ({cells})")
    done = request(tmp_path, path, tool="nsys").run()
    assert any("WANDB_API_KEY" in line for line in done.lines)
    assert done.folder.read_profiles()[0].raw == ()


def test_a_report_whose_export_holds_a_secret_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report of nsys packs the environment of its program, which only the export shows."""
    change(
        exported(tmp_path, "nsys_eager"),
        "INSERT INTO META_DATA_EXPORT VALUES ('env', 'HF_TOKEN=hf_abcdefghijklmnop')",
    )
    program = tmp_path / "nsys"
    program.write_text(
        "#!/bin/sh\n"
        "for word; do case $word in --output=*) to=${word#--output=};; esac; done\n"
        f'/bin/cp "{tmp_path}/nsys_eager.sqlite" "$to"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.nsys-rep").write_bytes(b"packed")
    done = request(tmp_path, tmp_path / "run.nsys-rep", tool="nsys").run()
    assert "run.nsys-rep is not copied: it holds HF_TOKEN, which may be a secret" in done.lines
    assert b"packed" not in files_of(done.folder.path).values()


def test_a_trace_without_a_secret_is_copied(tmp_path: Path) -> None:
    """Words such as key and pass name much else."""
    path = write(tmp_path / "a.json", [kernel("sort_by_key<KEY=int, PASS=2>", 0, 1)], key="value")
    (record,) = request(tmp_path, path, tool="kineto").run().folder.read_profiles()
    assert len(record.raw) == 1


def started_with(folder: Path, variables: dict[str, int]) -> Path:
    """Return an export of nsys that was started with these variables."""
    folder.mkdir()
    path = exported(folder, "nsys_eager")
    words = ("HOME=/root", *(f"{name}={value}" for name, value in variables.items()))
    environment = "'||char(0)||'".join(words)
    change(
        path,
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);"
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('DeviceEnvironment', '{environment}');",
    )
    return path


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_ranks_that_nsys_was_started_for_are_summed(tmp_path: Path, names: tuple[str, str]) -> None:
    """An export holds the environment of nsys, where the launcher of the ranks says which it is."""
    paths = [started_with(tmp_path / str(n), {names[0]: n, names[1]: 2}) for n in (0, 1)]
    run = imported(tmp_path, "nsys", vm=tuple(paths))
    rows = {(row.name, row.rank): row.value for row in run.profiles[0].arms[0].quantities}
    assert (rows["launch_count", None], rows["kernel_time_ns", None]) == (4, 160e6)
    assert (rows["busy_ns", 0], rows["busy_ns", 1]) == (80e6, 80e6)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_JOB_ID": 7, "SLURM_PROCID": 0, "SLURM_NTASKS": 8},
        {"SLURM_JOB_ID": 7, "SLURM_NTASKS": 8},
        {"SLURM_JOB_ID": 7, "SLURM_PROCID": 0, "SLURM_NTASKS": 8, "SLURM_STEP_NUM_TASKS": 1},
        {"RANK": 0, "WORLD_SIZE": 1, "SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 8},
    ],
    ids=[
        "script of sbatch",
        "shell of salloc, or nsys around srun",
        "shell of salloc in an interactive step, or srun of one task",
        "torchrun of one process",
    ],
)
def test_one_process_of_a_job_of_several_tasks_is_no_rank(
    tmp_path: Path, variables: dict[str, int]
) -> None:
    """What surrounds the program has several tasks; the program itself is one process."""
    run = imported(tmp_path, "nsys", vm=started_with(tmp_path / "job", variables))
    assert "distributed program" not in answer(run) + printed(run)
    assert {row.rank for row in run.profiles[0].arms[0].quantities} == {None}


def test_ranks_of_every_tool_are_summed(tmp_path: Path) -> None:
    """Two files of torch.profiler and three of nsys are of one program each."""
    nsys = [started_with(tmp_path / str(n), {"RANK": n, "WORLD_SIZE": 3}) for n in (0, 1, 2)]
    folder = request(tmp_path, *RANKS, tool="kineto").run().folder
    request(tmp_path, *nsys, tool="nsys", into=folder.path).run()
    tools = {one.profile.tool: one.profile for one in over_ranks(folder.read_profiles())
             if one.profile}  # fmt: skip
    scopes = {
        tool: {line.scope for line in profile.quantities if line.name == "launch_count"}
        for tool, profile in tools.items()
    }
    assert scopes == {"kineto": {"over 2 ranks"}, "nsys": {"over 3 ranks"}}
    assert len(over_ranks(folder.read_profiles())) == 2


def test_the_environment_of_nsys_without_a_secret_is_kept(tmp_path: Path) -> None:
    """Its folder is no password, though the variable has the word in it."""
    path = exported(tmp_path, "nsys_eager")
    change(path, "INSERT INTO META_DATA_EXPORT VALUES ('env', 'PWD=/home/user'||char(0)||'A=b')")
    assert request(tmp_path, path, tool="nsys").run().folder.read_profiles()[0].raw


def test_two_files_of_the_same_counters_are_no_passes(tmp_path: Path) -> None:
    """The second is of another rank: its counts would be lost."""
    paths = []
    for rank in (0, 1):
        paths.append(tmp_path / f"rank{rank}.csv")
        text = raw({TIME: "ns", "dram__bytes.sum": "byte"}, ncu_launch(0, "100", f"{rank}64"))
        paths[-1].write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        request(tmp_path, *paths, tool="ncu").run()
    assert "rank1.csv adds no counter" in caught.value.details


def test_operations_of_a_chip_that_is_not_known_have_no_sum(tmp_path: Path) -> None:
    """It may have a type of number that no counter of today holds."""
    path = tmp_path / "a.csv"
    name = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
    row = ncu_launch(0, "100", "64", capability="13.0")
    path.write_text(raw({TIME: "ns", name: "op"}, row), encoding="utf-8")
    rows = quantities(imported(tmp_path, "ncu", vm=path), "vm")
    assert rows["flops_tensor"].value is None
    assert rows["flops_tensor_bf16"].value == 64
