"""The recipes of the guide: scripts as they are often written, and the workloads made of them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from commandline import envcompare
from conversation import WORKER, Conversation, Start
from lab import need

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
    said = _losses(worker)
    assert said[0] == said[1]
    assert said[0][1] < said[0][0]


def _losses(worker: Conversation) -> list[tuple[float, float]]:
    said = []
    for _ in range(2):
        first = worker.ask("gen", seed=5, pad=0)
        assert first["ok"], first
        said.append((first["checksum"], worker.ask("run", k=60)["loss"]))
        assert worker.ask("end")["ok"]
    return said


@pytest.fixture
def recipes_python() -> str:
    """Give an interpreter that has the libraries of the recipes."""
    need("recipes")
    return os.environ["ENVCOMPARE_TEST_RECIPES"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["trainer-script", "lightning-script"])
def test_a_script_of_a_library_runs_as_it_is(
    recipes_python: str, tmp_path: Path, name: str
) -> None:
    """As a plain command, whose loss is read from its output."""
    (tmp_path / "script.py").write_text(code(name))
    for budget_s in ("30", "180"):  # a busy machine needs longer to import the library
        done = envcompare(
            *("run", "--envs", "vm@host", "--host-python", recipes_python, "--no-quiet-gate"),
            *("--command", f"{recipes_python} script.py", "--measure", "loss=loss: ([0-9.]+)"),
            *("--profile", "none", "--budget", budget_s, "--quick", "--out", f"runs-{budget_s}"),
            cwd=tmp_path,
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    (samples,) = tmp_path.glob(f"runs-{budget_s}/*/samples.jsonl")
    assert re.search(r'"values":\{"loss":0\.\d+\}', samples.read_text())


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "kind"), [("trainer", "Bert"), ("lightning", "Lightning")])
def test_a_workload_of_a_library_repeats_and_learns(
    start: Start, recipes_python: str, tmp_path: Path, name: str, kind: str
) -> None:
    """Every generation of one seed has the same losses."""
    (tmp_path / "script.py").write_text(code("lightning-script"))
    (tmp_path / "net.py").write_text(code(name))
    worker: Conversation = start(recipes_python)
    hello = worker.ask("hello", workload=f"{tmp_path}/net.py:{kind}", params={}, device="cpu")
    assert hello["ok"], hello
    said = _losses(worker)
    assert said[0] == said[1]
    assert said[0][1] < said[0][0]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "kind"), [("trainer", "Bert"), ("lightning", "Lightning")])
def test_a_workload_of_a_library_is_measured(
    recipes_python: str, tmp_path: Path, name: str, kind: str
) -> None:
    """By the whole command, with the file that it imports beside it."""
    (tmp_path / "script.py").write_text(code("lightning-script"))
    (tmp_path / "net.py").write_text(code(name))
    done = envcompare(
        *("run", "--envs", "vm@host", "--host-python", recipes_python, "--no-quiet-gate"),
        *("--workload", f"net.py:{kind}", "--device", "cpu", "--no-startup"),
        *("--profile", "none", "--budget", "60", "--quick", "--out", "runs"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    (samples,) = tmp_path.glob("runs/*/samples.jsonl")
    assert '"kind":"block"' in samples.read_text()
