"""What a pass needs to know about its cell, and where it writes what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from envcompare.command import CommandResult
from envcompare.errors import InterruptedRunError, WorkloadError
from envcompare.interrupt import Interruption
from envcompare.measure.stabilising import Variables, stable_variables
from envcompare.measure.worker import LaunchSpec, Worker
from envcompare.run_folder.records import (
    Design,
    Event,
    EventKind,
    Failure,
    FingerprintValue,
    IdentityChange,
    Sample,
    Scalar,
    Taken,
)
from envcompare.stats.intervals import Interval

_ANSWERING: Final = ("import", "data", "setup", "step")  # phases that a worker outlives
Values = dict[str, Scalar]
Facts = dict[str, FingerprintValue]


class Launch(Protocol):
    """Starts the worker of an arm, with these variables beside its own."""

    def __call__(self, arm: str, variables: Variables = ()) -> Worker:
        """Start it without waiting."""
        ...


class Recorder(Protocol):
    """Takes what a pass finds and keeps it at once."""

    def sample(self, sample: Sample) -> None:
        """Keep one measurement."""
        ...

    def event(self, event: Event) -> None:
        """Keep one event."""
        ...

    def fingerprint(self, arm: str, found: Facts, *, taken: Taken) -> tuple[IdentityChange, ...]:
        """Keep what a worker found around itself; a later one takes the place of an earlier.

        The first part of a resumed run keeps its own; the software that differs from it is
        returned.
        """
        ...

    def progress(self, intervals: dict[str, Interval | None], bench: Bench) -> None:
        """Show how far the cell is: the live intervals and the time left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One cell made ready: who takes part, how a worker of an arm is launched, and the rules."""

    cell: str
    host: str
    arms: tuple[str, ...]  # all that are usable here, reference and control among them
    reference: str
    control: str
    launch: Launch
    spec: LaunchSpec
    design: Design
    seed: int
    comparisons: int
    recorder: Recorder
    on_host: Callable[[str], CommandResult]  # runs a fixed script of sh on the host itself
    interruption: Interruption
    deadline: float  # time.monotonic() at which the budget of the cell is spent
    waited_s: float = 0.0  # for a quiet machine, before an interruption

    @property
    def remaining_s(self) -> float:
        """Return the seconds left of the budget; negative when it is overspent."""
        return self.deadline - time.monotonic()

    def variables(self, restart: int) -> Variables:
        """Return the variables that every worker of a restart is started with."""
        return stable_variables(self.seed, self.cell, restart) if self.design.stabilise else ()

    def check_interruption(self) -> None:
        """Raise InterruptedRunError when the user asked to stop."""
        if self.interruption.is_requested:
            raise InterruptedRunError(
                "interrupted", hint="resume with `envcompare run --resume` and the run folder"
            )

    def note(
        self,
        what: EventKind,
        *,
        arm: str = "",
        text: str = "",
        values: Values | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Record an event of this cell."""
        event = Event(
            t=time.time(),
            what=what,
            host=self.host,
            cell=self.cell,
            arm=arm,
            text=text,
            values=values or {},
            failure=failure,
        )
        self.recorder.event(event)

    def arm_failed(self, arm: str, failure: Failure) -> None:
        """Record that an arm failed in this cell."""
        self.note("arm-failed", arm=arm, text=failure.brief, failure=failure)


def keep_surroundings(bench: Bench, worker: Worker, error: WorkloadError) -> None:
    """Keep what is around a worker that has failed and still answers: it may say why."""
    if error.phase not in _ANSWERING:
        return
    worker.send_facts()
    with suppress(WorkloadError):
        found = worker.await_facts()
        bench.recorder.fingerprint(worker.arm, found.fingerprint, taken="start")


def failure_of(error: WorkloadError) -> Failure:
    """Return the record of a fault inside an arm."""
    return Failure(
        phase=error.phase,
        brief=error.brief,
        details=error.details,
        hint=error.hint,
        exit_code=error.worker_exit_code,
        log=error.log,
    )
