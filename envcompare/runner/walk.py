"""Walk the plan: every host, every cell; save as it happens; survive what fails; resume."""

from __future__ import annotations

import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Cell, Plan
from envcompare.config.settings import settings_toml
from envcompare.errors import (
    ConfigError,
    EnvcompareError,
    InterruptedRunError,
    Phase,
    TransportError,
    UnusableError,
    as_known,
    exit_code_of,
)
from envcompare.fingerprint.identity import (
    changes,
    first_identities,
    refusal,
    refused,
    resumed_text,
)
from envcompare.hosts.opening import hosts_at_once, open_session
from envcompare.hosts.session import HostSession
from envcompare.run_folder.records import (
    ArmRecord,
    Event,
    IdentityChange,
    RunRecord,
    Sample,
)
from envcompare.run_folder.results import RunFolder, new_run_id, standing
from envcompare.runner.cellgroup import run_cells, sharing
from envcompare.runner.cellrun import CellRun, Job
from envcompare.stack import Progress
from envcompare.transport.hosts import HostSpec
from envcompare.version import __version__


@dataclass(frozen=True, kw_only=True)  # no slots: both are read where they are first asked for
class _Prior:
    """What the run folder held before a host was measured; read once, since it grows."""

    folder: RunFolder

    @cached_property
    def events(self) -> tuple[Event, ...]:
        return self.folder.read_events().events

    @cached_property
    def samples(self) -> tuple[Sample, ...]:
        return self.folder.read_samples().samples


def run_record(plan: Plan, experiment: Experiment, *, command_line: tuple[str, ...]) -> RunRecord:
    """Return run.json for a new run."""
    return RunRecord(
        run_id=new_run_id(),
        created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        seed=plan.seed,
        title=experiment.title,
        tool_version=__version__,
        command_line=command_line,
        design=plan.design,
        arms=plan.arms,
        cells=tuple(cell.record() for cell in plan.cells),
        configuration=settings_toml(experiment.settings),
        controller={"python": platform.python_version(), "system": platform.platform()},
    )


def run(job: Job) -> int:
    """Carry out a run and return its exit code: 0, or the smaller of 3 and 4 that occurred.

    Hosts are prepared at the same time and then, when no host has this machine send or build
    anything any more, measured at the same time; those that share a kernel one after another.
    Raises ConfigError where a resumed run finds other software, hosts or data than it began with.
    """
    with hosts_at_once(job.display) as pool:
        sessions = _ready_sessions(job, pool)
        machines: dict[str, list[HostSession]] = {}
        for session in sessions:
            machines.setdefault(session.boot_id or session.host.label, []).append(session)
        futures = [pool.submit(_run_machine, job, group) for group in machines.values()]
        for future in futures:
            future.result()
    _note_end(job)
    job.folder.close()
    return _exit_code(standing(job.folder.read_events().events))


def _ready_sessions(job: Job, pool: ThreadPoolExecutor) -> list[HostSession]:
    """Open all hosts; one that is not what it was ends a resumption, which then wrote nothing."""
    prior = job.folder.read_events().events
    with job.folder.holding_events() if prior else nullcontext():
        job.note("run-resumed" if prior else "run-started")
        sessions = [
            session for session in pool.map(lambda host: _ready(job, host), job.hosts) if session
        ]
        try:
            _check_identities(job, sessions, prior)
        except ConfigError:
            for session in sessions:
                _leave(job, session)
            raise
    return sessions


def _check_identities(job: Job, sessions: list[HostSession], prior: tuple[Event, ...]) -> None:
    """Note what hosts and arms are; raise ConfigError where they are not what was measured."""
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


def _note_end(job: Job) -> None:
    """Record that the run ended, with the number of its samples: a lost part is seen by it."""
    if job.interruption.is_requested:
        job.note("interrupted")
    else:
        job.note("run-ended", values={"samples": job.folder.count_samples()})


