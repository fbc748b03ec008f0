"""The CNN and the RNN profiled on a GPU: formulas, passes and tools agree with one another.

Run them by hand on a machine with an NVIDIA GPU; CI has none:

    ENVCOMPARE_TEST_PYTHON=/path/to/python pytest tests/gpu -rs

The interpreter must import a PyTorch with CUDA. Each of Docker and Apptainer that is there takes
part with the host's own files, so that no image is needed. What the host does not allow, such as
hardware counters, is skipped with the reason and the remedy that the run itself gave.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from lab import docker_client, torch_python
from runs import Done, command, run_folder

from envcompare.gpu.peaks import table_roofs
from envcompare.run_folder.profiles import Device, Profile, ProfileRecord, Roofs
from envcompare.run_folder.records import GpuReading
from envcompare.run_folder.results import RunFolder

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.timeout(3600)]
WORKLOADS = ("cnn", "rnn")
BUDGET_S = os.environ.get("ENVCOMPARE_GPU_BUDGET", "60")
CUDA = "import torch; raise SystemExit(not torch.cuda.is_available())"
Records = dict[tuple[str, str, str], ProfileRecord]


def cnn_flops() -> int:
    """Return the FLOPs of a training step: the images need no gradient, all else has two."""
    first = 2 * 64 * 26 * 26 * 32 * 9 * 1
    rest = 2 * 64 * (24 * 24 * 64 * 9 * 32 + 9216 * 128 + 128 * 10)
    return 2 * first + 3 * rest


def rnn_flops() -> int:
    """Return the FLOPs of a training step: the first state needs no gradient, all else has two."""
    steps, batch, inputs, hidden = 100, 64, 20, 40
    recurrent = 2 * steps * batch * hidden * (inputs + hidden)
    first_state = 2 * batch * hidden * hidden
    return 3 * recurrent - first_state + 3 * (2 * batch * hidden)


FLOPS = {"cnn": cnn_flops(), "rnn": rnn_flops()}


@cache
def environments() -> tuple[str, ...]:
    """Return the environments of this machine."""
    singularity = ("singularity",) * bool(shutil.which("apptainer") or shutil.which("singularity"))
    return ("vm", *(("docker",) * bool(docker_client())), *singularity)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Return one run of both workloads in every environment there is, timed and then profiled."""
    python, out = torch_python(), tmp_path_factory.mktemp("gpu")
    if subprocess.run([python, "-c", CUDA], check=False).returncode:
        pytest.skip(f"the PyTorch of {python} sees no GPU")
    argv = command(
        out,
        *("--envs", ",".join(environments()), "--stacks", "host", "--host-python", python),
        *("--workloads", ",".join(WORKLOADS), "--device", "cuda", "--profile", "auto"),
        *("--budget", BUDGET_S, "--no-startup"),
    )
    found = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=3000)
    return Done(
        exit_code=found.returncode,
        stdout=found.stdout,
        stderr=found.stderr,
        folder=run_folder(out),
    )


@pytest.fixture(scope="module")
def folder(done: Done) -> RunFolder:
    """Return the folder of the run."""
    assert done.exit_code == 0, done.stderr
    assert done.folder is not None
    return RunFolder.open(done.folder)


@pytest.fixture(scope="module")
def records(folder: RunFolder) -> Records:
    """Return the profiles by workload, arm and kind."""
    found = folder.read_profiles()
    return {(one.cell.split("/")[1], one.arm, one.kind): one for one in found}


def profiles(records: Records, workload: str, kind: str) -> dict[str, Profile]:
    """Return a kind of profile of each arm; skip with its reason where one is missing."""
    found = {
        arm: one for (name, arm, kept), one in records.items() if (name, kept) == (workload, kind)
    }
    assert len(found) == len(environments())
    for arm, record in found.items():
        if record.profile is None or record.profile.steps is None:
            assert record.lacks is not None
            problem = record.lacks.problem
            pytest.skip(f"{kind} of {arm}: {problem.brief}; try: {problem.hint}")
    return {arm: one.profile for arm, one in found.items() if one.profile is not None}


def quantity(profile: Profile, name: str) -> float | None:
    """Return the value of a quantity."""
    return next((one.value for one in profile.quantities if one.name == name), None)


