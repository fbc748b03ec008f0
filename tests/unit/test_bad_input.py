"""What cannot be measured is named, with a next step, and gives no verdict."""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benches import Measured, bench, measure
from builders import block
from hypothesis import given
from hypothesis import strategies as st

from envcompare.measure import limits
from envcompare.measure.limits import ClockWatch, block_limit_s, steps_a_block
from envcompare.metrics import METRICS, estimate
from envcompare.report.method import method_view
from envcompare.report.summary import notes
from envcompare.report.view import page

sys.path.append(str(Path(__file__).parents[2] / "workloads"))

SOURCE = """
import ctypes, os, random, signal, time

IN_DOCKER = os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker"


class Steady:
    batch = 1

    def setup(self, seed, device):
        self.steps = 0

    def step(self):
        self.steps += 1
        self.act()
        return float(sum(i * i for i in range(3000)) % 97)

    def act(self):
        pass


class TakesSeconds(Steady):
    def act(self):
        time.sleep(0.7)


class DoesNothing(Steady):
    def step(self):
        return 1.0


class DrawsItsOwnNumbers(Steady):
    def step(self):
        return super().step() + random.SystemRandom().random()


class IsKilled(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class ItsGenerationIsKilled(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            os.kill(os.getpid(), signal.SIGKILL)


class Hangs(Steady):
    def act(self):
        if IN_DOCKER and self.steps == 9:
            time.sleep(300)


class WritesToStdout(Steady):
    def act(self):
        print("printed")
        os.write(1, b"written\\n")
        ctypes.CDLL(None).puts(b"put by C")
        ctypes.CDLL(None).fflush(None)


class ClockJumps(Steady):
    seconds = 3600

    def setup(self, seed, device):
        super().setup(seed, device)
        import blockclock
        self.blocks = 0
        measure = blockclock.BlockClock.measure

        def counted(clock, *args, **fields):
            self.blocks += 1
            return measure(clock, *args, **fields)

        blockclock.BlockClock.measure = counted

    def act(self):
        if IN_DOCKER and self.blocks == 5:
            self.blocks += 1
            now = time.monotonic_ns
            time.monotonic_ns = lambda: now() + self.seconds * 10**9


class ClockGoesBack(ClockJumps):
    seconds = -3600


class WithoutSchedstat(Steady):
    def setup(self, seed, device):
        super().setup(seed, device)
        import blockclock
        blockclock._wait_ns = lambda path: None
"""


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks last 20 ms, so that a test takes moments."""
    monkeypatch.setattr(limits, "BLOCK_S", 0.02)


def tried(folder: Path, name: str, **changes: Any) -> Measured:
    """Measure a workload of SOURCE with real workers."""
    path = folder / "own.py"
    path.write_text(SOURCE)
    passes = changes.pop("passes", ("lockstep",))
    made = bench(folder, f"{path}:{name}", **{"budget_s": 1.5, "target": 1e-4, **changes})
    return measure(made, passes=passes)


@pytest.mark.parametrize("passes", [("startup",), ("lockstep",)])
def test_step_longer_than_the_budget_is_refused(tmp_path: Path, passes: tuple[str, ...]) -> None:
    """Both passes name the step, the budget, and the budget that would do."""
    found = tried(tmp_path, "TakesSeconds", budget_s=0.5, passes=passes)
    assert found.docker.outcome == "failed"
    assert "vm: one step took 0.7" in found.failures()
    assert "longer than the budget of 0.5 s | give --budget" in found.failures()
    assert found.docker.primary is None


def test_step_faster_than_the_clock_is_refused(tmp_path: Path) -> None:
    """The clock itself would be measured; the next step is to put more work into a step."""
    found = tried(tmp_path, "DoesNothing")
    assert (found.docker.outcome, found.docker.primary) == ("failed", None)
    assert "µs, and reading the clocks up to 1 µs of it" in found.failures()
    assert "put more work into a step" in found.failures()


def test_short_steps_are_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block never holds more than the most steps; that it is short is a caution."""
    monkeypatch.setattr(limits, "MAX_STEPS", 20)
    monkeypatch.setattr(limits, "BLOCK_S", 1000.0)
    found = tried(tmp_path, "Steady")
    assert found.comparison.cells[0].steps_per_block == 20
    assert "a block lasts" in found.cautions
    assert "put more work into a step" in found.cautions
    cautions = " ".join(item.text for item in page(found.comparison, ()).boxes[-1].items)
    assert found.comparison.cells[0].cautions[0] in cautions
    assert any("a block lasts" in text for text in notes(found.comparison))


