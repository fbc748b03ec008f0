"""What `envcompare doctor` does: ask every host, compare the stacks there, and say it in lines."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from envcompare.config.experiment import Experiment
from envcompare.config.plan import planned_arms
from envcompare.config.settings import DEFAULTS, listed
from envcompare.doctor.checks import Finding, diagnose
from envcompare.doctor.examination import HostExamination, Trouble, compared_stack, trouble_of
from envcompare.doctor.likeness import Likeness, NotComparedError, compare_stacks
from envcompare.environments.registry import all_traits
from envcompare.errors import EnvcompareError, UnusableError, WorkloadError
from envcompare.fingerprint.facts import fact
from envcompare.fingerprint.sentences import SEPARATE, describe, other_options
from envcompare.hosts.opening import open_session, ssh_options
from envcompare.hosts.session import stack_options
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import ArmRecord, FactClass, FactDifference
from envcompare.stack import Progress
from envcompare.text import cause_line
from envcompare.transport.hosts import HostSpec, connect

_MARGIN = "      "
_COUNTED: tuple[tuple[FactClass, str], ...] = (
    ("varied", "made by the environment on purpose"),
    ("identity", "in names and IDs alone"),
)
_NAMED: tuple[tuple[FactClass, str], ...] = (
    ("possible-influence", "possible influence"),
    ("host", "differs though the host is one"),
)
_MOST_NAMES = 6
_DEFAULT_ENVIRONMENTS = tuple(name for name, traits in all_traits().items() if traits.is_default)
_TIMEOUT = f"{DEFAULTS.connect_timeout:g}"
_Given = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What is known of a host so far, and the lines that say what is new of it."""

    found: HostExamination
    lines: tuple[str, ...] = ()


def examine(
    experiment: Experiment, hosts: tuple[HostSpec, ...], command_line: tuple[str, ...] = ()
) -> Iterator[HostReport]:
    """Give a report for each host as soon as it is known, whether it can be reached or not.

    A second one of a host says how the stacks there differ as well: it takes longer. What it says
    to run has the options of the command line.
    """
    options = other_options(command_line)
    for host in hosts:
        try:
            report = _diagnosed(experiment, host)
        except EnvcompareError as error:
            lines = (f"{host.label}:", *_indented(error.lines()))
            trouble = trouble_of(error)
            found = HostExamination(
                host=host.label,
                trouble=trouble,
                not_compared=trouble if len(_arms(experiment)) > 1 else None,
                exit_code=error.exit_code,
            )
            yield HostReport(found=found, lines=lines)
            continue
        yield report
        if not report.found.exit_code and len(_arms(experiment)) > 1:
            yield _compared(experiment, host, options, report.found)


def _arms(experiment: Experiment) -> tuple[ArmRecord, ...]:
    return tuple(arm for arm in planned_arms(experiment) if not arm.is_control)


def _diagnosed(experiment: Experiment, host: HostSpec) -> HostReport:
    arms = tuple(dict.fromkeys((arm.environment, arm.stack) for arm in experiment.arms))
    transport = connect(host, options=ssh_options(experiment))
    try:
        may_use_gpu = experiment.device != "cpu"
        options = stack_options(experiment)
        found = diagnose(transport, arms, options=options, may_use_gpu=may_use_gpu)
    finally:
        transport.close()
    lines = (f"{host.label}:", *(line for one in found for line in _lines(one)))
    lacking = [one for one in found if one.is_needed and not one.is_usable]
    examined = HostExamination(
        host=host.label,
        findings=found,
        not_compared=_lack(lacking[0]) if lacking and len(_arms(experiment)) > 1 else None,
        exit_code=UnusableError.exit_code if lacking else 0,
    )
    return HostReport(found=examined, lines=lines)


def _lack(one: Finding) -> Trouble:
    return Trouble(
        brief=f"{one.subject} cannot be used on {one.host}", details=one.reason, hint=one.hint
    )


def _compared(
    experiment: Experiment, host: HostSpec, options: tuple[str, ...], known: HostExamination
) -> HostReport:
    """Say how the stacks of the host differ, where they are made already."""
    said: list[str] = []
    try:
        likenesses = _likenesses(experiment, host, options, Progress(said.append, may_make=False))
    except EnvcompareError as error:
        notes = tuple(dict.fromkeys(said))
        return _not_compared(error, build_command(experiment, host), notes, known)
    notes = tuple(dict.fromkeys(said))
    is_as_meant = all(one.is_as_meant for one in likenesses)
    found = replace(
        known,
        stacks=tuple(compared_stack(one) for one in likenesses),
        notes=notes,
        exit_code=0 if is_as_meant or experiment.allow_mismatch else UnusableError.exit_code,
    )
    allowed = "  – stacks differ and are compared all the same (--allow-mismatch)"
    lines = (
        *(f"  – {note}" for note in notes),
        *(line for one in likenesses for line in likeness_lines(one, _arms(experiment))),
        *((allowed,) if experiment.allow_mismatch and not is_as_meant else ()),
    )
    return HostReport(found=found, lines=lines)


def _not_compared(
    error: EnvcompareError, build: str, notes: tuple[str, ...], known: HostExamination
) -> HostReport:
    """Say why the stacks were not compared; that they are not made yet is no failure."""
    is_failure = not isinstance(error, NotComparedError)
    trouble = Trouble(
        brief=error.brief,
        details=cause_line(error.details, brief=error.brief) if is_failure else "",
        hint=_hint(error) if is_failure else error.hint or build,
    )
    code = error.exit_code if is_failure else known.exit_code
    lines = (
        *(f"  – {note}" for note in notes),
        f"  {'✕' if is_failure else '–'} stacks: not compared, {trouble.brief}",
        *((f"{_MARGIN}why: {trouble.details}",) if trouble.details else ()),
        *_try(trouble.hint),
    )
    found = replace(known, not_compared=trouble, notes=notes, exit_code=code)
    return HostReport(found=found, lines=lines)


