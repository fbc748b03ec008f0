"""Energy, clocks and throttling of an arm: what fell on its own blocks, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import CELL, block, run_record
from builders import blocks as timed_blocks
from hypothesis import given
from hypothesis import strategies as st

from envcompare.analysis.compare import compare_run
from envcompare.analysis.timing import surroundings
from envcompare.analysis.timing.surroundings import _Curve, arm_quantities
from envcompare.run_folder.profiles import Quantity
from envcompare.run_folder.records import Block, EnergyBlock, FingerprintRecord, GpuReading
from envcompare.run_folder.results import RunFolder

MS = 1_000_000


def reading(
    times_ms: Sequence[float],
    power_w: Sequence[float | None],
    *,
    uuid: str = "GPU-1",
    energy_j: Sequence[float | None] = (),
    throttling: int | None = 0,
) -> GpuReading:
    """Return readings at these times; all else stays as it is."""
    count = len(times_ms)
    joules = energy_j or [None] * count
    return GpuReading(
        cell="local/cnn",
        uuid=uuid,
        t_ns=tuple(round(t * MS) for t in times_ms),
        power_mw=tuple(None if w is None else round(w * 1000) for w in power_w),
        energy_mj=tuple(None if j is None else round(j * 1000) for j in joules),
        sm_mhz=(1410,) * count,
        memory_mhz=(1215,) * count,
        temperature_c=tuple(40 + number for number in range(count)),
        throttling=(throttling,) * count,
        utilization_percent=(None,) * count,
    )


def run_of(t0_ms: float, wall_ms: float, k: int = 2, **fields: object) -> Block:
    """Return a block of k equal steps."""
    step = round(wall_ms * MS / k)
    plain = block(k=k, t0_ns=round(t0_ms * MS), wall_ns=(step,) * k, cpu_ns=(step,) * k)
    return msgspec.structs.replace(plain, **fields)


def measured(
    blocks: Sequence[Block], readings: Sequence[GpuReading], **more: Any
) -> dict[str, Quantity]:
    """Return the quantities of an arm by their names."""
    return {one.name: one for one in arm_quantities(blocks, readings, **more)}


def every_50_ms(until_ms: int) -> list[float]:
    """Return the times of readings."""
    return [float(t) for t in range(0, until_ms + 1, 50)]


def test_energy_of_a_step_is_the_power_during_the_blocks_of_the_arm() -> None:
    """Power between blocks, in which another arm ran, is no part of it."""
    times = every_50_ms(1000)
    watts = [300.0 if t <= 400 else 100.0 for t in times]
    found = measured([run_of(100, 200), run_of(700, 100)], [reading(times, watts)], batch=4)
    joules = 300 * 0.2 + 100 * 0.1
    assert found["power_w"].value == pytest.approx(joules / 0.3)
    assert found["energy_per_step_j"].value == pytest.approx(joules / 4)
    assert found["energy_per_sample_j"].value == pytest.approx(joules / 16)
    assert found["energy_per_step_j"].source == surroundings.SOURCE
    assert "2 of 2 blocks" in found["energy_per_step_j"].scope
    assert "look more alike than they are" in found["energy_per_step_j"].scope


def test_power_of_now_is_smeared_over_no_neighbour() -> None:
    """Short blocks are told apart by it, and nothing is said of a mean."""
    times = every_50_ms(1000)
    instant = msgspec.structs.replace(reading(times, times), has_instant_power=True)
    found = measured([run_of(100, 100)], [instant])
    assert found["power_w"].source == surroundings.INSTANT
    assert found["power_w"].value == pytest.approx(150)
    assert "more alike" not in found["power_w"].scope


def test_warm_up_and_dropped_blocks_are_left_out() -> None:
    """They are no part of any verdict either."""
    times = every_50_ms(1000)
    blocks = [run_of(100, 100), run_of(500, 100, warmup=True), run_of(800, 100, status="dropped")]
    found = measured(blocks, [reading(times, times)])
    assert found["power_w"].value == pytest.approx(150)
    assert "1 of 1 blocks" in found["power_w"].scope


def test_long_blocks_take_the_energy_counter() -> None:
    """Over a second and more the counter is exact where power is a mean of the past."""
    times = every_50_ms(5000)
    joules = [t / 1000 * 250 for t in times]
    readings = [reading(times, [1.0] * len(times), energy_j=joules)]
    found = measured([run_of(500, 2000), run_of(3000, 1500)], readings)
    assert found["power_w"].value == pytest.approx(250)
    assert found["energy_per_step_j"].value == pytest.approx(250 * 3.5 / 4)
    assert found["energy_per_step_j"].source == surroundings.COUNTER
    short = measured([run_of(500, 2000), run_of(3000, 900)], readings)
    assert short["power_w"].source == surroundings.SOURCE
    assert short["power_w"].value == pytest.approx(1)


def test_power_samples_are_checked_against_the_energy_counter() -> None:
    """From the first block to the last: 200 W by the samples where the counter grew by 250 W."""
    times = every_50_ms(10_000)
    joules = [t / 1000 * 250 for t in times]
    readings = [reading(times, [200.0] * len(times), energy_j=joules)]
    blocks = [run_of(500, 100), run_of(9000, 100)]
    checked = measured(blocks, readings)["power_against_counter_share"]
    assert checked.value == pytest.approx(80)
    assert checked.scope.startswith("9 s from the first block")
    brief = measured(blocks[:1], readings)["power_against_counter_share"]
    assert brief.reason.endswith(surroundings.BRIEF)
    mute = [reading(times, [200.0] * len(times))]
    without = measured(blocks, mute)["power_against_counter_share"]
    assert (without.value, without.reason) == (None, surroundings.NO_COUNTER)


@pytest.mark.parametrize(
    ("model", "is_said"),
    [("NVIDIA A100-SXM4-40GB", True), ("NVIDIA H100 80GB HBM3", True), ("Tesla T4", False)],
)
def test_sensor_that_sees_a_part_of_the_time_is_said_beside_the_energy(
    model: str, *, is_said: bool
) -> None:
    """On A100 and H100 what the work draws between its samples escapes it."""
    times = every_50_ms(1000)
    found = measured([run_of(100, 200)], [reading(times, times)], model=model)
    assert (surroundings.PART_TIME in found["energy_per_step_j"].scope) is is_said


def lasting(t0_ms: float, wall_ms: float, k: int = 100) -> EnergyBlock:
    """Return a block of the energy pass."""
    return EnergyBlock(
        cell="local/cnn",
        arm="vm",
        round=0,
        order=0,
        k=k,
        t0_ns=round(t0_ms * MS),
        wall_ns=round(wall_ms * MS),
    )


def test_energy_is_that_of_the_energy_pass_alone_where_there_is_one() -> None:
    """The timing drew 100 W, the blocks of the pass 300 W; clocks stay those of the timing."""
    times = every_50_ms(30_000)
    watts = [100.0 if t < 5000 else 300.0 for t in times]
    readings = [msgspec.structs.replace(reading(times, watts), has_instant_power=True)]
    timed = [run_of(100, 200), run_of(400, 200)]
    blocks = [lasting(6000, 5000), lasting(20_000, 6000)]
    quantities = measured(timed, readings, energy_blocks=blocks, batch=4)
    assert quantities["power_w"].value == pytest.approx(300)
    assert quantities["energy_per_step_j"].value == pytest.approx(300 * 11 / 200)
    assert quantities["energy_per_sample_j"].value == pytest.approx(300 * 11 / 800)
    assert f"2 of 2 {surroundings.LASTING}" in quantities["energy_per_step_j"].scope
    assert quantities["sm_clock_mhz"].scope == "10 readings"
    without = measured(timed, readings, energy_blocks=[lasting(6000, 4900)])
    assert without["power_w"].value == pytest.approx(100)
    assert surroundings.LASTING not in without["power_w"].scope


def test_long_block_takes_the_counter_of_its_own_readings() -> None:
    """Blocks of the timing are too short for it."""
    times = every_50_ms(12_000)
    readings = [reading(times, [1.0] * len(times), energy_j=[t / 4 for t in times])]
    quantities = measured([run_of(100, 200)], readings, energy_blocks=[lasting(4000, 6000)])
    assert quantities["energy_per_step_j"].source == surroundings.COUNTER
    assert quantities["energy_per_step_j"].value == pytest.approx(250 * 6 / 100)


def test_first_second_of_a_long_block_is_not_taken_from_a_mean_of_the_second_before() -> None:
    """The neighbour drew 100 W, the arm 300 W: a mean shows that from the second second on."""
    times = every_50_ms(12_000)
    watts = [min(300.0, max(100.0, 100 + (t - 4000) / 5)) for t in times]
    blocks = [lasting(4000, 6000)]
    quantities = measured([], [reading(times, watts)], energy_blocks=blocks)
    assert quantities["power_w"].source == surroundings.SOURCE
    assert quantities["power_w"].value == pytest.approx(300)
    assert quantities["energy_per_step_j"].value == pytest.approx(300 * 6 / 100)
    assert "more alike" not in quantities["power_w"].scope


def test_block_without_readings_around_it_is_not_guessed() -> None:
    """Nothing is extrapolated, and no gap is bridged that is longer than half a second."""
    readings = [reading([0, 100, 200, 900, 1000], [100.0] * 5)]
    for blocks, covered in (
        ([run_of(50, 100)], 1),
        ([run_of(-20, 100)], 0),
        ([run_of(950, 100)], 0),
        ([run_of(150, 100)], 0),
        ([run_of(300, 100)], 0),
        ([run_of(50, 100), run_of(300, 100)], 1),
    ):
        found = measured(blocks, readings)["energy_per_step_j"]
        if covered:
            assert found.value == pytest.approx(100 * 0.1 / 2)
            assert f"{covered} of {len(blocks)} blocks" in found.scope
        else:
            assert (found.value, found.reason) == (None, surroundings.NOT_COVERED)


def test_clocks_heat_and_what_held_them_down_are_those_of_the_blocks() -> None:
    """Readings beside the blocks tell of another arm."""
    times = [0.0, 100.0, 200.0, 300.0, 400.0]
    readings = [reading(times, [None] * 5, throttling=0x4 | 0x20)]
    found = measured([run_of(90, 120)], readings)
    assert found["temperature_c"].value == 42
    assert found["sm_clock_mhz"].value == 1410
    assert found["throttled_share"].value == 100
    assert found["throttled_share"].scope == (
        "2 readings: power cap in 100.0%, heat, by software in 100.0%"
    )
    assert found["gpu_utilization_share"].reason == surroundings.NOT_SAID
    assert found["power_w"].reason == surroundings.NOT_SAID


@pytest.mark.parametrize("mask", [0, 0x1, 0x2, 0x100, 0x103])
def test_idle_and_clocks_set_by_hand_do_not_throttle(mask: int) -> None:
    """They are no sign of a limit that was hit."""
    found = measured([run_of(0, 100)], [reading([0, 100], [1, 1], throttling=mask)])
    assert found["throttled_share"].value == 0
    assert "nothing held the clocks down" in found["throttled_share"].scope


def test_what_is_not_known_is_missing_with_its_reason() -> None:
    """No GPU, no samples in a step, several GPUs of which none is known to be the one."""
    blocks = [run_of(0, 100)]
    for found in arm_quantities(blocks, []):
        assert (found.value, found.status) == (None, "missing")
        assert found.reason == surroundings.NO_READINGS
    one = measured(blocks, [reading([0, 100], [50, 50])])
    assert one["energy_per_sample_j"].reason == surroundings.NO_BATCH
    two = [reading([0, 100], [50, 50]), reading([0, 100], [70, 70], uuid="GPU-2")]
    assert {q.reason for q in arm_quantities(blocks, two)} == {surroundings.WHICH.format(2)}
    chosen = measured(blocks, two, uuid="GPU-2")
    assert chosen["power_w"].value == pytest.approx(70)


@given(
    watts=st.lists(st.integers(0, 700), min_size=3, max_size=30),
    cuts=st.lists(st.floats(0, 1), min_size=2, max_size=6),
)
def test_energy_of_a_stretch_is_that_of_its_pieces(watts: list[int], cuts: list[float]) -> None:
    """However it is cut up; and as a whole it is the sum of the trapezoids."""
    times = [50.0 * number for number in range(len(watts))]
    curve = _Curve.of([reading(times, watts)], "power_mw", 1e-3)
    end = times[-1]
    places = sorted({0.0, end, *(cut * end for cut in cuts)})
    pieces = [run_of(a, b - a, k=1) for a, b in pairwise(places)]
    total = math.fsum(map(float, curve.integral(pieces)))
    whole = math.fsum((a + b) / 2 * 0.05 for a, b in pairwise(watts))
    assert total == pytest.approx(whole, abs=1e-4 * len(pieces))
    assert bool(curve.covers([run_of(0, end, k=1)])[0])


def test_a_run_takes_the_energy_of_each_arm_from_its_energy_blocks(tmp_path: Path) -> None:
    """The pass comes after the timing, in which both arms drew the same."""
    folder = RunFolder.create(tmp_path / "run", run_record())
    now = 0
    for timed in timed_blocks({"vm": 1.0, "docker": 1.0, "vm~control": 1.0}):
        wall = sum(timed.wall_ns)
        folder.append_sample(msgspec.structs.replace(timed, t0_ns=now, gpu_ns=timed.wall_ns))
        now += 2 * wall
    times_ms = [now / MS + 50 * number for number in range(300)]
    start = times_ms[0] + 500
    placed = {"vm": start, "docker": start + 7000}
    for arm, t0_ms in placed.items():
        folder.append_sample(msgspec.structs.replace(lasting(t0_ms, 6000), cell=CELL, arm=arm))
    watts = [200.0 if t < placed["docker"] - 100 else 300.0 for t in times_ms]
    instant = msgspec.structs.replace(reading(times_ms, watts), has_instant_power=True)
    folder.append_sample(msgspec.structs.replace(instant, cell=CELL))
    for arm in ("vm", "docker", "vm~control"):
        folder.write_fingerprint(FingerprintRecord(host="local", cell=CELL, arm=arm, facts={}))
    folder.close()
    (cell,) = compare_run(folder).profiles
    rows = {
        one.arm: next(row for row in one.quantities if row.name == "energy_per_step_j")
        for one in cell.arms
    }
    assert rows["vm"].value == pytest.approx(200 * 6 / 100)
    assert rows["docker"].value == pytest.approx(300 * 6 / 100)
    assert all(f"1 of 1 {surroundings.LASTING}" in row.scope for row in rows.values())
