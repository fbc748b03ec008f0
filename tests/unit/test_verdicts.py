"""The sentences of one comparison, word for word."""

from __future__ import annotations

import math

import msgspec
import pytest

from envcompare.analysis.model import CellSummary, Comparison, Estimate
from envcompare.report.sections.cards import summary_cards
from envcompare.report.wording.verdicts import (
    clock_sentence,
    confounder_sentence,
    control_sentence,
    margin_sentence,
    margin_text,
    verdict,
)
from envcompare.run_folder.records import FactDifference, Failure
from tests.data.report.builders import (
    EQUAL,
    FASTER,
    OPEN,
    SLOWER,
    comparison,
    estimate,
    example,
    headline,
)


def sentence(one: Comparison, margin: float = 0.02) -> str:
    """Return the sentence of a comparison."""
    return verdict(one, label="cnn", margin=margin).text


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (SLOWER, "8.4 % slower (8.0 to 8.7 %)"),
        (FASTER, "4.5 % less time (4.2 to 4.8 %)"),
        (EQUAL, "equivalent within ±2 %"),
        (
            comparison("equivalent", estimate(1.0, 0.5, 1.5)),
            "equivalent within ±2 %, a real difference, smaller than the margin",
        ),
        (
            OPEN,
            "inconclusive, leaning slower; about 11 more restarts would decide (ran 4)",
        ),
        (
            comparison(
                "inconclusive", estimate(-1.1, -3.1, 0.9), leaning="faster", forecast_s=94.2
            ),
            "inconclusive, leaning faster; about 90 s more would decide (ran 4)",
        ),
        (
            comparison("inconclusive", estimate(0.0, None, None), reason="only one restart ran"),
            "inconclusive; only one restart ran",
        ),
        (
            comparison("not-run", reason="no Singularity on gpu01"),
            "not run: no Singularity on gpu01",
        ),
        (
            comparison(
                "failed",
                failure=Failure(phase="setup", brief="ValueError: no data\n  more", exit_code=4),
            ),
            "failed (phase setup, exit code 4): ValueError: no data",
        ),
        (
            comparison("failed", failure=Failure(phase="process", brief="killed by signal 9")),
            "failed (phase process): killed by signal 9",
        ),
        (comparison("failed", reason="the reference failed"), "failed: the reference failed"),
    ],
)
def test_the_sentence_of_an_outcome(one: Comparison, expected: str) -> None:
    """Each outcome has its words, with one decimal in percent and a true minus."""
    assert sentence(one) == expected


def test_the_margin_is_named_as_it_was_chosen() -> None:
    """Half a percent is ±0.5 % and not ±0 %."""
    assert sentence(EQUAL, margin=0.005) == "equivalent within ±0.5 %"
    assert (
        margin_sentence(example()) == "The margin is ±2 %, fixed before the run (preset default)."
    )


def test_a_margin_whose_ends_read_differently_names_them() -> None:
    """−4.8 % may lie outside of ±5 %: the margin is the same factor either way, 1 ÷ 1.05."""
    assert [margin_text(margin) for margin in (0.02, 0.05, 0.2)] == [
        "±2 %",
        "±5 % (−4.8 to +5.0 %)",
        "±20 % (−16.7 to +20.0 %)",
    ]


def test_a_value_has_its_sign_where_the_way_is_open() -> None:
    """The table prints the signed change and its interval beside the sentence."""
    one = verdict(FASTER, label="cnn", margin=0.02)
    assert (one.number, one.interval) == ("−4.5 %", "−4.8 to −4.2 %")
    assert (one.symbol, one.word) == ("◀", "faster")


def test_an_interval_that_says_nothing_has_no_long_numbers() -> None:
    """Two restarts on a busy machine give neither six digits nor a forecast to plan with."""
    wide = estimate(-7.8, -99.99, 287685.1, restarts=2)
    one = verdict(
        comparison("inconclusive", wide, forecast_restarts=19826), label="cnn", margin=0.02
    )
    assert one.interval == "wider than −50.0 to +100.0 %"
    assert one.text == "inconclusive; thousands more restarts would be needed (ran 2)"


def test_what_was_not_measured_has_no_number() -> None:
    """A failed comparison shows no 0 and no NaN, and is never called confounded."""
    one = verdict(comparison("failed", is_confounded=True), label="cnn", margin=0.02)
    assert (one.number, one.interval, one.is_confounded) == ("", "", False)


def test_the_clock_sentence_splits_the_clock_into_work_and_waiting() -> None:
    """What the clock saw and how much of it was waiting stand on a line of their own."""
    one = comparison(
        "slower",
        estimate(8.4, 8.0, 8.7),
        secondary=(
            estimate(9.1, 7.0, 11.2, metric="wall"),
            estimate(0.6, -1.2, 2.5, metric="stretch"),
        ),
    )
    assert clock_sentence(one) == (
        "Wall time: +9.1 % (+7.0 to +11.2 %); waiting for a CPU (stretch): "
        "+0.6 % (−1.2 to +2.5 %); means of all steps, not widened."
    )


