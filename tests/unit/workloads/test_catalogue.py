"""A bundled workload is one file that declares all about itself; what `list` shows is what runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conversation import WORKER, Conversation, Start
from harness.formats.data import Source
from harness.torchparts import OPTIMIZERS

from envcompare import bundled
from envcompare.config.workloads import catalogue

ROOT = WORKER.parents[2]
SUM = """
class Sum:
    \"\"\"Adds numbers up.\"\"\"

    PARAMS = {"count": 1000, "order": "up"}
    RANGES = {"count": (1, 10_000), "order": ("up", "down")}

    def __init__(self, count, order):
        self.numbers = range(count) if order == "up" else range(count, 0, -1)

    def setup(self, seed, device):
        self.start = seed

    def step(self):
        return self.start + sum(self.numbers)

    @staticmethod
    def make(folder):
        with open(f"{folder}/numbers.txt", "w") as file:
            file.write("none is needed")
"""


@pytest.fixture
def with_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the bundled files with one more workload among them, which is one more file."""
    for name in ("workloads", "studies", "containers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    (tmp_path / "workloads" / "sum.py").write_text(SUM)
    monkeypatch.setattr(bundled, "root", lambda: tmp_path)
    return tmp_path


def test_a_further_workload_is_one_file(
    with_sum: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up workload is listed with its parameters, and the worker runs it by its name."""
    listed = catalogue()["sum"]
    assert (listed.summary, listed.parameters["count"]) == ("Adds numbers up.", 1000)
    assert listed.ranges == {"count": (1, 10_000), "order": ("up", "down")}
    monkeypatch.setattr("conversation.WORKER", with_sum / "workloads" / "harness" / "worker.py")
    worker: Conversation = start()
    hello = worker.ask("hello", workload="sum", params={"count": 3}, threads=1)
    assert (hello["ok"], hello["params"]) == (True, {"count": 3, "order": "up"})
    assert worker.ask("gen", seed=7, pad=0)["checksum"] == 7 + 0 + 1 + 2


def test_the_worker_refuses_what_lies_outside_a_declared_range(
    with_sum: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is started by hand refuses what the plan refuses."""
    monkeypatch.setattr("conversation.WORKER", with_sum / "workloads" / "harness" / "worker.py")
    reply = start().ask("hello", workload="sum", params={"count": 0}, threads=1)
    refused = "parameter 'count' is 0 and must be from 1 to 10000"
    assert (reply["ok"], reply["error"]["brief"]) == (False, refused)


def test_every_bundled_workload_is_in_the_catalogue() -> None:
    """Each file beside the harness has one class with a method `step`."""
    files = {path.stem for path in (ROOT / "workloads").glob("*.py")}
    assert set(catalogue()) == files
    assert {"cnn", "rnn"} < files


def test_every_range_is_of_a_parameter_whose_default_lies_in_it() -> None:
    """A default that its own range refuses would refuse every run."""
    for info in catalogue().values():
        for name, limits in info.ranges.items():
            default = info.parameters[name]
            if isinstance(default, str | bool):
                assert default in limits
            else:
                least, most = limits
                assert least is None or float(least) <= float(default)
                assert most is None or float(default) <= float(most)


def test_optimizers_that_are_offered_can_be_made() -> None:
    """The range of `optimizer` is read without PyTorch, and holds what the harness makes."""
    for name, info in catalogue().items():
        if "optimizer" in info.parameters:
            made = {"sgd"} if name == "dlrm" else set(OPTIMIZERS)  # gradients of dlrm are sparse
            assert set(info.ranges["optimizer"]) == made


@pytest.mark.torch
def test_what_is_read_of_a_class_is_what_it_has(torch_interpreter: str) -> None:
    """What a class takes from those above it is put together in two places."""
    names = tuple(catalogue())
    script = (
        "import json, sys; from harness.loading import load_class\n"
        "kinds = {name: load_class(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({name: [kind.PARAMS, kind.RANGES] for name, kind in kinds.items()}))"
    )
    argv = [torch_interpreter, "-c", script, *names]
    done = subprocess.run(argv, cwd=ROOT / "workloads", capture_output=True, check=True)
    read = {name: [info.parameters, info.ranges] for name, info in catalogue().items()}
    assert json.loads(done.stdout) == json.loads(json.dumps(read))


def test_data_that_a_workload_names_has_a_recipe() -> None:
    """`DATA` names a module that makes the data of the workload."""
    from harness.formats import digits, reviews
    from harness.loading import declared

    assert (declared("cnn", "DATA"), declared("rnn", "DATA")) == (digits.__name__, reviews.__name__)
    assert isinstance(digits.SOURCE, Source)
    assert isinstance(reviews.SOURCE, Source)
