"""The roofs of a host: measured once, kept for what they hold for, and a reason where they fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare import bundled
from envcompare.measure import hostreadings
from envcompare.measure.hostreadings import (
    CPU_KEYS,
    GPU_KEYS,
    PROGRAM,
    key_of,
    measure_roofs,
    roofs_command,
)
from envcompare.run_folder.profiles import Roofs
from envcompare.run_folder.records import FingerprintRecord
from envcompare.text import Command
from envcompare.transport import LOCAL, run

ANSWER = {
    "device": "NVIDIA H200", "bytes_per_s": 4.3e12, "flops_per_s": {"fp32": 5e13},
    "uuid": "GPU-1", "driver": "570.86", "clocks": "sm max 1980", "torch": "2.13.0",
}  # fmt: skip
GPU = {"gpu.name": "NVIDIA H200", "gpu.uuid": "GPU-1", "gpu.driver": "570.86", "cpu.model": "EPYC"}
COUNTING = """
import sys
with open(sys.argv[1], "a") as file:
    file.write("x")
print("a library says something first")
print(sys.argv[2])
"""


def scripted(folder: Path, answer: str) -> Command:
    """Return a program of that name which counts its runs and gives a fixed answer."""
    (folder / PROGRAM).parent.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(COUNTING)
    return Command(argv=(sys.executable, str(folder / PROGRAM), str(folder / "runs"), answer))


def measure(
    cache: Path, command: Command, facts: dict[str, str], *, busy: str = "", host: str = "h"
) -> Roofs:
    """Measure on this machine with a cache."""
    return measure_roofs(
        LOCAL,
        command,
        FingerprintRecord(host=host, arm="vm", facts=facts),
        cache=str(cache),
        run_inside=lambda command: run(LOCAL, command, timeout_s=hostreadings.ROOFS_LIMIT_S),
        busy=lambda: busy,
    )


def test_roofs_are_measured_once_for_a_device_and_its_clocks(tmp_path: Path) -> None:
    """The second cell reads the cache of the host; another driver is measured again."""
    command = scripted(tmp_path, json.dumps(ANSWER))
    runs = tmp_path / "runs"
    cache = tmp_path / "cache of the host"
    first = measure(cache, command, GPU, host="gpu01")
    again = measure(cache, command, GPU, host="gpu01")
    assert (first == again, runs.read_text()) == (True, "x")
    assert (first.host, first.device, first.is_measured) == ("gpu01", "NVIDIA H200", True)
    assert (first.bytes_per_s, first.flops_per_s) == (4.3e12, {"fp32": 5e13})
    assert (first.uuid, first.driver, first.clocks) == ("GPU-1", "570.86", "sm max 1980")
    measure(cache, command, {**GPU, "gpu.driver": "580.1"}, host="gpu01")
    assert runs.read_text() == "xx"


@pytest.mark.parametrize(
    ("spread", "busy", "expected"),
    [
        (0.04, "", ""),
        (0.3, "", "; may be too low, since the median repetition took 30% longer than the best"),
        (0.04, "3 other tasks for 2 CPUs", "; may be too low, since 3 other tasks for 2 CPUs"),
    ],
)
def test_roofs_of_a_busy_machine_are_said_to_be_and_not_kept(
    tmp_path: Path, spread: float, busy: str, expected: str
) -> None:
    """In the cache they would bound every later run."""
    command = scripted(tmp_path, json.dumps({**ANSWER, "spread": spread}))
    found = measure(tmp_path / "cache", command, GPU, busy=busy)
    assert (found.is_measured, found.source) == (True, f"measured with PyTorch 2.13.0{expected}")
    assert bool(list(tmp_path.glob("cache/**/*.json"))) == (not expected)


@pytest.mark.parametrize("answer", ["no JSON", "{}", '{"device": 5}', ""])
def test_answer_that_is_no_measurement_is_a_reason(tmp_path: Path, answer: str) -> None:
    """Nothing is kept of it, and no number is made up."""
    command = scripted(tmp_path, answer)
    found = measure(tmp_path / "c", command, GPU)
    assert (found.is_measured, found.bytes_per_s, found.flops_per_s) == (False, None, {})
    assert found.reason.startswith("the roofs could not be measured: ")
    assert (found.device, found.uuid) == ("NVIDIA H200", "GPU-1")
    assert not list(tmp_path.glob("c/**/*.json"))


def test_damaged_cache_is_measured_anew(tmp_path: Path) -> None:
    """A file that is torn is no answer."""
    command = scripted(tmp_path, json.dumps(ANSWER))
    measure(tmp_path, command, GPU)
    (kept,) = tmp_path.glob("roofs/*.json")
    kept.write_text('{"device": "NVI')
    assert measure(tmp_path, command, GPU).is_measured
    assert json.loads(kept.read_text())["device"] == "NVIDIA H200"


def test_interpreter_without_pytorch_is_a_reason(tmp_path: Path) -> None:
    """The program itself, where it cannot work."""
    interpreter = str(tmp_path / "python")
    workloads = str(bundled.workloads())
    command = roofs_command(interpreter, workloads, device="cpu", threads=1, cpus=None)
    found = measure(tmp_path, command, {"cpu.model": "X"})
    assert (found.is_measured, found.device) == (False, "X")
    assert interpreter in found.reason


@pytest.mark.torch
def test_program_of_the_workloads_measures_this_machine(
    torch_interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way on a real processor: command, measurement, cache."""
    monkeypatch.setattr(hostreadings, "SECONDS", 1.0)
    monkeypatch.setattr(hostreadings, "STEADY", 1e9)  # the machine of a test may be busy
    cpus = tuple(sorted(os.sched_getaffinity(0))[:1])
    command = roofs_command(
        torch_interpreter, str(bundled.workloads()), device="cpu", threads=1, cpus=cpus
    )
    found = measure(tmp_path, command, {})
    assert (found.reason, found.is_measured) == ("", True)
    assert set(found.flops_per_s) == {"fp32", "fp64"}
    assert found == measure(tmp_path, command, {})
    assert len(list(tmp_path.glob("roofs/*"))) == 1


@given(name=st.sampled_from([*GPU_KEYS, *CPU_KEYS]), has_gpu=st.booleans())
def test_key_changes_with_what_the_roofs_hold_for_and_with_nothing_else(
    name: str, *, has_gpu: bool
) -> None:
    """What a GPU computes does not depend on the governor of the CPU."""
    command = roofs_command("/venv/python", "/w", device="cuda", threads=2, cpus=(0, 1))
    facts = {"gpu.uuid": "GPU-1"} if has_gpu else {}
    keys = GPU_KEYS if has_gpu else CPU_KEYS
    if name in {"gpu.name", "gpu.uuid"}:
        facts = {"gpu.uuid": "GPU-1"}
        keys = GPU_KEYS
    changed = key_of(command, {**facts, name: "another"})
    assert (changed != key_of(command, facts)) == (name in keys)


def test_key_is_of_the_program_and_not_of_what_is_around_it() -> None:
    """The same program with the same threads, in a container or not."""
    plain = roofs_command("/venv/python", "/w", device="cpu", threads=2, cpus=None)
    wrapped = Command(argv=("docker", "run", "image", "python3", *plain.argv[1:]))
    more = roofs_command("/venv/python", "/w", device="cpu", threads=4, cpus=None)
    assert key_of(plain, {}) == key_of(wrapped, {}) != key_of(more, {})
