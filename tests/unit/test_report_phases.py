"""Phases and operators in the report: what differs, the rest as one, and what is not known."""

from __future__ import annotations

from typing import Any

from htmltree import parse
from msgspec.structs import replace

from envcompare.analysis.model import RunComparison
from envcompare.analysis.model.profiling import ArmPhases, CellPhases, LoneOperator, PartDifference
from envcompare.report.page import render
from envcompare.report.sections.why import phase_table
from envcompare.report.wording.causewords import phases_sentence
from tests.data.report.builders import EQUAL, SLOWER, changed, run_of


def part(kind: Any, log_ratio: float, **fields: Any) -> PartDifference:
    """Return a part of a step of 10 ms, ± 2 %."""
    share = fields.pop("share", 0.1)
    low, high = log_ratio - 0.02, log_ratio + 0.02
    return PartDifference(
        kind=kind,
        share=share,
        reference_s=share * 0.01,
        log_ratio=log_ratio,
        low=low,
        high=high,
        difference_s=share * 0.01 * log_ratio,
        difference_low_s=share * 0.01 * low,
        difference_high_s=share * 0.01 * high,
        is_distinguishable=low > 0 or high < 0,
        **fields,
    )


def phases(*parts: PartDifference, **fields: Any) -> ArmPhases:
    """Return the phases of docker from 60 marked rounds."""
    known = {"arm": "docker", "rounds": 60, "restarts": 6, "level": 0.995, "tested": 10}
    return ArmPhases(**{**known, **fields}, parts=parts)


SLOW = part("operator", 0.05, phase="forward", operator="aten::erf", share=0.04)
SAME = part("operator", 0.001, phase="backward", operator="aten::mm", share=0.4)
FOUND = phases(
    part("step", 0.002, share=1.0),
    part("phase", 0.004, phase="forward", share=0.5),
    SLOW,
    SAME,
    part("others", 0.0, share=0.96),
    most_log_ratio=0.021,
)


def page(run: RunComparison, found: CellPhases) -> str:
    """Return the page of a run with these phases."""
    return render(changed(run, phases=(found,)), files=())


def test_operators_that_differ_are_named_with_their_intervals() -> None:
    """What cannot be distinguished is in the row of all others."""
    assert phases_sentence(FOUND) == (
        "1 operator differs: aten::erf in forward +5.1 % (+3.0 to +7.3 %)."
    )
    table = phase_table(FOUND, label="docker in cnn")
    names = [row.cells[0] for row in table.rows]
    assert names == ["whole marked step", "forward (phase)", "aten::erf", "all others together"]


def test_bound_is_given_where_no_operator_differs() -> None:
    """And without one it is said that the rounds were too few."""
    assert phases_sentence(phases(SAME, most_log_ratio=0.021)) == (
        "No operator differs by more than 2.1 %."
    )
    assert phases_sentence(phases(SAME)).startswith("Too few marked rounds")


def test_operators_of_one_environment_alone_are_named_first() -> None:
    """They are what differs most, though no ratio of them can be made."""
    lone = LoneOperator(
        phase="forward", operator="aten::_slow_conv2d", arm="docker", share=0.45, time_s=0.004
    )
    assert phases_sentence(phases(SAME, lone=(lone,))) == (
        "Run in one of the two environments only: aten::_slow_conv2d in forward (45.0 % of the "
        "step in docker)."
    )


def test_fold_of_a_slower_arm_has_its_phases() -> None:
    """They stand with the other causes of the comparison."""
    run = run_of(SLOWER)
    found = CellPhases(cell=SLOWER.cell, reference="vm", arms=(replace(FOUND, arm=SLOWER.arm),))
    text = parse(page(run, found)).text
    assert "1 operator differs: aten::erf in forward" in text
    assert "Phases and operators of other comparisons" not in text


def test_equivalent_arm_has_a_fold_for_its_phases_alone() -> None:
    """An operator may differ although the step does not."""
    run = run_of(EQUAL)
    found = CellPhases(cell=EQUAL.cell, reference="vm", arms=(replace(FOUND, arm=EQUAL.arm),))
    assert "Phases and operators of other comparisons" in parse(page(run, found)).text


def test_reason_is_shown_where_nothing_was_marked() -> None:
    """A user sees why, and a name that an arm has made up does no harm."""
    found = CellPhases(cell=SLOWER.cell, reference="vm", reason="no <b>torch</b> here")
    text = parse(page(run_of(SLOWER), found)).text
    assert "Phases and operators were not measured: no <b>torch</b> here." in text
