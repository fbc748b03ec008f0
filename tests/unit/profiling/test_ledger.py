"""The difference ledger: its parts sum to the whole change to the nanosecond, always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import block
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import ADD, CONV, NCCL, kernel, launched

from envcompare.analysis.model.profiling import PART_LABELS, Ledger
from envcompare.analysis.profiles.ledger import (
    Modes,
    _difference,
    _Division,
    timing_ledger,
    trace_ledger,
)
from envcompare.report.wording.profilewords import largest_parts
from envcompare.run_folder.profiles import Copy, Profile, Quantity
from envcompare.run_folder.records import Measured, ProcessRun

TIMES = st.floats(0, 1e12, allow_nan=False)
DIVISIONS = st.builds(
    _Division,
    parts=st.dictionaries(st.sampled_from(list(PART_LABELS)), TIMES),
    rules=st.just(("rule",)),
)


def assert_exact(made: Ledger) -> None:
    """Check that the parts sum to both wholes and to the change."""
    assert sum(part.reference_ns for part in made.parts) == made.reference_ns
    assert sum(part.arm_ns for part in made.parts) == made.arm_ns
    assert sum(part.change_ns for part in made.parts) == made.change_ns
    assert made.change_ns == made.arm_ns - made.reference_ns


def traced(before: Profile, after: Profile) -> Ledger:
    """Return the ledger of two traces; its parts sum exactly."""
    made = trace_ledger(before, after, arm="docker", source="nsys")
    assert isinstance(made, Ledger)
    assert_exact(made)
    return made


def timed(
    before: Sequence[Measured],
    after: Sequence[Measured],
    modes: tuple[Modes, Modes] | None = None,
) -> Ledger:
    """Return the ledger of two arms by their blocks or processes; its parts sum exactly."""
    made = timing_ledger(before, after, arm="docker", modes=modes)
    assert isinstance(made, Ledger)
    assert_exact(made)
    return made


def parts(made: Ledger) -> dict[str, tuple[int, int]]:
    """Return the parts by name."""
    return {part.part: (part.reference_ns, part.arm_ns) for part in made.parts}


@settings(deadline=None)
@given(DIVISIONS, DIVISIONS)
def test_any_division_sums_exactly(before: _Division, after: _Division) -> None:
    """Rounding loses nothing and moves no part by more than a nanosecond."""
    made = _difference(before, after, arm="docker", basis="timing", whole="a step")
    assert_exact(made)
    for part in made.parts:
        assert abs(part.reference_ns - before.parts.get(part.part, 0.0)) <= 1
        assert abs(part.arm_ns - after.parts.get(part.part, 0.0)) <= 1


def test_trace_is_divided_into_classes_and_idle_time() -> None:
    """Two steps of 3 µs busy and 1 µs idle; the arm waits longer and adds slower."""
    copies = (Copy(kind="HtoD", calls=2, total_ns=1_000.0),)
    before = launched([kernel(CONV), kernel(ADD)], copies=copies, span_ns=7_000.0, busy_ns=5_000.0)
    after = launched(
        [kernel(CONV), kernel(ADD, each_ns=1_500.0)],
        copies=copies,
        span_ns=9_000.0,
        busy_ns=6_000.0,
    )
    made = traced(before, after)
    assert (made.reference_ns, made.arm_ns, made.is_per_step) == (3_500, 4_500, True)
    assert parts(made) == {
        "gemm": (1_000, 1_000),
        "element-wise": (1_000, 1_500),
        "memcpy": (500, 500),
        "idle": (1_000, 1_500),
    }
    assert "No activities overlapped" in made.rule


def test_overlapping_time_is_shared_by_a_stated_rule() -> None:
    """Two kernels side by side cannot count for more than the GPU was busy."""
    step = [kernel(CONV, each_ns=3_000.0), kernel(ADD)]
    made = traced(
        launched(step, steps=1, span_ns=3_000.0, busy_ns=3_000.0),
        launched(step, steps=1, span_ns=4_000.0, busy_ns=4_000.0),
    )
    assert parts(made) == {"gemm": (2_250, 3_000), "element-wise": (750, 1_000)}
    assert "in proportion to" in made.rule


def test_communication_counts_where_nothing_else_ran() -> None:
    """Hidden communication costs no time; what is exposed does."""
    exposed = Quantity(
        name="collective_exposed_ns", value=500.0, unit="ns", rule="difference", source="nsys"
    )
    step = [kernel(CONV, each_ns=3_000.0), kernel(NCCL, each_ns=2_000.0)]
    profile = launched(step, steps=1, span_ns=3_500.0, busy_ns=3_500.0, quantities=(exposed,))
    made = traced(profile, profile)
    assert parts(made) == {"gemm": (3_000, 3_000), "communication": (500, 500)}


def test_summary_without_a_time_line_says_what_it_cannot_know() -> None:
    """A list of sums has no idle time."""
    made = traced(launched([kernel(CONV)]), launched([kernel(CONV, each_ns=2_000.0)]))
    assert made.whole == "sum of GPU activities"
    assert "idle time is unknown" in made.rule


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"has_time": False}, "changed the times"),
        ({"steps": None}, "steps"),
        ({"span_ns": 1.0, "busy_ns": 2.0}, "not within its span"),
    ],
)
def test_trace_that_cannot_be_divided_says_why(changes: dict[str, Any], why: str) -> None:
    """A ledger is refused before it is wrong."""
    good = launched([kernel(CONV)])
    bad = launched([kernel(CONV)], repeat=2, **changes)
    found = trace_ledger(good, bad, arm="docker", source="nsys")
    assert isinstance(found, str)
    assert why in found


@st.composite
def traces(draw: st.DrawFn) -> Profile:
    """Return a trace of any classes, with any overlap and idle time."""
    names = st.sampled_from([CONV, ADD, NCCL, "anything"])
    kernels = draw(st.lists(st.builds(kernel, names, each_ns=st.floats(0, 1e9)), min_size=1))
    total = sum(one.total_ns or 0.0 for one in kernels)
    busy = draw(st.floats(0, 1)) * total
    span = busy + draw(st.floats(0, 1e9))
    exposed = draw(st.none() | st.floats(0, 1e9))
    quantity = Quantity(
        name="collective_exposed_ns", value=exposed, unit="ns", rule="sum", source="x"
    )
    return launched(kernels, steps=1, span_ns=span, busy_ns=busy, quantities=(quantity,))


@settings(deadline=None)
@given(traces(), traces())
def test_ledger_of_any_traces_sums_to_the_change_of_their_spans(
    before: Profile, after: Profile
) -> None:
    """However kernels overlapped, the parts are disjoint and fill the span."""
    made = traced(before, after)
    assert made.reference_ns == pytest.approx(before.span_ns, rel=1e-9, abs=1)
    assert made.arm_ns == pytest.approx(after.span_ns, rel=1e-9, abs=1)


def test_blocks_are_divided_into_work_wait_and_quota() -> None:
    """Three steps of 10 ms: the arm was stopped by a quota."""
    stopped = block(wall_ns=(11_000_000,) * 3, wait_ns=3_300_000, throttled_ns=3_000_000)
    made = timed([block()], [stopped])
    found = parts(made)
    assert found["cpu"] == (9_900_000, 9_900_000)
    assert found["wait"] == (33_333, 100_000)
    assert found["throttled"] == (0, 1_000_000)
    assert made.change_ns == 1_000_000


def test_cpu_time_is_split_as_it_was_counted() -> None:
    """User and system are counted beside the clock of the steps, and it is said where."""
    modes = Modes(user_ns=3e9, sys_ns=1e9), Modes(user_ns=1e9, sys_ns=1e9)
    made = timed([block()], [block()], modes)
    assert parts(made)["system"] == (2_475_000, 4_950_000)
    assert made.rule.count("counted in the pass for host events.") == 1


def test_blocks_that_counted_their_modes_need_no_other_pass() -> None:
    """Where both arms counted at least 1 s, with the error that ticks of 10 ms leave."""
    longer = {"wall_ns": (2_000_000_000,), "cpu_ns": (2_000_000_000,), "k": 1}
    counted = [
        block(**longer, user_ns=int(2e9 - system), sys_ns=int(system)) for system in (2e8, 5e8)
    ]
    modes = Modes(user_ns=1e9, sys_ns=1e9), Modes(user_ns=1e9, sys_ns=1e9)
    made = timed(counted[:1], counted[1:], modes)
    left = 2_000_000_000 - (block().wait_ns or 0)
    assert parts(made)["system"] == pytest.approx((0.1 * left, 0.25 * left), abs=1)
    assert made.rule.count("counted in the same blocks.") == 1
    errors = [share * (1 - share) / 200 for share in (0.1, 0.25)]
    assert made.kernel_error_ns == pytest.approx(left * sum(errors) ** 0.5, rel=1e-6)
    short = [block(**longer, user_ns=10, sys_ns=10)] * 2
    other = timed(short[:1], short[1:], modes)
    assert "counted in the pass for host events." in other.rule


def test_modes_of_a_short_pass_are_not_told_apart() -> None:
    """The kernel counts them in ticks of milliseconds."""
    modes = Modes(user_ns=3e8, sys_ns=1e8), Modes(user_ns=1e9, sys_ns=1e9)
    made = timed([block()], [block()], modes)
    assert "system" not in parts(made)
    assert "less than 1 s was counted" in made.notes[-1]


def test_work_of_several_threads_is_not_more_than_the_clock() -> None:
    """Two threads use twice the time that passes."""
    made = timed([block()], [block(cpu_ns=(19_000_000,) * 3)])
    assert made.arm_ns == 10_000_000
    assert "several threads" in made.rule


def test_blocks_on_a_gpu_have_no_such_ledger() -> None:
    """Their time is the GPU's, which a trace divides."""
    found = timing_ledger([block()], [block(gpu_ns=(1, 2, 3))], arm="docker")
    assert isinstance(found, str)


