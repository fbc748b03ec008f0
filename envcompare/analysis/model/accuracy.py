"""The way to a goal as types: epochs and seconds of each arm, and what it had reached by then."""

from __future__ import annotations

import msgspec


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
