"""What a run says of batches as types: throughput by size, the knee, and what fits."""

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
