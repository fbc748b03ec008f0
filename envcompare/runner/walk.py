"""Execute the plan: every host, every cell; save continuously, survive failures, resume.

A lost host is reconnected with growing pauses. Its cells then continue as in a resumed run: samples
stay, and leftovers on the host are removed first.
"""

from __future__ import annotations

import math
import platform
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial

from envcompare.bundled import __version__, tool_commit
from envcompare.config.experiment import Experiment
from envcompare.config.plan import Cell, Plan
from envcompare.config.settings import settings_toml
from envcompare.errors import (
    CommandTimeoutError,
    ConfigError,
    EnvcompareError,
    HostHeldError,
    InterruptedRunError,
    Phase,
    RunFolderError,
    StackError,
    TransportError,
    UnusableError,
    as_known,
    exit_code_of,
    phase_of,
)
from envcompare.fingerprint.comparing import (
    changes,
    first_identities,
    refusal,
    refused,
    resumed_text,
)
from envcompare.hosts import HostSession, allocation, keeper
from envcompare.hosts.folders import HostTeam, find_pipes
from envcompare.hosts.keeper import Asker, HostLock
from envcompare.hosts.opening import (
    boot_id,
    hosts_at_once,
    identify,
    note_differing_files,
    open_session,
)
from envcompare.run_folder import SESSION, since_session, standing, standing_samples
from envcompare.run_folder.records import (
    ArmRecord,
    Event,
    EventKind,
    IdentityChange,
    RunRecord,
    Sample,
    Scalar,
)
from envcompare.run_folder.results import new_run_id
from envcompare.runner import TICK_S, Job, KernelTurns
from envcompare.runner.cellrun import CellRun, run_cells, sharing
from envcompare.stack import Progress
from envcompare.transport import LocalTransport
from envcompare.transport.hosts import LOCAL_NAME, HostSpec

_MOST_FAILURES = 3
"""A host that failed or was lost this often in one run is not retried at its end."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MOST_LOSSES = 3
"""A host that is lost more often in one run is left out, since it would delay the others."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


def run_record(plan: Plan, experiment: Experiment, *, command_line: tuple[str, ...]) -> RunRecord:
    """Return run.json for a new run."""
    return RunRecord(
        run_id=new_run_id(),
        created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        seed=plan.seed,
        title=experiment.title,
        tool_version=__version__,
        tool_commit=tool_commit(),
        command_line=command_line,
        design=plan.design,
        arms=plan.arms,
        cells=tuple(cell.record() for cell in plan.cells),
        configuration=settings_toml(experiment.settings),
        groups=plan.groups,
        controller={"python": platform.python_version(), "system": platform.platform()},
    )


def run(job: Job) -> int:
    """Execute a run and return its exit code: 0, or the smallest of a failure.

    Requests the nodes of an allocation first, and always releases them. Raises ConfigError if a
    resumed run finds other software, hosts or data than at its start.
    """
    events = job.folder.read_events().events
    asked = job.experiment.allocation
    if asked is None:
        return _walk(job, events)
    prior = tuple(e for e in events if e.what != "submitted")  # no work yet
    request = allocation.Request(
        allocation=asked,
        run_id=job.folder.run_id,
        nodes=_nodes_of(job.hosts, prior),
        jobs=allocation.jobs_of(events),
        interruption=job.interruption,
        say=job.display.say,
        note_job=lambda given: job.note("submitted", values={"job": given.id}),
    )
    with allocation.granted(request, job.hosts) as hosts:
        return _walk(replace(job, hosts=hosts), prior)


def _nodes_of(hosts: tuple[HostSpec, ...], prior: tuple[Event, ...]) -> tuple[str, ...]:
    """Return the nodes of an earlier part of the run, since a cell belongs to one node.

    None if those of some hosts are unknown, which means that nothing was measured yet. Raises
    RunFolderError for an invalid node name, since it becomes part of a job script.
    """
    known = {e.host: str(e.values["node"]) for e in prior if e.what == "allocated"}
    for node in known.values():
        if not _NODE.fullmatch(node):
            raise RunFolderError(
                "the events of the run name a node that cannot be one",
                details=f"it is called {node!r} in events.jsonl",
                hint="start a new run",
            )
    nodes = tuple(known[host.label] for host in hosts if host.label in known)
    return nodes if len(nodes) == len(hosts) else ()


