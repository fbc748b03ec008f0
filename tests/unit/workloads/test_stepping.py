"""A line whose program takes the steps: its gate, its turns, and what it leaves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import Conversation

from envcompare.environments import GATE

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
STEPPING = Path(__file__).parents[3] / "workloads" / "harness" / "stepping.py"
TRAINS = """
import os, sys, torch

model = torch.nn.Linear(64, 64)
optimizers = [{optimizers}]
assert "probe" not in "".join(sys.path)
for step in range(10_000):
    for optimizer in optimizers:
        loss = model(torch.ones(8, 64)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with open("steps", "w") as file:
        file.write(str(step + 1))
"""
PLAIN = "torch.optim.SGD(model.parameters(), lr=1e-6)"
NESTED = """type("Twice", (torch.optim.SGD,), {
    "step": lambda self, closure=None: torch.optim.SGD.step(self, closure)
})(model.parameters(), lr=1e-6)"""
Begin = Callable[..., Conversation]


CALLS = """
import sys
from solving import twice

def solve(number):
    with open("steps", "w") as file:
        file.write(str(number))
    return sum(one * one for one in range(20_000))

def asynchronous(number):
    yield solve(number)

class Solver:
    @staticmethod
    def fixed(number):
        return solve(number)

    def bound(self, number):
        return Solver.fixed(number)

    def within(self, number, depth=0):
        return self.within(number, depth + 1) if depth < 9 else Solver.fixed(number)

fixed = Solver.fixed
shared = Solver().bound

for number in range(1, 10**7):
    {call}
"""


def greet(worker: Conversation, folder: Path, step: str = "") -> dict[str, Any]:
    """Say hello, and return the reply."""
    return worker.ask("hello", workload="train", cwd=str(folder), fingerprint=False, step=step)


@pytest.fixture
def begin(tmp_path: Path, torch_interpreter: str) -> Iterator[Begin]:
    """Give a function that begins a worker for a script in the test's folder."""
    workers: list[Conversation] = []

    def start(source: str, *, after: str = "", **variables: str) -> Conversation:
        (tmp_path / "train.py").write_text(source)
        line = {"ENVCOMPARE_LINE": f"{torch_interpreter} train.py{after}", GATE: str(tmp_path)}
        errors = tmp_path / "errors"
        worker = Conversation("python3", errors, program=STEPPING, **line, **variables)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        with worker.process:  # closes its pipes
            worker.process.kill()


@pytest.mark.parametrize("optimizers", [PLAIN, NESTED, f"{PLAIN}, {PLAIN}", f"{NESTED}, {PLAIN}"])
def test_program_takes_exactly_the_steps_that_are_asked_for(
    begin: Begin, tmp_path: Path, optimizers: str
) -> None:
    """A call within a call, and several optimizers in turn, are one step."""
    worker = begin(TRAINS.replace("{optimizers}", optimizers))
    assert greet(worker, tmp_path)["ok"]
    begun = worker.ask("gen", seed=1, pad=0)
    assert begun["ok"], begun
    before = int((tmp_path / "steps").read_text())
    ran = worker.ask("run", k=5)
    assert (len(ran["wall_ns"]), len(ran["cpu_ns"])) == (5, 5)
    assert all(0 < time_ns < 10**9 for time_ns in ran["wall_ns"])
    assert int((tmp_path / "steps").read_text()) == before + 5
    ran = worker.ask("run", k=2, run_in=3, stops=True)
    assert len(ran["wall_ns"]) == 2
    assert int((tmp_path / "steps").read_text()) == before + 10
    facts = worker.ask("facts")["fingerprint"]
    assert facts["torch.threads"] > 0  # which only the script itself knows
    assert any(one.startswith("libtorch_cpu") for one in facts["loaded_libraries"])
    assert worker.ask("end")["max_rss_bytes"] > 10**7
    assert not Path(f"/proc/{begun['pid']}").exists()
    assert worker.ask("quit")["ok"]
    assert worker.process.wait(10) == 0


def test_work_of_a_step_is_told(begin: Begin, tmp_path: Path) -> None:
    """The parameters of all optimizers, and the batches of all loaders."""
    loader = "\nkept = torch.utils.data.DataLoader(torch.ones(64, 2), batch_size=16)"
    two = TRAINS.replace("{optimizers}", f"{PLAIN}, {PLAIN}")
    worker = begin(two.replace("\noptimizers", f"{loader}\noptimizers"))
    work = greet(worker, tmp_path)["params"]
    assert work == {"parameters": 2 * (64 * 64 + 64), "batch sizes of loaders": "16"}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("__main__:solve", "solve(number)"),
        ("__main__:Solver.fixed", "Solver().bound(number)"),
        ("__main__:Solver.bound", "Solver().bound(number)"),
        ("__main__:Solver.within", "Solver().within(number)"),
        ("solving:twice", "twice(solve, number)"),
    ],
)
def test_calls_of_a_named_function_are_steps(
    begin: Begin, tmp_path: Path, name: str, call: str
) -> None:
    """Without PyTorch too, and of a function that was imported by its name."""
    (tmp_path / "solving.py").write_text("def twice(call, number): return call(number)\n")
    worker = begin(CALLS.replace("{call}", call))
    assert greet(worker, tmp_path, name)["ok"]
    assert worker.ask("gen", seed=1, pad=0)["ok"]
    before = int((tmp_path / "steps").read_text())
    ran = worker.ask("run", k=5, run_in=3)
    assert all(0 < time_ns < 10**9 for time_ns in ran["wall_ns"])
    assert int((tmp_path / "steps").read_text()) == before + 8
    assert worker.ask("facts")["fingerprint"]["threads.alive"] == 1  # nothing of ours is left


