"""The cell that the passes measure: its arms, its rules, and who keeps what is found."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
from typing_extensions import Unpack

from envcompare.command import CommandResult
from envcompare.config.plan import derive_seed
from envcompare.errors import EnvcompareError, InterruptedRunError, Phase, WorkloadError
from envcompare.interrupt import Interruption
from envcompare.measure.replies import LaunchSpec
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import (
    Design,
    Event,
    EventKind,
    EventParts,
    Failure,
    FingerprintValue,
    IdentityChange,
    Sample,
    Scalar,
    Taken,
    event_now,
)
from envcompare.stats.intervals import Interval
from envcompare.stats.typical import Spread

_ANSWERING: Final = ("import", "data", "setup", "step")  # phases that a worker outlives
# What glibc frees goes back above two thresholds, which adapt to what a process happened to free
# first (mallopt(3)); two processes of one program then differ in page faults for their whole life.
# Fixed ones end the adapting. Where the C library is another, the variables do nothing.
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most glibc takes (DEFAULT_MMAP_THRESHOLD_MAX on 64 bits)
_TRIM_THRESHOLD_BYTES = 1 << 30

Values = dict[str, Scalar]
Facts = dict[str, FingerprintValue]
Variables = tuple[tuple[str, str], ...]
"""Environment variables that a worker is started with."""
Launch = Callable[[str, Variables], Worker]
"""Starts the worker of an arm without waiting, with these variables beside its own."""


class Recorder(Protocol):
    """Takes what a pass finds and keeps it at once."""

    def sample(self, sample: Sample) -> None:
        """Keep one measurement."""
        ...

    def event(self, event: Event) -> None:
        """Keep one event."""
        ...

    def fingerprint(self, arm: str, facts: Facts, *, taken: Taken) -> tuple[IdentityChange, ...]:
        """Keep what a worker found around itself; a later one takes the place of an earlier.

        The first part of a resumed run keeps its own; the software that differs from it is
        returned.
        """
        ...

    def progress(self, intervals: dict[str, Interval | None], context: CellContext) -> None:
        """Show how far the cell is: the live intervals and the time left."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CellContext:
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
    has_gpu: bool = False  # which the workload is to use
    noise: Spread = field(default_factory=Spread)  # how far restarts are expected to scatter here

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

    def note(self, what: EventKind, **parts: Unpack[EventParts]) -> None:
        """Record an event of this cell."""
        self.recorder.event(event_now(what, host=self.host, cell=self.cell, **parts))


def stable_variables(seed: int, cell: str, restart: int) -> Variables:
    """Return what fixes the allocator, and a hash seed that all arms of a restart share.

    The hash seed is drawn anew for each restart, so that no result rests on one order of a set.
    """
    hash_seed = derive_seed(seed, "hash seed", cell, restart) % 2**32
    return (
        ("MALLOC_MMAP_THRESHOLD_", str(_MMAP_THRESHOLD_BYTES)),
        ("MALLOC_TRIM_THRESHOLD_", str(_TRIM_THRESHOLD_BYTES)),
        ("PYTHONHASHSEED", str(hash_seed)),
    )


def keep_surroundings(context: CellContext, worker: Worker, error: WorkloadError) -> None:
    """Keep what is around a worker that has failed and still answers: it may say why."""
    if error.phase not in _ANSWERING:
        return
    worker.send_facts()
    with suppress(WorkloadError):
        answer = worker.await_facts()
        context.recorder.fingerprint(worker.arm, answer.fingerprint, taken="start")


def failure_of(error: EnvcompareError, phase: Phase = "process") -> Failure:
    """Return the record of an error; a fault inside an arm names its phase itself."""
    failure = Failure(phase=phase, brief=error.brief, details=error.details, hint=error.hint)
    if not isinstance(error, WorkloadError):
        return failure
    return msgspec.structs.replace(
        failure, phase=error.phase, exit_code=error.worker_exit_code, log=error.log
    )