def test_no_clock_sentence_where_the_verdict_is_on_the_clock_itself() -> None:
    """With several threads the verdict is on wall time and there is nothing to split."""
    one = comparison("slower", estimate(8.4, 8.0, 8.7, metric="wall"))
    assert clock_sentence(one) == ""


def test_a_confounder_is_named_and_the_difference_stays_real() -> None:
    """What differs besides the environment is said in the words of the report."""
    cudnn = FactDifference(
        host="gpu01",
        arm="docker",
        key="cuda.cudnn",
        reference="9.1",
        value="9.5",
        fact_class="confounder",
    )
    found = confounder_sentence((cudnn,), outcomes=frozenset({"slower"}))
    assert found == (
        "Besides the environment, cuDNN 9.1 → 9.5 differs. "
        "The difference is real, but its cause cannot be determined."
    )


def test_a_confounder_of_an_equal_speed_claims_no_difference() -> None:
    """Where nothing moved, no difference is called real."""
    found = headline(
        msgspec.structs.replace(EQUAL, is_confounded=True),
        differences=tuple(d for d in example().differences if d.arm == "docker"),
    )
    assert found.caution == (
        "Besides the environment, the build of Python differs. "
        "The equal speed is that of environment and software together."
    )


def test_the_control_says_what_the_run_cannot_see() -> None:
    """The far end of the control's interval is the noise floor of what is still open."""
    run = example()
    (cell, _), (first, *others) = run.cells, run.comparisons
    opened = msgspec.structs.replace(first, outcome="inconclusive")
    run = msgspec.structs.replace(run, comparisons=(opened, *others))
    assert control_sentence(cell, label="cnn", run=run) == (
        "A/A control in cnn: vm against itself gave +0.1 % (−0.4 to +0.6 %, 99 % interval). "
        "Differences under about 0.6 % may go unnoticed."
    )


def test_the_control_refutes_no_verdict_that_was_reached_unless_it_failed() -> None:
    """Where every comparison of a cell is decided nothing of it is said to escape."""
    run = example()
    assert control_sentence(run.cells[0], label="cnn", run=run) == (
        "A/A control in cnn: vm against itself gave +0.1 % (−0.4 to +0.6 %, 99 % interval): "
        "0 lies inside."
    )
    assert control_sentence(run.cells[1], label="rnn", run=run) == (
        "Control failed in rnn: vm against itself gave +2.4 % (+0.6 to +4.2 %, 99 % interval); "
        "no claim smaller than 4.2 % is made there."
    )


def test_a_control_off_zero_that_has_not_failed_is_not_said_to_hold_zero() -> None:
    """It had fewer restarts than a verdict needs."""
    cell = example().cells[0]
    assert cell.noise_floor is not None
    mean, low, high = map(math.log, (1.004, 1.002, 1.006))
    floor = msgspec.structs.replace(cell.noise_floor, log_ratio=mean, low=low, high=high)
    off = msgspec.structs.replace(cell, noise_floor=floor)
    assert control_sentence(off, label="cnn", run=example()) == (
        "A/A control in cnn: vm against itself gave +0.4 % (+0.2 to +0.6 %, 99 % interval). "
        "Differences under about 0.6 % may go unnoticed."
    )


def test_a_control_without_an_interval_sets_no_bound() -> None:
    """One restart tells how far apart two measurements lay, and not what may escape."""
    cell = example().cells[0]
    assert cell.noise_floor is not None
    floor = msgspec.structs.replace(cell.noise_floor, low=None, high=None)
    once = msgspec.structs.replace(cell, noise_floor=floor)
    assert control_sentence(once, label="cnn", run=example()) == (
        "A/A control in cnn: vm against itself gave +0.1 %, no interval, so the smallest "
        "detectable difference is unknown."
    )


def test_controls_that_are_not_shown_are_no_worse_only_where_all_have_intervals() -> None:
    """Without one nothing is known; of several such the one that lay farthest off is shown."""
    run = example()
    floor = run.cells[0].noise_floor
    assert floor is not None

    def told(*floors: Estimate) -> str:
        cells = tuple(
            msgspec.structs.replace(run.cells[0], id=f"c{place}", noise_floor=one)
            for place, one in enumerate(floors)
        )
        card = summary_cards(msgspec.structs.replace(run, cells=cells)).certainty.items
        return " ".join(text for one in card for text in (one.text, *map(str, one.after)))

    once = [
        msgspec.structs.replace(floor, low=None, high=None, log_ratio=math.log(ratio))
        for ratio in (1.01, 0.8, 1.1)
    ]
    assert "2 more controls, no worse" in told(floor, floor, floor)
    for text in (told(*once), told(floor, *once)):
        assert "vm against itself gave −20.0 %, no interval" in text
        assert "more controls" in text
        assert "no worse" not in text


def test_a_missing_control_is_not_measured_and_says_why() -> None:
    """A control that did not run is told, not left out."""
    cell = CellSummary(id="c", host="h", workload="cnn", state="failed", reason="no disk space")
    assert control_sentence(cell, label="cnn", run=example()) == (
        "A/A control: not measured in cnn (no disk space)."
    )
