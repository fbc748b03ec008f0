"""The recipe of the guide: a script as it is often written, and the workload that is made of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conversation import WORKER, Conversation, Start

pytestmark = pytest.mark.torch
GUIDE = WORKER.parents[2] / "docs" / "guide" / "your-own-work.md"


def code(name: str) -> str:
    """Return the Python code that follows a marker of the guide."""
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_script_runs_as_it_is(torch_interpreter: str, tmp_path: Path) -> None:
    """It prints what the expression beside it reads."""
    (tmp_path / "script.py").write_text(code("script"))
    argv = [torch_interpreter, tmp_path / "script.py"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    losses = [float(loss) for loss in re.findall("loss: ([0-9.]+)", done.stdout)]
    assert len(losses) == 3
    assert losses[-1] < losses[0]


def test_the_workload_of_it_repeats_and_learns(
    start: Start, torch_interpreter: str, tmp_path: Path
) -> None:
    """Every generation of one seed has the same losses, over more than an epoch."""
    (tmp_path / "net.py").write_text(code("workload"))
    worker: Conversation = start(torch_interpreter)
    hello = worker.ask("hello", workload=f"{tmp_path}/net.py:Net", params={}, device="cpu")
    assert (hello["ok"], hello["batch"]) == (True, 64)
    said = []
    for _ in range(2):
        first = worker.ask("gen", seed=5, pad=0)["checksum"]
        said.append((first, worker.ask("run", k=60)["loss"]))
        worker.ask("end")
    assert said[0] == said[1]
    assert said[0][1] < said[0][0]