@pytest.mark.parametrize(
    ("name", "call", "why"),
    [
        ("asynchronous", "list(asynchronous(number))", "is a generator"),
        ("bound", "shared(number)", "is not a function that is written in Python"),
    ],
)
def test_function_whose_call_is_no_step_is_refused(
    begin: Begin, tmp_path: Path, name: str, call: str, why: str
) -> None:
    """A generator has done nothing when its call returns, and a bound method is no function."""
    (tmp_path / "solving.py").write_text("twice = None\n")
    worker = begin(CALLS.replace("{call}", call).replace("shared = ", "shared = bound = "))
    failed = greet(worker, tmp_path, f"__main__:{name}")["error"]
    assert f"__main__:{name} {why}" in failed["brief"]


def test_facts_from_inside_load_no_module_of_the_script(begin: Begin, tmp_path: Path) -> None:
    """One of its files may have the name of a module that reading them needs."""
    for name in ("platform", "resource", "sysconfig"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "solving.py").write_text("twice = None\n")
    worker = begin(CALLS.replace("{call}", "solve(number)"), HF_HOME="/x")
    greet(worker, tmp_path, "__main__:solve")
    worker.ask("gen", seed=1, pad=0)
    facts = worker.ask("facts")["fingerprint"]
    assert facts["env.HF_HOME"] == "set"
    assert facts["python.version"].count(".") == 1
    assert facts["programs"]
    assert worker.ask("run", k=2)["ok"]


def test_script_without_calls_of_the_function_is_reported(begin: Begin, tmp_path: Path) -> None:
    """With how to name one."""
    failed = greet(begin("print()"), tmp_path, "train:step")["error"]
    assert "too few calls of train:step were seen" in failed["hint"]


def test_program_that_takes_no_step_is_reported(begin: Begin, tmp_path: Path) -> None:
    """With its exit code and what to do instead."""
    worker = begin("import sys; print('no model'); sys.exit(3)")
    failed = greet(worker, tmp_path)["error"]
    assert "ended with exit code 3 before enough steps were seen" in failed["brief"]
    assert "failed by itself" in failed["hint"]
    assert "no model" in worker.printed()


def test_script_that_trains_in_several_processes_is_refused(begin: Begin, tmp_path: Path) -> None:
    """One of them would wait for the others while these wait for it."""
    worker = begin(TRAINS.replace("{optimizers}", PLAIN), WORLD_SIZE="2")
    failed = greet(worker, tmp_path)["error"]
    assert "several processes of the script take steps" in failed["brief"]
    assert "leave --lockstep and --step out" in failed["hint"]


def test_program_keeps_its_own_start_up_code_and_modules(begin: Begin, tmp_path: Path) -> None:
    """A `sitecustomize` and a module `harness` of the user's are the ones that it sees."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins; builtins.mine = 7\n")
    (tmp_path / "own" / "harness.py").write_text("name = 'of the user'\n")
    check = "import harness, builtins\nassert (harness.name, builtins.mine) == ('of the user', 7)\n"
    worker = begin(check + TRAINS.replace("{optimizers}", PLAIN), PYTHONPATH=str(tmp_path / "own"))
    greet(worker, tmp_path)
    assert worker.ask("gen", seed=1, pad=0)["ok"], worker.printed()


def test_program_that_runs_out_of_steps_is_reported(begin: Begin, tmp_path: Path) -> None:
    """With the exit code of the line."""
    worker = begin(TRAINS.replace("{optimizers}", PLAIN).replace("10_000", "9"))
    greet(worker, tmp_path)
    worker.ask("gen", seed=1, pad=0)
    failed = worker.ask("run", k=50)["error"]
    assert "exit code 0 before the measurement was over" in failed["brief"]
    assert failed["is_exhausted"]


def test_script_that_fails_before_a_pipe_has_failed(begin: Begin, tmp_path: Path) -> None:
    """The exit code of such a line is that of its last program."""
    fails = TRAINS.replace("{optimizers}", PLAIN).replace(
        "    for optimizer", "    assert step < 9\n    for optimizer"
    )
    worker = begin(fails, after=" | cat")
    greet(worker, tmp_path)
    worker.ask("gen", seed=1, pad=0)
    failed = worker.ask("run", k=50)["error"]
    assert "exit code 0 while it was measured" in failed["brief"]
    assert "is_exhausted" not in failed


def test_second_process_that_trains_is_reported(begin: Begin, tmp_path: Path) -> None:
    """It would compute in the turns of the other arms."""
    forks = (
        TRAINS.replace("{optimizers}", PLAIN)
        .replace("model =", "child = os.fork()\nmodel =")
        .replace('open("steps", "w")', 'open(f"steps-{child == 0}", "w")')
    )
    worker = begin(forks)
    reply = greet(worker, tmp_path)
    for _ in range(20):
        if not reply["ok"]:
            break
        time.sleep(0.2)
        reply = worker.ask("run", k=200)
    assert "several processes of the script take steps" in reply["error"]["brief"]


@pytest.mark.parametrize("is_turn", [True, False])
def test_program_ends_with_its_worker(begin: Begin, tmp_path: Path, *, is_turn: bool) -> None:
    """Also while it waits for its turn: nothing of it goes on, or stays stopped."""
    worker = begin(TRAINS.replace("{optimizers}", PLAIN).replace("10_000", "10**9"))
    greet(worker, tmp_path)
    pid = worker.ask("gen", seed=1, pad=0)["pid"]
    if is_turn:
        worker.say('{"op": "run", "k": 100000000}\n')
    worker.hang_up()
    worker.process.wait(20)
    assert not Path(f"/proc/{pid}").exists()
