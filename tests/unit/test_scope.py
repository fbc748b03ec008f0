"""What the verdicts of a run hold for, said once where the answer stands; and on what it ran."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from measuredruns import one_cell, run_folder
from summaries import markdown, terminal_lines

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import RunComparison
from envcompare.report.page import render
from envcompare.report.wording.headlines import Headline, headlines
from envcompare.run_folder.results import RunFolder

SCOPE = "On this host, in this run, "
FACTS = {
    "cpu.model": "AMD EPYC",
    "cpu.family": "AuthenticAMD, family 25, model 17, stepping 1",
    "cpu.microcode": "0x1000065",
    "kernel.release": "6.18",
}


@pytest.fixture
def run(tmp_path: Path) -> RunComparison:
    """Give a run of one host, with what is known of its processor."""
    facts = {arm: dict(FACTS) for arm in ("vm", "docker", "vm~control")}
    return compare_run(RunFolder.open(run_folder(tmp_path, one_cell("a", 1.1, facts=facts))))


def test_page_terminal_and_markdown_say_it_once(run: RunComparison) -> None:
    """In the sentence of the verdict."""
    sentence = f"{SCOPE}docker is 9.9 % slower than vm in cnn"
    lines = [" ".join(line.columns) for line in terminal_lines(run)]
    assert sum(sentence in line for line in lines) == 1
    assert markdown(run).count(sentence) == 1
    assert render(run).count(SCOPE) == 1


def test_of_several_headlines_the_first_that_was_measured_says_it(run: RunComparison) -> None:
    """An arm that was not run holds for no host."""
    (docker,) = run.compared
    slower = msgspec.structs.replace(docker, arm="podman")
    none = msgspec.structs.replace(docker, arm="gvisor", outcome="not-run", primary=None, mean=None)
    several = msgspec.structs.replace(run, comparisons=(none, docker, slower))
    assert [headline.scope != "" for headline in headlines(several)] == [True, False, False]
    assert headlines(several)[-1].arm == "gvisor"


def test_several_hosts_are_these_hosts(run: RunComparison) -> None:
    """A run may be of a fleet."""
    (cell,) = run.cells
    cells = (cell, msgspec.structs.replace(cell, id="other/cnn/default", host="other"))
    assert headlines(msgspec.structs.replace(run, cells=cells))[0].text.startswith(
        "On these hosts, in this run, docker is"
    )


def test_a_statement_over_hosts_is_of_hosts_like_these() -> None:
    """It is not of the measured ones alone, but of one run."""
    headline = Headline(
        arm="docker",
        outcome="slower",
        badge="slower",
        lead="Over 9 hosts, cnn in docker is 4.1 % slower.",
        scope="on these hosts, in this run",
    )
    assert headline.text == "In this run, over 9 hosts, cnn in docker is 4.1 % slower."


def test_reproduce_names_the_processor_and_the_commit(run: RunComparison) -> None:
    """To its stepping, microcode and kernel."""
    page = render(msgspec.structs.replace(run, tool_commit=f"{'c0de' * 10} modified"))
    assert "AuthenticAMD, family 25, model 17, stepping 1; microcode 0x1000065; Linux 6.18" in page
    assert f"{run.tool_version} (commit c0dec0dec0de, modified)" in page
