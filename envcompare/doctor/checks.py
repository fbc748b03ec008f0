"""What works on a host and what does not, each with the one line that mends it; prints nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from envcompare.config.arms import SoftwareKind
from envcompare.doctor.findings import Finding, finding
from envcompare.environments import Check, unusable
from envcompare.environments.gpu import (
    check_choice,
    check_clocks,
    check_driver,
    check_setup,
    find,
    survey,
)
from envcompare.environments.microvms import DETECTED
from envcompare.environments.registry import IMAGE_BUILDER, environment
from envcompare.environments.software import needs
from envcompare.errors import Problem, StackError, TransportError, UnusableError
from envcompare.gpu.devices import HostGpus
from envcompare.profilers import Tool
from envcompare.profilers.toolbox import PROFILERS, find_rights, permission
from envcompare.stack import Options, Progress, Request, storage
from envcompare.stack.host import find_python
from envcompare.stack.tiers import Choice, choose, newest_major
from envcompare.stack.venv import FirstPython, find_interpreter, first_python
from envcompare.stack.wheelhouse import is_filled
from envcompare.transport import Transport, shell
from envcompare.transport.local import LOCAL

_NO_GPU = "nothing to do: the workloads run on the CPU"

# Each fact is a line `name=value`; a fact the host does not have has no line.
_FACTS = r"""
fact() { [ -z "$2" ] || printf '%s=%s\n' "$1" "$2"; }
fact schedstat "$(cat /proc/self/schedstat 2>/dev/null)"
fact perf "$(cat /proc/sys/kernel/perf_event_paranoid 2>/dev/null)"
fact uid "$(id -u)"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then fact cgroup 2
elif [ -d /sys/fs/cgroup/unified ]; then fact cgroup '1 (hybrid)'
elif [ -d /sys/fs/cgroup/cpu ]; then fact cgroup 1; fi
"""


def diagnose(
    transport: Transport,
    arms: tuple[tuple[str, str], ...],
    *,
    options: Options,
    may_use_gpu: bool = True,
) -> tuple[Finding, ...]:
    """Return what a comparison of these arms on the host needs, and what helps it.

    An arm is its environment and its stack; a GPU is left out where it is not to be used.
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
    findings += [
        _python(transport, options, name, first)
        for name, kind in software.items()
        if kind == "venv"
    ]
    if any(stack == "host" for _, stack in arms):
        findings.append(_host_python(transport, options))
    if software:
        findings.append(_wheels(transport, options, wheels))
    if transport.name != LOCAL.name and "image" in software.values():
        findings.append(_builder())
    facts = _facts(transport)
    if gpus is not None:
        findings += _gpu(transport, gpus, environments)
    helpful = {
        "run-queue wait": _waits(facts),
        "cpu counters": _perf(facts),
        "cgroups": _cgroup(facts),
    }
    if any(environment(name).traits.is_isolated for name in environments):
        helpful |= {micro_vm.name: micro_vm.check(transport) for micro_vm in DETECTED}
    kinds = tuple(
        dict.fromkeys(environment(name).traits.made_as for name, stack in arms if stack == "image")
    )
    rooms = _room(transport, kinds, options, wheels)
    return (*findings, *rooms, *_helpful(transport, helpful))


def _helpful(transport: Transport, checks: dict[str, Check]) -> list[Finding]:
    """Return the findings of what a comparison can do without."""
    return [finding(transport.name, name, check, is_needed=False) for name, check in checks.items()]


def _python(
    transport: Transport, options: Options, name: str, first: FirstPython | None
) -> Finding:
    def version() -> str:
        if first and first.is_the_systems and not options.vm_python:
            return f"{first.release} ({first.real_path})"
        python = find_interpreter(transport, python=options.python, chosen=options.vm_python)
        return f"{python.version} ({python.real_path})"

    return _interpreter(transport, f"python for {name}", version)


def _host_python(transport: Transport, options: Options) -> Finding:
    def version() -> str:
        python = find_python(transport, python=options.host_python, imports=options.host_imports)
        imported = (f"{name} {version}" for name, version in python.imported.items())
        return ", ".join((f"{python.version} ({python.path})", *imported))

    return _interpreter(transport, "python of the stack host", version)


def _interpreter(transport: Transport, subject: str, find: Callable[[], str]) -> Finding:
    """Say which interpreter `find` tells of, or why there is none that can be used."""
    try:
        check = Check(version=find())
    except TransportError:
        raise
    except UnusableError as error:
        check = unusable(error.details, error.hint)
    return finding(transport.name, subject, check)


def _choose(transport: Transport, options: Options, gpus: HostGpus | None) -> Choice | StackError:
    """Return the wheels that the host gets, or why none fit."""
    try:
        return choose(options.variant, gpus, python=options.python, host=transport.name)
    except StackError as error:
        return error


