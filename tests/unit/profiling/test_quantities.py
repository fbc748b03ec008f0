"""Quantities side by side, tables of an arm, and checks that profiles belong together."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from traces import ADD, CONV, kernel, launched, record, said

from envcompare.analysis.model.profiling import QuantityRow
from envcompare.analysis.profiles.armprofiles import (
    MOST_ROWS,
    _activity_table,
    _operator_table,
    _pass_state,
    profile_of,
)
from envcompare.analysis.profiles.ledger import partial_records
from envcompare.analysis.profiles.quantities import quantity_rows
from envcompare.run_folder.profiles import (
    ApiCall,
    Copy,
    Device,
    Operator,
    Profile,
    ProfileRecord,
    Quantity,
)


def with_quantity(arm: str, value: float | None, *, name: str, **changes: Any) -> ProfileRecord:
    """Return a record with one quantity of two steps of 32 samples."""
    fields: dict[str, Any] = {"unit": "B", "rule": "sum", "source": "ncu", **changes}
    quantity = Quantity(name=name, value=value, **fields)
    profile = Profile(tool="ncu", quantities=(quantity,), steps=2)
    return record(profile, arm=arm, kind="ncu-memory")


def row(before: float | None, after: float | None, name: str, **changes: Any) -> QuantityRow:
    """Return the row of the arm."""
    records = {
        arm: [with_quantity(arm, value, name=name, **changes)]
        for arm, value in (("vm", before), ("docker", after))
    }
    return quantity_rows(records, {}, reference="vm")["docker"][0]


def test_sum_is_given_of_a_step_and_of_a_sample() -> None:
    """Two steps of 32 samples moved 6400 bytes."""
    found = row(6_400.0, 6_400.0, "dram_bytes")
    assert (found.value, found.per_step, found.per_sample) == (6_400.0, 3_200.0, 100.0)
    assert (found.ratio, found.agreement) == (1.0, "equal")


def test_each_gpu_of_a_profile_is_compared_with_its_counterpart() -> None:
    """One name stands there once for each GPU."""
    records = {}
    for arm, values in (("vm", (10.0, 20.0)), ("docker", (10.0, 30.0))):
        both = tuple(
            Quantity(name="busy_ns", value=value, unit="ns", rule="union", source="nsys",
                     scope=f"GPU {place}", gpu=place)
            for place, value in enumerate(values)
        )  # fmt: skip
        records[arm] = [record(Profile(tool="nsys", quantities=both, steps=1), arm=arm)]
    found = quantity_rows(records, {}, reference="vm")["docker"]
    assert [(one.scope, one.ratio) for one in found] == [("GPU 0", 1.0), ("GPU 1", 1.5)]


def test_one_gpu_is_not_held_against_one_of_two() -> None:
    """Busy times of another number of GPUs have no ratio, and the number is said."""
    records = {}
    for arm, count in (("vm", 1), ("docker", 2)):
        scopes = {None: "2 launches of 1 kernel"} if count == 1 else {0: "GPU 0", 1: "GPU 1"}
        trace = launched(
            [kernel(CONV)],
            devices=tuple(Device(name="A100", uuid=str(place)) for place in range(count)),
            quantities=tuple(
                Quantity(name="busy_ns", value=500.0, unit="ns", rule="union", source="nsys",
                         scope=scope, gpu=gpu)
                for gpu, scope in scopes.items()
            ),
        )  # fmt: skip
        records[arm] = [record(trace, arm=arm)]
    found = quantity_rows(records, {}, reference="vm")["docker"]
    assert [(one.scope, one.ratio) for one in found] == [("GPU 0", None), ("GPU 1", None)]
    (text,) = said(records)
    assert text.startswith("docker used 2 GPUs and vm 1")
    assert said({"vm": records["vm"]}) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "unlike"),
    [
        ("l2_hit_rate", {"rule": "ratio of sums"}, {"rule": "time-weighted"}, "rule"),
        ("dram_bytes", {"pages": ("raw",)}, {"pages": ("details",)}, "page"),
        ("dram_bytes", {"pages": ("raw", "raw")}, {"pages": ("raw",)}, ""),
        ("launch_count", {"pages": ("raw",)}, {"pages": ("summary",)}, ""),
        ("dram_bytes", {"tool": "nvprof"}, {"tool": "ncu"}, "tool"),
    ],
)
def test_numbers_of_another_kind_have_no_ratio(
    name: str, before: dict[str, Any], after: dict[str, Any], unlike: str
) -> None:
    """Another rule of averaging, page or tool: both are told, and why they are not divided."""
    records = {}
    for arm, value, changes in (("vm", 10.0, before), ("docker", 12.0, after)):
        quantity = Quantity(
            name=name, value=value, unit="", rule=changes.get("rule", "sum"), source="a"
        )
        held = {key: one for key, one in changes.items() if key != "rule"}
        profile = Profile(**{"tool": "ncu", "quantities": (quantity,), **held})
        records[arm] = [record(profile, arm=arm)]
    (found,) = quantity_rows(records, {}, reference="vm")["docker"]
    expected = (12.0, None, "unknown") if unlike else (12.0, 1.2, "differs")
    assert (found.value, found.ratio, found.agreement) == expected
    assert found.unlike == unlike


def test_short_times_of_the_operating_system_are_given_and_not_compared() -> None:
    """0 and 2 ms of one tick each are the same work, seen by chance."""
    short = row(13e6, 0.0, "sys_ns", unit="ns")
    assert (short.value, short.ratio, short.agreement) == (0.0, None, "unknown")
    assert row(2e9, 1e9, "sys_ns", unit="ns").agreement == "differs"


def test_rate_is_never_divided_by_steps() -> None:
    """Half the occupancy a step would be nonsense."""
    found = row(50.0, 60.0, "occupancy", unit="%", rule="time-weighted")
    assert (found.per_step, found.ratio, found.agreement) == (None, 1.2, "differs")


@pytest.mark.parametrize(
    ("name", "after", "expected"),
    [
        ("flops_model", 1_000_001.0, "differs"),
        ("flops_fp32", 1_000_001.0, "equal"),
        ("flops_fp32", 1_010_000.0, "differs"),
        ("dram_bytes", 1_010_000.0, "equal"),
        ("dram_bytes", 1_030_000.0, "differs"),
        ("launch_count", 1_000_001.0, "differs"),
        ("memcpy_htod_bytes", 1_000_001.0, "differs"),
        ("kernel_time_ns", 1_040_000.0, "equal"),
    ],
)
def test_tolerance_is_as_tight_as_the_quantity_repeats(
    name: str, after: float, expected: str
) -> None:
    """Counts are exact, counted traffic nearly so, times are not."""
    assert row(1_000_000.0, after, name).agreement == expected


def test_missing_stays_missing_with_its_reason() -> None:
    """No value is no zero, and nothing is compared with it."""
    found = row(1.0, None, "dram_bytes", status="ok", reason="n/a on this chip")
    assert (found.value, found.per_step, found.ratio) == (None, None, None)
    assert (found.agreement, found.reason) == ("unknown", "n/a on this chip")


def test_nothing_against_nothing_is_equal_and_has_no_ratio() -> None:
    """Zero major faults in both arms."""
    assert (row(0.0, 0.0, "major_faults").ratio, row(0.0, 0.0, "x").agreement) == (None, "equal")
    assert row(0.0, 5.0, "major_faults").agreement == "differs"


def test_what_was_read_beside_the_timing_stands_among_the_rows() -> None:
    """Power is of the timing pass and of no profile."""
    power = Quantity(name="power_w", value=300.0, unit="W", rule="time-weighted", source="NVML")
    found = quantity_rows({}, {"vm": (power,), "docker": (power,)}, reference="vm")
    assert (found["docker"][0].kind, found["docker"][0].ratio) == ("timing", 1.0)


def test_other_model_flops_mean_another_program() -> None:
    """Nothing else compares then."""
    records = {arm: [with_quantity(arm, value, name="flops_model")]
               for arm, value in (("vm", 1e6), ("docker", 2e6))}  # fmt: skip
    rows = quantity_rows(records, {}, reference="vm")
    (text,) = said({}, rows=rows)
    assert "2 times the FLOPs of vm" in text


def test_other_code_than_the_timed_one_is_said() -> None:
    """A profile of another program explains nothing."""
    profile = launched([kernel(CONV)])
    arms = {"vm": [record(profile, code_hash="aa")], "docker": [record(profile, code_hash="bb")]}
    texts = said(arms, codes={"vm": "aa", "docker": "aa"}, identified_arms=("vm", "docker"))
    assert ["in docker" in texts[0], "different code" in texts[1]] == [True, True]
    assert said({"vm": [record(profile)]}, codes={"vm": "aa"}) == []


def test_counters_of_a_part_of_the_launches_are_not_of_a_step() -> None:
    """Counting stops after so many launches."""
    trace = record(launched([kernel(CONV)] * 10))
    some = record(
        launched([kernel(CONV)] * 4, steps=2, tool="ncu"), kind="ncu-memory", name="ncu-memory"
    )
    assert partial_records({"vm": [trace, some]}) == {("vm", "ncu-memory")}
    (text,) = said({"vm": [trace, some]})
    assert "40 % of the launches" in text


def test_steps_that_a_trace_counts_win_over_those_it_is_said_to_hold() -> None:
    """A trace with marks of 5 steps was said to hold 10."""
    trace = record(launched([kernel(CONV)], steps=5), steps=10)
    assert (profile_of(trace).steps, _pass_state(trace).steps) == (5, 5)
    (text,) = said({"vm": [trace]})
    assert "declared with 10 steps but has 5" in text
    unknown = record(launched([kernel(CONV)], steps=None), steps=10)
    assert profile_of(unknown).steps == 10
    plain = record(launched([kernel(CONV)]))
    assert [*said({"vm": [unknown]}), *said({"vm": [plain]})] == []


def test_passes_that_ran_other_kernels_are_said() -> None:
    """The counters' program chose another convolution."""
    trace = record(launched([kernel(CONV), kernel(ADD)]))
    other = record(launched([kernel("winograd"), kernel(ADD)], tool="ncu"), kind="ncu-memory")
    texts = said({"vm": [trace, other]})
    assert len(texts) == 2
    assert "winograd" in texts[0]
    same = record(launched([kernel(ADD), kernel(CONV)], tool="ncu"), kind="ncu-memory")
    assert said({"vm": [trace, same]}) == []


