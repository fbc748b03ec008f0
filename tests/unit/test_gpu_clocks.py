"""Clocks of a GPU that differ between arms: never the fault of an environment."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from builders import CELL, blocks, run_record

from envcompare.analysis.compare import compare_run
from envcompare.analysis.model import Comparison, RunComparison
from envcompare.analysis.timing.surroundings import GPU_CLOCK
from envcompare.report.wording.headlines import headlines
from envcompare.run_folder.records import FactDifference, FingerprintRecord, GpuReading
from envcompare.run_folder.results import RunFolder

POWER_CAP = 0x4


def made(
    path: Path, ratio: float, mhz: dict[str, int], *, held: int = 0, on_gpu: bool = True
) -> RunComparison:
    """Return what is made of a run in which the GPU ran at another clock in each arm."""
    arms = {"vm": 1.0, "docker": ratio, "vm~control": 1.0}
    now, timed = 1_000, []
    columns: tuple[list[int], list[int], list[int]] = ([], [], [])
    for one in blocks(arms):
        timed.append(
            msgspec.structs.replace(one, t0_ns=now, gpu_ns=one.wall_ns if on_gpu else None)
        )
        wall = sum(one.wall_ns)
        columns[0].append(now + wall // 2)
        columns[1].append(mhz.get(one.arm, mhz["vm"]))
        columns[2].append(held if one.arm == "docker" else 0)
        now += 2 * wall
    folder = RunFolder.create(path, run_record())
    for sample in (*timed, reading(*columns)):
        folder.append_sample(sample)
    for arm in arms:
        folder.write_fingerprint(FingerprintRecord(host="local", cell=CELL, arm=arm, facts={}))
    folder.close()
    return compare_run(folder)


def reading(times: list[int], mhz: list[int], masks: list[int]) -> GpuReading:
    """Return a reading within each block."""
    unknown = (None,) * len(times)
    return GpuReading(
        cell=CELL,
        uuid="GPU-1",
        t_ns=tuple(times),
        power_mw=unknown,
        energy_mj=unknown,
        sm_mhz=tuple(mhz),
        memory_mhz=unknown,
        temperature_c=unknown,
        throttling=tuple(masks),
        utilization_percent=unknown,
    )


def docker(run: RunComparison) -> Comparison:
    """Return the comparison of the arm that is no control."""
    return next(comparison for comparison in run.comparisons if comparison.arm == "docker")


def clock(run: RunComparison) -> FactDifference | None:
    """Return what is said of the clocks."""
    return next((difference for difference in run.differences if difference.key == GPU_CLOCK), None)


def test_clock_drop_that_explains_a_difference_is_a_confounder(tmp_path: Path) -> None:
    """The clocks of both arms and what held the one down stand beside the verdict."""
    run = made(tmp_path / "run", 1.10, {"vm": 1400, "docker": 1260}, held=POWER_CAP)
    told = clock(run)
    assert docker(run).outcome == "slower"
    assert docker(run).is_confounded
    assert docker(run).candidates == (GPU_CLOCK,)
    assert told is not None
    assert (told.reference, told.value, told.fact_class) == (1400, 1260, "confounder")
    assert "power cap in 100.0% of the readings" in told.sentence
    assert "--lock-gpu-clocks" in told.remedy
    caution = next(headline.caution for headline in headlines(run) if headline.arm == "docker")
    assert "the clock of the GPU while it was measured (MHz) 1400 → 1260" in caution


PART = "which explains a part of the difference in time at most."
HIDDEN = "which hides a part of the difference in time."


@pytest.mark.parametrize(
    ("ratio", "mhz", "meaning", "is_confounded"),
    [
        (1.10, 1316, "", True),  # without the 6 % of the clock it would be within the margin of 5 %
        (1.04, 1442, HIDDEN, True),  # without its 3 % it would lie beyond the margin
        (1.30, 1386, PART, False),
        (1.30, 1450, HIDDEN, False),
        (1.10, 1600, HIDDEN, False),
    ],
)
def test_clock_is_a_confounder_where_the_verdict_rests_on_it(
    tmp_path: Path, ratio: float, mhz: int, meaning: str, *, is_confounded: bool
) -> None:
    """A part is named, and accuses nothing; a faster clock explains no slower arm."""
    run = made(tmp_path / "run", ratio, {"vm": 1400, "docker": mhz})
    told = clock(run)
    assert told is not None
    assert told.sentence.endswith(meaning)
    assert told.fact_class == ("confounder" if is_confounded else "possible-influence")
    assert docker(run).is_confounded == is_confounded
    assert docker(run).candidates == (GPU_CLOCK,)


def test_clock_that_hides_a_difference_is_a_confounder_of_equivalence(tmp_path: Path) -> None:
    """Times that are equal at clocks 10 % apart are no proof of equal environments."""
    run = made(tmp_path / "run", 1.0, {"vm": 1400, "docker": 1540})
    assert docker(run).outcome == "equivalent"
    assert docker(run).is_confounded


@pytest.mark.parametrize(("mhz", "on_gpu"), [(1400, True), (1396, True), (1000, False)])
def test_same_clock_and_work_on_the_cpu_are_not_mentioned(
    tmp_path: Path, mhz: int, *, on_gpu: bool
) -> None:
    """A difference below half a percent is no other clock; work on the CPU has none."""
    run = made(tmp_path / "run", 1.0, {"vm": 1400, "docker": mhz}, on_gpu=on_gpu)
    assert clock(run) is None
    assert not docker(run).is_confounded
