"""Traces of torch.profiler: what they add up to, and what is refused."""

from __future__ import annotations

import codecs
import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinetotraces import (
    BACKWARD,
    DEVICE,
    Event,
    copy,
    event,
    kernel,
    launch,
    operator,
    step,
    write,
)

from envcompare.profile_files import read as read_any
from envcompare.profile_files.kineto import read
from envcompare.report.wording.profilewords import note_sentences
from envcompare.run_folder.profiles import Device, Profile, ProfileRecord

DATA = Path(__file__).resolve().parents[2] / "data/profiles"
H200 = Path(__file__).resolve().parents[3] / "results/h200-counters/profiles/local_cnn_default"


def of(path: Path, *events: Event, **head: object) -> Profile:
    """Return the profile of a trace with these events."""
    return read(write(path / "trace.json", list(events), **head))


def value(profile: Profile, name: str) -> float | None:
    """Return the value of the only quantity of a name."""
    (found,) = (quantity.value for quantity in profile.quantities if quantity.name == name)
    return found


def test_operators_of_a_real_trace_add_up_as_torch_adds_them() -> None:
    """Counts, times to the nanosecond and bytes are those of key_averages() of torch 2.13."""
    averages = json.loads((DATA / "kineto-cpu-averages.json").read_text(encoding="utf-8"))
    found = [
        [one.name, one.calls, one.cpu_ns, one.self_cpu_ns, one.self_cpu_bytes]
        for one in read(DATA / "kineto-cpu.json").operators
    ]
    assert averages == sorted(found)


@pytest.mark.parametrize("arm", ["vm-host", "docker-host"])
def test_a_real_trace_of_a_gpu_is_read(arm: str) -> None:
    """Of five steps of a CNN on an H200, as the run that is published has read it."""
    profile = read(H200 / arm / "torch.json.gz")
    assert profile.devices[0].name == "NVIDIA H200"
    assert sum(kernel.calls for kernel in profile.kernels) == 5 * 66
    assert len({kernel.name for kernel in profile.kernels}) == 46
    kept = msgspec.json.decode((H200 / arm / "torch.json").read_bytes(), type=ProfileRecord).profile
    assert kept is not None
    assert (profile.kernels, profile.busy_ns) == (kept.kernels, kept.busy_ns)
    assert len(profile.step_busy_ns) == profile.steps == 5
    assert sum(profile.step_busy_ns) == profile.busy_ns


def test_a_trace_without_a_gpu_says_so() -> None:
    """No CUDA data is a state, not an error."""
    profile = read(DATA / "kineto-cpu.json")
    assert (profile.kernels, profile.span_ns, profile.busy_ns) == ((), None, None)
    assert note_sentences(profile.notes) == (
        "no GPU data: the trace contains no kernel, copy or memset",
    )


def test_times_are_nanoseconds(tmp_path: Path) -> None:
    """Microseconds come with three places, or as whole numbers before 2024."""
    start = 1_790_857_026_000_000.125
    floats = of(tmp_path, kernel("k", start, 1.001), kernel("k", start + 10, 2.25))
    whole = of(tmp_path, kernel("k", 1_790_857_026_000_000, 3))
    assert floats.kernels[0].total_ns == 3251
    assert whole.kernels[0].total_ns == 3000


@pytest.mark.parametrize(("lasts", "found"), [(0, 0), (0.001, 1), (1.0000000002, 1000)])
def test_whole_nanoseconds_are_read_as_they_are(tmp_path: Path, lasts: float, found: float) -> None:
    """Also after a tool that computed with them left the noise of its floats."""
    assert of(tmp_path, kernel("k", 5, lasts)).kernels[0].total_ns == found


def test_kernels_copies_and_calls_of_a_step(tmp_path: Path) -> None:
    """Each is grouped as it is for any other tool."""
    profile = of(tmp_path, *step(0), *step(1, at=1000.0))
    kernels = [(one.name[:10], one.calls, one.total_ns, one.op) for one in profile.kernels]
    assert kernels == [
        ("volta_sgem", 2, 100_500, "aten::addmm"),
        ("void at::n", 2, 40_000, "aten::add"),
    ]
    assert profile.sequence == (0, 1, 0, 1)
    copies = [(one.kind, one.calls, one.total_ns, one.total_bytes) for one in profile.copies]
    assert copies == [("HtoD", 2, 80_000, 8192), ("memset", 2, 5_000, 128)]
    assert [(call.name, call.calls) for call in profile.api_calls] == [("cudaLaunchKernel", 4)]
    assert profile.steps == 2
    assert profile.step_busy_ns == ()  # no call is known to have begun the copies


