"""Looks at what a pause before a turn changes, on numbers made by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from envcompare.measure import Ran
from envcompare.measure.limits import HeldWaits, Settling, settling_s

PARTS_MS = (50, 50, 150)  # of a loop


def loop_of(steps_ms: dict[str, tuple[float, ...]]) -> dict[str, Ran]:
    """Return a long turn of each arm, whose steps last so long in its three parts."""
    return {arm: ran_of([round(ms * 1e6) for ms, part_ms in zip(steps, PARTS_MS, strict=True)
                         for _ in range(round(part_ms / ms))])
            for arm, steps in steps_ms.items()}  # fmt: skip


def ran_of(wall_ns: list[int], wait_ns: int = 0, **fields: Any) -> Ran:
    """Return a block."""
    steps = tuple(wall_ns)
    return Ran(t0_ns=0, wall_ns=steps, cpu_ns=steps, wait_ns=wait_ns, **fields)


def rounds_of(
    steps_ms: dict[str, float], *, scatter: float = 0.0, count: int = 12
) -> list[dict[str, float]]:
    """Return rounds of turns that scatter so much."""
    drawn = random.Random(1)
    return [
        {arm: math.log(ms * 1e6) + drawn.gauss(0, scatter) for arm, ms in steps_ms.items()}
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    ("loop", "turns", "expected_s"),
    [
        ({"vm": (2, 2, 2), "docker": (2, 3, 3)}, {"vm": 2.0, "docker": 2.0}, 0.05),
        ({"vm": (2, 2, 2), "docker": (2, 2, 3)}, {"vm": 2.0, "docker": 2.0}, 0.2),
        ({"vm": (2, 2, 2), "docker": (2, 2, 2)}, {"vm": 2.0, "docker": 2.06}, 0.05),
        ({"vm": (2, 2, 2), "docker": (2, 2, 2)}, {"vm": 2.0, "docker": 2.04}, 0),  # below 2.5 %
        ({"vm": (2, 2, 3), "docker": (4, 4, 6)}, {"vm": 2.0, "docker": 4.0}, 0),  # so does vm
        ({"docker": (2, 3, 3)}, {"vm": 2.0, "docker": 2.0}, 0),
        ({"vm": (2, 2, 3)}, {"vm": 2.0, "docker": 2.0}, 0),
    ],
)
def test_ratio_in_turns_is_compared_with_that_in_a_loop(
    loop: dict[str, tuple[float, ...]], turns: dict[str, float], expected_s: float
) -> None:
    """Where the steps change before 50 ms are over, turns settle for 50 ms."""
    found = settling_s([loop_of(loop)], rounds_of(turns), reference="vm", margin=0.05)
    assert found == expected_s


@pytest.mark.parametrize(
    ("slower_ms", "scatter", "count", "expected_s"),
    [
        (0.12, 0.01, 12, 0.05),
        (0.12, 0.1, 12, None),
        (0.0, 0.2, 12, None),
        (0.0, 0.01, 12, 0.0),
        (0.08, 0.06, 12, None),  # a free sidecar, which half of the turns meet
        (0.08, 0.06, 48, 0.05),
    ],
)
def test_difference_has_to_exceed_what_the_scatter_allows(
    slower_ms: float, scatter: float, count: int, expected_s: float | None
) -> None:
    """Neighbours of a busy host must not lengthen turns; where it is unclear, more rounds count."""
    loop = loop_of({"vm": (2, 2, 2), "docker": (2, 2, 2)})
    rounds = rounds_of(
        {"vm": 2.0, "docker": 2.0 + slower_ms}, scatter=scatter / 2**0.5, count=count
    )
    assert settling_s([loop], rounds, reference="vm", margin=0.02) == expected_s


@pytest.mark.parametrize(
    ("loops", "turn_ms", "expected_s"),
    [
        ([(2.2,) * 3] * 4, 2.0, 0.05),
        ([(2.0,) * 3, (2.4,) * 3] * 2, 2.0, None),  # or a busy second would lengthen turns
        ([(16.0,) * 3], 17.0, 0.0),  # some percent of a ratio of 8 are not worth the time
        ([(24.0,) * 3], 17.0, 0.05),
        ([None, (2, 3, 3)], 2.0, 0.05),  # it may have failed in the first loop
    ],
)
def test_loops_of_an_arm_are_judged_together(
    loops: list[tuple[float, ...] | None], turn_ms: float, expected_s: float | None
) -> None:
    """How far they scatter counts too, and of a large ratio more has to change."""
    made = [loop_of({"vm": (2, 2, 2), **({"docker": steps} if steps else {})}) for steps in loops]
    rounds = rounds_of({"vm": 2.0, "docker": turn_ms})
    assert settling_s(made, rounds, reference="vm", margin=0.05) == expected_s


@pytest.mark.parametrize("is_seen", [True, False])
def test_where_rounds_scatter_more_of_them_are_looked_at(*, is_seen: bool) -> None:
    """Each with one more loop: four looks, or as the budget allows if something was seen before."""
    equal = ran_of([2_000_000] * 60)
    settling = Settling()
    settling.begin()
    settling.is_seen = is_seen
    looks = 0
    for number in range(100):
        settling.add({"vm": equal, "docker": ran_of([4_000_000 if number % 2 else 1_000_000] * 9)})
        if settling.is_due:
            assert settling.loops == (3 if is_seen and looks in {0, 4} else 1)
            assert settling.look([{"vm": equal, "docker": equal}], reference="vm", margin=0.05) == 0
            assert not settling.is_due
            looks += 1
    assert (looks, settling.is_settled) == ((5, False) if is_seen else (4, True))
    assert settling.is_seen == is_seen


def test_two_looks_in_a_row_have_to_see_it_and_a_clean_one_ends_them() -> None:
    """The second one compares with more loops, and both with rounds of their own."""
    equal = ran_of([2_000_000] * 60)
    slow = {"vm": equal, "docker": ran_of([2_000_000] * 10 + [4_000_000] * 100)}
    clean = {"vm": equal, "docker": equal}

    def looks(*loops: dict[str, Ran]) -> tuple[list[float], bool, int]:
        settling = Settling()
        settling.add(clean)
        assert not settling.is_due
        settling.begin()
        found = []
        for loop in loops:
            for _ in range(12):
                assert not settling.is_due
                settling.add(clean)
            assert settling.is_due
            found.append(settling.look([loop], reference="vm", margin=0.05))
        assert settling.is_seen != settling.is_settled
        return found, settling.is_settled, settling.loops

    given_up = Settling()
    given_up.begin()
    for _ in range(12):
        given_up.add(clean)
    given_up.is_settled = True  # for lack of budget, of which others may leave some
    assert not given_up.is_due
    assert looks(clean) == ([0.0], True, 1)
    assert looks(slow) == ([0.0], False, 3)
    assert looks(slow, clean) == ([0.0, 0.0], True, 1)
    assert looks(slow, slow) == ([0.0, 0.05], False, 3)


@pytest.mark.parametrize(
    ("longer", "shorter", "usual", "share", "harm"),
    [
        (16, 0, 9, 0.02, True),
        (0, 16, 9, 0.02, True),  # something of the reference
        (15, 0, 9, 0.02, False),
        (20, 1, 9, 0.02, True),
        (20, 2, 9, 0.02, False),
        (16, 0, 9, 0.009, False),
        (16, 0, 50, 0.02, False),
        (0, 0, 9, 0.02, False),
    ],
)
def test_no_worker_is_held_on_a_cpu_that_something_of_its_arm_needs(
    longer: int, shorter: int, usual: int, share: float, *, harm: bool
) -> None:
    """It waits there in a quarter of the rounds, and seldom the other way around."""
    held = HeldWaits()
    one = [(share, 0.0)] * longer + [(0.0, share)] * shorter + [(0.5, 0.5)] * usual
    for docker, vm in one:
        blocks = {
            arm: ran_of([10**6], round(10**6 * waited), is_held=True)
            for arm, waited in (("docker", docker), ("vm", vm))
        }
        held.add(blocks, "vm")
        held.add({**blocks, "podman": ran_of([1], 1)}, "vm")
    assert held.harm == harm


@pytest.mark.parametrize("throttled_ns", [200_000, 300_000])
def test_stops_by_a_quota_are_no_wait_for_a_cpu_that_others_held(throttled_ns: int) -> None:
    """The kernel counts them as waits; they end no rounds on one CPU."""
    held = HeldWaits()
    stopped = ran_of([10**6], 200_000, is_held=True, throttled_ns=throttled_ns)
    for _ in range(20):
        held.add({"docker": stopped, "vm": ran_of([10**6], is_held=True)}, "vm")
    assert not held.harm
