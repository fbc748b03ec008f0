"""What `torch.compile` needs in real environments, of which some have no C++ compiler."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from runs import STEPS_ALONE, Done, envcompare

pytestmark = [pytest.mark.engine("docker"), pytest.mark.timeout(420)]

_SHORT = (*STEPS_ALONE, "--no-marks", "--device", "cpu", "--restarts", "1", "--rounds", "2")
_COMPILE = ("--envs", "vm,docker", "--workloads", "compile", *_SHORT)
UNUSABLE = 3
LACK = "torch.compile needs a C++ compiler"


def failures(done: Done) -> list[dict[str, Any]]:
    """Return what failed, by its record in the run."""
    assert done.exit_code == UNUSABLE, done.stderr
    found: list[dict[str, Any]] = done.read("comparison.json")["course"]["failures"]
    return found


@pytest.mark.nightly
@pytest.mark.engine("ssh")
def test_nothing_is_compared_with_a_reference_that_has_no_compiler(
    lab: Lab, tmp_path: Path
) -> None:
    """Its cell is not run; that of a backend which needs none is measured on the same host."""
    backends = ("--set", "compile.backend=inductor,aot_eager")
    done = envcompare(tmp_path, "--hosts", lab.alias, *_COMPILE, *backends)
    for one in failures(done):
        assert (one["phase"], "backend=inductor" in one["cell"]) == ("environment", True)
        assert LACK in one["brief"]
        assert "--base-image" in one["hint"]
    found = done.read("comparison.json")["comparisons"]
    outcomes = {(c["parameters"]["backend"], c["arm"]): c["outcome"] for c in found}
    assert outcomes["inductor", "docker"] == "not-run"
    assert outcomes["aot_eager", "docker"] not in {"failed", "not-run"}


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="this machine has no C++ compiler")
def test_an_arm_without_a_compiler_is_not_run_beside_one_that_has_it(tmp_path: Path) -> None:
    """The image on the slim base has none; the compiler of the other arm is in its fingerprint."""
    done = envcompare(tmp_path, *_COMPILE)
    assert [(one["arm"], one["phase"]) for one in failures(done)] == [("docker", "environment")]
    assert done.outcomes()["compile", "docker"] == "not-run"
    assert any(line["arm"] == "vm" for line in done.lines("samples.jsonl"))
    facts = {one["arm"]: one["facts"] for one in done.read("comparison.json")["arms"]}
    assert facts["vm"]["compiler.name"] == "g++"
    assert "g++" in facts["vm"]["compiler.version"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="this machine has no C++ compiler")
def test_compiled_model_is_compared_with_itself_uncompiled(tmp_path: Path) -> None:
    """Both arms are measured, and no block has a compilation in it."""
    small = ("--set", "layer.channels=8", "--set", "layer.side=8")
    values = ("--set", "layer.compile=false,true", "--compare", "parameter=compile")
    steps = (*STEPS_ALONE, "--device", "cpu", "--restarts", "2", "--rounds", "3")
    done = envcompare(tmp_path, "--envs", "vm", "--workloads", "layer", *small, *values, *steps)
    assert done.exit_code == 0, done.stderr
    assert done.outcomes()["layer", "vm-compile-true"] not in {"failed", "not-run"}
    blocks = [line for line in done.lines("samples.jsonl") if line["kind"] == "block"]
    restarts = {block["restart"] for block in blocks if block["arm"] == "vm-compile-true"}
    assert restarts == {0, 1}
    assert sum(block["warmup"] for block in blocks) == 2 * 3
    events = [(line["what"], line["text"]) for line in done.lines("events.jsonl")]
    assert any(what == "not-marked" and "compiled" in text for what, text in events)
    facts = {one["arm"]: one["facts"] for one in done.read("comparison.json")["arms"]}
    assert facts["vm-compile-true"]["compiler.name"] == "g++"
    assert not any(".main.so" in line for line in facts["vm-compile-true"]["loaded_libraries"])


@pytest.mark.nightly
def test_environment_without_a_compiler_runs_no_compiled_model(tmp_path: Path) -> None:
    """The plan says so before; the arms of the environment are not run."""
    values = ("--workloads", "mlp", "--set", "mlp.compile=true")
    done = envcompare(tmp_path, "--envs", "docker", *values, *_SHORT)
    assert {LACK in one["brief"] for one in failures(done)} == {True}