def launches(profile: Profile) -> Counter[tuple[str, object, object]]:
    """Return how often each kernel was launched in a step, by its name and shape."""
    assert profile.steps
    found: Counter[tuple[str, object, object]] = Counter()
    for kernel in profile.kernels:
        found[kernel.name, kernel.grid, kernel.block] += kernel.calls
    return Counter({key: calls // profile.steps for key, calls in found.items()})


@pytest.mark.parametrize("workload", WORKLOADS)
def test_model_flops_are_those_of_the_formula_in_every_arm(records: Records, workload: str) -> None:
    """The GPU runs the RNN as one operator, which is counted as what it computes."""
    for arm, profile in profiles(records, workload, "flops").items():
        assert profile.steps is not None
        assert quantity(profile, "flops_model") == FLOPS[workload] * profile.steps, arm


@pytest.mark.parametrize("workload", WORKLOADS)
def test_counted_flops_agree_between_the_arms_and_with_the_formula(
    records: Records, workload: str
) -> None:
    """The same software computes the same; padding and other algorithms stay within a factor."""
    counted = {}
    for arm, profile in profiles(records, workload, "ncu-flops").items():
        names = [one.name for one in profile.quantities if one.name.startswith("flops_")]
        total = sum(quantity(profile, name) or 0.0 for name in names)
        counted[arm] = total / (profile.steps or 1)
    for total in counted.values():
        assert total == pytest.approx(next(iter(counted.values())), rel=0.01)
        assert 0.3 < total / FLOPS[workload] < 5


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_transaction_of_device_memory_is_32_bytes(records: Records, workload: str) -> None:
    """Of each kernel, in each direction."""
    for profile in profiles(records, workload, "ncu-memory").values():
        seen = 0
        for kernel in profile.kernels:
            for way in ("read", "write"):
                sectors = kernel.metrics.get(f"dram__sectors_{way}.sum")
                moved = kernel.metrics.get(f"dram__bytes_{way}.sum")
                if sectors is not None and moved is not None:
                    assert moved == 32 * sectors, kernel.name
                    seen += 1
        assert seen


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", ["ncu-memory", "ncu-flops"])
def test_passes_see_the_same_launches(records: Records, workload: str, kind: str) -> None:
    """What is counted in one pass and timed in another is one program."""
    traced, counted = (profiles(records, workload, one) for one in ("nsys", kind))
    for arm in traced:
        assert launches(counted[arm]) == launches(traced[arm]), arm


@pytest.mark.parametrize("workload", WORKLOADS)
def test_arms_of_the_same_software_launch_the_same_kernels(records: Records, workload: str) -> None:
    """An environment chooses no kernels."""
    found = [launches(one) for one in profiles(records, workload, "nsys").values()]
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_two_tracers_agree_on_the_time_of_kernels(records: Records, workload: str) -> None:
    """Nsight Systems and PyTorch's profiler both read CUPTI, in runs of their own."""
    systems, kineto = (profiles(records, workload, kind) for kind in ("nsys", "torch"))
    for arm, profile in systems.items():
        times = [
            sum(kernel.total_ns or 0.0 for kernel in one.kernels) / (one.steps or 1)
            for one in (profile, kineto[arm])
        ]
        assert times[0] == pytest.approx(times[1], rel=0.1), arm


def test_measured_roofs_are_below_those_of_the_table(folder: RunFolder) -> None:
    """No product and no copy is faster than what the maker says."""
    (measured,) = folder.read_roofs()
    assert measured.is_measured, measured.reason
    assert measured.bytes_per_s
    assert measured.flops_per_s
    table = table_roofs(Device(name=measured.device), host=measured.host)
    if not isinstance(table, Roofs):
        pytest.skip(table)
    assert table.bytes_per_s
    assert 0.4 < measured.bytes_per_s / table.bytes_per_s < 1.05
    for precision, rate in measured.flops_per_s.items():
        if precision in table.flops_per_s:
            assert 0.1 < rate / table.flops_per_s[precision] < 1.1, precision


def test_power_of_every_arm_was_read_beside_the_timing(folder: RunFolder) -> None:
    """A GPU that works takes power, and no more than it may."""
    readings = [one for one in folder.read_samples().samples if isinstance(one, GpuReading)]
    assert {one.cell.split("/")[1] for one in readings} == set(WORKLOADS)
    watts = [power / 1000 for one in readings for power in one.power_mw if power is not None]
    assert watts
    assert 1 < min(watts) <= max(watts) < 2000


def test_energy_stands_in_the_comparison(done: Done) -> None:
    """Every arm but the control has an energy of a sample, or a reason why not."""
    assert done.folder is not None
    comparison = json.loads(Path(done.folder / "comparison.json").read_text())
    for cell in comparison["profiles"]:
        for arm in cell["arms"]:
            rows = [one for one in arm["quantities"] if one["name"] == "energy_per_sample_j"]
            assert [bool(one["value"]) or bool(one["reason"]) for one in rows] == [True]
