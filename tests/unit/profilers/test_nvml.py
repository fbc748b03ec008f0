"""GPUs read beside a pass: the calls of NVIDIA's library, the program, and what is kept of it."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from builders import CELL, blocks, run_record
from hypothesis import given
from hypothesis import strategies as st
from nvmlstub import NEEDS_GCC, build_nvml

from envcompare import bundled
from envcompare.analysis.compare import compare_run
from envcompare.errors import InterruptedRunError
from envcompare.measure import hostreadings
from envcompare.measure.hostreadings import Sampling, sampler_command, sampling
from envcompare.run_folder.records import GpuReading
from envcompare.run_folder.results import RunFolder
from envcompare.text import Command
from envcompare.transport import LOCAL

SAMPLE = """
import sys
sys.path.insert(0, sys.argv[1])
from harness.counters import gpusampling
sys.exit(gpusampling.main(sys.argv[2]))
"""


def command(library: str) -> Command:
    """Return the sampler with another library than the driver's."""
    folder = str(bundled.workloads())
    return Command(argv=(sys.executable, "-B", "-W", "ignore", "-c", SAMPLE, folder, library))


def sampled(program: Command | None, *, seconds: float = 0.0) -> tuple[Sampling, list[GpuReading]]:
    """Return what a pass of this length found."""
    kept: list[GpuReading] = []
    with sampling(LOCAL, program, cell="local/cnn", keep=kept.append) as found:
        time.sleep(seconds)
    return found, kept


def sampled_enough(program: Command) -> tuple[Sampling, list[GpuReading]]:
    """Return what the first pass found that was long enough for two readings of each GPU."""
    found, kept = sampled(program)
    for seconds in (1, 4, 16, 64):
        if kept and min(len(one.t_ns) for one in kept) > 1:
            break
        found, kept = sampled(program, seconds=seconds)
    return found, kept


def steps_of(values: tuple[int | None, ...]) -> list[int]:
    """Return by how much each value is above the one before."""
    known = [value for value in values if value is not None]
    assert len(known) == len(values)
    return [after - before for before, after in pairwise(known)]


@NEEDS_GCC
def test_readings_of_every_gpu_are_kept_when_the_pass_is_over(tmp_path: Path) -> None:
    """Each call of the library gets what its header asks for; what it refuses is not 0."""
    found, kept = sampled_enough(command(build_nvml(tmp_path, instant=0)))
    assert found.reason == ""
    assert found.readings == tuple(kept)
    first, second = kept
    assert (first.uuid, second.uuid) == ("GPU-1", "GPU-2")
    count = len(first.t_ns)
    assert list(first.t_ns) == sorted(set(first.t_ns))
    assert steps_of(first.power_mw) == [1000] * (count - 1)
    assert steps_of(first.energy_mj) == [5000] * (count - 1)
    assert min(value for value in first.energy_mj if value is not None) > 1 << 33
    assert set(first.sm_mhz + second.sm_mhz) == {1001}
    assert set(first.memory_mhz) == {1002}
    assert set(first.temperature_c) == {40}
    assert set(first.throttling) == {1 << 40 | 4}
    assert (set(first.utilization_percent), set(second.utilization_percent)) == ({97}, {None})
    assert set(second.power_mw) == set(second.energy_mj) == {None}


@NEEDS_GCC
@pytest.mark.parametrize(("instant", "least_mw"), [(1, 600_000), (0, 100_000)])
def test_power_of_now_is_read_where_the_driver_says_it(
    tmp_path: Path, instant: int, least_mw: int
) -> None:
    """Else the usual one, which is a mean; the second GPU refuses both."""
    found, _ = sampled_enough(command(build_nvml(tmp_path, instant=instant)))
    first, second = found.readings
    assert (first.has_instant_power, second.has_instant_power) == (bool(instant), False)
    powers = [power for power in first.power_mw if power is not None]
    assert least_mw < min(powers) <= max(powers) < least_mw + 400_000
    assert set(second.power_mw) == {None}


