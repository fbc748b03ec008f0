"""The largest batch, and the way to an accuracy, in real environments: from command to report."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab import Lab
from runs import STEPS_ALONE, Done, envcompare

pytestmark = [
    pytest.mark.engine("ssh"),
    pytest.mark.engine("docker"),
    pytest.mark.timeout(420),
    pytest.mark.nightly,
]
SMALL = ("--restarts", "3", "--rounds", "8", "--steps", "5", "--budget", "120")
WORK = '''
class Holds:
    """Holds a MiB for each sample; a step costs the same for any batch."""

    PARAMS = {"batch": 8}
    METRICS = ("accuracy",)
    steps_per_epoch = 5

    def __init__(self, batch):
        self.batch = batch

    def setup(self, seed, device):
        self.steps = 0
        self.held = b"\\1" * (self.batch << 20)

    def step(self):
        self.steps += 1
        return float(sum(i * i for i in range(20000)) % 97)

    def evaluate(self):
        return {"accuracy": min(1.0, self.steps / 12)}
'''


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a workload file whose workers start at once."""
    path = tmp_path_factory.mktemp("own") / "holds.py"
    path.write_text(WORK)
    return path


def measured(lab: Lab, work: Path, out: Path, *arguments: str) -> Done:
    """Measure the workload in two environments of the lab host."""
    places = ("--hosts", lab.alias, "--envs", "vm,docker", "--workload", f"{work}:Holds")
    return envcompare(out, *places, *STEPS_ALONE, *SMALL, *arguments)


def test_a_limit_of_one_environment_ends_the_search_there(
    lab: Lab, work: Path, tmp_path: Path
) -> None:
    """Sizes that do not fit in it are measured in none; the run ends well, with the knee."""
    limit = ("--docker-options", "docker=--memory 70m --memory-swap 70m")
    done = measured(lab, work, tmp_path, "--search", "batch=8-128,memory=110", *limit)
    assert done.exit_code == 0, done.stderr
    found = done.read("comparison.json")
    (sweep,) = found["views"]["batch_sweeps"]
    vm, docker = sweep["arms"]
    assert (vm["arm"], vm["limited_by"], docker["limited_by"]) == ("vm", "memory", "memory")
    assert 100 <= vm["largest"] <= 112
    assert 32 <= docker["largest"] < 64
    assert [rate["batch"] for rate in docker["rates"]] == [8, 16, 32]
    assert {one["state"] for one in found["cells"][:3]} == {"ok"}
    assert [one["state"] for one in found["cells"][3:]] == ["skipped", "skipped"]
    # on a busy machine the throughputs do not tell for certain where the knee begins
    assert docker["knee_low"] <= docker["best"] == (docker["knee_high"] or 32) == 32
    assert "does not fit in docker" in done.stdout
    assert 'id="batches"' in (done.folder or tmp_path).joinpath("report.html").read_text()


def test_a_search_that_leaves_no_size_is_a_failure(lab: Lab, work: Path, tmp_path: Path) -> None:
    """Nothing was measured, and the exit code says so."""
    done = measured(lab, work, tmp_path, "--search", "batch=128-256,memory=64")
    assert done.exit_code == 4, done.stdout
    assert {one["state"] for one in done.read("comparison.json")["cells"]} == {"failed"}
    assert "no size can be measured: a batch of 128 does not fit" in done.stderr


def test_the_arms_reach_a_goal_in_the_same_epoch(lab: Lab, work: Path, tmp_path: Path) -> None:
    """Twelve of fifteen steps, so in the third epoch; one that is too high is not reached."""
    done = measured(lab, work, tmp_path / "reached", "--until", "accuracy=0.95")
    assert done.exit_code == 0, done.stderr
    (cell,) = done.read("comparison.json")["views"]["training"]
    assert [(arm["epochs"], arm["reached"]) for arm in cell["arms"]] == [([3, 3, 3], 3)] * 3
    assert (cell["same_values"], cell["other_values"]) == (9, 0)
    assert "Time to accuracy 0.95" in done.stdout
    done = measured(lab, work, tmp_path / "missed", "--until", "accuracy=1.5,epochs=4")
    assert done.exit_code == 0, done.stderr
    assert "not reached within 4 epochs" in done.stdout
