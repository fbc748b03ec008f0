"""The typical step of a block and its net time, and where the mean and the tail see more."""

from __future__ import annotations

import math

import numpy as np
import pytest
from builders import CELL, block, run_record, stepped
from hypothesis import given
from hypothesis import strategies as st

from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.judge import tail
from envcompare.run_folder.records import Block, ProcessRun
from envcompare.stats.metrics import Readings, goes_by_clock, net_ns, net_steps_ns, typical_ns

STEP_NS = 10_000_000


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((40,), 40),
        ((40, 20), 25),
        ((50, 10, 40, 20, 30), 20),
        ((10, 20, 30, 40), 17.5),
        (tuple(range(200, -1, -1)), 50),
    ],
)
def test_typical_step_is_the_lower_quartile(steps: tuple[int, ...], expected: float) -> None:
    """Linear between neighbours; of one step it is that step."""
    assert typical_ns(block(wall_ns=steps, k=len(steps)), "wall") == expected


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=130))
def test_typical_step_is_the_quartile_of_numpy_however_many_steps(steps: list[int]) -> None:
    """Few are sorted by hand, for their thousands of blocks; it is the same number."""
    found = typical_ns(block(wall_ns=tuple(steps), k=len(steps)), "wall")
    assert found == pytest.approx(float(np.quantile(steps, 0.25)))


def test_typical_step_of_a_gpu_is_the_mean() -> None:
    """A step ends when it is queued, and the last one waits for the device."""
    on_gpu = block(wall_ns=(1, 1, 28), gpu_ns=(9, 9, 9))
    assert typical_ns(on_gpu, "wall") == 10


def test_typical_step_of_a_process_is_all_of_it() -> None:
    """A whole program has no steps."""
    run = ProcessRun(
        cell=CELL, arm="vm", number=0, order=0, t0_ns=0, wall_ns=7, user_ns=1, sys_ns=1,
        real_ns=9, exit_code=0,
    )  # fmt: skip
    assert typical_ns(run, "wall") == 7


@pytest.mark.parametrize(
    ("wall_ns", "cpu_ns", "changes", "expected"),
    [
        # What a hypervisor or another process took is then in the wall time alone.
        ((30, 10, 10), (10, 9, 8), {"wait_ns": 2}, [10, 9, 8]),
        # Throttling is the environment's own doing; it is spread over the steps of the block.
        ((30,) * 3, (10, 9, 8), {"wait_ns": 7, "throttled_ns": 6}, [12, 11, 10]),
        # Other threads computed: their CPU time exceeds the time on the clock.
        ((10,) * 3, (11,) * 3, {"wait_ns": 3}, [9, 9, 9]),
    ],
)
def test_net_step_is_cpu_time_where_the_thread_never_gave_up_its_cpu(
    wall_ns: tuple[int, ...], cpu_ns: tuple[int, ...], changes: dict[str, int], expected: list[int]
) -> None:
    """With the time a quota took; where other threads computed it is wall time less the wait."""
    one = block(wall_ns=wall_ns, cpu_ns=cpu_ns, voluntary_switches=0, **changes)
    assert net_steps_ns(one, by_clock=goes_by_clock(one)) == pytest.approx(expected)


@pytest.mark.parametrize("switches", [1, None])
def test_net_step_is_wall_time_less_the_wait_where_the_thread_slept(switches: int | None) -> None:
    """A step that waits for a disk takes that time; only the wait for a CPU is taken out."""
    slept = block(
        wall_ns=(40, 20, 40), cpu_ns=(1, 1, 1), wait_ns=30, throttled_ns=10,
        voluntary_switches=switches,
    )  # fmt: skip
    assert net_steps_ns(slept, by_clock=goes_by_clock(slept)) == pytest.approx([32, 16, 32])


@pytest.mark.parametrize("changes", [{"wait_ns": None}, {"wait_ns": 31, "cpu_ns": (0, 0, 0)}])
def test_net_step_is_unknown_where_the_wait_was_not_measured_or_leaves_nothing(
    changes: dict[str, int | None],
) -> None:
    """None, never 0."""
    one = block(**{"wall_ns": (10,) * 3, "voluntary_switches": 0, **changes})
    by_clock = goes_by_clock(one)
    assert (net_steps_ns(one, by_clock=by_clock), net_ns(one, by_clock=by_clock)) == (None, None)


def cell(found: tuple[Block, ...]) -> CellData:
    """Return a cell of these blocks."""
    run = run_record()
    return CellData(run=run, cell=run.cells[0], blocks=found, events=(), host_events=())


@pytest.mark.parametrize(("share", "mean"), [(0.02, 0.04), (0.1, 0.2)])
def test_slow_steps_leave_the_typical_step_and_show_in_mean_and_tail(
    share: float, mean: float
) -> None:
    """One in fifty, or in ten, takes three times as long."""
    found = stepped(share=share, factor=3)
    readings = Readings(found)
    typical = readings.evidence("docker", "vm", "net")
    whole = readings.mean("docker", "vm", "net")
    slow = tail(cell(found), "docker")
    assert typical is not None
    assert whole is not None
    assert slow is not None
    assert abs(typical.mean) < 0.003
    assert whole.mean == pytest.approx(math.log1p(mean), abs=0.003)
    assert (slow.share, slow.reference_share) == (pytest.approx(share), 0)
    assert slow.slow_ratio == pytest.approx(3, rel=0.01)
    assert slow.difference_low is not None
    assert slow.difference_high is not None
    assert slow.difference_low <= share <= slow.difference_high
    assert slow.difference_low > 0


def test_arm_that_is_slower_throughout_shows_alike_in_typical_step_and_mean() -> None:
    """And has no more slow steps than the reference: each arm is held to its own median."""
    found = tuple(
        block(
            arm=arm, restart=restart, round=number, k=5, voluntary_switches=0,
            wall_ns=(STEP_NS * times,) * 5, cpu_ns=(STEP_NS * times,) * 5,
        )
        for restart in range(4) for number in range(10) for arm, times in (("vm", 1), ("docker", 2))
    )  # fmt: skip
    readings = Readings(found)
    typical = readings.evidence("docker", "vm", "net")
    whole = readings.mean("docker", "vm", "net")
    slow = tail(cell(found), "docker")
    assert typical is not None
    assert whole is not None
    assert slow is not None
    assert typical.mean == pytest.approx(math.log(2)) == pytest.approx(whole.mean)
    assert (slow.share, slow.reference_share, slow.slow_ratio) == (0, 0, None)
    assert (slow.difference_low, slow.difference_high) == (None, None)
    assert slow.p90_log_ratio == pytest.approx(math.log(2))


def test_tail_of_few_steps_is_not_told() -> None:
    """Of a hundred steps in each arm it would be a step or two; the reference has none at all."""
    found = stepped()
    few = tuple(one for one in found if one.restart == 0 and one.round < 19)
    assert tail(cell(few), "docker") is None
    assert tail(cell(found), "vm") is None
    assert tail(cell(found), "docker") is not None
