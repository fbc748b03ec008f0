"""Walk the plan: every host, every cell; save as it happens; survive what fails; resume."""

from __future__ import annotations

import platform
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import partial

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Plan
from envcompare.config.settings import settings_toml
from envcompare.errors import (
    ConfigError,
    exit_code_of,
)
from envcompare.fingerprint.identity import (
    changes,
    first_identities,
    refusal,
    refused,
    resumed_text,
)
from envcompare.hosts.opening import hosts_at_once
from envcompare.hosts.session import HostSession
from envcompare.run_folder.records import (
    Event,
    IdentityChange,
    RunRecord,
)
from envcompare.run_folder.results import new_run_id, standing
from envcompare.runner.cellrun import Job
from envcompare.runner.hostrun import HostRun, ready_host, retried_hosts
from envcompare.version import __version__


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
    With `retries_failed` hosts that were given up are gone back to once, at the end. Raises
    ConfigError where a resumed run finds other software, hosts or data than it began with.
    """
    with hosts_at_once(job.display) as pool:
        _measure(_ready_hosts(job, pool), pool)
        if job.retries_failed and not job.interruption.is_requested:
            _measure(_retried(job, pool), pool)
    _note_end(job)
    job.folder.close()
    return _exit_code(standing(job.folder.read_events().events))


def _ready_hosts(job: Job, pool: ThreadPoolExecutor) -> list[HostRun]:
    """Open all hosts; one that is not what it was ends a resumption, which then wrote nothing."""
    prior = job.folder.read_events().events
    with job.folder.holding_events() if prior else nullcontext():
        job.note("run-resumed" if prior else "run-started")
        hosts = [host for host in pool.map(lambda spec: ready_host(job, spec), job.hosts) if host]
        try:
            _check_identities(job, [host.session for host in hosts], prior)
        except ConfigError:
            for host in hosts:
                host.leave()
            raise
    return hosts


def _measure(hosts: list[HostRun], pool: Executor) -> None:
    """Measure hosts at the same time, those of one machine one after another."""
    machines: dict[str, list[HostRun]] = {}
    for host in hosts:
        machines.setdefault(host.session.boot_id or host.label, []).append(host)
    futures = [pool.submit(_run_machine, group) for group in machines.values()]
    for future in futures:
        future.result()


def _retried(job: Job, pool: Executor) -> list[HostRun]:
    """Open once more the hosts that were given up; what one of them meets ends no other."""
    specs = retried_hosts(job)
    for spec in specs:
        job.note("host-retried", host=spec.label)
        job.display.say(f"  {spec.label}: trying it once more")
    prior = job.folder.read_events().events
    hosts = pool.map(lambda spec: ready_host(job, spec, is_retried=True), specs)
    return [
        host
        for host in hosts
        if host and host.survives_or_leaves(partial(_check_identities, job, [host.session], prior))
    ]


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


def _run_machine(hosts: list[HostRun]) -> None:
    for host in hosts:
        host.measure()


def _exit_code(events: tuple[Event, ...]) -> int:
    failures = [event.failure for event in events if event.failure is not None]
    return min((exit_code_of(failure.phase) for failure in failures), default=0)