def test_busy_time_is_the_union_over_streams(tmp_path: Path) -> None:
    """What overlaps counts once."""
    profile = of(
        tmp_path, kernel("a", 0, 10), kernel("b", 5, 10, stream=8),
        copy("Memcpy DtoH (Device -> Pinned)", 30, 5, 64),
    )  # fmt: skip
    found = (profile.span_ns, profile.busy_ns, profile.kernel_busy_ns, profile.launch_gap_ns)
    assert found == (35_000, 20_000, 15_000, 15_000)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("HtoA", "HtoD"), ("AtoH", "DtoH"), ("AtoD", "DtoD"), ("PtoP", "PtoP"), ("XtoY", "other")],
)
def test_copy_of_an_array_is_one_of_device_memory(tmp_path: Path, name: str, kind: str) -> None:
    """As the other readers take it; a texture lies there too."""
    profile = of(tmp_path, copy(f"Memcpy {name} (Array -> Device)", 30, 5, 64))
    assert [one.kind for one in profile.copies] == [kind]


def test_two_gpus_are_never_merged(tmp_path: Path) -> None:
    """Each has a busy time of its own, and the profile none."""
    profile = of(tmp_path, kernel("a", 0, 10), kernel("a", 0, 20, device=1))
    busy = {
        quantity.scope: quantity.value
        for quantity in profile.quantities
        if quantity.name == "busy_ns"
    }
    assert (profile.busy_ns, busy) == (None, {"GPU 0": 10_000, "GPU 1": 20_000})


def test_device_time_goes_to_the_operator_and_those_around_it(tmp_path: Path) -> None:
    """Self is what an operator launched itself."""
    times = {
        one.name: (one.self_device_ns, one.device_ns) for one in of(tmp_path, *step()).operators
    }
    assert times == {
        "aten::linear": (0, 50_250), "aten::addmm": (50_250, 50_250), "aten::add": (20_000, 20_000),
    }  # fmt: skip


def test_a_launch_belongs_to_the_operators_of_its_own_thread(tmp_path: Path) -> None:
    """The backward thread works while the main thread waits in another operator."""
    profile = of(
        tmp_path, operator("aten::item", 0, 100), operator("ConvBackward", 10, 50, thread=BACKWARD),
        launch(1, 20, thread=BACKWARD), kernel("k", 200, 5, correlation=1),
    )  # fmt: skip
    assert profile.kernels[0].op == "ConvBackward"


def test_share_of_nccl_is_of_its_kernels_and_collectives_are_all(tmp_path: Path) -> None:
    """What compute covers is hidden; other libraries exchange data between GPUs as well."""
    profile = of(
        tmp_path, kernel("gemm", 0, 60),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 50, 20, stream=9),
        kernel("void multimem_all_reduce_kernel<float>(float*)", 100, 10),
        kernel("void vllm::cross_device_reduce_1stage<float>(int)", 120, 10),
    )  # fmt: skip
    assert value(profile, "nccl_share") == pytest.approx(20.0)
    assert value(profile, "collective_share") == pytest.approx(40.0)
    assert value(profile, "collective_exposed_ns") == 30_000


def test_collectives_of_the_host_are_exposed_where_no_operator_computes(tmp_path: Path) -> None:
    """Gloo says what it does in a thread of its own; what waits for it is no computation."""
    profile = of(
        tmp_path,
        event("user_annotation", "ProfilerStep#3", 0, 200),
        operator("autograd::engine::evaluate_function: Hook", 0, 150),
        operator("AddmmBackward0", 10, 60),
        operator("aten::mm", 20, 30),
        operator("c10d::allreduce_", 50, 60),
        {**event("user_annotation", "gloo:all_reduce", 40, 60), "tid": BACKWARD},
        {**event("user_annotation", "gloo:all_reduce", 90, 20), "tid": BACKWARD + 1},
    )
    assert value(profile, "collective_ns") == 70_000
    assert value(profile, "collective_exposed_ns") == 60_000
    assert value(profile, "collective_step_share") == pytest.approx(35.0)
    assert value(profile, "collective_exposed_step_share") == pytest.approx(30.0)


