"""The energy pass: long blocks of each arm in turn on an imitated GPU; nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from benches import Kept, bench

from envcompare.errors import InterruptedRunError
from envcompare.measure.cell import CellContext
from envcompare.measure.hostreadings import ROUNDS, EnergyPass
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import EnergyBlock

IMITATED = Path(__file__).parents[1] / "support" / "imitatedtorch"
BLOCK_S = 0.2
WORKLOAD = """
import os
import time
import torch

class Busy:
    batch = 1
    steps_per_epoch = 1
    def setup(self, seed, device):
        self.steps = 0
        self.weights = torch.zeros(1, device=device)
    def step(self):
        self.steps += 1
        time.sleep(0.005)
        return 1.0

class FailsInDocker(Busy):
    def step(self):
        if os.environ["ENVCOMPARE_ENVIRONMENT"] == "docker" and self.steps == 5:
            raise ValueError("the GPU is lost")
        return super().step()
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], CellContext]]:
    """Return a cell on a host whose PyTorch imitates a GPU."""
    monkeypatch.setenv("PYTHONPATH", str(IMITATED))
    monkeypatch.setenv("IMITATED_CUDA", str(tmp_path / "calls"))
    path = tmp_path / "busy.py"
    path.write_text(WORKLOAD)
    contexts: list[CellContext] = []

    def make(name: str) -> CellContext:
        contexts.append(bench(tmp_path, f"{path}:{name}"))
        return contexts[-1]

    yield make
    for context in contexts:
        kept(context).folder.close()


def kept(context: CellContext) -> Kept:
    """Return what keeps the samples of a cell."""
    assert isinstance(context.recorder, Kept)
    return context.recorder


def energy_pass(context: CellContext, sampled: list[str], launched: list[str]) -> EnergyPass:
    """Return the pass over two arms, which notes when it samples and whom it starts."""

    @contextmanager
    def sampling() -> Iterator[None]:
        sampled.append("begun")
        yield
        sampled.append("ended")

    def launch(arm: str) -> Worker:
        launched.append(arm)
        return context.launch(arm, ())

    return EnergyPass(
        context=context,
        arms=("vm", "docker"),
        launch=launch,
        sampling=sampling,
        block_s=BLOCK_S,
    )


def blocks(context: CellContext) -> list[EnergyBlock]:
    """Return the blocks that were kept."""
    samples = kept(context).folder.read_samples().samples
    return [sample for sample in samples if isinstance(sample, EnergyBlock)]


def test_each_arm_runs_a_long_block_in_each_round(made: Callable[[str], CellContext]) -> None:
    """Blocks follow each other and last as long as asked for; one worker of each arm runs them."""
    context, sampled, launched = made("Busy"), list[str](), list[str]()
    said = energy_pass(context, sampled, launched).measure()
    found = blocks(context)
    assert said == "energy of 4 blocks of at least 0.2 s"
    assert sorted(launched) == ["docker", "vm"]
    assert sampled == ["begun", "ended"]
    assert [(b.round, b.order) for b in found] == [(r, o) for r in range(ROUNDS) for o in (0, 1)]
    assert {(b.round, b.arm) for b in found} == {
        (r, arm) for r in range(ROUNDS) for arm in ("vm", "docker")
    }
    assert all(b.wall_ns >= BLOCK_S * 1e9 and b.k > 1 for b in found)
    ends = [b.t0_ns + b.wall_ns for b in found]
    assert all(end <= after.t0_ns for end, after in zip(ends, found[1:], strict=False))


def test_a_resumed_pass_runs_the_blocks_that_are_missing(
    made: Callable[[str], CellContext],
) -> None:
    """What an earlier part of the run has measured stays."""
    context, launched = made("Busy"), list[str]()
    first = energy_pass(context, [], [])
    first.measure()
    there = blocks(context)
    without = [b for b in there if (b.round, b.arm) != (1, "docker")]
    said = replace(energy_pass(context, [], launched), prior=without).measure()
    assert (said, launched) == ("energy of 4 blocks of at least 0.2 s", ["docker"])
    assert [(b.round, b.arm) for b in blocks(context)[len(there) :]] == [(1, "docker")]
    replace(energy_pass(context, [], launched), prior=there).measure()
    assert launched == ["docker"]


def test_an_arm_that_fails_leaves_its_reason_and_the_others_go_on(
    made: Callable[[str], CellContext],
) -> None:
    """The timing stands, whatever the pass lacks."""
    context = made("FailsInDocker")
    energy_pass(context, [], []).measure()
    assert [b.arm for b in blocks(context)] == ["vm"] * ROUNDS
    notes = [(e.arm, e.text) for e in kept(context).events if e.what == "note"]
    assert [arm for arm, _ in notes] == ["docker"]
    assert "no further energy was measured" in notes[0][1]
    assert "the GPU is lost" in notes[0][1]


def test_a_worker_on_the_cpu_has_no_energy(made: Callable[[str], CellContext]) -> None:
    """Nothing is sampled where no GPU works."""
    context, sampled = made("Busy"), list[str]()
    on_cpu = replace(context, spec=msgspec.structs.replace(context.spec, device="cpu"))
    said = energy_pass(on_cpu, sampled, []).measure()
    assert (said, sampled, blocks(context)) == ("no energy was measured", [], [])


def test_the_pass_ends_when_the_user_stops(made: Callable[[str], CellContext]) -> None:
    """It is an interruption of the run."""
    context = made("Busy")
    context.interruption.request()
    with pytest.raises(InterruptedRunError):
        energy_pass(context, [], []).measure()
