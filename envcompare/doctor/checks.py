"""Check what works on a host, and render findings and fixes as JSON and as lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from envcompare.config import SoftwareKind
from envcompare.environments import Check, unusable
from envcompare.environments.gpu import (
    check_choice,
    check_clocks,
    check_driver,
    check_setup,
    find,
    survey,
)
from envcompare.environments.registry import IMAGE_BUILDER, environment
from envcompare.environments.software import TREE, needs
from envcompare.errors import Problem, StackError, TransportError, UnusableError
from envcompare.fingerprint import INSTALLED_PARTS, fact
from envcompare.fingerprint.sentences import SEPARATE, describe
from envcompare.gpu import HostGpus
from envcompare.profilers import Tool
from envcompare.profilers.toolbox import PROFILERS, find_rights, permission
from envcompare.run_folder.records import SCHEMA, FactClass, FactDifference
from envcompare.stack import Choice, Options, Progress, Request, choose, newest_major, storage
from envcompare.stack.building import where_base_is
from envcompare.stack.storage import ImageStore
from envcompare.stack.venv import FirstPython, find_interpreter, find_python, first_python
from envcompare.stack.wheelhouse import is_filled
from envcompare.text import first_few
from envcompare.transport import LOCAL, Transport, shell

# Each line is `name=value`; a missing fact has no line.
_FACTS = r"""
fact() { [ -z "$2" ] || printf '%s=%s\n' "$1" "$2"; }
fact schedstat "$(cat /proc/self/schedstat 2>/dev/null)"
fact perf "$(cat /proc/sys/kernel/perf_event_paranoid 2>/dev/null)"
fact uid "$(id -u)"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then fact cgroup 2
elif [ -d /sys/fs/cgroup/unified ]; then fact cgroup '1 (hybrid)'
elif [ -d /sys/fs/cgroup/cpu ]; then fact cgroup 1; fi
"""
_MARGIN = "      "


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A check of one thing on one host; a run fails if it is needed and not usable."""

    host: str
    subject: str
    is_usable: bool
    is_needed: bool
    version: str | None = None
    problem: Annotated[
        Problem | None, Meta(description="what is wrong with it, or could be better")
    ] = None


class ComparedStack(msgspec.Struct, frozen=True, kw_only=True):
    """How the software of an arm differs from another arm's, after a step in each."""

    arm: str
    base: Annotated[str, Meta(description="the arm it is compared with")]
    workloads: tuple[str, ...]
    is_meant: Annotated[bool, Meta(description="both should have the same software")]
    is_as_meant: Annotated[bool, Meta(description="nothing differs that should not")] = True
    is_proven: Annotated[bool, Meta(description="what is installed was hashed in both")] = True
    is_given: Annotated[bool, Meta(description="one of them is an image of the user's")] = False
    mismatch: Annotated[
        Problem | None, Meta(description="where the proof of the stack is broken")
    ] = None
    differences: tuple[FactDifference, ...] = ()

    def __post_init__(self) -> None:
        """Set whether everything is as expected."""
        is_as_meant = self.mismatch is None and not self.unexpected
        msgspec.structs.force_setattr(self, "is_as_meant", is_as_meant)

    @property
    def unexpected(self) -> tuple[FactDifference, ...]:
        """Return the unexpected differences: other software, or other installed files.

        A hash that could not be computed does not count.
        """
        return tuple(
            difference
            for difference in self.differences
            if self.is_meant
            and (
                None not in (difference.reference, difference.value)
                if difference.key in {TREE, INSTALLED_PARTS}
                else difference.fact_class == "confounder" and not difference.part_of
            )
        )


