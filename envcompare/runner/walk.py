"""Execute the plan: every host, every cell; save continuously, survive failures, resume.

`envcompare build` and `envcompare clean` prepare hosts without measuring.
"""

from __future__ import annotations

import platform
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from envcompare.bundled import __version__, tool_commit
from envcompare.config.experiment import Experiment
from envcompare.config.plan import Plan, planned_arms
from envcompare.config.settings import settings_toml
from envcompare.console import Display
from envcompare.environments.registry import ALL_ENVIRONMENTS, ENVIRONMENTS
from envcompare.environments.software import LOCK, TREE
from envcompare.errors import (
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    Interruption,
    RunFolderError,
    UnusableError,
    as_known,
    exit_code_of,
    handling_signals,
)
from envcompare.fingerprint.comparing import (
    changes,
    first_identities,
    refusal,
    refused,
    resumed_text,
)
from envcompare.hosts import HostSession, allocation, keeper
from envcompare.hosts.keeper import Asker
from envcompare.hosts.opening import boot_id, hosts_at_once, open_session
from envcompare.run_folder import SESSION, standing
from envcompare.run_folder.records import Event, EventKind, IdentityChange, RunRecord
from envcompare.run_folder.results import new_run_id
from envcompare.runner import Job
from envcompare.runner.hostrun import HostRun, KernelTurns, open_host
from envcompare.stack import Progress, storage, wheelhouse
from envcompare.stack.building import remove_held, remove_images, remove_pins
from envcompare.stack.storage import ImageStore
from envcompare.transport import LOCAL, LocalTransport
from envcompare.transport.hosts import LOCAL_NAME, HostSpec

_MOST_FAILURES = 3
"""A host that failed or was lost this often in one run is not retried at its end."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


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
    else:  # with the number of samples, so that a loss is detectable
        job.note("run-ended", values={"samples": job.folder.count_samples()})
    job.folder.close()
    return _exit_code(standing(job.folder.read_events().events))


def _note_begin(job: Job, what: EventKind) -> None:
    session = {} if job.session is None else {SESSION: job.session}
    job.note(what, values={"run": job.folder.run_id, **session})
    for host in job.hosts:
        if host.job is not None:
            job.note("allocated", host=host.label, values={"node": host.node, "job": host.job.id})


def _work_at(job: Job, turns: KernelTurns, spec: HostSpec) -> None:
    host = open_host(job, spec, turns)
    if host is not None and host.lock() and host.prepare(turns):
        _check_identities(job, [host.session], ())
        host.measure(turns)


def _work_together(job: Job, turns: KernelTurns, pool: ThreadPoolExecutor) -> None:
    """Lock and prepare all hosts of a new run with spread ranks, and measure on the first."""
    opened = pool.map(lambda spec: open_host(job, spec, turns), job.hosts)
    hosts = _prepared(turns, pool, [host for host in opened if host])
    for first in _led_by_first(job, hosts):
        _check_identities(job, [host.session for host in hosts], ())
        first.measure(turns)


def _prepared(turns: KernelTurns, pool: ThreadPoolExecutor, opened: list[HostRun]) -> list[HostRun]:
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
    """Retry a host that was given up; it must be unchanged."""
    job.note("host-retried", host=spec.label)
    job.display.say(f"  {spec.label}: trying it once more")
    host = open_host(job, spec, turns)
    if host is None or not host.lock(is_retried=True):
        return
    prior = job.folder.read_events().events
    check = partial(_check_identities, job, [host.session], prior)
    if host.prepare(turns, is_retried=True) and host.survives_or_leaves(check):
        host.measure(turns)


def _ready_again(
    job: Job, turns: KernelTurns, pool: ThreadPoolExecutor, prior: tuple[Event, ...]
) -> list[HostRun]:
    """Open, lock and prepare all hosts.

    A changed host ends a resumption before it writes anything. All hosts are locked before one is
    measured, in the same order for all clients, so that there is no deadlock.
    """
    with job.folder.holding_events():
        _note_begin(job, "run-resumed")
        opened = pool.map(lambda spec: open_host(job, spec, turns), job.hosts)
        hosts = _prepared(turns, pool, [host for host in opened if host])
        try:
            _check_identities(job, [host.session for host in hosts], prior)
        except ConfigError:
            for host in hosts:
                host.leave()
            raise
    return _led_by_first(job, hosts)


def _led_by_first(job: Job, hosts: list[HostRun]) -> list[HostRun]:
    """Return the hosts to measure on; with spread ranks, only that of the first rank.

    It leads the others. If one of them failed, nothing is measured, which is recorded.
    """
    measured = {cell.host for cell in job.plan.cells}
    if job.experiment.rendezvous is None:
        return hosts
    first = next((one for one in hosts if one.label in measured), None)
    named = [spec.label for spec in job.hosts]
    others = sorted(
        (one for one in hosts if one is not first), key=lambda one: named.index(one.label)
    )
    if first is not None and len(hosts) == len(job.hosts):
        return [first] if first.survives_or_leaves(lambda: first.lead(tuple(others))) else []
    missing = set(named) - {one.label for one in hosts}
    error = UnusableError(
        f"ranks cannot lie on {', '.join(sorted(missing))}",
        details="it failed with the error above, and nothing is measured without it",
        hint="fix it, or leave it out of --hosts",
    )
    for label in measured - missing:
        job.fail("host-failed", error, phase="environment", host=label)
    for one in hosts:
        one.leave()
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


def _exit_code(events: tuple[Event, ...]) -> int:
    """Return the smallest exit code of the failures; planned omissions have none."""
    phases = (event.failure.phase for event in events if event.failure is not None)
    return min((exit_code_of(phase) for phase in phases if phase != "plan"), default=0)


_AFTER = "what is being made"


@dataclass(slots=True)
class Outcome:
    """What was made where, and the errors."""

    lines: list[str] = field(default_factory=list)
    errors: list[EnvcompareError] = field(default_factory=list)
    locks: set[str] = field(default_factory=set)  # of the wheels of the arms

    @property
    def exit_code(self) -> int:
        """Return 0, or the smallest exit code of the errors."""
        return min((error.exit_code for error in self.errors), default=0)


def build_everywhere(
    experiment: Experiment,
    hosts: tuple[HostSpec, ...],
    display: Display,
    *,
    sbom: Path | None = None,
) -> Outcome:
    """Make every arm usable on all hosts in parallel, continuing after errors.

    Before that, raises ConfigError or StackError if no bill of materials can be written.
    """
    if sbom is not None:
        wheelhouse.check_sbom_tool()
        wheelhouse.check_sbom(sbom)
    outcome = _everywhere(experiment, hosts, display, _build)
    if sbom is not None:
        try:
            wheelhouse.write_sbom(outcome.locks, sbom, local=LOCAL)
        except EnvcompareError as error:
            display.error(error)
            outcome.errors.append(error)
        else:
            outcome.lines.append(f"bill of materials: {sbom}")
    return outcome


def clean_everywhere(
    experiment: Experiment,
    hosts: tuple[HostSpec, ...],
    display: Display,
    *,
    run_id: str | None = None,
) -> Outcome:
    """Remove envcompare's files and images on every host, and what dead runs left.

    With a run ID, remove only what that run left on its hosts.
    """
    action = _clean if run_id is None else partial(_clean_run, run_id)
    return _everywhere(experiment, hosts, display, action)


def unlock_everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display
) -> Outcome:
    """Release every host from other clients' locks and claims."""
    return _everywhere(experiment, hosts, display, _unlock)


