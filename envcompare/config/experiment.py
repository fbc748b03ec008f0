"""The frozen experiment: settings, checked against each other, with `--search` and `--until`."""

from __future__ import annotations

import math
import os
import re
import secrets
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from envcompare.config import (
    IN_IMAGE,
    Arm,
    Compression,
    Place,
    Variant,
    check_image,
    chosen_reference,
    chosen_stacks,
    expand_stacks,
    on_network,
    parse_arms,
    parse_places,
    with_options,
    with_values,
)
from envcompare.config.scheduling import Allocation, check_allocation, parse_allocation
from envcompare.config.settings import (
    DEFAULTS,
    PRESETS,
    Device,
    Generation,
    Preset,
    Settings,
    merge,
    options,
)
from envcompare.config.workloads import (
    Known,
    Workload,
    choose_workloads,
    info_of,
    out_of_range,
    own_name,
    writes_into_data,
)
from envcompare.errors import ConfigError
from envcompare.run_folder.records import Goal, ProfileChoice, Scalar
from envcompare.text import listed

BATCH = "batch"
_DOUBLINGS = 6  # from the first size, if no last one is given
# A try on a CPU needs a limit; on a GPU its memory is the limit.
CPU_MEMORY_MIB = 1024
_MOST = 1 << 20  # samples of a given batch
_LEAST_MIB = 16
_SEARCH = re.compile(r"\s*batch(?:=([0-9]{1,9})-([0-9]{1,9}))?\s*(?:,\s*memory=([0-9]{1,9})\s*)?")
_GOAL = re.compile(r"(\w+)=([0-9.eE+-]+)(?:,\s*epochs=([0-9]{1,5}))?")
EPOCHS = 20  # limit, if none is given
# The largest Linux kernels are built for so many CPUs (NR_CPUS).
_MAX_CPUS = 8192
_CPUS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
# A longer budget allows more launches.
_SHORT_S = 120.0
# On a GPU that waits for the host, intervals of two restarts cover too rarely
# (docs/benchmarks/estimator.md).
_GPU_RESTARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSearch:
    """The first and the last size, None for the workload's own, and a limit of memory in MiB."""

    first: int | None = None
    last: int | None = None
    memory_mib: int | None = None

    def sizes(self, own: int) -> tuple[int, ...]:
        """Return the sizes to try, by doubling; `own` is the batch of the workload."""
        sizes = [self.first or own]
        last = self.last or sizes[0] << _DOUBLINGS
        while sizes[-1] * 2 <= last:
            sizes.append(sizes[-1] * 2)
        return tuple(sizes)

    @property
    def limit(self) -> str:
        """Describe the memory limit of a try."""
        if self.memory_mib:
            return f"{self.memory_mib} MiB of a GPU, or of private memory on a CPU"
        return f"the memory of a GPU, or {CPU_MEMORY_MIB} MiB of private memory on a CPU"