def test_kernels_that_a_cut_pass_lacks_are_no_finding() -> None:
    """A pass without steps was ended within them."""
    trace = record(launched([kernel(CONV), kernel(ADD)]))
    cut = record(launched([kernel(CONV)], steps=None, tool="ncu"), kind="ncu-memory")
    assert said({"vm": [trace, cut]}) == []


def test_activities_are_the_table_of_old() -> None:
    """All shapes of a kernel are one line; percent are of the type."""
    profile = launched(
        [kernel(CONV, grid=(1, 1, 1)), kernel(CONV, grid=(2, 1, 1), each_ns=2_000.0)],
        steps=1,
        copies=(Copy(kind="HtoD", calls=2, total_ns=1_000.0, total_bytes=64),),
        api_calls=(ApiCall(name="cudaLaunchKernel", calls=2, total_ns=10.0),),
    )
    table = _activity_table(record(profile))
    conv, copy, api = table.rows
    assert (conv.percent, conv.time_ns, conv.calls, conv.average_ns) == (75.0, 3_000.0, 2, 1_500.0)
    assert (copy.name, copy.percent, copy.total_bytes) == ("[CUDA memcpy HtoD]", 25.0, 64)
    assert (api.type, api.percent) == ("API calls", 100.0)
    assert (table.gpu_ns, table.api_ns) == (4_000.0, 10.0)


