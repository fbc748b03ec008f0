"""What `script/gpu-check` judges a run by: right evidence passes, made-wrong evidence fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from builders import CELL, block, run_record
from ncutexts import DATA, launch, raw
from nsysexports import Trace

import gpu_claims
from envcompare.errors import Problem
from envcompare.profile_files import ncu, nsys
from envcompare.run_folder.profiles import (
    Kernel,
    Lacking,
    Note,
    PassName,
    Profile,
    ProfileRecord,
    Quantity,
    Roofs,
)
from envcompare.run_folder.records import ArmRecord, Event, Failure, GpuReading, Sample
from envcompare.run_folder.results import RunFolder
from gpu_claims import GpuRun, Outcome

RESULTS = Path(__file__).resolve().parents[2] / "results"
ON_CPU = RESULTS / "example"
STEPS = 5
ARMS = (
    ArmRecord(id="vm", environment="vm", is_reference=True),
    ArmRecord(id="docker", environment="docker"),
    ArmRecord(id="vm@host", environment="vm", stack="host"),
    ArmRecord(id="vm~control", environment="vm", is_control=True),
)
Profiles = dict[tuple[str, str, PassName], ProfileRecord]


def run_of(
    profiles: Profiles | None = None,
    *,
    samples: tuple[Sample, ...] = (),
    events: tuple[Event, ...] = (),
    roofs: tuple[Roofs, ...] = (),
    energies: dict[tuple[str, str], bool] | None = None,
) -> GpuRun:
    """Return a run of the CNN in two arms with the image's software and one with the host's."""
    record = run_record(arms=ARMS)
    return GpuRun(
        record=record, profiles=profiles or {}, samples=samples, events=events, roofs=roofs,
        energies=energies or {},
    )  # fmt: skip


def kept(
    kind: PassName, profile: Profile | Lacking, *arms: str
) -> dict[tuple[str, str, PassName], ProfileRecord]:
    """Return the same profile of each arm, or what it lacks."""
    parts = {"lacks": profile} if isinstance(profile, Lacking) else {"profile": profile}
    return {
        ("cnn", arm, kind): ProfileRecord(
            host="local", cell=CELL, arm=arm, kind=kind, name=kind, **parts
        )
        for arm in arms or ("vm", "docker", "vm@host")
    }


def states(outcomes: object) -> dict[str, str]:
    """Return the state of each arm."""
    assert not isinstance(outcomes, Outcome)
    return {outcome.arm: outcome.state for outcome in outcomes}  # type: ignore[attr-defined]


def on_device(**devices: str) -> tuple[Event, ...]:
    """Return what workers said of their device."""
    return tuple(
        Event(t=1.0, what="note", cell=CELL, arm=arm, values={"device": device})
        for arm, device in devices.items()
    )


def flops(counted: float, *operators: tuple[str, int]) -> Profile:
    """Return the count of PyTorch's own counter over some steps."""
    quantity = Quantity(
        name="flops_model", value=counted, unit="FLOP", rule="sum", source="FlopCounterMode"
    )
    notes = tuple(
        Note(kind="flops-of-operator", values={"operator": name, "flops": value})
        for name, value in operators
    )
    return Profile(tool="torch", quantities=(quantity,), notes=notes, steps=STEPS)


def test_a_real_run_on_a_cpu_has_the_formula_and_nothing_of_a_gpu() -> None:
    """Its FLOPs are right, and no image saw a GPU."""
    rows = {row.check: row for row in gpu_claims.judge(GpuRun.read(ON_CPU))}
    assert tuple(rows) == gpu_claims.names()
    assert rows["FLOPs of the model are the formula's: cnn"].state == "passed"
    assert rows["every arm computed on the GPU: cnn"].state == "failed"
    assert rows["DRAM sectors × 32 are the bytes: cnn"].state == "not possible here"
    assert not gpu_claims.has_reached_gpu(GpuRun.read(ON_CPU))


