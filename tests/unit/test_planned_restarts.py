"""A cell of a fixed size: a restart that was broken off is measured anew, and counts once."""

from __future__ import annotations

import pytest
from builders import block, design
from msgspec.structs import replace

from envcompare.measure.lockstep import PlannedRestarts
from envcompare.run_folder import last_calibration, standing_samples
from envcompare.run_folder.records import Block, Event, Memory

ARMS = ("vm", "docker")


def restart(number: int, *, rounds: int = 2) -> list[Block]:
    """Return the blocks of a restart, the one that warms up first."""
    return [
        block(arm=arm, restart=number, round=of, warmup=of < 0)
        for of in range(-1, rounds)
        for arm in ARMS
    ]


def restarts_of(*samples: Block) -> PlannedRestarts:
    """Return what a fixed design of three restarts of two rounds has of these blocks."""
    return PlannedRestarts.of(design(restarts=3, rounds=2), samples)


def test_restart_without_a_round_of_an_arm_comes_next() -> None:
    """The number is that of the restart that was broken off."""
    assert restarts_of(*restart(0), *restart(1)[:-1]).next(ARMS) == 1


def test_restart_in_which_a_model_was_compiled_again_is_whole() -> None:
    """It would be compiled again in each repetition, and the restart would never end."""
    *others, last = restart(0)
    assert restarts_of(*others, replace(last, warmup=True)).next(ARMS) == 1


def test_restarts_are_done_when_all_are_whole() -> None:
    """An arm that is out is not waited for."""
    whole = restarts_of(*restart(0), *restart(1), *restart(2))
    assert whole.are_done(ARMS)
    assert not whole.are_done((*ARMS, "singularity"))


def test_next_number_is_new_where_no_size_is_fixed() -> None:
    """A restart that was broken off keeps the rounds that it has."""
    assert PlannedRestarts.of(design(), restart(0)[:3]).next(ARMS) == 1


def test_samples_of_a_restart_that_was_measured_anew_are_overtaken() -> None:
    """Those of other restarts and cells stay."""
    memory = Memory(cell=block().cell, arm="vm", restart=1, generation=0, max_rss_bytes=1)
    other = block(cell="other", arm="vm", restart=1, round=-1, warmup=True)
    first, again = restart(1)[:4], restart(1)
    samples = (*restart(0), *first, memory, other, *again)
    assert standing_samples(samples, design(restarts=3, rounds=2)) == (*restart(0), other, *again)


def test_a_restart_that_was_measured_anew_is_of_the_last_part_of_the_run() -> None:
    """A resumed part writes the blocks of an arm one after the other, not in rounds."""
    broken = restart(1)[:2]  # the warm-up of the first arms
    anew = [replace(one, part=1) for one in restart(1)]
    begun = {one.arm for one in broken}
    by_arm = sorted(anew, key=lambda one: (one.arm in begun, one.arm))
    samples = (*restart(0), *broken, *by_arm)
    assert standing_samples(samples, design(restarts=2, rounds=2)) == (*restart(0), *by_arm)


def test_blocks_of_turns_that_were_too_short_do_not_count() -> None:
    """They are of an earlier calibration than the last of their cell; other samples stay."""
    short = [*restart(0), block(cell="other", arm="vm")]
    memory = Memory(cell=block().cell, arm="vm", restart=0, generation=0, max_rss_bytes=1)
    long = [replace(one, calibration=1) for one in (*restart(0), *restart(1))]
    expected = (short[-1], memory, *long)
    assert standing_samples((*short, memory, *long), design()) == expected
    noted = Event(t=0, what="calibrated", cell=short[0].cell, values={"calibration": 1})
    assert standing_samples((*short, memory), design(), [noted]) == expected[:2]


def test_last_calibration_replaces_those_before() -> None:
    """An arm that was far slower in short turns need not be so in long ones."""
    notes = ({"expected_spread": 0.01}, {"steps_per_block": 3, "steps_per_block docker": 1},
             {"steps_per_block": 30, "calibration": 1}, {"planned_restarts": 2})  # fmt: skip
    events = [
        *(Event(t=0, what="calibrated", values=values) for values in notes),
        Event(t=0, what="turn", values={"steps_per_block": 9}),
    ]
    expected = {"expected_spread": 0.01, "steps_per_block": 30, "calibration": 1}
    assert last_calibration(events) == {**expected, "planned_restarts": 2}


@pytest.mark.timeout(60)
def test_restarts_that_all_come_twice_take_no_time_that_grows_with_their_square() -> None:
    """A run folder may be anybody's."""
    first = restart(0)[0]
    samples = [replace(first, restart=number) for number in range(20_000)] * 2
    assert standing_samples(samples, design(restarts=4, rounds=4)) == tuple(samples[20_000:])
