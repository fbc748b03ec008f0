"""Where a difference sits: phases and operators of marked rounds, made by hand and with workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benches import ARMS, bench, launch, measure
from builders import CELL, block, run_record
from lab import need, torch_python

from envcompare.analysis.model.profiling import ArmPhases, CellPhases, PartDifference
from envcompare.analysis.timing import CellData
from envcompare.analysis.timing.descriptive import cell_phases
from envcompare.measure import generation
from envcompare.measure.generation import MARKED, Marking
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import Block, MarkedBlock, event_now
from envcompare.text import Command

TIMES = {  # ns a step
    "data": {"": 100_000, "aten::index": 200_000},
    "forward": {"aten::addmm": 4_000_000, "aten::erf": 400_000, "(all others)": 50_000},
    "backward": {"aten::mm": 5_000_000, "": 200_000, "aten::tiny": 20_000},
}
SLOWED = ("forward", "aten::erf")
SOURCE = """
import os
import torch


class Small:
    batch = 8

    def setup(self, seed, device):
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(128, 128)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.inputs = torch.randn(8, 128)
        arm = os.environ["ENVCOMPARE_ENVIRONMENT"]
        self.elements = torch.linspace(-2, 2, 400_000 if arm == "docker" else 20_000)

    def step(self):
        self.optimizer.zero_grad()
        outputs = self.model(self.inputs)
        torch.erf(self.elements)
        loss = outputs.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
"""


def marked_blocks(*, slower: float, restarts: int = 6, rounds: int = 10) -> Iterator[MarkedBlock]:
    """Yield rounds in which every time scatters by 3 % and one operator of docker is slower."""
    draws = random.Random(5)
    for restart in range(restarts):
        for number in range(rounds):
            for order, arm in enumerate(("vm", "docker", "vm~control")):
                yield MarkedBlock(
                    cell=CELL,
                    arm=arm,
                    restart=restart,
                    generation=0,
                    round=number,
                    order=order,
                    k=2,
                    phases={
                        phase: {
                            name: round(
                                2
                                * ns
                                * draws.gauss(1, 0.03)
                                * (slower if (arm, phase, name) == ("docker", *SLOWED) else 1)
                            )
                            for name, ns in times.items()
                        }
                        for phase, times in TIMES.items()
                    },
                )  # type: ignore[arg-type]  # phases are those of the record


def cell_data(**changes: object) -> CellData:
    """Return the data of a cell with a block of each arm in each restart."""
    run = run_record()
    blocks = tuple(block(arm=arm.id, restart=restart) for restart in range(6) for arm in run.arms)
    known = {"blocks": blocks, "events": (), "host_events": (), **changes}
    return CellData(run=run, cell=run.cells[0], **known)  # type: ignore[arg-type]


def analysed(*, slower: float) -> dict[str, ArmPhases]:
    """Return what marked rounds tell of each arm."""
    found = cell_phases(cell_data(), marked_blocks(slower=slower))
    assert found is not None
    return {arm.arm: arm for arm in found.arms}


def differing(arm: ArmPhases) -> list[tuple[str | None, str]]:
    """Return the operators that are said to differ."""
    return [
        (one.phase, one.operator)
        for one in arm.parts
        if one.kind == "operator" and one.is_distinguishable
    ]


def part(arm: ArmPhases, kind: str, operator: str = "") -> PartDifference:
    """Return the first part of a kind with this name."""
    return next(one for one in arm.parts if (one.kind, one.operator) == (kind, operator))


def test_an_operator_that_only_one_arm_runs_is_named_and_bounds_nothing() -> None:
    """Another algorithm has another name: it cannot be paired, and it is no operator less."""
    blocks = [
        msgspec.structs.replace(one, phases=renamed(one.phases)) if one.arm == "docker" else one
        for one in marked_blocks(slower=1.0)
    ]
    found = cell_phases(cell_data(), blocks)
    assert found is not None
    docker = next(arm for arm in found.arms if arm.arm == "docker")
    lone = {(one.operator, one.arm): one.share for one in docker.lone}
    # nothing is said of those that were added up
    assert lone.keys() == {("aten::mm", "vm"), ("aten::slow_mm", "docker"), ("aten::index", "vm")}
    assert lone["aten::mm", "vm"] == pytest.approx(0.5, abs=0.02)
    assert docker.most_log_ratio is None
    control = next(arm for arm in found.arms if arm.arm == "vm~control")
    assert control.lone == ()
    assert control.most_log_ratio is not None


def renamed(phases: dict[Any, dict[str, int]]) -> dict[Any, dict[str, int]]:
    """Return phases in which one operator has another name, and another was added to the rest."""
    names = {"aten::mm": "aten::slow_mm", "aten::index": "(all others)"}
    return {
        phase: {names.get(name, name): ns for name, ns in times.items()}
        for phase, times in phases.items()
    }


def test_slower_operator_is_found_with_its_share_and_its_part_of_the_step() -> None:
    """5 % of an operator of 4 % of the step: 20 µs, and nothing else differs."""
    docker = analysed(slower=1.05)["docker"]
    assert differing(docker) == [SLOWED]
    found = part(docker, "operator", "aten::erf")
    assert found.share == pytest.approx(0.04, rel=0.05)
    assert found.reference_s == pytest.approx(400e-6, rel=0.02)
    assert found.difference_s == pytest.approx(20e-6, rel=0.3)
    assert found.low is not None
    assert 0 < found.low < found.log_ratio
    whole, others = part(docker, "step"), part(docker, "others")
    assert whole.share == 1
    assert whole.reference_s == pytest.approx(found.reference_s + others.reference_s, rel=0.01)


def test_no_operator_of_the_control_differs_and_a_bound_is_given() -> None:
    """The reference against itself: by how much an operator may differ is what is left to say."""
    control = analysed(slower=1.05)["vm~control"]
    assert differing(control) == []
    assert control.most_log_ratio is not None
    assert 0 < control.most_log_ratio < 0.05


def test_intervals_pay_for_all_parts_of_one_percent() -> None:
    """Two small operators are not tested, three phases and five operators are."""
    docker = analysed(slower=1.0)["docker"]
    assert docker.tested == 8
    assert docker.level == pytest.approx(1 - 0.05 / 8)
    assert {one.operator for one in docker.parts}.isdisjoint({"aten::tiny", "(all others)"})
    assert (docker.rounds, docker.restarts) == (60, 6)


def test_reason_is_kept_where_nothing_could_be_marked() -> None:
    """A cell that asked for no marks has neither."""
    noted = event_now("not-marked", cell=CELL, arm="vm", text="the workload does not use PyTorch")
    assert cell_phases(cell_data(events=(noted,)), ()) == CellPhases(
        cell=CELL, reference="vm", reason="the workload does not use PyTorch"
    )
    assert cell_phases(cell_data(), ()) is None


def test_share_of_the_time_is_given_back_once_steps_cannot_be_marked() -> None:
    """Without a wish or after a reason all of a restart is for the rounds of the verdict."""
    assert Marking(is_wanted=True).share > 0
    assert Marking(is_wanted=True, reason="no").share == 0
    assert Marking(is_wanted=False).share == 0


def _launch_with_torch(path: Path, arm: str, variables: tuple[tuple[str, str], ...] = ()) -> Worker:
    def with_torch(command: Command) -> Command:
        return replace(command, argv=(torch_python(), *command.argv[1:]))

    return launch(path, arm, variables, around=with_torch)


def test_workers_mark_rounds_that_show_a_slower_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Marked rounds follow the others, hold all arms, and tell which operator does more."""
    need("torch")
    # The profiler of each arm starts in its share of the time, which takes long where others work.
    monkeypatch.setattr(generation, "_MARKED_SHARE", 0.5)
    (tmp_path / "own.py").write_text(SOURCE)
    for budget_s in (16.0, 90.0):  # a busy machine needs longer for a marked round
        found = measure(
            replace(
                bench(
                    tmp_path / f"{budget_s}", f"{tmp_path}/own.py:Small", budget_s=budget_s,
                    min_restarts=2, target=1e-4, marks=True,
                ),
                launch=partial(_launch_with_torch, tmp_path),
            )
        )  # fmt: skip
        samples = found.folder.read_samples().samples
        marked = [sample for sample in samples if isinstance(sample, MarkedBlock)]
        if marked:
            break
    for restart in {one.restart for one in marked}:
        own = [
            sample for sample in samples if isinstance(sample, Block) and sample.restart == restart
        ]
        last = samples.index(own[-1])
        assert all(samples.index(one) > last for one in marked if one.restart == restart)
        rounds = {one.round for one in marked if one.restart == restart}
        assert rounds == set(range(len(rounds)))
    assert {one.arm for one in marked} == set(ARMS)
    phases = {arm.arm: arm for arm in found.comparison.views.phases[0].arms}
    # 20 times the elements: a ratio that no neighbour takes away, be there one round or many
    slower = part(phases["docker"], "operator", "aten::erf").log_ratio
    assert slower - part(phases["docker"], "operator", "aten::addmm").log_ratio > 1