def test_the_runs_on_a_real_h200_pass_what_they_can_be_judged_by() -> None:
    """The one has two workloads and no counters, the other counters of one workload."""
    run, counters = (GpuRun.read(RESULTS / name) for name in ("h200", "h200-counters"))
    assert gpu_claims.has_reached_gpu(run)
    judged = gpu_claims.judge(run)
    assert [row.check for row in judged if row.state == "failed"] == []
    assert sum(row.state == "passed" for row in judged) == 12
    counted = gpu_claims.judge(counters)
    failed = [row.check for row in counted if row.state == "failed"]
    assert failed == ["every arm computed on the GPU: rnn"]  # which that run does not have
    of_cnn = [row for row in counted if row.check.endswith(": cnn")]
    assert [row.check for row in of_cnn if row.state != "passed"] == [
        f"{check}: cnn" for check in gpu_claims.CHECKS if "nsys" in check or "same kernels" in check
    ]


def test_flops_of_a_real_run_that_were_changed_fail(tmp_path: Path) -> None:
    """One FLOP more in one arm."""
    run = GpuRun.read(ON_CPU)
    record = run.profiles["cnn", "docker", "flops"]
    assert record.profile
    quantity = msgspec.structs.replace(record.profile.quantities[0], value=22900899841)
    profile = msgspec.structs.replace(record.profile, quantities=(quantity,))
    changed = {
        **run.profiles,
        ("cnn", "docker", "flops"): msgspec.structs.replace(record, profile=profile),
    }
    spoilt = run_of(changed)
    assert states(gpu_claims.model_flops(spoilt, "cnn"))["docker"] == "failed"
    assert states(gpu_claims.model_flops(spoilt, "cnn"))["vm"] == "passed"


CONVOLUTIONS = tuple((name, 5 * value) for name, value in gpu_claims.CONVOLUTION.items())


@pytest.mark.parametrize(
    ("operators", "state"),
    [
        (CONVOLUTIONS, {"passed"}),
        (((CONVOLUTIONS[0][0], CONVOLUTIONS[0][1] + 1), CONVOLUTIONS[1]), {"passed", "failed"}),
        (CONVOLUTIONS[:1], {"passed", "failed"}),
        ((), {"not possible here"}),
    ],
)
def test_convolutions_have_the_flops_of_their_formula(
    operators: tuple[tuple[str, int], ...], state: set[str]
) -> None:
    """Forward and backward each; a count that is missing is wrong."""
    run = run_of(kept("flops", flops(1.0, *operators)))
    assert {o.state for o in gpu_claims.convolution_flops(run, "cnn")} == state


def test_the_formula_is_what_pytorch_counted_on_a_real_run() -> None:
    """Of five steps, operator by operator: read from the notes of the kept run."""
    profile = GpuRun.read(ON_CPU).profiles["cnn", "vm", "flops"].profile
    assert profile
    told = [(note.values["operator"], note.values["flops"]) for note in profile.notes]
    assert set(CONVOLUTIONS) <= set(told)


def counters(path: Path, *, sectors: int, moved: int) -> Profile:
    """Return a raw page of Nsight Compute with one kernel, as it is read."""
    metrics = {"dram__bytes_read.sum": "byte", "dram__sectors_read.sum": "sector"}
    path.write_text(raw(metrics, launch(0, moved, sectors)), encoding="utf-8")
    return msgspec.structs.replace(ncu.read(path), steps=1)


@pytest.mark.parametrize(
    ("sectors", "moved", "state"),
    [(100, 3200, "passed"), (100, 3201, "failed"), (100, 6400, "failed"), (0, 0, "passed")],
)
def test_a_sector_of_device_memory_is_32_bytes(
    tmp_path: Path, sectors: int, moved: int, state: str
) -> None:
    """A sector of 64 bytes, and one byte too many, are found."""
    profile = counters(tmp_path / "a.csv", sectors=sectors, moved=moved)
    run = run_of(kept("ncu-memory", profile))
    assert set(states(gpu_claims.memory_sectors(run, "cnn")).values()) == {state}


def test_bytes_without_sectors_judge_nothing() -> None:
    """The page of a real tool that was not asked for sectors."""
    profile = ncu.read(DATA / "ncu_raw_2024.csv")
    assert gpu_claims.sector_sizes("vm", profile).state == "not possible here"


