"""Spoiled configurations, host lists, answers and run folders are refused in words."""

from __future__ import annotations

import random
from pathlib import Path

import inputfuzz
import pytest

EXAMPLES = 25
USES = {
    "configuration": ("plan", "--config"),
    "hosts": ("plan", "--envs", "vm,docker", "--hosts"),
}


@pytest.mark.parametrize("name", inputfuzz.INPUTS)
def test_spoiled_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    """No traceback, no hang, and an exit code that is documented."""
    draw = random.Random(7)
    outcomes = {inputfuzz.outcome(name, draw, tmp_path)[0] for _ in range(EXAMPLES)}
    assert outcomes <= {"read", "refused"}


@pytest.mark.parametrize("name", USES)
def test_input_that_nobody_spoiled_is_read(name: str, tmp_path: Path) -> None:
    """Else spoiling it would prove nothing."""
    path = tmp_path / "input"
    path.write_text({"configuration": inputfuzz.CONFIGURATION, "hosts": inputfuzz.HOSTS}[name])
    assert inputfuzz.accepts(*USES[name], str(path))