def _wheels(transport: Transport, options: Options, wheels: Choice | StackError) -> Finding:
    """Say which PyTorch the host gets, and by what; nothing is resolved yet."""
    if isinstance(wheels, Choice):
        check = Check(version=wheels.sentence)
    else:
        check = unusable(wheels.details, wheels.hint)
    return finding(transport.name, f"wheels for Python {options.python}", check)


def _builder() -> Finding:
    """Say whether the image can be built here; a host that holds it already does without."""
    check = IMAGE_BUILDER.check(LOCAL)
    return finding(LOCAL.name, f"{IMAGE_BUILDER.name}, to build the image", check, is_needed=False)


def _facts(transport: Transport) -> dict[str, str]:
    lines = shell(transport, _FACTS).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _gpu(transport: Transport, gpus: HostGpus, environments: tuple[str, ...]) -> list[Finding]:
    """Say whether there is a GPU; where one is, every environment has to reach it."""
    if not gpus.is_expected:
        none = Check(problem=Problem(brief="no NVIDIA GPU was found on the PCI bus", hint=_NO_GPU))
        return _helpful(transport, {"gpu": none})
    driver = check_driver(transport)
    names = ", ".join(gpu.name for gpu in gpus.gpus)
    is_named = driver.is_usable and names
    named = replace(driver, version=f"{driver.version}, {names}") if is_named else driver
    findings = [finding(transport.name, "gpu driver", named)]
    if not driver.is_usable:
        return findings
    findings.append(finding(transport.name, "gpu setup", check_setup(gpus)))
    said = {"gpu in use": check_choice(gpus), "gpu clocks": check_clocks(gpus)}
    findings += _helpful(transport, {name: check for name, check in said.items() if check})
    files = find(transport, driver)
    for name in environments:
        check = environment(name).check_gpu(transport, files)
        findings.append(finding(transport.name, f"gpu in {name}", check))
    return [*findings, *_profilers(transport, gpus.driver), *_counters(transport, environments)]


def _profilers(transport: Transport, driver: str | None = None) -> list[Finding]:
    """Say which of NVIDIA's profilers the host has; what they tell is missing without them."""
    tools = {name: profiler.discover(transport) for name, profiler in PROFILERS.items()}
    checks = {
        name: tool if isinstance(tool, Check) else tool_check(tool, driver)
        for name, tool in tools.items()
    }
    return _helpful(transport, checks)


def tool_check(tool: Tool, driver: str | None) -> Check:
    """Return the check of a tool, with a caution where it is older than the CUDA of the driver."""
    if not driver or not tool.cuda or int(tool.cuda.partition(".")[0]) >= newest_major(driver):
        return tool.check
    caution = Problem(
        brief=f"{tool.name} {tool.version} traces CUDA up to {tool.cuda}, and driver {driver} "
        f"brings CUDA {newest_major(driver)}: kernels may be missing from its traces",
        hint=f"install a newer version of {tool.name}",
    )
    return replace(tool.check, caution=caution)


def _counters(transport: Transport, environments: tuple[str, ...]) -> list[Finding]:
    """Say for each environment whether a GPU's counters can be read in it."""
    rights = find_rights(transport)
    checks = {
        f"gpu counters in {name}": rights
        if isinstance(rights, Check)
        else permission(environment(name).traits.counters, rights).check
        for name in environments
    }
    return _helpful(transport, checks)


def _room(
    transport: Transport,
    kinds: tuple[SoftwareKind, ...],
    options: Options,
    wheels: Choice | StackError,
) -> Iterator[Finding]:
    """Say of each disk what is free, and whether a stack fits whose wheels are not there yet.

    What is made of wheels that are there is known only to the steps that make it; where none fit,
    another finding says why.
    """
    request = Request(
        transport=transport,
        progress=Progress(lambda _text: None),
        builder=IMAGE_BUILDER.engine,
        options=options,
        beside=kinds,
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


def _waits(facts: dict[str, str]) -> Check:
    lack = Problem(
        brief="the kernel does not count the wait for a CPU",
        hint="nothing to do: verdicts on this host are on wall time",
    )
    has_waits = len(facts.get("schedstat", "").split()) == 3
    return Check(problem=None if has_waits else lack)


def _perf(facts: dict[str, str]) -> Check:
    level = facts.get("perf")
    is_known = level is not None and re.fullmatch(r"-?[0-9]+", level) is not None
    is_open = facts.get("uid") == "0" or (is_known and int(level or 0) <= 2)
    lack = Problem(
        brief="CPU profilers see nothing of this user's processes",
        hint="sudo sysctl -w kernel.perf_event_paranoid=2",
    )
    version = f"perf_event_paranoid {level}" if is_known else None
    return Check(version=version, problem=None if is_open else lack)


def _cgroup(facts: dict[str, str]) -> Check:
    version = facts.get("cgroup")
    lack = Problem(
        brief="no cgroups are mounted at /sys/fs/cgroup",
        hint="nothing to do: limits and peaks of cgroups stay empty",
    )
    return Check(version=f"v{version}") if version else Check(problem=lack)
