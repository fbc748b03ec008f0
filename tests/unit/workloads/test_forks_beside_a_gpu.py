"""Generations on a GPU are forks of a template without CUDA; the calls of PyTorch are imitated.

No GPU is needed, and nothing is measured: what is tried is which process starts CUDA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversation import Start

IMITATED = Path(__file__).parents[2] / "support" / "imitatedtorch"
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver by downloading and installing a new version"
)
WORKLOAD = """
import torch

{on_import}

class Busy:
    batch = 1
    steps_per_epoch = 1
    def load(self, data):
        {on_load}
    def setup(self, seed, device):
        self.weights = torch.zeros(1, device=device)
    def step(self):
        return 1.0
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that names each process which asked for CUDA or started it."""
    monkeypatch.setenv("PYTHONPATH", str(IMITATED))
    log = tmp_path / "calls"
    log.touch()
    monkeypatch.setenv("IMITATED_CUDA", str(log))
    return log


def write(folder: Path, *, on_import: str = "", on_load: str = "pass") -> str:
    """Write a workload that may touch CUDA too early; return its name."""
    path = folder / "busy.py"
    path.write_text(WORKLOAD.format(on_import=on_import, on_load=on_load))
    return f"{path}:Busy"


def pids(log: Path) -> set[int]:
    """Return the processes that CUDA was started in, or asked of."""
    return {int(line.split()[1]) for line in log.read_text().splitlines()}


@pytest.mark.parametrize("device", ["auto", "cuda", "expected"])
def test_cuda_is_started_in_forks_alone(
    start: Start, calls: Path, tmp_path: Path, device: str
) -> None:
    """The template imports torch, and never starts CUDA nor asks whether there is a GPU."""
    worker = start()
    hello = worker.ask("hello", workload=write(tmp_path), device=device)
    assert (hello["ok"], hello["device"], hello["generation"]) == (True, "cuda", "fork")
    assert hello["generation_reason"].endswith("CUDA is started in its forks alone")
    assert (hello["compute_capability"], hello["device_ns"] > 0) == ("7.5", True)
    generations = []
    for _ in range(2):
        generations.append(worker.ask("gen", seed=1, pad=0)["pid"])
        assert worker.ask("run", k=2)["gpu_ns"] == [1_000_000, 1_000_000]
        assert worker.ask("facts")["ok"]
        assert worker.ask("end")["ok"]
    assert worker.ask("facts")["ok"]
    assert len(set(generations)) == 2
    assert set(generations) < pids(calls)
    assert hello["pid"] not in pids(calls)


def test_a_workload_that_only_asks_for_a_gpu_does_not_spoil_the_forks(
    start: Start, calls: Path, tmp_path: Path
) -> None:
    """The question goes to NVML, which starts no CUDA."""
    worker = start()
    hello = worker.ask("hello", workload=write(tmp_path, on_import="torch.cuda.is_available()"))
    assert (hello["generation"], hello["device"]) == ("fork", "cuda")
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    assert calls.read_text().startswith(f"ask {hello['pid']}\n")


@pytest.mark.parametrize(
    "where", [{"on_import": "torch.cuda.synchronize()"}, {"on_load": "torch.cuda.synchronize()"}]
)
def test_a_template_that_has_started_cuda_is_rebuilt(
    start: Start, calls: Path, tmp_path: Path, where: dict[str, str]
) -> None:
    """A fork of it could not use the GPU."""
    worker = start()
    hello = worker.ask("hello", workload=write(tmp_path, **where))
    assert (hello["generation"], hello["device"]) == ("rebuild", "cuda")
    assert hello["generation_reason"] == "CUDA is in use in the template"
    assert worker.ask("gen", seed=1, pad=0)["pid"] == hello["pid"]
    assert worker.ask("run", k=1)["ok"]


def test_what_spoils_forks_unseen_leads_to_a_rebuild(
    start: Start, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a driver call of the workload's own that PyTorch does not know of."""
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    worker = start()
    hello = worker.ask("hello", workload=write(tmp_path, on_import="torch.cuda.is_available()"))
    assert (hello["generation"], hello["device"]) == ("rebuild", "cuda")
    assert worker.ask("gen", seed=1, pad=0)["ok"]


def test_a_rebuild_that_was_asked_for_starts_cuda_in_the_worker(
    start: Start, calls: Path, tmp_path: Path
) -> None:
    """So that a start-up is what a user's own start is."""
    worker = start()
    hello = worker.ask("hello", workload=write(tmp_path), generation="rebuild")
    assert (hello["generation_reason"], pids(calls)) == ("asked for", {hello["pid"]})


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"IMITATED_GPUS": "0"}, ("the host has an NVIDIA GPU and PyTorch sees no GPU", "doctor")),
        (
            {"IMITATED_GPUS": "0", "IMITATED_REFUSAL": TOO_OLD},
            ("too old (found version 12020) (it is built for CUDA 12.8)", "for an older CUDA"),
        ),
        (
            {"IMITATED_GPUS": "0", "CUDA_VISIBLE_DEVICES": ""},
            ("CUDA_VISIBLE_DEVICES hides every GPU", "unset it, or give --device cpu"),
        ),
        (
            {"IMITATED_ARCHS": "sm_80 sm_90a sm_100f"},
            ("and the wheels are built for 8.0, 9.0, 10.0", "--variant"),
        ),
        ({"IMITATED_SUM": "255"}, ("imitated GPU adds 256 ones to 255", "broken")),
    ],
)  # fmt: skip
def test_a_gpu_that_is_expected_and_not_usable_is_no_reason_for_the_cpu(
    start: Start,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    said: tuple[str, str],
) -> None:
    """The worker says why and what to do, and does no work."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    workload = write(calls.parent)
    reply: dict[str, Any] = start().ask("hello", workload=workload, device="expected")
    assert (reply["ok"], reply["error"]["phase"]) == (False, "setup")
    assert said[0] in reply["error"]["brief"]
    assert said[1] in reply["error"]["hint"]


def test_a_workload_without_torch_keeps_the_cpu_of_a_gpu_host(start: Start, toy: str) -> None:
    """It could not use the GPU."""
    hello = start().ask("hello", workload=toy, device="expected")
    assert (hello["ok"], hello["device"]) == (True, "cpu")