@pytest.mark.nightly  # a marked round needs a long restart
def test_phases_are_marked_where_arms_are_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of the workload makes nothing ahead, in marked rounds as in the others."""
    need("torch")
    monkeypatch.setattr(generation, "_MARKED_SHARE", 0.5)  # as above
    child = "        import subprocess; subprocess.Popen(['sleep', '600'])\n"
    text = SOURCE.replace(
        "        torch.manual_seed(seed)\n", f"{child}        torch.manual_seed(seed)\n"
    )
    (tmp_path / "own.py").write_text(text)
    found = measure(
        replace(
            bench(
                tmp_path, f"{tmp_path}/own.py:Small", budget_s=60.0, min_restarts=2, target=1e-4,
                marks=True,
            ),
            launch=partial(_launch_with_torch, tmp_path),
        )
    )  # fmt: skip
    assert found.comparison.cells[0].stops
    assert [event.text for event in found.events if event.what == "not-marked"] == []
    assert {arm.arm for arm in found.comparison.views.phases[0].arms} == {"docker", "vm~control"}


def test_workers_without_pytorch_say_so_once(tmp_path: Path) -> None:
    """The first answer ends the marking of the cell; its rounds are measured all the same."""
    (tmp_path / "own.py").write_text(
        "class Plain:\n    batch = 1\n    def setup(self, seed, device): pass\n"
        "    def step(self): return float(sum(range(20000)))\n"
    )
    made = bench(
        tmp_path, f"{tmp_path}/own.py:Plain", budget_s=8.0, min_restarts=2, target=1e-4, marks=True
    )
    found = measure(made)
    noted = [event.text for event in found.events if event.what == "not-marked"]
    assert noted == ["the workload does not use PyTorch"]
    assert found.comparison.views.phases[0].reason == noted[0]
    assert not any(
        isinstance(sample, MarkedBlock) for sample in found.folder.read_samples().samples
    )
    assert MARKED == "phases"
