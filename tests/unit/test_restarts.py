"""The restarts of a cell: one generation each, rounds until the time is over, and on after a break.

With real workers where it matters what they do, else on a cell that launches none.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benches import Kept, bench, measure
from builders import block, blocks
from faults import SOURCE as FAULTS
from lab import ON_ONE_NODE
from msgspec import structs

from envcompare.measure.cell import Budget, CellContext, Roster
from envcompare.measure.generation import Tuning
from envcompare.measure.lockstep import Lockstep, Turns, _Rounds
from envcompare.run_folder import (
    CALIBRATION,
    RUN_IN_S,
    SETTLED,
    last_calibration,
    standing_samples,
)
from envcompare.run_folder.records import Block, Memory
from envcompare.stats.typical import MIN_ROUNDS, ROUNDS_FOR_MEDIAN

SOURCE = """
import time


class Sleeps:
    batch = 1

    def setup(self, seed, device):
        pass

    def step(self):
        time.sleep(0.03)
        return 1.0
"""


COMPUTES = """
import os
import threading
import time


class Computes:
    batch = 1

    def setup(self, seed, device):
        {before}

    def step(self):
        ends = time.process_time() + 0.02
        while time.process_time() < ends:
            pass
        return float(len(os.sched_getaffinity(0)))
"""


RESTS = """
import os
import time


class Rests:
    batch = 1

    def setup(self, seed, device):
        self.is_docker = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"
        self.ended_s = self.fresh_s = time.monotonic()
        self.steps = 0

    def step(self):
        self.steps += 1
        began_s = time.monotonic()
        if began_s - self.ended_s > 0.005:
            self.fresh_s = began_s + {fresh_s}
        time.sleep(0.004 if self.is_docker and began_s > self.fresh_s else 0.002)
        self.ended_s = time.monotonic()
        return float(self.steps)