def test_collectives_without_nccl_give_it_no_share(tmp_path: Path) -> None:
    """A share of 0 was measured: NCCL ran nothing."""
    names = (
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<half>(Params)",
        "nvshmemi_transfer_rma_p",
        "void two_shot_all_reduce_kernel<c10::BFloat16>(c10::BFloat16**)",
    )
    rows = [kernel(name, 20 * at, 10) for at, name in enumerate(names)]
    profile = of(tmp_path, *rows, kernel("gemm", 100, 30))
    assert value(profile, "nccl_share") == 0.0
    assert value(profile, "collective_share") == pytest.approx(50.0)


def test_a_kernel_is_no_collective_for_a_word_inside_its_name(tmp_path: Path) -> None:
    """A share is not told where nothing was exchanged."""
    profile = of(tmp_path, kernel("void my_nccl_like(int)", 0, 60), kernel("ncc", 70, 10))
    assert not [quantity for quantity in profile.quantities if "share" in quantity.name]


def test_occupancy_is_an_estimate_weighted_by_time(tmp_path: Path) -> None:
    """Kineto computes it from the launch; it never has the name of a measured one."""
    key = "est. achieved occupancy %"
    kernels = kernel("a", 0, 30, **{key: 100}), kernel("b", 40, 10, **{key: 20.0})
    unknown = kernel("c", 60, 30, **{key: -99})  # Kineto knows no properties of the device
    profile = of(tmp_path, *kernels, unknown)
    assert value(profile, "estimated_occupancy") == pytest.approx(80.0)
    assert all(quantity.name != "occupancy" for quantity in profile.quantities)


FFMA, FADD, FMUL = (
    f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum" for kind in ("ffma", "fadd", "fmul")
)
AVERAGE = "sm__warps_active.avg.pct_of_peak_sustained_active"


def counted(name: str, **counters: object) -> Event:
    """Return the counters of one kernel."""
    return event("cuda_profiler_range", name, 0, 1, **counters)


def test_counters_come_without_times(tmp_path: Path) -> None:
    """They are added up over the ranges; an average is left out and named."""
    profile = of(
        tmp_path, counted("gemm", **{FFMA: 100, AVERAGE: 50.0}), counted("gemm", **{FFMA: 28})
    )
    (found,) = profile.kernels
    assert (found.calls, found.total_ns, found.metrics) == (2, None, {FFMA: 128.0})
    assert (profile.has_time, profile.busy_ns) == (False, None)
    assert any(AVERAGE in note for note in note_sentences(profile.notes))


def test_ranges_of_the_profiler_are_no_launches(tmp_path: Path) -> None:
    """The kernels of the trace are; what a range counted is in the sums alone."""
    counters = counted("__profile__", **{FFMA: 100, FADD: 8, FMUL: 0})
    path = write(tmp_path / "trace.json", [counters, kernel("gemm", 0, 50), kernel("add", 60, 5)])
    profile = read_any("kineto", [path])
    assert [(one.name, one.calls, one.total_ns) for one in profile.kernels] == [
        ("gemm", 1, None), ("add", 1, None),
    ]  # fmt: skip
    assert value(profile, "launch_count") == 2
    assert value(profile, "flops_fp32") == 208.0


def test_a_range_over_the_whole_program_is_no_kernel(tmp_path: Path) -> None:
    """It has no launches to count, and says why."""
    path = write(tmp_path / "trace.json", [counted("__profile__", **{FFMA: 100, FADD: 8, FMUL: 0})])
    profile = read_any("kineto", [path])
    launches = next(quantity for quantity in profile.quantities if quantity.name == "launch_count")
    assert (profile.kernels, launches.value, launches.status) == ((), None, "missing")
    assert value(profile, "flops_fp32") == 208.0


def test_memory_goes_to_the_innermost_operator(tmp_path: Path) -> None:
    """Device and host are told apart; what was freed counts against it."""

    def held(at: float, size: int, kind: int) -> Event:
        made = event("cpu_instant_event", "[memory]", at, 0, Bytes=size, **{"Device Type": kind})
        return {**made, "ph": "i"}

    profile = of(
        tmp_path, operator("outer", 0, 100), operator("inner", 10, 20), held(15, 512, 1),
        held(50, 64, 0), held(60, -32, 0), held(500, 7, 0),
    )  # fmt: skip
    found = {one.name: (one.self_cpu_bytes, one.self_device_bytes) for one in profile.operators}
    assert found == {"outer": (32, 0), "inner": (0, 512)}