def test_processes_are_divided_into_user_system_and_rest() -> None:
    """A program waited for its disk."""
    run = ProcessRun(
        cell="c", arm="vm", number=0, order=0, t0_ns=0, wall_ns=100, user_ns=60, sys_ns=20,
        real_ns=120, exit_code=0,
    )  # fmt: skip
    made = timed([run], [run])
    assert parts(made) == {"user": (60, 60), "system": (20, 20), "rest": (20, 20)}
    assert largest_parts(made) == "0 ns a process on the clock"


@settings(deadline=None)
@given(*(st.integers(0, 10**9) for _ in range(4)))
def test_ledger_of_any_block_sums_to_the_clock(wall: int, cpu: int, wait: int, stop: int) -> None:
    """Whatever the kernel tells, no part is negative and all make the whole."""
    odd = block(k=1, wall_ns=(wall,), cpu_ns=(cpu,), wait_ns=wait, throttled_ns=stop)
    made = timed([odd], [block()])
    assert made.reference_ns == wall
    assert all(part.reference_ns >= 0 for part in made.parts)


def test_wait_that_the_verdict_leaves_out_leads_no_sentence() -> None:
    """Neighbours took most of the time; what the arm itself needs more stands first."""
    slow = block(
        wall_ns=(100_000_000,) * 3, cpu_ns=(30_000_000,) * 3, wait_ns=200_000_000,
        voluntary_switches=0,
    )  # fmt: skip
    made = timed([block()], [slow])
    assert largest_parts(made).partition(": ")[2].startswith("waiting for a CPU")
    text = largest_parts(made, is_net=True)
    assert "a step without waiting for a CPU: " in text
    assert text.endswith("; waiting for a CPU +66.6 ms, which the verdict leaves out")
