"""The frozen experiment: what settings mean once they are checked against each other."""

from __future__ import annotations

import ast
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from envcompare.config import (
    DEFAULTS,
    PRESETS,
    Compression,
    Device,
    Generation,
    Preset,
    Settings,
    closest,
    listed,
    merge,
)
from envcompare.errors import ConfigError
from envcompare.records import Scalar

_ARM_ID = re.compile(r"[a-z0-9-]+")
_ALIASES = {"apptainer": "singularity"}
_STACKS = ("image", "host")
MAX_CELLS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One environment × stack; `reference` is an image or SIF the user named."""

    id: str
    environment: str
    stack: str = "image"
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload and its parameter values; several values of one parameter make several cells."""

    name: str
    path: Path | None = None  # of the user's own file
    class_name: str = ""
    parameters: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()


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
    seed: int
    threads: int
    pin: tuple[int, ...] | None
    generation: Generation
    device: Device
    has_startup: bool
    title: str
    out: Path
    data: str | None
    download: bool
    base_image: str
    sif_compression: Compression
    python: str
    vm_python: str | None
    host_python: str | None
    ssh_config: str | None
    accept_new_host_keys: bool
    connect_timeout_s: float
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names an experiment may use: environments, and each workload's parameters."""

    environments: tuple[str, ...]
    workloads: dict[str, dict[str, Scalar]]


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
    arms = parse_arms(listed(settings.envs), known.environments)
    return Experiment(
        arms=arms,
        reference=_reference(settings.reference, arms),
        hosts=listed(settings.hosts) or ("local",),
        workloads=_workloads(settings, known),
        **_measuring(settings),
        **_rest(settings),
        settings=settings,
    )


def parse_arms(items: tuple[str, ...], environments: tuple[str, ...]) -> tuple[Arm, ...]:
    """Parse `ENV`, `ENV@STACK` and `NAME=ENV:REFERENCE`; raises ConfigError naming the item."""
    if not items:
        raise ConfigError("no environment is named", hint="for example --envs vm,docker")
    arms = tuple(_arm(item, environments) for item in items)
    seen: set[str] = set()
    for arm in arms:
        if arm.id in seen:
            raise ConfigError(
                f"the arm {arm.id} is named twice",
                details="the reference is measured a second time by itself, as the control",
                hint="give each arm its own name, as in old=docker:app:1,new=docker:app:2",
            )
        seen.add(arm.id)
    return arms


def _arm(item: str, environments: tuple[str, ...]) -> Arm:
    name, equals, rest = item.partition("=")
    if not equals or ":" in name:
        name, rest = "", item
    environment, colon, reference = rest.partition(":")
    environment, at, stack = environment.partition("@")
    environment = _ALIASES.get(environment, environment)
    if environment not in environments:
        raise ConfigError(
            f"unknown environment `{environment}` in --envs {item}",
            hint=closest(environment, environments),
        )
    if at and stack not in _STACKS:
        raise ConfigError(f"unknown stack `{stack}` in --envs {item}", hint=closest(stack, _STACKS))
    if stack == "host" and environment != "vm":
        raise ConfigError(
            f"--envs {item}: {environment} cannot show the host's own files in this version",
            hint=f"use {environment}, or vm@host for the host's own Python",
        )
    _check_reference(item, name=name, environment=environment, reference=reference, colon=colon)
    identity = name or (f"{environment}-{stack}" if stack == "host" else environment)
    if not _ARM_ID.fullmatch(identity):
        raise ConfigError(
            f"the arm name `{identity}` is not usable",
            details="arm names stand in file names: small letters, digits and hyphens",
            hint="for example new=docker:app:2",
        )
    return Arm(id=identity, environment=environment, stack=stack or "image", reference=reference)


