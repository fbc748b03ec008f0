"""The shapes of run folders that are made and not measured: how large, and what is planted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from envcompare.errors import Phase
from envcompare.run_folder.records import ArmRecord, CellRecord

REFERENCE = "vm"
CONTROL = "vm~control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An arm beside the reference: how many times as long its steps take, and how sure that is.

    `spread` is the standard deviation of the logarithm from restart to restart: 0.001 is a quiet
    machine, at 0.05 nothing is told apart.
    """

    id: str
    environment: str = "docker"
    ratio: float = 1.0
    spread: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """An arm that fails in one cell and is well in all others."""

    cell: str
    arm: str
    phase: Phase = "setup"
    exit_code: int | None = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a run folder holds; with the same shape its files are the same, byte by byte.

    Beside the arms there are the reference and its control. `parameters` gives each workload a
    cell for every choice; the first of them is a number, and what an arm costs shrinks with it.
    `by_host` adds to the logarithm of the times of an arm on a host.
    """

    seed: int = 1
    hosts: tuple[str, ...] = ("gpu01",)
    workloads: tuple[str, ...] = ("cnn", "rnn")
    arms: tuple[Arm, ...] = (
        Arm(id="docker", ratio=1.08),
        Arm(id="singularity", environment="singularity", ratio=1.003),
    )
    parameters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    by_host: Mapping[tuple[str, str], float] = field(default_factory=dict)
    restarts: int = 6
    generations: int = 2
    rounds: int = 4
    steps: int = 5
    launches: int = 4
    failing: Failing | None = None
    not_run: tuple[str, str] | None = None  # host, arm
    confounded: str = ""  # the arm that loads another build of OpenBLAS

    @property
    def records(self) -> tuple[ArmRecord, ...]:
        """Return all arms, the reference first and its control last."""
        return (
            ArmRecord(id=REFERENCE, environment="vm", is_reference=True),
            *(ArmRecord(id=arm.id, environment=arm.environment) for arm in self.arms),
            ArmRecord(id=CONTROL, environment="vm", is_control=True),
        )

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        """Return the cells of all hosts."""
        choices = [dict(zip(self.parameters, one, strict=True)) for one in self._products()]
        return tuple(
            CellRecord(
                id=f"{host}/{workload}/{_spelt(choice)}",
                host=host,
                workload=workload,
                parameters=dict(choice),
            )
            for host in self.hosts
            for workload in self.workloads
            for choice in choices
        )

    def works(self, cell: CellRecord, arm: str) -> bool:
        """Tell whether an arm gives results in a cell."""
        if self.not_run == (cell.host, arm):
            return False
        return self.failing is None or (self.failing.cell, self.failing.arm) != (cell.id, arm)

    def _products(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*self.parameters.values())


def _spelt(choice: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(choice.items())) or "default"
