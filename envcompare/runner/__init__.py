"""Execute the plan over hosts and cells, record what happens, resume.

This file has a run in progress, and the record of what happens to it and to its cells.

The search for the largest batch runs before its cells, once per host, in every arm: a program
inside the arm tries each size in a separate process.
"""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec
from typing_extensions import Unpack

from envcompare.config.experiment import BATCH, CPU_MEMORY_MIB, BatchSearch, Experiment
from envcompare.config.plan import Cell, Plan
from envcompare.console import Display
from envcompare.errors import (
    CommandTimeoutError,
    EnvcompareError,
    Interruption,
    OutputLimitError,
    Phase,
    StillRunningError,
    WorkloadError,
)
from envcompare.fingerprint.comparing import changed_software, compare_fingerprints
from envcompare.fingerprint.evidence import entries
from envcompare.hosts import HostSession
from envcompare.measure import Amount, Facts, LaunchSpec
from envcompare.measure.cell import CellContext, failure_of
from envcompare.run_folder.records import (
    CellState,
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
    Startup,
    Taken,
    event_now,
)
from envcompare.run_folder.results import RunFolder
from envcompare.stack import Mount
from envcompare.stats.intervals import Interval
from envcompare.stats.typical import MIN_RESTARTS
from envcompare.text import Command, CommandResult, counted, masked
from envcompare.transport import read_json
from envcompare.transport.hosts import HostSpec

TICK_S = 0.2  # maximum delay in noticing Ctrl-C
_FACTOR = 10.0  # from this change on it is shown as a factor, as in the report
_LARGEST_LOG = 50.0  # no real ratio is larger
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
    ended: set[str] = field(default_factory=set)  # cells, of this session if there are several

    def end_cell(self, cell: Cell, state: CellState, text: str) -> None:
        """Record that a cell has ended, and show how many have."""
        self.note("cell-ended", host=cell.host, cell=cell.id, state=state, text=text)
        self.ended.add(cell.id)
        said = f"{state}, {text}" if text else state
        every = len(self.plan.cells)
        if every > 1:
            said += f"; {len(self.ended)} of {every} cells"
        self.display.cell_done(cell.id, said)

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
class KernelTurns:
    """Keep everything that would disturb a measurement off its kernel.

    Hosts may be containers of one machine: on a kernel, either several hosts are prepared at once,
    or a single one is measured. It is identified by its boot ID, or by another unique name.
    """

    here: str  # the kernel of this machine, which sends and builds for all hosts
    interruption: Interruption
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _prepared_on: Counter[str] = field(default_factory=Counter)
    _measured_on: set[str] = field(default_factory=set)

    @contextmanager
    def preparing(self, kernel: str) -> Iterator[None]:
        """Wait until nothing is measured on a kernel, and prevent measuring there.

        Raises InterruptedRunError if the user stops meanwhile.
        """
        with self._changed:
            while kernel in self._measured_on:
                self._wait()
            self._prepared_on[kernel] += 1
        try:
            yield
        finally:
            with self._changed:
                self._prepared_on[kernel] -= 1
                self._changed.notify_all()

    @contextmanager
    def measuring(self, kernel: str) -> Iterator[None]:
        """Wait until a kernel has nothing else to do for this run, and keep it free.

        This machine controls measurements elsewhere, and is measured only if there are none. The
        caller must not be preparing, or it would wait for itself. Raises as `preparing`.
        """
        with self._changed:
            while self._is_disturbed(kernel):
                self._wait()
            self._measured_on.add(kernel)
        try:
            yield
        finally:
            with self._changed:
                self._measured_on.remove(kernel)
                self._changed.notify_all()

    def _is_disturbed(self, kernel: str) -> bool:
        alone = {kernel, self.here} if kernel != self.here else self._measured_on
        return bool(self._prepared_on[kernel] or self._measured_on & alone)

    def _wait(self) -> None:
        self._changed.wait(TICK_S)
        self.interruption.check()


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
    _alike: set[str] = field(default_factory=set)  # arms whose workers began as before

    @classmethod
    def of(
        cls, job: Job, cell: Cell, session: HostSession, *, prior_events: tuple[Event, ...]
    ) -> CellRecorder:
        """Start with the results of an earlier part of the run."""
        records = job.folder.read_fingerprints() if prior_events else ()
        first = {record.arm: record for record in records if record.cell == cell.id}
        is_program = cell.workload.whole is not None  # processes wait for it themselves
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
        # after the timing no worker is looked at once it has taken steps
        is_launch = isinstance(sample, Startup) and sample.page_cache == "warm"
        if isinstance(sample, GpuReading | EnergyBlock | Epoch):
            held = None
        else:
            held = None if is_launch and sample.arm in self._alike else self._held.get(sample.arm)
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
        # What is seen after steps is more than at the start, so it is kept even where nothing
        # differs.
        if (first.taken, taken) == ("start", "step") or self._differs(first, record):
            self.job.folder.write_fingerprint(record, part=self._part)
        changed = tuple(map(_change, changed_software(first, record)))
        if changed and not self.job.experiment.allow_mismatch:
            # Times that were measured before the other software could be seen do not count.
            self._held.get(arm, []).clear()
        elif taken == "start":
            self._alike.add(arm)
        else:
            for sample in self._held.pop(arm, []):
                self.job.folder.append_sample(sample)
        return changed

    def _differs(self, first: FingerprintRecord, later: FingerprintRecord) -> bool:
        """Tell whether two fingerprints of an arm differ in more than names and random seeds."""
        # Each restart draws a new hash seed, which is no other environment.
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
                text = (
                    f"{counted(len(samples), 'sample')}: {what} ended before its software could be "
                    "compared with that of the first part"
                )
                context.note("round-dropped", arm=arm, text=text)

    def progress(self, intervals: dict[str, Interval | None], context: CellContext) -> None:
        """Show the progress of the cell: the current intervals and the time left."""
        left_s = max(0.0, context.remaining_s)
        restarts = max(
            (interval.restarts for interval in intervals.values() if interval), default=0
        )
        is_program = self.cell.workload.whole is not None
        words = ("process", "processes") if is_program else ("restart",)
        known = ", ".join(filter(None, (counted(restarts, *words), live_text(intervals))))
        text = f"{known}; at most {left_s:.0f} s left"
        whole_s = context.design.budget_s + context.budget.given_s
        # A resumption loses the time that other cells gave, so more may be left than the whole.
        done = 1 - left_s / max(left_s, whole_s)
        self.job.display.cell(self.cell.id, done=done, text=text)


