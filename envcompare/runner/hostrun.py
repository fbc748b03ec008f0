"""One host of a run: prepared, measured cell by cell, and resumed after a lost connection.

A lost host is reconnected with growing pauses. Its cells then continue as in a resumed run: samples
stay, and leftovers on the host are removed first.

Hosts may be containers of one machine. On a kernel, either several hosts are prepared at once, or a
single one is measured.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

from envcompare.config.plan import Cell
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    EnvcompareError,
    HostHeldError,
    InterruptedRunError,
    Interruption,
    Phase,
    StackError,
    TransportError,
    UnusableError,
    as_known,
    phase_of,
)
from envcompare.fingerprint.comparing import changes, refused
from envcompare.hosts import HostSession, keeper
from envcompare.hosts.folders import HostTeam, find_pipes
from envcompare.hosts.keeper import Asker, HostLock
from envcompare.hosts.opening import identify, note_differing_files, open_session
from envcompare.run_folder import since_session, standing, standing_samples
from envcompare.run_folder.records import ArmRecord, Design, Event, Sample, Scalar
from envcompare.run_folder.results import RunFolder
from envcompare.runner import Job
from envcompare.runner.cellrun import CellRun, run_cells, sharing
from envcompare.stack import Progress
from envcompare.transport.hosts import HostSpec

_MOST_LOSSES = 3
"""A host that is lost more often in one run is left out, since it would delay the others."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TICK_S = 0.2  # maximum delay in noticing Ctrl-C