def tell_holders(experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display) -> Outcome:
    """Name the client that holds each host, without changing anything there."""
    return _everywhere(experiment, hosts, display, _tell_holder)


@dataclass(slots=True, kw_only=True)
class _HostTask:
    host: HostSpec
    experiment: Experiment
    display: Display
    interruption: Interruption
    outcome: Outcome = field(default_factory=Outcome)
    session: HostSession | None = None

    def run(self, action: _Action, run_id: str) -> None:
        """Run `action` on the host and keep its errors."""
        try:
            self.interruption.check()
            self.session = open_session(self.host, self.experiment, run_id, self.interruption)
            action(self, self.session)
        except InterruptedRunError:
            pass
        except Exception as error:  # noqa: BLE001 — reported; the failure of one host ends no other
            self.keep(as_known(error))

    def locking(self, session: HostSession) -> AbstractContextManager[None]:
        """Keep the host locked meanwhile; raises as `keeper.take`."""
        return keeper.held(
            session.transport,
            Asker(host=self.host.label, purpose="clean", run_id=session.run_id),
            wait_s=self.experiment.wait_s,
            interruption=self.interruption,
            say=self.display.saying(self.host.label),
        )

    def tell(self, text: str) -> None:
        """Keep a line about the host."""
        self.outcome.lines.append(f"{self.host.label}: {text}")

    def tell_removal(self, removal: keeper.Removal) -> None:
        """Keep what was removed of a run, and failed removals as errors."""
        for text in removal.removed:
            self.tell(text)
        for text in removal.failed:
            hint = "see what the host says, then run envcompare clean again"
            self.keep(UnusableError(f"{self.host.label} is not clean", details=text, hint=hint))

    def keep(self, error: EnvcompareError) -> None:
        """Show and keep an error, unless it is due to an interruption."""
        if not self.interruption.is_requested:
            self.display.error(error)
            self.outcome.errors.append(error)


_Action = Callable[[_HostTask, HostSession], None]


