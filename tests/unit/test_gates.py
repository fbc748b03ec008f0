"""Gates: their grammar, what hits them, what leaves them open, and what they cannot judge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from envcompare.analysis.model import Reason
from envcompare.analysis.two_runs import (
    Claim,
    Gate,
    claims_of_run,
    gates_exit_code,
    judge_gates,
    parse_gates,
)
from envcompare.errors import ConfigError
from envcompare.report.wording.changewords import gate_blocks, worded_gates
from envcompare.stats.verdicts import verdict
from tests.data.report import builders


def claim(low: float | None, high: float | None, *, reason: str = "", **changes: Any) -> Claim:
    """Return docker in a cell with an interval in percent, judged with a margin of 2 %."""
    ends = tuple(None if end is None else math.log1p(end / 100) for end in (low, high))
    fields: dict[str, Any] = {
        "cell": "c",
        "arm": "docker",
        "outcome": verdict(*ends, margin=0.02),
        "log_ratio": None if None in ends else sum(end or 0.0 for end in ends) / 2,
        "low": ends[0],
        "high": ends[1],
        "reasons": (Reason(kind="failed", brief=reason),) if reason else (),
    }
    return Claim(**{**fields, **changes})


def found(gate: str, one: Claim) -> str | None:
    """Return what a gate finds of one comparison."""
    (result,) = judge_gates(parse_gates((gate,)), (one,))
    return result.findings[0].finding if result.findings else None


def sentence(gate: str, one: Claim, *, is_change: bool = False) -> str:
    """Return the sentence of the finding."""
    (result,) = worded_gates(
        judge_gates(parse_gates((gate,)), (one,)), {"c": "cnn"}, "vm", is_change=is_change
    )
    return result.findings[0].sentence


def test_gates_are_parsed_each_once_by_comma_or_repetition() -> None:
    """The order stays."""
    assert parse_gates(("slower:2%, inconclusive", "failed,slower:2.0%", "faster")) == (
        Gate(state="slower", percent=2.0),
        Gate(state="inconclusive"),
        Gate(state="failed"),
        Gate(state="faster"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "slower,", "slower:", "slower:2", "slower:-2%", "slower:nan%", "slower:inf%",
        "slower:abc%", "slower:1e3%", "slower:2%%", "slower:1001%", "faster:100%", "slower:٢%",
        "slower:99999999999999999999%", "Slower:2%", "inconclusive:2%", "failed:", "sloweer:2%",
        "slower:2%;failed", "slower:0x2%", "slower:+2%", "slower:.5%", "slower : 2%",
        "groups:", "groups:slower:2%", "groups:inconclusive", "unproven",
    ],
)  # fmt: skip
def test_what_is_no_gate_is_refused_naming_what_is_allowed(text: str) -> None:
    """Wrong usage, found before anything is read."""
    with pytest.raises(ConfigError) as caught:
        parse_gates((text,))
    assert caught.value.exit_code == 2
    assert "--fail-on" in caught.value.brief
    assert "slower" in caught.value.details or "faster" in caught.value.details
    assert caught.value.hint


@given(st.text(max_size=20))
@example("slower:2%")
def test_any_text_is_a_gate_or_refused(text: str) -> None:
    """There is no third way, and a gate is written as it can be read again."""
    try:
        gates = parse_gates((text,))
    except ConfigError:
        return
    assert parse_gates((",".join(gate.text for gate in gates),)) == gates


@given(st.decimals(min_value=0, max_value=1000, places=3))
def test_any_percentage_is_understood(percent: object) -> None:
    """The bound is the logarithm of what was written."""
    (gate,) = parse_gates((f"slower:{percent:f}%",))
    assert gate.bound == pytest.approx(math.log1p(float(str(percent)) / 100))


@given(
    low=st.floats(-50, 50), width=st.floats(0, 50), percent=st.integers(0, 40),
    margin=st.sampled_from((0.01, 0.02, 0.05)),
)  # fmt: skip
def test_slower_gate_hits_exactly_where_the_whole_interval_lies_beyond(
    low: float, width: float, percent: int, margin: float
) -> None:
    """L > ln(1 + P), whatever the margin calls it."""
    ends = math.log1p(low / 100), math.log1p((low + width) / 100)
    one = claim(low, low + width, outcome=verdict(*ends, margin=margin))
    assume(ends[0] != math.log1p(percent / 100))
    is_hit = found(f"slower:{percent}%", one) == "hit"
    assert is_hit == (ends[0] > math.log1p(percent / 100))


@pytest.mark.parametrize(
    ("gate", "interval", "expected"),
    [
        ("slower:2%", (2.1, 9.0), "hit"),
        ("slower:2%", (1.9, 9.0), "open"),
        ("slower:2%", (-1.0, 5.1), "open"),
        ("slower:2%", (-1.0, 1.5), None),
        ("slower:2%", (-9.0, -5.0), None),
        ("slower:1%", (1.2, 1.8), "hit"),
        ("slower", (0.1, 9.0), "hit"),
        ("slower", (1.2, 1.8), None),
        ("slower", (-1.0, 5.1), "open"),
        ("faster:2%", (-9.0, -2.1), "hit"),
        ("faster:2%", (-9.0, -1.9), "open"),
        ("faster:2%", (5.0, 9.0), None),
        ("faster", (-9.0, -0.1), "hit"),
        ("inconclusive", (-1.0, 5.1), "hit"),
        ("inconclusive", (2.1, 9.0), None),
        ("failed", (2.1, 9.0), None),
        ("confounded", (2.1, 9.0), None),
        ("slower:2%", (None, None), "unjudged"),
        ("slower", (None, None), "unjudged"),
        ("inconclusive", (None, None), "hit"),
    ],
)
def test_what_a_gate_finds(
    gate: str, interval: tuple[float | None, float | None], expected: str | None
) -> None:
    """It hits on all of the interval, and stays open on a part of it."""
    assert found(gate, claim(*interval)) == expected


# A typical step that is slower by less than 2 %, and a mean that may be far slower.
OPEN_MEAN: Final = claim(0.3, 1.5, outcome="slower", mean_low=-0.01, mean_high=0.08)
WITHDRAWN: Final = claim(8.0, 9.0, outcome="inconclusive", is_firm=False)


@pytest.mark.parametrize(
    ("gate", "one", "expected"),
    [
        # The control failed: the interval is there, and nothing is claimed by it.
        ("slower:2%", WITHDRAWN, "open"),
        ("slower", WITHDRAWN, "open"),
        ("slower:1%", claim(1.2, 1.8, is_firm=False), "open"),
        ("unproven:2%", claim(-0.5, 0.5, outcome="inconclusive", reason="control failed"), "hit"),
        # What was measured too little does not pass `unproven`, as it passes `slower`.
        ("unproven:2%", claim(-0.5, 1.5), None),
        ("unproven:2%", claim(-0.5, 3.0), "hit"),
        ("unproven:2%", claim(-30, 29), "hit"),
        ("unproven:2%", claim(0.5, 1.5), None),
        ("unproven:2%", claim(2.5, 4), "hit"),
        ("unproven:2%", claim(1.2, 1.8, outcome="slower"), None),
        ("unproven:2%", claim(None, None, outcome="failed"), "unjudged"),
        # One step in fifty that takes three times as long moves no typical step.
        ("slower:2%", claim(-0.5, 0.5, outcome="slower", mean_low=0.025, mean_high=0.06), "hit"),
        ("slower:2%", OPEN_MEAN, None),
        ("unproven:2%", OPEN_MEAN, "hit"),
        ("unproven:2%", replace(OPEN_MEAN, is_mean_firm=False), "hit"),
        ("unproven:2%", replace(OPEN_MEAN, mean_high=0.019), None),
        ("slower:2%", replace(OPEN_MEAN, mean_low=0.025), "hit"),
        ("slower:2%", replace(OPEN_MEAN, mean_low=0.025, is_mean_firm=False), None),
    ],
)
def test_what_a_gate_finds_in_a_claim_that_its_interval_does_not_decide(
    gate: str, one: Claim, expected: str | None
) -> None:
    """A withdrawn claim, one that is not shown to be small, and one by the mean."""
    assert found(gate, one) == expected


@pytest.mark.parametrize(("outcome", "code"), [("failed", 4), ("not-run", 3)])
def test_what_was_not_measured_is_unjudged_and_has_its_exit_code(outcome: str, code: int) -> None:
    """A workload that failed is 4, a place that was not usable 3; a hit gate comes before both."""
    lost = claim(None, None, outcome=outcome, reason="no such layer")
    results = judge_gates(parse_gates(("slower:2%",)), (lost,))
    assert results[0].findings[0].finding == "unjudged"
    assert gates_exit_code(results, (lost,)) == code
    both = (lost, claim(8.0, 9.0, arm="singularity"))
    assert gates_exit_code(judge_gates(parse_gates(("slower:2%",)), both), both) == 1


def test_failures_of_both_kinds_exit_with_the_smaller_code() -> None:
    """As a run does."""
    lost = (
        claim(None, None, outcome="failed", phase="step"),
        claim(None, None, outcome="failed", arm="singularity", phase="environment"),
    )
    assert gates_exit_code(judge_gates(parse_gates(("faster",)), lost), lost) == 3


@pytest.mark.parametrize("gate", ["slower", "faster:1%", "inconclusive", "confounded"])
def test_only_the_gate_on_failures_can_judge_one(gate: str) -> None:
    """What was not measured is neither beyond doubt nor of one software: no gate passes it."""
    lost = (claim(None, None, outcome="failed"),)
    assert gates_exit_code(judge_gates(parse_gates((gate,)), lost), lost) == 4
    assert gates_exit_code(judge_gates(parse_gates((gate, "failed")), lost), lost) == 1


def test_an_arm_that_failed_after_it_was_measured_has_failed() -> None:
    """Its verdict stands for what there is, and other gates judge that."""
    half = claim(0.0, 1.0, failure="docker: killed by SIGKILL")
    assert found("failed", half) == "hit"
    assert found("slower:2%", half) is None
    assert sentence("failed", half) == (
        "gate failed hit: docker in cnn failed before the end of its cell (docker: killed by "
        "SIGKILL)"
    )


@pytest.mark.parametrize(
    ("gate", "one", "expected"),
    [
        (
            "slower:2%", claim(8.0, 8.8),
            "gate slower:2% hit: docker is 8.4 % slower than vm in cnn; at least 8.0 %",
        ),
        (
            "faster:2%", claim(-4.8, -4.2),
            "gate faster:2% hit: docker takes 4.5 % less time than vm in cnn; at least 4.2 %",
        ),
        (
            "slower:2%", claim(-1.0, 5.1),
            ("gate slower:2% passed, not beyond doubt: docker in cnn is inconclusive and could "
            "be up to 5.1 % slower; add --fail-on inconclusive to fail on it"),
        ),
        (
            "slower:5%", claim(3.0, 7.0),
            ("gate slower:5% passed, not beyond doubt: docker in cnn has +5.0 %, +3.0 to +7.0 %: "
            "that all of it is beyond 5% is not shown"),
        ),
        (
            "slower:2%", claim(None, None, reason="1 of at least 4 restarts"),
            ("gate slower:2% could not judge docker in cnn: has no interval (1 of at least 4 "
            "restarts)"),
        ),
        (
            "slower:2%", claim(None, None, outcome="failed", reason="no such layer"),
            "gate slower:2% could not judge docker in cnn: failed (no such layer)",
        ),
        (
            "failed", claim(None, None, outcome="not-run", reason="no Docker"),
            "gate failed hit: docker in cnn was not run (no Docker)",
        ),
        (
            "inconclusive", claim(-1.0, 5.1, reason="a smaller --target continues"),
            ("gate inconclusive hit: docker in cnn is inconclusive (+2.0 %, −1.0 to +5.1 %); a "
            "smaller --target continues"),
        ),
        (
            "confounded", claim(8.0, 8.8, is_confounded=True),
            ("gate confounded hit: docker in cnn is confounded, since not only its environment "
            "differs"),
        ),
    ],
)  # fmt: skip
def test_each_finding_is_one_sentence_with_its_numbers(
    gate: str, one: Claim, expected: str
) -> None:
    """The words of the report, and never that something is significant."""
    assert sentence(gate, one) == expected


def test_a_change_is_said_against_before() -> None:
    """Of two runs it is the ratio that moved."""
    assert sentence("slower:2%", claim(8.0, 8.8), is_change=True) == (
        "gate slower:2% hit: docker ÷ vm in cnn is 8.4 % slower than before; at least 8.0 %"
    )


def test_a_gate_sums_up_what_it_found() -> None:
    """The last line of each gate says how much of the run it stands on."""
    claims = (claim(-1.0, 5.1), claim(None, None, arm="b", outcome="failed"), claim(0.0, 1.0))
    texts = [
        worded_gates(judge_gates(parse_gates(("slower:2%",)), some), {}, "vm")[0].sentence
        for some in (claims[:1], claims, (*claims, claim(8.0, 9.0)))
    ]
    assert texts == [
        "gate slower:2%: not hit, 1 comparison judged, 1 of them not beyond doubt",
        "gate slower:2%: not hit, but 1 of 3 comparisons could not be judged",
        "gate slower:2%: hit by 1 of 4 comparisons",
    ]


def test_hostile_names_stay_on_their_line() -> None:
    """A name with a new line or a bidi mark cannot write a sentence of its own."""
    hostile = claim(8.0, 9.0, arm="docker\n\u202eok")
    results = worded_gates(judge_gates(parse_gates(("slower",)), (hostile,)), {}, "vm")
    text = gate_blocks(results)[0].strong
    assert "\n" not in text
    assert "⟨U+202E⟩" in text


def test_gate_says_how_much_time_would_decide() -> None:
    """Half as wide takes four times as long: three minutes more."""
    assert "about 3 min more measuring would decide" in sentence(
        "unproven:2%", claim(-3.92, 4.04, log_ratio=0.0, elapsed_s=60.0)
    )


def test_gate_of_two_runs_says_how_much_time_in_the_second_would_decide() -> None:
    """What the first run leaves open stays: 4 % of which 1 % are its own, and 2 % are wanted."""
    half = math.log1p(0.02)
    ends = tuple(100 * math.expm1(end) for end in (-2 * half, 2 * half))
    one = claim(*ends, log_ratio=0.0, kept_half=half / 2, elapsed_s=60.0)
    (result,) = judge_gates(parse_gates(("unproven:2%",)), (one,))
    assert result.findings[0].forecast_s == pytest.approx(60 * (3.75 / 0.75 - 1))
    assert sentence("unproven:2%", one, is_change=True).endswith(
        "; about 4 min more measuring in the second run would decide"
    )


@pytest.mark.parametrize("changes", [{"kept_half": 0.0201}, {"elapsed_s": None}])
def test_gate_of_two_runs_forecasts_nothing_that_the_second_alone_cannot_decide(
    changes: dict[str, Any],
) -> None:
    """The first run is too wide for the bound, or it is not known how long the second took."""
    one = claim(-5, 5, **{"log_ratio": 0.0, "kept_half": 0.01, "elapsed_s": 60.0, **changes})
    assert "more measuring" not in sentence("unproven:2%", one, is_change=True)


def test_gate_forecasts_nothing_after_a_control_that_failed() -> None:
    """More of the same measuring does not mend it."""
    reasons = (Reason(kind="control-failed", control_end=0.05),)
    one = claim(-3.92, 4.04, log_ratio=0.0, elapsed_s=60.0, reasons=reasons)
    assert "more measuring" not in sentence("unproven:2%", one)


def test_gate_hit_by_the_mean_says_the_figures_of_the_mean() -> None:
    """Those of the typical step would have the wrong sign."""
    one = claim(
        -0.9, 0.1, outcome="slower", mean_low=math.log1p(0.025), mean_high=math.log1p(0.075)
    )
    assert "docker is 5.0 % slower" in sentence("slower:2%", one)
    assert "at least 2.5 %" in sentence("slower:2%", one)
    assert "not shown to be less than 2 % slower (+3.6 %" in sentence("unproven:2%", OPEN_MEAN)


def test_gate_of_a_run_has_the_mean_that_claims_no_difference() -> None:
    """A mean that is not firm, as of a screen, may still be far above the bound."""
    mean = builders.estimate(3.0, -1.0, 7.0)
    known = builders.comparison("slower", builders.estimate(0.9, 0.3, 1.5), mean=mean)
    (judged,) = claims_of_run(builders.run_of(known))
    assert (judged.mean_high, judged.is_mean_firm) == (mean.high, False)
