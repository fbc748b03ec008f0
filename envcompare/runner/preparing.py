"""Make ready without measuring: what `envcompare build` and `envcompare clean` do on all hosts."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envcompare.config.experiment import Experiment
from envcompare.config.plan import planned_arms
from envcompare.console import Display
from envcompare.errors import EnvcompareError, InterruptedRunError, UnusableError
from envcompare.hosts import claims
from envcompare.hosts.opening import open_site
from envcompare.hosts.session import Site
from envcompare.interrupt import Interruption, handling_signals
from envcompare.runner.job import hosts_at_once
from envcompare.stack import cache
from envcompare.stack import sbom as bill
from envcompare.stack.proof import LOCK, TREE
from envcompare.transport.hosts import HostSpec
from envcompare.transport.local import LOCAL

_AFTER = "what is being made"


@dataclass(slots=True)
class Outcome:
    """What was made where, and which errors there were."""

    lines: list[str] = field(default_factory=list)
    errors: list[EnvcompareError] = field(default_factory=list)
    locks: set[str] = field(default_factory=set)  # of the wheels that arms are made of

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
    """Make every arm usable on every host at the same time, going on after an error.

    Raises ConfigError or StackError where no bill of materials can be written, before all else.
    """
    if sbom is not None:
        bill.check_tool()
        bill.check_target(sbom)
    outcome = _everywhere(experiment, hosts, display, _build)
    if sbom is not None:
        _write_bill(outcome, sbom, display)
    return outcome


def _write_bill(outcome: Outcome, sbom: Path, display: Display) -> None:
    """Write it; an error is one beside what was made, which is told in any case."""
    try:
        bill.write(outcome.locks, sbom, local=LOCAL)
    except EnvcompareError as error:
        display.error(error)
        outcome.errors.append(error)
    else:
        outcome.lines.append(f"bill of materials: {sbom}")


def clean_everywhere(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display
) -> Outcome:
    """Remove what envcompare keeps on every host, its images too, and what dead runs left."""
    return _everywhere(experiment, hosts, display, _clean)


def clean_run(
    experiment: Experiment, hosts: tuple[HostSpec, ...], display: Display, *, run_id: str
) -> Outcome:
    """Remove what one run left on its hosts, and nothing else."""
    return _everywhere(experiment, hosts, display, partial(_clean_run, run_id))


Action = Callable[["_Task", Site, Outcome], None]


def _everywhere(
    experiment: Experiment,
    hosts: tuple[HostSpec, ...],
    display: Display,
    action: Action,
) -> Outcome:
    run_id = f"build-{uuid.uuid4().hex[:8]}"
    task = _Task(experiment=experiment, display=display, action=action, run_id=run_id)
    with handling_signals(task.interruption, display.say, after=_AFTER):
        try:
            with hosts_at_once(display) as pool:
                outcomes = tuple(pool.map(task.on_host, hosts))
        finally:
            for site in task.sites:
                site.close()
    if task.interruption.is_requested:
        raise InterruptedRunError("interrupted", hint="the same command goes on from here")
    return Outcome(
        lines=[line for one in outcomes for line in one.lines],
        errors=[error for one in outcomes for error in one.errors],
        locks={lock for one in outcomes for lock in one.locks},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What is done on every host; what one host made may be fetched for another until the end."""

    experiment: Experiment
    display: Display
    action: Action
    run_id: str
    interruption: Interruption = field(default_factory=Interruption)
    sites: list[Site] = field(default_factory=list)

    def on_host(self, host: HostSpec) -> Outcome:
        """Do it on one host; its errors are its own."""
        outcome = Outcome()
        try:
            self.interruption.check()
            site = open_site(host, self.experiment, self.run_id, self.interruption)
            self.sites.append(site)
            self.action(self, site, outcome)
        except InterruptedRunError:
            pass
        except EnvcompareError as error:
            self.keep(error, outcome)
        return outcome

    def keep(self, error: EnvcompareError, outcome: Outcome) -> None:
        """Show an error and remember it; what dies of an interruption is none."""
        if not self.interruption.is_requested:
            self.display.error(error)
            outcome.errors.append(error)


def _clean(task: _Task, site: Site, outcome: Outcome) -> None:
    """Remove the cache, once what dead runs left is gone; a live run keeps both."""
    label = site.host.label
    for claim in claims.survey(site.transport, site.cache):
        if claim.is_live:
            raise claims.refusal(claim, label)
    _tell(task, site, outcome, claims.remove_dead(site.transport, site.cache))
    found = cache.remove_cache(site.transport)
    outcome.lines.append(f"{label}: {'removed' if found else 'nothing to remove at'} {site.cache}")
    cache.remove_pins(site.transport)
    removed = cache.remove_images(site.transport)
    if removed.count:
        outcome.lines.append(f"{label}: images removed from the engine: {removed.count}")
    outcome.lines += [
        f"{label}: the image {name} stays, since one of yours is built on it"
        for name in removed.kept
    ]
    if removed.unseen:
        outcome.lines.append(
            f"{label}: images may stay, since the engine could not be asked: {removed.unseen}"
        )


def _clean_run(run_id: str, task: _Task, site: Site, outcome: Outcome) -> None:
    found = [one for one in claims.survey(site.transport, site.cache) if one.run_id == run_id]
    for claim in found:
        if claim.is_live:
            raise claims.refusal(claim, site.host.label)
    used = tuple(sorted({arm.environment for arm in task.experiment.arms}))
    for claim in found or (claims.Claim(run_id=run_id),):
        known = claim if claim.environments is not None else replace(claim, environments=used)
        _tell(task, site, outcome, claims.remove(site.transport, site.cache, known))
    if not outcome.lines and not outcome.errors:
        outcome.lines.append(f"{site.host.label}: nothing is left of the run {run_id}")


def _tell(task: _Task, site: Site, outcome: Outcome, left: claims.Removal) -> None:
    label = site.host.label
    outcome.lines += [f"{label}: {text}" for text in left.removed]
    for text in left.failed:
        hint = "see what the host says, then run envcompare clean again"
        task.keep(UnusableError(f"{label} is not clean", details=text, hint=hint), outcome)


def _build(task: _Task, site: Site, outcome: Outcome) -> None:
    for text in site.claim():
        outcome.lines.append(f"{site.host.label}: {text}")
    for arm in planned_arms(task.experiment):
        task.interruption.check()
        label = f"{site.host.label} {arm.id}"
        if arm.is_control:
            continue
        say = task.display.saying(label, task.interruption.check)
        try:
            seat = site.add_arm(arm, task.experiment, say)
        except InterruptedRunError:
            raise
        except EnvcompareError as error:
            task.keep(error, outcome)
        else:
            facts = dict(seat.prepared.facts)
            where = seat.prepared.reference or seat.prepared.interpreter
            outcome.lines.append(f"{label}: {where}{_proof(facts)}")
            outcome.locks |= {facts[LOCK]} if LOCK in facts else set()


def _proof(facts: dict[str, str]) -> str:
    """Say what is installed; of the software of envcompare also that it could not be hashed."""
    if TREE in facts:
        return f", site-packages {facts[TREE][:12]}"
    return ", not proven: what is installed could not be hashed" if LOCK in facts else ""
