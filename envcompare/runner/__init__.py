"""Execute the plan over hosts and cells, record what happens, resume.

This file has a run in progress, and the record of what happens to it and to its cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import msgspec
from typing_extensions import Unpack

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Cell, Plan
from envcompare.console import Display
from envcompare.errors import EnvcompareError, Phase
from envcompare.fingerprint.comparing import changed_software, compare_fingerprints
from envcompare.fingerprint.evidence import entries
from envcompare.hosts import HostSession
from envcompare.interrupt import Interruption
from envcompare.measure import Facts
from envcompare.measure.cell import CellContext, failure_of
from envcompare.run_folder.records import (
    EnergyBlock,
    Epoch,
    Event,
    EventKind,
    FactDifference,
    FingerprintRecord,
    FingerprintValue,
    GpuReading,
    IdentityChange,
    OfRestart,
    PlacedEventParts,
    Sample,
    Scalar,
    Taken,
    event_now,
)
from envcompare.run_folder.results import RunFolder
from envcompare.stats.intervals import Interval
from envcompare.stats.typical import MIN_RESTARTS
from envcompare.text import counted, masked
from envcompare.transport.hosts import HostSpec

_FACTOR = 10.0  # from this change on it is shown as a factor, as in the report
_LARGEST_LOG = 50.0  # no real ratio is larger
_UNSEEN = "ended before its software could be compared with that of the first part"
# shown at once, in addition to failures and how the reference starts generations
_SAID = ("caution", "waited", "calibrated", "batch-fits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to execute, and the record of what happens to it."""

    folder: RunFolder
    plan: Plan
    experiment: Experiment
    hosts: tuple[HostSpec, ...]
    display: Display
    retries_failed: bool = False  # retry failed parts once
    session: int | None = None  # from 1, if the run has several sessions
    interruption: Interruption = field(default_factory=Interruption)

    def note(self, what: EventKind, **parts: Unpack[PlacedEventParts]) -> None:
        """Record an event, with secrets masked in its text."""
        event = event_now(what, **parts)
        self.folder.append_event(msgspec.structs.replace(event, text=masked(event.text)))

    def fail(  # noqa: PLR0913 — each is a part of the event
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


@dataclass(slots=True, kw_only=True)
class CellRecorder:
    """Records what happens to one cell, and shows the important parts.

    Samples of a resumed arm are held back until its software is seen to match the first part.
    """

    job: Job
    cell: Cell
    session: HostSession
    reference: str
    _part: int  # how often the cell was started before
    _first: dict[str, FingerprintRecord]  # of the first part, by arm
    _held: dict[str, list[Sample]]  # by arm, until its software is known to match

    @classmethod
    def of(
        cls, job: Job, cell: Cell, session: HostSession, *, prior_events: tuple[Event, ...]
    ) -> CellRecorder:
        """Start with the results of an earlier part of the run."""
        records = job.folder.read_fingerprints() if prior_events else ()
        first = {record.arm: record for record in records if record.cell == cell.id}
        is_program = cell.workload.program is not None  # processes wait for it themselves
        taken = () if is_program else (arm for arm, it in first.items() if it.taken == "step")
        return cls(
            job=job,
            cell=cell,
            session=session,
            reference=job.plan.of(cell).reference,
            _part=sum(event.what == "cell-started" for event in prior_events),
            _first=first,
            _held={arm: [] for arm in taken},
        )

    def sample(self, sample: Sample) -> None:
        """Record a sample; for a resumed arm, once its software is known to match.

        The energy pass, training and the profiles take no fingerprint.
        """
        if isinstance(sample, OfRestart):
            sample = msgspec.structs.replace(sample, part=self._part)
        held = (
            None
            if isinstance(sample, GpuReading | EnergyBlock | Epoch)
            else self._held.get(sample.arm)
        )
        if held is None:
            self.job.folder.append_sample(sample)
        else:
            held.append(sample)

    def event(self, event: Event) -> None:
        """Record an event; failures, cautions and waits are also shown at once."""
        self.job.folder.append_event(event)
        is_said = event.what in _SAID or (event.what == "arm-ready" and event.arm == self.reference)
        said = event.failure.brief if event.failure else event.text * is_said
        if said:
            self.job.display.say(f"  {event.cell}: {said}")

    def fingerprint(self, arm: str, facts: Facts, *, taken: Taken) -> tuple[IdentityChange, ...]:
        """Record the facts that a worker found, with the proof of its stack.

        The first part of a resumed run keeps its own facts. Those of a later part are compared with
        them, and recorded in addition if they differ. Returns the differences in software.
        """
        record = self.session.fingerprint(arm, self.cell.id, facts, taken=taken)
        first = self._first.get(arm)
        if first is None:
            self.job.folder.write_fingerprint(record)
            return ()
        if (first.taken, taken) == ("start", "step") or self._differs(first, record):
            self.job.folder.write_fingerprint(record, part=self._part)
        changed = tuple(map(_change, changed_software(first, record)))
        if changed and not self.job.experiment.allow_mismatch:
            self._held.get(arm, []).clear()
        elif taken == "step":
            for sample in self._held.pop(arm, []):
                self.job.folder.append_sample(sample)
        return changed

    def _differs(self, first: FingerprintRecord, later: FingerprintRecord) -> bool:
        """Tell whether two fingerprints of an arm differ in more than names and random seeds."""
        seeds = {"env.PYTHONHASHSEED"} if self.job.plan.design.stabilise else set()
        differences = compare_fingerprints(first, later)
        return any(
            difference.fact_class != "identity" and difference.key not in seeds
            for difference in differences
        )

    def note_lost(self, context: CellContext) -> None:
        """Note the lost samples of arms that ended before their software was known to match."""
        what = "the run" if self.job.interruption.is_requested else "its worker"
        for arm, samples in self._held.items():
            if samples:
                text = f"{len(samples)} samples: {what} {_UNSEEN}"
                context.note("round-dropped", arm=arm, text=text)

    def progress(self, intervals: dict[str, Interval | None], context: CellContext) -> None:
        """Show the progress of the cell: the current intervals and the time left."""
        left_s = max(0.0, context.remaining_s)
        restarts = max((one.restarts for one in intervals.values() if one), default=0)
        is_program = self.cell.workload.program is not None
        words = ("process", "processes") if is_program else ("restart",)
        known = ", ".join(filter(None, (counted(restarts, *words), live_text(intervals))))
        text = f"{known}; at most {left_s:.0f} s left"
        whole_s = context.design.budget_s + context.budget.given_s
        done = 1 - left_s / max(left_s, whole_s)  # a resumption loses time given by others
        self.job.display.cell(self.cell.id, done=done, text=text)


def live_text(intervals: dict[str, Interval | None]) -> str:
    """Return the current estimates of a cell's arms in words."""
    return ", ".join(f"{arm} {_percent(interval)}" for arm, interval in intervals.items())


def _percent(interval: Interval | None) -> str:
    if interval is None or interval.restarts < MIN_RESTARTS:
        return "not yet known"
    change = math.expm1(min(interval.mean, _LARGEST_LOG))
    text = f"×{1 + change:.3g}" if change >= _FACTOR else f"{change:+.1%}"
    if interval.half_width > 1:  # including infinite ones: nothing is known
        return text
    return f"{text} ± {interval.half_width:.1%}"


def _change(difference: FactDifference) -> IdentityChange:
    """Return the change between two fingerprints of an arm; for lists, the missing entries."""
    return IdentityChange(
        host=difference.host,
        arm=difference.arm,
        key=difference.key,
        before=_scalar(difference.reference),
        after=_scalar(difference.value),
    )


def _scalar(value: FingerprintValue) -> Scalar:
    return ", ".join(entries(value)) if isinstance(value, tuple) else value
