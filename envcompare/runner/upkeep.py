"""What is done on the hosts without measuring: make arms usable, clean, unlock, name the holder."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envcompare.config.experiment import Experiment
from envcompare.config.plan import planned_arms
from envcompare.console import Display
from envcompare.environments.registry import ALL_ENVIRONMENTS, ENVIRONMENTS
from envcompare.environments.software import LOCK, TREE
from envcompare.errors import (
    EnvcompareError,
    InterruptedRunError,
    Interruption,
    UnusableError,
    as_known,
    handling_signals,
)
from envcompare.hosts import HostSession, keeper
from envcompare.hosts.keeper import Asker
from envcompare.hosts.opening import hosts_at_once, open_session
from envcompare.stack import Progress, storage, wheelhouse
from envcompare.stack.building import remove_held, remove_images, remove_pins
from envcompare.stack.storage import ImageStore
from envcompare.transport import LOCAL
from envcompare.transport.hosts import HostSpec


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
            # Nothing is pinned: a host without the CPUs of --pin can still be cleaned.
            unpinned = replace(self.experiment, pin=None)
            self.session = open_session(self.host, unpinned, run_id, self.interruption)
            action(self, self.session)
        except InterruptedRunError:
            # The caller raises it once, for all hosts together.
            pass
        except Exception as error:  # noqa: BLE001 — reported; the failure of one host ends no other
            self.keep(as_known(error))

    def locking(self, session: HostSession) -> AbstractContextManager[None]:
        """Keep the host locked meanwhile; raises as `keeper.take`."""
        return keeper.held(
            session.transport,
            Asker.of(self.host, "clean", session.run_id),
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
    with handling_signals(interruption, display.say, after="what is being made"):
        try:
            with hosts_at_once(display, experiment.jobs) as pool:
                tuple(pool.map(lambda task: task.run(action, run_id), tasks))
        finally:
            # Another host may fetch what this one has made until all of them are done.
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
    # The lock comes first, so that `--wait` waits for a run before its claim is looked at.
    with task.locking(session):
        for claim in keeper.survey(transport, cache):
            if claim.is_live:
                raise keeper.refusal(claim, session.host.label)
        task.tell_removal(keeper.remove_dead(transport, cache, environments=ALL_ENVIRONMENTS))
        is_removed = storage.remove_cache(transport)
        task.tell(f"{'removed' if is_removed else 'nothing to remove at'} {cache}")
        engines = [where.engine for where in ENVIRONMENTS.values() if where.engine is not None]
        # Some environments share an engine, whose images are removed once.
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
        # Without a folder of the run, processes and containers of it may still be there.
        for claim in left or (keeper.Claim(run_id=run_id),):
            known = claim if claim.environments is not None else replace(claim, environments=used)
            removal = keeper.remove(transport, cache, known, environments=ALL_ENVIRONMENTS)
            task.tell_removal(removal)
        if not task.outcome.lines and not task.outcome.errors:
            task.tell(f"nothing is left of the run {run_id}")


def _tell_holder(task: _HostTask, session: HostSession) -> None:
    holder = keeper.holder_of(session.transport)
    who = holder.sentence if holder else keeper.unknown_holder(session.transport)
    free = "free, as far as this login can see: no run and no `envcompare clean` holds it"
    task.tell(f"in use: {who}" if who else free)


def _unlock(task: _HostTask, session: HostSession) -> None:
    holder = keeper.holder_of(session.transport)
    if holder is None:
        who = keeper.unknown_holder(session.transport)
        task.tell(
            f"not freed: {who}; `sudo fuser -v` with that path there names the process"
            if who
            else "nothing that this login can see holds the host"
        )
        return
    keeper.end(session.transport, holder)
    task.tell(f"ended process {holder.pid} there, the lock of the host: {holder.sentence}")
    # The claim of the run alone would make `envcompare clean` refuse too.
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
