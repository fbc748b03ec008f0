"""Whether the arms of a host have the software they should: a step in each tells, not a measure."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from envcompare.analysis.timing.surroundings import each_once
from envcompare.config.experiment import Experiment
from envcompare.config.plan import Cell, derive_seed, make_plan
from envcompare.doctor.model import ComparedStack
from envcompare.errors import UnusableError
from envcompare.fingerprint.comparing import compare_fingerprints
from envcompare.fingerprint.pair import ArmsContext
from envcompare.hosts.folders import CellFolders
from envcompare.hosts.session import HostSession
from envcompare.measure.context import Variables, stable_variables
from envcompare.measure.worker import LaunchSpec, Worker
from envcompare.run_folder.records import (
    ArmRecord,
    FingerprintRecord,
    FingerprintValue,
)
from envcompare.stack import NotMadeError, Progress
from envcompare.stack.proof import TREE

_STEP_S = 600.0  # at most, of the only block


class NotComparedError(UnusableError):
    """The stacks cannot be compared without making one first, or without measuring."""


def compare_stacks(
    session: HostSession,
    experiment: Experiment,
    arms: tuple[ArmRecord, ...],
    progress: Progress,
    *,
    options: tuple[str, ...] = (),
) -> tuple[ComparedStack, ...]:
    """Return how each arm differs from its reference, after a step of each workload in each.

    What else is to be known of the software goes to `progress`, which may forbid making any; a
    command that would separate a difference has these options beside its own. Raises
    NotComparedError where a stack is not there yet or only plain commands are to run, and
    WorkloadError where a workload fails.
    """
    cells = tuple(_cells(session, experiment))
    if not cells:
        raise NotComparedError(
            "a plain command is not run without measuring it",
            hint="name a workload, as in --workloads cnn",
        )
    for text in session.claim():
        progress.say(text)
    _make_ready(session, experiment, arms, progress)
    session.tell_files_apart(progress)
    session.stage()
    prints = {cell.workload.name: _fingerprints(session, experiment, cell) for cell in cells}
    pairs = ((counterpart(arm, arms), arm) for arm in arms if not arm.is_reference)
    return tuple(_compared(session, pair, prints, options) for pair in pairs)


def is_meant_same(one: ArmRecord, other: ArmRecord) -> bool:
    """Say whether two arms should have the same software: one stack, and no image of the user's."""
    return one.stack == other.stack and not one.reference and not other.reference


def counterpart(arm: ArmRecord, arms: tuple[ArmRecord, ...]) -> ArmRecord:
    """Return the arm to compare with: the reference, or the first that should be the same."""
    ordered = sorted(arms, key=lambda one: not one.is_reference)
    alike = next((one for one in ordered if is_meant_same(one, arm)), arm)
    return ordered[0] if alike is arm else alike


def _make_ready(
    session: HostSession, experiment: Experiment, arms: tuple[ArmRecord, ...], progress: Progress
) -> None:
    """Make the arms usable as far as nothing has to be made for them."""
    tolerant = replace(experiment, allow_mismatch=True)  # it is told with the other differences
    for arm in arms:
        try:
            session.add_arm(arm, tolerant, progress)
        except NotMadeError as error:
            brief = f"{arm.id}'s is not made yet"
            raise NotComparedError(brief, details=error.details) from error


def _cells(session: HostSession, experiment: Experiment) -> Iterator[Cell]:
    """Give one cell of each workload that a worker can run."""
    planned = make_plan(experiment, (session.host.label,), accept_many=True).cells
    first: dict[str, Cell] = {}
    for cell in planned:
        if cell.workload.program is None:
            first.setdefault(cell.workload.name, cell)
    yield from first.values()


def _fingerprints(
    session: HostSession, experiment: Experiment, cell: Cell
) -> dict[str, FingerprintRecord]:
    """Run a step of a workload in every arm; return what each found around itself then."""
    folders = CellFolders(session=session)
    parameters = dict(cell.parameters)
    data = folders.prepare_data(cell.workload, parameters, experiment)
    spec = folders.spec(cell.workload, parameters, data, experiment)
    spec = structs.replace(spec, fingerprint=False)
    variables: Variables = ()
    if experiment.stabilise:
        variables = stable_variables(experiment.seed, cell.id, 0)
    with tempfile.TemporaryDirectory(prefix="envcompare-doctor-") as logs:
        prints = {}
        for arm in session.arms:
            name = f"{arm}.log"
            log = Path(logs) / name
            worker = folders.launch(arm, log=log, log_name=name, variables=variables)
            facts = _facts(worker, spec, seed=derive_seed(experiment.seed, "doctor", cell.id))
            prints[arm] = session.fingerprint(arm, cell.id, facts, taken="step")
    return prints


def _facts(worker: Worker, spec: LaunchSpec, *, seed: int) -> dict[str, FingerprintValue]:
    """Let a worker do its first step and another one, and say what is around it then."""
    try:
        worker.send_hello(spec)
        worker.await_hello()
        worker.send_begin(seed % 2**31, 0)
        worker.await_begin()
        worker.run(1, _STEP_S)
        worker.send_facts()
        facts = worker.await_facts()
        worker.end()
        worker.quit()
    finally:
        worker.kill()
    return facts.fingerprint


def _compared(
    session: HostSession,
    pair: tuple[ArmRecord, ArmRecord],
    prints: dict[str, dict[str, FingerprintRecord]],
    options: tuple[str, ...],
) -> ComparedStack:
    base, arm = pair
    known = ArmsContext(arms=pair, options=options)
    mismatch = session.arms[arm.id].mismatch
    by_workload = {
        name: compare_fingerprints(by_arm[base.id], by_arm[arm.id], known)
        for name, by_arm in prints.items()
    }
    return ComparedStack(
        arm=arm.id,
        base=base.id,
        is_meant=is_meant_same(base, arm),
        workloads=tuple(prints),
        differences=each_once(by_workload),
        is_proven=base.stack == "host"
        or all(TREE in _facts_of(session, one) for one in (base, arm)),
        is_given=bool(base.reference or arm.reference),
        mismatch=mismatch.problem if mismatch else None,
    )


def _facts_of(session: HostSession, arm: ArmRecord) -> dict[str, str]:
    return dict(session.arms[arm.id].prepared.facts)
