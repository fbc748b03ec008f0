"""The benchmarks still run: those that need no engine; and none of them is forgotten."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest
from smokes import NEEDS, smoke

from bookkeeping import HERE, Benchmark, tell
from ground import Ground, Trial, measure, read_blocks, read_conditions, save

WORDS = {"stabilising": ("--python", sys.executable)}  # its smoke run needs no torch
README = (HERE / "README.md").read_text(encoding="utf-8")


def command_lines() -> set[str]:
    """Return the names of the files that a user calls."""
    return {path.stem for path in HERE.glob("*.py") if "main" in functions(path)}


def functions(path: Path) -> set[str]:
    """Return the names of a file's own functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_benchmark_is_run_by_a_test() -> None:
    """Here, or beside the tests with engines."""
    assert command_lines() == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_every_benchmark_has_a_smoke_run_and_is_listed(name: str) -> None:
    """Its command takes `--smoke`, and the README says how it is called."""
    assert isinstance(importlib.import_module(name).main, Benchmark)
    assert f"`python benchmarks/{name}.py" in README


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, needs in NEEDS.items() if not needs])
def test_benchmark_runs(name: str) -> None:
    """One tiny trial, through its own command line."""
    smoke(name, *WORDS.get(name, ()))


@pytest.mark.nightly
def test_smoke_takes_other_words_as_well(tmp_path: Path) -> None:
    """What the user says counts before what `--smoke` stands for."""
    out = tmp_path / "rows.json"
    smoke("simulation", "--cells", "9", "--out", str(out))
    assert '"cells": 9' in out.read_text(encoding="utf-8")


def test_trial_keeps_its_commit_and_load(tmp_path: Path) -> None:
    """In the file of its samples, whose blocks are read as before."""
    workload = f"{HERE / 'workloads' / 'systemcalls.py'}:SystemCalls"
    trial = Trial(name="t", arms={"a": {}, "b": {}}, workload=workload, budget_s=0.5, seed=1)
    notes = measure(trial, Ground(interpreter=sys.executable, data=tmp_path))
    save(tmp_path / "t.jsonl.gz", notes)
    noted = read_conditions(tmp_path / "t.jsonl.gz")
    expected = {
        "commit", "is_dirty", "began", "elapsed_s", "load_before", "load_after",
        "cpu_pressure", "io_pressure", "memory_pressure", "budget_s",
    }  # fmt: skip
    assert set(noted) == expected
    assert noted["budget_s"] == 0.5
    assert {block.arm for block in read_blocks(tmp_path / "t.jsonl.gz")} == {"a", "b"}


def test_page_tells_commits_and_loads() -> None:
    """All commits are named where a benchmark went on at another one; old data says nothing."""
    one = {"commit": "a" * 40, "is_dirty": False, "load_before": 0.5, "load_after": 1.0,
           "cpu_pressure": 2.0}  # fmt: skip
    other = {**one, "commit": "b" * 40, "is_dirty": True, "load_after": 3.0, "cpu_pressure": None}
    assert tell([one, other, {}]) == (
        "Measured at commit `aaaaaaa`, `bbbbbbb` with uncommitted changes; load 0.5 to 3.0; a task "
        "waited for a CPU in 2 % of the time."
    )
    assert tell([{}]) == ""
