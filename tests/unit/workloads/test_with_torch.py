"""The two workloads under PyTorch: they learn, they repeat, and they say what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conversation import WORKER, Conversation, Start

pytestmark = pytest.mark.torch
SMALL: dict[str, dict[str, Any]] = {
    "cnn": {"subset": 64, "batch": 16, "filters1": 4, "filters2": 4, "hidden": 8},
    "rnn": {"subset": 64, "batch": 16, "hidden": 8, "length": 20},
}
NAMES = tuple(SMALL)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, torch_interpreter: str) -> dict[str, Path]:
    """Give the made data of both workloads."""
    folders = {name: tmp_path_factory.mktemp("data") / name for name in NAMES}
    for name, folder in folders.items():
        argv = [torch_interpreter, WORKER, "--prepare", folder, "--workload", name]
        subprocess.run(argv, check=True, capture_output=True)
    return folders


def train(worker: Conversation, name: str, folder: Path, params: dict[str, Any]) -> dict[str, Any]:
    """Run whole epochs and return what `finish` said."""
    params = {**params, "evaluate": True}
    hello = worker.ask("hello", workload=name, params=params, data=str(folder), device="cpu")
    steps = hello["steps_per_epoch"] * hello["params"]["epochs"]
    worker.ask("gen", seed=1, pad=0)
    worker.ask("run", k=steps - 1)
    over = worker.ask("end")
    assert over["steps"] == steps
    result: dict[str, Any] = over["result"]
    return result


@pytest.mark.nightly
def test_cnn_learns_the_drawn_digits_in_an_epoch(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """With the defaults of the study, one epoch passes 95 % on digits it has not seen."""
    result = train(start(torch_interpreter), "cnn", data["cnn"], {})
    assert result["accuracy"] > 0.95


@pytest.mark.nightly
def test_rnn_learns_the_made_reviews_in_four_epochs(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """With Adam, four epochs pass 90 % on reviews it has not seen."""
    params = {"optimizer": "adam", "lr": 0.003, "epochs": 4}
    result = train(start(torch_interpreter), "rnn", data["rnn"], params)
    assert result["accuracy"] > 0.90


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_gives_the_same_losses_in_every_process(
    start: Start, torch_interpreter: str, data: dict[str, Path], name: str
) -> None:
    """A worker that forks and one that rebuilds agree on every loss; another seed differs."""
    losses = []
    for place in ("fork", "rebuild"):
        worker = start(torch_interpreter)
        hello = worker.ask(
            "hello", workload=name, params=SMALL[name], data=str(data[name]), generation=place
        )
        assert (hello["generation"], hello["batch"]) == (place, 16)
        assert hello["steps_per_epoch"] == 4
        for seed in (5, 6, 5):
            first = worker.ask("gen", seed=seed, pad=4096 * len(losses))
            losses.append((first["checksum"], worker.ask("run", k=6)["loss"]))
            worker.ask("end")
        worker.ask("quit")
    assert losses[0] != losses[1]
    assert losses == [losses[0], losses[1], losses[0]] * 2


def test_forked_generation_computes_with_the_threads_it_was_given(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """The template stays on one thread, so that its children may have two."""
    worker = start(torch_interpreter)
    hello = worker.ask(
        "hello", workload="cnn", params=SMALL["cnn"], data=str(data["cnn"]), threads=2
    )
    assert (hello["generation"], hello["device"]) == ("fork", "cpu")
    assert hello["fingerprint"]["torch.threads"] == 2
    pid = worker.ask("gen", seed=1, pad=0)["pid"]
    worker.ask("run", k=3)
    assert len(list(Path(f"/proc/{pid}/task").iterdir())) >= 2
    assert len(list(Path(f"/proc/{worker.process.pid}/task").iterdir())) == 1


@pytest.mark.parametrize("threads", [1, 2])  # MKL runs no more than there are cores
def test_process_computes_with_its_own_threads_where_none_are_set(
    start: Start,
    torch_interpreter: str,
    data: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
) -> None:
    """The variable of its image decides, before the fork and in the generation."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    monkeypatch.setenv("MKL_NUM_THREADS", str(threads))
    worker = start(torch_interpreter)
    hello = worker.ask(
        "hello", workload="cnn", params=SMALL["cnn"], data=str(data["cnn"]), threads=None
    )
    assert hello["fingerprint"]["torch.threads"] == threads
    worker.ask("gen", seed=1, pad=0)
    worker.ask("run", k=3)
    assert worker.ask("facts")["fingerprint"]["torch.threads"] == threads


