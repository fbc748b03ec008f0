"""How far a run is, as `envcompare status` says it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.run_folder.lock import Owner
from envcompare.run_folder.records import SCHEMA

RunState = Literal["going-on", "interrupted", "ended"]
CellProgress = Literal[
    "not-begun", "going-on", "interrupted", "ok", "failed", "timeout", "skipped", "unreachable"
]


class ArmProgress(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in a cell: its ratio to the reference so far, as log ratios; null while unknown."""

    arm: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cell: its state, what is measured of it, and what its budget has left."""

    cell: str
    host: str
    state: CellProgress
    reason: str = ""
    restarts: Annotated[int, Meta(description="or processes of a plain command")] = 0
    is_program: Annotated[bool, Meta(description="a plain command")] = False
    budget_left_s: Annotated[
        float | None, Meta(description="at most, for the timing; null once the cell has ended")
    ] = None
    arms: tuple[ArmProgress, ...] = ()


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A run: whether a process writes into its folder now, and how far each cell is."""

    run_id: str
    state: RunState
    owner: Annotated[Owner | None, Meta(description="the process that measures")] = None
    budget_s: float
    cells: tuple[CellStatus, ...]
    failures: Annotated[
        tuple[str, ...], Meta(description="of hosts and environments, one sentence each")
    ] = ()
    schema: Literal[2] = SCHEMA
