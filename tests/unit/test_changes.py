"""Two runs compared: what their ratios changed by, how sure that is, and what forbids it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from builders import CELL, run_record, stepped
from measuredruns import Made, one_cell, run_folder
from summaries import lines_of

from envcompare.analysis.two_runs import (
    Change,
    RunChange,
    claims_of_change,
    judge_gates,
    parse_gates,
)
from envcompare.analysis.two_runs.changes import ReadRun, compare_runs, read_run
from envcompare.errors import ConfigError
from envcompare.report.wording.changewords import change_blocks, worded
from envcompare.report.wording.verdicts import reasons_text
from envcompare.run_folder.records import ArmRecord, Failure
from envcompare.run_folder.results import RunFolder

OTHER = "local/rnn/default"


def compared(tmp_path: Path, *made: Made, allow_mismatch: bool = False) -> RunChange:
    """Write two runs and compare them."""
    first, second = (read_run(RunFolder.open(run_folder(tmp_path, one))) for one in made)
    return compare_runs(first, second, allow_mismatch=allow_mismatch)


def only(found: RunChange) -> Change:
    """Return the only change, with its sentence."""
    return worded(found, {CELL: "cnn"}).changes[0]


def test_a_ratio_that_grew_is_slower_than_before(tmp_path: Path) -> None:
    """Beyond the margin with all of its interval."""
    found = only(compared(tmp_path, one_cell("a", 1.0), one_cell("b", 1.1)))
    assert found.outcome == "slower"
    assert found.log_ratio == pytest.approx(math.log(1.1), abs=0.003)
    assert found.sentence == (
        "docker ÷ vm in cnn: 10.0 % slower than before (8.8 to 11.3 %): was −0.1 %, is +10.0 %"
    )


@pytest.mark.parametrize(
    ("before", "after", "outcome", "said"),
    [
        (one_cell("a", 1.1), one_cell("b", 1.0), "faster", " % less time than before ("),
        (
            one_cell("a", 1.02),
            one_cell("b", 1.021, noise=0.003),
            "equivalent",
            "equivalent within ±5 %",
        ),
        (
            one_cell("a", 1.0, noise=0.2),
            one_cell("b", 1.02),
            "inconclusive",
            "inconclusive, leaning",
        ),
    ],
    ids=["fell", "stayed", "wide interval"],
)
def test_a_change_is_said_in_the_word_of_its_outcome(
    tmp_path: Path, before: Made, after: Made, outcome: str, said: str
) -> None:
    """Less time is no factor; a wide interval claims neither a change nor its absence."""
    found = only(compared(tmp_path, before, after))
    assert found.outcome == outcome
    assert said in found.sentence


def test_slow_steps_that_are_new_are_not_equivalent(tmp_path: Path) -> None:
    """Most steps take as long as before, and the mean of all does not."""
    reads = []
    for name, share in (("a", 0.0), ("b", 0.02)):
        folder = RunFolder.create(tmp_path, run_record(run_id=name))
        for block in stepped(share=share, factor=4.0):
            folder.append_sample(block)
        folder.close()
        reads.append(read_run(folder))
    change = compare_runs(*reads, allow_mismatch=True)  # no host described its software
    found = only(change)
    assert found.high is not None
    assert found.high < math.log(1.05)
    assert found.outcome == "inconclusive"
    assert found.sentence.endswith("the mean of all steps may have changed by more than the margin")
    (gate,) = judge_gates(parse_gates(("unproven:4%",)), claims_of_change(change))
    assert gate.is_hit
    # a margin below the bound would have made it slower by the typical step
    slower = msgspec.structs.replace(found, outcome="slower", reasons=())
    change = msgspec.structs.replace(change, changes=(slower,))
    gates = judge_gates(parse_gates(("unproven:4%", "slower:4%")), claims_of_change(change))
    assert [gate.is_hit for gate in gates] == [True, False]
    again = compare_runs(reads[0], same_again(reads[0]), allow_mismatch=True)
    assert only(again).outcome == "equivalent"


@pytest.mark.parametrize(
    ("ends", "excess", "outcome"),
    [
        ((-0.04, 0.001), 0.02, "equivalent"),
        ((-0.04, 0.001), -0.02, "inconclusive"),
        ((-0.001, 0.04), -0.02, "equivalent"),
        ((-0.001, 0.04), 0.02, "inconclusive"),
    ],
)
def test_each_end_of_the_means_change_has_the_widths_of_its_side(
    tmp_path: Path, ends: tuple[float, float], excess: float, outcome: str
) -> None:
    """That of the typical step and that of the excess: either alone would be too narrow here."""
    before, after = (
        read_run(RunFolder.open(run_folder(tmp_path, one_cell(name, 1.0)))) for name in "ab"
    )
    exact = with_docker(before, typical=(0.0, 0.0, 0.0), excess=(0.0, 0.0, 0.0))
    skewed = with_docker(after, typical=(0.0, *ends), excess=(excess, excess - 0.01, excess + 0.01))
    assert only(compare_runs(exact, skewed)).outcome == outcome


def with_docker(read: ReadRun, **estimates: tuple[float, float, float]) -> ReadRun:
    """Return a run in which docker has these estimates, each with both ends."""
    primary, excess = (
        dict(zip(("log_ratio", "low", "high"), estimates[name], strict=True))
        for name in ("typical", "excess")
    )
    comparisons = tuple(
        msgspec.structs.replace(
            one,
            primary=msgspec.structs.replace(one.primary, **primary),
            excess=msgspec.structs.replace(one.primary, **excess),
            mean=one.primary,
        )
        if one.arm == "docker" and one.primary is not None
        else one
        for one in read.comparison.comparisons
    )
    return replace(
        read, comparison=msgspec.structs.replace(read.comparison, comparisons=comparisons)
    )


def same_again(read: ReadRun) -> ReadRun:
    """Return a run by another name."""
    return replace(read, comparison=msgspec.structs.replace(read.comparison, run_id="c"))


def test_gate_over_two_runs_forecasts_the_time_of_the_second(tmp_path: Path) -> None:
    """The first is precise; the second is not, and half its width takes more of its time."""
    found = compared(tmp_path, one_cell("a", 1.0, noise=0.001), one_cell("b", 1.0, noise=0.05))
    change = only(found)
    assert change.elapsed_s is not None
    (gate,) = judge_gates(parse_gates(("unproven:2%",)), claims_of_change(found))
    (finding,) = gate.findings
    assert finding.finding == "hit"
    assert finding.forecast_s is not None
    assert finding.forecast_s > 0


def test_the_margin_is_that_of_the_run_after(tmp_path: Path) -> None:
    """The same change is within 5 % and beyond 1 %."""
    loose = one_cell("a", 1.0), one_cell("b", 1.02)
    assert only(compared(tmp_path, *loose)).outcome == "equivalent"
    strict = one_cell("c", 1.02, design={"margin": 0.01})
    assert only(compared(tmp_path, one_cell("d", 1.0), strict)).outcome == "slower"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("far", "outcome"), [(1.15, "inconclusive"), (1.5, "slower")])
def test_a_failed_control_withdraws_changes_up_to_its_own_size(
    tmp_path: Path, when: str, far: float, outcome: str
) -> None:
    """A run that differs from itself by 20 % cannot vouch for less, and hides no more than that."""
    cells = [
        {CELL: {"vm": 1.0, "docker": docker, "vm~control": 1.2 if word == when else 1.0}}
        for word, docker in (("before", 1.0), ("after", far))
    ]
    made = (Made(run_id=name, cells=one) for name, one in zip("ab", cells, strict=True))
    found = only(compared(tmp_path, *made))
    assert (found.outcome, found.control_failed) == (outcome, True)
    assert reasons_text(found.reasons).startswith(f"{when}: control failed") == (
        outcome == "inconclusive"
    )


def test_controls_that_failed_in_both_runs_add_up(tmp_path: Path) -> None:
    """Either may be off, one way or the other."""
    cells = [{CELL: {"vm": 1.0, "docker": docker, "vm~control": 1.2}} for docker in (1.0, 1.3)]
    made = (Made(run_id=name, cells=one) for name, one in zip("ab", cells, strict=True))
    found = only(compared(tmp_path, *made))
    assert found.outcome == "inconclusive"
    assert "before: control failed" in reasons_text(found.reasons)
    assert "after: control failed" in reasons_text(found.reasons)


def test_changes_between_screened_runs_pay_for_all_comparisons(tmp_path: Path) -> None:
    """What a screen left out has a 95 % interval: of twenty, one would change by chance."""
    cells = {
        f"local/cnn/k={number}": {"vm": 1.0, "docker": 1.0, "vm~control": 1.0}
        for number in range(20)
    }
    folders = {
        screen: [
            Made(run_id=f"{name}{screen}", cells=cells, noise=0.05, design={"screen": screen})
            for name in "ab"
        ]
        for screen in (False, True)
    }
    plain, screened = (compared(tmp_path, *made) for made in folders.values())
    assert [change.low for change in screened.changes] == [change.low for change in plain.changes]
    assert screened.after.screen
    assert any("no screen is used here" in caution for caution in screened.cautions)


def test_runs_in_the_wrong_order_are_a_caution(tmp_path: Path) -> None:
    """A gate on slower would pass what became slower."""
    before, after = (read_run(RunFolder.open(run_folder(tmp_path, one_cell(name, 1.0))))
                     for name in "ab")  # fmt: skip
    later = msgspec.structs.replace(before.comparison, created="2999-01-01T00:00:00Z")
    turned = compare_runs(replace(before, comparison=later), after)
    assert "started later" in turned.cautions[0]
    assert compare_runs(before, after).cautions == ()


def test_too_few_restarts_in_one_run_leave_it_inconclusive(tmp_path: Path) -> None:
    """The run said so itself, whatever its interval."""
    found = only(compared(tmp_path, one_cell("a", 1.0, restarts=1), one_cell("b", 1.3)))
    assert found.outcome == "inconclusive"
    assert reasons_text(found.reasons).startswith("before: 1 of at least 2 restarts")


def test_an_arm_that_failed_after_is_failed(tmp_path: Path) -> None:
    """With the error line, and which run it was."""
    failure = Failure(phase="setup", brief="docker: no such layer")
    cells = {CELL: {"vm": 1.0, "vm~control": 1.0}}
    made = one_cell("b", 1.0, cells=cells, failures={"docker": failure})
    found = only(compared(tmp_path, one_cell("a", 1.0), made))
    assert (found.outcome, found.phase) == ("failed", "setup")
    assert "after: docker: no such layer" in found.sentence


def test_software_of_the_arm_that_changed_is_named(tmp_path: Path) -> None:
    """It is what one looks for: it is no mismatch."""
    made = one_cell("b", 1.1, facts={"docker": {"torch.version": "2.14.0"}})
    found = only(compared(tmp_path, one_cell("a", 1.0), made))
    assert found.is_confounded
    assert [difference.key for difference in found.differences] == ["torch.version"]


@pytest.mark.parametrize("parts", [{}, {"site_packages.parts": ("a==1 0123456789abcdef",)}])
def test_changed_files_of_the_reference_are_no_part_of_a_list_that_one_run_lacks(
    tmp_path: Path, parts: dict[str, tuple[str, ...]]
) -> None:
    """An earlier version did not list the parts; the hash of all files changed all the same."""
    before = one_cell("a", 1.0, facts={"vm": {"site_packages.sha256": "a"}})
    after = one_cell("b", 1.0, facts={"vm": {"site_packages.sha256": "b", **parts}})
    found = compared(tmp_path, before, after, allow_mismatch=True)
    assert "site_packages.sha256" in {mismatch.key for mismatch in found.mismatches}


def test_cells_and_arms_of_one_run_alone_are_named(tmp_path: Path) -> None:
    """Nothing is dropped silently."""
    ratios = {"vm": 1.0, "docker": 1.0, "vm~control": 1.0}
    wide = Made(run_id="a", cells={CELL: ratios, OTHER: ratios})
    found = compared(tmp_path, wide, one_cell("b", 1.0))
    assert [(one.cell, one.arm, one.only_in) for one in found.left_out] == [
        (OTHER, "docker", "before")
    ]


def test_runs_with_nothing_in_common_are_refused_with_what_each_has(tmp_path: Path) -> None:
    """The reader sees why."""
    other = Made(run_id="b", cells={OTHER: {"vm": 1.0, "docker": 1.0, "vm~control": 1.0}})
    with pytest.raises(ConfigError) as caught:
        compared(tmp_path, one_cell("a", 1.0), other)
    assert f"a has docker in {CELL}" in caught.value.details
    assert f"b has docker in {OTHER}" in caught.value.details


def test_runs_of_different_references_are_refused(tmp_path: Path) -> None:
    """Their ratios, docker ÷ vm and vm ÷ docker, are different things, whatever is allowed."""
    arms = (
        ArmRecord(id="docker", environment="docker", is_reference=True),
        ArmRecord(id="vm", environment="vm"),
        ArmRecord(id="docker~control", environment="docker", is_control=True),
    )
    cells = {CELL: {arm.id: 1.0 for arm in arms}}
    turned = one_cell("b", 1.0, arms=arms, cells=cells)
    with pytest.raises(ConfigError, match="different references"):
        compared(tmp_path, one_cell("a", 1.0), turned, allow_mismatch=True)


def test_ratios_judged_on_different_metrics_are_not_compared(tmp_path: Path) -> None:
    """Net time leaves out what wall time holds."""
    made = one_cell("b", 1.0, design={"threads": 2})
    found = only(compared(tmp_path, one_cell("a", 1.0), made, allow_mismatch=True))
    assert found.outcome == "not-run"
    assert reasons_text(found.reasons) == "not compared: judged on net before and on wall after"


def test_a_run_has_not_changed_against_itself(tmp_path: Path) -> None:
    """The same folder twice is a slip of the hand."""
    run = read_run(RunFolder.open(run_folder(tmp_path, one_cell("a", 1.0))))
    with pytest.raises(ConfigError, match="both are the same run, a"):
        compare_runs(run, run)


def test_an_engine_that_was_updated_is_named(tmp_path: Path) -> None:
    """It is no fact of the software inside, and may be why."""
    made = (
        one_cell(name, 1.0, identity={"docker": {"docker.version": version, "image.id": name}})
        for name, version in (("a", "28"), ("b", "29"))
    )
    found = compared(tmp_path, *made)
    lines = lines_of(change_blocks(worded(found, {CELL: "cnn"}), {CELL: "cnn"}))
    details = [line.columns[0] for line in lines if line.role == "detail"]
    assert details == ["Between the runs, of docker itself changed: the version of docker 28 → 29."]
    assert not found.changes[0].is_confounded
