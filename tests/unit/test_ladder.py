"""The ladder: its arms, the steps between its rungs, and how they are counted, judged and drawn."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from builders import CELL, blocks, design, run_record
from chartpages import svg_of, texts_of
from experiments import known

from envcompare.analysis.compare import compare_run
from envcompare.analysis.frames import comparison_frame
from envcompare.analysis.model import LadderStep, RunComparison
from envcompare.config import LADDER, expand_stacks, parse_arms
from envcompare.config.experiment import resolve
from envcompare.config.plan import make_plan
from envcompare.config.settings import Settings
from envcompare.environments.registry import all_traits
from envcompare.errors import ConfigError
from envcompare.report.charts.sweeps import ladder_charts
from envcompare.report.exports import csv_text
from envcompare.report.page import render
from envcompare.report.wording.causewords import ladder_sentences
from envcompare.run_folder.records import (
    ArmRecord,
    Event,
    Failure,
    FingerprintRecord,
    FingerprintValue,
)
from envcompare.run_folder.results import RunFolder, count_comparisons
from envcompare.stats.verdicts import EQUAL_LEVEL
from tests.data.report.builders import changed

RUNGS = {
    "vm-host": "plain process",
    "namespaces": "namespaces",
    "cgroup": "+ cgroup",
    "seccomp": "+ seccomp",
    "overlay": "+ overlay root",
    "docker-host": "docker",
}
ARMS = (
    *(
        ArmRecord(id=arm, environment=arm, stack="host", rung=rung, is_reference=arm == "vm-host")
        for arm, rung in RUNGS.items()
    ),
    ArmRecord(id="vm-host~control", environment="vm-host", stack="host", is_control=True),
)
# a host without control groups of version 2; what each rung takes, the plain process 1
RATIOS = {
    "vm-host": 1.0,
    "namespaces": 1.0,
    "seccomp": 1.2,
    "overlay": 1.2,
    "docker-host": 1.32,
    "vm-host~control": 1.0,
}
WHY = "control groups of version 1"
FACTS: dict[str, dict[str, FingerprintValue]] = {
    "namespaces": {"seccomp.mode": 0, "engine.options": "--unshare-pid"},
    "seccomp": {"seccomp.mode": 2, "engine.options": "--unshare-pid --seccomp"},
    "overlay": {"seccomp.mode": 2, "engine.options": "--unshare-pid --seccomp --tmp-overlay /"},
    "docker-host": {"seccomp.mode": 2, "shm.bytes": 64, "torch.version": "2.9.0"},
}
TORCH = {"torch.version": "2.8.0"}  # where nothing else is said


def measured(
    folder: Path, *, screen: bool = False, arms: tuple[ArmRecord, ...] = ARMS
) -> RunComparison:
    """Write the folder of a run of the ladder and analyse it."""
    made = RunFolder.create(folder, run_record(arms=arms, design=design(screen=screen)))
    planned = {arm.id for arm in arms}
    for sample in blocks({arm: ratio for arm, ratio in RATIOS.items() if arm in planned}):
        made.append_sample(sample)
    failure = Failure(phase="environment", brief="it is not usable", details=WHY)
    at = {"host": "local", "cell": CELL, "arm": "cgroup"}
    made.append_event(Event(t=1.0, what="arm-failed", failure=failure, **at))
    for arm, facts in FACTS.items():
        made.write_fingerprint(
            FingerprintRecord(
                host="local", arm=arm, cell=CELL, facts=TORCH | facts, identity={}, taken="step"
            )
        )
    made.close()
    return compare_run(made)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunComparison:
    """Give the analysed run of the ladder."""
    return measured(tmp_path_factory.mktemp("ladder") / "run")


def rung(run: RunComparison, arm: str) -> LadderStep:
    """Return the rung of an arm."""
    return next(step for step in run.views.ladder if step.arm == arm)


def test_the_word_stands_for_six_arms_that_show_the_hosts_own_files() -> None:
    """From the plain process up, each known by what it adds."""
    arms = parse_arms((LADDER,), all_traits())
    assert {arm.id: arm.rung for arm in arms} == RUNGS
    assert {arm.stack for arm in arms} == {"host"}
    assert arms[0].environment == "vm"


def test_arms_beside_the_ladder_are_no_rungs() -> None:
    """An image is compared with the same reference, and is no step."""
    items = expand_stacks(("docker", LADDER), ("image", "host"))
    assert items == ("docker", LADDER, "docker@host")
    arms = parse_arms(("docker", LADDER), all_traits())
    assert [arm.id for arm in arms if not arm.rung] == ["docker"]
    with pytest.raises(ConfigError, match="vm-host is named twice"):
        parse_arms(("vm@host", LADDER), all_traits())


def test_the_control_of_the_plain_process_is_no_rung() -> None:
    """It is compared with the reference alone."""
    experiment = resolve(Settings(envs=LADDER), Settings(), known=known(cnn={}, rnn={}))
    plan = make_plan(experiment, ("local",), accept_many=False)
    assert [arm.rung for arm in plan.arms] == [*RUNGS.values(), ""]


def test_steps_are_counted_among_the_comparisons_but_the_one_that_is_an_arms_own() -> None:
    """Five arms and four more steps; that to the reference is the comparison of its arm."""
    assert count_comparisons(ARMS, 3) == 3 * (5 + 4)
    others = (ArmRecord(id="vm", environment="vm", is_reference=True), *ARMS[1:-1])
    assert count_comparisons(others, 1) == 5 + 4


def with_reference(name: str) -> tuple[ArmRecord, ...]:
    """Return the ladder with another rung as the reference, and no control."""
    return tuple(msgspec.structs.replace(arm, is_reference=arm.id == name) for arm in ARMS[:-1])


def test_a_reference_within_the_ladder_shares_the_steps_on_both_of_its_sides() -> None:
    """The step to it is a comparison too; with the highest rung as the reference, one is."""
    assert count_comparisons(with_reference("seccomp"), 1) == 5 + 3
    assert count_comparisons(with_reference("docker-host"), 1) == 5 + 4


def levels_of(run: RunComparison) -> set[float]:
    """Return the levels of all steps, to nine digits."""
    return {round(one.step.level, 9) for one in run.views.ladder if one.step}


def test_the_step_to_the_reference_is_the_comparison_of_the_rung_below_turned(
    tmp_path: Path,
) -> None:
    """One pair of arms has one interval, at the level of all others."""
    found = measured(tmp_path / "run", arms=with_reference("seccomp"))
    step = rung(found, "seccomp")
    (below,) = (comparison for comparison in found.comparisons if comparison.arm == "namespaces")
    assert (below.outcome, step.outcome, step.below) == ("faster", "slower", "namespaces")
    assert step.step is not None
    assert below.deciding is not None
    assert below.deciding.high is not None
    assert step.step.log_ratio == -below.deciding.log_ratio
    assert step.step.low == -below.deciding.high
    assert found.settings.planned_comparisons == 8
    assert "step from namespaces" in render(found)
    assert levels_of(found) - {EQUAL_LEVEL} == {round(step.step.level, 9)}


@pytest.mark.parametrize(("throttled_ns", "is_confounded"), [(0, False), (400_000_000, True)])
def test_a_quota_that_stopped_a_rung_confounds_its_step(
    tmp_path: Path, throttled_ns: int, *, is_confounded: bool
) -> None:
    """It is seen in the samples of the two rungs; one never reached is not felt."""
    made = RunFolder.create(tmp_path / "run", run_record(arms=ARMS))
    for sample in blocks(RATIOS):
        stopped = throttled_ns if sample.arm == "overlay" else 0
        made.append_sample(msgspec.structs.replace(sample, throttled_ns=stopped))
    for arm, quota in (("seccomp", None), ("overlay", 2.0)):
        facts: dict[str, FingerprintValue] = {"cgroup.cpu_quota": quota}
        made.write_fingerprint(FingerprintRecord(host="local", arm=arm, cell=CELL, facts=facts))
    made.close()
    found = rung(compare_run(made), "overlay")
    assert found.changed == ("cgroup.cpu_quota",)
    assert found.is_confounded == is_confounded


def test_steps_are_rows_of_the_frame_and_the_table(run: RunComparison) -> None:
    """Each with the rung below as its reference, and none of them primary."""
    frame = comparison_frame(run)
    steps = frame[frame["estimate_of"] == "step"]
    assert list(steps["arm"]) == ["namespaces", "seccomp", "overlay", "docker-host"]
    assert list(steps["reference_arm"]) == ["vm-host", "namespaces", "seccomp", "overlay"]
    assert list(steps["rung"]) == ["namespaces", "+ seccomp", "+ overlay root", "docker"]
    assert not steps["is_primary"].any()
    last = rung(run, "docker-host").step
    assert last is not None
    assert steps["log_ratio"].iloc[-1] == last.log_ratio
    assert csv_text(run).count(",step,") == len(steps)


@pytest.mark.parametrize(
    ("arm", "below", "change"),
    [
        ("namespaces", "vm-host", 0.0),
        ("seccomp", "namespaces", 0.2),
        ("overlay", "seccomp", 0.0),
        ("docker-host", "overlay", 0.1),
    ],
)
def test_a_step_is_the_part_of_its_rung_alone(
    run: RunComparison, arm: str, below: str, change: float
) -> None:
    """What the rungs below cost is not in it; one that was not measured is stepped over."""
    found = rung(run, arm)
    assert found.below == below
    assert found.step is not None
    assert found.step.low is not None
    assert found.step.high is not None
    assert found.step.low - 0.003 < math.log1p(change) < found.step.high + 0.003
    assert found.outcome == ("slower" if change else "equivalent")


def test_the_steps_sum_to_the_whole(run: RunComparison) -> None:
    """They rest on the same rounds as the comparison with the plain process."""
    (whole,) = (
        comparison.primary for comparison in run.comparisons if comparison.arm == "docker-host"
    )
    assert whole is not None
    steps = sum(step.step.log_ratio for step in run.views.ladder if step.step)
    assert steps == pytest.approx(whole.log_ratio, abs=0.002)


def test_a_step_has_the_level_of_every_comparison(run: RunComparison, tmp_path: Path) -> None:
    """Nine are planned; the screen has the steps in its number too."""
    assert run.settings.planned_comparisons == 9
    compared = [comparison.deciding for comparison in run.comparisons if not comparison.is_control]
    assert levels_of(run) == {round(one.level, 9) for one in compared if one}
    screened = measured(tmp_path / "run", screen=True)
    assert rung(screened, "seccomp").outcome == "slower"
    assert rung(screened, "overlay").outcome == "equivalent"


def test_a_rung_that_a_host_forbids_is_not_run_with_the_reason(run: RunComparison) -> None:
    """The next rung is laid around the one below it."""
    found = rung(run, "cgroup")
    assert (found.outcome, found.why_not, found.step, found.below) == ("not-run", WHY, None, "")
    assert rung(run, "vm-host").outcome == "reference"


def test_a_step_tells_what_differs_and_whether_software_does(run: RunComparison) -> None:
    """How a rung is made is no further difference; other software would be."""
    assert rung(run, "seccomp").changed == ("seccomp.mode",)
    assert rung(run, "overlay").changed == ()
    assert rung(run, "docker-host").is_confounded
    assert "shm.bytes" in rung(run, "docker-host").changed
    assert rung(run, "namespaces").changed is None  # of the plain process nothing is known here


def test_an_arm_that_did_other_work_is_no_rung_to_step_from(tmp_path: Path) -> None:
    """Its time says nothing of the rung."""
    made = RunFolder.create(tmp_path / "run", run_record(arms=ARMS))
    for sample in blocks(RATIOS):
        made.append_sample(sample)
    failure = Failure(phase="checksum", brief="other results")
    at = {"host": "local", "cell": CELL, "arm": "seccomp"}
    made.append_event(Event(t=1.0, what="arm-failed", failure=failure, **at))
    made.close()
    found = compare_run(made)
    assert rung(found, "seccomp").outcome == "failed"
    assert rung(found, "overlay").below == "namespaces"


def test_the_figure_has_every_rung_from_top_to_bottom(run: RunComparison) -> None:
    """Under each stands the step from the rung below; what was not run says why."""
    (chart,) = ladder_charts(run)
    texts = texts_of(svg_of(chart))
    names = [text for text in texts if text in RUNGS.values()]
    assert sorted(names) == sorted(RUNGS.values())
    assert {"step from namespaces", "step from seccomp", "step from overlay root"} <= set(texts)
    assert f"not run: {WHY}" in texts
    assert "step from plain process" not in texts  # that is the comparison itself
    assert f"+ cgroup: not run: {WHY}" in chart.description


def test_the_page_has_the_ladder_with_its_numbers(run: RunComparison) -> None:
    """A run without one has no such section."""
    page = render(run)
    assert 'id="ladder"' in page
    assert "Each rung adds one thing to the rung below it" in page
    assert "software differs as well" in page
    without = changed(run, ladder=())
    assert 'id="ladder"' not in render(without)


def test_the_first_screen_says_which_steps_change_the_time(run: RunComparison) -> None:
    """In the words of the terminal too; a ladder without a decided step says so."""
    (said,) = ladder_sentences(run)
    assert said.startswith("Ladder, cnn, against the rung below: seccomp +")
    assert said.endswith("; 2 steps equivalent.")
    undecided = tuple(
        msgspec.structs.replace(step, outcome="inconclusive")
        for step in run.views.ladder
        if step.step
    )
    (open_,) = ladder_sentences(changed(run, ladder=undecided))
    assert open_ == "Ladder, cnn, against the rung below: 4 steps inconclusive."
    lost = tuple(
        msgspec.structs.replace(step, outcome="not-run", step=None, below="")
        for step in run.views.ladder
    )
    (none,) = ladder_sentences(changed(run, ladder=lost))
    assert none == "Ladder, cnn, against the rung below: no step was measured."


def test_the_step_from_the_reference_is_the_comparison_of_its_arm(run: RunComparison) -> None:
    """One pair of arms has one verdict on a page."""
    found = rung(run, "namespaces")
    (same,) = (comparison for comparison in run.comparisons if comparison.arm == "namespaces")
    assert (found.outcome, found.step) == (same.outcome, same.deciding)