@NEEDS_GCC
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"init": 9}, "NVIDIA's management library cannot be asked: nvmlInit_v2: 9"),
        ({"count": 0}, "NVIDIA's management library cannot be asked: it counts no GPU"),
    ],
)
def test_library_that_refuses_is_told_as_the_reason(
    tmp_path: Path, options: dict[str, int], reason: str
) -> None:
    """The pass goes on without it."""
    found, kept = sampled(command(build_nvml(tmp_path, **options)))
    assert (found.readings, kept) == ((), [])
    assert found.reason == f"the GPU was not sampled: {reason}"


def test_host_without_the_library_has_a_reason() -> None:
    """The real program, on whatever there is: readings of a GPU, or why there are none."""
    program = sampler_command(sys.executable, str(bundled.workloads()))
    found, kept = sampled(program)
    assert bool(kept) != found.reason.startswith("the GPU was not sampled: NVIDIA's management")


def test_host_without_a_gpu_starts_nothing() -> None:
    """It is said that nothing was measured."""
    found, kept = sampled(None)
    assert (found.reason, found.readings, kept) == (hostreadings.NO_GPU, (), [])


def test_program_that_cannot_be_started_is_a_reason() -> None:
    """An interpreter that is not there ends nothing but the sampling."""
    found, _ = sampled(Command(argv=("/nowhere/python", "x.py")))
    assert found.reason.startswith("the GPU was not sampled: ")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ('print(\'{"uuid": "GPU-1"}\')', "a GPU reading could not be parsed: "),
        ('print(\'{"uuid": "GPU-1", "t_ns": 5}\'); raise SystemExit(7)', "ended early, with"),
        ("import sys; sys.stdin.read()", "the pass was over before the first reading"),
    ],
)
def test_sampler_that_stops_or_talks_nonsense_is_told(program: str, reason: str) -> None:
    """What it has said before is kept."""
    found, _ = sampled(Command(argv=(sys.executable, "-c", program)))
    assert reason in found.reason


@NEEDS_GCC
def test_what_the_pass_raises_is_raised_after_its_readings_are_kept(tmp_path: Path) -> None:
    """A run that the user stops keeps what was measured until then."""
    program = command(build_nvml(tmp_path))
    kept: list[GpuReading] = []

    def interrupted(seconds: float) -> None:
        with sampling(LOCAL, program, cell="local/cnn", keep=kept.append):
            time.sleep(seconds)
            raise InterruptedRunError("interrupted")

    for seconds in (1, 4, 16, 64):
        with pytest.raises(InterruptedRunError):
            interrupted(seconds)
        if kept:
            break
    assert kept


def test_sampler_leaves_no_byte_code_beside_the_workloads() -> None:
    """A container cannot keep any, so that a plain process must not find any."""
    assert sampler_command("python3", "/w").argv == (
        "python3",
        "-B",
        "/w/harness/counters/gpusampling.py",
    )


@given(
    counts=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 2500), max_size=3),
)
def test_columns_hold_every_reading_once_and_in_order(counts: dict[str, int]) -> None:
    """A line of the journal stays short; nothing is lost between two."""
    lines = [
        hostreadings._Line(uuid=uuid, t_ns=number, power_mw=number % 7 or None)
        for uuid, count in counts.items()
        for number in range(count)
    ]
    found = list(hostreadings.gpu_readings("cell", lines))
    assert all(len(one.t_ns) <= hostreadings.LINE_READINGS for one in found)
    for uuid, count in counts.items():
        own = [one for one in found if one.uuid == uuid]
        assert [t for one in own for t in one.t_ns] == list(range(count))
        powers = [p for one in own for p in one.power_mw]
        assert powers == [number % 7 or None for number in range(count)]


def test_readings_change_nothing_in_the_comparison_of_times(tmp_path: Path) -> None:
    """They stand in the journal beside the blocks, and are no sample of any arm."""
    found = []
    reading = next(hostreadings.gpu_readings(CELL, [hostreadings._Line(uuid="GPU-1", t_ns=1)]))
    for number, others in enumerate(((), (reading,))):
        folder = RunFolder.create(tmp_path / str(number), run_record())
        for sample in (*blocks({"vm": 1.0, "docker": 1.1}), *others):
            folder.append_sample(sample)
        folder.close()
        found.append(compare_run(folder))
    assert [one.comparisons for one in found] == [found[0].comparisons] * 2
    assert [one.views.memory for one in found] == [()] * 2
    assert folder.read_samples().samples[-1] == reading