@pytest.mark.parametrize("step_s", [0.0, 1e-9, 1e-4, 0.01, 10.0])
def test_steps_of_a_block_stay_within_bounds(step_s: float) -> None:
    """Whatever the calibration saw."""
    assert limits.MIN_STEPS <= steps_a_block(step_s) <= limits.MAX_STEPS


def test_other_numbers_in_each_arm_give_no_ratio(tmp_path: Path) -> None:
    """Arms whose first loss differs do not do the same work."""
    found = tried(tmp_path, "DrawsItsOwnNumbers")
    assert (found.docker.outcome, found.docker.primary) == ("failed", None)
    assert "does not do the same work as the reference, its first loss differs" in found.failures()
    assert "give both arms the same device, data" in found.failures()


@pytest.mark.parametrize(
    ("name", "brief"),
    [
        ("IsKilled", "docker: the worker ended during `run` with exit code 137"),
        ("ItsGenerationIsKilled", "docker: ProcessError: the process of the generation was killed"),
    ],
)
def test_worker_killed_in_a_block_is_named(tmp_path: Path, name: str, brief: str) -> None:
    """It is tried once more, in new processes, and then given up; half a round counts nothing."""
    found = tried(tmp_path, name, budget_s=200.0)
    assert found.docker.outcome == "failed"
    assert brief in found.failures()
    assert len(found.comparison.failures) == 2
    assert found.comparison.cells[0].dropped_rounds == 2
    assert all(row.hint for row in found.comparison.failures)


