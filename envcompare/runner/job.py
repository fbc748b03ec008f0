"""A run to be carried out, and the record of what happens to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Plan
from envcompare.console import Display
from envcompare.errors import EnvcompareError, Phase, WorkloadError
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import CellState, Event, EventKind, Failure, Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.transport.hosts import HostSpec

MAX_HOSTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What an event is about; an empty part means all of it."""

    host: str = ""
    cell: str = ""
    arm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be carried out."""

    folder: RunFolder
    plan: Plan
    experiment: Experiment
    hosts: tuple[HostSpec, ...]
    display: Display
    interruption: Interruption = field(default_factory=Interruption)

    def note(
        self,
        what: EventKind,
        where: Where,
        *,
        text: str = "",
        state: CellState | None = None,
        values: dict[str, Scalar] | None = None,
    ) -> None:
        """Record an event."""
        event = _event(what, where, text=text, state=state)
        self.folder.append_event(msgspec.structs.replace(event, values=values or {}))

    def fail(self, what: EventKind, where: Where, error: EnvcompareError, *, phase: Phase) -> None:
        """Record a failure and show its three sentences; a workload names its phase itself."""
        log = ""
        if isinstance(error, WorkloadError):
            phase, log = error.phase, error.log
        failure = Failure(
            phase=phase, brief=error.brief, details=error.details, hint=error.hint, log=log
        )
        self.folder.append_event(_event(what, where, text=error.brief, failure=failure))
        self.display.error(error)

    def check_interruption(self) -> None:
        """Raise InterruptedRunError when the user asked to stop."""
        self.interruption.check()


def _event(
    what: EventKind,
    where: Where,
    *,
    text: str,
    state: CellState | None = None,
    failure: Failure | None = None,
) -> Event:
    return Event(
        t=time.time(),
        what=what,
        host=where.host,
        cell=where.cell,
        arm=where.arm,
        text=text,
        state=state,
        failure=failure,
    )
