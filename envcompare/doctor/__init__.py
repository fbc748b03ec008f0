"""Implement `envcompare doctor`: check every host, and compare the stacks already built there.

A step in each arm shows whether its software is as expected; nothing is measured.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from envcompare.config.experiment import Experiment
from envcompare.config.plan import Cell, make_plan, planned_arms
from envcompare.config.settings import DEFAULTS, Settings, options
from envcompare.doctor.checks import ComparedStack, Finding, HostExamination, diagnose, finding
from envcompare.environments import Check
from envcompare.environments.registry import ENVIRONMENTS, all_traits
from envcompare.environments.software import TREE
from envcompare.errors import Interruption, Problem, UnusableError, WorkloadError, as_known
from envcompare.fingerprint.comparing import compare_fingerprints, each_once
from envcompare.fingerprint.evidence import ArmsContext
from envcompare.fingerprint.sentences import other_options
from envcompare.hosts import HostSession, stack_options
from envcompare.hosts.allocation import partitions
from envcompare.hosts.folders import CellFolders
from envcompare.hosts.opening import note_differing_files, open_session, ssh_options
from envcompare.measure import LaunchSpec, derive_seed, stable_variables, with_parameters
from envcompare.measure.worker import Worker
from envcompare.run_folder.records import ArmRecord, FingerprintRecord, FingerprintValue
from envcompare.stack import NotMadeError, Progress
from envcompare.text import cause_line, listed
from envcompare.transport.hosts import LOCAL_NAME, HostSpec, connect


class _NotComparedError(UnusableError):
    """Comparing the stacks would require building one, or measuring."""


def examine(
    experiment: Experiment,
    hosts: tuple[HostSpec, ...],
    command_line: tuple[str, ...] = (),
    *,
    file: Settings | None = None,
) -> Iterator[HostExamination]:
    """Yield an examination of each host, in order, including hosts that cannot be reached.

    Hosts are examined concurrently, at most `experiment.jobs` at a time. A host with several arms
    yields a second, slower examination that adds how its stacks differ. Suggested commands keep the
    options of `command_line`, also where they are the defaults that the configuration file changes.
    """
    flags = other_options(command_line)
    has_several = len(_arms(experiment)) > 1
    with ThreadPoolExecutor(experiment.jobs) as pool:
        asked = [pool.submit(_examined, experiment, host) for host in hosts]

        def compare(number: int) -> HostExamination:
            first = asked[number].result()
            if first.exit_code:
                return first
            return _compared(experiment, hosts[number], flags, first, file or Settings())

        # Queued after all first examinations, so that none waits for a comparison.
        later = [pool.submit(compare, number) for number in range(len(hosts) * has_several)]
        try:
            for number, first in enumerate(asked):
                yield first.result()
                if has_several and not first.result().exit_code:
                    yield later[number].result()
        finally:
            # If the caller stops early, the hosts that were not reached yet are left out.
            pool.shutdown(cancel_futures=True)


def _examined(experiment: Experiment, host: HostSpec) -> HostExamination:
    try:
        return _diagnosed(experiment, host)
    except Exception as fault:  # noqa: BLE001 — recorded; one host must not stop the others
        error = as_known(fault)
        return HostExamination(
            host=host.label,
            trouble=error.problem,
            not_compared=error.problem if len(_arms(experiment)) > 1 else None,
            exit_code=error.exit_code,
        )


def _arms(experiment: Experiment) -> tuple[ArmRecord, ...]:
    return tuple(arm for arm in planned_arms(experiment) if not arm.is_control)


def _diagnosed(experiment: Experiment, host: HostSpec) -> HostExamination:
    # what the user named needs neither wheels nor a base image
    pairs = ((arm.environment, "given" if arm.reference else arm.stack) for arm in experiment.arms)
    arms = tuple(dict.fromkeys(pairs))
    with closing(connect(host, options=ssh_options(experiment))) as transport:
        findings = diagnose(
            transport, arms, options=stack_options(experiment), may_use_gpu=experiment.may_use_gpu
        )
    findings += _cluster(host) if host.is_local else ()
    lacking = [finding for finding in findings if finding.is_needed and not finding.is_usable]
    problem = None
    if lacking and len(_arms(experiment)) > 1:
        known = lacking[0].problem or Problem(brief="")
        brief = f"{lacking[0].subject} cannot be used on {host.label}"
        problem = Problem(brief=brief, details=known.brief, hint=known.hint)
    return HostExamination(
        host=host.label,
        findings=findings,
        not_compared=problem,
        exit_code=UnusableError.exit_code if lacking else 0,
    )


def _cluster(host: HostSpec) -> tuple[Finding, ...]:
    """Return what `--allocation` may request if this machine can submit jobs, else nothing."""
    if shutil.which("sinfo") is None:
        return ()
    checks: dict[str, Check] = {}
    try:
        for each in partitions():
            offer = f"{each.offer}; a job lasts at most {each.limit}"
            checks[f"Slurm partition {each.name}"] = Check(version=offer)
    except UnusableError as error:
        checks["Slurm"] = Check(problem=error.problem)
    checks["container runtimes for jobs"] = _runtimes()
    return tuple(
        finding(host.label, subject, check, is_needed=False) for subject, check in checks.items()
    )


def _runtimes() -> Check:
    """Report which container runtimes that can run in a job are installed on this machine.

    None is started: Podman, for example, would leave a process behind.
    """
    held = [
        where
        for where in ENVIRONMENTS.values()
        if where.traits.reference != "none" and not (where.traits.is_daemons or where.traits.rung)
    ]
    programs = {where.name: next(filter(shutil.which, where.traits.programs), "") for where in held}
    installed = [f"{name} ({program})" for name, program in programs.items() if program]
    if installed:
        return Check(version=f"{', '.join(installed)}; only those of --envs were tried")
    hint = "load the module of a container runtime, then run doctor again"
    return Check(problem=Problem(brief="none is installed on this machine", hint=hint))


def _compared(
    experiment: Experiment,
    host: HostSpec,
    flags: tuple[str, ...],
    known: HostExamination,
    file: Settings,
) -> HostExamination:
    messages: list[str] = []
    progress = Progress(messages.append, may_make=False)
    stacks: tuple[ComparedStack, ...] = ()
    problem, code = None, known.exit_code
    run_id = f"doctor-{uuid.uuid4().hex[:8]}"
    try:
        session = open_session(host, experiment, run_id, Interruption())
        try:
            arms = _arms(experiment)
            stacks = compare_stacks(session, experiment, arms, progress, options=flags)
        finally:
            messages += session.close()
    except _NotComparedError as error:
        # A stack that is not built yet is no failure.
        hint = error.hint or build_command(experiment, host, file, flags)
        problem = Problem(brief=error.brief, hint=hint)
    except Exception as fault:  # noqa: BLE001 — as above
        known_as = as_known(fault)
        hint = known_as.hint
        if isinstance(fault, WorkloadError):
            hint = "fix the workload or its data; `envcompare run` keeps the worker logs"
        details = cause_line(known_as.details, brief=known_as.brief)
        problem = Problem(brief=known_as.brief, details=details, hint=hint)
        code = known_as.exit_code
    else:
        is_fine = experiment.allow_mismatch or all(stack.is_as_meant for stack in stacks)
        code = 0 if is_fine else UnusableError.exit_code
    notes = tuple(dict.fromkeys(messages))
    return replace(known, stacks=stacks, not_compared=problem, notes=notes, exit_code=code)


def build_command(
    experiment: Experiment, host: HostSpec, file: Settings, flags: tuple[str, ...] = ()
) -> str:
    """Return the `envcompare build` command for the arms of the host.

    It gives what is not the default, and what the configuration file gives, which a flag may have
    overridden; the flags may name the file.
    """
    given = replace(experiment.settings, hosts=str(host), allow_mismatch=None)
    # build has no --device.
    if experiment.device == "cpu" and given.variant == "auto":
        given = replace(given, variant="cpu")
    names = (name for name, traits in all_traits().items() if traits.is_default)
    usual = replace(DEFAULTS, envs=tuple(names), hosts=LOCAL_NAME)
    words = list(_config_words(flags))
    for name, (option, _) in options().items():
        value = getattr(given, name)
        if option.group not in {"where", "stack", "ssh"} or value is None:
            continue
        text, flag = _as_flag(value), f"--{name.replace('_', '-')}"
        is_in_file = getattr(file, name) is not None
        if option.is_repeated:
            words += (word for item in listed(value) for word in (flag, item))
        elif isinstance(value, bool):
            words += (flag,) if value else (f"--{option.off}",) * is_in_file
        elif is_in_file or text != _as_flag(getattr(usual, name)):
            words += (flag, text)
    return f"envcompare build {shlex.join(words)}".rstrip()


def _config_words(flags: tuple[str, ...]) -> tuple[str, ...]:
    for number, word in enumerate(flags):
        if word.partition("=")[0] == "--config":
            return flags[number : number + 1 + ("=" not in word)]
    return ()


def _as_flag(value: Any) -> str:  # noqa: ANN401 — whatever a setting holds
    """Return a value as its flag takes it."""
    return f"{value:g}" if isinstance(value, int | float) else ",".join(listed(value))


def compare_stacks(
    session: HostSession,
    experiment: Experiment,
    arms: tuple[ArmRecord, ...],
    progress: Progress,
    *,
    options: tuple[str, ...] = (),
) -> tuple[ComparedStack, ...]:
    """Run a step of each workload in each arm; return how each arm differs from its reference.

    Notes on the software go to `progress`, which may forbid building any. Suggested commands keep
    `options`. Raises NotComparedError if a stack is not built yet or only plain commands would run,
    and WorkloadError if a workload fails.
    """
    cells: dict[str, Cell] = {}  # one of each workload that a worker can run
    for cell in make_plan(experiment, (session.host.label,), accept_many=True).cells:
        if cell.workload.program is None:
            cells.setdefault(cell.workload.name, cell)
    if not cells:
        raise _NotComparedError(
            "doctor does not run plain commands",
            hint="name a workload, as in --workloads cnn",
        )
    for text in session.claim():
        progress.say(text)
    # a mismatch is reported with the other differences
    tolerant = dataclasses.replace(experiment, allow_mismatch=True)
    for arm in arms:
        try:
            session.add_arm(arm, tolerant, progress)
        except NotMadeError as error:
            brief = f"the stack of {arm.id} is not built yet"
            raise _NotComparedError(brief, details=error.details) from error
    note_differing_files(session, progress)
    session.stage()
    prints = {name: _fingerprints(session, experiment, cell) for name, cell in cells.items()}
    pairs = ((counterpart(arm, arms), arm) for arm in arms if not arm.is_reference)
    hosts = ((session.host.label, str(session.host)),)
    context = ArmsContext(options=options, hosts=hosts)
    return tuple(_compared_stack(session, context, pair, prints) for pair in pairs)


def is_meant_same(arm: ArmRecord, other: ArmRecord) -> bool:
    """Return whether two arms should have the same software: one stack, no image of the user."""
    return arm.stack == other.stack and not arm.reference and not other.reference


def counterpart(arm: ArmRecord, arms: tuple[ArmRecord, ...]) -> ArmRecord:
    """Return the arm to compare with: the first that should be the same, else the reference."""
    known = (record for record in arms if record.within == arm.within)
    ordered = sorted(known, key=lambda candidate: not candidate.is_reference)
    alike = next((record for record in ordered if is_meant_same(record, arm)), arm)
    return ordered[0] if alike is arm else alike


def _fingerprints(
    session: HostSession, experiment: Experiment, cell: Cell
) -> dict[str, FingerprintRecord]:
    folders = CellFolders(session=session)
    parameters = dict(cell.parameters)
    data = folders.prepare_data(cell.workload, parameters, experiment)
    spec = replace(folders.spec(cell.workload, parameters, data, experiment), fingerprint=False)
    seed = derive_seed(experiment.seed, "doctor", cell.id)
    variables = stable_variables(experiment.seed, cell.host, 0) if experiment.stabilise else ()
    with tempfile.TemporaryDirectory(prefix="envcompare-doctor-") as logs:
        prints = {}
        for arm in session.arms:
            log = Path(logs) / f"{arm}.log"
            worker = folders.launch(arm, log=log, log_name=log.name, variables=variables)
            arm_spec = with_parameters(spec, session.arms[arm].arm.parameters)
            facts = _facts(worker, arm_spec, seed=seed)
            prints[arm] = session.fingerprint(arm, cell.id, facts, taken="step")
    return prints


def _facts(worker: Worker, spec: LaunchSpec, *, seed: int) -> dict[str, FingerprintValue]:
    """Run two steps in a worker and return its facts."""
    try:
        worker.send_hello(spec)
        worker.await_hello()
        worker.send_begin(seed % 2**31, 0)
        worker.await_begin()
        worker.run(1, 600)  # seconds at most, of the only block
        worker.send_facts()
        facts = worker.await_facts()
        worker.end()
        worker.quit()
    finally:
        worker.kill()
    return facts.fingerprint


def _compared_stack(
    session: HostSession,
    context: ArmsContext,
    pair: tuple[ArmRecord, ArmRecord],
    prints: dict[str, dict[str, FingerprintRecord]],
) -> ComparedStack:
    base, arm = pair
    of_pair = dataclasses.replace(context, arms=pair)
    mismatch = session.arms[arm.id].mismatch
    by_workload = {
        name: compare_fingerprints(by_arm[base.id], by_arm[arm.id], of_pair)
        for name, by_arm in prints.items()
    }
    return ComparedStack(
        arm=arm.id,
        base=base.id,
        is_meant=is_meant_same(base, arm),
        workloads=tuple(prints),
        differences=each_once(by_workload),
        is_proven=base.stack == "host"
        or all(TREE in dict(session.arms[record.id].prepared.facts) for record in pair),
        is_given=bool(base.reference or arm.reference),
        mismatch=mismatch.problem if mismatch else None,
    )