def test_head_tells_device_and_rank(tmp_path: Path) -> None:
    """What stands before the events is read without reading them twice."""
    known = {"rank": 1, "world_size": 8, "backend": "nccl"}
    profile = of(tmp_path, kernel("a", 0, 1), distributedInfo=known)
    assert (profile.devices[0].name, profile.devices[0].compute_capability) == (
        "NVIDIA A100-SXM4-40GB", "8.0",
    )  # fmt: skip
    assert "from a distributed program: rank 1 of 8, backend nccl" in note_sentences(profile.notes)


@pytest.mark.parametrize("spaces", [0, 1 << 21], ids=["short", "long"])
def test_devices_are_known_wherever_they_stand(tmp_path: Path, spaces: int) -> None:
    """Tools that merge or sort traces write them behind the events, however many these are."""
    padding = [operator("aten::add" + "_" * 1000, at, 1) for at in range(spaces // 1000)]
    late = {"deviceProperties": [DEVICE], "distributedInfo": {"rank": 3, "world_size": 4}}
    content = {"schemaVersion": 1, "traceEvents": [*padding, kernel("a", 0, 1)], **late}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    profile = read(path)
    assert [device.name for device in profile.devices] == ["NVIDIA A100-SXM4-40GB"]
    assert "from a distributed program: rank 3 of 4, backend ?" in note_sentences(profile.notes)


def test_device_list_that_is_empty_before_the_events_is_read_behind_them(tmp_path: Path) -> None:
    """The last of two values of one name counts, as in any JSON."""
    text = json.dumps({"deviceProperties": [], "traceEvents": [kernel("a", 0, 1)]})
    path = tmp_path / "trace.json"
    path.write_text(f'{text[:-1]}, "deviceProperties": {json.dumps([DEVICE])}}}')
    assert [device.name for device in read(path).devices] == ["NVIDIA A100-SXM4-40GB"]


def test_name_of_a_field_inside_an_event_is_none_of_the_trace(tmp_path: Path) -> None:
    """What stands in the arguments of an event tells nothing of the devices."""
    mentioned = operator("aten::add", 0, 1, deviceProperties=[{"id": 0, "name": "a fake"}])
    content = {"traceEvents": [mentioned, kernel("a", 5, 1)]}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert read(path).devices == (Device(),)


MI300X = {
    "id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9, "computeMinor": 4, "warpSize": 64,
    "numSms": 304,
}  # fmt: skip
TENSILE = "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN_LDSB0"


def on_rocm(path: Path, *events: Event) -> Profile:
    """Return the profile of a trace of an AMD GPU, as Kineto writes it."""
    return read_any("kineto", [write(path / "trace.json", list(events), deviceProperties=[MI300X])])


def dispatched(name: str, start: float, lasts: float, **args: object) -> Event:
    """Return a kernel of an AMD GPU: it has no context, and its shape where that is known."""
    plain = {"device": 0, "stream": 0, "correlation": 1, "kind": "Dispatch Kernel"}
    return event("kernel", name, start, lasts, **{**plain, **args})


def test_a_trace_of_rocm_is_read_with_its_launches_and_copies(tmp_path: Path) -> None:
    """Kernels without a known shape have none; copies have names of their own."""
    call = event("cuda_runtime", "hipExtModuleLaunchKernel", 0, 5, cid=442, correlation=1)
    profile = on_rocm(
        tmp_path, call, dispatched(TENSILE, 10, 50, grid=[0, 0, 0], block=[256, 1, 1]),
        event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 70, 5, device=0, stream=0,
              correlation=2, kind="HtoD", bytes=4096),
        event("gpu_memcpy", "CopyDeviceToHost", 80, 5, device=0, stream=0, correlation=3),
        dispatched("__amd_rocclr_fillBufferAligned.kd", 90, 5),
    )  # fmt: skip
    assert profile.devices[0].name == "AMD Instinct MI300X"
    assert [(one.name, one.grid, one.block) for one in profile.kernels] == [
        (TENSILE, None, (256, 1, 1)), ("__amd_rocclr_fillBufferAligned.kd", None, None),
    ]  # fmt: skip
    assert [(one.kind, one.total_bytes) for one in profile.copies] == [
        ("HtoD", 4096), ("DtoH", None),
    ]  # fmt: skip
    assert [one.name for one in profile.api_calls] == ["hipExtModuleLaunchKernel"]


def test_share_of_rccl_is_not_called_one_of_nccl(tmp_path: Path) -> None:
    """RCCL's kernels have the names of NCCL's."""
    nccl = dispatched("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", 0, 10)
    profile = on_rocm(tmp_path, nccl, dispatched(TENSILE, 20, 30))
    assert value(profile, "rccl_share") == pytest.approx(25.0)
    assert not any(quantity.name == "nccl_share" for quantity in profile.quantities)


def test_a_trace_that_records_memsets_and_has_none_holds_none(tmp_path: Path) -> None:
    """Nothing of them is 0; without any GPU work it is not known."""
    profile = read_any("kineto", [write(tmp_path / "a.json", [kernel("a", 0, 1)])])
    assert (value(profile, "memset_ns"), value(profile, "memset_bytes")) == (0, 0)
    idle = read_any("kineto", [write(tmp_path / "b.json", [operator("aten::add", 0, 1)])])
    assert not any(quantity.name.startswith("memset") for quantity in idle.quantities)


def test_rocm_sets_memory_with_kernels_so_that_no_memset_is_not_told(tmp_path: Path) -> None:
    """They are kernels there, and nothing tells their bytes."""
    profile = on_rocm(tmp_path, dispatched(TENSILE, 0, 10))
    found = [quantity for quantity in profile.quantities if quantity.name.startswith("memset")]
    assert [(one.value, one.reason.startswith("ROCm sets memory")) for one in found] == [
        (None, True), (None, True),
    ]  # fmt: skip


def test_categories_of_old_traces_are_known(tmp_path: Path) -> None:
    """Before 2022 they were written in capitals."""
    old = [
        {**one, "cat": {"kernel": "Kernel", "cpu_op": "Operator", "cuda_runtime": "Runtime"}.get(
            one["cat"], one["cat"])}
        for one in step()
    ]  # fmt: skip
    assert of(tmp_path, *old) == of(tmp_path, *step())


def test_packed_and_plain_are_read_the_same(tmp_path: Path) -> None:
    """The ending does not matter, the content does."""
    plain = write(tmp_path / "a.json", step())
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain).kernels == read(packed).kernels


