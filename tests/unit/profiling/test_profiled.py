"""The profiles of a run folder from end to end: written, analysed, compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from builders import block, blocks, run_record
from msgspec.structs import replace
from traces import ADD, CELL, CONV, kernel, lacking, launched, record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import CellProfiles
from envcompare.run_folder.profiles import Device, Profile, ProfileRecord, Quantity
from envcompare.run_folder.records import ArmRecord, Event, Sample
from envcompare.run_folder.results import RunFolder

BUILT = "void at::native::_GLOBAL__N__5_x_compute_{}_cpp1_ii_1::clamp<float>(int)"


def compared(folder: Path, *records: ProfileRecord, samples: tuple[Sample, ...]) -> RunComparison:
    """Write a run folder with these profiles and analyse it."""
    made = RunFolder.create(folder, run_record())
    for sample in samples:
        made.append_sample(sample)
    for one in records:
        made.write_profile(one)
    made.append_event(Event(t=1.0, what="arm-ready", cell=CELL, arm="vm", values={"code": "aa"}))
    made.close()
    return compare_run(made)


def only(run: RunComparison) -> CellProfiles:
    """Return the profiles of the only cell."""
    (found,) = run.profiles
    return found


def traces(vm: list[str], docker: list[str]) -> tuple[ProfileRecord, ProfileRecord]:
    """Return a trace of each arm; a step of the GPU is 10 µs longer than its kernels."""
    made = []
    for arm, names in (("vm", vm), ("docker", docker)):
        busy = 2_000.0 * len(names)
        profile = launched([kernel(n) for n in names], busy_ns=busy, span_ns=busy + 20_000.0)
        made.append(record(profile, arm=arm))
    return made[0], made[1]


def _imported(one: ProfileRecord) -> ProfileRecord:
    """Return a profile as if it came from a file of any origin."""
    return replace(one, kind="imported")


def test_run_without_a_gpu_gets_a_ledger_from_its_blocks(tmp_path: Path) -> None:
    """No profile is needed for it, and the control is left out."""
    found = only(compared(tmp_path, samples=blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.0})))
    (ledger,) = found.ledgers
    assert (ledger.arm, ledger.basis) == ("docker", "timing")
    assert sum(part.change_ns for part in ledger.parts) == ledger.change_ns
    assert ledger.change_ns == pytest.approx(1_000_000, rel=0.05)
    assert "verdict excludes waiting" in ledger.notes[-1]
    assert found.arms == ()


def test_run_with_neither_blocks_nor_profiles_has_no_profiles(tmp_path: Path) -> None:
    """Nothing is drawn of nothing."""
    assert compared(tmp_path, samples=()).profiles == ()


def test_traces_give_diff_and_ledger_held_against_the_timing(tmp_path: Path) -> None:
    """What the trace does not see of the timed change is said."""
    samples = tuple(replace(one, gpu_ns=one.wall_ns) for one in blocks({"vm": 1.0, "docker": 1.1}))
    found = only(compared(tmp_path, *traces([CONV], [CONV, ADD]), samples=samples))
    (ledger,) = found.ledgers
    assert (ledger.basis, ledger.change_ns) == ("gpu-trace", 1_000)
    assert ledger.timing_change_ns == pytest.approx(1_000_000, rel=0.05)
    assert ledger.unseen_ns == (ledger.timing_change_ns or 0) - 1_000
    (diff,) = found.kernel_diffs
    assert (diff.both, diff.only_arm, diff.identical_kernel_set) == (1, 1, False)
    assert [arm.arm for arm in found.arms] == ["vm", "docker"]
    assert found.arms[0].activities is not None


def test_step_on_a_gpu_is_divided_into_kernels_and_the_rest(tmp_path: Path) -> None:
    """The rest is what a timed step takes beyond the traced kernels; both have an interval."""
    timed = blocks({"vm": 1.0, "docker": 1.1, "vm~control": 1.0})
    samples = tuple(replace(one, gpu_ns=one.wall_ns) for one in timed)
    busy = [2_000_000.0 + 20_000 * (step % 3) for step in range(99)]
    records = [
        replace(one, profile=replace(one.profile, steps=99, step_busy_ns=tuple(steps),
                                     busy_ns=sum(steps), span_ns=2 * sum(steps)))
        for one, steps in zip(
            traces([CONV], [CONV]), (busy, [1.02 * each for each in busy]), strict=True
        )
        if one.profile
    ]  # fmt: skip
    run = compared(tmp_path / "all", *records, samples=samples)
    (parts,) = only(run).gpu_parts
    kernels, host = parts.kernels, parts.host
    assert host is not None
    assert math.exp(kernels.log_ratio) == pytest.approx(1.02)
    assert kernels.low is not None
    assert 0 < kernels.log_ratio - kernels.low < 0.005
    step_ns = kernels.reference_ns + host.reference_ns
    assert step_ns == pytest.approx(10_000_000, rel=0.05)
    expected_ns = 1.1 * step_ns - 1.02 * kernels.reference_ns
    assert host.arm_ns == pytest.approx(expected_ns, rel=0.02)
    assert host.low is not None
    assert host.high is not None
    assert host.low < host.log_ratio < host.high
    few = [replace(one, profile=replace(one.profile, step_busy_ns=())) for one in records]
    (parts,) = only(compared(tmp_path / "few", *few, samples=samples)).gpu_parts
    assert (parts.kernels.low, parts.kernels.log_ratio) == (None, pytest.approx(math.log(1.02)))


def test_step_on_a_cpu_is_not_divided_so(tmp_path: Path) -> None:
    """A profile that holds work of a GPU is not of what was timed."""
    records = traces([CONV], [CONV])
    assert only(compared(tmp_path, *records, samples=blocks({"vm": 1.0}))).gpu_parts == ()


def test_build_that_names_show_confounds_the_comparison(tmp_path: Path) -> None:
    """It is a difference like those of the fingerprints, once for the run."""
    records = traces([BUILT.format(70)], [BUILT.format(86)])
    run = compared(tmp_path, *records, samples=blocks({"vm": 1.0, "docker": 1.1}))
    docker = next(comparison for comparison in run.comparisons if comparison.arm == "docker")
    assert (docker.outcome, docker.is_confounded) == ("slower", True)
    assert [difference.key for difference in run.differences] == ["kernels.build"]
    assert only(run).betrayed == run.differences


def test_imported_names_leave_the_verdict_of_what_was_timed(tmp_path: Path) -> None:
    """Nobody knows what program a file of any origin is of: it is said, and confounds nothing."""
    vm, docker = traces([BUILT.format(70)], [BUILT.format(86)])
    for number, pair in enumerate(((vm, docker), (vm, _imported(docker)))):
        both = tuple(map(_imported, pair)) if not number else pair
        run = compared(tmp_path / str(number), *both, samples=blocks({"vm": 1.0, "docker": 1.1}))
        found = next(comparison for comparison in run.comparisons if comparison.arm == "docker")
        assert (found.outcome, found.is_confounded) == ("slower", False)
        assert [one.fact_class for one in only(run).betrayed] == ["possible-influence"]
        assert "no verdict rests on them" in only(run).betrayed[0].evidence


def test_own_passes_confound_beside_imported_files(tmp_path: Path) -> None:
    """What the run saw itself is as sure as without them."""
    vm, docker = traces([BUILT.format(70)], [BUILT.format(86)])
    other = _imported(replace(docker, name="imported-nsys"))
    run = compared(tmp_path, vm, docker, other, samples=blocks({"vm": 1.0, "docker": 1.1}))
    assert next(
        comparison for comparison in run.comparisons if comparison.arm == "docker"
    ).is_confounded
    assert [one.fact_class for one in only(run).betrayed] == ["confounder"]


def test_imported_traces_are_not_held_against_the_timing(tmp_path: Path) -> None:
    """What they do not show of the timed change means nothing, where they are of other work."""
    pair = tuple(map(_imported, traces([CONV], [CONV, ADD])))
    (ledger,) = only(compared(tmp_path, *pair, samples=blocks({"vm": 1.0, "docker": 1.1}))).ledgers
    assert (ledger.timing_change_ns, ledger.unseen_ns) == (None, None)
    assert "perhaps not of the timed program" in ledger.notes[-1]


def test_identical_kernels_confound_nothing(tmp_path: Path) -> None:
    """One image on two engines."""
    run = compared(tmp_path, *traces([CONV], [CONV]), samples=blocks({"vm": 1.0, "docker": 1.0}))
    assert run.differences == ()
    assert only(run).kernel_diffs[0].identical_kernel_set


def test_profile_of_another_program_is_a_caution(tmp_path: Path) -> None:
    """The hash of the timed code stands in the events."""
    vm, docker = traces([CONV], [CONV])
    found = only(compared(tmp_path, replace(vm, code_hash="bb"), docker, samples=(block(),)))
    assert "is not the timed code" in found.cautions[0]


def test_missing_pass_keeps_its_reason_and_hint(tmp_path: Path) -> None:
    """What was not allowed is shown with the command that allows it."""
    lacks = lacking("ERR_NVGPUCTRPERM", "--cap-add=SYS_ADMIN")
    lost = record(None, state="missing", lacks=lacks)
    found = only(compared(tmp_path, lost, samples=()))
    (state,) = found.arms[0].passes
    assert (state.state, state.lacks) == ("missing", lacks)


def test_traces_that_cannot_be_divided_say_why(tmp_path: Path) -> None:
    """A reason stands where the ledger would."""
    vm, docker = traces([CONV], [CONV])
    bad = replace(docker, steps=None, profile=replace(docker.profile or Profile(tool="nsys"),
                                                       steps=None))  # fmt: skip
    found = only(compared(tmp_path, vm, bad, samples=()))
    assert found.ledgers == ()
    assert any("No ledger of docker: the number of steps" in text for text in found.cautions)


def test_host_pass_splits_the_cpu_time_of_the_ledger(tmp_path: Path) -> None:
    """Own work and kernel, as counted around the same steps."""
    host = tuple(
        Quantity(name=name, value=value, unit="ns", rule="sum", source="getrusage")
        for name, value in (("user_ns", 3e9), ("sys_ns", 1e9))
    )
    records = [
        record(Profile(tool="perf", quantities=host, steps=2), arm=arm, kind="host")
        for arm in ("vm", "docker")
    ]
    found = only(compared(tmp_path, *records, samples=blocks({"vm": 1.0, "docker": 1.0})))
    assert {"user", "system"} <= {part.part for part in found.ledgers[0].parts}


def looked_beside(arm: str, *, used_ns: float, window_ns: float) -> ProfileRecord:
    """Return the host pass of an arm, in which the engine used CPU time beside the worker."""
    seen = tuple(
        Quantity(name=name, value=value, unit="ns", rule="sum", source="/proc of the host")
        for name, value in (("helper_dockerd_ns", used_ns), ("helpers_window_ns", window_ns))
    )
    return record(Profile(tool="perf", quantities=seen, steps=2), arm=arm, kind="host")


@pytest.mark.parametrize(
    ("used_ns", "again_ns", "expected"),
    [
        (1_800_000, 1_000_000, {}),
        (9_000_000, 1_000_000, {"dockerd": 720_000}),
        (9_000_000, 9_000_000, {}),
    ],
    ids=["a longer step", "a higher rate", "a rate that chance gives too"],
)
def test_programs_beside_the_worker_are_compared_by_their_rates(
    tmp_path: Path, used_ns: float, again_ns: float, expected: dict[str, int]
) -> None:
    """A step that takes longer gives a program at work for all more time, and accuses it of none.

    The reference's own rate is 1 % of a CPU, and what it measured twice differs in is no finding.
    """
    records = [
        looked_beside("vm", used_ns=1_000_000, window_ns=1e8),
        looked_beside("docker", used_ns=used_ns, window_ns=1.8e8),
        looked_beside("vm~control", used_ns=again_ns, window_ns=1e8),
    ]
    samples = blocks({"vm": 1.0, "docker": 1.8, "vm~control": 1.0})
    (ledger,) = only(compared(tmp_path, *records, samples=samples)).ledgers
    assert ledger.helpers == pytest.approx(expected, rel=0.05)


def test_imported_profiles_alone_are_compared(tmp_path: Path) -> None:
    """Two old logs are a run: kernels, ledger, builds, and nothing timed."""
    arms = (
        ArmRecord(id="vm", environment="vm", is_reference=True, is_timed=False),
        ArmRecord(id="docker", environment="docker", is_timed=False),
    )
    made = RunFolder.create(tmp_path, run_record(arms=arms))
    for arm, names in (("vm", ["void cudnn::detail::bn_bw<float>(P)"]), ("docker", [CONV])):
        profile = Profile(tool="nvprof", kernels=tuple(kernel(n) for n in names))
        made.write_profile(record(profile, arm=arm, kind="imported", name="imported-nvprof"))
    made.close()
    run = compare_run(made)
    found = only(run)
    assert (run.comparisons, found.kernel_diffs[0].arm) == ((), "docker")
    assert found.ledgers[0].is_per_step is False
    assert "kernels.cudnn" in {one.key for one in found.betrayed}


def test_gpu_of_which_no_model_is_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Another model may be the cause; where both are known nothing is said."""
    vm, docker = traces([CONV], [CONV])
    h100 = replace(vm.profile or Profile(tool="nsys"), devices=(Device(name="NVIDIA H100"),))
    half = only(compared(tmp_path / "a", replace(vm, profile=h100), docker, samples=()))
    assert half.cautions[0].startswith("The GPU model of docker is unknown and could")
    both = (replace(one, profile=h100) for one in (vm, docker))
    whole = only(compared(tmp_path / "b", *both, samples=()))
    assert not any("GPU model" in text for text in whole.cautions)