def traced(path: Path, names: tuple[str, ...]) -> Profile:
    """Return an export of Nsight Systems with these kernels, as it is read."""
    trace = Trace()
    for number, name in enumerate(names):
        start = 1000 + 100 * number
        trace.kernel(name, start, start + 50, grid=(4, 1, 1), block=(32, 1, 1))
    return msgspec.structs.replace(nsys.read(trace.write(path)), steps=1)


def counted(path: Path, names: tuple[str, ...]) -> Profile:
    """Return a raw page of Nsight Compute with these kernels, as it is read."""
    rows = [launch(number, 5000, name=name) for number, name in enumerate(names)]
    path.write_text(raw({"gpu__time_duration.sum": "ns"}, *rows), encoding="utf-8")
    return msgspec.structs.replace(ncu.read(path), steps=1)


GEMM = "void gemm<(int)4, float>(float const*, int)"
GEMM_OF_NCU = "void gemm<4, float>(const float *, int)"


@pytest.mark.parametrize(
    ("of_nsys", "of_ncu", "state"),
    [
        ((GEMM, "relu(float*)"), (GEMM_OF_NCU, "relu(float *)"), "passed"),
        ((GEMM, "relu(float*)"), ("void gemm<8, float>(float*, int)", "relu(float*)"), "failed"),
        ((GEMM, GEMM), (GEMM_OF_NCU,), "failed"),
        ((GEMM,), (GEMM_OF_NCU, "relu(float*)"), "failed"),
    ],
)
def test_nsys_and_ncu_name_the_same_kernels(
    tmp_path: Path, of_nsys: tuple[str, ...], of_ncu: tuple[str, ...], state: str
) -> None:
    """Spelled in two ways they are one kernel; another template or number of launches is none."""
    run = run_of(
        kept("nsys", traced(tmp_path / "a.sqlite", of_nsys))
        | kept("ncu-memory", counted(tmp_path / "a.csv", of_ncu))
        | kept("ncu-flops", counted(tmp_path / "b.csv", of_ncu))
    )
    assert set(states(gpu_claims.same_kernels(run, "cnn")).values()) == {state}


def test_a_pass_that_the_host_does_not_allow_is_no_failure(tmp_path: Path) -> None:
    """With its remedy; one that was tried in vain is a failure."""
    problem = Problem(brief="no right to read counters", hint="modprobe")
    for why, state in (("not-usable", "not possible here"), ("failed", "failed")):
        run = run_of(
            kept("nsys", traced(tmp_path / f"{why}.sqlite", (GEMM,)))
            | kept("ncu-memory", Lacking(why=why, problem=problem))
        )
        outcomes = tuple(gpu_claims.memory_sectors(run, "cnn"))
        assert {outcome.state for outcome in outcomes} == {state}
        assert outcomes[0].detail == "ncu-memory: no right to read counters (try: modprobe)"


def test_arms_of_one_stack_launch_the_same_kernels(tmp_path: Path) -> None:
    """The host's own software may launch others."""
    same, other = (
        traced(tmp_path / f"{n}.sqlite", names) for n, names in enumerate([(GEMM,), ("relu(int)",)])
    )
    run = run_of(kept("nsys", same, "vm", "docker") | kept("nsys", other, "vm@host"))
    assert states(gpu_claims.kernels_of_arms(run, "cnn")) == {"docker": "passed"}
    run = run_of(kept("nsys", same, "vm", "vm@host") | kept("nsys", other, "docker"))
    assert states(gpu_claims.kernels_of_arms(run, "cnn")) == {"docker": "failed"}


@pytest.mark.parametrize(("total_ns", "state"), [(109.0, "passed"), (120.0, "failed")])
def test_two_tracers_agree_on_the_time_of_kernels(total_ns: float, state: str) -> None:
    """Within a tenth, in a step."""
    kernel = Kernel(name="k", calls=1, total_ns=total_ns)
    nsys_profile = Profile(tool="nsys", kernels=(kernel,), steps=1)
    double = Kernel(name="k", calls=2, total_ns=200.0)
    kineto = Profile(tool="torch", kernels=(double,), steps=2)
    run = run_of(kept("nsys", nsys_profile) | kept("torch", kineto))
    assert set(states(gpu_claims.tracers_agree(run, "cnn")).values()) == {state}