def _walk(job: Job, prior: tuple[Event, ...]) -> int:
    """Process all hosts of a run and return its exit code.

    Hosts are prepared and measured in parallel. If that would disturb a measurement they take
    turns: hosts that share a kernel, and this machine, which sends and builds for the others. With
    `retries_failed`, hosts that were given up get one retry at the end, unless all of them have
    ranks.
    """
    here = boot_id(LocalTransport()) or LOCAL_NAME
    turns = KernelTurns(here=here, interruption=job.interruption)
    is_spread = job.experiment.rendezvous is not None
    with hosts_at_once(job.display, job.experiment.jobs) as pool:
        if prior:
            if job.session is None:
                done = (e for e in prior if e.what == "cell-ended" and e.state == "ok")
                job.ended.update(e.cell for e in done)
            again = _ready_again(job, turns, pool, prior)
            futures = [pool.submit(host.measure, turns) for host in again]
        elif is_spread:
            _note_begin(job, "run-started")
            _work_together(job, turns, pool)
            futures = []
        else:
            _note_begin(job, "run-started")
            specs = sorted(job.hosts, key=lambda spec: spec.is_local)
            futures = [pool.submit(_work_at, job, turns, spec) for spec in specs]
        for future in futures:
            future.result()
        if job.retries_failed and not is_spread and not job.interruption.is_requested:
            retried = [
                pool.submit(_work_again_at, job, turns, spec) for spec in _retried_hosts(job)
            ]
            for future in retried:
                future.result()
    if job.interruption.is_requested:
        job.note("interrupted")
    else:
        # The number of samples makes the loss of some detectable.
        job.note("run-ended", values={"samples": job.folder.count_samples()})
    job.folder.close()
    return _exit_code(standing(job.folder.read_events().events))


def _exit_code(events: tuple[Event, ...]) -> int:
    failures = (event.failure for event in events)
    # What the plan leaves out is no failure.
    phases = (failure.phase for failure in failures if failure and failure.phase != "plan")
    return min(map(exit_code_of, phases), default=0)


def _note_begin(job: Job, what: EventKind) -> None:
    session = {} if job.session is None else {SESSION: job.session}
    job.note(what, values={"run": job.folder.run_id, **session})
    for host in job.hosts:
        if host.job is not None:
            job.note("allocated", host=host.label, values={"node": host.node, "job": host.job.id})


def _work_at(job: Job, turns: KernelTurns, spec: HostSpec) -> None:
    host = _open_host(job, spec, turns)
    if host is not None and host.lock() and host.prepare(turns):
        _check_identities(job, [host.session], ())
        host.measure(turns)


def _work_together(job: Job, turns: KernelTurns, pool: ThreadPoolExecutor) -> None:
    """Lock and prepare all hosts of a new run with spread ranks, and measure on the first."""
    opened = pool.map(lambda spec: _open_host(job, spec, turns), job.hosts)
    hosts = _prepared(turns, pool, [host for host in opened if host])
    for first in _led_by_first(job, hosts):
        _check_identities(job, [host.session for host in hosts], ())
        first.measure(turns)


def _prepared(
    turns: KernelTurns, pool: ThreadPoolExecutor, opened: list[_HostRun]
) -> list[_HostRun]:
    """Lock hosts in the same order as all clients, prepare them, and return the ready ones."""
    locked = [host for host in sorted(opened, key=lambda host: host.place) if host.lock()]
    is_ready = pool.map(lambda host: host.prepare(turns), locked)
    return [host for host, is_well in zip(locked, is_ready, strict=True) if is_well]


