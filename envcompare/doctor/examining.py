"""What `envcompare doctor` does: ask every host, and compare the stacks that are made there."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator

from msgspec.structs import replace

from envcompare.config.experiment import Experiment
from envcompare.config.plan import planned_arms
from envcompare.config.settings import DEFAULTS, listed
from envcompare.doctor.checks import diagnose
from envcompare.doctor.model import ComparedStack, Finding, HostExamination
from envcompare.doctor.stacks import NotComparedError, compare_stacks
from envcompare.environments.registry import all_traits
from envcompare.errors import EnvcompareError, Problem, UnusableError, WorkloadError
from envcompare.fingerprint.sentences import other_options
from envcompare.hosts.opening import open_session, ssh_options
from envcompare.hosts.session import stack_options
from envcompare.interrupt import Interruption
from envcompare.run_folder.records import ArmRecord
from envcompare.stack import Progress
from envcompare.text import cause_line
from envcompare.transport.hosts import HostSpec, connect

_DEFAULT_ENVIRONMENTS = tuple(name for name, traits in all_traits().items() if traits.is_default)
_TIMEOUT = f"{DEFAULTS.connect_timeout:g}"
_Given = str | tuple[str, ...] | None


def examine(
    experiment: Experiment, hosts: tuple[HostSpec, ...], command_line: tuple[str, ...] = ()
) -> Iterator[HostExamination]:
    """Give what is known of each host as soon as it is known, whether it can be reached or not.

    A second one of a host says how the stacks there differ as well: it takes longer. What it says
    to run has the options of the command line.
    """
    options = other_options(command_line)
    for host in hosts:
        try:
            examined = _diagnosed(experiment, host)
        except EnvcompareError as error:
            examined = HostExamination(
                host=host.label,
                trouble=error.problem,
                not_compared=error.problem if len(_arms(experiment)) > 1 else None,
                exit_code=error.exit_code,
            )
        yield examined
        if not examined.exit_code and len(_arms(experiment)) > 1:
            yield _compared(experiment, host, options, examined)


def _arms(experiment: Experiment) -> tuple[ArmRecord, ...]:
    return tuple(arm for arm in planned_arms(experiment) if not arm.is_control)


def _diagnosed(experiment: Experiment, host: HostSpec) -> HostExamination:
    arms = tuple(dict.fromkeys((arm.environment, arm.stack) for arm in experiment.arms))
    transport = connect(host, options=ssh_options(experiment))
    try:
        may_use_gpu = experiment.device != "cpu"
        options = stack_options(experiment)
        findings = diagnose(transport, arms, options=options, may_use_gpu=may_use_gpu)
    finally:
        transport.close()
    lacking = [finding for finding in findings if finding.is_needed and not finding.is_usable]
    return HostExamination(
        host=host.label,
        findings=findings,
        not_compared=_lack(lacking[0]) if lacking and len(_arms(experiment)) > 1 else None,
        exit_code=UnusableError.exit_code if lacking else 0,
    )


def _lack(finding: Finding) -> Problem:
    known = finding.problem or Problem(brief="")
    return Problem(
        brief=f"{finding.subject} cannot be used on {finding.host}",
        details=known.brief,
        hint=known.hint,
    )


def _compared(
    experiment: Experiment, host: HostSpec, options: tuple[str, ...], known: HostExamination
) -> HostExamination:
    """Return how the stacks of the host differ, where they are made already."""
    said: list[str] = []
    progress = Progress(said.append, may_make=False)
    try:
        stacks = _stacks(experiment, host, options, progress)
    except NotComparedError as error:  # that they are not made yet is no failure
        hint = error.hint or build_command(experiment, host)
        problem, code = Problem(brief=error.brief, hint=hint), known.exit_code
    except EnvcompareError as error:
        details = cause_line(error.details, brief=error.brief)
        problem = Problem(brief=error.brief, details=details, hint=_hint(error))
        code = error.exit_code
    else:
        is_fine = experiment.allow_mismatch or all(stack.is_as_meant for stack in stacks)
        code = 0 if is_fine else UnusableError.exit_code
        notes = tuple(dict.fromkeys(said))
        return replace(known, stacks=stacks, notes=notes, exit_code=code)
    notes = tuple(dict.fromkeys(said))
    return replace(known, not_compared=problem, notes=notes, exit_code=code)


def _stacks(
    experiment: Experiment, host: HostSpec, options: tuple[str, ...], progress: Progress
) -> tuple[ComparedStack, ...]:
    session = open_session(host, experiment, f"doctor-{uuid.uuid4().hex[:8]}", Interruption())
    try:
        return compare_stacks(session, experiment, _arms(experiment), progress, options=options)
    finally:
        session.close()


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


def _hint(error: EnvcompareError) -> str:
    if isinstance(error, WorkloadError):
        return "fix the workload or its data; `envcompare run` keeps the log of its workers"
    return error.hint