def _everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display, action: _Action
) -> Outcome:
    run_id = f"build-{uuid.uuid4().hex[:8]}"
    interruption = Interruption()
    tasks = [
        _HostTask(host=host, experiment=experiment, display=display, interruption=interruption)
        for host in hosts
    ]
    with handling_signals(interruption, display.say, after=_AFTER):
        try:
            with hosts_at_once(display, experiment.jobs) as pool:
                tuple(pool.map(lambda task: task.run(action, run_id), tasks))
        finally:  # another host may fetch what this one made until the end
            for task in tasks:
                for text in task.session.close() if task.session is not None else ():
                    task.tell(text)
    if interruption.is_requested:
        raise InterruptedRunError(
            "interrupted", hint="run the same command again to continue from here"
        )
    return Outcome(
        lines=[line for task in tasks for line in task.outcome.lines],
        errors=[error for task in tasks for error in task.outcome.errors],
        locks={lock for task in tasks for lock in task.outcome.locks},
    )


def _clean(task: _HostTask, session: HostSession) -> None:
    """Remove the cache after sweeping dead runs; a live run keeps both."""
    transport, cache = session.transport, session.cache
    with task.locking(session):
        for claim in keeper.survey(transport, cache):
            if claim.is_live:
                raise keeper.refusal(claim, session.host.label)
        task.tell_removal(keeper.remove_dead(transport, cache, environments=ALL_ENVIRONMENTS))
        is_removed = storage.remove_cache(transport)
        task.tell(f"{'removed' if is_removed else 'nothing to remove at'} {cache}")
        engines = [where.engine for where in ENVIRONMENTS.values() if where.engine is not None]
        for engine in {engine.program: engine for engine in engines}.values():
            _clean_images(task, ImageStore(engine=engine, transport=transport))


def _clean_images(task: _HostTask, store: ImageStore) -> None:
    remove_pins(store)
    if held := remove_held(store):
        task.tell(f"images with data of runs removed from the engine: {held}")
    images = remove_images(store)
    if images.count:
        task.tell(f"images removed from the engine: {images.count}")
    for name in images.kept:
        task.tell(f"the image {name} stays, since one of yours is built on it")
    if images.unseen:
        task.tell(f"images may stay, since the engine could not be asked: {images.unseen}")


def _clean_run(run_id: str, task: _HostTask, session: HostSession) -> None:
    transport, cache = session.transport, session.cache
    used = tuple(sorted({arm.environment for arm in task.experiment.arms}))
    with task.locking(session):
        left = [one for one in keeper.survey(transport, cache) if one.run_id == run_id]
        for claim in left:
            if claim.is_live:
                raise keeper.refusal(claim, session.host.label)
        for claim in left or (keeper.Claim(run_id=run_id),):
            known = claim if claim.environments is not None else replace(claim, environments=used)
            removal = keeper.remove(transport, cache, known, environments=ALL_ENVIRONMENTS)
            task.tell_removal(removal)
        if not task.outcome.lines and not task.outcome.errors:
            task.tell(f"nothing is left of the run {run_id}")


def _tell_holder(task: _HostTask, session: HostSession) -> None:
    holder = keeper.holder_of(session.transport)
    free = "free, as far as this login can see: no run and no `envcompare clean` holds it"
    task.tell(f"in use: {holder.sentence}" if holder else free)


def _unlock(task: _HostTask, session: HostSession) -> None:
    holder = keeper.holder_of(session.transport)
    if holder is None:
        task.tell("nothing that this login can see holds the host")
        return
    keeper.end(session.transport, holder)
    task.tell(f"ended process {holder.pid} there, the lock of the host: {holder.sentence}")
    for claim in keeper.survey(session.transport, session.cache):
        is_its = (claim.run_id, claim.state) == (holder.run_id, "live")
        if is_its and keeper.end_claim(session.transport, claim):
            task.tell(
                f"ended process {claim.pid} there, the claim of that run: the next run, or "
                "`envcompare clean`, removes what it left"
            )


def _build(task: _HostTask, session: HostSession) -> None:
    for text in session.claim():
        task.tell(text)
    for arm in planned_arms(task.experiment):
        task.interruption.check()
        label = f"{session.host.label} {arm.id}"
        if arm.is_control:
            continue
        say = task.display.saying(label, task.interruption.check)
        try:
            ready = session.add_arm(arm, task.experiment, Progress(say))
        except InterruptedRunError:
            raise
        except EnvcompareError as error:
            task.keep(error)
        else:
            if ready.mismatch:
                say(f"{ready.mismatch.brief}: {ready.mismatch.details}")
            facts = dict(ready.prepared.facts)
            where = ready.prepared.reference or ready.prepared.interpreter
            proof = ""
            if TREE in facts:
                proof = f", site-packages {facts[TREE][:12]}"
            elif LOCK in facts:
                proof = ", not proven: what is installed could not be hashed"
            task.outcome.lines.append(f"{label}: {where}{proof}")
            task.outcome.locks |= {facts[LOCK]} if LOCK in facts else set()