def _retried_hosts(job: Job) -> list[HostSpec]:
    """Return the hosts to retry: given up, with few failures; reports the other ones."""
    events = job.folder.read_events().events
    states = {e.cell: e.state for e in events if e.what == "cell-ended"}
    lost = {c.host for c in job.plan.cells if states.get(c.id) == "unreachable"}
    begun = max((i for i, e in enumerate(events) if e.what == "run-resumed"), default=0)
    hosts: list[HostSpec] = []
    for host in job.hosts:
        of_host = [(i, e) for i, e in enumerate(events) if e.host == host.label]
        ends = [e.what for _, e in of_host if e.what in {"host-failed", "host-ready"}]
        failed = [(i, e) for i, e in of_host if e.what in {"host-lost", "host-failed"}]
        why = [e.text for i, e in failed if i >= begun]
        is_given_up = host.label in lost or ends[-1:] == ["host-failed"]
        if is_given_up and len(why) < _MOST_FAILURES:
            hosts.append(host)
        elif is_given_up:
            text = f"{host.label} is not tried again: it failed {len(why)} times, last: {why[-1]}"
            job.note("caution", host=host.label, text=text)
            job.display.say(f"  {text}")
    return hosts


def _work_again_at(job: Job, turns: KernelTurns, spec: HostSpec) -> None:
    job.note("host-retried", host=spec.label)
    job.display.say(f"  {spec.label}: trying it once more")
    host = _open_host(job, spec, turns)
    if host is None or not host.lock(is_retried=True):
        return
    prior = job.folder.read_events().events
    begun = max(i for i, e in enumerate(prior) if e.what in {"run-started", "run-resumed"})
    ends = (e for e in prior[begun:] if e.what == "cell-ended" and e.state != "unreachable")
    host.ended |= {e.cell for e in ends}
    check = partial(_check_identities, job, [host.session], prior)
    if host.prepare(turns, is_retried=True) and host.survives_or_leaves(check):
        host.measure(turns)


def _ready_again(
    job: Job, turns: KernelTurns, pool: ThreadPoolExecutor, prior: tuple[Event, ...]
) -> list[_HostRun]:
    """Open, lock and prepare all hosts.

    A changed host ends a resumption before it writes anything. All hosts are locked before one is
    measured, in the same order for all clients, so that there is no deadlock.
    """
    with job.folder.holding_events():
        _note_begin(job, "run-resumed")
        opened = pool.map(lambda spec: _open_host(job, spec, turns), job.hosts)
        hosts = _prepared(turns, pool, [host for host in opened if host])
        try:
            _check_identities(job, [host.session for host in hosts], prior)
        except ConfigError:
            for host in hosts:
                host.leave()
            raise
    return _led_by_first(job, hosts)


def _led_by_first(job: Job, hosts: list[_HostRun]) -> list[_HostRun]:
    """Return the hosts to measure on; with spread ranks, only that of the first rank.

    It leads the others. If one of them failed, nothing is measured, which is recorded.
    """
    measured = {cell.host for cell in job.plan.cells}
    if job.experiment.rendezvous is None:
        return hosts
    first = next((host for host in hosts if host.label in measured), None)
    named = [spec.label for spec in job.hosts]
    others = [host for host in hosts if host is not first]
    others.sort(key=lambda host: named.index(host.label))
    if first is not None and len(hosts) == len(job.hosts):
        return [first] if first.survives_or_leaves(lambda: first.lead(tuple(others))) else []
    missing = set(named) - {host.label for host in hosts}
    error = UnusableError(
        f"ranks cannot lie on {', '.join(sorted(missing))}",
        hint="fix it, or leave it out of --hosts",
    )
    for label in measured - missing:
        job.fail("host-failed", error, phase="environment", host=label)
    for host in hosts:
        host.leave()
    return []


def _check_identities(job: Job, sessions: list[HostSession], prior: tuple[Event, ...]) -> None:
    """Record the identity of hosts and arms; raise ConfigError if they changed."""
    known = first_identities(prior)
    changed: list[IdentityChange] = []
    for session in sessions:
        host = session.host.label
        for arm, now in session.identities.items():
            first = known.get((host, arm))
            new = () if first is None else changes(first, now, host=host, arm=arm)
            if first is None or new:
                job.note("identity", host=host, arm=arm, values=now)
            changed += new
    if refused(changed) and not job.experiment.allow_mismatch:
        raise refusal(job.folder.path, refused(changed))
    for change in changed:
        job.display.say(f"  {resumed_text(change)}")


