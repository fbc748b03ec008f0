"""Report the progress of a run from its folder alone, running or not."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.analysis.compare import compare_files
from envcompare.analysis.model.comparison import CellSummary, Comparison, RunComparison
from envcompare.analysis.timing.runfiles import RunFiles, read_files
from envcompare.run_folder import Owner, owner_of
from envcompare.run_folder.history import elapsed_s
from envcompare.run_folder.records import SCHEMA, Event
from envcompare.run_folder.results import RunFolder

_OPEN = ("not-begun", "going-on", "interrupted")
_STANDING_STILL = ("turn", "stopped", "interrupted", "cell-ended")  # others are served next
RunState = Literal["going-on", "interrupted", "ended"]
CellProgress = Literal[
    "not-begun", "going-on", "interrupted", "ok", "failed", "timeout", "skipped", "unreachable"
]


class ArmProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of an arm in a cell: its log ratio so far; null while unknown."""

    arm: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


class CellStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a cell: its state, its measurements, and its remaining budget."""

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
    """The progress of a run: whether a process is writing to its folder, and each cell."""

    run_id: str
    state: RunState
    owner: Annotated[Owner | None, Meta(description="the process that measures")] = None
    budget_s: float
    cells: tuple[CellStatus, ...]
    failures: Annotated[
        tuple[str, ...], Meta(description="of hosts and environments, one sentence each")
    ] = ()
    schema: Literal[2] = SCHEMA


def status_of(folder: RunFolder) -> RunStatus:
    """Return the progress of a run; raises RunFolderError if its folder cannot be read."""
    owner = owner_of(folder.path)
    if owner is not None and owner.command != "run":
        owner = None
    read = read_files(folder)
    comparison = compare_files(read)
    state: RunState = "going-on" if owner else "ended" if read.is_complete else "interrupted"
    now = time.time() if owner else None
    return RunStatus(
        run_id=comparison.run_id,
        state=state,
        owner=owner,
        budget_s=comparison.budget_s,
        cells=tuple(_cell(read, comparison, cell, now=now) for cell in comparison.cells),
        failures=tuple(_failures(read)),
    )


def _cell(
    read: RunFiles, comparison: RunComparison, cell: CellSummary, *, now: float | None
) -> CellStatus:
    """Return the progress of a cell; `now` is None if nothing is measuring."""
    events = tuple(event for event in read.events if event.cell == cell.id)
    state, reason = _state(events, is_going_on=now is not None)
    left_s = max(0.0, comparison.budget_s - _spent_s(events, now))
    return CellStatus(
        cell=cell.id,
        host=cell.host,
        state=state,
        reason=reason,
        restarts=cell.processes or cell.restarts,
        is_program=cell.is_program,
        # beyond its own budget, a cell uses what others have left
        budget_left_s=left_s or None if state in _OPEN else None,
        arms=tuple(_arms(comparison, cell.id)),
    )


def _state(events: tuple[Event, ...], *, is_going_on: bool) -> tuple[CellProgress, str]:
    """Return a cell's state and reason, by the last event that starts or ends it."""
    turning = ("cell-started", "cell-ended", "interrupted")
    last = next((event for event in reversed(events) if event.what in turning), None)
    if last is None:
        return "not-begun", ""
    if last.what == "cell-ended":
        return last.state or "ok", last.text
    if last.what == "cell-started" and is_going_on:
        return "going-on", ""
    return "interrupted", last.text


def _spent_s(events: tuple[Event, ...], now: float | None) -> float:
    """Return the seconds a cell has used, including those since its last event while it runs."""
    spent_s = elapsed_s(events)
    if now is None or not events or events[-1].what in _STANDING_STILL:
        return spent_s
    return spent_s + max(0.0, now - events[-1].t)


def _arms(comparison: RunComparison, cell: str) -> list[ArmProgress]:
    return [
        _arm(one)
        for one in comparison.comparisons
        if one.cell == cell and one.outcome != "reference"
    ]


def _arm(comparison: Comparison) -> ArmProgress:
    primary = comparison.primary
    if primary is None:
        return ArmProgress(arm=comparison.arm)
    return ArmProgress(
        arm=comparison.arm, estimate=primary.log_ratio, low=primary.low, high=primary.high
    )


def _failures(read: RunFiles) -> list[str]:
    """Return the failures of hosts and environments; each cell reports its own failures."""
    return [
        f"{' '.join(filter(None, (event.host, event.arm)))}: {event.failure.brief}"
        for event in read.standing
        if event.failure is not None and not event.cell
    ]