def test_hung_worker_is_named_and_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for as long as a block may take, not for ever."""
    monkeypatch.setattr(limits, "MIN_BLOCK_LIMIT_S", 3.0)
    found = tried(tmp_path, "Hangs", budget_s=200.0)
    assert found.docker.outcome == "failed"
    assert "docker: no answer to `run` within 3 s | it hangs or waits" in found.failures()


@pytest.mark.parametrize(("expected_s", "limit_s"), [(0.3, 60), (2.0, 60), (30.0, 600)])
def test_limit_of_a_block_follows_what_it_should_take(expected_s: float, limit_s: float) -> None:
    """A minute at least, twenty times what was expected."""
    assert block_limit_s(expected_s) == limit_s


def test_workload_that_writes_to_stdout_is_measured(tmp_path: Path) -> None:
    """Prints of Python, of the system and of C go to the log, never into the protocol."""
    found = tried(tmp_path, "WritesToStdout")
    assert found.comparison.failures == ()
    assert found.docker.primary is not None
    log = (tmp_path / "docker.log").read_text()
    assert all(text in log for text in ("printed", "written", "put by C"))


def test_missing_schedstat_turns_the_verdict_to_the_wall_clock(tmp_path: Path) -> None:
    """The report says on what the verdict rests and why."""
    found = tried(tmp_path, "WithoutSchedstat")
    assert found.docker.primary is not None
    assert found.docker.primary.metric == "wall"
    assert "schedstat" in found.comparison.cells[0].metric_reason
    assert "schedstat" in method_view(found.comparison).cells[0].reason


def test_clock_of_a_block_reads_no_wait_where_the_kernel_has_none() -> None:
    """None, not 0: nothing was measured."""
    from blockclock import BlockClock

    clock = BlockClock(cuda=False)
    clock._schedstat = "/proc/self/no-such-file"
    found = clock.measure(lambda: 1.0, 3, done=0)
    assert found["wait_ns"] is None
    assert len(found["wall_ns"]) == 3


@pytest.mark.parametrize("name", ["ClockJumps", "ClockGoesBack"])
def test_block_in_which_the_clock_jumped_is_dropped_and_counted(tmp_path: Path, name: str) -> None:
    """Its hour is in no number, and the method says that it was there."""
    found = tried(tmp_path, name)
    cell = found.comparison.cells[0]
    assert cell.dropped_blocks >= 1
    assert cell.measured_s < 60
    assert all(one.p95_s < 1 for one in cell.step_times)
    told = " ".join(method_view(found.comparison).sentences)
    assert "in which a clock jumped or the machine stood still" in told
    assert any("clock" in e.text for e in found.events if e.what == "round-dropped")


def steady(watch: ClockWatch, count: int = 4) -> int:
    """Show steady blocks to a watch; return when the next may begin."""
    for number in range(count):
        assert watch.fault(block(t0_ns=number * 10**9), cpus=2) == ""
    return count * 10**9


def test_slow_block_that_used_its_time_stays() -> None:
    """An arm may be slow for a reason of its own; dropping that would flatter it."""
    watch = ClockWatch()
    t0_ns = steady(watch)
    slow = block(t0_ns=t0_ns, wall_ns=(10**9,) * 3, cpu_ns=(9 * 10**8,) * 3)
    assert watch.fault(slow, cpus=2) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wall_ns": (10**9,) * 3}, "the clock jumped or the machine stood still"),
        ({"wall_ns": (-5, 10_000_000, 10_000_000)}, "did not go forward"),
        ({"wall_ns": (0, 0, 0)}, "did not go forward"),
        ({"cpu_ns": (10**9,) * 3}, "of CPU time in"),
        ({"t0_ns": 10**6}, "its clock went back"),
    ],
)
def test_times_that_cannot_be_true_are_found(changes: dict[str, Any], words: str) -> None:
    """Each kind of jump is named, and the next true block is taken again."""
    watch = ClockWatch()
    t0_ns = steady(watch)
    assert words in watch.fault(block(**{"t0_ns": t0_ns, **changes}), cpus=2)
    assert watch.fault(block(t0_ns=t0_ns + 10**11), cpus=2) == ""


def test_one_cpu_for_all_arms_is_a_caution(tmp_path: Path) -> None:
    """The verdict stands; what disturbs it is said, with a next step."""
    cpu = min(os.sched_getaffinity(0))
    found = tried(tmp_path, "Steady", cpus=(cpu,))
    assert f"all arms run on the one CPU {cpu}" in found.cautions
    assert "give --pin two CPUs or more" in found.cautions


def test_budget_too_small_for_two_generations_is_named(tmp_path: Path) -> None:
    """One generation gives no interval; the budget that would do is estimated."""
    found = tried(tmp_path, "Steady", budget_s=0.05)
    assert found.docker.outcome == "inconclusive"
    assert "the budget of 0.05 s fitted 1 generation" in found.cautions
    needed = float(found.cautions.partition("give --budget ")[2].split()[0])
    assert needed >= 1


@given(
    st.integers(10**5, 10**9),
    st.integers(0, 10**8),
    st.integers(0, 10**8),
    st.integers(1, 5),
)
def test_wall_is_net_times_stretch(step_ns: int, wait_ns: int, throttled_ns: int, k: int) -> None:
    """log(wall) = log(net) + log(stretch), block by block, whatever waited and was throttled."""
    one = block(wall_ns=(step_ns,) * k, wait_ns=wait_ns, throttled_ns=throttled_ns, k=k)
    wall, net, stretch = (METRICS[name].read(one) for name in ("wall", "net", "stretch"))
    if net is None or stretch is None or wall is None:
        assert wait_ns - min(wait_ns, throttled_ns) >= step_ns * k
        return
    assert math.log(wall) == pytest.approx(math.log(net) + math.log(stretch), abs=1e-12)
    assert stretch >= 1


@given(st.randoms(use_true_random=False), st.integers(2, 8))
def test_reported_wall_is_net_times_stretch(draws: random.Random, rounds: int) -> None:
    """The identity holds for what is reported, through medians, trimming and means."""
    found = []
    for generation, number, arm in itertools.product(range(4), range(rounds), ("vm", "docker")):
        wall_ns = tuple(draws.randrange(10**7, 3 * 10**7) for _ in range(3))
        fields = {"generation": generation, "round": number, "arm": arm, "wall_ns": wall_ns}
        found.append(block(**fields, wait_ns=draws.randrange(2 * 10**7)))
    means = {
        name: np.mean(estimate(found, arm="docker", reference="vm", metric=name)[1])
        for name in ("wall", "net", "stretch")
    }
    assert means["wall"] == pytest.approx(means["net"] + means["stretch"], abs=1e-9)


def test_wall_net_and_stretch_are_reported_for_a_comparison(tmp_path: Path) -> None:
    """A reader can check the identity on the numbers of each comparison."""
    found = tried(tmp_path, "Steady")
    assert found.docker.primary is not None
    assert {"wall", "net", "stretch"} <= {
        one.metric for one in (found.docker.primary, *found.docker.secondary)
    }