class _MissingArmError(EnvcompareError):
    """An environment that was usable is missing, perhaps for now, on a host that answers again."""


def _open_host(job: Job, spec: HostSpec, turns: KernelTurns) -> _HostRun | None:
    """Connect to a host while nothing is measured here; None if that failed and was recorded."""
    try:
        with turns.preparing(turns.here):
            session = open_session(spec, job.experiment, job.folder.run_id, job.interruption)
    except InterruptedRunError:
        return None
    except Exception as error:  # noqa: BLE001 — recorded; the failure of one host ends no other
        _fail_host(job, spec, error)
        return None
    return _HostRun(job=job, session=session)


@dataclass(slots=True, kw_only=True)
class _HostRun:
    """An open host, and the cells to measure on it once it is locked and ready."""

    job: Job
    session: HostSession
    others: tuple[_HostRun, ...] = ()  # with ranks of its cells
    team: HostTeam | None = None
    ended: set[str] = field(default_factory=set)  # cells, since the start or resumption
    _lock: HostLock = field(default_factory=HostLock)
    _losses: int = 0

    @property
    def label(self) -> str:
        """Return the name of the host."""
        return self.session.host.label

    @property
    def place(self) -> tuple[str, ...]:
        """Return the sort key of a host's lock: clients that lock in this order never deadlock."""
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

    def lead(self, others: tuple[_HostRun, ...]) -> None:
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
        job, asker = self.job, Asker.of(session.host, "run", session.run_id)
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
            if self._lock.is_shared:
                # Its use under the other name of the host has ended by now.
                self._take_lock(self.session)
            while True:
                try:
                    self._run_cells()
                except TransportError as error:
                    self.job.interruption.check()
                    if self._is_back(error):
                        continue
                    self._give_up(error)
                return

    def _run_cells(self) -> None:
        folder, cells = self.job.folder, {cell.id for cell in self._left}
        all_events = folder.read_events().events  # now, since the folder grows
        events = tuple(e for e in all_events if e.cell in cells)
        session_events = tuple(e for e in since_session(all_events) if e.cell in cells)
        samples: tuple[Sample, ...] = ()
        if events:  # only a cell that was started before has samples
            found = (sample for sample in folder.read_samples().samples if sample.cell in cells)
            samples = standing_samples(tuple(found), self.job.plan.design, events)
        for group in sharing(self._left):
            self.job.interruption.check()
            runs = [
                run
                for cell in group
                if (run := self._cell_run(cell, events, session_events, samples))
            ]
            self.ended |= {cell.id for cell in group} - {run.cell.id for run in runs}
            if runs:
                run_cells(self.job, runs, ended=self.ended)
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
        return [cell for cell in cells if cell.host == self.label and cell.id not in self.ended]

    def _cell_run(
        self,
        cell: Cell,
        prior_events: tuple[Event, ...],
        prior_session_events: tuple[Event, ...],
        prior_samples: tuple[Sample, ...],
    ) -> CellRun | None:
        """Return the work to do for a cell, None if it was done before an interruption."""
        session_events = tuple(e for e in prior_session_events if e.cell == cell.id)
        is_retried = self.job.retries_failed and _has_failed(session_events)
        run = CellRun(
            cell=cell,
            session=self.session,
            job=self.job,
            prior=tuple(sample for sample in prior_samples if sample.cell == cell.id),
            prior_events=tuple(e for e in prior_events if e.cell == cell.id),
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
        # The host answers here, so what this run has left on it can be removed.
        except BaseException:
            session.close()
            raise
        self.session = session
        job.display.say(f"  {self.label}: connected again")
        return True

    def _require_same(self, session: HostSession) -> None:
        changed = [
            change
            for arm, now in session.identities.items()
            if (first := self.session.identities.get(arm)) is not None
            for change in changes(first, now, host=self.label, arm=arm)
        ]
        facts = refused(changed)
        if facts and not self.job.experiment.allow_mismatch:
            keys = ", ".join(f"{fact.arm or 'the host'}: {fact.key}" for fact in facts)
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
            time.sleep(TICK_S)
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
        names = ", ".join(gpu.name for gpu in unused.gpus)
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
