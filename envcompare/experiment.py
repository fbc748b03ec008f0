"""The frozen experiment: what settings mean once they are checked against each other."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from envcompare.arms import Arm, chosen_reference, chosen_stacks, expand_stacks, parse_arms
from envcompare.choice import Known, Workload, choose_workloads
from envcompare.config import (
    DEFAULTS,
    PRESETS,
    Compression,
    Device,
    Generation,
    Preset,
    Settings,
    listed,
    merge,
)
from envcompare.errors import ConfigError
from envcompare.programs import WorkloadTable, table_of

MAX_CELLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything the user asked for, checked; nothing in it is None unless it says so."""

    arms: tuple[Arm, ...]
    reference: str
    hosts: tuple[str, ...]
    workloads: tuple[Workload, ...]
    preset: Preset
    margin: float
    target: float
    budget_s: float
    min_restarts: int
    screen: bool
    seed: int
    threads: int
    pin: tuple[int, ...] | None
    generation: Generation
    device: Device
    has_startup: bool
    cold_start: bool
    quiet_gate: bool
    quiet_pressure: float
    quiet_load: float | None
    stabilise: bool
    title: str
    out: Path
    data: str | None
    download: bool
    base_image: str | None
    sif_compression: Compression
    python: str
    vm_python: str | None
    host_python: str | None
    ssh_config: str | None
    accept_new_host_keys: bool
    connect_timeout_s: float
    settings: Settings


def resolve(flags: Settings, file: Settings, *, known: Known) -> Experiment:
    """Merge flags over file over defaults and check all of it.

    Raises ConfigError for unknown names and impossible combinations.
    """
    given = merge(flags, file)
    settings = merge(given, DEFAULTS)
    if given.workload and not given.workloads:
        settings = msgspec.structs.replace(settings, workloads=())
    settings = msgspec.structs.replace(
        settings, seed=settings.seed if settings.seed is not None else secrets.randbelow(2**31)
    )
    items = expand_stacks(listed(settings.envs), chosen_stacks(settings))
    arms = parse_arms(items, known.environments)
    rest = _rest(settings)
    return Experiment(
        arms=arms,
        reference=chosen_reference(settings.reference, arms),
        hosts=_hosts(settings),
        workloads=choose_workloads(settings, known),
        **_measuring(settings),
        **rest,
        settings=settings,
    )


def _hosts(settings: Settings) -> tuple[str, ...]:
    hosts = ("local",) if settings.hosts is None else listed(settings.hosts)
    if not hosts:
        raise ConfigError(
            "--hosts names no host", hint="leave it out for this machine, or give user@host"
        )
    return hosts


def standalone(experiment: Experiment, hosts: tuple[str, ...]) -> Experiment:
    """Return the experiment with settings that mean the same in any working directory."""
    own = tuple(f"{w.path}:{w.class_name}" for w in experiment.workloads if w.path is not None)
    config = experiment.ssh_config and str(Path(experiment.ssh_config).expanduser().resolve())
    settings = msgspec.structs.replace(
        experiment.settings, hosts=hosts, workload=own or None, ssh_config=config
    )
    if any(w.program is not None for w in experiment.workloads):
        tables = {
            w.name: WorkloadTable() if w.program is None else table_of(w.program)
            for w in experiment.workloads
            if w.path is None
        }
        settings = msgspec.structs.replace(settings, workloads=tables)
    return replace(experiment, settings=settings, ssh_config=config)


def _measuring(settings: Settings) -> dict[str, Any]:
    preset = settings.preset or "default"
    values = PRESETS[preset]
    margin = values.margin if settings.margin is None else settings.margin / 100
    target = settings.target / 100 if settings.target is not None else margin / 2
    budget = values.budget_s if settings.budget is None else settings.budget
    checks = (
        (0 < margin < 1, "margin", "a percentage above 0 and below 100"),
        (0 < target < 1, "target", "a percentage above 0 and below 100"),
        (budget > 0, "budget", "seconds above 0"),
        (settings.threads is None or settings.threads >= 1, "threads", "1 or more"),
        ((settings.quiet_pressure or 0) > 0, "quiet_pressure", "a percentage above 0"),
        (settings.quiet_load is None or settings.quiet_load > 0, "quiet_load", "a number above 0"),
        ((settings.connect_timeout or 0) > 0, "connect_timeout", "seconds above 0"),
    )
    for holds, key, remedy in checks:
        if not holds:
            raise ConfigError(
                f"--{key.replace('_', '-')} {getattr(settings, key)} is out of range",
                hint=f"give {remedy}",
            )
    if settings.generation == "fork" and settings.device == "cuda":
        raise ConfigError(
            "--generation fork and --device cuda exclude each other",
            details="a process cannot be forked once CUDA is in use",
            hint="leave --generation out: the tool chooses rebuild on a GPU",
        )
    return {
        "preset": preset,
        "margin": margin,
        "target": target,
        "budget_s": float(budget),
        "min_restarts": values.min_restarts,
        "pin": parse_cpus(settings.pin),
    }


def parse_cpus(value: str | tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Parse a CPU list such as `0,2-3`; None stays None."""
    if value is None or isinstance(value, tuple):
        return value
    cpus: set[int] = set()
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ConfigError(f"--pin {value} is no CPU list", hint="for example --pin 0,2-3")
        cpus.update(range(int(first), int(last or first) + 1))
    if not cpus:
        raise ConfigError(f"--pin {value} names no CPU", hint="for example --pin 0,2-3")
    return tuple(sorted(cpus))


def _rest(settings: Settings) -> dict[str, Any]:
    if not re.fullmatch(r"3\.\d+", settings.python or ""):
        raise ConfigError(
            f"--python {settings.python} is no minor version of Python", hint="for example 3.11"
        )
    if settings.data is not None and settings.download:
        raise ConfigError(
            "--data and --download exclude each other",
            hint="--data uses the data you have, --download fetches them",
        )
    if settings.download and settings.workload:
        raise ConfigError(
            "--download is for the bundled workloads alone",
            hint="give your own workload a static make(folder), or use --data",
        )
    same = (
        "seed", "stabilise", "threads", "generation", "device", "title", "data", "download",
        "base_image", "sif_compression", "python", "vm_python", "host_python", "ssh_config",
        "accept_new_host_keys", "screen",
        "cold_start", "quiet_gate", "quiet_pressure", "quiet_load",
    )  # fmt: skip
    return {
        **{name: getattr(settings, name) for name in same},
        "has_startup": settings.startup,
        "out": Path(settings.out or "results"),
        "connect_timeout_s": settings.connect_timeout,
    }