def test_second_generation_imports_nothing_anew(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """What the first optimizer of a process imports was imported before the fork."""
    worker = start(torch_interpreter)
    worker.ask("hello", workload="rnn", params=SMALL["rnn"], data=str(data["rnn"]))
    begun = worker.ask("gen", seed=1, pad=0)
    maps = Path(f"/proc/{begun['pid']}/maps").read_text()
    template_maps = Path(f"/proc/{worker.process.pid}/maps").read_text()
    assert [path for path in _libraries(maps) if path not in _libraries(template_maps)] == []


def _libraries(maps: str) -> set[str]:
    return {line.split()[-1] for line in maps.splitlines() if ".so" in line}


def test_fingerprint_knows_torch(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """Versions, build and switches of PyTorch are there, and its library by its hash."""
    worker = start(torch_interpreter)
    found = worker.ask(
        "hello", workload="cnn", params=SMALL["cnn"], data=str(data["cnn"]), device="cpu"
    )["fingerprint"]
    argv = [torch_interpreter, "-c", "import torch; print(torch.__version__)"]
    version = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    assert found["torch.version"] == version
    assert any(line.startswith("torch==") for line in found["packages"])
    assert found["torchvision.version"]
    assert (found["torch.deterministic"], found["torch.cudnn_benchmark"]) == (False, False)
    assert any(line.startswith("libtorch_cpu.so ") for line in found["loaded_libraries"])


@pytest.mark.parametrize("place", ["fork", "rebuild"])
def test_process_that_computes_says_what_it_uses(
    start: Start, torch_interpreter: str, data: dict[str, Path], place: str
) -> None:
    """After a step the threads are alive, and the packages in use are known by their files."""
    worker = start(torch_interpreter)
    asked = {"params": SMALL["rnn"], "data": str(data["rnn"]), "threads": 2, "generation": place}
    worker.ask("hello", workload="rnn", device="cpu", **asked)
    worker.ask("gen", seed=1, pad=0)
    worker.ask("run", k=3)
    found = worker.ask("facts")["fingerprint"]
    assert (found["torch.threads"], found["threads.alive"] >= 2) == (2, True)
    names = {one.partition("==")[0] for one in found["loaded_packages"]}
    assert {"torch", "numpy"} <= names
    assert not {"pip", "setuptools"} & names
    assert any(line.startswith("libtorch_cpu.so ") for line in found["loaded_libraries"])
    assert (found["gpu.name"], found["gpu.power_limit_w"]) == (None, None)


IMPOSSIBLE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("cnn", {"kernal": 3}, "unknown parameter 'kernal'; known are: batch, compile,"),
    ("cnn", {"batch": -1}, "'batch' is -1 and must be at least 1"),
    ("cnn", {"optimizer": "lion"}, "'lion' and must be one of: adadelta, sgd, adam"),
    ("cnn", {"kernel": 99}, "'kernel' is 99 and must be from 1 to 14"),
    ("rnn", {"layers": 0}, "'layers' is 0 and must be at least 1"),
    ("rnn", {"lr": "high"}, "'lr' is 'high' (str) and must be float"),
)


def test_impossible_parameter_is_named(start: Start, torch_interpreter: str) -> None:
    """What no model can be built from is found in hello, before any data is read."""
    worker = start(torch_interpreter)
    for name, params, brief in IMPOSSIBLE:
        error = worker.ask("hello", workload=name, params=params)["error"]
        assert (error["phase"], brief in error["brief"]) == ("setup", True), error["brief"]


def test_subset_beyond_the_data_is_an_error(
    start: Start, torch_interpreter: str, data: dict[str, Path]
) -> None:
    """More samples than there are cannot be asked for, nor a batch larger than the subset."""
    worker = start(torch_interpreter)
    for name in NAMES:
        for params, brief in (
            ({"subset": 10_000}, "subset 10000 is more than the"),
            ({"subset": 32, "batch": 64}, "batch 64 is more than the 32 samples in use"),
        ):
            asked = {"workload": name, "params": params, "data": str(data[name])}
            error = worker.ask("hello", **asked)["error"]
            assert (error["phase"], brief in error["brief"]) == ("data", True)


def test_damaged_data_is_named_in_hello(
    start: Start, torch_interpreter: str, data: dict[str, Path], tmp_path: Path
) -> None:
    """A flipped byte stops the worker with the file's name and the remedy."""
    worker = start(torch_interpreter)
    victims = {"cnn": "MNIST/raw/train-images-idx3-ubyte", "rnn": "aclImdb/train/pos/3_*.txt"}
    for name, victim in victims.items():
        folder = tmp_path / name
        shutil.copytree(data[name], folder)
        (path,) = folder.glob(victim)
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        error = worker.ask("hello", workload=name, data=str(folder))["error"]
        assert error["phase"] == "data"
        assert error["brief"] == (
            f"{path} is damaged: its checksum differs. Remove {folder} and prepare it again"
        )
    assert worker.ask("quit")["ok"]


def test_users_idx_files_are_read_where_they_lie(
    start: Start, torch_interpreter: str, data: dict[str, Path], tmp_path: Path
) -> None:
    """The four files may lie in the folder itself; a missing or a truncated one is named."""
    worker = start(torch_interpreter)
    asked = {"workload": "cnn", "params": SMALL["cnn"], "data": str(tmp_path)}
    error = worker.ask("hello", **asked)["error"]
    assert "has no train-images-idx3-ubyte, there or in MNIST/raw" in error["brief"]
    for path in (data["cnn"] / "MNIST" / "raw").iterdir():
        shutil.copy(path, tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-100])
    error = worker.ask("hello", **asked)["error"]
    assert (error["phase"], "holds no readable IDX files" in error["brief"]) == ("data", True)
    images.write_bytes(whole)
    assert worker.ask("hello", **asked)["ok"]


def test_example_of_the_readme_runs(start: Start, torch_interpreter: str, tmp_path: Path) -> None:
    """The workload that the documentation shows is complete."""
    text = (WORKER.parents[1] / "README.md").read_text()
    path = tmp_path / "attention.py"
    path.write_text(text.split("```python\n")[1].split("```")[0])
    worker = start(torch_interpreter)
    hello = worker.ask("hello", workload=f"{path}:Attention", params={"length": 16})
    assert json.dumps(hello["params"]) == '{"batch": 16, "length": 16, "width": 64}'
    first = worker.ask("gen", seed=1, pad=0)["checksum"]
    assert worker.ask("run", k=5)["loss"] < first