@pytest.mark.parametrize(
    ("in_docker", "state"), [(1.0, "passed"), (1.009, "passed"), (1.02, "failed")]
)
def test_counted_flops_agree_within_a_stack(in_docker: float, state: str) -> None:
    """To a hundredth; the host's own software has its own count."""
    formula = gpu_claims.FLOPS["cnn"]

    def profile(factor: float) -> Profile:
        quantity = Quantity(
            name="flops_fp32", value=formula * factor, unit="FLOP", rule="sum", source="ncu"
        )
        return Profile(tool="ncu", quantities=(quantity,), steps=1)

    run = run_of(
        kept("ncu-flops", profile(1.0), "vm")
        | kept("ncu-flops", profile(in_docker), "docker")
        | kept("ncu-flops", profile(0.1), "vm@host")
    )
    expected = {"vm": "passed", "docker": state, "vm@host": "failed"}
    assert states(gpu_claims.counted_flops(run, "cnn")) == expected


def test_tensor_cores_are_counted_once() -> None:
    """Their FLOPs stand by precision as well; a real GPU computes 1.55 times the formula."""
    counters = GpuRun.read(RESULTS / "h200-counters")
    told = {one.arm: one.detail for one in gpu_claims.counted_flops(counters, "cnn")}
    same = "1.55 times the formula; vm-host: 1.55"
    assert told == {"vm-host": same, "docker-host": same}


@pytest.mark.parametrize(
    ("gpu_ns", "state"),
    [
        ((9_500_000,) * 3, "passed"),
        ((10_500_000,) * 3, "failed"),
        ((100_000,) * 3, "failed"),
        (None, "not possible here"),
    ],
)
def test_events_lie_within_the_wall_time(gpu_ns: tuple[int, ...] | None, state: str) -> None:
    """Longer than the step is impossible; a hundredth of it means that it was not waited for."""
    run = run_of(samples=(block(gpu_ns=gpu_ns), block(gpu_ns=(1, 1, 1), warmup=True)))
    assert states(gpu_claims.events_within_wall(run, "cnn"))["vm"] == state


def reading(factor: float, *, seconds: int = 8, watts: float = 70.0) -> GpuReading:
    """Return readings ten times a second, with a counter that grows `factor` times the power."""
    count = 10 * seconds
    return GpuReading(
        cell=CELL,
        uuid="GPU-1",
        t_ns=tuple(number * 100_000_000 for number in range(count)),
        power_mw=(round(watts * 1000),) * count,
        energy_mj=tuple(round(number * 100 * watts * factor) for number in range(count)),
        sm_mhz=(1410,) * count,
        memory_mhz=(1215,) * count,
        temperature_c=(40,) * count,
        throttling=(0,) * count,
        utilization_percent=(100,) * count,
    )


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        (reading(1.0), "passed"),
        (reading(1.05), "passed"),
        (reading(0.25), "failed"),  # a counter in other units, or one that stands still
        (reading(1.0, watts=0.5), "failed"),
        (reading(1.0, seconds=3), "not possible here"),
    ],
)
def test_the_counter_of_energy_is_the_integral_of_power(readings: GpuReading, state: str) -> None:
    """Of stretches that are long enough."""
    run = run_of(samples=(readings,))
    assert states(gpu_claims.energy_agrees(run, "cnn")) == {"GPU-1": state}


def test_energy_of_a_gap_is_left_out() -> None:
    """Nobody knows what the power was between two readings that lie far apart."""
    plain = reading(1.0)
    late = tuple(t + 60_000_000_000 * (t >= 4_000_000_000) for t in plain.t_ns)
    torn = msgspec.structs.replace(plain, t_ns=late)
    outcome = gpu_claims.counter_against_integral("GPU-1", [torn])
    assert outcome.state == "passed"
    assert max(b - a for a, b in pairwise(late)) > 60_000_000_000


