"""The headline of an environment, word for word."""

from __future__ import annotations

import msgspec
import pytest

from envcompare.records import Failure
from envcompare.report.headlines import Headline, headlines
from tests.data.report.builders import (
    EQUAL,
    FASTER,
    OPEN,
    SLOWER,
    comparison,
    estimate,
    example,
    headline,
    on,
    run_of,
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (headline(SLOWER), "docker is 8.4 % slower than vm in cnn (8.0 to 8.7 %)."),
        (headline(FASTER), "docker takes 4.5 % less time than vm in cnn (4.2 to 4.8 %)."),
        (
            headline(EQUAL),
            "docker is equivalent to vm within ±2 % in cnn (+0.3 %, −0.2 to +0.8 %).",
        ),
        (
            headline(SLOWER, on("rnn", comparison("slower", estimate(4.0, 3.0, 5.0)))),
            (
                "docker is slower than vm in both cnn and rnn: 6.2 % in the mean, "
                "4.0 % in rnn to 8.4 % in cnn."
            ),
        ),
        (
            headline(FASTER, on("rnn", FASTER), on("llm", FASTER)),
            "docker takes less time than vm in all 3 cells: 4.5 % in each.",
        ),
        (
            headline(EQUAL, on("rnn", EQUAL)),
            "docker is equivalent to vm within ±2 % in both cnn and rnn: +0.3 % in each.",
        ),
        (
            headline(OPEN, on("rnn", OPEN)),
            (
                "docker against vm is inconclusive in both cnn "
                "(leaning slower, +1.1 %, −0.9 to +3.1 %) "
                "and rnn (leaning slower, +1.1 %, −0.9 to +3.1 %)."
            ),
        ),
        (
            headline(OPEN),
            (
                "docker against vm is inconclusive, leaning slower in cnn "
                "(+1.1 %, −0.9 to +3.1 %); about 11 more generations would decide (ran 8)."
            ),
        ),
        (
            headline(comparison("failed", reason="no image")),
            "docker failed in cnn: no image.",
        ),
        (
            headline(comparison("not-run", reason="no Docker"), on("rnn", comparison("not-run"))),
            "docker was not run in both cnn and rnn: no Docker.",
        ),
    ],
)
def test_the_headline_leads_with_the_mean_where_all_cells_agree(
    found: Headline, expected: str
) -> None:
    """One outcome in all cells is one sentence, with nothing left to add."""
    assert (found.lead, found.rest) == (expected, "")


def test_the_headline_leads_with_the_workloads_that_moved() -> None:
    """Where cells disagree the mean would hide it: the moved cells lead, the others follow."""
    found = headline(
        SLOWER,
        on("rnn", FASTER),
        on("llm", EQUAL),
        on("gnn", comparison("failed", failure=Failure(phase="step", brief="x", exit_code=1))),
        on("vit", comparison("not-run", reason="excluded")),
    )
    assert found.badge == "slower in 1 of 5"
    assert found.lead == (
        "docker is slower than vm in cnn (8.4 %, 8.0 to 8.7 %); "
        "it takes less time than vm in rnn (4.5 %, 4.2 to 4.8 %)."
    )
    assert found.rest == (
        "Equivalent within ±2 % in llm (+0.3 %, −0.2 to +0.8 %); "
        "failed in gnn (phase step, exit code 1); not run in vit."
    )


def test_an_arm_without_any_comparison_has_a_headline() -> None:
    """An environment that was never reached is told as well."""
    run = example()
    arms = (msgspec.structs.replace(run.arms[1], state="skipped", reason="no socket"),)
    found = headline(arms=arms)
    assert found.lead == "docker was not run: no socket."


def test_the_arm_that_moved_most_stands_first() -> None:
    """The reader meets the largest difference before the equal ones."""
    run = run_of(EQUAL, msgspec.structs.replace(SLOWER, arm="singularity"))
    assert [one.arm for one in headlines(run)] == ["singularity", "docker"]


def test_hosts_and_parameters_are_named_only_where_they_differ() -> None:
    """Two hidden sizes on two hosts tell the cells apart; a common batch size does not."""
    cells = [
        msgspec.structs.replace(
            EQUAL,
            cell=f"{host}/rnn/batch=64,hidden={hidden}",
            host=host,
            workload="rnn",
            parameters={"hidden": hidden, "batch": 64},
        )
        for host in ("a", "b")
        for hidden in (40, 80)
    ]
    assert [one.cell for one in headline(*cells).verdicts] == [
        "rnn hidden=40 on a",
        "rnn hidden=80 on a",
        "rnn hidden=40 on b",
        "rnn hidden=80 on b",
    ]