def parse_search(text: str | None) -> BatchSearch | None:
    """Parse `batch[=FIRST-LAST][,memory=MIB]`; None stays None.

    Raises ConfigError for anything else, and if the range holds fewer than two sizes.
    """
    if text is None:
        return None
    why = "the form is batch, batch=FIRST-LAST or batch=FIRST-LAST,memory=MIB"
    if parts := _SEARCH.fullmatch(text):
        first, last, mib = (int(part) if part else None for part in parts.groups())
        is_span = first is None or last is None or (1 <= first <= last // 2 and last <= _MOST)
        if not is_span:
            why = f"FIRST is at least 1, LAST at least twice as much and at most {_MOST}"
        elif mib is not None and mib < _LEAST_MIB:
            why = f"MIB is a whole number from {_LEAST_MIB} up"
        else:
            return BatchSearch(first=first, last=last, memory_mib=mib)
    raise ConfigError(
        f"--search {text} is not understood",
        details=why,
        hint="for example --search batch, or --search batch=16-1024",
    )


def _with_sizes(search: BatchSearch, workload: Workload, known: Known) -> Workload:
    """Return the workload with the sizes of the search as values of its batch.

    Raises ConfigError if it has no batch, or one that is already set.
    """
    info = info_of(workload, known)
    own = info.parameters.get(BATCH)
    if type(own) is not int or own < 1:
        able = [name for name, one in known.workloads.items() if BATCH in one.parameters]
        raise ConfigError(
            f"--search batch: {workload.name} has no parameter `{BATCH}`",
            details=f"bundled workloads that have it: {', '.join(able)}",
            hint="choose with --workloads, or declare `batch` in PARAMS",
        )
    if BATCH in dict(workload.parameters):
        raise ConfigError(
            f"--search batch and --set {workload.name}.batch exclude each other",
            hint="give sizes as in --search batch=16-1024, or only --set, which finds the knee too",
        )
    if workload.path is None and True in dict(workload.parameters).get("compile", ()):
        raise ConfigError(
            f"--search batch and {workload.name}.compile=true exclude each other",
            hint=f"give batches instead, as in --set {workload.name}.batch=8,16",
        )
    sizes = search.sizes(own)
    for size in (sizes[0], sizes[-1]):
        if wanted := out_of_range(size, info.ranges.get(BATCH, (None, None))):
            raise ConfigError(
                f"--search batch: {info.name} does not accept a batch of {size}",
                details=f"it accepts {wanted}",
                hint="name sizes in that range, as in --search batch=16-1024",
            )
    values: tuple[tuple[str, tuple[Scalar, ...]], ...] = (*workload.parameters, (BATCH, sizes))
    return replace(workload, parameters=tuple(sorted(values)))


def parse_until(text: str | None) -> Goal | None:
    """Parse `METRIC=VALUE[,epochs=N]`; None stays None. Raises ConfigError for anything else."""
    if text is None:
        return None
    parts = _GOAL.fullmatch(text.strip())
    try:
        # The pattern also accepts what is no number, such as 1e+.
        value = float(parts[2]) if parts else math.nan
    except ValueError:
        value = math.nan
    epochs = int(parts[3] or EPOCHS) if parts else 0
    if parts is None or not math.isfinite(value) or epochs < 1:
        raise ConfigError(
            f"--until {text} is not understood",
            hint="the form is METRIC=VALUE[,epochs=N], as in --until accuracy=0.95,epochs=40",
        )
    return Goal(metric=parts[1], value=value, epochs=epochs)


def _require_metric(goal: Goal, workloads: tuple[Workload, ...], known: Known) -> None:
    for workload in workloads:
        metrics = info_of(workload, known).metrics
        if goal.metric in metrics:
            continue
        able = [name for name, one in known.workloads.items() if goal.metric in one.metrics]
        raise ConfigError(
            f"--until {goal.metric}: {workload.name} does not report `{goal.metric}`",
            details=f"it reports {', '.join(metrics) or 'no metric'}; bundled workloads "
            f"that report `{goal.metric}`: {', '.join(able) or 'none'}",
            hint="choose with --workloads; your class needs METRICS and `evaluate`",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything the user asked for, checked; nothing in it is None unless it says so."""

    arms: tuple[Arm, ...]
    reference: str
    hosts: tuple[str, ...]  # as they are named, possibly a group or a file
    allocation: Allocation | None  # whose nodes are the hosts
    jobs: int
    rendezvous: str | None  # the host of the first rank, if ranks are spread over all hosts
    workloads: tuple[Workload, ...]
    search: BatchSearch | None  # whose sizes are values of the workloads
    until: Goal | None
    preset: Preset
    margin: float
    target: float
    budget_s: float
    min_restarts: int
    gpu_restarts: int  # likewise of a cell whose work runs on a GPU
    restarts: int | None
    rounds: int | None
    steps: int | None
    sessions: int
    screen: bool
    seed: int
    threads: int | None  # None: as many as each arm has by itself
    pin: tuple[int, ...] | None
    generation: Generation
    device: Device
    has_startup: bool
    cold_start: bool
    profile: ProfileChoice
    quiet_gate: bool
    noise_memory: bool
    marks: bool
    quiet_pressure: float
    quiet_load: float | None
    stabilise: bool
    same_cpu: bool
    title: str
    out: Path
    data: str | None
    places: tuple[Place, ...]  # of the data; empty if not given
    download: bool
    base_image: str | None
    variant: Variant
    sif_compression: Compression
    python: str | None  # None: the host's own
    vm_python: str | None
    host_python: str | None
    allow_mismatch: bool
    ssh_config: str | None
    accept_new_host_keys: bool
    connect_timeout_s: float
    host_patience_s: float
    wait_s: float  # for a host that another client uses
    settings: Settings

    @property
    def may_use_gpu(self) -> bool:
        """Return whether a GPU is used if there is one."""
        return self.device != "cpu"


_OF_PRESETS = ("margin", "target", "budget", "restarts", "rounds")
"""Settings that a preset determines."""

_SAME = (
    {field.name for field in fields(Experiment)}
    & {field.name for field in msgspec.structs.fields(Settings)}
) - {
    *("reference", "hosts", "allocation", "workloads", "preset", "margin", "target", "pin", "out"),
    *("device", "search", "threads", "until"),
}
"""Settings that an experiment takes over as they are."""


def resolve(flags: Settings, file: Settings, *, known: Known) -> Experiment:
    """Merge flags over file over defaults, and check everything.

    Raises ConfigError for unknown names and impossible combinations.
    """
    given = merge(flags, _below(flags, file, known))
    usual = msgspec.structs.replace(
        DEFAULTS,
        seed=secrets.randbelow(2**31),
        envs=tuple(name for name, traits in known.environments.items() if traits.is_default),
        workloads=() if given.workload else DEFAULTS.workloads,
    )
    settings = merge(given, usual)
    _check_together(settings)
    _require_paths(settings)
    items = expand_stacks(listed(settings.envs), chosen_stacks(settings.stacks))
    given_options = settings.docker_options
    options = (given_options,) if isinstance(given_options, str) else (given_options or ())
    arms = with_options(parse_arms(items, known.environments), options)
    rest = _rest(settings)
    search = parse_search(settings.search)
    workloads = choose_workloads(settings, known)
    if search is not None:
        workloads = tuple(_with_sizes(search, workload, known) for workload in workloads)
    until = parse_until(settings.until)
    if until is not None:
        _require_metric(until, workloads, known)
    if settings.rendezvous is not None:
        arms = on_network(arms)
        _require_ranks(workloads, known)
    if settings.compare is not None:
        arms, workloads = _by_values(settings.compare, arms, workloads, known=known)
    if settings.restarts is not None and any(
        workload.program is not None for workload in workloads
    ):
        raise ConfigError(
            "--restarts and --rounds are not for plain commands",
            hint="leave them out",
        )
    _check_placed(rest["places"], workloads, settings, known)
    allocation = parse_allocation(settings.allocation, os.environ, now_s=time.time())
    if allocation is not None:
        check_allocation(arms, rest["places"])
    return Experiment(
        arms=arms,
        reference=chosen_reference(settings.reference, arms),
        hosts=allocation.hosts if allocation else _hosts(settings),
        allocation=allocation,
        workloads=workloads,
        search=search,
        until=until,
        **_measuring(settings),
        **rest,
        settings=settings,
    )


def _check_placed(
    places: tuple[Place, ...], workloads: tuple[Workload, ...], settings: Settings, known: Known
) -> None:
    if places and any(one.program is not None for one in workloads):
        raise ConfigError(
            "--place is not for plain commands",
            hint="leave it out, or write the command as a class",
        )
    without = [
        one.name
        for one in workloads
        if one.path is None and one.program is None and not known.workloads[one.name].loads_data
    ]
    if places and without:
        raise ConfigError(
            f"--place: {', '.join(without)} loads no data",
            hint="leave --place out, or choose workloads that load data",
        )
    for workload in workloads if IN_IMAGE & {*places} else ():
        # From the settings: compared values are no longer parameters of the workload.
        given = (settings.set or {}).get(workload.name, {})
        if writing := writes_into_data(info_of(workload, known), given):
            raise ConfigError(
                f"{workload.name}.{writing} cannot write into an image or a SIF",
                hint="leave both places out; --place data=overlay can be written to",
            )


def _require_ranks(workloads: tuple[Workload, ...], known: Known) -> None:
    able = [name for name, info in known.workloads.items() if info.spreads_ranks]
    others = [
        workload.name
        for workload in workloads
        if workload.name not in able or workload.path or workload.program
    ]
    if others:
        raise ConfigError(
            f"--rendezvous: {', '.join(others)} has no ranks on several hosts",
            hint=f"give only --workloads {', '.join(able)}",
        )


def _below(flags: Settings, file: Settings, known: Known) -> Settings:
    """Return the file without what the flags exclude.

    That is what a preset of the flags sets, the opposite of a flag, and the values of workloads
    that do not run.
    """
    left_out = [*_OF_PRESETS] if flags.preset is not None else []
    given, in_file = _exclusive(flags), _exclusive(file)
    for first, second, _ in _EXCLUSIVE:
        for flag, other in ((first, second), (second, first)):
            if flag in given and other in in_file and other not in given:
                left_out.append(in_file[other])
    file = msgspec.structs.replace(file, **dict.fromkeys(left_out))
    if (flags.workloads is None and not flags.workload) or not file.set:
        return file
    merged = merge(flags, file)
    tables = merged.workloads
    named = tuple(tables) if isinstance(tables, dict) else listed(tables)
    running = {*named, *map(own_name, listed(merged.workload))}
    others = {*known.workloads, *map(own_name, listed(file.workload))} - running
    kept = {name: values for name, values in file.set.items() if name not in others}
    return msgspec.structs.replace(file, set=kept or None)


def _by_values(
    choice: str, arms: tuple[Arm, ...], workloads: tuple[Workload, ...], *, known: Known
) -> tuple[tuple[Arm, ...], tuple[Workload, ...]]:
    """Return each arm once for each value of the parameter, and the workloads without it.

    Raises ConfigError if not exactly one thing is compared.
    """
    kind, _, name = choice.partition("=")
    if kind != "parameter" or not name.isidentifier():
        raise ConfigError(
            f"--compare {choice} is not understood",
            hint="the form is parameter=NAME, for example --compare parameter=precision",
        )
    if name == "batch":
        raise ConfigError(
            "--compare parameter=batch: steps of different batches are different work",
            hint="leave --compare out: each batch is then a cell",
        )
    for workload in workloads:
        _require_values(choice, name, workload, known)
    given = {one: dict(one.parameters)[name] for one in workloads}
    values = given[workloads[0]]
    if any(each != values for each in given.values()):
        raise ConfigError(
            f"--compare {choice}: the workloads have different values of {name}",
            hint="give all workloads the same values in the same order",
        )
    without = tuple(
        replace(one, parameters=tuple(each for each in one.parameters if each[0] != name))
        for one in workloads
    )
    return with_values(arms, name, values), without


def _require_values(choice: str, name: str, workload: Workload, known: Known) -> None:
    """Raise ConfigError for a workload without several values of the parameter."""
    if workload.program is not None:
        raise ConfigError(
            f"--compare {choice}: the command {workload.name} has no parameters",
            hint="write it as a class, or give several --command",
        )
    values = dict(workload.parameters).get(name, ())
    info = known.workloads.get(workload.name)
    if info is not None and name not in info.parameters:
        able = [each for each, its in known.workloads.items() if name in its.parameters]
        raise ConfigError(
            f"--compare {choice}: {workload.name} has no parameter `{name}`",
            details=f"workloads that have it: {', '.join(able) or 'none'}",
            hint="`envcompare list` names the parameters; choose with --workloads",
        )
    if len(values) < 2:
        raise ConfigError(
            f"--compare {choice}: {workload.name} has nothing to compare",
            details=f"--set gives {workload.name}.{name} {len(values) or 'no'} value",
            hint=f"give two or more: --set {workload.name}.{name}=A,B",
        )


def _hosts(settings: Settings) -> tuple[str, ...]:
    named = tuple(settings.hosts) if isinstance(settings.hosts, dict) else listed(settings.hosts)
    hosts = ("local",) if settings.hosts is None else named
    if not hosts:
        raise ConfigError("--hosts names no host", hint="give user@host, or leave it out")
    return hosts


def _measuring(settings: Settings) -> dict[str, Any]:
    preset = settings.preset or "default"
    values = PRESETS[preset]
    margin = values.margin if settings.margin is None else settings.margin / 100
    target = settings.target / 100 if settings.target is not None else margin / 2
    budget = values.budget_s if settings.budget is None else settings.budget
    check_ranges(settings)
    _check_restarts(settings)
    restarts = settings.restarts or max(restarts_of(preset, budget), settings.sessions or 1)
    return {
        "preset": preset,
        "margin": margin,
        "target": target,
        "budget_s": float(budget),
        "min_restarts": restarts,
        "gpu_restarts": settings.restarts or max(restarts, _GPU_RESTARTS),
        "threads": None if settings.threads == "as-run" else settings.threads,
        "pin": parse_cpus(settings.pin),
        # Wheels without CUDA are chosen to measure on the CPU, also in arms with other wheels.
        "device": "cpu" if settings.variant == "cpu" else settings.device,
    }


def check_ranges(settings: Settings) -> None:
    """Raise ConfigError, naming the flag, for a number outside the range of its option."""
    for name, (option, _) in options().items():
        value = getattr(settings, name)
        if option.range is None or value is None or isinstance(value, str):
            continue
        if option.range.holds(value):
            continue
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(
            f"{flag} {value} is out of range",
            details=f"it must be {option.range.text}",
            hint=f"give a {flag} in this range, or leave it out",
        )


def restarts_of(preset: Preset, budget_s: float) -> int:
    """Return the minimum number of restarts of a cell before it may be decided."""
    if preset == "strict":
        return PRESETS["strict"].min_restarts
    return PRESETS["quick" if budget_s < _SHORT_S else "default"].min_restarts


_EITHER = "leave one of them out"
_EXCLUSIVE = (
    ("--variant cpu", "--device cuda", _EITHER),
    ("--rendezvous", "--search", "find the batch on one host, then give --set W.batch=N"),
    ("--rendezvous", "--place", _EITHER),
    ("--rendezvous", "--allocation", "name the hosts with --hosts"),
    ("--hosts", "--allocation", _EITHER),
    ("--search", "--place", "find the batch first, then give --place and --set W.batch=N"),
    ("--cold-start", "--no-startup", _EITHER),
    ("--data", "--download", _EITHER),
)
"""Two options that exclude each other, and what to do about it."""


_VALUES = {
    "--variant cpu": ("variant", "cpu"),
    "--device cuda": ("device", "cuda"),
    "--no-startup": ("startup", False),
}
"""The setting and the value of an option that is not given by any value of its setting."""


def _exclusive(settings: Settings) -> dict[str, str]:
    """Return the options of `_EXCLUSIVE` that are given, with the names of their settings."""
    given: dict[str, str] = {}
    for option in (option for *pair, _ in _EXCLUSIVE for option in pair):
        name, value = _VALUES.get(option, (option.removeprefix("--").replace("-", "_"), None))
        actual = getattr(settings, name)
        if actual not in (None, False) if value is None else actual == value:
            given[option] = name
    return given


def _check_together(settings: Settings) -> None:
    given = _exclusive(settings)
    for first, second, hint in _EXCLUSIVE:
        if first in given and second in given:
            raise ConfigError(f"{first} and {second} exclude each other", hint=hint)


def _require_paths(settings: Settings) -> None:
    """Raise ConfigError for an empty path, which would mean the default."""
    for name in ("out", "data", "ssh_config", "vm_python", "host_python"):
        value = getattr(settings, name)
        if value is not None and not value.strip():
            raise ConfigError(
                f"--{name.replace('_', '-')} names no path", hint="give a path, or leave it out"
            )


def _check_restarts(settings: Settings) -> None:
    if (settings.restarts is None) != (settings.rounds is None):
        raise ConfigError(
            "--restarts and --rounds belong together",
            hint="give both, or neither",
        )
    if settings.restarts is not None and settings.restarts < (settings.sessions or 1):
        raise ConfigError(
            f"--sessions {settings.sessions} needs as many restarts, and --restarts plans "
            f"{settings.restarts}",
            hint="give more --restarts, or fewer --sessions",
        )


def parse_cpus(value: str | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Parse a CPU list such as `0,2-3`; None stays None.

    Raises ConfigError for anything else, and for CPU numbers above the kernel's limit.
    """
    if value is None:
        return None
    items = value.split(",") if isinstance(value, str) else map(str, value)
    cpus: set[int] = set()
    for item in items:
        span = _CPUS.fullmatch(item.strip())
        # Without a match the span is empty, and is refused below.
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if not first <= last < _MAX_CPUS:
            raise ConfigError(
                f"--pin {value} is not a CPU list",
                details=f"`{item}` is no CPU or range of CPUs from 0 to {_MAX_CPUS - 1}",
                hint="for example --pin 0,2-3",
            )
        cpus.update(range(first, last + 1))
    if not cpus:
        raise ConfigError("--pin names no CPU", hint="for example --pin 0,2-3")
    return tuple(sorted(cpus))


def _rest(settings: Settings) -> dict[str, Any]:
    if settings.python is not None and not re.fullmatch(r"3\.\d+", settings.python):
        raise ConfigError(
            f"--python {settings.python} is not a minor version of Python", hint="for example 3.11"
        )
    if settings.base_image is not None:
        check_image(settings.base_image, flag="--base-image")
    if settings.download and settings.workload:
        raise ConfigError(
            "--download is only for bundled workloads",
            hint="give your workload a static make(folder), or use --data",
        )
    return {
        **{name: getattr(settings, name) for name in _SAME},
        "has_startup": settings.startup,
        # A shell leaves the ~ of --out=~/x to the program.
        "out": Path(os.path.expanduser(settings.out or "results")),  # noqa: PTH111 — keeps ~nobody
        "places": parse_places(settings.place),
        "connect_timeout_s": settings.connect_timeout,
        "host_patience_s": settings.host_patience,
        "wait_s": settings.wait,
    }
