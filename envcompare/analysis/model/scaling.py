"""Types for scaling: batches that fit, ranks, and epochs to a goal."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.run_folder.records import Scalar

Limit = Literal["memory", "workload", "cap"]
"""The limit of a batch: memory, the workload's maximum, or the last size tried."""


class SizeRate(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput of one arm at one batch: its typical step, the geometric mean of restarts."""

    batch: int
    cell: str
    samples_per_s: float
    low: float | None = None  # Student t over restarts at 95 %, not widened
    high: float | None = None
    restarts: int


class ArmSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one arm by batch; the knee has at least 95 % of the best throughput."""

    arm: str
    rates: tuple[SizeRate, ...] = ()  # by batch
    best: int | None = None  # the batch of the highest throughput
    knee_low: int | None = None  # no smaller batch has 95 % of the best throughput
    knee_high: int | None = None  # the smallest that has; null: proven for none
    knee_restarts: int = 0  # number of restarts behind the knee
    largest: int | None = None  # that fits; null if unknown or not searched
    beyond: int | None = None  # the smallest tried that does not fit
    limited_by: Limit | None = None
    memory_mib: int | None = None  # of a process, or of PyTorch on a GPU; 0 is the whole GPU
    device: str = ""
    reason: str = ""  # why the limit is unknown, or the workload's message

    @property
    def knee(self) -> int | None:
        """The knee, None if undecided."""
        return self.knee_high if self.knee_low == self.knee_high else None


class BatchSweep(msgspec.Struct, frozen=True, kw_only=True):
    """Cells that differ only in their batch."""

    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # except the batch
    within: str = ""  # as in its cells
    sizes: tuple[int, ...]
    cells: tuple[str, ...]  # one per size
    is_searched: bool = False
    arms: tuple[ArmSizes, ...]


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of several ranks, against one rank of the same arm and work."""

    cell: str
    host: str
    workload: str
    parameters: dict[str, Scalar] = {}  # without `ranks`
    arm: str
    ranks: int
    hosts: tuple[str, ...] = ()  # of the ranks, including that of the first rank
    samples_per_s: float | None = None
    speed_up: float | None = None  # in samples per second; geometric mean over restarts
    speed_up_low: float | None = None  # Student t over three restarts or more, 95 %, not widened
    speed_up_high: float | None = None
    restarts: int = 0  # number of restarts that measured both
    efficiency: float | None = None  # the speed-up divided by the ranks
    waited_share: float | None = None  # of one rank's steps, waiting for a CPU others held
    collective_s: float | None = None  # per step of the first rank, under torch.profiler
    collective_exposed_s: float | None = None  # while nothing computes
    collective_share: float | None = None  # of the step time
    collective_exposed_share: float | None = None


class EpochPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state at the end of an epoch: medians over the restarts that have reached it."""

    epoch: int
    training_s: float  # of training so far, without evaluation
    value: float | None
    restarts: int


class ArmTraining(msgspec.Struct, frozen=True, kw_only=True):
    """One arm training to a goal; intervals are Student t over restarts at 95 %, not widened."""

    arm: str
    is_control: bool = False
    restarts: int  # number of completed restarts
    reached: int  # number of those that reached the goal
    epochs: tuple[int, ...] = ()  # by restart that reached the goal
    most_epochs: int = 0  # the maximum over restarts
    best: float | None = None  # value of any epoch
    training_s: float | None = None  # to the goal: geometric mean over the restarts that reached it
    training_low_s: float | None = None
    training_high_s: float | None = None
    log_ratio: float | None = None  # epoch time against the reference, paired by epoch
    ratio_low: float | None = None
    ratio_high: float | None = None
    points: tuple[EpochPoint, ...] = ()
    is_same_work: bool = True  # same parameters as the reference
    why_not: str = ""  # reason if it did not train, or stopped training


class CellTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Training to the goal of a run in one cell."""

    cell: str
    is_net: bool = False  # epochs are compared without waits for a CPU that others held
    arms: tuple[ArmTraining, ...]
    # epochs that all trained arms with the reference's parameters completed, without the control:
    # those with equal values, and the others
    same_values: int = 0
    other_values: int = 0