def test_energy_of_a_sample_has_a_value_or_a_reason() -> None:
    """In each arm whose GPU was read; a row that the comparison lacks is a failure."""
    told = {("cnn", "vm"): True, ("cnn", "docker"): False}
    expected = {"vm": "passed", "docker": "failed", "vm@host": "failed"}
    run = run_of(energies=told, samples=(reading(1.0),))
    assert states(gpu_claims.energy_is_told(run, "cnn")) == expected
    unread = states(gpu_claims.energy_is_told(run_of(energies=told), "cnn"))
    assert set(unread.values()) == {"not possible here"}


@pytest.mark.parametrize(
    ("bandwidth", "state"), [(0.25e12, "passed"), (0.4e12, "failed"), (0.05e12, "failed")]
)
def test_measured_roofs_lie_below_the_peaks(bandwidth: float, state: str) -> None:
    """The memory of a T4 has 320 GB/s."""
    measured = Roofs(
        host="local", device="Tesla T4", source="measured", is_measured=True, bytes_per_s=bandwidth
    )
    assert states(gpu_claims.roofs_below_table(run_of(roofs=(measured,)))) == {"Tesla T4": state}


@pytest.mark.parametrize(
    ("devices", "has_reached"),
    [
        ({"vm": "cuda:0", "docker": "cuda:0", "vm@host": "cuda:0"}, True),
        ({"vm": "cuda:0", "docker": "cuda:0", "vm@host": "cpu"}, True),
        ({"vm": "cuda:0", "docker": "cpu", "vm@host": "cuda:0"}, False),
        ({"vm": "cuda:0", "vm@host": "cuda:0"}, False),
    ],
)
def test_the_image_has_to_reach_the_gpu(devices: dict[str, str], has_reached: bool) -> None:  # noqa: FBT001 - a row of the table
    """An arm on the CPU, or one that never said, is enough; the host's stack does not count."""
    events = on_device(**devices)
    other = tuple(msgspec.structs.replace(event, cell="local/rnn/default") for event in events)
    run = run_of(events=(*events, *other))
    cells = (*run.record.cells, msgspec.structs.replace(
        run.record.cells[0], id="local/rnn/default", workload="rnn"))  # fmt: skip
    whole = GpuRun(
        record=msgspec.structs.replace(run.record, cells=cells),
        profiles={}, samples=(), events=run.events, roofs=(), energies={},
    )  # fmt: skip
    assert gpu_claims.has_reached_gpu(whole) is has_reached


def test_an_arm_that_failed_says_why() -> None:
    """The reason stands in the row."""
    failure = Failure(phase="start", brief="the driver is too old")
    failed = Event(t=1.0, what="arm-failed", cell=CELL, arm="docker", failure=failure)
    outcomes = {o.arm: o for o in gpu_claims.reached_gpu(run_of(events=(failed,)), "cnn")}
    assert (outcomes["docker"].state, outcomes["docker"].detail) == ("failed", failure.brief)


SUMMARIES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("passed", "passed"), "passed"),
    (("passed", "failed"), "failed"),
    (("passed", "not possible here"), "passed"),
    (("not possible here",), "not possible here"),
    ((), "not possible here"),
)


@pytest.mark.parametrize(("arms", "state"), SUMMARIES)
def test_one_arm_that_fails_fails_the_row(arms: tuple[str, ...], state: str) -> None:
    """And an arm that could not be judged hides no other."""
    outcomes = tuple(
        Outcome(arm=f"arm {number}", state=known, detail="d")  # type: ignore[arg-type]
        for number, known in enumerate(arms)
    )
    assert gpu_claims.summarised("c", outcomes).state == state


def test_every_check_of_the_table_has_a_test_that_fails_it() -> None:
    """A check that nothing can fail would prove nothing: its function is called above."""
    source = Path(__file__).read_text(encoding="utf-8")
    checks: tuple[Callable[..., object], ...] = tuple(gpu_claims.CHECKS.values())
    assert [c.__name__ for c in checks if f"gpu_claims.{c.__name__}(" not in source] == []


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    """Nothing is judged."""
    with pytest.raises(Exception, match="is not a run folder"):
        RunFolder.open(tmp_path)
