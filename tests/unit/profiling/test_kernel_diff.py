"""The kernel diff: what was replaced, what is in one arm only, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import ADD, CONV, MULTIPLY, NCCL, REDUCE, WINOGRAD, kernel, launched, said

from envcompare.analysis.model.profiling import KernelDiff, KernelDiffRow
from envcompare.analysis.profiles.kerneldiff import MOST_ROWS, kernel_diff
from envcompare.report.wording.profilewords import kernel_sentence, short_sentence
from envcompare.run_folder.profiles import Kernel, Profile


def diff(before: Profile, after: Profile) -> KernelDiff:
    """Compare two profiles as vm and docker."""
    return kernel_diff(before, after, names=("vm", "docker"), source="nsys")


def rows(made: KernelDiff, kind: str) -> list[KernelDiffRow]:
    """Return the rows of one kind."""
    return [row for row in made.rows if row.kind == kind]


def test_one_program_on_two_engines_has_an_identical_kernel_set() -> None:
    """Only the times differ."""
    step = [kernel(CONV), kernel(ADD), kernel(ADD)]
    slower = [kernel(CONV, each_ns=1_100.0), kernel(ADD), kernel(ADD)]
    made = diff(launched(step), launched(slower))
    assert made.identical_kernel_set
    assert (made.replaced, made.only_reference, made.only_arm, made.both) == (0, 0, 0, 2)
    assert made.rows[0].reference_name == CONV
    assert (made.rows[0].reference_ns, made.rows[0].arm_ns) == (1_000.0, 1_100.0)
    assert (made.rows[1].reference_launches, made.rows[1].arm_launches) == (2.0, 2.0)


def test_kernel_in_the_same_operator_is_replaced() -> None:
    """The same operator launched another kernel at the same place."""
    first = [kernel(WINOGRAD, op="conv1", grid=(4, 1, 1)), kernel(ADD, op="relu")]
    second = [kernel(CONV, op="conv1", grid=(9, 1, 1)), kernel(ADD, op="relu")]
    made = diff(launched(first), launched(second))
    (row,) = rows(made, "replaced")
    assert (row.reference_name, row.arm_name, row.op) == (WINOGRAD, CONV, "conv1")
    assert row.rule == "operator and launch order"
    assert (row.reference_grid, row.arm_grid) == ((4, 1, 1), (9, 1, 1))
    assert not made.identical_kernel_set


def test_order_tells_which_launch_of_a_kernel_was_replaced() -> None:
    """Of two launches of one kernel the second became another."""
    before = [kernel(CONV), kernel(REDUCE), kernel(CONV)]
    after = [kernel(CONV), kernel(REDUCE), kernel(WINOGRAD)]
    made = diff(launched(before), launched(after))
    (row,) = rows(made, "replaced")
    assert (row.reference_launches, row.arm_launches) == (1.0, 1.0)
    assert row.rule == "kind and launch order"
    (kept,) = [row for row in rows(made, "both") if row.reference_name == CONV]
    assert (kept.reference_launches, kept.arm_launches) == (1.0, 1.0)


def test_kernel_of_another_kind_is_not_taken_for_a_replacement() -> None:
    """What only one arm launches is said to be in that arm only."""
    made = diff(launched([kernel(ADD), kernel(REDUCE)]), launched([kernel(ADD), kernel(NCCL)]))
    assert [row.reference_name for row in rows(made, "only-reference")] == [REDUCE]
    assert [row.arm_name for row in rows(made, "only-arm")] == [NCCL]


def test_more_launches_of_one_kernel_stand_in_one_row() -> None:
    """A kernel both arms have is in both, with its launches."""
    made = diff(launched([kernel(ADD), kernel(REDUCE)]), launched([kernel(ADD)] * 3))
    (row,) = rows(made, "both")
    assert (row.reference_launches, row.arm_launches) == (1.0, 3.0)


def test_steps_are_scaled_and_it_is_said() -> None:
    """Two steps against five are the same program."""
    step = [kernel(CONV), kernel(ADD)]
    made = diff(launched(step, steps=2), launched(step, steps=5))
    assert made.identical_kernel_set
    assert (made.reference_ns, made.arm_ns) == (2_000.0, 2_000.0)
    assert "2 in vm and 5 in docker" in made.scaling


def test_unknown_steps_are_said_and_one_proportion_is_one_set() -> None:
    """Files of unknown origin give whole profiles."""
    step = [kernel(CONV), kernel(ADD)]
    made = diff(launched(step, steps=None, repeat=2), launched(step, steps=None, repeat=3))
    assert (made.identical_kernel_set, made.launch_factor) == (False, 1.5)
    assert not made.is_per_step
    assert "number of steps is unknown" in made.scaling
    assert [row.kind for row in made.rows] == ["both", "both"]


def test_launches_in_one_proportion_are_as_often_only_where_steps_say_so() -> None:
    """10 launches against 20 may be one program; with steps a step decides."""
    step = [kernel(CONV), kernel(ADD)]
    vague = diff(launched(step, steps=None, repeat=10), launched(step, steps=None, repeat=20))
    for sentence in (kernel_sentence, short_sentence):
        text = sentence(vague, reference="vm")
        assert "in the same proportion, but 2 times as many launches" in text
        assert "equally often" not in text
    (text,) = said({}, diffs=[vague])
    assert "--steps" in text
    same = diff(launched(step, steps=None, repeat=10), launched(step, steps=None, repeat=10))
    assert (same.identical_kernel_set, same.launch_factor) == (True, None)
    more = diff(launched(step, steps=10, repeat=10), launched(step, steps=10, repeat=20))
    assert (more.identical_kernel_set, more.launch_factor) == (False, None)
    assert said({}, diffs=[same, more]) == []


def test_without_an_order_names_are_paired() -> None:
    """A summary has names only; another architecture of one kernel replaced it."""
    before = Profile(tool="nvprof", kernels=(kernel("volta_sgemm_128x64_nn"), kernel(ADD)))
    after = Profile(tool="nvprof", kernels=(kernel(ADD), kernel("ampere_sgemm_128x64_nn")))
    made = diff(before, after)
    (row,) = rows(made, "replaced")
    assert (row.rule, row.kernel_class) == ("name", "gemm")
    assert "paired by name" in made.scaling


def test_two_builds_of_one_kernel_are_in_both_and_not_identical() -> None:
    """The compiled architecture in the name is told elsewhere; the kernel is the same."""
    name = "void at::native::_GLOBAL__N__5_x_compute_{}_cpp1_ii_1::clamp<float>(int)"
    made = diff(launched([kernel(name.format(70))]), launched([kernel(name.format(86))]))
    assert (made.both, made.identical_kernel_set) == (1, False)


def test_rows_beyond_the_most_are_summed() -> None:
    """Nothing is dropped: the rest is one row that says how many it holds."""
    step = [kernel(f"kernel_{number}", each_ns=float(number)) for number in range(MOST_ROWS + 10)]
    made = diff(launched(step), launched(step))
    assert (made.rows[-1].is_rest, made.rows[-1].rows_cut) == (True, 10)
    assert sum(row.arm_ns or 0.0 for row in made.rows) == made.arm_ns


def test_cut_names_and_other_tools_are_said() -> None:
    """What makes names unlike for no reason of the environment is a caution."""
    made = diff(launched([kernel("void k$")], tool="nvprof"), launched([kernel("void k<int>()")]))
    assert any("nvprof" in text for text in made.cautions)
    assert any("cut in vm" in text for text in made.cautions)


KERNELS = st.builds(
    kernel,
    st.sampled_from([CONV, WINOGRAD, ADD, MULTIPLY, REDUCE, NCCL]),
    each_ns=st.sampled_from([100.0, 250.0]),
    grid=st.sampled_from([(1, 1, 1), (2, 1, 1)]),
    op=st.sampled_from(["", "conv", "add"]),
)
STEPS = st.lists(KERNELS, min_size=1, max_size=8)
ORDERS = st.sampled_from([{}, {"sequence": ()}, {"steps": 3}])


@settings(deadline=None)
@given(STEPS, STEPS, ORDERS)
def test_every_launch_is_in_exactly_one_row(
    one: list[Kernel], other: list[Kernel], changes: dict[str, Any]
) -> None:
    """Rows add up to all launches and all time of both arms, whatever was paired how."""
    before, after = launched(one), launched(other, **changes)
    made = diff(before, after)
    assert sum(row.reference_launches for row in made.rows) == pytest.approx(len(one))
    assert sum(row.arm_launches for row in made.rows) == pytest.approx(len(other))
    assert made.reference_ns == pytest.approx(sum(k.total_ns or 0.0 for k in one))
    assert made.arm_ns == pytest.approx(sum(k.total_ns or 0.0 for k in other))


def test_hundred_thousand_launches_of_two_builds_are_compared() -> None:
    """The largest trace the readers keep, with no name in common, is still answered."""
    names = [(f"volta_sgemm_{n}", f"ampere_other_{n}") for n in range(500)]
    before, after = (launched([kernel(pair[side]) for pair in names], steps=200) for side in (0, 1))
    made = diff(before, after)
    assert sum(row.arm_launches for row in made.rows) == pytest.approx(500)


def test_tool_that_tells_no_shape_pairs_by_name() -> None:
    """The rule that is shown is the one that was applied."""
    step = [kernel(CONV, grid=None, block=None), kernel(ADD, grid=None, block=None)]
    made = diff(launched(step), launched(step))
    assert {row.rule for row in made.rows} == {"name and launch order"}
