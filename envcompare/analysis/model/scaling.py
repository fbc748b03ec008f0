"""How work scales, as types: batches and what fits, ranks, and epochs to a goal."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.run_folder.records import Scalar

Limit = Literal["memory", "workload", "cap"]
"""What keeps a batch from being larger: memory, what the workload takes, or the last size tried."""


class SizeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput of one arm at one batch: its typical step, the geometric mean of restarts."""

    batch: int
    cell: str
    samples_per_s: float
    low: float | None = None  # Student t over restarts at 95 %, not widened
    high: float | None = None
    restarts: int


class ArmSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm does with batches; the knee has 95 % of the best throughput or more."""

    arm: str
    rates: tuple[SizeRate, ...] = ()  # by batch
    best: int | None = None  # the batch of the highest throughput
    knee_low: int | None = None  # no smaller batch has 95 % of the best throughput
    knee_high: int | None = None  # the smallest that has; null: not proven of any
    knee_restarts: int = 0  # that tell of it
    largest: int | None = None  # that fits; null where it is not known or was not searched for
    beyond: int | None = None  # the smallest that was tried and does not fit
    limited_by: Limit | None = None
    memory_mib: int | None = None  # of a process, or of PyTorch on a GPU; 0 is the whole GPU
    device: str = ""
    reason: str = ""  # why it is not known what fits, or what the workload said

    @property
    def knee(self) -> int | None:
        """The knee, None where it is not decided."""
        return self.knee_high if self.knee_low == self.knee_high else None


class BatchSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that differ in their batch alone."""

    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # the others
    within: str = ""  # as of its cells
    sizes: tuple[int, ...]
    cells: tuple[str, ...]  # of these sizes
    is_searched: bool = False
    arms: tuple[ArmSizes, ...]


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm makes of several ranks, against one rank of the same arm and work."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # without `ranks`
    arm: str
    ranks: int
    hosts: tuple[str, ...] = ()  # over which ranks are spread, that of the first rank among them
    samples_per_s: float | None = None
    speed_up: float | None = None  # of the samples in a second; the geometric mean over restarts
    speed_up_low: float | None = None  # Student t over three restarts or more, 95 %, not widened
    speed_up_high: float | None = None
    restarts: int = 0  # that measured both
    efficiency: float | None = None  # the speed-up divided by the ranks
    waited_share: float | None = None  # of the steps of one rank, for a CPU others held
    collective_s: float | None = None  # of a step of the first rank, under torch.profiler
    collective_exposed_s: float | None = None  # while nothing computes
    collective_share: float | None = None  # of the time of a step
    collective_exposed_share: float | None = None


class EpochPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was reached by the end of an epoch: medians over the restarts that have come so far."""

    epoch: int
    training_s: float  # of training so far, without evaluation
    value: float | None
    restarts: int


class ArmTraining(msgspec.Struct, frozen=True, kw_only=True):
    """One arm on its way; intervals are Student t over restarts at 95 %, not widened."""

    arm: str
    is_control: bool = False
    restarts: int  # that came to an end
    reached: int  # of them
    epochs: tuple[int, ...] = ()  # that each restart took which reached the goal
    most_epochs: int = 0  # of any restart
    best: float | None = None  # value of any epoch
    training_s: float | None = None  # to the goal: geometric mean of those that reached it
    training_low_s: float | None = None
    training_high_s: float | None = None
    log_ratio: float | None = None  # time of an epoch against the reference, paired by epoch
    ratio_low: float | None = None
    ratio_high: float | None = None
    points: tuple[EpochPoint, ...] = ()
    is_same_work: bool = True  # as the reference; else it has other values of parameters
    why_not: str = ""  # it was not trained, or no further


class CellTraining(msgspec.Struct, frozen=True, kw_only=True):
    """The way to the goal of a run in one cell."""

    cell: str
    is_net: bool = False  # epochs are compared without waits for a CPU that others held
    arms: tuple[ArmTraining, ...]
    # epochs that all trained arms with the parameters of the reference ended, the control left out:
    # those in which they had the same value, and the others
    same_values: int = 0
    other_values: int = 0