def live_text(intervals: dict[str, Interval | None]) -> str:
    """Return the current estimates of a cell's arms in words."""
    return ", ".join(f"{arm} {_percent(interval)}" for arm, interval in intervals.items())


def _percent(interval: Interval | None) -> str:
    if interval is None or interval.restarts < MIN_RESTARTS:
        return "not yet known"
    change = math.expm1(min(interval.mean, _LARGEST_LOG))
    size = f"{100 * abs(change):.1f}"
    sign = "" if size == "0.0" else "+" if change > 0 else "−"
    text = f"×{1 + change:.3g}" if change >= _FACTOR else f"{sign}{size} %"
    # With a half-width above 1, or an infinite one, nothing is known.
    if interval.half_width > 1:
        return text
    return f"{text} ± {100 * interval.half_width:.1f} %"


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


_SEARCH_LIMIT_S = 1800.0
# Blocks from this size on are mapped alone, so that freed memory leaves no holes (mallopt(3)).
_SEARCH_VARIABLES = (("MALLOC_MMAP_THRESHOLD_", str(1 << 16)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeCheck:
    """Decides whether the batch of a cell in a search is measured."""

    search: BatchSearch
    cell: Cell
    plan: Plan
    folder: RunFolder
    session: HostSession
    mounts: tuple[Mount, ...]

    def why_not(self, context: CellContext) -> str:
        """Return why the batch is not measured; empty if it is. Searches if necessary.

        A size that does not fit in one arm is measured in none, since nothing could be compared.
        Raises WorkloadError if no size is left, or if nothing is known of any arm.
        """
        known = self._known()
        fits = {arm: known.get(arm) for arm in context.arms if arm != context.control}
        for arm, values in fits.items():
            if values is None:
                context.check_interruption()
                fits[arm] = self._search(context, arm)
        answered = {arm: values for arm, values in fits.items() if values is not None}
        if not any("largest" in values for values in answered.values()):
            reasons = [f"{arm}: {values.get('reason', '')}" for arm, values in answered.items()]
            raise WorkloadError(
                "the largest batch is not known in any arm",
                details="; ".join(reasons),
                hint="run the workload without --search: its log then has the whole error",
                phase="setup",
            )
        if why_none := _first_reason(answered, min(self._sizes)):
            raise WorkloadError(
                f"no size can be measured: {why_none}",
                hint="name smaller sizes, as in --search batch=1-64, or a higher limit, memory=MIB",
                phase="setup",
            )
        return _first_reason(answered, int(str(dict(self.cell.parameters)[BATCH])))

    @property
    def _sizes(self) -> list[int]:
        return [int(str(size)) for size in dict(self.cell.workload.parameters)[BATCH]]

    def _known(self) -> dict[str, Mapping[str, Scalar]]:
        """Return the sizes known for this workload, by arm.

        A search that failed before the run was resumed is repeated.
        """
        alike = {cell.id for cell in self.plan.cells if _work(cell) == _work(self.cell)}
        events = self.folder.read_events().events
        begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
        return {
            e.arm: e.values
            for i, e in enumerate(events)
            if e.what == "batch-fits" and e.cell in alike and (i >= begun or "largest" in e.values)
        }

    def _search(self, context: CellContext, arm: str) -> Mapping[str, Scalar]:
        limit = self.search.memory_mib
        ready = self.session.arms[arm]
        command = _fitting_command(
            ready.prepared.python,
            self.session.workloads,
            context.spec_of(arm),
            sizes=self._sizes,
            # A GPU has a limit by itself: its memory.
            memory_mib={"cpu": limit or CPU_MEMORY_MIB, "cuda": limit or 0},
            arms=len(context.arms),
        )
        inside = partial(
            self.session.run_inside,
            ready,
            mounts=self.mounts,
            timeout_s=_SEARCH_LIMIT_S,
            interruption=context.interruption,
        )
        fit = search_fit(command, inside)
        # A search that was killed by the user has no result.
        context.check_interruption()
        if isinstance(fit, Fit):
            values = fit.values()
            tries = counted(fit.tries, "try", "tries")
            text = f"the largest batch that fits in {arm}: {fit.largest or 'none'} ({tries})"
        else:
            values, text = {"reason": fit}, f"the largest batch in {arm} is not known: {fit}"
        context.note("batch-fits", arm=arm, text=text, values=values)
        return values


def _work(cell: Cell) -> tuple[object, ...]:
    """Return the common key of the cells of a search."""
    others = tuple(parameter for parameter in cell.parameters if parameter[0] != BATCH)
    return cell.host, cell.workload.name, cell.within, others


def _first_reason(fits: Mapping[str, Mapping[str, Scalar]], batch: int) -> str:
    for arm, values in fits.items():
        largest, measurable = values.get("largest"), values.get("measurable")
        if isinstance(largest, int) and batch > largest:
            why = f"the largest that fits is {largest}" if largest else "no size does"
            return f"a batch of {batch} does not fit in {arm}: {why}"
        if isinstance(measurable, int) and batch > measurable:
            is_gpu = values.get("device") == "cuda"
            where = "the GPU" if is_gpu else "the memory that the host has left"
            return (
                f"a batch of {batch} does not fit into {where} once for each arm at the same time"
            )
    return ""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The program's result: 0 if not even the first size fits.

    `measurable` is the largest requested size of which every arm can hold one at a time.
    """

    largest: Amount
    measurable: Amount
    beyond: Amount | None  # the smallest tried that does not fit
    limited_by: Literal["memory", "workload", "cap"]
    memory_mib: Amount  # of a process, or PyTorch's limit on a GPU; 0 is all of it
    device: Literal["cpu", "cuda"]
    tries: Amount
    said: str = ""  # the workload's message on what it does not take

    def values(self) -> dict[str, Scalar]:
        """Return the values as those of an event."""
        return msgspec.structs.asdict(self)


def _fitting_command(  # noqa: PLR0913 — the sizes to try, and their limits
    interpreter: str,
    workloads: str,
    spec: LaunchSpec,
    *,
    sizes: Sequence[int],
    memory_mib: dict[str, int],
    arms: int,
) -> Command:
    """Return the search command; `memory_mib` is by device (0: no limit), `arms` run at once."""
    asked = {
        "workload": spec.workload,
        "params": {name: value for name, value in spec.params.items() if name != "batch"},
        "data": spec.data or None,
        "threads": spec.threads,
        "cpus": spec.cpus,
        "device": spec.device,
        "sizes": sizes,
        "memory_mib": memory_mib,
        "beside": arms,
    }
    argv = (interpreter, "-B", f"{workloads}/harness/fitting.py", json.dumps(asked))
    return Command(argv=argv, env=_SEARCH_VARIABLES)


def search_fit(command: Command, run_inside: Callable[[Command], CommandResult]) -> Fit | str:
    """Return what fits, or why it is unknown. Raises TransportError if the host is lost."""
    try:
        done = run_inside(command)
    except CommandTimeoutError:
        return f"the search did not finish within {_SEARCH_LIMIT_S:.0f} s"
    except (OutputLimitError, StillRunningError) as error:
        return f"{error.brief}: {error.details}"
    said = done.stdout.strip().splitlines()
    if not done.succeeded or not said:
        return done.tail(1) or f"the search ended with exit code {done.exit_code}"
    try:
        fit = read_json(said[-1], Fit)
    except msgspec.MsgspecError as error:
        return f"the answer of the search is not understood: {error}"
    if fit.limited_by != "workload":
        return fit
    why = done.tail(1) or "the workload did not say why"
    return msgspec.structs.replace(fit, said=why) if fit.largest else why