class HostExamination(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has and lacks, and how its stacks differ."""

    host: str
    exit_code: int = 0
    trouble: Annotated[Problem | None, Meta(description="why the host could not be asked")] = None
    findings: tuple[Finding, ...] = ()
    stacks: tuple[ComparedStack, ...] = ()
    not_compared: Annotated[Problem | None, Meta(description="why no stacks were compared")] = None
    notes: tuple[str, ...] = ()


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts, and the overall exit code."""

    hosts: tuple[HostExamination, ...]
    allow_mismatch: bool = False
    exit_code: int = 0
    schema: Literal[2] = SCHEMA


def finding(host: str, subject: str, check: Check, *, is_needed: bool = True) -> Finding:
    """Return the result of a check as a finding."""
    return Finding(
        host=host,
        subject=subject,
        is_usable=check.is_usable,
        is_needed=is_needed,
        version=check.version,
        problem=check.problem or check.caution,
    )


def overall_exit_code(hosts: tuple[HostExamination, ...]) -> int:
    """Return the smallest nonzero exit code; 0 if nothing needed is missing."""
    return min({host.exit_code for host in hosts} - {0}, default=0)


def diagnose(
    transport: Transport,
    arms: tuple[tuple[str, str], ...],
    *,
    options: Options,
    may_use_gpu: bool = True,
) -> tuple[Finding, ...]:
    """Return findings on what comparing these arms needs, and on what is optional.

    Each arm is a pair of environment and stack; the GPU is skipped unless `may_use_gpu`.
    """
    first = None if options.python else first_python(transport, chosen=options.vm_python)
    python = options.python or (first or FirstPython()).version
    gpus = survey(transport) if may_use_gpu else None
    options = replace(options, python=python)
    wheels = _choose(transport, options, gpus)
    environments = tuple(dict.fromkeys(name for name, _ in arms))
    findings = [
        finding(transport.name, name, environment(name).check(transport)) for name in environments
    ]
    software = {name: environment(name).traits.software for name, stack in arms if stack == "image"}
    venv_python = partial(_venv_python, transport, options, first)
    findings += [
        _interpreter(transport, f"python for {name}", venv_python)
        for name, kind in software.items()
        if kind == "venv"
    ]
    if any(stack == "host" for _, stack in arms):
        host_python = partial(_host_python, transport, options)
        findings.append(_interpreter(transport, "python of the stack host", host_python))
    if software:
        check = (
            Check(version=wheels.sentence)
            if isinstance(wheels, Choice)
            else unusable(wheels.details, wheels.hint)
        )
        findings.append(finding(transport.name, f"wheels for Python {options.python}", check))
    is_of_image = bool(set(software.values()) - {"venv"})
    if is_of_image:
        findings += _base(transport, options)
    if is_of_image and transport.name != LOCAL.name:
        # a host that already has the image needs no builder
        subject = f"{IMAGE_BUILDER.name}, to build the image"
        check = IMAGE_BUILDER.check(LOCAL)
        findings.append(finding(LOCAL.name, subject, check, is_needed=False))
    lines = shell(transport, _FACTS).stdout.splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    if gpus is not None:
        findings += _gpu(transport, gpus, environments)
    rooms = _room(transport, tuple(dict.fromkeys(software.values())), options, wheels)
    return (*findings, *rooms, *_helpful(transport, _kernel_checks(facts)))


def _helpful(transport: Transport, checks: dict[str, Check]) -> list[Finding]:
    return [finding(transport.name, name, check, is_needed=False) for name, check in checks.items()]


def _venv_python(transport: Transport, options: Options, first: FirstPython | None) -> str:
    if first and first.is_the_systems and not options.vm_python:
        return f"{first.release} ({first.real_path})"
    python = find_interpreter(transport, python=options.python, chosen=options.vm_python)
    return f"{python.version} ({python.real_path})"


def _host_python(transport: Transport, options: Options) -> str:
    python = find_python(transport, python=options.host_python, imports=options.host_imports)
    imported = (f"{name} {version}" for name, version in python.imported.items())
    return ", ".join((f"{python.version} ({python.path})", *imported))


def _interpreter(transport: Transport, subject: str, find: Callable[[], str]) -> Finding:
    try:
        check = Check(version=find())
    except TransportError:
        raise
    except UnusableError as error:
        check = unusable(error.details, error.hint)
    return finding(transport.name, subject, check)


def _choose(transport: Transport, options: Options, gpus: HostGpus | None) -> Choice | StackError:
    try:
        return choose(options.variant, gpus, python=options.python, host=transport.name)
    except StackError as error:
        return error


def _base(transport: Transport, options: Options) -> list[Finding]:
    """Report whether the base of the image can be had; nothing if an engine cannot be asked."""
    local, there = (
        ImageStore(engine=IMAGE_BUILDER.engine, transport=t) for t in (LOCAL, transport)
    )
    try:
        check = Check(version=where_base_is(options.base, local=local, there=there))
    except StackError as error:
        check = unusable(f"it is not here and cannot be pulled: {error.details}", error.hint)
    except UnusableError:
        return []
    return [finding(transport.name, f"base image {options.base}", check)]


def _gpu(transport: Transport, gpus: HostGpus, environments: tuple[str, ...]) -> list[Finding]:
    """Report whether there is a GPU; if so, every environment must reach it."""
    if not gpus.is_expected:
        hint = "nothing to do: the workloads run on the CPU"
        none = Problem(brief="no NVIDIA GPU was found on the PCI bus", hint=hint)
        return _helpful(transport, {"gpu": Check(problem=none)})
    driver = check_driver(transport)
    names = ", ".join(gpu.name for gpu in gpus.gpus)
    is_named = driver.is_usable and names
    named = replace(driver, version=f"{driver.version}, {names}") if is_named else driver
    findings = [finding(transport.name, "gpu driver", named)]
    if not driver.is_usable:
        return findings
    findings.append(finding(transport.name, "gpu setup", check_setup(gpus)))
    checks_of_gpu = {"gpu in use": check_choice(gpus), "gpu clocks": check_clocks(gpus)}
    findings += _helpful(transport, {name: check for name, check in checks_of_gpu.items() if check})
    files = find(transport, driver)
    for name in environments:
        check = environment(name).check_gpu(transport, files)
        findings.append(finding(transport.name, f"gpu in {name}", check))
    tools = {name: profiler.discover(transport) for name, profiler in PROFILERS.items()}
    rights = find_rights(transport)
    checks = {
        name: tool if isinstance(tool, Check) else tool_check(tool, gpus.driver)
        for name, tool in tools.items()
    }
    for name in environments:
        checks[f"gpu counters in {name}"] = (
            rights
            if isinstance(rights, Check)
            else permission(environment(name).traits.counters, rights).check
        )
    return [*findings, *_helpful(transport, checks)]


def tool_check(tool: Tool, driver: str | None) -> Check:
    """Return the check of a tool, with a caution if it is older than the driver's CUDA."""
    if not driver or not tool.cuda or int(tool.cuda.partition(".")[0]) >= newest_major(driver):
        return tool.check
    caution = Problem(
        brief=f"{tool.name} {tool.version} traces CUDA up to {tool.cuda}, but driver {driver} "
        f"has CUDA {newest_major(driver)}: kernels may be missing",
        hint=f"install a newer version of {tool.name}",
    )
    return replace(tool.check, caution=caution)


def _room(
    transport: Transport,
    kinds: tuple[SoftwareKind, ...],
    options: Options,
    wheels: Choice | StackError,
) -> Iterator[Finding]:
    """Report the free space of each disk, and whether a stack fits if its wheels are not there yet.

    Once the wheels are there, only the build knows what else is missing. If no wheels fit, another
    finding says why.
    """
    request = Request(
        transport=transport,
        progress=Progress(lambda _text: None),
        builder=IMAGE_BUILDER.engine,
        options=options,
        kinds=kinds,
    )
    amount = storage.Amount(packed_bytes=0, unpacked_bytes=0)
    if kinds and isinstance(wheels, Choice) and not is_filled(wheels, python=options.python):
        amount = storage.expected(wheels.variant)
    for disk in storage.survey(needs(request), amount):
        free = None if disk.free_bytes is None else f"{disk.free_bytes / 1e9:.0f} GB free"
        check = Check(version=free, problem=None if disk.is_enough else disk.problem)
        name = disk.transport.name
        where = "" if name == transport.name else f" ({name})"
        yield finding(name, f"disk of {disk.what}{where}", check, is_needed=False)


def _kernel_checks(facts: dict[str, str]) -> dict[str, Check]:
    """Return what the kernel lets envcompare read, of the facts that `_FACTS` prints."""
    no_waits = Problem(
        brief="the kernel does not count the wait for a CPU",
        hint="nothing to do: this host is judged on wall time",
    )
    # The kernel shows three numbers where it counts the wait (sched-stats.rst).
    has_waits = len(facts.get("schedstat", "").split()) == 3
    no_counters = Problem(
        brief="CPU profilers see nothing of this user's processes",
        hint="sudo sysctl -w kernel.perf_event_paranoid=2",
    )
    level = facts.get("perf", "")
    is_known = re.fullmatch(r"-?[0-9]+", level) is not None
    # Up to level 2, users may measure their own processes (perf_event_open(2)).
    is_open = facts.get("uid") == "0" or (is_known and int(level) <= 2)
    no_cgroups = Problem(
        brief="no cgroups are mounted at /sys/fs/cgroup",
        hint="nothing to do: cgroup limits and peaks stay empty",
    )
    cgroup = facts.get("cgroup")
    return {
        "run-queue wait": Check(problem=None if has_waits else no_waits),
        "cpu counters": Check(
            version=f"perf_event_paranoid {level}" if is_known else None,
            problem=None if is_open else no_counters,
        ),
        "cgroups": Check(version=f"v{cgroup}") if cgroup else Check(problem=no_cgroups),
    }


def diagnosis_lines(host: HostExamination) -> tuple[str, ...]:
    """Return what a host has and lacks, each problem with its fix."""
    if host.trouble is not None:
        error, *rest = host.trouble.lines()
        return (f"{host.host}:", f"  ✕ {error}", *(f"  {line}" for line in rest))
    return (f"{host.host}:", *(line for one in host.findings for line in _finding_lines(one)))


def comparison_lines(host: HostExamination, *, allow_mismatch: bool = False) -> tuple[str, ...]:
    """Return how the stacks of a host differ, or why they were not compared."""
    notes = (f"  – {note}" for note in host.notes)
    if host.not_compared is not None:
        problem = host.not_compared
        # A stack that is not built yet is no failure.
        mark = "✕" if host.exit_code else "–"
        why = (f"{_MARGIN}why: {problem.details}",) if problem.details else ()
        head = f"  {mark} stacks: not compared, {problem.brief}"
        return (*notes, head, *why, *_try(problem.hint))
    is_allowed = allow_mismatch and not all(stack.is_as_meant for stack in host.stacks)
    allowed = "  – stacks differ and are compared anyway (--allow-mismatch)"
    lines = (line for stack in host.stacks for line in _stack_lines(stack))
    return (*notes, *lines, *((allowed,) * is_allowed))


def _stack_lines(stack: ComparedStack) -> tuple[str, ...]:
    where = f"in a step of {', '.join(stack.workloads)}"
    leading = [
        difference for difference in stack.differences if difference.fact_class == "confounder"
    ]
    leaders = [difference for difference in leading if not difference.part_of]
    head = f"  {_head(stack, is_other=bool(leaders))}"
    broken: tuple[str, ...] = ()
    if stack.mismatch:
        broken = (f"{_MARGIN}⚠ {stack.mismatch.details}", *_try(stack.mismatch.hint))
    others = [
        difference
        for difference in stack.unexpected
        if difference not in leaders and not difference.part_of
    ]
    more = (f"{_MARGIN}⚠ {describe(difference)}: {difference.sentence}" for difference in others)
    counts = _counts(stack.differences)
    return (f"{head}, {where}", *broken, *_confounders(leaders), *more, *counts)


def _confounders(leaders: list[FactDifference]) -> Iterator[str]:
    """Yield their sentences; a command that separates several is given once."""
    for remedy in dict.fromkeys(leader.remedy for leader in leaders):
        for difference in leaders:
            if difference.remedy == remedy:
                yield f"{_MARGIN}⚠ {difference.sentence}"
        if remedy:
            yield f"{_MARGIN}  {SEPARATE}{remedy}"


def _head(stack: ComparedStack, *, is_other: bool) -> str:
    """Return whether an arm has the expected software, as far as that was checked."""
    if not stack.is_as_meant:
        return f"✕ stack of {stack.arm}: software differs from {stack.base}'s, but should not"
    if is_other:
        why = "your own image" if stack.is_given else "another stack"
        return f"✓ stack of {stack.arm}: software differs from {stack.base}'s, expected of {why}"
    if not stack.is_meant:
        return f"✓ stack of {stack.arm}: no confounder against {stack.base}"
    if not stack.is_proven:
        return f"– stack of {stack.arm}: like {stack.base}'s, but not everything could be hashed"
    return f"✓ stack of {stack.arm}: same software as {stack.base}"


def _counts(differences: tuple[FactDifference, ...]) -> Iterator[str]:
    named: dict[FactClass, str] = {
        "possible-influence": "possible influence",
        "host": "differs although the host is the same",
    }
    counted: dict[FactClass, str] = {
        "varied": "made by the environment on purpose",
        "identity": "in names and IDs",
    }
    leaders = [difference for difference in differences if not difference.part_of]
    for fact_class, words in named.items():
        keys = [leader.key for leader in leaders if leader.fact_class == fact_class]
        names = list(dict.fromkeys(fact(key).name for key in keys))
        if names:
            yield f"{_MARGIN}{words}: {first_few(names, most=6)}"
    counts = [
        f"{count} {words}"
        for fact_class, words in counted.items()
        if (count := sum(difference.fact_class == fact_class for difference in differences))
    ]
    if counts:
        yield f"{_MARGIN}other differences: {', '.join(counts)}"


def _finding_lines(finding: Finding) -> tuple[str, ...]:
    brief = finding.problem.brief if finding.problem else ""
    if finding.is_usable:
        text = f"  ✓ {finding.subject}: {finding.version or 'usable'}"
        text += f", but {brief}" * bool(brief)
    else:
        text = f"  {'✕' if finding.is_needed else '–'} {finding.subject}: {brief}"
    return (text, *_try(finding.problem.hint if finding.problem else ""))


def _try(hint: str) -> tuple[str, ...]:
    return (f"{_MARGIN}try: {hint}",) if hint else ()
