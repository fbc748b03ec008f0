"""What the clocks of a block say: times that cannot be true, and what the verdict rests on."""

from __future__ import annotations

import itertools
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from benches import bench
from builders import CELL, block, run_record
from faults import tried
from hypothesis import given
from hypothesis import strategies as st

from envcompare.analysis.compare import compare_run
from envcompare.config.workloads import catalogue
from envcompare.measure.limits import _WAITING, ClockWatch, may_wait
from envcompare.report import plain
from envcompare.report.sections import cells_table
from envcompare.report.wording.methodwords import method_rules
from envcompare.run_folder.records import Block, Event
from envcompare.run_folder.results import RunFolder
from envcompare.stats.metrics import METRICS, MetricName, Readings

sys.path.append(str(Path(__file__).parents[2] / "workloads"))

MEANS: tuple[MetricName, ...] = ("wall", "net", "stretch")


def test_missing_schedstat_turns_the_verdict_to_the_wall_clock(tmp_path: Path) -> None:
    """The report says on what the verdict rests and why."""
    found = tried(tmp_path, "WithoutSchedstat")
    assert found.docker.primary is not None
    assert found.docker.primary.metric == "wall"
    assert "schedstat" in found.comparison.cells[0].metric_reason
    assert "schedstat" in plain(cells_table(found.comparison).rows[1].cells[0])


def test_clock_of_a_block_reads_no_wait_where_the_kernel_has_none() -> None:
    """None, not 0: nothing was measured."""
    from harness.blockclock import BlockClock

    clock = BlockClock(cuda=False)
    clock._schedstat = "/proc/self/no-such-file"
    found = clock.measure(lambda: 1.0, 3, done=0)
    assert found["wait_ns"] is None
    assert len(found["wall_ns"]) == 3


def test_block_in_which_the_clock_jumped_is_dropped_and_counted(tmp_path: Path) -> None:
    """Its hour is in no number, and the method says that it was there."""
    found = tried(tmp_path, "ClockJumps", budget_s=4.0)
    cell = found.comparison.cells[0]
    assert cell.dropped_blocks >= 1
    assert cell.measured_s < 60
    assert all(times.p95_s < 1 for times in cell.step_times)
    told = dict(method_rules(found.comparison))["Watched"]
    assert "in which a clock jumped or the machine stalled" in told
    assert any("clock" in e.text for e in found.events if e.what == "round-dropped")


def test_arm_whose_clock_goes_back_in_a_step_is_out(tmp_path: Path) -> None:
    """A monotonic clock cannot: no time below 0 is kept, and the failure names what was said."""
    found = tried(tmp_path, "ClockGoesBack", budget_s=4.0)
    assert "docker: the answer to `run` cannot be true" in found.failures()
    kept = [sample for sample in found.folder.read_samples().samples if isinstance(sample, Block)]
    assert min(ns for one in kept for ns in one.wall_ns) >= 0


def test_block_in_which_a_model_was_compiled_again_warms_up(tmp_path: Path) -> None:
    """Its half second is in no estimate, and its round is counted as incomplete."""
    found = tried(tmp_path, "CompilesLate", budget_s=4.0)
    cell = found.comparison.cells[0]
    told = [e.text for e in found.events if e.what == "round-dropped" and "compile" in e.text]
    assert cell.dropped_rounds >= len(told) >= 1
    assert "torch.compile worked in it, 1 time" in told[0]
    assert cell.dropped_blocks == 0
    assert all(times.p95_s < 0.4 for times in cell.step_times)


def steady(watch: ClockWatch, count: int = 4) -> int:
    """Show steady blocks to a watch; return when the next may begin."""
    for number in range(count):
        assert watch.fault(block(t0_ns=number * 10**9), cpus=2) == ""
    return count * 10**9


def test_what_is_usual_follows_the_last_blocks() -> None:
    """Work may slow down, and a median over all blocks of hours would take ever longer."""
    watch = ClockWatch()
    steady(watch, 3000)
    slow = {"wall_ns": (5 * 10**8,) * 3, "cpu_ns": (4 * 10**8,) * 3}
    for number in range(3000, 4000):
        assert watch.fault(block(t0_ns=number * 10**10, **slow), cpus=2) == ""
    idle = block(t0_ns=4000 * 10**10, wall_ns=(10**9,) * 3, cpu_ns=(0,) * 3)
    assert watch.fault(idle, cpus=2) == ""


def test_slow_block_that_used_its_time_stays() -> None:
    """An arm may be slow for a reason of its own; dropping that would flatter it."""
    watch = ClockWatch()
    t0_ns = steady(watch)
    slow = block(t0_ns=t0_ns, wall_ns=(10**9,) * 3, cpu_ns=(9 * 10**8,) * 3)
    assert watch.fault(slow, cpus=2) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wall_ns": (10**9,) * 3}, "the clock jumped or the machine stalled"),
        ({"wall_ns": (-5, 10_000_000, 10_000_000)}, "did not go forward"),
        ({"wall_ns": (0, 0, 0)}, "did not go forward"),
        ({"cpu_ns": (10**9,) * 3}, "of CPU time in"),
        ({"wall_ns": (10**10,) * 3, "cpu_ns": (10**10,) * 3}, "by a clock that jumped"),
        ({"t0_ns": 10**6}, "its clock went back"),
    ],
)
def test_times_that_cannot_be_true_are_found(changes: dict[str, Any], words: str) -> None:
    """Each kind of jump is named, and the next true block is taken again."""
    watch = ClockWatch()
    t0_ns = steady(watch)
    assert words in watch.fault(block(**{"t0_ns": t0_ns, **changes}), cpus=2, took_s=4.0)
    assert watch.fault(block(t0_ns=t0_ns + 10**11), cpus=2) == ""


