"""Which workloads run, and with which values of their parameters."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from pathlib import Path

from envcompare.config.programs import Program, WorkloadTable, parse_program
from envcompare.config.settings import Settings, closest, listed
from envcompare.errors import ConfigError
from envcompare.run_folder.records import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload and its parameter values; several values of one parameter make several cells."""

    name: str
    path: Path | None = None  # of the user's own file
    class_name: str = ""
    program: Program | None = None  # a plain command
    parameters: tuple[tuple[str, tuple[Scalar, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names an experiment may use: environments, and each workload's parameters."""

    environments: tuple[str, ...]
    workloads: dict[str, dict[str, Scalar]]


def choose_workloads(settings: Settings, known: Known) -> tuple[Workload, ...]:
    """Return the workloads that run; raises ConfigError for what cannot."""
    names = tuple(known.workloads)
    given = settings.set or {}
    found: list[Workload] = []
    for name, table in _tables(settings).items():
        if table != WorkloadTable():
            found.append(_command(name, table, names=names, has_values=name in given))
            continue
        if name not in known.workloads:
            raise ConfigError(f"unknown workload `{name}`", hint=closest(name, names))
        parameters = _parameters(name, given.get(name, {}), known.workloads[name])
        found.append(Workload(name=name, parameters=parameters))
    for item in listed(settings.workload):
        own = _own_workload(item)
        values = tuple(
            (key, _values(f"{own.name}.{key}", value))
            for key, value in sorted(given.get(own.name, {}).items())
        )
        found.append(replace(own, parameters=values))
    if not found:
        raise ConfigError("no workload is named", hint=closest("", names))
    names_found = [workload.name for workload in found]
    twice = {name for name in names_found if names_found.count(name) > 1}
    if twice:
        raise ConfigError(
            f"two workloads are called {min(twice)}", hint="rename one of the files or classes"
        )
    unknown = set(given) - set(names_found)
    if unknown:
        word = min(unknown)
        taking_part = tuple(workload.name for workload in found)
        raise ConfigError(
            f"--set names `{word}`, which does not run", hint=closest(word, taking_part)
        )
    return tuple(found)


def _tables(settings: Settings) -> dict[str, WorkloadTable]:
    if isinstance(settings.workloads, dict):
        return settings.workloads
    return {name: WorkloadTable() for name in listed(settings.workloads)}


def _command(
    name: str, table: WorkloadTable, *, names: tuple[str, ...], has_values: bool
) -> Workload:
    if name in names:
        raise ConfigError(
            f"{name} is a bundled workload", hint=f"give [workloads.{name}] another name"
        )
    if has_values:
        raise ConfigError(
            f"--set names {name}, but a command has no parameters",
            hint="write its arguments into the command; each command makes a cell of its own",
        )
    return Workload(name=name, program=parse_program(name, table))


def _parameters(
    workload: str, given: dict[str, Scalar | tuple[Scalar, ...]], defaults: dict[str, Scalar]
) -> tuple[tuple[str, tuple[Scalar, ...]], ...]:
    checked: list[tuple[str, tuple[Scalar, ...]]] = []
    for name, value in sorted(given.items()):
        if name not in defaults:
            raise ConfigError(
                f"{workload} has no parameter `{name}`", hint=closest(name, tuple(defaults))
            )
        values = _values(f"{workload}.{name}", value)
        for one in values:
            _check_type(f"{workload}.{name}", one, defaults[name])
        checked.append((name, values))
    return tuple(checked)


def _values(key: str, value: Scalar | tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    values = value if isinstance(value, tuple) else (value,)
    if not values or len(set(values)) < len(values):
        raise ConfigError(
            f"{key} has no value, or one of them twice",
            hint="each value makes a cell of its own: name each once",
        )
    for one in values:
        if isinstance(one, float) and not math.isfinite(one):
            raise ConfigError(
                f"{key}={one} is no finite number",
                details="the run folder is JSON, which holds no other",
                hint="give a finite number",
            )
    return values


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