def _ready(job: Job, host: HostSpec) -> HostSession | None:
    """Open a host and make its arms usable; None when it failed, which is recorded."""
    try:
        session = open_session(host, job.experiment, job.folder.path.name, job.interruption)
    except InterruptedRunError:
        return None
    except Exception as error:  # noqa: BLE001 — recorded; what one host says ends no other
        _fail_host(job, host, error, phase="connect")
        return None
    if _survives(job, session, _prepare_host):
        return session
    _leave(job, session)
    return None


def _run_machine(job: Job, sessions: list[HostSession]) -> None:
    for session in sessions:
        try:
            _survives(job, session, _run_host)
        finally:
            _leave(job, session)


def _survives(job: Job, session: HostSession, act: Callable[[Job, HostSession], None]) -> bool:
    """Do something on a host; an error that takes the host out is recorded."""
    try:
        act(job, session)
    except InterruptedRunError:
        return False
    except Exception as error:  # noqa: BLE001 — recorded; what one host says ends no other
        phase: Phase = "connect" if isinstance(error, TransportError) else "stack"
        if not job.interruption.is_requested:
            _fail_host(job, session.host, error, phase=phase)
        return False
    return True


def _fail_host(job: Job, host: HostSpec, error: Exception, *, phase: Phase) -> None:
    job.fail("host-failed", as_known(error), phase=phase, host=host.label)


def _leave(job: Job, session: HostSession) -> None:
    for text in session.close():
        _tell_swept(job, session, text)


def _tell_swept(job: Job, session: HostSession, text: str) -> None:
    job.note("swept", host=session.host.label, text=text)
    job.display.say(f"  {session.host.label}: {text}")


def _prepare_host(job: Job, session: HostSession) -> None:
    for text in session.claim():
        _tell_swept(job, session, text)
    for arm in job.plan.arms:
        job.interruption.check()
        if not arm.is_control:
            _add_arm(job, session, arm)
    say = job.display.saying(session.host.label, job.interruption.check)
    session.tell_files_apart(Progress(say))
    if job.plan.reference in session.arms:
        session.add_control(job.plan.control, job.plan.reference)
    session.stage()
    session.identify(job.experiment.data)
    if session.wheels:
        job.note("wheels", host=session.host.label, text=session.wheels.sentence)
    job.note("host-ready", host=session.host.label, values=session.noted_gpus)


def _run_host(job: Job, session: HostSession) -> None:
    prior = _Prior(folder=job.folder)
    cells = [cell for cell in job.plan.cells if cell.host == session.host.label]
    for group in sharing(cells):
        job.interruption.check()
        runs = [run for cell in group if (run := _cell_run(job, session, cell, prior=prior))]
        if runs:
            run_cells(job, runs)


def _add_arm(job: Job, session: HostSession, arm: ArmRecord) -> None:
    say = job.display.saying(f"{session.host.label}, {arm.id}", job.interruption.check)
    try:
        ready = session.add_arm(arm, job.experiment, Progress(say, is_before_run=True))
    except TransportError:
        raise
    except EnvcompareError as error:
        job.interruption.check()
        phase: Phase = "environment" if type(error) is UnusableError else "stack"
        job.fail("arm-failed", error, phase=phase, host=session.host.label, arm=arm.id)
    else:
        if ready.mismatch:
            say(f"{ready.mismatch.brief}: {ready.mismatch.details}")


def _cell_run(job: Job, session: HostSession, cell: Cell, *, prior: _Prior) -> CellRun | None:
    """Return what is to be done for a cell, None where it was done before an interruption."""
    events = tuple(e for e in prior.events if e.cell == cell.id)
    if any(e.what == "cell-ended" and e.state == "ok" for e in events) and not any(
        profile.is_failure for profile in job.folder.read_profiles(cell.id)
    ):
        return None
    samples = prior.samples if events else ()  # only a cell that was begun before has some
    return CellRun(
        cell=cell,
        session=session,
        job=job,
        prior=tuple(sample for sample in samples if sample.cell == cell.id),
        prior_events=events,
    )


def _exit_code(events: tuple[Event, ...]) -> int:
    failures = [event.failure for event in events if event.failure is not None]
    return min((exit_code_of(failure.phase) for failure in failures), default=0)
