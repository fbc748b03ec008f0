"""A run to be carried out, the record of what happens to it, and the threads of its hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Plan
from envcompare.console import Display
from envcompare.errors import EnvcompareError, Phase
from envcompare.interrupt import Interruption
from envcompare.measure.context import Values, failure_of
from envcompare.run_folder.records import CellState, Event, EventKind, Failure
from envcompare.run_folder.results import RunFolder
from envcompare.transport.hosts import HostSpec

_MAX_HOSTS_AT_ONCE = 8


@contextmanager
def hosts_at_once(display: Display) -> Iterator[ThreadPoolExecutor]:
    """Give the threads in which hosts are worked at, while their progress is shown."""
    with display.showing_progress(), ThreadPoolExecutor(_MAX_HOSTS_AT_ONCE) as pool:
        yield pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be carried out."""

    folder: RunFolder
    plan: Plan
    experiment: Experiment
    hosts: tuple[HostSpec, ...]
    display: Display
    interruption: Interruption = field(default_factory=Interruption)

    def note(  # noqa: PLR0913 — each is a part of the event
        self,
        what: EventKind,
        *,
        host: str = "",
        cell: str = "",
        arm: str = "",
        text: str = "",
        state: CellState | None = None,
        values: Values | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Record an event; without a host, a cell or an arm it is about all of them."""
        event = Event(
            t=time.time(),
            what=what,
            host=host,
            cell=cell,
            arm=arm,
            text=text,
            state=state,
            values=values or {},
            failure=failure,
        )
        self.folder.append_event(event)

    def fail(  # noqa: PLR0913 — as in `note`
        self,
        what: EventKind,
        error: EnvcompareError,
        *,
        phase: Phase,
        host: str,
        cell: str = "",
        arm: str = "",
    ) -> None:
        """Record a failure and show its three sentences; a workload names its phase itself."""
        failure = failure_of(error, phase)
        self.note(what, host=host, cell=cell, arm=arm, text=error.brief, failure=failure)
        self.display.error(error)

    def check_interruption(self) -> None:
        """Raise InterruptedRunError when the user asked to stop."""
        self.interruption.check()