def test_block_of_ones_own_class_that_waits_for_a_disk_counts(tmp_path: Path) -> None:
    """A slow checkpoint is a part of the work, and of the mean of an environment."""
    found = tried(tmp_path, "SavesAtTimes", budget_s=12.0, restarts=1, rounds=8)
    cell = found.comparison.cells[0]
    assert (cell.dropped_blocks, cell.dropped_rounds) == (0, 0)
    samples = found.folder.read_samples().samples
    assert max(sum(b.wall_ns) for b in samples if isinstance(b, Block)) > 2e9


@pytest.mark.parametrize("workload", ["cnn", "files", "compile", "own.py:Own"])
def test_only_bundled_work_that_computes_cannot_wait(workload: str, tmp_path: Path) -> None:
    """Whatever else stands still for seconds may wait for files or for processes."""
    assert may_wait(bench(tmp_path, workload).spec) is (workload != "cnn")


def test_workloads_that_may_wait_are_bundled() -> None:
    """A workload of another name would be taken for one that only computes."""
    assert catalogue().keys() >= _WAITING


def test_clock_that_begins_anew_with_a_launch_is_no_fault() -> None:
    """That of gVisor's sandbox does; in the rounds of the launch it must not go back."""
    watch = ClockWatch()
    steady(watch)
    assert watch.fault(block(restart=1, round=-1, warmup=True, t0_ns=5), cpus=2) == ""
    assert "its clock went back" in watch.fault(block(restart=1, t0_ns=10**6), cpus=2)


def test_dropped_warm_up_is_not_counted_as_left_out(tmp_path: Path) -> None:
    """It is in no number either way."""
    fault = "its clock went back by 3 s since the last block"
    blocks = [
        block(restart=restart, arm=arm, round=number, warmup=number < 0, status=status)
        for restart in range(2)
        for arm in ("vm", "docker")
        for number in (-1, 0, 1)
        for status in ("dropped" if arm == "docker" and number < 1 else "ok",)
    ]
    events = [
        Event(t=1.0, what="round-dropped", cell=CELL, arm="docker", text=f"round {number}: {fault}")
        for _ in range(2)
        for number in (-1, 0)
    ]
    folder = RunFolder.create(tmp_path, run_record())
    for sample in blocks:
        folder.append_sample(sample)
    for event in events:
        folder.append_event(event)
    folder.close()
    cell = compare_run(folder).cells[0]
    assert (cell.dropped_blocks, cell.dropped_rounds) == (2, 2)


@given(
    st.integers(10**5, 10**9),
    st.integers(0, 10**8),
    st.integers(0, 10**8),
    st.integers(1, 5),
)
def test_wall_is_net_times_stretch(step_ns: int, wait_ns: int, throttled_ns: int, k: int) -> None:
    """log(wall) = log(net) + log(stretch), block by block, whatever waited and was throttled."""
    one = block(wall_ns=(step_ns,) * k, wait_ns=wait_ns, throttled_ns=throttled_ns, k=k)
    wall, net, stretch = (METRICS[name](one) for name in ("wall", "net", "stretch"))
    if net is None or stretch is None or wall is None:
        assert wait_ns - min(wait_ns, throttled_ns) >= step_ns * k
        return
    assert math.log(wall) == pytest.approx(math.log(net) + math.log(stretch), abs=1e-12)
    assert stretch >= 1


@given(st.randoms(use_true_random=False), st.integers(2, 8))
def test_reported_wall_is_net_times_stretch(draws: random.Random, rounds: int) -> None:
    """The identity holds for what is reported, through sums and over restarts."""
    found = []
    for restart, number, arm in itertools.product(range(4), range(rounds), ("vm", "docker")):
        wall_ns = tuple(draws.randrange(10**7, 3 * 10**7) for _ in range(3))
        fields = {"restart": restart, "round": number, "arm": arm, "wall_ns": wall_ns}
        found.append(block(**fields, wait_ns=draws.randrange(2 * 10**7)))
    readings = Readings(found)
    wall, net, stretch = (readings.mean("docker", "vm", name) for name in MEANS)
    assert wall is not None
    assert net is not None
    assert stretch is not None
    assert wall.mean == pytest.approx(net.mean + stretch.mean, abs=1e-9)


def test_wall_net_and_stretch_are_reported_for_a_comparison(tmp_path: Path) -> None:
    """A reader can check the identity on the numbers of each comparison."""
    found = tried(tmp_path, "Steady")
    assert found.docker.primary is not None
    assert found.docker.mean is not None
    means = {one.metric: one.log_ratio for one in (found.docker.mean, *found.docker.secondary)}
    assert means["wall"] == pytest.approx(means["net"] + means["stretch"], abs=1e-9)
