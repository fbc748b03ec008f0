"""What `torch.compile` needs and does in a worker, alone and as a parameter of the models."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conversation import Conversation, Start
from harness.compiling import computed
from harness.failures import LackingError
from nightly import nightly_except

pytestmark = pytest.mark.torch
HAS_COMPILER = shutil.which("g++") is not None
LINEAR: dict[str, Any] = {"kind": "linear", "channels": 8, "side": 8}
GROWING = """
import torch

class Growing:
    batch = 1

    def setup(self, seed, device):
        torch._dynamo.reset()
        self.compiled = torch.compile(lambda x: (x * 2).sum(), backend="eager", dynamic=False)
        self.steps = 0

    def step(self):
        self.steps += 1
        return self.compiled(torch.ones(100 + self.steps // 4))
"""
RECURRENT = """
import torch
from harness.training import Trained

class Recurrent(Trained):
    def model(self):
        return torch.nn.RNN(4, 4)

    def data(self):
        return torch.randn(3, 4), torch.zeros(3, dtype=torch.long)

    def loss(self, outputs, targets):
        return super().loss(outputs[0], targets)
"""


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file to which a compiler writes a line each time; HOME is a link to a folder."""
    compiler, found = tmp_path / "counted", tmp_path / "starts"
    compiler.write_text(f'#!/bin/sh\necho "$@" >>{found}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return found


@pytest.mark.nightly
@pytest.mark.skipif(not HAS_COMPILER, reason="this machine has no C++ compiler")
def test_every_step_starts_the_compiler_anew(
    start: Start, torch_interpreter: str, starts: Path
) -> None:
    """A compiler that counts its starts: as often in each step, and nothing is left of any."""
    worker: Conversation = start(torch_interpreter)
    assert worker.ask("hello", workload="compile", params={}, threads=1, device="cpu")["ok"]
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    counts = []
    for _ in range(2):
        starts.write_text("")
        measured = worker.ask("run", k=1)
        assert measured["ok"], measured
        assert sum(measured["cpu_ns"]) < 0.1 * sum(measured["wall_ns"])
        counts.append(sum(".cpp" in line for line in starts.read_text().splitlines()))
    assert counts[0] == counts[1] > 0
    facts = worker.ask("facts")["fingerprint"]
    assert facts["compiler.name"] == str(starts.with_name("counted"))
    assert "g++" in facts["compiler.version"]
    worker.ask("end")
    assert not list(starts.with_name("home").iterdir())


def test_a_compiler_that_is_not_there_is_lacking_and_no_failure(
    start: Start, torch_interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before a step, with what to install; a backend that only traces needs none."""
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    worker: Conversation = start(torch_interpreter)
    error = worker.ask("hello", workload="compile", params={}, threads=1, device="cpu")["error"]
    assert error["phase"] == "environment"
    assert "torch.compile needs a C++ compiler" in error["brief"]
    assert "--base-image" in error["hint"]
    assert error["traceback"] == ""
    params = {"backend": "aot_eager"}
    assert worker.ask("hello", workload="compile", params=params, threads=1, device="cpu")["ok"]


@pytest.mark.nightly
@pytest.mark.skipif(not HAS_COMPILER, reason="this machine has no C++ compiler")
@pytest.mark.parametrize("place", ["fork", "rebuild"])
def test_model_is_compiled_once_and_before_any_block(
    start: Start, torch_interpreter: str, starts: Path, place: str
) -> None:
    """A later generation, and another worker of the arm, load what the first one has compiled."""
    hello = {"workload": "layer", "threads": 1, "device": "cpu", "generation": place}
    counts, losses, compiled = [], [], []
    for _ in range(2):
        worker: Conversation = start(torch_interpreter)
        said = worker.ask("hello", params={**LINEAR, "compile": True}, **hello)
        assert said.get("generation") == place, said
        for _ in range(2):
            begun = worker.ask("gen", seed=5, pad=0)
            losses.append(begun["checksum"])
            compiled.append(begun["compiled"] > 0)
            counts.append(sum(".cpp" in line for line in starts.read_text().splitlines()))
            assert worker.ask("run", k=3)["compilations"] == 0
            worker.ask("end")
        worker.ask("quit")
    assert counts == [counts[0]] * 4 != [0] * 4
    assert compiled == [True, False, False, False]
    plain: Conversation = start(torch_interpreter)
    assert plain.ask("hello", params=LINEAR, **hello)["ok"]
    expected = plain.ask("gen", seed=5, pad=0)["checksum"]
    assert losses == pytest.approx([expected] * 4, rel=1e-5)
    assert len(set(losses)) == 1


@pytest.mark.nightly
@pytest.mark.skipif(not HAS_COMPILER, reason="this machine has no C++ compiler")
def test_compiled_model_is_profiled_as_what_it_is(
    start: Start, torch_interpreter: str, starts: Path
) -> None:
    """Its FLOPs are those of the model; no marks are set, and what it is made of is no library."""
    found: dict[bool, dict[str, Any]] = {}
    for compiled in (False, True):
        worker: Conversation = start(torch_interpreter)
        params = {**LINEAR, "compile": compiled}
        assert worker.ask("hello", workload="layer", params=params, threads=1, device="cpu")["ok"]
        assert worker.ask("gen", seed=1, pad=0)["ok"]
        kinds = ("flops", "phases", "torch")
        found[compiled] = {kind: worker.ask("profile", kind=kind, k=2, out="") for kind in kinds}
        assert worker.ask("run", k=2)["compilations"] == 0
        facts = worker.ask("facts")["fingerprint"]
        assert facts["compiler.name"] == (str(starts.with_name("counted")) if compiled else None)
        assert str(starts.parent) not in " ".join(facts["loaded_paths"])
    flops = [found[compiled]["flops"]["values"] for compiled in (False, True)]
    assert flops[0] == flops[1]
    assert flops[0]["flops"] > 0
    assert (found[False]["phases"]["reason"], found[True]["phases"]["values"]) == ("", {})
    assert "the model is compiled" in found[True]["phases"]["reason"]
    names = [one["name"] for one in found[True]["torch"]["values"]["operators"]]
    assert any("Compiled" in name for name in names)


@pytest.mark.nightly
@pytest.mark.skipif(not HAS_COMPILER, reason="this machine has no C++ compiler")
def test_compiling_needs_no_program_but_the_compiler(
    start: Start, torch_interpreter: str, starts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least of all `openssl`, by which PyTorch hashes headers: slim images have none."""
    programs = starts.with_name("programs")
    programs.mkdir()
    for name in ("g++", "as", "ld"):
        (programs / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(programs))
    worker: Conversation = start(torch_interpreter)
    params = {**LINEAR, "kind": "relu", "backward": False, "compile": True}
    assert worker.ask("hello", workload="layer", params=params, threads=1, device="cpu")["ok"]
    begun = worker.ask("gen", seed=1, pad=0)
    assert begun["ok"], begun
    assert starts.read_text()


def test_compilations_of_a_block_are_told(
    start: Start, torch_interpreter: str, tmp_path: Path
) -> None:
    """A model that meets another shape is compiled again: the fourth step in each four does."""
    (tmp_path / "own.py").write_text(GROWING)
    worker: Conversation = start(torch_interpreter)
    hello = worker.ask("hello", workload=f"{tmp_path}/own.py:Growing", threads=1, device="cpu")
    assert hello["ok"], hello
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    assert [worker.ask("run", k=2)["compilations"] for _ in range(4)] == [0, 1, 0, 1]


@pytest.mark.skipif(not HAS_COMPILER, reason="this machine has no C++ compiler")
@pytest.mark.parametrize("compiled", nightly_except((True,), (False, True)))
def test_a_model_that_pytorch_does_not_compile_fails_where_it_should_be(
    start: Start,
    torch_interpreter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    compiled: bool,
) -> None:
    """Its times would be told as those of compiled code."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.py").write_text(RECURRENT)
    worker: Conversation = start(torch_interpreter)
    own = {"workload": f"{tmp_path}/own.py:Recurrent", "params": {"compile": compiled}}
    assert worker.ask("hello", **own, threads=1, device="cpu")["ok"]
    begun = worker.ask("gen", seed=1, pad=0)
    assert begun["ok"] is not compiled
    if compiled:
        assert "torch.compile has compiled no part of the model" in begun["error"]["brief"]
        assert "leave `compile` out" in begun["error"]["hint"]
        assert "TORCH_COMPILE_DISABLE" in begun["error"]["hint"]


def test_compiled_model_lacks_triton_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch itself would fail in the first step; on a CPU nothing needs it."""
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(LackingError, match="needs Triton on a GPU"):
        computed(None, "cuda", compiled=True)


@pytest.mark.parametrize("name", nightly_except(("mlp",), ("mlp", "cnn", "layer")))
def test_compiled_model_lacks_a_compiler_that_is_not_there(
    start: Start,
    torch_interpreter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """It has not failed: the arm is not run, with what to install."""
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    worker: Conversation = start(torch_interpreter)
    params = {"compile": True}
    error = worker.ask("hello", workload=name, params=params, threads=1, device="cpu")["error"]
    assert error["phase"] == "environment"
    assert "torch.compile needs a C++ compiler" in error["brief"]