@dataclass(slots=True, kw_only=True)
class KernelTurns:
    """Keep everything that would disturb a measurement off its kernel.

    A kernel is identified by its boot ID, or by another unique name.
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
        self._changed.wait(_TICK_S)
        self.interruption.check()


class _MissingArmError(EnvcompareError):
    """An environment that was usable is missing, perhaps for now, on a host that answers again."""


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached properties
class _Prior:
    """The content of the run folder for a host before measuring; read once, since it grows."""

    folder: RunFolder
    design: Design
    cells: frozenset[str]

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return tuple(e for e in self._all_events if e.cell in self.cells)

    @cached_property
    def session_events(self) -> tuple[Event, ...]:
        return tuple(e for e in since_session(self._all_events) if e.cell in self.cells)

    @cached_property
    def _all_events(self) -> tuple[Event, ...]:
        return self.folder.read_events().events

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        samples = (one for one in self.folder.read_samples().samples if one.cell in self.cells)
        return standing_samples(tuple(samples), self.design, self.events)


def open_host(job: Job, spec: HostSpec, turns: KernelTurns) -> HostRun | None:
    """Connect to a host while nothing is measured here; None if that failed and was recorded."""
    try:
        with turns.preparing(turns.here):
            session = open_session(spec, job.experiment, job.folder.run_id, job.interruption)
    except InterruptedRunError:
        return None
    except Exception as error:  # noqa: BLE001 — recorded; the failure of one host ends no other
        _fail_host(job, spec, error)
        return None
    return HostRun(job=job, session=session)


@dataclass(slots=True, kw_only=True)
class HostRun:
    """An open host, and the cells to measure on it once it is locked and ready."""

    job: Job
    session: HostSession
    others: tuple[HostRun, ...] = ()  # with ranks of its cells
    team: HostTeam | None = None
    _lock: HostLock = field(default_factory=HostLock)
    _losses: int = 0
    _ended: set[str] = field(default_factory=set)  # cells ended since the start or resumption

    @property
    def label(self) -> str:
        """Return the name of the host."""
        return self.session.host.label

    @property
    def place(self) -> tuple[str, ...]:
        """Return the sort key of a host's lock, in the same order for all clients.

        Clients that lock in this order cannot deadlock.
        """
        return self.session.boot_id, str(self.session.machine.get("machine.id", "")), self.label

    def lock(self, *, is_retried: bool = False) -> bool:
        """Keep all other clients off the host; False if one holds it, which is recorded."""
        take = partial(self._take_lock, self.session, is_regained=is_retried)
        return self.survives_or_leaves(take)

    def prepare(self, turns: KernelTurns, *, is_retried: bool = False) -> bool:
        """Prepare the arms of the plan; False if the host failed, which is recorded.

        Nothing is measured meanwhile on this machine, nor on a host with the same kernel. If
        `is_retried`, a claim of this run is from a lost connection and is taken over.
        """

        def act() -> None:
            with turns.preparing(turns.here), turns.preparing(self.kernel):
                _prepare_host(self.job, self.session, is_regained=is_retried)

        return self.survives_or_leaves(act)

    def lead(self, others: tuple[HostRun, ...]) -> None:
        """Take over the hosts with ranks of this host's cells, without arms that cannot run there.

        Raises as `HostTeam.of`.
        """
        self.others = others
        self.team = team = HostTeam.of(self.session, tuple(one.session for one in others))
        self.job.note("note", host=self.label, values={"ranks on": ", ".join(team.labels)})
        for arm in tuple(self.session.arms):
            error = team.lacks(arm)
            if error is None or (
                isinstance(error, StackError) and self.job.experiment.allow_mismatch
            ):
                continue
            phase: Phase = "environment" if type(error) is UnusableError else "stack"
            self.job.fail("arm-failed", error, phase=phase, host=self.label, arm=arm)
            del self.session.arms[arm]

    @property
    def kernel(self) -> str:
        """Return the identification of its kernel."""
        return self.session.boot_id or self.label

    def measure(self, turns: KernelTurns) -> None:
        """Measure all its cells in its turn, then leave it; records failures."""
        try:
            self.survives(lambda: self._measure(turns))
        finally:
            self.leave()

    def _take_lock(
        self, session: HostSession, *, is_regained: bool = False, most_s: float = math.inf
    ) -> None:
        job, asker = self.job, Asker(host=self.label, purpose="run", run_id=session.run_id)
        if is_regained:
            keeper.end_lost(session.transport, asker)
        self._lock = keeper.take(
            session.transport,
            asker,
            wait_s=min(job.experiment.wait_s, most_s),
            interruption=job.interruption,
            say=job.display.saying(self.label),
        )
        if self._lock.doubt:
            job.display.say(f"  {self.label}: {self._lock.doubt}")

    def _measure(self, turns: KernelTurns) -> None:
        with turns.measuring(self.kernel):
            if self._lock.is_shared:  # its use under the other name has ended
                self._take_lock(self.session)
            while True:
                try:
                    self._run_cells()
                except TransportError as error:
                    self.job.interruption.check()
                    if not self._is_back(error):
                        self._give_up(error)
                        return
                else:
                    return

    def _run_cells(self) -> None:
        cells = frozenset(cell.id for cell in self._left)
        prior = _Prior(folder=self.job.folder, cells=cells, design=self.job.plan.design)
        for group in sharing(self._left):
            self.job.interruption.check()
            runs = [run for cell in group if (run := self._cell_run(cell, prior=prior))]
            self._ended |= {cell.id for cell in group} - {run.cell.id for run in runs}
            if runs:
                run_cells(self.job, runs, ended=self._ended)
                self._check_lock(runs)

    def _check_lock(self, runs: list[CellRun]) -> None:
        """Note on cells that another client may have disturbed them, and lock the host again."""
        loss = self._lock.loss()
        doubt = loss or self._lock.doubt
        for run in runs if doubt else ():
            self.job.note("caution", host=self.label, cell=run.cell.id, text=doubt)
        if loss and self._left:
            self.job.display.say(f"  {self.label}: {loss}")
            self._lock.release()
            # others may wait for hosts that this run holds, so it waits for a shorter time
            self._take_lock(self.session, most_s=self.job.experiment.host_patience_s)

    @property
    def _left(self) -> list[Cell]:
        cells = self.job.plan.cells
        return [cell for cell in cells if cell.host == self.label and cell.id not in self._ended]

    def _cell_run(self, cell: Cell, *, prior: _Prior) -> CellRun | None:
        """Return the work to do for a cell, None if it was done before an interruption."""
        events = tuple(e for e in prior.events if e.cell == cell.id)
        session_events = tuple(e for e in prior.session_events if e.cell == cell.id)
        is_retried = self.job.retries_failed and _has_failed(session_events)
        samples = prior.samples if events else ()  # only a cell that was started before has samples
        run = CellRun(
            cell=cell,
            session=self.session,
            job=self.job,
            prior=tuple(sample for sample in samples if sample.cell == cell.id),
            prior_events=events,
            session_events=session_events,
            is_retried=is_retried,
            team=self.team,
        )
        since_start = standing(session_events)  # a retry may have been interrupted
        has_ended = any(e.what == "cell-ended" and e.state == "ok" for e in since_start)
        if (
            has_ended
            and not is_retried
            and run.is_whole
            and not any(profile.is_failure for profile in self.job.folder.read_profiles(cell.id))
        ):
            return None
        return run

    def _is_back(self, error: TransportError) -> bool:
        """Tell whether the host answers again within the patience."""
        self._losses += 1
        patience_s = self.job.experiment.host_patience_s
        if self._losses > _MOST_LOSSES or patience_s <= 0 or self.team is not None:
            return False
        self.session.abandon()
        self.job.note("host-lost", host=self.label, text=error.brief)
        self.job.display.say(
            f"  {self.label}: {error.brief}; trying again for at most {patience_s:.0f} s"
        )
        return any(self._is_regained() for _ in _pauses(self.job, patience_s)) or self._is_regained(
            has_all=False
        )

    def _is_regained(self, *, has_all: bool = True) -> bool:
        """Try once to reconnect and to restore the arms; engines may start later.

        With `has_all`, no arm that was usable before may be missing.
        """
        job, run_id = self.job, self.session.run_id
        try:
            session = open_session(self.session.host, job.experiment, run_id, job.interruption)
        except (TransportError, CommandTimeoutError):
            return False
        try:
            self._take_lock(session, is_regained=True, most_s=0)
            needed = frozenset(self.session.arms) if has_all else frozenset[str]()
            _prepare_host(job, session, is_regained=True, needed=needed)
            self._require_same(session)
        except (TransportError, CommandTimeoutError, HostHeldError, _MissingArmError):
            session.abandon()
            return False
        except BaseException:
            session.close()
            raise
        self.session = session
        job.display.say(f"  {self.label}: connected again")
        return True

    def _require_same(self, session: HostSession) -> None:
        found = [
            change
            for arm, now in session.identities.items()
            if (first := self.session.identities.get(arm)) is not None
            for change in changes(first, now, host=self.label, arm=arm)
        ]
        if refused(found) and not self.job.experiment.allow_mismatch:
            keys = ", ".join(f"{one.arm or 'the host'}: {one.key}" for one in refused(found))
            raise ConfigError(
                f"{self.label} is not what it was before its connection was lost",
                details=f"changed: {keys}",
                hint="begin a new run, or give --allow-mismatch to go on",
            )

    def _give_up(self, error: TransportError) -> None:
        if self._losses > _MOST_LOSSES:
            text = f"{self.label} was lost {self._losses} times and is left out"
            self.job.note("caution", host=self.label, text=text)
            self.job.display.say(f"  {text}")
        for cell in self._left:
            self.job.fail("cell-failed", error, phase="connect", host=cell.host, cell=cell.id)
            self.job.end_cell(cell, "unreachable", error.brief)

    def survives(self, act: Callable[[], None]) -> bool:
        """Act on the host; record an error that ends its use."""
        try:
            act()
        except InterruptedRunError:
            return False
        except Exception as error:  # noqa: BLE001 — recorded; the failure of one host ends no other
            if not self.job.interruption.is_requested:
                _fail_host(self.job, self.session.host, error)
            return False
        return True

    def survives_or_leaves(self, act: Callable[[], None]) -> bool:
        """Act on the host, and leave it if that fails."""
        has_survived = self.survives(act)
        if not has_survived:
            self.leave()
        return has_survived

    def leave(self) -> None:
        """Remove leftovers on the host, and close the connection.

        The processes of a job end with it if Slurm tracks them by cgroup.
        """
        for other in self.others:
            other.leave()
        held_by = self.session.host.job
        if held_by and held_by.loss:
            self.session.abandon()
        else:
            for text in self.session.close():
                _tell_swept(self.job, self.session, text)
        self._lock.release()


def _has_failed(events: tuple[Event, ...]) -> bool:
    """Tell whether a cell ended, and it or one of its arms failed since its last start.

    What the plan leaves out is not a failure.
    """
    since = standing(events)
    has_ended = any(e.what == "cell-ended" and e.state != "unreachable" for e in since)
    return has_ended and any(e.failure is not None and e.failure.phase != "plan" for e in since)


def _pauses(job: Job, patience_s: float) -> Iterator[None]:
    """Wait before each attempt, with growing pauses, until the patience is over.

    Raises InterruptedRunError if the user stops.
    """
    end, pause_s = time.monotonic() + patience_s, _FIRST_PAUSE_S
    while (left_s := end - time.monotonic()) > 0:
        until = time.monotonic() + min(pause_s, left_s)
        while time.monotonic() < until:
            job.interruption.check()
            time.sleep(_TICK_S)
        yield
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _fail_host(job: Job, host: HostSpec, error: Exception) -> None:
    job.fail("host-failed", as_known(error), phase=phase_of(error, "stack"), host=host.label)


def _tell_swept(job: Job, session: HostSession, text: str) -> None:
    job.note("swept", host=session.host.label, text=text)
    job.display.say(f"  {session.host.label}: {text}")


def _prepare_host(
    job: Job,
    session: HostSession,
    *,
    is_regained: bool = False,
    needed: frozenset[str] = frozenset(),
) -> None:
    """Claim a host and prepare the arms of the plan there; record arms that fail.

    If `is_regained`, a claim of this run is from the lost connection and is taken over. Raises
    _MissingArmError for a missing arm that is `needed`.
    """
    for text in session.claim(is_regained=is_regained):
        _tell_swept(job, session, text)
    for arm in job.plan.arms:
        job.interruption.check()
        if not arm.is_control:
            _add_arm(job, session, arm, is_needed=arm.id in needed)
    say = job.display.saying(session.host.label, job.interruption.check)
    note_differing_files(session, Progress(say))
    for control, reference in job.plan.controls.items():
        if reference in session.arms:
            session.add_control(control, reference)
    session.stage()
    if any(cell.workload.program is None for cell in job.plan.cells):
        find_pipes(session, Progress(say))
    identify(session, job.experiment.data)
    if session.wheels:
        job.note("wheels", host=session.host.label, text=session.wheels.sentence)
    values: dict[str, Scalar] = {}
    unused = session.unused_gpus
    if unused is not None and unused.is_expected:
        names = ", ".join(one.name for one in unused.gpus)
        values = {"gpu.unused": names or "its name is not known", "gpu.driver": unused.driver}
    job.note("host-ready", host=session.host.label, values=values)


def _add_arm(job: Job, session: HostSession, arm: ArmRecord, *, is_needed: bool) -> None:
    say = job.display.saying(f"{session.host.label}, {arm.id}", job.interruption.check)
    try:
        ready = session.add_arm(arm, job.experiment, Progress(say, is_before_run=True))
    except TransportError:
        raise
    except EnvcompareError as error:
        job.interruption.check()
        if is_needed and isinstance(error, UnusableError):
            raise _MissingArmError(error.brief, details=error.details, hint=error.hint) from error
        phase: Phase = "environment" if type(error) is UnusableError else "stack"
        job.fail("arm-failed", error, phase=phase, host=session.host.label, arm=arm.id)
    else:
        if ready.mismatch:
            say(f"{ready.mismatch.brief}: {ready.mismatch.details}")
