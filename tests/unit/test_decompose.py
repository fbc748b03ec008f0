"""The 2 × 2: its parts sum, find what was put in, and are said in words."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import pytest
from builders import CELL, block, blocks, run_record
from hypothesis import given, settings
from hypothesis import strategies as st

from envcompare.analysis.model import Decomposition, Estimate, RunComparison
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.breakdown import _all_corners, decompose
from envcompare.report import Link
from envcompare.report.page import render
from envcompare.report.sections.cards import summary_cards
from envcompare.report.sections.why import split_table
from envcompare.report.wording.causewords import split_sentences
from envcompare.run_folder.records import ArmRecord, Block, Event, Failure
from tests.data.report.builders import changed

VM = ArmRecord(id="vm", environment="vm", is_reference=True)
DOCKER = ArmRecord(id="docker", environment="docker")
VM_HOST = ArmRecord(id="vm-host", environment="vm", stack="host")
DOCKER_HOST = ArmRecord(id="docker-host", environment="docker", stack="host")
CONTROL = ArmRecord(id="vm~control", environment="vm", is_control=True)
FOUR = (VM, DOCKER, VM_HOST, DOCKER_HOST, CONTROL)
DATA = Path(__file__).resolve().parents[1] / "data" / "report"
EXAMPLE = msgspec.json.decode((DATA / "three-arms.json").read_bytes(), type=RunComparison)


def cell_data(
    found: tuple[Block, ...], arms: tuple[ArmRecord, ...] = FOUR, events: tuple[Event, ...] = ()
) -> CellData:
    """Return a cell with these arms and blocks."""
    run = run_record(arms=arms)
    return CellData(run=run, cell=run.cells[0], blocks=found, events=events, host_events=())


def one(found: tuple[Block, ...], arms: tuple[ArmRecord, ...] = FOUR) -> Decomposition:
    """Return the only 2 × 2 of a cell."""
    (split,) = decompose(cell_data(found, arms))
    return split


def has_part(part: Estimate | None, change: float) -> bool:
    """Say whether a part is about this change, and its interval holds it."""
    assert part is not None
    assert part.low is not None
    assert part.high is not None
    truth = math.log1p(change)
    return abs(part.log_ratio - truth) < 0.003 and part.low - 0.003 < truth < part.high + 0.003


def test_a_difference_of_the_software_is_attributed_to_the_software() -> None:
    """The image is 15 % faster in every environment, and docker itself costs nothing."""
    found = one(blocks({"vm": 0.85, "docker": 0.85, "vm-host": 1.0, "docker-host": 1.0}))
    assert has_part(found.total, -0.15)
    assert has_part(found.environment, 0.0)
    assert has_part(found.stack, -0.15)
    assert has_part(found.interaction, 0.0)
    assert (found.arm, found.host_arm, found.base) == ("docker", "docker-host", "vm-host")


def test_a_difference_of_the_environment_is_attributed_to_the_environment() -> None:
    """Docker costs 20 % with either software."""
    found = one(blocks({"vm": 1.0, "docker": 1.2, "vm-host": 1.0, "docker-host": 1.2}))
    assert has_part(found.environment, 0.2)
    assert has_part(found.stack, 0.0)
    assert has_part(found.environment_by_image, 0.2)


def test_what_the_two_do_only_together_is_the_interaction() -> None:
    """Docker costs something with its image alone: the two paths disagree by just that."""
    found = one(blocks({"vm": 1.0, "docker": 1.1, "vm-host": 1.0, "docker-host": 1.0}))
    assert has_part(found.environment, 0.0)
    assert has_part(found.environment_by_image, 0.1)
    assert has_part(found.interaction, 0.1)


@settings(max_examples=40, deadline=None)
@given(
    ratios=st.lists(st.floats(0.2, 5.0), min_size=4, max_size=4),
    rounds=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_the_parts_sum_to_the_whole_by_either_path(
    ratios: list[float], rounds: int, seed: int
) -> None:
    """Whatever the times, and whichever rounds lack an arm: the parts rest on the same rounds."""
    arms = ("vm", "docker", "vm-host", "docker-host")
    drawn = random.Random(seed)
    found = [
        block(
            arm=arm, restart=restart, generation=generation, round=number,
            wall_ns=(round(1e7 * ratio * drawn.lognormvariate(0, 0.3)),) * 3,
        )
        for restart in range(3) for generation in range(2) for number in range(rounds)
        for arm, ratio in zip(arms, ratios, strict=True)
        if number == 0 or drawn.random() < 0.8
    ]  # fmt: skip
    split = one(tuple(found))
    assert split.environment_by_image is not None
    assert split.stack_by_base is not None
    assert split.interaction is not None
    whole = split.total.log_ratio
    assert split.environment.log_ratio + split.stack.log_ratio == pytest.approx(whole)
    assert split.environment_by_image.log_ratio + split.stack_by_base.log_ratio == pytest.approx(
        whole
    )
    assert split.interaction.log_ratio == pytest.approx(
        split.environment_by_image.log_ratio - split.environment.log_ratio
    )
    assert split.total.rounds == split.stack.rounds <= 6 * rounds


def test_an_image_of_the_users_own_is_split_without_the_second_path() -> None:
    """No plain process has the software of that image."""
    tuned = ArmRecord(id="tuned", environment="docker", reference="app:1")
    host = msgspec.structs.replace(VM_HOST, is_reference=True)
    arms = (host, DOCKER_HOST, tuned)
    found = one(blocks({"vm-host": 1.0, "docker-host": 1.0, "tuned": 0.85}), arms)
    assert has_part(found.stack, -0.15)
    assert (found.arm, found.base_image, found.interaction) == ("tuned", "", None)


def test_the_whole_is_the_change_that_the_verdict_rests_on() -> None:
    """The same rounds and typical steps: headline and parts agree far inside their intervals.

    They need not be equal: medians of arms add up, and a median of ratios does not.
    """
    host = msgspec.structs.replace(VM_HOST, is_reference=True)
    control = ArmRecord(id="vm-host~control", environment="vm", stack="host", is_control=True)
    arms = (host, DOCKER_HOST, DOCKER, control)
    ratios = {"vm-host": 1.0, "docker-host": 1.1, "docker": 1.2, "vm-host~control": 1.0}
    data = cell_data(blocks(ratios, noise=0.05), arms)
    (split,) = decompose(data)
    for arm, part in (("docker", split.total), ("docker-host", split.environment)):
        whole = data.plain_estimate(arm, "net", level=0.95)
        assert whole is not None
        assert whole.high is not None
        assert part.high is not None
        assert part.low is not None
        assert part.low < whole.log_ratio < part.high
        assert abs(part.log_ratio - whole.log_ratio) < (whole.high - whole.log_ratio) / 2
        assert (part.rounds, part.restarts) == (whole.rounds, whole.restarts)


def test_the_parts_pay_for_what_restarts_add_and_the_interaction_for_two_of_them() -> None:
    """Equal rounds to the last bit leave the spread of restarts, twice for four arms."""
    ratios = {"vm": 1.0, "docker": 1.2, "vm-host": 1.0, "docker-host": 1.1}
    found = one(blocks(ratios, noise=0.0))
    assert found.interaction is not None
    widths = [
        part.high - part.log_ratio
        for part in (found.total, found.interaction)
        if part.high is not None
    ]
    assert widths[0] > 0
    assert widths[1] == pytest.approx(math.sqrt(2) * widths[0])


def test_without_the_hosts_arms_there_is_nothing_to_split() -> None:
    """Three corners are the least."""
    assert _all_corners((VM, DOCKER, CONTROL)) == ()
    assert _all_corners((VM, DOCKER, VM_HOST)) == ()
    assert _all_corners((VM, VM_HOST, DOCKER_HOST)) == ()


def test_a_corner_that_was_not_measured_leaves_no_split() -> None:
    """An arm that never ran gives no parts, and no error."""
    measured = blocks({"vm": 1.0, "docker": 1.0, "vm-host": 1.0})
    assert decompose(cell_data(measured)) == ()


def test_arms_that_do_not_do_the_same_work_are_not_split() -> None:
    """Where the first losses differ no ratio is printed, and no part of one."""
    ratios = {"vm": 1.0, "docker": 1.0, "vm-host": 1.0, "docker-host": 1.0}
    failure = Failure(phase="checksum", brief="other work")
    event = Event(t=1.0, what="arm-failed", cell=CELL, arm="docker-host", failure=failure)
    assert decompose(cell_data(blocks(ratios), events=(event,))) == ()


def example(ratios: dict[str, float]) -> RunComparison:
    """Return the example of a report with the 2 × 2 of these times."""
    cell = EXAMPLE.cells[0]
    split = msgspec.structs.replace(one(blocks(ratios)), cell=cell.id, workload=cell.workload)
    return changed(EXAMPLE, decompositions=(split,))


SOFTWARE = example({"vm": 0.85, "docker": 0.85, "vm-host": 1.0, "docker-host": 1.0})


def test_the_sentence_names_the_part_of_each() -> None:
    """Whole, environment and software with their intervals, and which part excludes 0."""
    (text,) = split_sentences(SOFTWARE)
    assert text.startswith("docker against vm-host in cnn, −15.")
    assert ": environment " in text
    assert ", software −15." in text
    assert "(of the two parts only the software's excludes 0); not widened." in text


def test_the_why_card_begins_with_the_split_and_the_page_shows_it_cell_by_cell() -> None:
    """The card links to the table, which names the arms of every part."""
    why = summary_cards(SOFTWARE).cause.items
    assert why[0].text == split_sentences(SOFTWARE)[0]
    assert why[0].after[0] == Link(text="Environment or software?", href="#split")
    page = render(SOFTWARE)
    for arms in ("docker ÷ vm-host", "docker ÷ docker-host", "vm ÷ vm-host"):
        assert arms in page
    assert "overhead" not in page


def test_a_part_that_was_not_measured_is_said_not_to_be() -> None:
    """Without the fourth corner the second path has no number, and no interval of its own."""
    (split,) = SOFTWARE.views.decompositions
    bare = msgspec.structs.replace(
        split, base_image="", environment_by_image=None, stack_by_base=None, interaction=None
    )
    run = changed(SOFTWARE, decompositions=(bare,))
    (row,) = split_table(run).rows
    assert row.cells[5:] == ("not measured",) * 3
    assert "not measured" in render(run).split('id="split"')[1].split("</section>")[0]


def test_a_run_without_the_hosts_arms_has_no_such_section() -> None:
    """The page says nothing of what was not asked for."""
    assert 'id="split"' not in render(EXAMPLE)