def _likenesses(
    experiment: Experiment, host: HostSpec, options: tuple[str, ...], progress: Progress
) -> tuple[Likeness, ...]:
    session = open_session(host, experiment, f"doctor-{uuid.uuid4().hex[:8]}", Interruption())
    try:
        return compare_stacks(session, experiment, _arms(experiment), progress, options=options)
    finally:
        session.close()


def likeness_lines(found: Likeness, arms: tuple[ArmRecord, ...]) -> tuple[str, ...]:
    """Say how an arm differs from the one it is compared with, what matters first."""
    where = f"in a step of {', '.join(found.workloads)}"
    leading = [one for one in found.differences if one.fact_class == "confounder"]
    told = [one for one in leading if not one.part_of]
    head = f"  {_head(found, arms, is_other=bool(told))}"
    broken = (f"{_MARGIN}⚠ {found.mismatch}",) if found.mismatch else ()
    others = [one for one in found.unexpected if one not in told and not one.part_of]
    more = (f"{_MARGIN}⚠ {describe(one)}: {one.sentence}" for one in others)
    counts = _counts(found.differences)
    return (f"{head}, {where}", *broken, *_try(found.hint), *_confounders(told), *more, *counts)


def _confounders(told: list[FactDifference]) -> Iterator[str]:
    """Give their sentences, and once what separates those that one command separates."""
    for remedy in dict.fromkeys(one.remedy for one in told):
        for one in told:
            if one.remedy == remedy:
                yield f"{_MARGIN}⚠ {one.sentence}"
        if remedy:
            yield f"{_MARGIN}  {SEPARATE}{remedy}"


def _head(found: Likeness, arms: tuple[ArmRecord, ...], *, is_other: bool) -> str:
    """Say whether an arm has the software it should have, as far as that was seen."""
    if not found.is_as_meant:
        return f"✕ stack of {found.arm}: not the software of {found.base}, as it should be"
    if is_other:
        own = any(one.id in {found.arm, found.base} and one.reference for one in arms)
        why = "your own image" if own else "another stack"
        return f"✓ stack of {found.arm}: other software than {found.base}'s, as expected of {why}"
    if not found.is_meant:
        return f"✓ stack of {found.arm}: nothing felt that differs from {found.base}'s"
    if not found.is_proven:
        return f"– stack of {found.arm}: like {found.base}'s, but not all of it could be hashed"
    return f"✓ stack of {found.arm}: the software of {found.base}"


def _counts(differences: tuple[FactDifference, ...]) -> Iterator[str]:
    for fact_class, words in _NAMED:
        told = [one for one in differences if not one.part_of]
        keys = [one.key for one in told if one.fact_class == fact_class]
        names = list(dict.fromkeys(fact(key).name for key in keys))
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        if names:
            yield f"{_MARGIN}{words}: {', '.join(names[:_MOST_NAMES])}{more}"
    counts = [
        f"{count} {words}"
        for kind, words in _COUNTED
        if (count := sum(one.fact_class == kind for one in differences))
    ]
    if counts:
        yield f"{_MARGIN}other differences: {', '.join(counts)}"


def build_command(experiment: Experiment, host: HostSpec) -> str:
    """Return the command that makes what the arms of the host need."""
    given = experiment.settings
    is_cpu = experiment.device == "cpu" and experiment.variant == "auto"  # build has no --device
    values = {
        "--envs": _unless(_DEFAULT_ENVIRONMENTS, given.envs),
        "--stacks": _unless(DEFAULTS.stacks, given.stacks),
        "--hosts": "" if host.is_local else str(host),
        "--base-image": experiment.base_image,
        "--variant": _unless(DEFAULTS.variant, "cpu" if is_cpu else given.variant),
        "--sif-compression": _unless(DEFAULTS.sif_compression, given.sif_compression),
        "--python": _unless(DEFAULTS.python, given.python),
        "--vm-python": experiment.vm_python,
        "--host-python": experiment.host_python,
        "--ssh-config": experiment.ssh_config,
        "--connect-timeout": _unless(_TIMEOUT, f"{experiment.connect_timeout_s:g}"),
    }
    words = [word for flag, value in values.items() if value for word in (flag, value)]
    words += ["--accept-new-host-keys"] if experiment.accept_new_host_keys else []
    return f"envcompare build {shlex.join(words)}".rstrip()


def _unless(default: _Given, given: _Given) -> str:
    """Return what was given as a flag takes it; empty where it is the default."""
    return "" if listed(given) == listed(default) else ",".join(listed(given))


def _lines(finding: Finding) -> tuple[str, ...]:
    if finding.is_usable:
        text = f"  ✓ {finding.subject}: {finding.version or 'usable'}"
    else:
        mark = "✕" if finding.is_needed else "–"
        text = f"  {mark} {finding.subject}: {finding.reason}"
    return (text, *_try(finding.hint))


def _try(hint: str) -> tuple[str, ...]:
    return (f"{_MARGIN}try: {hint}",) if hint else ()


def _hint(error: EnvcompareError) -> str:
    if isinstance(error, WorkloadError):
        return "mend the workload or its data; `envcompare run` keeps the log of its workers"
    return error.hint


def _indented(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"  ✕ {line}" if line.startswith("error") else f"  {line}" for line in lines)