def test_trace_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Editors on Windows write one at the start of a file in UTF-8."""
    plain = write(tmp_path / "a.json", step())
    marked = tmp_path / "marked.json"
    marked.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert read(marked).kernels == read(plain).kernels


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("gemm", "add", "ncclDevKernel_AllReduce")), st.integers(0, 500),
        st.integers(0, 60), st.integers(7, 9), st.integers(0, 1), st.integers(1, 3),
    ),
    max_size=25,
)  # fmt: skip


def built(rows: list[tuple[Any, ...]]) -> list[Event]:
    """Return kernels, each with a correlation of its own."""
    return [
        kernel(
            name, start, lasts, stream=stream, device=device, grid=[grid, 1, 1], correlation=number
        )
        for number, (name, start, lasts, stream, device, grid) in enumerate(rows)
    ]


@settings(max_examples=60, deadline=None)
@given(rows=EVENTS, draw=st.randoms(use_true_random=False))
def test_order_of_events_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]], draw: random.Random
) -> None:
    """Kineto writes events as its threads deliver them."""
    folder, events = tmp_path_factory.mktemp("kineto"), built(rows)
    before = of(folder, *events)
    draw.shuffle(events)
    assert before == of(folder, *events)


@settings(max_examples=60, deadline=None)
@given(rows=EVENTS)
def test_groups_add_up_to_the_events(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    """Nothing is lost, and no union exceeds its sum or span on any GPU."""
    profile = of(tmp_path_factory.mktemp("kineto"), *built(rows))
    total = sum(row[2] for row in rows) * 1000
    assert sum(one.total_ns or 0 for one in profile.kernels) == total
    assert sum(one.calls for one in profile.kernels) == len(profile.sequence) == len(rows)
    busy = [profile.busy_ns] + [
        quantity.value for quantity in profile.quantities if quantity.name == "busy_ns"
    ]  # fmt: skip
    assert sum(one or 0 for one in busy) <= total
