"""What the report says of a confounder: what was seen, what it is told with, how to separate it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
from summaries import markdown

from envcompare.analysis.model import RunComparison
from envcompare.report import plain
from envcompare.report.page import render
from envcompare.report.sections.cards import summary_cards
from envcompare.report.sections.environments import differences_table, hosts_facts, meanings

DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def with_mismatch(arm: str) -> RunComparison:
    """Return the example with an arm whose proof is broken."""
    return identified(arm, mismatch="site-packages of it has another hash")


def identified(arm: str, **more: Any) -> RunComparison:
    """Return the example with more in the identity of an arm."""
    arms = tuple(
        msgspec.structs.replace(one, identity={**one.identity, **more}) if one.arm == arm else one
        for one in EXAMPLE.arms
    )
    return msgspec.structs.replace(EXAMPLE, arms=arms)


def caution(run: RunComparison) -> str:
    """Return the text of the card that is to be read before relying on the run."""
    return "\n".join(item.text for item in summary_cards(run).cautions.items)


def differing(run: RunComparison) -> tuple[Any, ...]:
    """Return the rows of what differs on the only host."""
    (host,) = hosts_facts(run)
    return differences_table(host, of=1).rows


def test_the_card_names_the_confounder_what_was_seen_and_the_command() -> None:
    """The two facts of one cause are named once."""
    text = caution(EXAMPLE)
    assert (
        "⚠ docker: the build of Python may be the cause as well as the environment. It runs the "
        "workload's Python code, with modules of its own such as bz2, ssl and sqlite3. To separate "
        "the causes: `envcompare run" in text
    )
    assert "--envs vm,docker --stacks image,host` measures how much is the software" in text
    assert text.count("the build of Python") == 1


def test_the_table_says_what_was_seen_and_what_is_told_with_what() -> None:
    """Each row that differs has its class and the reason of it."""
    notes = {row.cells[0]: row.cells[1].below[0] for row in differing(EXAMPLE)}
    assert notes["python.sha256"].startswith("It runs the workload's Python code")
    assert notes["python.flags"] == "explained with the build of Python"
    assert notes["loaded_libraries"] == (
        "The workload loaded them; how much of its work they do was not measured."
    )


def test_an_arm_that_never_answered_is_not_called_the_same() -> None:
    """Nothing was found there, so nothing of it is known to be alike."""
    arms = tuple(
        msgspec.structs.replace(arm, facts={}) if arm.arm == "singularity" else arm
        for arm in EXAMPLE.arms
    )
    differences = tuple(
        difference for difference in EXAMPLE.differences if difference.arm != "singularity"
    )
    silent = msgspec.structs.replace(EXAMPLE, arms=arms, differences=differences)
    assert {plain(row.cells[4]) for row in differing(silent)} == {"not measured"}


def test_arms_that_share_what_is_done_on_purpose_share_its_line() -> None:
    """Three arms with seccomp need one sentence about seccomp."""
    (host,) = hosts_facts(EXAMPLE)
    (varied,) = (one for one in meanings(host.differences) if "purpose" in one.before[0].text)
    (line,) = (one for one in varied.items if "seccomp" in one.partition(".")[0])
    assert line.startswith("docker: seccomp 0 → 2. Docker filters system calls (seccomp);")
    assert len(varied.items) == len(set(varied.items))


def test_what_an_equivalent_arm_does_on_purpose_needs_no_explanation() -> None:
    """The table has it; where the arm is slower the reader learns who would feel it."""
    explained = {}
    for outcome in ("equivalent", "slower"):
        comparisons = tuple(
            msgspec.structs.replace(comparison, outcome=outcome)
            for comparison in EXAMPLE.comparisons
        )
        (host,) = hosts_facts(msgspec.structs.replace(EXAMPLE, comparisons=comparisons))
        (varied,) = (
            one
            for one in meanings(host.differences, equal=host.equal_arms)
            if "purpose" in one.before[0].text
        )
        explained[outcome] = len(varied.items)
    assert explained["equivalent"] == 0 < explained["slower"]


def test_a_mismatch_that_was_run_on_with_is_said_everywhere() -> None:
    """Page and Markdown say it before anything is relied on; the control is not named again."""
    run = with_mismatch("docker")
    sentence = "docker on lab01 was measured despite a mismatch: site-packages of it has"
    assert sentence in caution(run)
    assert sentence in re.sub(r"<[^>]+>", "", render(run))
    assert sentence in markdown(run).replace("\\", "")
    assert "mismatch" not in caution(with_mismatch("vm~control"))


def test_an_arm_that_could_not_be_proven_is_never_passed_for_equal() -> None:
    """Where it was made from the wheels; an image of the user's was never meant to be the same."""
    sentence = (
        "it is not proven that docker on lab01 has the same software: what is installed could"
    )
    assert sentence in caution(identified("docker", unproven="no answer", lock="1" * 64))
    assert "not proven" not in caution(identified("docker", unproven="no answer", lock=""))