def test_what_is_cut_from_a_table_stands_in_its_last_line() -> None:
    """Percent still add up to a hundred."""
    step = [kernel(f"kernel_{number}") for number in range(MOST_ROWS + 5)]
    table = _activity_table(record(launched(step)))
    assert (table.rows[-1].name, table.rows[-1].is_rest) == ("5 more", True)
    assert sum(one.percent for one in table.rows) == pytest.approx(100)


def test_operators_are_ordered_by_their_own_time() -> None:
    """Totals of operators that were cut hold each other and are not added."""
    operators = tuple(
        Operator(name=f"aten::{n}", calls=1, self_cpu_ns=float(n), cpu_ns=100.0)
        for n in range(MOST_ROWS + 3)
    )
    table = _operator_table(record(Profile(tool="torch", operators=operators), kind="torch"))
    assert table.rows[0].name == f"aten::{MOST_ROWS + 2}"
    assert (table.rows[-1].name, table.rows[-1].cpu_ns) == ("3 more", None)
    assert sum(one.self_cpu_ns for one in table.rows) == table.self_cpu_ns


def test_several_traces_of_one_tool_say_whose_the_tables_are() -> None:
    """Two ranks are no two passes, and what is not shown must be said."""
    profile = launched([kernel(CONV)])
    first, second = (
        record(profile, arm="docker", kind="imported", name=f"imported-nsys{end}")
        for end in ("", "-2")
    )
    assert said({"docker": (first,)}) == []
    (text,) = said({"docker": (first, second)})
    assert text == (
        "docker has 2 profiles of nsys: kernels and ledger come from imported-nsys; quantities in "
        "several of them come from imported-nsys."
    )


def test_records_that_contradict_each_other_have_no_value_and_no_ratio() -> None:
    """Neither of two counts of one thing is dropped in silence; a third decides nothing."""
    counts = (("imported-ncu", 4_000.0), ("imported-ncu-2", 8_000.0), ("imported-ncu-3", 4_000.0))
    several = [
        replace(with_quantity("docker", value, name="dram_bytes"), kind="imported", name=name)
        for name, value in counts
    ]
    one = replace(with_quantity("vm", 4_000.0, name="dram_bytes"), kind="imported")
    (found,) = quantity_rows({"vm": [one], "docker": several}, {}, reference="vm")["docker"]
    assert (found.value, found.ratio, found.status) == (None, None, "refused")
    assert found.reason == ("imported-ncu has 4000 B, but imported-ncu-2 has 8000")
    (text,) = said({"docker": several})
    assert text.startswith("docker has 3 profiles of ncu: they contradict each other in 1 ")
    alike = [several[0], several[2]]
    (kept,) = quantity_rows({"vm": [one], "docker": alike}, {}, reference="vm")["docker"]
    assert (kept.value, kept.ratio) == (4_000.0, 1.0)
    (text,) = said({"docker": alike})
    assert text.endswith("quantities in several of them come from imported-ncu.")