def test_work_on_a_gpu_that_nobody_sampled_says_so(tmp_path: Path) -> None:
    """Power is missing with its reason, beside the timing of both arms."""
    samples = tuple(replace(b, gpu_ns=b.wall_ns) for b in blocks({"vm": 1.0, "docker": 1.0}))
    found = only(compared(tmp_path, samples=samples))
    power = {arm.arm: arm.quantities[0] for arm in found.arms}
    assert [one.name for one in power.values()] == ["power_w", "power_w"]
    assert power["docker"].reason == "no GPU was sampled during the timing pass"


def test_imported_arm_beside_timed_ones_is_compared_with_the_reference(tmp_path: Path) -> None:
    """It has kernels and no verdict."""
    old = ArmRecord(id="old", environment="vm", is_timed=False)
    made = RunFolder.create(tmp_path, run_record(arms=(*run_record().arms, old)))
    for sample in blocks({"vm": 1.0, "docker": 1.0}):
        made.append_sample(sample)
    for arm, kind in (("vm", "nsys"), ("old", "imported")):
        made.write_profile(record(launched([kernel(CONV)]), arm=arm, kind=kind))
    made.close()
    run = compare_run(made)
    assert {comparison.arm for comparison in run.comparisons} == {"docker", "vm~control"}
    assert [diff.arm for diff in only(run).kernel_diffs] == ["old"]