"""


def prepared(path: Path, **changes: object) -> CellContext:
    """Return a cell whose steps take 30 ms, and of which nothing narrow is asked."""
    (path / "own.py").write_text(SOURCE)
    return bench(path, f"{path}/own.py:Sleeps", **{"target": 1e-4, **changes})


def kept(made: CellContext) -> tuple[Block | Memory, ...]:
    """Return what was measured."""
    assert isinstance(made.recorder, Kept)
    made.recorder.folder.close()
    found = made.recorder.folder.read_samples().samples
    return tuple(one for one in found if isinstance(one, Block | Memory))


def test_restart_has_one_generation_that_warms_up_once(tmp_path: Path) -> None:
    """Each arm begins once, discards a block, measures in rounds of a step, and ends."""
    made = prepared(tmp_path, budget_s=8.0, min_restarts=2)
    lockstep = Lockstep(made, Roster(made))
    Turns([lockstep]).measure()
    found = kept(made)
    measured = [one for one in found if isinstance(one, Block)]
    restarts = sorted({one.restart for one in measured})
    assert restarts == list(range(lockstep.readings.restarts))
    assert len(restarts) >= 2
    assert {one.generation for one in found} == {0}
    for restart in restarts:
        of_docker = [one for one in measured if (one.arm, one.restart) == ("docker", restart)]
        assert [one.round for one in of_docker if one.warmup] == [-1]
        rounds = [one.round for one in of_docker if not one.warmup]
        assert rounds == list(range(len(rounds)))
        assert len(rounds) >= MIN_ROUNDS / 2
        assert {one.k for one in of_docker if not one.warmup} == {1}
        ends = [one.restart for one in found if isinstance(one, Memory) and one.arm == "docker"]
        assert ends.count(restart) == 1


@pytest.mark.parametrize(
    ("fresh_s", "run_in_s"),
    [(0.03, 0.05), pytest.param(0.1, 0.2, marks=pytest.mark.nightly)],
)
def test_turns_begin_with_untimed_steps_where_a_pause_makes_an_arm_faster(
    tmp_path: Path, fresh_s: float, run_in_s: float
) -> None:
    """In a loop it takes up to twice as long, which turns of 20 ms would never show."""
    (tmp_path / "own.py").write_text(RESTS.format(fresh_s=fresh_s))
    made = bench(tmp_path, f"{tmp_path}/own.py:Rests", budget_s=30.0, target=0.1)
    lockstep = Lockstep(made, Roster(made))
    Turns([lockstep]).measure()
    assert isinstance(made.recorder, Kept)
    noted = last_calibration(made.recorder.events)
    assert noted[RUN_IN_S] >= run_in_s
    docker = lockstep.intervals()["docker"]
    assert docker is not None
    assert docker.mean > math.log(1.5)  # a busy machine wakes all arms late
    blocks_ = [one for one in standing_samples(kept(made), made.design) if isinstance(one, Block)]
    assert {one.calibration for one in blocks_} == {noted[CALIBRATION]}
    assert all(one.run_in >= run_in_s / 0.005 for one in blocks_ if not one.warmup)
    assert lockstep.readings.restarts == len({one.restart for one in blocks_})
    for restart in {one.restart for one in blocks_}:
        assert len(set(uncounted_steps(blocks_, restart))) == 1
    assert Tuning.of(noted, made.arms).values == {
        name: value for name, value in noted.items() if name != "planned_restarts"
    }


def uncounted_steps(found: list[Block], restart: int) -> Iterator[float]:
    """Yield how many steps ran before each block that none names, by the work itself."""
    steps: Counter[str] = Counter()
    for one in (one for one in found if one.restart == restart):
        steps[one.arm] += one.run_in + one.k
        assert one.loss is not None
        yield one.loss - steps[one.arm]


def test_turns_that_are_too_short_are_said_where_longer_ones_have_no_room(tmp_path: Path) -> None:
    """What was measured is kept."""
    (tmp_path / "own.py").write_text(RESTS.format(fresh_s=0.1))
    made = bench(tmp_path, f"{tmp_path}/own.py:Rests", budget_s=18.0, target=1e-4)
    lockstep = Lockstep(made, Roster(made))
    Turns([lockstep]).measure()
    assert isinstance(made.recorder, Kept)
    cautions = [event.text for event in made.recorder.events if event.what == "caution"]
    assert any("turns are too short" in text for text in cautions)
    assert {one.calibration for one in kept(made) if isinstance(one, Block)} == {0}
    assert lockstep.intervals()["docker"] is not None


def measured_rounds(
    path: Path, before: str = "pass", *, same_cpu: bool = True
) -> list[list[Block]]:
    """Return the blocks of each round of work that computes, after something else."""
    (path / "own.py").write_text(COMPUTES.format(before=before))
    given = {"budget_s": 6.0, "min_restarts": 2, "target": 1e-4, "same_cpu": same_cpu}
    made = bench(path, f"{path}/own.py:Computes", **given)
    Turns([Lockstep(made, Roster(made))]).measure()
    measured = [one for one in kept(made) if isinstance(one, Block) and not one.warmup]
    by_round: dict[tuple[int, int], list[Block]] = {}
    for one in measured:
        by_round.setdefault((one.restart, one.round), []).append(one)
    return list(by_round.values())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
@ON_ONE_NODE
def test_arms_of_a_round_run_on_one_cpu_and_may_move_in_between(tmp_path: Path) -> None:
    """The first one stays where the scheduler has put it; the work sees one CPU then."""
    rounds = measured_rounds(tmp_path)
    held = [blocks_of_it for blocks_of_it in rounds if all(one.is_held for one in blocks_of_it)]
    assert len(held) >= len(rounds) / 2  # a block of a busy machine may have to wait
    for blocks_of_it in held:
        assert len({one.cpu for one in blocks_of_it}) == 1
        assert {one.loss for one in blocks_of_it} == {1.0}
        assert blocks_of_it[0].checksum == len(os.sched_getaffinity(0))


def test_work_of_several_threads_is_held_on_no_cpu(tmp_path: Path) -> None:
    """They would take turns on it."""
    starts = "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    measured = list(itertools.chain(*measured_rounds(tmp_path, starts)))
    assert {one.is_held for one in measured} == {False}


def test_scheduler_alone_chooses_cpus_where_that_is_wanted(tmp_path: Path) -> None:
    """What it chose is recorded all the same."""
    measured = list(itertools.chain(*measured_rounds(tmp_path, same_cpu=False)))
    assert {one.is_held for one in measured} == {False}
    assert {one.cpu for one in measured} <= os.sched_getaffinity(0)


def test_resumed_cell_goes_on_with_the_next_restart_as_it_was_calibrated(tmp_path: Path) -> None:
    """Its blocks hold the steps of those before, or they could not be set beside them."""
    made = prepared(tmp_path, budget_s=5.0)
    earlier = blocks(dict.fromkeys(made.arms, 4.0), restarts=2, generations=1)
    tuning = {"steps_per_block": 2, "step_s": 0.03}
    lockstep = Lockstep(made, Roster(made), earlier, tuning)
    Turns([lockstep]).measure()
    measured = [one for one in kept(made) if isinstance(one, Block)]
    assert min(one.restart for one in measured) == 2
    assert {one.k for one in measured if not one.warmup} == {2}
    assert lockstep.readings.restarts == 2 + len({one.restart for one in measured})
    assert isinstance(made.recorder, Kept)
    assert not any("steps_per_block" in event.values for event in made.recorder.events)


def test_resumed_cell_takes_the_steps_of_its_blocks_where_no_calibration_was_noted(
    tmp_path: Path,
) -> None:
    """What was measured says it as well."""
    made = prepared(tmp_path, budget_s=5.0)
    earlier = blocks(dict.fromkeys(made.arms, 3.0), restarts=1)
    Turns([Lockstep(made, Roster(made), earlier)]).measure()
    measured = [one for one in kept(made) if isinstance(one, Block)]
    assert {one.k for one in measured if not one.warmup} == {3}
    assert {one.k for one in measured if one.warmup} == {3}  # 0.1 s of blocks of 90 ms


@pytest.mark.parametrize(("has_startup", "compiling_s"), [(False, 0.7), (True, 2.1)])
def test_what_a_first_launch_compiles_is_no_cost_of_later_ones(
    tmp_path: Path, *, has_startup: bool, compiling_s: float
) -> None:
    """Three arms compile for 0.7 s, together or in turns; planned is what the rest took."""
    (tmp_path / "own.py").write_text(FAULTS)
    name = f"{tmp_path}/own.py:CompilesFirst"
    made = bench(tmp_path, name, restarts=1, rounds=1, has_startup=has_startup)
    lockstep, began = Lockstep(made, Roster(made)), time.monotonic()
    Turns([lockstep]).measure()
    spent_s = time.monotonic() - began
    kept(made)
    assert lockstep.readings.restarts == 1
    assert lockstep._costs is not None
    assert 0 < lockstep._costs.launch_s < spent_s - compiling_s


def rounds_of(made: CellContext, *earlier: Block) -> _Rounds:
    """Return the end of a restart that was launched a second ago."""
    return _Rounds(lockstep=Lockstep(made, Roster(made), earlier), began=time.monotonic() - 1)


def test_first_restart_measures_a_round_however_little_is_left(tmp_path: Path) -> None:
    """A cell without one would say nothing at all."""
    rounds = rounds_of(replace(prepared(tmp_path), budget=Budget.running(0.0)))
    assert not rounds.is_enough(None)
    assert rounds.is_enough(0.1)


def test_later_restart_measures_no_round_beyond_the_budget(tmp_path: Path) -> None:
    """Its launch may have taken all that was left."""
    spent = replace(prepared(tmp_path), budget=Budget.running(0.0))
    assert rounds_of(spent, block()).is_enough(None)


def test_restart_goes_on_until_it_has_its_rounds(tmp_path: Path) -> None:
    """With a budget that is not spent six of at least two restarts are the least."""
    made = replace(prepared(tmp_path, min_restarts=2), budget=Budget.running(1000.0))
    began = time.monotonic() - 101
    rounds = _Rounds(lockstep=Lockstep(made, Roster(made)), began=began)
    assert not rounds.is_enough(None)
    rounds._first_s = began + 1
    assert [rounds.is_enough(0.1) for _ in range(7)] == [*[False] * 5, True, True]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"min_restarts": 2}, 6), ({"min_restarts": 4}, 3), ({"preset": "strict"}, ROUNDS_FOR_MEDIAN)],
)
def test_restart_has_the_rounds_that_an_interval_needs(
    tmp_path: Path, changes: dict[str, object], expected: int
) -> None:
    """All together have 12, and each has six where restarts are the units."""
    made = prepared(tmp_path, **changes)
    assert Lockstep(made, Roster(made)).least_rounds == expected


@pytest.mark.parametrize("uses_gpu", [False, True])
def test_only_work_that_used_a_gpu_needs_its_restarts(tmp_path: Path, *, uses_gpu: bool) -> None:
    """Whatever the host has: the report goes by what was measured too."""
    found = blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}, restarts=2, generations=5)
    found = tuple(structs.replace(each, gpu_ns=each.wall_ns * uses_gpu or None) for each in found)
    made = prepared(tmp_path, min_restarts=2, gpu_restarts=4, target=0.2)
    made = replace(made, has_gpu=True, budget=Budget.running(0.1))
    lockstep = Lockstep(made, Roster(made), found)
    assert lockstep.why_done() == (None if uses_gpu else "target")


def test_pause_is_looked_at_where_only_the_host_has_a_gpu(tmp_path: Path) -> None:
    """Work that leaves the GPU alone is measured as on any other host."""
    (tmp_path / "own.py").write_text(FAULTS)
    made = bench(tmp_path, f"{tmp_path}/own.py:Steady", budget_s=2.0, target=1e-4)
    events = measure(replace(made, has_gpu=True)).events
    notes = [event.values for event in events if event.what == "calibrated"]
    assert any(values.get(SETTLED) is False for values in notes)


def test_restarts_that_scatter_far_have_the_rounds_of_a_unit(tmp_path: Path) -> None:
    """Their verdict rests on values of their own."""
    made = prepared(tmp_path, min_restarts=2)
    slow = {restart: 10_000_000 + 600_000 * restart for restart in range(4)}
    found = [
        block(arm=arm, restart=restart, round=number, wall_ns=(ns if arm == "docker" else 10**7,))
        for restart, ns in slow.items()
        for number in range(10)
        for arm in ("vm", "docker")
    ]
    assert Lockstep(made, Roster(made), found).least_rounds == ROUNDS_FOR_MEDIAN