def _check_reference(item: str, *, name: str, environment: str, reference: str, colon: str) -> None:
    if colon and not reference:
        raise ConfigError(f"--envs {item} names no image after the colon", hint="docker:app:1")
    if reference and not name:
        raise ConfigError(
            f"--envs {item} names an image but no arm",
            hint=f"give it a name: mine={item}",
        )
    if reference and environment == "vm":
        raise ConfigError(
            f"--envs {item}: vm has no image",
            hint="use vm, or docker:IMAGE, or singularity:FILE.sif",
        )


def _reference(name: str | None, arms: tuple[Arm, ...]) -> str:
    if name is None:
        return arms[0].id
    ids = tuple(arm.id for arm in arms)
    if name not in ids:
        raise ConfigError(f"--reference {name} is no arm of this run", hint=closest(name, ids))
    return name


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
    )
    for holds, key, remedy in checks:
        if not holds:
            raise ConfigError(
                f"--{key} {getattr(settings, key)} is out of range", hint=f"give {remedy}"
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
    same = (
        "seed", "threads", "generation", "device", "title", "data", "download", "base_image",
        "sif_compression", "python", "vm_python", "host_python", "ssh_config",
        "accept_new_host_keys",
    )  # fmt: skip
    return {
        **{name: getattr(settings, name) for name in same},
        "has_startup": settings.startup,
        "out": Path(settings.out or "results"),
        "connect_timeout_s": settings.connect_timeout,
    }


def _workloads(settings: Settings, known: Known) -> tuple[Workload, ...]:
    names = tuple(known.workloads)
    given = settings.set or {}
    found: list[Workload] = []
    for name in dict.fromkeys(listed(settings.workloads)):
        if name not in known.workloads:
            raise ConfigError(f"unknown workload `{name}`", hint=closest(name, names))
        parameters = _parameters(name, given.get(name, {}), known.workloads[name])
        found.append(Workload(name=name, parameters=parameters))
    for item in listed(settings.workload):
        own = _own_workload(item)
        values = tuple((k, _values(v)) for k, v in sorted(given.get(own.name, {}).items()))
        found.append(replace(own, parameters=values))
    if not found:
        raise ConfigError("no workload is named", hint=closest("", names))
    unknown = set(given) - {workload.name for workload in found}
    if unknown:
        word = min(unknown)
        taking_part = tuple(workload.name for workload in found)
        raise ConfigError(
            f"--set names `{word}`, which does not run", hint=closest(word, taking_part)
        )
    return tuple(found)


def _parameters(
    workload: str, given: dict[str, Scalar | tuple[Scalar, ...]], defaults: dict[str, Scalar]
) -> tuple[tuple[str, tuple[Scalar, ...]], ...]:
    checked: list[tuple[str, tuple[Scalar, ...]]] = []
    for name, value in sorted(given.items()):
        if name not in defaults:
            raise ConfigError(
                f"{workload} has no parameter `{name}`", hint=closest(name, tuple(defaults))
            )
        values = _values(value)
        for one in values:
            _check_type(f"{workload}.{name}", one, defaults[name])
        checked.append((name, values))
    return tuple(checked)


def _values(value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def _check_type(key: str, value: Scalar, default: Scalar) -> None:
    accepted: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if isinstance(value, bool) != isinstance(default, bool) or not isinstance(value, accepted):
        raise ConfigError(
            f"{key}={value} is of the wrong kind",
            details=f"it is {type(value).__name__}; the default is {default!r}",
            hint=f"give a value like {default!r}",
        )


def _own_workload(item: str) -> Workload:
    text, colon, class_name = item.rpartition(":")
    path = Path(text).expanduser()
    if not colon or not class_name.isidentifier():
        raise ConfigError(
            f"--workload {item} is not understood", hint="the form is path/to/file.py:Class"
        )
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"the workload file {path} cannot be read",
            details=str(error),
            hint="check the path and the syntax of the file",
        ) from error
    classes = tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef))
    if class_name not in classes:
        raise ConfigError(
            f"{path} has no class {class_name}",
            hint=closest(class_name, classes) if classes else "it defines no class at all",
        )
    return Workload(name=f"{path.stem}-{class_name}", path=path.resolve(), class_name=class_name)
