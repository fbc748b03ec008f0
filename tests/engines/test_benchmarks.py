"""The benchmarks that need torch, another tool or the lab still run."""

from __future__ import annotations

import os

import pytest
from lab import lab, need, torch_python
from runs import BASE
from smokes import NEEDS, smoke


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name, needs in NEEDS.items() if needs])
def test_benchmark_runs(name: str) -> None:
    """One tiny trial, through its own command line."""
    for program in NEEDS[name]:
        need(program)
    smoke(name, *(word for needed in NEEDS[name] for word in words(needed, name)))


def words(needed: str, name: str) -> tuple[str, ...]:
    """Return how a benchmark is told where something is."""
    if name in {"felt", "live", "rights"}:
        return ("--base-image", BASE)
    if needed == "torch":
        return ("--python", torch_python())
    if needed == "recipes":
        return ("--python", os.environ["ENVCOMPARE_TEST_RECIPES"])
    if needed != "ssh":
        return ()
    host = lab()
    assert host is not None
    return ("--ssh-config", str(host.ssh_config))
