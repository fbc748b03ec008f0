"""Where the time of a step goes by phase and operator, and which of them differ, as types."""

from __future__ import annotations

from typing import Literal

import msgspec

from envcompare.run_folder.records import StepPhase

PartKind = Literal["step", "phase", "operator", "others"]


class PartDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a marked step in an arm and in the reference; seconds are of one step.

    `others` is the step without the operators that differ. An operator without a name is what no
    operator of its phase took: Python and PyTorch's dispatch.
    """

    kind: PartKind
    phase: StepPhase | None = None
    operator: str = ""
    share: float  # of the step of the reference, 0 to 1
    reference_s: float
    log_ratio: float
    low: float | None = None
    high: float | None = None
    difference_s: float  # what the ratio makes of the time of the reference
    difference_low_s: float | None = None
    difference_high_s: float | None = None
    is_distinguishable: bool = False  # the interval excludes 0


class LoneOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator that only one of the two arms runs; `share` and `time_s` are of its step."""

    phase: StepPhase
    operator: str
    arm: str
    share: float  # 0 to 1
    time_s: float


class ArmPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step in one arm: the step, its phases, operators by size, and the others.

    The intervals of phases and operators hold together at 95 %; those of the step and of the others
    hold at the same level each.
    """

    arm: str
    rounds: int
    restarts: int
    level: float
    tested: int  # phases and operators that hold 1 % of the step
    parts: tuple[PartDifference, ...]
    most_log_ratio: float | None = None  # the far end of the intervals of operators that do not
    # differ: no operator was seen to differ by more
    lone: tuple[LoneOperator, ...] = ()  # of 1 % of a step and more, the largest first


class CellPhases(msgspec.Struct, frozen=True, kw_only=True):
    """What the marked rounds of a cell tell, or why nothing was marked."""

    cell: str
    reference: str
    reason: str = ""
    arms: tuple[ArmPhases, ...] = ()
